"""Advice about files and the loader, which shows its working and changes nothing: inspect, diagnose, tune, doctor.

Its results are kinds of `Suggestion`. Advice about the training itself stands in `h5stream.training`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from h5stream.advice.inspection import inspect_files

__all__ = ["inspect_files"]


if not TYPE_CHECKING:  # so that a type checker finds names that are not there

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from h5stream.advice import inspection  # which needs torch

        return getattr(inspection, name)
