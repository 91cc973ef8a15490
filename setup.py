"""What pyproject.toml cannot say: the C extension of `h5stream.compiled`, for every Python from 3.11 on.

After a change of a .c or .h file: ``python setup.py build_ext --inplace``.
"""

from pathlib import Path

from setuptools import Extension, setup

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

setup(ext_modules=[NATIVE], options={"bdist_wheel": {"py_limited_api": "cp311"}})
