"""Builds the recorder in C where that is possible, and adds the start-up files; the rest is in pyproject.toml.

Without a compiler or the headers of Python, the installation succeeds all the same, and Python records.
"""

import os
import sys
import sysconfig

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

SOURCES = ("events", "fronts", "handover_lock", "module", "section_lookup", "section_writers")

START_UP = ("training_profiler.pth", "training_profiler.start")  # the latter for Python 3.15 and newer (PEP 829)


def compile_arguments() -> list[str]:
    """Return what the compiler is asked for beside the options of this Python."""
    if os.name == "nt":
        return []
    # A training evicts the code from the caches between two calls of it, so short code is fast code.
    arguments = ["-fvisibility=hidden", "-O2"]
    return [*arguments, "-fno-plt"] if sys.platform == "linux" else arguments


# The headers of 3.11 build for every later Python. Later headers take None for immortal, so 3.11 would crash. What they
# build is for their own version alone, and replaces no other file in a checkout.
SERVES_ALL = sys.version_info[:2] == (3, 11)

NATIVE = Extension(
    "training_profiler.recording._native",
    [f"native/{name}.c" for name in SOURCES],
    depends=["native/native.h"],
    extra_compile_args=compile_arguments(),
    optional=True,
    py_limited_api=SERVES_ALL,
)


class TruthfulWheel(bdist_wheel):
    """A wheel for this platform if it has the recorder in C, and for every platform if it has not."""

    def run(self) -> None:
        """Build the package, then decide."""
        self.run_command("build")
        if not any(map(os.path.exists, self.get_finalized_command("build_ext").get_outputs())):
            self.distribution.ext_modules = []
            self.root_is_pure = True
        super().run()


class BuildWithStartUp(build_py):
    """Puts the start-up files beside the package, where ``site`` looks for them."""

    def run(self) -> None:
        """Build the package, then copy the two files; an editable wheel takes its files from elsewhere."""
        super().run()
        folder = self.get_finalized_command("install").install_lib if self.editable_mode else self.build_lib
        for name in START_UP:
            self.copy_file(name, os.path.join(folder, name))


def has_limited_api() -> bool:
    """Return whether this Python has the part of its API that the recorder needs."""
    return sys.implementation.name == "cpython" and not sysconfig.get_config_var("Py_GIL_DISABLED")


setup(
    ext_modules=[NATIVE] if has_limited_api() else [],
    cmdclass={"bdist_wheel": TruthfulWheel, "build_py": BuildWithStartUp},
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if SERVES_ALL else {},
)
