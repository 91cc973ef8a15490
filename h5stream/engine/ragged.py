"""Rows of which each sample has another number: where they go in a batch, and the memory that they lie in.

A window brings a share of a batch, and each share lies in memory of its own, its samples one behind the other: how many
rows the other shares have is known only when they are planned. Most batches have one share, which is then handed over
as it is.
"""

from __future__ import annotations

import bisect
import collections
import operator
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from h5stream.engine import kernels
from h5stream.engine.slots import Memory, address_of, map_memory
from h5stream.order.places import Places

if TYPE_CHECKING:
    from h5stream.engine.tasks import Task

Ints = NDArray[np.int64]

POOLED_NBYTES = 256 * 1024
"""Bytes of a share from which on its memory is used again: less comes from the C library as fast."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Share:
    """What a window brings of a ragged dataset: samples by batch and place, each with its rows.

    Attributes
    ----------
    fields : tuple of int
        The fields that the dataset fills.
    edges : ndarray of int64, shape (batches + 1,)
        Where the samples of each batch begin, and where the last end.
    within : ndarray
        The place of each sample in its batch, ascending in each.
    counts : ndarray of int64
        Its rows.
    starts : ndarray of int64
        Where they begin among all that the window brings, and where the last end.
    """

    fields: tuple[int, ...]
    edges: Ints
    within: Places
    counts: Ints
    starts: Ints

    @classmethod
    def of(cls, fields: Iterable[int], batch: Places, within: Places, counts: Ints) -> Share:
        """Take samples by ascending batch and place."""
        last = int(batch[-1]) if len(batch) else -1
        edges = np.searchsorted(batch, np.arange(last + 2))
        starts = np.append(0, np.cumsum(counts))
        return cls(fields=tuple(fields), edges=edges, within=within, counts=counts, starts=starts)

    @property
    def begins(self) -> Ints:
        """Where the rows of each batch begin among all, and where the last end."""
        return self.starts[self.edges]

    def places_of(self, batch: Places, row: Places) -> Places:
        """Give the places of the samples that rows belong to, by their batch and their number in its share."""
        found = np.searchsorted(self.starts[:-1], self.begins[batch] + row, side="right") - 1
        return self.within[found]


@dataclass(slots=True)
class RaggedRows:
    """The rows of a ragged field in a batch, share by share.

    Attributes
    ----------
    samples : int
        Samples of the batch.
    shares : list of (ndarray, ndarray, ndarray of uint8)
        Places of samples, the rows of each, and their bytes one behind the other.
    there : ndarray of bool or None
        Which samples are left; None for all.
    """

    samples: int
    shares: list[tuple[Places, Ints, Memory]] = field(default_factory=list)
    there: NDArray[np.bool_] | None = None

    def without(self, there: NDArray[np.bool_]) -> RaggedRows:
        """Leave out samples whose rows cannot be had."""
        return RaggedRows(self.samples, self.shares, there)

    def together(self, row_nbytes: int) -> tuple[Memory, Ints]:
        """Give the bytes of all rows, sample after sample, and how many rows each has."""
        if len(self.shares) == 1 and self.there is None and len(self.shares[0][0]) == self.samples:
            _, lengths, memory = self.shares[0]  # places ascend, so these are all of them in turn
            return memory, lengths
        lengths = np.zeros(self.samples, dtype=np.int64)
        for places, counts, _ in self.shares:
            lengths[places] = counts
        pieces: list[Any] = [np.empty(0, dtype=np.uint8)] * self.samples
        for places, counts, memory in self.shares:
            edges = np.append(0, np.cumsum(counts)) * row_nbytes
            for place, low, high in zip(places.tolist(), edges[:-1].tolist(), edges[1:].tolist(), strict=True):
                pieces[place] = memory[low:high]
        if self.there is not None:
            pieces = [piece for piece, stays in zip(pieces, self.there.tolist(), strict=True) if stays]
            lengths = lengths[self.there]
        return np.concatenate(pieces) if pieces else np.empty(0, dtype=np.uint8), lengths


def padded(memory: Memory, lengths: Ints, row_nbytes: int, filler: Memory, take: Callable[[int], Memory]) -> Memory:
    """Give the rows of each sample, filled up to as many as the longest has.

    Parameters
    ----------
    memory : ndarray of uint8
        The rows, sample after sample.
    lengths : ndarray of int64
        The rows of each.
    row_nbytes : int
        Bytes of a row.
    filler : ndarray of uint8
        One element of what it is filled with.
    take : callable
        Gives memory of so many bytes.
    """
    longest = int(lengths.max(initial=0))
    out = take(len(lengths) * longest * row_nbytes)
    out.view(f"V{len(filler)}")[:] = filler.view(f"V{len(filler)}")
    some = np.flatnonzero(lengths)
    ends, whole = np.cumsum(lengths), np.array([[0, 0, row_nbytes]])
    kernels.scatter_spans(
        address_of(memory), row_nbytes, whole, (ends - lengths)[some], lengths[some], np.zeros_like(some),
        some * longest, np.array([address_of(out)]), 0, row_nbytes,
    )  # fmt: skip
    return out


def lend(
    tasks: Sequence[Task],
    objects: Sequence[dict[int, Any]],
    row_nbytes: Sequence[int],
    take: Callable[[int], Memory] = lambda nbytes: np.empty(nbytes, dtype=np.uint8),
) -> dict[int, Ints]:
    """Give the shares of a window their memory, and add them to its batches.

    Parameters
    ----------
    tasks : sequence of Task
        All of the window.
    objects : sequence of dict
        For each batch, by field number, the `RaggedRows` that a share is added to.
    row_nbytes : sequence of int
        Bytes of a row of each field.
    take : callable
        Gives memory of so many bytes.

    Returns
    -------
    dict of int to ndarray of int64
        By field number, the address of each batch's share; 0 where it has none.
    """
    found: dict[int, Ints] = {}
    if not any(isinstance(one, RaggedRows) for each in objects[:1] for one in each.values()):
        return found
    # Tasks of chunks put their own rows together only when they are asked for them: what all of them share will do.
    placements: list[Any] = [getattr(task, "shared", None) for task in tasks]
    placements = [task.placement if one is None else one for task, one in zip(tasks, placements, strict=True)]
    shares = {id(one.share): one.share for one in placements}
    for share in shares.values():
        if share is None:
            continue
        for number in share.fields:
            found[number] = np.zeros(len(objects), dtype=np.int64)
            for k, nbytes in enumerate((np.diff(share.begins) * row_nbytes[number]).tolist()):
                ours = slice(*share.edges[k : k + 2].tolist())
                memory = take(nbytes)
                objects[k][number].shares.append((share.within[ours], share.counts[ours], memory))
                found[number][k] = address_of(memory)
    return found


class RaggedMemory:
    """Memory of shares, used again once no tensor looks at it.

    Mapping memory anew costs more than reading into it. As much is kept free as was in use at a time, less what is.

    # Guarantees: any thread may take. What comes back does so by one `deque.append`, which needs no lock, from
    whatever thread drops the last array over it, also inside the garbage collector.
    """

    def __init__(self) -> None:
        self._back: collections.deque[Memory] = collections.deque()
        self._free: list[Memory] = []  # by size
        self._lock = threading.Lock()
        self._lent_nbytes = self._free_nbytes = self._most_nbytes = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return RaggedMemory, ()

    def take(self, nbytes: int) -> Memory:
        """Take so many bytes; their content is undefined."""
        if nbytes < POOLED_NBYTES:
            return np.empty(nbytes, dtype=np.uint8)
        with self._lock:
            self._take_back()
            place = bisect.bisect_left(self._free, nbytes, key=_nbytes)
            fits = place < len(self._free) and self._free[place].nbytes <= 2 * nbytes
            memory = self._free.pop(place) if fits else map_memory(nbytes + nbytes // 8)
            self._free_nbytes -= memory.nbytes if fits else 0
            self._lent_nbytes += memory.nbytes
            self._most_nbytes = max(self._most_nbytes, self._lent_nbytes)
            self._let_go(self._most_nbytes - self._lent_nbytes)
        # An array over this one keeps `memory` and not the view, so that tensors are made of the view alone.
        view = memory[:nbytes]
        weakref.finalize(view, self._back.append, memory).atexit = False
        return view

    def trim(self) -> None:
        """Let go of what is free."""
        with self._lock:
            self._take_back()
            self._let_go(0)
            self._most_nbytes = self._lent_nbytes

    def _take_back(self) -> None:
        while self._back:
            memory = self._back.popleft()
            bisect.insort(self._free, memory, key=_nbytes)
            self._lent_nbytes -= memory.nbytes
            self._free_nbytes += memory.nbytes

    def _let_go(self, most_nbytes: int) -> None:
        while self._free_nbytes > most_nbytes:
            self._free_nbytes -= self._free.pop(0).nbytes


_nbytes = operator.attrgetter("nbytes")
