"""Advice about files and the loader, which shows its working and changes nothing: inspect, diagnose, tune, doctor.

Its results are kinds of `Suggestion`. Advice about the training itself stands in `h5stream.training`.
"""
