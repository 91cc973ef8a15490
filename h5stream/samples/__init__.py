"""Kinds of samples: which rows of which fields a sample takes, and their places in it. Pure: arrays in, arrays out.

`searchsorted` turns times, of a dataset of any size, into rows.
"""

from h5stream.samples.segments import searchsorted

__all__ = ["searchsorted"]
