"""The compiled modules; everything else stands in pyproject.toml."""

from glob import glob

from setuptools import Extension, setup

# -ffp-contract=off: a fused multiply-add rounds once where two instructions round twice, so the bits of a sum or an
# update would depend on the machine that compiled it
FLAGS = ["-O3", "-ffp-contract=off", "-fno-math-errno"]

EXTENSIONS = [
    Extension(
        name,
        [f"{name.replace('.', '/')}.pyx"],
        depends=glob("psframe/**/*.h", recursive=True),
        extra_compile_args=FLAGS,
        libraries=["dl"],
    )
    for name in (
        "psframe.compiled._random",
        "psframe.compiled._elementwise",
        "psframe.compiled._batch",
        "psframe.compiled._numa",
        "psframe.compiled._memkind",
        "psframe.compiled._sync",
        "psframe.compiled._rooms",
    )
]

setup(ext_modules=EXTENSIONS)
