"""Compiled code, below everything that uses it: the C extension `_native`."""

try:
    import h5stream.compiled._native  # noqa: F401  whoever takes it from here finds it
except ImportError as error:
    raise ImportError(
        "the compiled part of h5stream cannot be imported: in a folder of its sources, `python -m pip install -e .` "
        f"builds it, which needs a C compiler; an installed one is of another system ({error})"
    ) from error
