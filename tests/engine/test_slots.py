"""Slots are leased: memory comes back when the last tensor over it is dropped, and never before."""

import gc
import threading

from h5stream.engine.slots import SlotRing, address_of


def ring_of(slot_nbytes=8192):
    return SlotRing(slot_nbytes)


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


def test_what_a_user_kept_and_dropped_is_not_kept_for_ever():
    ring = SlotRing(4096, most_slots=4)
    kept = [ring.lease(ring.take()) for _ in range(100)]
    kept.clear()
    assert ring.free_slots == 100
    ring.take()
    assert ring.free_slots == 7
