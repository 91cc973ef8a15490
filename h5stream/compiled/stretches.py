"""Samples of unlike lengths laid one behind the other in their batches: some nanoseconds each."""

from __future__ import annotations

import numpy as np

from h5stream.compiled.jit import jit

_MOST_ROOM = 8
"""Places for each sample, up to which samples are ordered by a table of all places."""


@jit
def order_by_place(batch, within, order):
    """Order samples by batch and place in it, of which no two have the same.

    Parameters
    ----------
    batch, within : int32 or int64 arrays
        The batch of each, and its place there.
    order : int32 array
        Where the samples' numbers go, in order.

    Returns
    -------
    bool
        Whether that was done: not where they are few among many places.
    """
    count, least, most, size = batch.size, np.int64(batch.min()), np.int64(batch.max()), np.int64(within.max()) + 1
    room = (most - least + 1) * size
    if room > _MOST_ROOM * count:
        return False
    sample_at = np.full(room, -1, dtype=np.int32)
    for k in range(count):
        sample_at[(batch[k] - least) * size + within[k]] = k
    done = 0
    for place in range(room):
        if sample_at[place] >= 0:
            order[done] = sample_at[place]
            done += 1
    return True


@jit
def lay_stretches(order, batch, within, counts, edges, places, lengths, starts, offsets):
    """Lay samples one behind the other.

    Parameters
    ----------
    order : int32 or int64 array, shape (samples,)
        The samples by batch and place.
    batch, within, counts : int32 or int64 arrays, shape (samples,)
        The batch of each, its place there, and its rows.
    edges : int64 array, shape (batches + 1,)
        Filled with where the samples of each batch begin in that order, and where the last end.
    places, lengths : arrays, shape (samples,)
        Filled with place and rows of each, in that order.
    starts : int64 array, shape (samples + 1,)
        Filled with where its rows begin among all, and where the last end.
    offsets : int64 array, shape (samples + batches,)
        Filled with the same for each batch alone, one batch behind the other.
    """
    at, last = np.int64(0), -1
    for k in range(order.size):
        sample = order[k]
        while last < batch[sample]:
            if last >= 0:
                offsets[k + last] = at - starts[edges[last]]
            last += 1
            edges[last] = k
            starts[k] = at
        starts[k], places[k], lengths[k] = at, within[sample], counts[sample]
        offsets[k + last] = at - starts[edges[last]]
        at += counts[sample]
    starts[order.size], edges[last + 1] = at, order.size
    offsets[order.size + last] = at - starts[edges[last]]


@jit
def begins_of_stretches(order, batch, edges, starts, begins):
    """Fill `begins` with where the rows of each sample begin in its batch; the other arrays as for `lay_stretches`."""
    for k in range(order.size):
        sample = order[k]
        begins[sample] = starts[k] - starts[edges[batch[sample]]]
