"""What pyproject.toml cannot say: the C extension of `h5stream.compiled`, for every Python from 3.11 on.

After a change of a .c or .h file: ``python setup.py build_ext --inplace``.
"""

import contextlib
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

FOLDER = Path("h5stream/compiled")
NATIVE = Extension(
    "h5stream.compiled._native",
    sources=sorted(map(str, FOLDER.glob("*.c"))),
    depends=sorted(map(str, FOLDER.glob("*.h"))),
    define_macros=[("Py_LIMITED_API", "0x030B0000")],
    py_limited_api=True,
    # Numbers of files may be anything, so sums of them wrap; and sums of floats are the same on every processor.
    extra_compile_args=[
        "-std=gnu11",
        "-O3",
        "-g0",
        "-fwrapv",
        "-fno-strict-aliasing",
        "-ffp-contract=off",
        "-Wall",
        "-Wextra",
    ],
)


class BuildHereToo(build_ext):
    """Put what was built beside its sources as well: Python that is started in this folder finds these first."""

    def run(self) -> None:
        """Build, and copy."""
        super().run()
        if not self.inplace:
            with contextlib.suppress(OSError):  # a folder that may not be written to
                self.copy_extensions_to_source()


setup(ext_modules=[NATIVE], cmdclass={"build_ext": BuildHereToo}, options={"bdist_wheel": {"py_limited_api": "cp311"}})
