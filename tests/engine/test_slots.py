"""Slots are leased: memory comes back when the last tensor over it is dropped, and never before."""

import gc
import threading

import numpy as np
import pytest
import torch

from h5stream.engine.slots import FIELD_ALIGNMENT, SlotFormat, SlotRing, address_of
from h5stream.storage.layout import FieldLayout


def ring_of(slot_nbytes=8192):
    return SlotRing(slot_nbytes)


def field(dtype, row_shape=()):
    return FieldLayout(name="x", kind="array", dtype=np.dtype(dtype), row_shape=row_shape)


def test_a_slot_comes_back_when_its_last_tensor_is_dropped():
    ring = ring_of()
    slot = ring.take()
    free = ring.free_slots
    packed = ring.lease(slot)
    first, second = packed[:4096].view(torch.float32), packed[4096:].view(torch.int64)
    del packed
    assert ring.free_slots == free
    del first
    assert ring.free_slots == free
    del second
    assert ring.free_slots == free + 1


def test_tensors_may_be_dropped_in_other_threads():
    ring = ring_of()
    batches = [ring.lease(ring.take()) for _ in range(256)]
    taken_from = ring.held_nbytes // ring.slot_nbytes

    def drop(mine):
        while mine:
            mine.pop()

    shares = [batches[k::8] for k in range(8)]
    batches.clear()
    threads = [threading.Thread(target=drop, args=(share,)) for share in shares]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ring.free_slots == taken_from
    assert len({address_of(ring.take().memory) for _ in range(taken_from)}) == taken_from


def test_taking_in_many_threads_never_gives_a_slot_twice():
    ring = ring_of()
    taken = [[] for _ in range(8)]
    barrier = threading.Barrier(8)

    def take(mine):
        barrier.wait()
        for _ in range(100):
            mine.append(ring.take())

    threads = [threading.Thread(target=take, args=(mine,)) for mine in taken]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({address_of(slot.memory) for mine in taken for slot in mine}) == 800


def test_a_cycle_with_a_tensor_in_it_gives_the_slot_back_when_it_is_collected():
    ring = ring_of()
    holder = [ring.lease(ring.take())]
    holder.append(holder)
    free = ring.free_slots
    del holder
    gc.collect()
    assert ring.free_slots == free + 1


def test_trimming_lets_go_of_free_slots_and_leased_ones_stay_whole():
    ring = ring_of()
    kept = ring.lease(ring.take())
    kept.fill_(9)
    ring.trim()
    assert (ring.free_slots, ring.held_nbytes) == (0, 0)
    ring.take().memory[:] = 0
    assert (kept == 9).all()


@pytest.mark.parametrize("rows", [1, 7, 8192])
def test_fields_are_packed_at_aligned_offsets_without_overlap(rows):
    fields = [field("f4", (3,)), field("bool"), field("S5"), field("c16", (2, 2)), field("i8")]
    packed = SlotFormat.for_rows(fields, rows)
    ends = [offset + f.row_nbytes * rows for offset, f in zip(packed.offsets, fields, strict=True)]
    assert all(offset % FIELD_ALIGNMENT == 0 for offset in packed.offsets)
    assert all(end <= start for end, start in zip(ends, [*packed.offsets[1:], packed.nbytes], strict=True))


def test_what_a_user_kept_and_dropped_is_not_kept_for_ever():
    ring = SlotRing(4096, most_slots=4)
    kept = [ring.lease(ring.take()) for _ in range(100)]
    kept.clear()
    assert ring.free_slots == 100
    ring.take()
    assert ring.free_slots == 7
