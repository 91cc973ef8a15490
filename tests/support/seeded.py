"""The loader with one seed, for tests that compare several."""

import functools

from h5stream import H5StreamLoader

SeededLoader = functools.partial(H5StreamLoader, seed=0)
"""Without `seed=` each draws one of its own from torch's generator."""
