"""What a sample is: which rows of which fields it takes, and where they land in it. Pure: arrays in, arrays out.

`searchsorted` turns times, of a dataset of any size, into rows.
"""

from h5stream.samples.segments import searchsorted

__all__ = ["searchsorted"]
