"""The compiled modules; everything else stands in pyproject.toml."""

import os
from glob import glob
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.modified import newer_group

# -ffp-contract=off: a fused multiply-add rounds once where two instructions round twice, so the bits of a sum or an
# update would depend on the machine that compiled it
FLAGS = ["-O3", "-ffp-contract=off", "-fno-math-errno"]

EXTENSIONS = [
    Extension(
        name,
        [f"{name.replace('.', '/')}.pyx"],
        depends=["setup.py", *glob("psframe/compiled/*.h"), *glob("psframe/compiled/*.pxd")],
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
        "psframe.compiled._flight",
    )
]


class Build(build_ext):
    """Compile on all cores; an editable installation keeps its modules for the next one by this Python.

    Remove ``build`` to compile for another compiler, or with other ``CFLAGS``.
    """

    def finalize_options(self):
        if self.editable_mode:
            self.build_lib = self.build_lib or os.path.join("build", "editable")
        super().finalize_options()
        self.parallel = self.parallel or os.cpu_count()

    def build_extension(self, ext):
        # Cython would see its own files, newly unpacked for each installation, as changes
        compiled = self.get_ext_fullpath(ext.name)
        done = Path(f"{compiled}.done")  # missing or old where a compilation was interrupted
        if os.path.exists(compiled) and not newer_group([*ext.sources, *ext.depends], done):
            return
        super().build_extension(ext)
        if self.editable_mode:
            done.touch()


setup(ext_modules=EXTENSIONS, cmdclass={"build_ext": Build})
