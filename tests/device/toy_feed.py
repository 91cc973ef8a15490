"""The smallest feeds that need every wait of the protocol, with a switch for each."""

import torch

BATCHES = 8
BATCH_BYTES = 16
SLOTS = 2


def feed_in_place(backend, *, wait_to_refill=True, wait_to_consume=True, wait_to_overwrite=True, poll=False):
    """Send batches through two host slots and two device buffers; give what the consumer saw of each.

    Batch k is BATCH_BYTES bytes of value k. Each flag takes one wait of the protocol out.
    """
    side, consumer = backend.side_stream(), backend.current_stream()
    slots = [backend.allocate_pinned(BATCH_BYTES) for _ in range(SLOTS)]
    there = [backend.allocate_device(BATCH_BYTES, side) for _ in range(SLOTS)]
    copied, consumed = [None] * SLOTS, [None] * SLOTS
    seen = [torch.zeros(BATCH_BYTES, dtype=torch.uint8) for _ in range(BATCHES)]
    for k in range(BATCHES):
        place = k % SLOTS
        if copied[place] is not None and wait_to_refill:
            if poll:
                while not backend.done(copied[place]):
                    pass
            else:
                backend.synchronize(copied[place])
        slots[place].fill_(k)
        if consumed[place] is not None and wait_to_overwrite:
            backend.wait(side, consumed[place])
        backend.copy_async(there[place], slots[place], side)
        copied[place] = backend.record_event(side)
        if wait_to_consume:
            backend.wait(consumer, copied[place])
        backend.launch(consumer, torch.Tensor.copy_, seen[k], there[place])
        consumed[place] = backend.record_event(consumer)
    getattr(backend, "finish", lambda: None)()
    return seen


def feed_owned(backend, *, hold=True):
    """Give each batch device memory of its own, allocated for the side stream and dropped at once."""
    side, consumer = backend.side_stream(), backend.current_stream()
    slot = backend.allocate_pinned(BATCH_BYTES)
    seen = [torch.zeros(BATCH_BYTES, dtype=torch.uint8) for _ in range(BATCHES)]
    for k in range(BATCHES):
        slot.fill_(k)
        there = backend.allocate_device(BATCH_BYTES, side)
        backend.copy_async(there, slot, side)
        copied = backend.record_event(side)
        backend.wait(consumer, copied)
        if hold:
            backend.hold(there, consumer)
        backend.launch(consumer, torch.Tensor.copy_, seen[k], there)
        del there
        backend.synchronize(copied)
    getattr(backend, "finish", lambda: None)()
    return seen


def is_right(seen):
    return all(bool((batch == k).all()) for k, batch in enumerate(seen))
