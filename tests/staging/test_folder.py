"""The locks of a staging folder: one holder at a time, waits that are heard, copiers that are seen to die."""

from __future__ import annotations

import os

import pytest
from inner import after_each_write

from h5stream.errors import StagingError
from h5stream.staging import folder, stage
from h5stream.staging.folder import StagingFolder


def test_who_wants_the_lock_waits_for_it_and_calls_back_meanwhile(child, write, ram, left):
    script = """
    told = []
    def show(now):
        if not told:
            told.append(now)
            say("waiting")
    stage(sys.argv[1], to=sys.argv[2], lease=False, progress=show)
    say("done")
    """
    with StagingFolder(path=ram).locked():
        waiting = child(script, write("a.h5", 1000), ram)
        waiting.hear("waiting")
        assert left(ram) == [".h5stream", ".h5stream/lock"]
    waiting.hear("done")
    assert (ram / "a.h5").exists()


def test_what_a_tick_raises_ends_the_wait_for_the_lock(ram):
    class EnoughError(Exception):
        pass

    def stop():
        raise EnoughError

    place = StagingFolder(path=ram)
    with place.locked(), pytest.raises(EnoughError), place.locked(stop):
        pytest.fail("the lock was given twice")


def test_a_lock_without_a_name_is_not_the_lock(ram):
    path = ram / "lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        assert folder.is_same(descriptor, path)
        path.unlink()
        assert not folder.is_same(descriptor, path)
        path.touch()
        assert not folder.is_same(descriptor, path)
    finally:
        os.close(descriptor)


def test_a_part_that_was_exchanged_in_mid_copy_is_never_given_the_name(write, ram, monkeypatch, left):
    done = []

    def exchange():
        if not done:
            done.append(True)
            (part,) = (ram / ".h5stream").glob("*.part")
            part.unlink()
            part.touch()

    after_each_write(monkeypatch, exchange)
    with pytest.raises(StagingError, match=r"was removed from .* while it was made"):
        stage(write("a.h5", 33 << 20), to=ram, threads=1)
    assert left(ram) == []
