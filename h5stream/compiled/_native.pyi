"""The kernels in C: every one releases the GIL, and refuses arrays of wrong types, shapes and lengths.

Whatever is called an address, and the row numbers and places in arrays, is the caller's promise: nothing checks where
those lead. Numbers of rows and places are int32, or int64 where that is too small.

Scattering kernels end with the same arguments: `rows`, of the chunk, to copy (`lengths` rows from each of them on,
where they are spans); `batch` and `within`, where each goes; `slots`, addresses by batch number; `field_offset`, where
the field begins in a slot, and `row_nbytes`, bytes of one of its rows. `segments` are runs of bytes, shape (n, 3): from
within the chunk's row, to within the batch's row, bytes.
"""

from typing import Any, Final, Self, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

_Places: TypeAlias = NDArray[np.int32] | NDArray[np.int64]
_Longs: TypeAlias = NDArray[np.int64]
_Bytes: TypeAlias = NDArray[np.uint8]
_Floats: TypeAlias = NDArray[np.float64]
_Numbers: TypeAlias = NDArray[Any]

NONE_WRONG: Final[int]
"""What `add_sparse` returns where each value is in a column that there is."""

A_COLUMN: Final[int]
"""What stands among counts in place of the bytes that failed where no read did, but the number of a column is wrong."""

UNCOPIED_NBYTES: Final[int]
"""Runs of this many bytes are read to their places; shorter ones several at a time, and copied from the cache."""

# Filters

@final
class Scratch:
    """What one thread undoes filters with: buffers that grow, contexts of libraries, and what plugins left.

    As a buffer, it is what was decoded last. Nothing else keeps that from being overwritten.
    """

    address: Final[int]
    """Of the C structure, which is gone with the object."""

    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Pipeline:
    """Filters of one dataset's chunks, with the functions that undo them.

    Parameters
    ----------
    steps : int64 array, shape (n, 7)
        In the order in which they are undone: a filter's number; whether the function is a plugin's; the bytes that it
        must give, or -1; addresses of the function, and of those that make and drop its context, or 0; how many
        parameters it has.
    values : uint32 array
        The parameters of all steps.
    raw_nbytes, most_nbytes : int
        Of a decoded chunk, and of a chunk at any point. If the last step does not give `raw_nbytes`, others follow that
        are not undone in C.
    shuffled : int
        Bytes of the elements of a byte shuffle that is left to the scatter; or 0.
    """

    def __new__(
        cls, steps: _Longs, values: NDArray[np.uint32], raw_nbytes: int, most_nbytes: int, shuffled: int, /
    ) -> Self: ...

    address: Final[int]
    """Of the C structure, which is gone with the object."""

    def decode(
        self, stored: _Bytes, out: _Bytes | None, scratch: Scratch, /
    ) -> _Bytes | memoryview | tuple[int, int, int, int]:
        """Undo the filters of one chunk.

        Returns
        -------
        array, memoryview or tuple of int
            `out` if that is given; else `stored` or a part of it, or memory of the scratch, valid until it is used
            again. If the bytes do not decode: number of the step (-1 for none of them), the reason, and its numbers.
        """

@final
class Pool:
    """Threads that carry plans out: of passes that a loop waits for in turn, else of the earliest pass first.

    # Guarantees: any thread may call any method.

    Parameters
    ----------
    threads, processors : int
        Threads that carry plans out; and processors on which they take turns with what needs one all the time, decoding
        and copying: on all of them while the training loop waits, else on all but one.
    """

    is_idle: Final[bool]
    """Whether no pass is under way, and threads end."""

    def __new__(cls, threads: int, processors: int, /) -> Self: ...
    def work(
        self, scratch: Scratch, served: Queue | None, ticket: int, settled: int, /
    ) -> tuple[Queue | None, Any, Any, int, int, int] | None:
        """Carry out what is in the queues, or comes, until Python is needed; None once no pass is under way.

        Parameters
        ----------
        served
            What was returned last, of which the thread has nothing any more but what it came back for.
        ticket : int
            As `Queue.begin` gave it.
        settled : int
            What was returned last with a part that was not brought, and is by now; or 0.

        Returns
        -------
        served
            None if a queue was stopped, and no thread has anything of it.
        owner
            As it began.
        name
            None if it is a call, or was stopped; else of what was added.
        part, unit, settled : int
            The part that could not be brought, from which unit on, and what to give as `settled` afterwards. -1, 0 and
            0 if all of `name` is complete, but for parts that other threads are to settle.
        """

    def lose(self, ticket: int | None, /) -> list[Any]:
        """Count a thread as missing, which failed, or all that did not come yet (None).

        Returns
        -------
        list
            The owners of what is under way.
        """

class Queue:
    """What a pass has to do.

    # Guarantees: any thread may call any method. What was added is kept until it is complete, or dropped. The owner and
    the queue itself are kept from `begin` until it was stopped and no thread has anything of it.

    Parameters
    ----------
    pool : Pool
    stop : int32 array, shape (1,)
        Not 0 once nothing more is wanted.
    counts : int64 array, shape (COUNTS,)
        What its parts count, written while the pool is locked.
    """

    running: Final[int]
    """Threads that carry something out."""
    serving: Final[int]
    """Threads that have something of it, in the pool or in Python."""
    gives_way: Final[bool]
    """Whether who does something of it in Python is to come back: for its own parts, or for another pass."""

    def __new__(cls, pool: Pool, stop: NDArray[np.int32], counts: _Longs, /) -> Self: ...
    def begin(self, owner: object, /) -> list[int]:
        """Take part in what the pool does; gives the tickets of threads that are missing, which are to begin."""

    def add(self, name: object, shares: list[tuple[Plan, _Longs, int, int, _Longs, _Longs, _Longs]], /) -> None:
        """Put plans in the queue, which are complete together.

        Parameters
        ----------
        name
            What `Pool.work` gives once all is brought.
        shares
            Of each plan: where each part of it begins and the last ends, in units; the number of the first part; the
            descriptor of the file, or -1; and where the rows go, as `land` has it.
        """

    def call(self, count: int, /) -> None:
        """Ask so many threads to come back from `Pool.work`."""

    def set_awaited(self, is_awaited: bool, /) -> None:
        """Say whether the training loop waits for a batch."""

    def set_brief(self, is_brief: bool, /) -> None:
        """Say whether the calling thread of the pool has Python's lock for a moment only, as it has after `work`."""

    def let_through(self, ready: int, /) -> None:
        """Let threads of the pool that wait for Python's lock have it, 2 ms at most, if few batches are `ready`."""

    def end(self) -> None:
        """Take no part any more, once `stop` is set; threads that have nothing else to do end."""

    def drop(self) -> None:
        """Let go of what was added and no thread carries out."""

    def give_up(self) -> list[int]:
        """Count the threads that have something of it as missing; gives tickets of those to begin in their place."""

# Chunks

COUNTS: Final[int]
"""How many numbers `land` counts in: reads, their bytes, their nanoseconds; where a read failed, and of how many bytes;
chunks, their bytes once decoded, nanoseconds of decoding; nanoseconds of copying; bytes of rows that were in memory."""

@final
class ChunkFields:
    """What the chunks of a dataset have in common, as `chunk_fields` gives it. This name is for annotations alone."""

@final
class Plan:
    """Where samples go and what brings them there: data alone, which any thread may carry out, also twice.

    The functions `plan_...` give it. Its units are chunks, or entries of `rows`. This name is for annotations alone.
    """

def chunk_fields(
    pipelines: _Longs,
    chunk_nbytes: int,
    chunk_rows: int,
    stored_nbytes: int,
    programs: _Longs,
    places: _Longs,
    segments: _Longs,
    edges: _Longs,
    row_elements: _Longs,
    fills: _Bytes,
    fill_edges: _Longs,
    moved: _Longs,
    /,
) -> ChunkFields:
    """Note what the chunks of a dataset have in common.

    Parameters
    ----------
    pipelines : shape (masks,)
        Addresses of `Pipeline` objects, which the caller keeps; none if nothing is to be undone, and chunks are read in
        part.
    chunk_nbytes, chunk_rows, stored_nbytes : int
        Of a decoded chunk, its rows, and the bytes of a stored element.
    programs : shape (fields, 4)
        What each field takes: bytes of an element; whether it is all of a stored one as it is; whether its bytes are
        one number whose shuffle may be undone as it is copied; and the bytes of column numbers that others take the
        place of, below 0 for numbers without a sign, or 0.
    places : shape (sum of the bytes,)
        Of the fields one after the other, where each byte is in a stored element, least significant first for a number.
    segments, edges, row_elements : shapes (n, 3), (pieces + 1,), (pieces,)
        For each piece of a row its runs of elements: from within the chunk's row, to within the batch's, how many;
        which of the runs are its own, and how many elements a row has in its chunk.
    fills, fill_edges : shapes (n,), (fields + 1,)
        Of each field some elements of the fill value, one after the other.
    moved : shape (n,)
        Which column number takes the place of each.
    """

def plan_chunks(
    fields: ChunkFields,
    offset: _Longs,
    nbytes: _Longs,
    piece: _Longs,
    low: _Longs,
    high: _Longs,
    pipeline: NDArray[np.int8],
    most_gap: int,
    rows: _Places,
    lengths: _Places,
    batch: _Places,
    within: _Places,
    begin: _Longs,
    chunk_shape: _Longs,
    shape: _Longs,
    skipped: _Longs,
    origins: _Longs,
    offsets: _Longs,
    sizes: _Longs,
    follow: _Longs,
    mode: int,
    kept: _Longs,
    kept_number: _Longs,
    kept_count: _Longs,
    kept_row: int,
    is_filled: NDArray[np.bool_],
    /,
) -> Plan:
    """Plan chunks of a dataset; what is wrong with the numbers is a `ValueError`.

    Parameters
    ----------
    offset, nbytes, piece, low, high, pipeline : shape (n,)
        For each chunk: where its bytes begin in the file (-1 for the fill value), and how many they are; the piece of a
        row that it holds; its rows, as a range of `rows`; which of the pipelines of `fields` undoes its filters (0 if
        these have none), or -1 if it is not to be landed.
    most_gap : int
        Bytes between chunks that are read along.
    rows, lengths, batch, within
        As scattering kernels have them, `rows` of the chunk; `lengths` may be empty.
    begin, chunk_shape, shape, skipped : shapes (n, axes), (n,)
        Of boxes, else empty: the first element of each chunk along each axis, its elements, those of its dataset, and
        the bytes at its beginning that are not read.
    origins, offsets, sizes, follow, mode
        Of boxes, else empty, as `place_boxes` has them.
    kept : shape (fields,)
        Where row 0 of each field would be in memory that keeps all rows of some chunks; empty where none does. Such a
        plan can be carried out without slots: then its rows are kept, and go nowhere else.
    kept_number, kept_count : shape (n,)
        Of each chunk its number among those that are kept, and its rows; 0 rows where it is not.
    kept_row : int
        The first row of the first of those.
    is_filled : shape (kept,)
        Which of those are there: they are looked at as the plan is carried out, and copied from there.
    """

def plan_rows(
    numbers: _Longs,
    offsets: _Longs,
    across: int,
    chunk_rows: int,
    first_row: int,
    stride: int,
    extents: _Longs,
    runs: _Longs,
    fills: _Longs,
    fill_nbytes: _Longs,
    room: int,
    gap: int,
    whole_rows: int,
    rows: _Places,
    lengths: _Places,
    batch: _Places,
    within: _Places,
    /,
) -> Plan:
    """Plan reads of rows that need no decoding, no bytes but those of `extents`, to their places.

    Rows of one chunk that lie no more than `gap` bytes apart are read together, as far as `room` goes.

    Parameters
    ----------
    numbers, offsets : int64 arrays
        The chunks that were written, ascending, and where each begins; `numbers` may be empty if all were.
    across, chunk_rows, first_row, stride : int
        Chunks that a row crosses, rows of a chunk, number of the first row, bytes of a row in a chunk.
    extents : int64 array, shape (n, 5)
        What is read of a row at once: the chunk across the row, first byte in the chunk's row, bytes, and the
        first and last (exclusive) of its `runs`.
    runs : int64 array, shape (m, 7)
        What is wanted of an extent: from within the chunk's row, to within the batch's row, bytes, how many of
        them, bytes from one to the next, bytes that are to be reversed together (1: none), field.
    fills, fill_nbytes : int64 arrays
        For each field, address and length of the fill value.
    room : int
        Bytes that are read at once; no extent has more.
    gap : int
        Bytes that are read along rather than skipped.
    whole_rows : int
        So many consecutive rows are read to their places without a copy; 0 if rows are not wanted whole.
    rows : int32 or int64 array
        Row numbers, ascending; `batch` and `within` say where each goes.
    lengths : int32 or int64 array
        Consecutive rows from each of them on, which lie in one chunk, and fit the room if they are fewer than
        `whole_rows` or that is 0; empty where each is one.
    """

def plan_memory(
    sources: _Longs,
    nbytes: _Longs,
    are_asked_for: _Longs,
    row_count: int,
    rows: _Places,
    lengths: _Places,
    batch: _Places,
    within: _Places,
    /,
) -> Plan:
    """Plan copies of rows that are in memory.

    Parameters
    ----------
    sources, nbytes, are_asked_for : shape (fields,)
        Where the first row of each field is, the bytes of a row, and whether rows are asked for ahead, as rows in any
        order of more memory than a cache holds are.
    row_count : int
        Rows that are there.
    """

def land(
    plan: Plan,
    first: int,
    last: int,
    descriptor: int,
    at: _Longs,
    slots: _Longs,
    offsets: _Longs,
    row_nbytes: _Longs,
    scratch: int,
    stop: NDArray[np.int32],
    counts: _Longs,
    /,
) -> int:
    """Bring units `first` to `last` of a plan to their places; return the first not brought, `last` if all were.

    Parameters
    ----------
    descriptor : int
        Of the file, or -1.
    at : shape (last - first,)
        Without a descriptor the address of each chunk's bytes, else empty.
    slots, offsets, row_nbytes : shapes (batches,), (fields,)
        The address of each batch's slot; where each field begins in it, and the bytes of one of its rows.
    scratch : int
        The address of a `Scratch` of the calling thread.
    stop : shape (1,)
        Looked at before each chunk: not 0 once nothing more is wanted.
    counts : shape (COUNTS,)
        Counted up.
    """

def land_decoded(
    plan: Plan,
    chunk: int,
    data: _Bytes,
    shuffled: int,
    slots: _Longs,
    offsets: _Longs,
    row_nbytes: _Longs,
    scratch: int,
    /,
) -> None:
    """Bring the rows of a chunk that was decoded elsewhere to their places; `shuffled` as a `Pipeline` has it."""

def unshuffle(source: _Bytes, element: int, out: _Bytes, /) -> None:
    """Undo a byte shuffle of elements of so many bytes; a tail that fills none stays as it is."""

def renumber(numbers: _Bytes, kind: int, moved: _Longs, /) -> None:
    """Put `moved[number]` in the place of each whole number, or the largest that there is if there is none.

    `kind` is the bytes of a number, below 0 for those without a sign.
    """

# Rows in memory

def scatter(
    source: int,
    source_stride: int,
    segments: _Longs,
    rows: _Places,
    batch: _Places,
    within: _Places,
    slots: _Longs,
    field_offset: int,
    row_nbytes: int,
    /,
) -> None:
    """Copy rows of a decoded chunk, whose first is at `source`, to their places; with a stride of 0 one row to all."""

def scatter_spans(
    source: int,
    source_stride: int,
    segments: _Longs,
    rows: _Places,
    lengths: _Places,
    batch: _Places,
    within: _Places,
    slots: _Longs,
    field_offset: int,
    row_nbytes: int,
    /,
) -> None:
    """Copy spans of a decoded chunk to their places; those that lie there as the batch holds them span by span."""

def gather_any(
    base: int, rows: _Places, batch: _Places, within: _Places, slots: _Longs, field_offset: int, row_nbytes: int, /
) -> None:
    """Copy rows that lie anywhere in memory, one behind the other as batches hold them, to their places."""

def spread(
    rows: _Places,
    batch: _Places,
    within: _Places,
    lengths: _Places,
    every_row: _Places,
    every_batch: _Places,
    every_within: _Places,
    /,
) -> None:
    """Write each row of spans, and where it goes, for itself."""

def copy_past_cache(target: int, source: int, count: int, /) -> None:
    """Copy bytes to memory that is not read soon: past the cache, which keeps what was in it."""

def fill_behind(target: int, stride: int, used: _Longs, fill: int, fill_nbytes: int, /) -> None:
    """Fill what lies behind the first ``used[i]`` bytes of each `stride` bytes."""

# Byte planes

# Rows in files

def place_rows(
    sources: _Longs,
    stride: int,
    extents: _Longs,
    runs: _Longs,
    fills: _Longs,
    fill_nbytes: _Longs,
    rows: _Places,
    lengths: _Places,
    batch: _Places,
    within: _Places,
    slots: _Longs,
    offsets: _Longs,
    row_nbytes: _Longs,
    /,
) -> None:
    """Put rows of one stretch, each extent of which was read, in their places.

    `sources` are, for each extent, where row 0 would begin if all rows were there; 0 stands for the fill value.
    """

def room_of_each(extents: int, largest: int, room: int, /) -> int:
    """Return the bytes of the room for one of so many extents, of which the largest has so many bytes."""

def count_reads(rows: _Places, lengths: _Places, most_gap: int, /) -> tuple[int, int]:
    """Return how many reads ascending rows, or spans of them, take, and the rows that are read along between them."""

# Boxes

def place_boxes(
    sources: _Longs,
    strides: _Longs,
    low: _Longs,
    high: _Longs,
    shapes: _Longs,
    begins: _Longs,
    ends: _Longs,
    offsets: _Longs,
    sizes: _Longs,
    follow: _Longs,
    mode: int,
    element: int,
    origins: _Longs,
    batch: _Places,
    within: _Places,
    slots: _Longs,
    field_offset: int,
    row_nbytes: int,
    /,
) -> None:
    """Copy what lies in boxes of regions of volumes, such as chunks, to its place in each of them.

    Parameters
    ----------
    sources : int64 array, shape (regions,)
        Address of each region's first element.
    strides : int64 array, shape (regions, axes)
        Bytes from one of its elements to the next along each axis.
    low, high : int64 arrays, shape (regions, axes)
        Where the region begins and ends in its volume.
    shapes : int64 array, shape (regions, axes)
        Elements of the volume.
    begins, ends : int64 arrays, shape (regions,)
        Its boxes, as a range of all.
    offsets : int64 array, shape (axes, most elements)
        The elements that a box takes along each axis, counted from its origin.
    sizes, follow : int64 arrays, shape (axes,)
        How many these are, and whether each is the next of the one before.
    mode : int
        What an index outside of the volume stands for; see `_inside`.
    element : int
        Bytes of an element.
    origins : int64 array, shape (n, axes)
        The origin of each box.
    batch, within, slots, field_offset, row_nbytes : see `scatter`
        Where each box goes.
    """

def fill_outside(
    row: int,
    shapes: _Longs,
    offsets: _Longs,
    sizes: _Longs,
    element: int,
    origins: _Longs,
    batch: _Places,
    within: _Places,
    slots: _Longs,
    field_offset: int,
    row_nbytes: int,
    /,
) -> None:
    """Fill what of boxes lies outside of their volume with the elements at `row`, as many as its last axis has.

    Shapes are those of each box's volume; all else is as for `place_boxes`.
    """

# Orders

def shuffled_into(numbers: _Places, edges: _Longs, state: NDArray[Any], /) -> None:
    """Fill `numbers` with ``0 .. numbers.size - 1``, shuffled.

    `edges` is room for one more than there are buckets, which are a power of two; `state` are the four words of the
    random numbers, not all 0, and afterwards others.
    """

def deal_groups(
    groups: _Longs,
    edges: _Longs,
    strata: _Longs,
    samples: _Longs,
    weights: _Floats,
    by_size: _Longs,
    total: int,
    lacks: _Longs,
    homes: _Longs,
    /,
) -> None:
    """Give each group to the part that lacks most of what it has; see `h5stream.dataset.splits.split_by_groups`.

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

# Plans: short work is done with the GIL, since a thread that lets it go waits for those that run Python

def locate(
    output: _Places, edges: _Longs, size: int, last: int, last_begin: int, batch: _Places, within: _Places, /
) -> None:
    """Write the batch of each output place, and its place in that.

    Parameters
    ----------
    edges : shape (batches + 1,), or empty
        Where each batch begins, and where the last ends.
    size, last, last_begin : int
        Without edges: places of a batch; the number of the last one, and where that begins.
    """

def range_of(numbers: _Places, /) -> tuple[int, int]:
    """Return the least and the greatest number; 0 and 0 of none."""

def subtract(numbers: _Places, amount: int, out: _Places, /) -> None:
    """Write numbers less an amount."""

def count_batches(batch: _Places, lengths: _Places, counts: _Longs, /) -> None:
    """Count the rows of each batch up; with lengths those of spans."""

def in_ranges(begins: _Longs, counts: _Longs, every: _Longs, out: _Places, /) -> None:
    """Write the numbers of ranges one behind the other: `counts` of each from `begins` on, `every` apart."""

def in_turn(rows: _Places, outputs: _Places, base: int, out: _Places, /) -> None:
    """Write each row at its output place, counted from `base`."""

def into_chunks(
    rows: _Places, first_row: int, chunk_rows: int, inside: _Places, begins: _Longs, numbers: _Longs, /
) -> int:
    """Write the number that each of ascending rows has inside its chunk, where each chunk's begin, and its number.

    Returns
    -------
    int
        The chunks that rows lie in; `begins` and `numbers` have room for no fewer.
    """

def lay_chunks(
    stored: _Longs,
    offset: _Longs,
    nbytes: _Longs,
    all_count: int,
    numbers: _Longs,
    low: _Longs,
    high: _Longs,
    across: _Longs,
    columns: int,
    chunk_nbytes: int,
    most_gap: int,
    most_work: int,
    table: _Longs,
    cuts: _Longs,
    /,
) -> int:
    """Look chunks up, and lay them as a table in the order of the file; those that were never written come first.

    Parameters
    ----------
    stored, offset, nbytes, all_count
        Chunks that are stored: their numbers, ascending, where each begins, its bytes; and how many the grid has.
    numbers, low, high
        Chunks of the first column of the grid that rows lie in, and where the rows of each begin and end.
    across, columns
        Of each row of chunks, those that are wanted, and how many there are.
    chunk_nbytes, most_gap, most_work : int
        Bytes of a decoded chunk; those between two chunks that are read along; of a part, with what is read along.
    table : shape (7, chunks)
        Written: number, piece, entry (or -1), offset (or -1), nbytes, low, high.
    cuts : shape (chunks + 1,)
        Written: where each part begins, and the last ends.

    Returns
    -------
    int
        The parts.
    """

def order_by_place(batch: _Places, within: _Places, order: NDArray[np.int32], /) -> bool:
    """Write samples to `order` by batch and place, of which no two have the same; false where they are too few."""

def lay_stretches(
    order: _Places,
    batch: _Places,
    within: _Places,
    counts: _Places,
    edges: _Longs,
    places: _Places,
    lengths: _Longs,
    starts: _Longs,
    offsets: _Longs,
    /,
) -> None:
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

def begins_of_stretches(order: _Places, batch: _Places, edges: _Longs, starts: _Longs, begins: _Longs, /) -> None:
    """Fill `begins` with where the rows of each sample begin in its batch; the other arrays as for `lay_stretches`."""

# Sparse matrices

def least_and_most(columns: _Numbers, /) -> tuple[int, int]:
    """Return the lowest and the highest of some numbers."""

def add_sparse(
    values: _Numbers, columns: _Numbers, offsets: _Longs, places: NDArray[np.int32], longest: int, out: _Numbers, /
) -> int:
    """Write the values of each row to the places of their columns; those of one are added.

    Few columns may be wanted: where their values lie is noted without a branch, and only those are looked at again.

    Parameters
    ----------
    values, columns : array
        The values of all rows, one row behind the other, and the column of each.
    offsets : int64 array, shape (rows + 1,)
        Where each row begins among them.
    places : int32 array, shape (columns,)
        Where a column goes in a row of the dense matrix; -1 where it is not wanted.
    longest : int
        The most values of a row.
    out : array, shape (rows, wanted)
        The dense matrix.

    Returns
    -------
    int
        The first column that the matrix does not have, or `NONE_WRONG`.
    """

def plan_dense(
    value_offsets: _Longs,
    value_chunk: int,
    column_offsets: _Longs,
    column_chunk: int,
    first_row: int,
    room: int,
    value: _Numbers,
    column: _Numbers,
    places: NDArray[np.int32],
    is_wanted: _Bytes,
    wanted: int,
    rows: _Places,
    lengths: _Places,
    batch: _Places,
    within: _Places,
    /,
) -> Plan:
    """Plan reads of values of a sparse matrix and their columns, whose rows are laid dense in their places.

    Where a column is none of the matrix, its number stands in place of where a read failed, and `A_COLUMN` in place of
    the bytes.

    Parameters
    ----------
    value_offsets, column_offsets : int64 arrays
        Where each chunk begins.
    value_chunk, column_chunk, first_row : int
        Values of a chunk, and the number of the first of all.
    room : int
        Values that are read at once, a multiple of 16.
    value, column : arrays
        Of the types of these; what is in them is not looked at.
    places, is_wanted, wanted : int32 and uint8 arrays, int
        Where a column goes in a row, whether it goes anywhere, and how many do.
    rows, lengths : int32 or int64 arrays
        For each row of the matrix, ascending, its first value, and how many it has: at most `room`.
    batch, within : arrays
        Its batch, and the element of the batch's memory that it begins at.
    """

# Statistics

def add_moments(
    values: _Numbers, shift: _Floats, sums: _Floats, squares: _Floats, least: _Numbers, most: _Numbers, /
) -> None:
    """Add each column's distances from a number, and their squares, and find its extremes, where all are finite."""

def add_short_integers(values: _Numbers, sums: _Longs, squares: _Longs, /) -> None:
    """Add each column's whole numbers of up to 16 bits, and their squares."""

def add_integers(values: _Numbers, sums: _Longs, squares: _Longs, /) -> None:
    """Add each column's whole numbers, and their squares, by limbs 22 bits apart: of 2**18 rows nothing overflows."""

def count_bytes(values: _Bytes, counts: _Longs, /) -> None:
    """Count how often each byte comes."""

# Foreign bytes

def read_objects(
    descriptor: int,
    file_nbytes: int,
    length_nbytes: int,
    address: _Longs,
    index: _Longs,
    nbytes: _Longs,
    wanted: _Longs,
    target: _Longs,
    buffer: _Bytes,
    gap_nbytes: int,
    failed: NDArray[np.bool_],
    /,
) -> tuple[int, int]:
    """Copy objects of global heaps, ascending by the addresses of their collections; return bytes and ranges read.

    An address of -1 stands for nothing, any other negative one for a doubt. Of the `nbytes` that an object must have
    `wanted` are copied to the address `target`. `failed` is set for those that cannot be had here.
    """

def plan_heap(
    file_nbytes: int,
    length_nbytes: int,
    item_nbytes: int,
    most_nbytes: int,
    room: int,
    gap_nbytes: int,
    address: _Longs,
    index: NDArray[np.uint32],
    length: NDArray[np.uint32],
    first_row: int,
    rows: _Places,
    batch: _Places,
    within: _Places,
    /,
) -> Plan:
    """Plan reads of values of variable length; `read_objects` says what they are read of.

    Parameters
    ----------
    item_nbytes, most_nbytes : int
        Bytes of an item, and of a value that are wanted at most.
    room : int
        Bytes that are read at once, at most.
    address, index, length : shape (values,)
        Of each value of the dataset its collection, its number there, and its items.
    first_row : int
        Number of the first value.
    rows : shape (n,)
        Numbers of the values that are wanted; their addresses ascend.
    batch, within : shape (n,)
        Where each goes, in items.
    """

def read_files(
    paths: _Bytes,
    path_at: _Longs,
    sizes: _Longs,
    mtimes: _Longs,
    inodes: _Longs,
    which: _Longs,
    offsets: _Longs,
    nbytes: _Longs,
    targets: _Longs,
    /,
) -> int:
    """Open a file for each read, and compare what it is with what it was; return how many came out well.

    Each path in `paths` ends with a null, and each read goes to an address.
    """
