"""The inner loops: byte planes and stored elements become rows at their places in the slots.

Every kernel runs without the GIL and knows rows only as (slot, place in it), so that one call scatters a
chunk over any number of batches. Slots are named by address: they are separate allocations, and an array of
arrays would cost more to pass than a small chunk takes to copy.

Rows go to memory that is not read soon, so whole cache lines are written past the cache (non-temporal
stores). Without them every line is first fetched to be overwritten, which makes scattering over a large window
three times slower (12 against 40 GB/s with two threads on the reference machine).

# Guarantees: kernels write only to ``slots[batch] + field_offset + within * row_nbytes`` and the next
# ``row_nbytes`` bytes; the planner promises that these are inside the slot and written by one task only. Each
# kernel that stores past the cache ends with a fence, so that its rows are visible before its task is reported.
"""

from __future__ import annotations

import numpy as np
from numba import carray

from h5stream.compiled.instructions import (
    LINE,
    STREAM_NBYTES,
    copy_16,
    copy_bytes,
    fence,
    inflate_by_address,
    now_ns,
    prefetch,
    read_at,
    stream_line,
    stream_line_of_16,
    stream_planes_2,
    stream_planes_4,
    stream_planes_8,
    u8_at,
    u16_at,
    u32_at,
    u64_at,
)
from h5stream.compiled.jit import jit, jit_inner, jit_sums

UNCOPIED_NBYTES = 64 * 1024
"""Runs of this many bytes are read to their places; shorter ones several at a time, and copied from the cache."""

_PREFETCHED_LINES = 16
"""Cache lines of a coming row that are asked for. Rows of 1 KiB in random order, two threads, milliseconds of
processor time for 512 MiB: 62 without, 50 with 4 lines two rows ahead, 44 with 16 two ahead, 39 with 16 four ahead;
rows of 4 KiB: 60, 34 with 4 or 8 lines, 41 with all 64."""


_SPANS_AHEAD = 4
"""Of a span that comes so many later the lines at both its ends are asked for, which are written in part: 40,000
samples of three times 400 float32 took 58 ms of processor time without that, and 43 with it."""


_PLACES_AHEAD = 32
"""Rows whose places are asked for together, before the first of them is written. Behind the decoding of a chunk each
of them costs a walk through the page tables, and walks go side by side only while no store past the cache is under way.
Rows of 1 KiB, chunk after chunk decoded and scattered, two threads, milliseconds of processor time for 512 MiB: 160
without, 150 to 170 with each asked for 4 to 16 rows ahead, 80 with 16 to 64 together. Where nothing is decoded in
between it costs more than it gains (46 without, 58 with it)."""


@jit_inner
def _ask_for_places(i, batch, within, slots, offset, row_nbytes):
    """Ask for the places of the next rows, every so many rows."""
    if i % _PLACES_AHEAD == 0:
        for k in range(i, min(i + _PLACES_AHEAD, batch.shape[0])):
            prefetch(slots[batch[k]] + offset + within[k] * row_nbytes)


@jit
def _copy_run(target, source, count):
    """Copy one run of a row: past the cache where it is long, in one instruction where it is short."""
    if count >= STREAM_NBYTES:
        head = -target % LINE
        body = (count - head) // LINE * LINE
        if head:
            copy_bytes(target, source, head)
        for at in range(head, head + body, LINE):
            stream_line(target + at, source + at)
        if head + body < count:
            copy_bytes(target + head + body, source + head + body, count - head - body)
    elif count == 16:
        copy_16(target, source)
    else:
        copy_bytes(target, source, count)


@jit
def _scatter(source, source_stride, segments, in_rows, batch, within, slots, field_offset, row_nbytes):
    """Do what `scatter` does, without the fence."""
    if segments.shape[0] == 1:
        base, target, count = source + segments[0, 0], field_offset + segments[0, 1], segments[0, 2]
        if count == 4 and (base | source_stride | target | row_nbytes) & 3 == 0:
            for i in range(in_rows.shape[0]):
                value = carray(u32_at(base + in_rows[i] * source_stride), 1)[0]
                carray(u32_at(slots[batch[i]] + target + within[i] * row_nbytes), 1)[0] = value
        elif count == 8 and (base | source_stride | target | row_nbytes) & 7 == 0:
            for i in range(in_rows.shape[0]):
                value = carray(u64_at(base + in_rows[i] * source_stride), 1)[0]
                carray(u64_at(slots[batch[i]] + target + within[i] * row_nbytes), 1)[0] = value
        elif count == 1:
            for i in range(in_rows.shape[0]):
                value = carray(u8_at(base + in_rows[i] * source_stride), 1)[0]
                carray(u8_at(slots[batch[i]] + target + within[i] * row_nbytes), 1)[0] = value
        else:
            for i in range(in_rows.shape[0]):
                place = slots[batch[i]] + target + within[i] * row_nbytes
                _copy_run(place, base + in_rows[i] * source_stride, count)
    else:
        for i in range(in_rows.shape[0]):
            row = source + in_rows[i] * source_stride
            place = slots[batch[i]] + field_offset + within[i] * row_nbytes
            for s in range(segments.shape[0]):
                _copy_run(place + segments[s, 1], row + segments[s, 0], segments[s, 2])


@jit
def scatter(source, source_stride, segments, in_rows, batch, within, slots, field_offset, row_nbytes):
    """Copy rows of a decoded chunk to their places.

    Parameters
    ----------
    source : int
        Address of the chunk's first row.
    source_stride : int
        Bytes from one of its rows to the next.
    segments : int64 array, shape (n, 3)
        Runs of bytes: from within the chunk's row, to within the batch's row, bytes.
    in_rows : int32 array (int64 where that is too small), shape (m,)
        Rows of the chunk to copy.
    batch, within : int32 or int64 arrays, shape (m,)
        Where each goes.
    slots : int64 array
        Addresses, by batch number.
    field_offset, row_nbytes : int
        Where the field begins in a slot; bytes of one of its rows.
    """
    _scatter(source, source_stride, segments, in_rows, batch, within, slots, field_offset, row_nbytes)
    fence()


@jit
def _scatter_spans(source, source_stride, segments, in_rows, lengths, batch, within, slots, field_offset, row_nbytes):
    """Do what `scatter_spans` does, without the fence."""
    count = segments[0, 2] if segments.shape[0] == 1 else 0
    for i in range(in_rows.shape[0]):
        row = source + in_rows[i] * source_stride
        place = slots[batch[i]] + field_offset + within[i] * row_nbytes
        base, target = row + segments[0, 0], place + segments[0, 1]
        loose = base | source_stride | target | row_nbytes
        if count == source_stride and count == row_nbytes:
            k = i + _SPANS_AHEAD
            if k < in_rows.shape[0]:
                coming = slots[batch[k]] + field_offset + within[k] * row_nbytes
                prefetch(coming)
                prefetch(coming + lengths[k] * row_nbytes - 1)
            _copy_run(place, row, lengths[i] * row_nbytes)
        elif count == 8 and loose & 7 == 0:
            for k in range(lengths[i]):
                value = carray(u64_at(base + k * source_stride), 1)[0]
                carray(u64_at(target + k * row_nbytes), 1)[0] = value
        elif count == 4 and loose & 3 == 0:
            for k in range(lengths[i]):
                value = carray(u32_at(base + k * source_stride), 1)[0]
                carray(u32_at(target + k * row_nbytes), 1)[0] = value
        else:
            for k in range(lengths[i]):
                for s in range(segments.shape[0]):
                    into = place + k * row_nbytes + segments[s, 1]
                    _copy_run(into, row + k * source_stride + segments[s, 0], segments[s, 2])


@jit
def scatter_spans(source, source_stride, segments, in_rows, lengths, batch, within, slots, field_offset, row_nbytes):
    """Copy spans of a decoded chunk to their places: ``lengths[i]`` rows from row ``in_rows[i]`` on.

    All else is as for `scatter`. Rows that lie in the chunk as the batch holds them are copied span by span.
    """
    _scatter_spans(source, source_stride, segments, in_rows, lengths, batch, within, slots, field_offset, row_nbytes)
    fence()


@jit
def spread(rows, batch, within, lengths, every_row, every_batch, every_within):
    """Give each row of spans, and where it goes, for itself."""
    at = 0
    for i in range(rows.shape[0]):
        for k in range(lengths[i]):
            every_row[at], every_batch[at], every_within[at] = rows[i] + k, batch[i], within[i] + k
            at += 1


@jit
def scatter_stack(
    source, chunk_nbytes, source_stride, segments, edges, piece, low, high,
    in_rows, lengths, batch, within, slots, field_offset, row_nbytes,
):  # fmt: skip
    """Scatter many small chunks that lie one after the other: one call where there would be thousands.

    Chunk ``c`` lies at ``source + c * chunk_nbytes``, fills the rows ``low[c]`` to ``high[c]`` and takes the
    segments ``edges[piece[c]]`` to ``edges[piece[c] + 1]``. The rows are spans where `lengths` are given.
    """
    for c in range(piece.shape[0]):
        chosen = segments[edges[piece[c]] : edges[piece[c] + 1]]
        if lengths.shape[0]:
            _scatter_spans(
                source + c * chunk_nbytes,
                source_stride[piece[c]],
                chosen,
                in_rows[low[c] : high[c]],
                lengths[low[c] : high[c]],
                batch[low[c] : high[c]],
                within[low[c] : high[c]],
                slots,
                field_offset,
                row_nbytes,
            )
            continue
        _scatter(
            source + c * chunk_nbytes,
            source_stride[piece[c]],
            chosen,
            in_rows[low[c] : high[c]],
            batch[low[c] : high[c]],
            within[low[c] : high[c]],
            slots,
            field_offset,
            row_nbytes,
        )
    fence()


@jit
def gather_planes_stack(source, planes, count, chunk_nbytes, chunks, out):
    """Undo the byte shuffle of many small chunks that lie one after the other."""
    width = planes.shape[0]
    for c in range(chunks):
        part = source[c * chunk_nbytes : (c + 1) * chunk_nbytes]
        gather_planes(part, planes, count, out[c * count * width : (c + 1) * count * width])


_SHORT_NBYTES = 128
"""Runs of up to so many bytes are copied 16 at a time, which takes less than a call of the C library's memcpy."""


@jit
def scatter_side_by_side(
    source, chunk_nbytes, pieces, source_stride, first_into, count, in_rows, batch, within, slots, offset, row_nbytes
):
    """Copy the rows of chunks that lie side by side across the row, all at once.

    Each of `pieces` decoded chunks, `chunk_nbytes` apart, gives `count` bytes of every row; together they are
    one run in the batch's row, so that every cache line of the batch is visited once and not once a chunk.
    """
    for i in range(in_rows.shape[0]):
        row = source + in_rows[i] * source_stride
        place = slots[batch[i]] + offset + within[i] * row_nbytes + first_into
        if count == 16 and place % LINE == 0 and pieces % 4 == 0:
            for p in range(0, pieces, 4):
                stream_line_of_16(place + p * 16, row + p * chunk_nbytes, chunk_nbytes)
        else:
            for p in range(pieces):
                done, to_end = 0, (pieces - p) * count
                while done < count and count <= _SHORT_NBYTES and done + 16 <= to_end:
                    # What is copied too much lies in the next chunk's memory, and is overwritten with its bytes.
                    copy_16(place + p * count + done, row + p * chunk_nbytes + done)
                    done += 16
                if done < count:
                    copy_bytes(place + p * count + done, row + p * chunk_nbytes + done, count - done)
    fence()


@jit
def _join_2(source, planes, first, count, out):
    a, b = source[planes[0] + first : planes[0] + first + count], source[planes[1] + first : planes[1] + first + count]
    for j in range(count):
        out[j] = np.uint16(a[j]) | np.uint16(b[j]) << np.uint16(8)


@jit
def _join_4(source, planes, first, count, out):
    a, b = source[planes[0] + first : planes[0] + first + count], source[planes[1] + first : planes[1] + first + count]
    c, d = source[planes[2] + first : planes[2] + first + count], source[planes[3] + first : planes[3] + first + count]
    for j in range(count):
        low = np.uint32(a[j]) | np.uint32(b[j]) << np.uint32(8)
        out[j] = low | np.uint32(c[j]) << np.uint32(16) | np.uint32(d[j]) << np.uint32(24)


@jit
def _join_8(source, planes, first, count, out):
    a, b = source[planes[0] + first : planes[0] + first + count], source[planes[1] + first : planes[1] + first + count]
    c, d = source[planes[2] + first : planes[2] + first + count], source[planes[3] + first : planes[3] + first + count]
    e, f = source[planes[4] + first : planes[4] + first + count], source[planes[5] + first : planes[5] + first + count]
    g, h = source[planes[6] + first : planes[6] + first + count], source[planes[7] + first : planes[7] + first + count]
    for j in range(count):
        low = np.uint64(a[j]) | np.uint64(b[j]) << np.uint64(8)
        low |= np.uint64(c[j]) << np.uint64(16) | np.uint64(d[j]) << np.uint64(24)
        high = np.uint64(e[j]) | np.uint64(f[j]) << np.uint64(8)
        high |= np.uint64(g[j]) << np.uint64(16) | np.uint64(h[j]) << np.uint64(24)
        out[j] = low | high << np.uint64(32)


# The fused kernels below undo a byte shuffle and scatter, in one pass, a cache line of a row at a time. They are
# three functions because a loop over planes would not become vector instructions. ``planes`` holds where each
# byte plane of the wanted number begins in ``source``, least significant first: a foreign byte order, or a member
# inside a compound, is another order of planes at no cost. Segments count elements, ``row_elements`` those of one
# row in the chunk; ``address`` is that of ``source``.


@jit
def _edges(place, count, width):
    """Give the elements before the first whole cache line, and those up to the end of the last."""
    head = min((-place % LINE) // width, count)
    return head, head + (count - head) * width // LINE * LINE // width


@jit
def _scatter_planes_2(
    source, address, planes, segments, row_elements, in_rows, batch, within, slots, offset, row_nbytes
):
    for i in range(in_rows.shape[0]):
        _ask_for_places(i, batch, within, slots, offset, row_nbytes)
        for s in range(segments.shape[0]):
            place = slots[batch[i]] + offset + within[i] * row_nbytes + segments[s, 1] * 2
            first, count = in_rows[i] * row_elements + segments[s, 0], segments[s, 2]
            head, tail = _edges(place, count, 2)
            _join_2(source, planes, first, head, carray(u16_at(place), count))
            at = address + first
            for j in range(head, tail, 32):
                stream_planes_2(place + j * 2, at + planes[0] + j, at + planes[1] + j)
            _join_2(source, planes, first + tail, count - tail, carray(u16_at(place + tail * 2), count - tail))
    fence()


@jit
def _scatter_planes_4(
    source, address, planes, segments, row_elements, in_rows, batch, within, slots, offset, row_nbytes
):
    for i in range(in_rows.shape[0]):
        _ask_for_places(i, batch, within, slots, offset, row_nbytes)
        for s in range(segments.shape[0]):
            place = slots[batch[i]] + offset + within[i] * row_nbytes + segments[s, 1] * 4
            first, count = in_rows[i] * row_elements + segments[s, 0], segments[s, 2]
            head, tail = _edges(place, count, 4)
            _join_4(source, planes, first, head, carray(u32_at(place), count))
            at = address + first
            a, b, c, d = at + planes[0], at + planes[1], at + planes[2], at + planes[3]
            for j in range(head, tail, 16):
                stream_planes_4(place + j * 4, a + j, b + j, c + j, d + j)
            _join_4(source, planes, first + tail, count - tail, carray(u32_at(place + tail * 4), count - tail))
    fence()


@jit
def _scatter_planes_8(
    source, address, planes, segments, row_elements, in_rows, batch, within, slots, offset, row_nbytes
):
    for i in range(in_rows.shape[0]):
        _ask_for_places(i, batch, within, slots, offset, row_nbytes)
        for s in range(segments.shape[0]):
            place = slots[batch[i]] + offset + within[i] * row_nbytes + segments[s, 1] * 8
            first, count = in_rows[i] * row_elements + segments[s, 0], segments[s, 2]
            head, tail = _edges(place, count, 8)
            _join_8(source, planes, first, head, carray(u64_at(place), count))
            at = address + first
            a, b, c, d = at + planes[0], at + planes[1], at + planes[2], at + planes[3]
            e, f, g, h = at + planes[4], at + planes[5], at + planes[6], at + planes[7]
            for j in range(head, tail, 8):
                stream_planes_8(place + j * 8, a + j, b + j, c + j, d + j, e + j, f + j, g + j, h + j)
            _join_8(source, planes, first + tail, count - tail, carray(u64_at(place + tail * 8), count - tail))
    fence()


scatter_planes = {2: _scatter_planes_2, 4: _scatter_planes_4, 8: _scatter_planes_8}
"""Element size in bytes -> the kernel that undoes a byte shuffle and scatters in one pass."""


@jit
def gather_planes(source, planes, count, out):
    """Undo a byte shuffle: byte ``k`` of element ``i`` comes from ``source[planes[k] + i]``."""
    width = planes.shape[0]
    if width == 2:
        _join_2(source, planes, 0, count, out.view(np.uint16))
    elif width == 4:
        _join_4(source, planes, 0, count, out.view(np.uint32))
    elif width == 8:
        _join_8(source, planes, 0, count, out.view(np.uint64))
    else:
        for k in range(width):
            plane = source[planes[k] : planes[k] + count]
            for i in range(count):
                out[i * width + k] = plane[i]


@jit
def gather_leaf(source, stride, places, count, out):
    """Take the bytes of one member out of stored elements: byte ``k`` comes from ``places[k]`` in each."""
    width = places.shape[0]
    for i in range(count):
        base = i * stride
        for k in range(width):
            out[i * width + k] = source[base + places[k]]


@jit
def gather_any(base, rows, batch, within, slots, field_offset, row_nbytes):
    """Copy rows that lie anywhere in memory, one behind the other as batches hold them, to their places.

    As `gather` does, without its division and its ring: 59 in place of 82 ns for a row of 1 KiB.
    """
    count = rows.shape[0]
    lines = min(_PREFETCHED_LINES, (row_nbytes + LINE - 1) // LINE)
    ahead = max(4, min(32, 4 * _PREFETCHED_LINES // max(1, lines)))
    for i in range(count + ahead):
        if i < count:
            row = base + rows[i] * row_nbytes
            for line in range(lines):
                prefetch(row + line * LINE)
        if i >= ahead:
            k = i - ahead
            _copy_run(slots[batch[k]] + field_offset + within[k] * row_nbytes, base + rows[k] * row_nbytes, row_nbytes)
    fence()


@jit
def gather(
    base, chunk_offset, chunk_rows, first_row, stride, fill_row, segments, rows, batch, within, slots, field_offset,
    row_nbytes,
):  # fmt: skip
    """Copy rows that lie anywhere in a mapped file to their places.

    Row ``r`` is row ``(r - first_row) % chunk_rows`` of the chunk at ``base + chunk_offset[...]``; where that is
    negative, the chunk was never written, and ``fill_row`` stands for each of its rows. Random rows come from
    memory that no cache holds, so they are asked for a few rows ahead.
    """
    count = rows.shape[0]
    lines = min(_PREFETCHED_LINES, (stride + LINE - 1) // LINE)
    ahead = max(4, min(32, 4 * _PREFETCHED_LINES // max(1, lines)))
    coming = np.empty(ahead, dtype=np.int64)  # addresses of the next rows, in a ring
    for i in range(count + ahead):
        if i >= ahead:
            row, k = coming[i % ahead], i - ahead
            place = slots[batch[k]] + field_offset + within[k] * row_nbytes
            for s in range(segments.shape[0]):
                _copy_run(place + segments[s, 1], row + segments[s, 0], segments[s, 2])
        if i < count:
            local = rows[i] - first_row
            chunk = local // chunk_rows
            at = chunk_offset[chunk]
            row = fill_row if at < 0 else base + at + (local - chunk * chunk_rows) * stride
            for line in range(lines):
                prefetch(row + line * LINE)
            coming[i % ahead] = row
    fence()


@jit
def _read(descriptor, target, nbytes, offset, counts):
    """Read so many bytes, and count them; tells whether they all came."""
    began, done = now_ns(), 0
    while done < nbytes:
        count = read_at(descriptor, target + done, nbytes - done, offset + done)
        if count <= 0:
            counts[3], counts[4] = offset, nbytes
            return False
        done += count
    counts[0] += 1
    counts[1] += nbytes
    counts[2] += now_ns() - began
    return True


@jit
def _address_of_chunk(chunk, numbers, offsets):
    """Give where a chunk begins in the file, -1 if it was never written; without `numbers` all of them were."""
    if numbers.shape[0] == 0:
        return offsets[chunk] if offsets.shape[0] > 0 else -1
    place = np.searchsorted(numbers, chunk)
    return offsets[place] if place < numbers.shape[0] and numbers[place] == chunk else -1


@jit
def _copy_pieces(place, source, run):
    """Copy one run of a row that is no plain run of bytes: a member of each of some elements, or another byte order."""
    width, unit = run[2], run[5]
    for k in range(run[3]):
        into, begin = place + k * width, source + k * run[4]
        if unit == 1:
            copy_bytes(into, begin, width)
            continue
        for first in range(0, width, unit):
            for byte in range(unit):
                carray(u8_at(into + first + byte), 1)[0] = carray(u8_at(begin + first + unit - 1 - byte), 1)[0]


@jit
def _copy_fill(place, nbytes, fill, fill_nbytes):
    done = min(fill_nbytes, nbytes)
    copy_bytes(place, fill, done)
    while done < nbytes:  # what is filled is copied behind itself: few long copies
        copy_bytes(place + done, place, min(done, nbytes - done))
        done += min(done, nbytes - done)


@jit
def fill_behind(target, stride, used, fill, fill_nbytes):
    """Fill what lies behind the first ``used[i]`` bytes of each ``stride`` bytes."""
    for i in range(used.shape[0]):
        _copy_fill(target + i * stride + used[i], stride - used[i], fill, fill_nbytes)


@jit
def least_and_most(columns):
    """Give the lowest and the highest of some numbers: looking at all of them is faster than leaving early."""
    least = most = columns[0]
    for k in range(columns.shape[0]):
        least = min(least, columns[k])
        most = max(most, columns[k])
    return least, most


@jit
def _lay_dense(values, columns, places, is_wanted, noted, row):
    """Make a row of a dense matrix of the values of a sparse one."""
    count = 0
    for k in range(columns.shape[0]):
        noted[count] = k
        count += is_wanted[columns[k]]
    row[:] = 0
    for i in range(count):
        k = noted[i]
        row[places[columns[k]]] += values[k]


@jit
def add_sparse(values, columns, offsets, places, longest, out):
    """Write the values of each row to the places of their columns, which all are there; those of one are added.

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
    """
    is_wanted = (places >= 0).astype(np.uint8)
    noted = np.empty(longest + 1, np.int32)
    for row in range(out.shape[0]):
        its = slice(offsets[row], offsets[row + 1])
        _lay_dense(values[its], columns[its], places, is_wanted, noted, out[row])


@jit
def _place_rows(
    sources, stride, extents, runs, fills, fill_nbytes, rows, lengths, batch, within, slots, offsets, row_nbytes
):
    """Copy the rows of a stretch out of what was read of each extent; 0 as its address stands for the fill value."""
    for i in range(rows.shape[0]):
        for k in range(lengths[i] if lengths.shape[0] else 1):
            for e in range(extents.shape[0]):
                row = sources[e] + (rows[i] + k) * stride
                for r in range(extents[e, 3], extents[e, 4]):
                    run = runs[r]
                    place = slots[batch[i]] + offsets[run[6]] + (within[i] + k) * row_nbytes[run[6]] + run[1]
                    if sources[e] == 0:
                        _copy_fill(place, run[2] * run[3], fills[run[6]], fill_nbytes[run[6]])
                    elif run[3] == 1 and run[5] == 1:
                        _copy_run(place, row + run[0], run[2])
                    else:
                        _copy_pieces(place, row + run[0], run)


@jit
def place_rows(
    sources, stride, extents, runs, fills, fill_nbytes, rows, lengths, batch, within, slots, offsets, row_nbytes
):
    """Put rows of one stretch, each extent of which was read, in their places.

    Parameters
    ----------
    sources : int64 array
        For each extent, where row 0 would begin if all rows were there; 0 stands for the fill value.
    stride, extents, runs, fills, fill_nbytes, rows, lengths, batch, within, slots, offsets, row_nbytes
        As for `read_rows`.
    """
    _place_rows(
        sources, stride, extents, runs, fills, fill_nbytes, rows, lengths, batch, within, slots, offsets, row_nbytes
    )
    fence()


@jit
def _place_stretch(
    plain, sources, stride, extents, runs, fills, fill_nbytes, rows, lengths, batch, within, slots, offsets, row_nbytes
):
    """Copy the rows, or spans of them, that were read together; `plain` where of each one run of bytes is wanted."""
    if not plain or sources[0] == 0:
        _place_rows(
            sources, stride, extents, runs, fills, fill_nbytes, rows, lengths, batch, within, slots, offsets, row_nbytes
        )
        return
    segments, field = runs[:, :3], runs[0, 6]
    if lengths.shape[0]:
        _scatter_spans(
            sources[0], stride, segments, rows, lengths, batch, within, slots, offsets[field], row_nbytes[field]
        )
    else:
        _scatter(sources[0], stride, segments, rows, batch, within, slots, offsets[field], row_nbytes[field])


@jit
def _goes_to_its_place(extent, runs):
    """Tell whether what is read of a row is one run, so long that it is best read to its place without a copy."""
    run = runs[extent[3]]
    return extent[4] - extent[3] == 1 and run[3] == 1 and run[5] == 1 and run[2] >= UNCOPIED_NBYTES


@jit
def _end_of_stretch(rows, lengths, low, before, farthest):
    """Give the end of what one read takes from `low` on, and of its rows.

    All of it lies below row `before`, and nothing farther than that from the rows before it.
    """
    count = rows.shape[0]
    if lengths.shape[0]:
        high, end = low + 1, rows[low] + lengths[low]
        while high < count and rows[high] + lengths[high] <= before and rows[high] - end < farthest:
            end = max(end, rows[high] + lengths[high])
            high += 1
        return high, end
    most = min(count, low + before - rows[low])
    if most > low and rows[most - 1] - rows[low] == most - 1 - low and farthest >= 1:
        return most, rows[most - 1] + 1  # all of them, without a gap
    high = low + 1
    while high < count and rows[high] < before and rows[high] - rows[high - 1] <= farthest:
        high += 1
    return high, rows[high - 1] + 1


@jit
def _room_of_each(extents, largest, room):
    """Share the room among extents that are read together; all of it is for one where they do not fit together."""
    return room // extents // LINE * LINE if extents > 1 and extents * (largest + LINE) <= room else room


room_of_each = _room_of_each.py_func
"""Gives the bytes of `read_rows`' room that are for one of so many extents, of which the largest has so many bytes."""


@jit
def _read_neighbours(
    descriptor, numbers, offsets, first_row, extent, run, scratch, room, gap, counts, rows, batch, within, slots,
    field_offsets, row_nbytes,
):  # fmt: skip
    """Read the first rows at once that are a chunk each, as far as these lie behind one another in the file.

    Gives how many they were: 0 where the first has no neighbour that would be worth it, -1 where a read failed.
    """
    begin = _address_of_chunk(rows[0] - first_row, numbers, offsets)
    if begin < 0:
        return 0
    begin += extent[1]
    end, last, high = begin + extent[2], begin, 1
    while high < rows.shape[0]:
        at = _address_of_chunk(rows[high] - first_row, numbers, offsets)
        at += extent[1] if at >= 0 else 0
        if at < last or at - end > gap or at + extent[2] - begin > room:
            break
        last, end, high = at, at + extent[2], high + 1
    if high == 1:
        return 0
    if not _read(descriptor, scratch, end - begin, begin, counts):
        return -1
    field = run[6]
    for k in range(high):
        at = _address_of_chunk(rows[k] - first_row, numbers, offsets)
        place = slots[batch[k]] + field_offsets[field] + within[k] * row_nbytes[field] + run[1]
        _copy_run(place, scratch + at + run[0] - begin, run[2])
    return high


@jit
def _read_extents(descriptor, extents, first_chunk, numbers, offsets, skipped, more, target, share, counts, sources):
    """Read extents of neighbouring rows; gives where row 0 of each would lie, 0 where nothing was written."""
    for e in range(sources.shape[0]):
        at = _address_of_chunk(first_chunk + extents[e, 0], numbers, offsets)
        sources[e] = 0
        if at >= 0:
            at += skipped + extents[e, 1]
            if not _read(descriptor, target + e * share, more + extents[e, 2], at, counts):
                return False
            sources[e] = target + e * share - extents[e, 1]
    return True


@jit
def _read_chosen(
    descriptor, numbers, offsets, across, chunk_rows, first_row, stride, chosen, runs, fills, fill_nbytes, scratch,
    room, gap, whole_rows, counts, rows, lengths, batch, within, slots, field_offsets, row_nbytes, share, largest,
    farthest, plain, scattered, sources,
):  # fmt: skip
    """Do what `read_rows` does, for some of the extents; without the fence."""
    at_once = sources.shape[0]
    alone = whole_rows == 0 and at_once == 1 and _goes_to_its_place(chosen[0], runs)
    low = 0
    while low < rows.shape[0]:
        if scattered:
            high = _read_neighbours(
                descriptor, numbers, offsets, first_row, chosen[0], runs[chosen[0, 3]], scratch, room, gap, counts,
                rows[low:], batch[low:], within[low:], slots, field_offsets, row_nbytes,
            )  # fmt: skip
            if high < 0:
                return False
            low += high
            if high:
                continue
        chunk = (rows[low] - first_row) // chunk_rows
        begin = first_row + chunk * chunk_rows
        before = min(begin + chunk_rows, rows[low] + (share - largest) // stride + 1)
        length = lengths[low] if lengths.shape[0] else 1
        uncopied = length >= whole_rows if whole_rows else alone and length == 1
        high, end = low + 1, rows[low] + length
        if not uncopied:
            high, end = _end_of_stretch(rows, lengths, low, before, farthest)
        run, target = runs[chosen[0, 3]], scratch
        if uncopied:
            target = slots[batch[low]] + field_offsets[run[6]] + within[low] * row_nbytes[run[6]] + run[1]
        skipped, more = (rows[low] - begin) * stride, (end - rows[low] - 1) * stride
        if not _read_extents(
            descriptor, chosen, chunk * across, numbers, offsets, skipped, more, target, share, counts, sources
        ):
            return False
        for e in range(at_once):
            sources[e] -= rows[low] * stride if sources[e] else 0
        if not uncopied or sources[0] == 0:
            _place_stretch(
                plain, sources, stride, chosen, runs, fills, fill_nbytes, rows[low:high], lengths[low:high],
                batch[low:high], within[low:high], slots, field_offsets, row_nbytes,
            )  # fmt: skip
        low = high
    return True


@jit
def _read_plain(descriptor, offsets, chunk_rows, first, count, nbytes, target, counts):
    """Read consecutive rows of so many bytes, which lie chunk by chunk as they are."""
    while count > 0:
        chunk = first // chunk_rows
        inside = first - chunk * chunk_rows
        rows = min(count, chunk_rows - inside)
        if not _read(descriptor, target, rows * nbytes, offsets[chunk] + inside * nbytes, counts):
            return False
        first, count, target = first + rows, count - rows, target + rows * nbytes
    return True


NONE_WRONG = -(2**62)
"""What `read_dense` gives where each value is in a column that there is."""


@jit
def read_dense(
    descriptor, value_offsets, value_chunk, column_offsets, column_chunk, row_start, rows, lengths, batch, within,
    slots, values, columns, places, is_wanted, row, counts,
):  # fmt: skip
    """Read values of a sparse matrix and their columns, and lay its rows dense in their places.

    Parameters
    ----------
    descriptor : int
        Of the file.
    value_offsets, column_offsets : int64 arrays
        Where each chunk begins.
    value_chunk, column_chunk, row_start : int
        Values of a chunk, and the number of the first of all.
    rows, lengths : int32 or int64 arrays
        For each row of the matrix, ascending, its first value, and how many it has: at most what `values` has room for.
    batch, within, slots : arrays
        Its batch, the element of the batch's memory that it begins at, and where the memory of each batch begins.
    values, columns, row : arrays
        Room for what is read, and for a dense row.
    places, is_wanted : int32 and uint8 arrays
        Where a column goes in a row, and whether it goes anywhere.
    counts : int64 array, shape (5,)
        Added to: reads, their bytes, nanoseconds in them; set: offset and length of a read that failed.

    Returns
    -------
    int
        `NONE_WRONG`, or a column that there is not. All rows are in their places if no read failed either.
    """
    noted, low = np.empty(columns.shape[0] + 1, np.int32), 0
    while low < rows.shape[0]:
        high, count = low + 1, np.int64(lengths[low])
        while high < rows.shape[0] and rows[high] == rows[low] + count and count + lengths[high] <= values.shape[0]:
            count += lengths[high]
            high += 1
        first = rows[low] - row_start
        into, size = columns.ctypes.data, columns.itemsize
        if not _read_plain(descriptor, column_offsets, column_chunk, first, count, size, into, counts):
            break
        into, size = values.ctypes.data, values.itemsize
        if not _read_plain(descriptor, value_offsets, value_chunk, first, count, size, into, counts):
            break
        if count:
            least, most = least_and_most(columns[:count])
            if least < 0 or most >= places.shape[0]:
                fence()
                return np.int64(least if least < 0 else most)
        at = 0
        for k in range(low, high):
            its = slice(at, at + lengths[k])
            _lay_dense(values[its], columns[its], places, is_wanted, noted, row)
            _copy_run(slots[batch[k]] + within[k] * row.itemsize, row.ctypes.data, row.nbytes)
            at += lengths[k]
        low = high
    fence()
    return np.int64(NONE_WRONG)


@jit
def count_reads(rows, lengths, most_gap):
    """Give how many reads ascending rows, or spans of them, take, and the rows that are read along between them."""
    reads, skipped, end = 1, 0, rows[0]
    for k in range(rows.shape[0]):
        gap = rows[k] - end
        if gap > most_gap:
            reads += 1
        elif gap > 0:
            skipped += gap
        end = max(end, rows[k] + (lengths[k] if lengths.shape[0] else 1))
    return reads, skipped


@jit
def read_rows(
    descriptor, numbers, offsets, across, chunk_rows, first_row, stride, extents, runs, fills, fill_nbytes,
    scratch, room, gap, whole_rows, counts, rows, lengths, batch, within, slots, field_offsets, row_nbytes,
):  # fmt: skip
    """Read rows that need no decoding, no bytes but those of `extents`, and put them in their places.

    Rows of one chunk that lie no more than `gap` bytes apart are read together, as far as `room` goes.

    Parameters
    ----------
    descriptor : int
        Of the file.
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
    scratch, room : int
        Memory to read into, and its bytes; no extent has more.
    gap : int
        Bytes that are read along rather than skipped.
    whole_rows : int
        So many consecutive rows are read to their places without a copy; 0 if rows are not wanted whole.
    counts : int64 array, shape (5,)
        Added to: reads, their bytes, nanoseconds in them; set: offset and length of a read that failed.
    rows : int32 or int64 array
        Row numbers, ascending; `batch` and `within` say where each goes.
    lengths : int32 or int64 array
        Consecutive rows from each of them on, which lie in one chunk, and fit the room if they are fewer than
        `whole_rows` or that is 0; empty where each is one.
    field_offsets, row_nbytes : int64 arrays
        For each field, where it begins in a slot, and bytes of its rows.

    Returns
    -------
    bool
        Whether all was read. If not, some rows are in their places and some are not.
    """
    count = extents.shape[0]
    largest, least = extents[:, 2].max(), extents[:, 2].min()
    share = _room_of_each(count, largest, room)
    at_once = count if share < room else 1
    sources = np.empty(at_once, dtype=np.int64)
    farthest = (gap + least) // stride
    plain = at_once == 1 and runs.shape[0] == 1 and runs[0, 3] == 1 and runs[0, 5] == 1
    # Objects: each row is a chunk of its own, wherever that lies, and chunks that are neighbours are read together.
    scattered = plain and chunk_rows == 1 and across == 1 and whole_rows != 1
    for first in range(0, count, at_once):
        chosen = extents[first : first + at_once]
        if not _read_chosen(
            descriptor, numbers, offsets, across, chunk_rows, first_row, stride, chosen, runs, fills, fill_nbytes,
            scratch, room, gap, whole_rows, counts, rows, lengths, batch, within, slots, field_offsets, row_nbytes,
            share, largest, farthest, plain, scattered, sources,
        ):  # fmt: skip
            fence()
            return False
    fence()
    return True


@jit
def read_each(descriptor, offsets, nbytes, target):
    """Read ranges of a file to `target`, one behind the other; give how many of them came whole."""
    counts = np.zeros(5, np.int64)
    for k in range(offsets.shape[0]):
        if not _read(descriptor, target, nbytes[k], offsets[k], counts):
            return k
        target += nbytes[k]
    return offsets.shape[0]


@jit
def inflate_each(function, decompressor, source, at, nbytes, target, chunk_nbytes):
    """Inflate chunks that lie at ``source + at[k]`` one behind the other to `target`; give how many came out right.

    It stops at the first that does not inflate to `chunk_nbytes` bytes exactly.
    """
    for k in range(at.shape[0]):
        place = target + k * chunk_nbytes
        if inflate_by_address(function, decompressor, source + at[k], nbytes[k], place, chunk_nbytes) != 0:
            return k
    return at.shape[0]


@jit
def _inside(index, size, mode):
    """Give the index in a volume that one outside stands for: the nearest (1), or one mirrored at the edge (2)."""
    if mode == 1:
        return min(max(index, 0), size - 1)
    if mode == 2:
        around = max(1, 2 * (size - 1))
        index = abs(index) % around
        return around - index if index >= size else index
    return index


@jit
def _reach(origin, offsets, sizes, follow, shape, low, high, strides, mode, element, into, out, counts, runs):
    """Find the elements along each axis of a box that a region has: where they go, and where they lie in it.

    Of the last axis these are runs, whose number is given.
    """
    inner, step, found = sizes.shape[0] - 1, element, 0
    for axis in range(inner, -1, -1):
        size, begin, count = sizes[axis], origin[axis] + offsets[axis, 0], 0
        first, last, is_plain = 0, size, False
        if follow[axis] and (mode == 0 or (begin >= 0 and begin + size <= shape[axis])):
            first, last, is_plain = max(low[axis] - begin, 0), min(high[axis] - begin, size), True
        if axis == inner and is_plain and strides[axis] == element:
            count = max(0, last - first)
            runs[0, 0], runs[0, 1] = first * element, (begin + first - low[axis]) * element
            runs[0, 2], found = count * element, 1
        else:
            for k in range(first, last):
                index = _inside(origin[axis] + offsets[axis, k], shape[axis], mode)
                if low[axis] <= index < high[axis]:
                    into[axis, count], out[axis, count] = k * step, (index - low[axis]) * strides[axis]
                    count += 1
        counts[axis] = count
        step *= size
    return found


@jit
def _join_runs(into, out, count, element, runs):
    """Join elements that follow one another in both places; give how many runs that makes."""
    found = 0
    for k in range(count):
        last = found - 1
        if found and into[k] == runs[last, 0] + runs[last, 2] and out[k] == runs[last, 1] + runs[last, 2]:
            runs[last, 2] += element
        else:
            runs[found, 0], runs[found, 1], runs[found, 2] = into[k], out[k], element
            found += 1
    return found


@jit
def _step_on(at, counts, axis):
    """Go to the next place of axes up to one, the last first; false behind the last place."""
    while axis >= 0:
        at[axis] += 1
        if at[axis] < counts[axis]:
            return True
        at[axis] = 0
        axis -= 1
    return False


@jit
def _place_plane(target, source, into, out, count, runs, found):
    """Copy the runs of the last axis for each element of the one before it."""
    for j in range(count):
        for k in range(found):
            _copy_run(target + into[j] + runs[k, 0], source + out[j] + runs[k, 1], runs[k, 2])


@jit
def place_boxes(
    sources, strides, low, high, shapes, begins, ends, offsets, sizes, follow, mode, element, origins,
    batch, within, slots, field_offset, row_nbytes,
):  # fmt: skip
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
    axes, widest = sizes.shape[0], sizes.max()
    into, out = np.zeros((axes + 1, widest), np.int64), np.zeros((axes + 1, widest), np.int64)
    counts, at, inner = np.ones(axes + 1, np.int64), np.zeros(axes, np.int64), axes - 1
    # With one axis, another of one element stands in for the one before the last: `inner - 1` is the last then.
    runs = np.empty((widest, 3), np.int64)
    for region in range(sources.shape[0]):
        for i in range(begins[region], ends[region]):
            place = slots[batch[i]] + field_offset + within[i] * row_nbytes
            found = _reach(
                origins[i], offsets, sizes, follow, shapes[region], low[region], high[region], strides[region],
                mode, element, into, out, counts, runs,
            )  # fmt: skip
            if counts.min() == 0:
                continue
            if found == 0:
                found = _join_runs(into[inner], out[inner], counts[inner], element, runs)
            goes_on = True
            while goes_on:
                target, begin = place, sources[region]
                for axis in range(inner - 1):
                    target += into[axis, at[axis]]
                    begin += out[axis, at[axis]]
                _place_plane(target, begin, into[inner - 1], out[inner - 1], counts[inner - 1], runs, found)
                goes_on = _step_on(at, counts, inner - 2)
    fence()


@jit
def fill_outside(row, shapes, offsets, sizes, element, origins, batch, within, slots, field_offset, row_nbytes):
    """Fill what of boxes lies outside of their volume with the elements at `row`, as many as its last axis has.

    Shapes are those of each box's volume; all else is as for `place_boxes`.
    """
    inner = sizes.shape[0] - 1
    at = np.zeros(inner + 1, np.int64)
    for i in range(origins.shape[0]):
        place = slots[batch[i]] + field_offset + within[i] * row_nbytes
        goes_on = True
        while goes_on:
            target, step, is_out = place, element * sizes[inner], False
            for axis in range(inner - 1, -1, -1):
                index = origins[i, axis] + offsets[axis, at[axis]]
                is_out = is_out or index < 0 or index >= shapes[i, axis]
                target += at[axis] * step
                step *= sizes[axis]
            if is_out:
                copy_bytes(target, row, element * sizes[inner])
            else:
                for k in range(sizes[inner]):
                    index = origins[i, inner] + offsets[inner, k]
                    if index < 0 or index >= shapes[i, inner]:
                        copy_bytes(target + k * element, row, element)
            goes_on = _step_on(at, sizes, inner - 1)
    fence()


def warm_up() -> None:
    """Compile, or load from the cache, every kernel but those of boxes; the first batch need not wait for it then."""
    data = np.zeros(64, dtype=np.uint8)
    target = np.zeros(64, dtype=np.uint8)
    slots = np.array([target.ctypes.data], dtype=np.int64)
    one, zero = np.array([[0, 0, 1]], dtype=np.int64), np.zeros(1, dtype=np.int64)
    # Rows and places come in 32 bits, but for data of more than 2**31 rows.
    rows = np.zeros(1, dtype=np.int32)
    scatter(data.ctypes.data, 8, one, rows, rows, rows, slots, 0, 8)
    scatter_spans(data.ctypes.data, 8, one, rows, rows, rows, rows, slots, 0, 8)
    spread(rows, rows, rows, rows, rows.copy(), rows.copy(), rows.copy())
    scatter_side_by_side(data.ctypes.data, 8, 1, 8, 0, 1, rows, rows, rows, slots, 0, 8)
    for width, kernel in scatter_planes.items():
        planes = np.arange(width, dtype=np.int64)
        kernel(data, data.ctypes.data, planes, one, 1, rows, rows, rows, slots, 0, 8)
    gather_planes(data, np.arange(4, dtype=np.int64), 1, target)
    scatter_stack(
        data.ctypes.data, 8, zero, one, np.array([0, 1]), zero, zero, zero, rows, rows[:0], rows, rows, slots, 0, 8
    )
    gather_planes_stack(data, np.arange(4, dtype=np.int64), 1, 4, 1, target)
    gather_leaf(data, 8, np.arange(4, dtype=np.int64), 1, target)
    inflate_each(0, 0, 0, zero[:0], zero[:0], 0, 1)
    read_each(0, zero[:0], zero[:0], 0)
    gather(data.ctypes.data, zero, 1, 0, 8, 0, one, rows, rows, rows, slots, 0, 8)
    gather_any(data.ctypes.data, rows, rows, rows, slots, 0, 8)
    extents, runs = np.array([[0, 0, 1, 0, 1]], dtype=np.int64), np.array([[0, 0, 1, 1, 0, 1, 0]], dtype=np.int64)
    counts, none = np.zeros(5, dtype=np.int64), zero[:0]
    read_rows(
        -1, none, zero, 1, 1, 0, 8, extents, runs, zero, zero, data.ctypes.data, 8, 0, 0, counts,
        rows, rows[:0], rows, rows, slots, zero, zero,
    )  # fmt: skip


# --- statistics -----------------------------------------------------------------------------------------------


@jit_sums
def add_moments(values, shift, sums, squares, least, most):
    """Add each column's distances from a number, and their squares, and find its extremes, where all are finite.

    Four rows at a time, so that a column is loaded and stored as seldom. A mebibyte of float32 in 1,024 columns
    takes 110 us so, and 360 us row by row with NumPy's extremes.
    """
    rows, columns = values.shape
    for row in range(0, rows - 3, 4):
        for column in range(columns):
            shifted = shift[column]
            a = np.float64(values[row, column]) - shifted
            b = np.float64(values[row + 1, column]) - shifted
            c = np.float64(values[row + 2, column]) - shifted
            d = np.float64(values[row + 3, column]) - shifted
            sums[column] += (a + b) + (c + d)
            squares[column] += (a * a + b * b) + (c * c + d * d)
        for column in range(columns):
            a, b = values[row, column], values[row + 1, column]
            c, d = values[row + 2, column], values[row + 3, column]
            low, low_2 = a if a < b else b, c if c < d else d
            high, high_2 = b if a < b else a, d if c < d else c
            low, high = low if low < low_2 else low_2, high_2 if high < high_2 else high
            least[column] = low if low < least[column] else least[column]
            most[column] = high if high > most[column] else most[column]
    for row in range(rows // 4 * 4, rows):
        for column in range(columns):
            value = values[row, column]
            distance = np.float64(value) - shift[column]
            sums[column] += distance
            squares[column] += distance * distance
            least[column] = value if value < least[column] else least[column]
            most[column] = value if value > most[column] else most[column]


@jit
def add_short_integers(values, sums, squares):
    """Add each column's whole numbers of up to 16 bits, and their squares."""
    for row in range(values.shape[0]):
        for column in range(values.shape[1]):
            value = np.int64(values[row, column])
            sums[column] += value
            squares[column] += value * value


@jit
def add_integers(values, zero, low_bits, bits, sums, squares):
    """Add each column's whole numbers, and their squares, by limbs of 22 bits: of 2**18 rows nothing overflows.

    `zero`, `low_bits` and `bits` are 0, 2**22 - 1 and 22 as int64, or as uint64 for values of that type.
    """
    for row in range(values.shape[0]):
        for column in range(values.shape[1]):
            value = values[row, column] | zero
            low, middle = np.int64(value & low_bits), np.int64((value >> bits) & low_bits)
            high = np.int64(value >> bits >> bits)
            sums[0, column] += low
            sums[1, column] += middle
            sums[2, column] += high
            squares[0, column] += low * low
            squares[1, column] += 2 * low * middle
            squares[2, column] += middle * middle + 2 * low * high
            squares[3, column] += 2 * middle * high
            squares[4, column] += high * high


@jit
def count_bytes(values, counts):
    """Count how often each byte comes."""
    for value in values:
        counts[value] += 1
