"""Slots are leased: memory comes back when the last tensor over it is dropped, and never before."""

from concurrent.futures import ThreadPoolExecutor

from h5stream.engine.slots import SlotRing, address_of


def test_slots_are_taken_and_let_go_of_in_any_thread_and_none_is_given_twice():
    ring = SlotRing(8192)
    with ThreadPoolExecutor(8) as pool:
        batches = list(pool.map(lambda _: [ring.lease(ring.take()) for _ in range(100)], range(8)))
        held = ring.held_nbytes // ring.slot_nbytes
        assert len({tensor.data_ptr() for mine in batches for tensor in mine}) == 800
        list(pool.map(list.clear, batches))
    assert ring.free_slots == held
    assert len({address_of(ring.take().memory) for _ in range(held)}) == held


def test_what_a_user_kept_and_dropped_is_not_kept_for_ever():
    ring = SlotRing(4096, most_slots=4)
    kept = [ring.lease(ring.take()) for _ in range(100)]
    kept.clear()
    assert ring.free_slots == 100
    ring.take()
    assert ring.free_slots == 7
