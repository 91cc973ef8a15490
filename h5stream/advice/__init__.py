"""Advice about files and the loader, which shows its working and changes nothing: inspect, diagnose, tune, doctor.

Its results are kinds of `Suggestion`. Advice about the training itself stands in `h5stream.training`.
"""

from h5stream.advice.inspection import inspect_files

__all__ = ["inspect_files"]
