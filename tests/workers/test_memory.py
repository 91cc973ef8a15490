"""Memory that two processes map: what is let go of goes back to the system, and only by who made it."""

import gc
import os
import resource

import numpy as np
import pytest
from forking import in_forked_child

from h5stream.workers.memory import SharedMemory, create_file

NBYTES = 1 << 22


@pytest.fixture
def descriptor():
    descriptor = create_file()
    yield descriptor
    os.close(descriptor)


def pages_of(descriptor):
    return os.fstat(descriptor).st_blocks * 512


def test_pages_go_back_once_the_last_array_is_dropped(descriptor):
    memory = SharedMemory(descriptor)
    array = memory.allocate(NBYTES)
    array[:] = 7
    part = array[100:200]
    assert pages_of(descriptor) >= NBYTES
    del array
    gc.collect()
    assert part.sum() == 700
    assert pages_of(descriptor) >= NBYTES, "a part of it still is looked at"
    del part
    gc.collect()
    assert pages_of(descriptor) == 0


def test_a_forked_child_that_drops_it_takes_nothing_from_its_parent(descriptor):
    held = {"memory": SharedMemory(descriptor)}
    held["array"] = held["memory"].allocate(NBYTES)
    held["array"][:] = 5

    def drop():
        held.clear()
        gc.collect()
        return True

    assert in_forked_child(drop)
    assert np.all(held["array"] == 5)
    assert pages_of(descriptor) >= NBYTES
    held.clear()


def test_where_addresses_are_limited_a_file_takes_a_part_of_them(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda which: (16 * NBYTES, 16 * NBYTES))
    descriptor = create_file()
    memory = SharedMemory(descriptor)
    kept = memory.allocate(NBYTES // 2)
    with pytest.raises(MemoryError, match="no memory for 4,194,304 bytes of batches: 2,097,152 bytes are in use"):
        memory.allocate(NBYTES)
    del kept
    assert len(memory.allocate(NBYTES // 2)) == NBYTES // 2
    os.close(descriptor)
