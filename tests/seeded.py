"""The loader with one seed, for tests that compare several."""

from __future__ import annotations

import functools

from h5stream import H5StreamLoader

SeededLoader = functools.partial(H5StreamLoader, seed=0)
"""Without `seed=` each draws one of its own from torch's generator."""
