"""The compiled modules; everything else stands in pyproject.toml."""

from setuptools import Extension, setup

# -ffp-contract=off: a fused multiply-add rounds once where two instructions round twice, so the bits of a sum or an
# update would depend on the machine that compiled it
FLAGS = ["-O3", "-ffp-contract=off", "-fno-math-errno"]

EXTENSIONS = [
    Extension(f"psframe.{name}", [f"psframe/{name}.pyx"], extra_compile_args=FLAGS)
    for name in ("_random", "_elementwise", "_batch")
]

setup(ext_modules=EXTENSIONS)
