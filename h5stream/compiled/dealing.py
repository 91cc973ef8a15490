"""Whole groups of samples dealt out to parts, one after the other: a million in a tenth of a second."""

from __future__ import annotations

import numpy as np

from h5stream.compiled.jit import jit


@jit
def deal_groups(groups, edges, strata, samples, weights, by_size, total, lacks, homes):
    """Give each group to the part that lacks most of what it has; see `h5stream.order.splits.split_by_groups`.

    Parameters
    ----------
    groups : ndarray of int64
        The groups in the order in which they are dealt out.
    edges, strata, samples : ndarray of int64
        A group's entries, from one edge to the next: a stratum of it, and how many samples it has of that.
    weights : ndarray of float64
        Of each stratum.
    by_size : ndarray of int64
        The parts, of which the first counts where several lack as much.
    total : int
        Of all samples.
    lacks : ndarray of int64
        By stratum and part, times `total`; changed.
    homes : ndarray of int64
        Where each group's part is written.
    """
    taken = np.zeros(by_size.size, dtype=np.bool_)
    empty = by_size.size
    for place in range(groups.size):
        group = groups[place]
        first, end = edges[group], edges[group + 1]
        only_empty = groups.size - place <= empty
        best, most, most_of_one = -1, 0.0, 0
        for part in by_size:
            if only_empty and taken[part]:
                continue
            if end == first + 1:  # what all parts' lack would be multiplied by changes nothing
                lack = lacks[strata[first], part]
                if best < 0 or lack > most_of_one:
                    best, most_of_one = part, lack
                continue
            value = 0.0
            for k in range(first, end):
                value += samples[k] * weights[strata[k]] * lacks[strata[k], part]
            if best < 0 or value > most:
                best, most = part, value
        for k in range(first, end):
            lacks[strata[k], best] -= samples[k] * total
        homes[group] = best
        empty -= not taken[best]
        taken[best] = True
