"""Files open beside others in one process: ours stand apart from the user's, and what those hold back is written.

libhdf5 opens a file once: who opens it again shares what the first one opened, and must agree with it on file
locking, or is refused ("file locking flag values don't match"). Two files are the same if their driver is and their
inode is, so ours are opened with the "log" driver, which logs nothing here and otherwise does what the usual one
does. Neither side then sees the other: no mode, no locking and no `libver` of the user's stands in our way, nor ours
in theirs.

What a user has written and libhdf5 still holds back is not in the file yet. It is flushed, through the user's own
handle, when a file is opened here, and as long as that handle lives also before the file is looked at again.

Ours share what the first of them opened, with what libhdf5 remembers of it. Of a file that was written to since, that
is another file's structure over this one's bytes, so those that were opened before are closed first.
"""

from __future__ import annotations

import contextlib
import os
import threading
import traceback
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import h5py
from h5py import h5f, h5fd, h5i, h5p

from h5stream.storage.source.remote import ObjectFile, ObjectIdentity, failures, opening
from h5stream.storage.source.stores import is_address

_OPENED = h5f.OBJ_FILE | h5f.OBJ_GROUP | h5f.OBJ_DATASET
"""What keeps a file open: a dataset does also where nothing names its file any more."""

DAMAGE = (OSError, RuntimeError, ValueError, TypeError, KeyError)
"""What h5py makes of what libhdf5 cannot open, or of what was closed meanwhile."""

_written: set[tuple[int, int]] = set()
"""Device and inode of the files that were open for writing in this process when they were opened here."""

_ours: list[tuple[weakref.ref[Any], dict[str, tuple[int, ...]]]] = []
"""The handles that were opened here and live, each with what its file, and those behind it, were then, by path."""

_ours_lock = threading.Lock()

_apart_lock = threading.RLock()
"""Held while a file is open alone for a moment, so that no two such handles share what they opened."""

_pid = os.getpid()


def open_file(path: str, *, marked: bool = True, alone: bool = False) -> Any:
    """Open a file for reading, without file locks, whatever else this process has open; or an object in a store.

    One that is open `alone` shares nothing with others of ours, such as chunks that they have read.
    """
    if is_address(path):
        failures.pop(path, None)
        identity = ObjectIdentity.of(path)
        opening().begin(identity)
        try:
            access = h5p.create(h5p.FILE_ACCESS)
            access.set_fclose_degree(h5f.CLOSE_STRONG)
            access.set_fileobj_driver(h5fd.fileobj_driver, ObjectFile(identity))
            return h5py.File(h5f.open(os.fsencode(path), h5f.ACC_RDONLY, fapl=access))  # h5py.File names it in ASCII
        except Exception as error:  # which may live as long as the process, where what h5py has open there crashes
            traceback.clear_frames(error.__traceback__)
            raise
    access = h5p.create(h5p.FILE_ACCESS)
    access.set_fclose_degree(h5f.CLOSE_WEAK)
    if alone:
        access.set_fapl_stdio()
    else:
        access.set_fapl_log(b"", 0, 0)
    access.set_file_locking(False, True)
    flush_written(path, opening=True)
    stamp = _close_outdated(path)
    try:
        file = h5py.File(h5f.open(os.fsencode(path), h5f.ACC_RDONLY, fapl=access))
        with _ours_lock:
            _ours.append((weakref.ref(file), {path: stamp}))
        return file
    except FileNotFoundError:
        raise
    except OSError:
        for writer in _writers(_key(os.stat(path))) if marked else ():
            return h5py.File(h5i.get_file_id(writer).reopen())
        raise


@contextlib.contextmanager
def opened_apart(path: str) -> Iterator[Any]:
    """Open a file for a moment so that it shares nothing with any other handle of h5stream."""
    with _apart_lock, open_file(path, alone=True) as file:
        yield file


def is_shared(dataset: Any) -> bool:
    """Tell whether a dataset is open in a file on a disk that other handles of ours may have open, too."""
    return bool(h5i.get_file_id(dataset.id).get_access_plist().get_driver() == h5fd.LOG)


def flush_written(path: str, *, opening: bool) -> None:
    """Bring to the file what handles of this process that write to it hold back."""
    if os.getpid() != _pid:
        return  # a forked child has its parent's handles, and what they hold back is the parent's to write
    if not (opening or _written):
        return
    with contextlib.suppress(OSError):
        key = _key(os.stat(path))
        if opening or key in _written:
            _flush(key)


def _close_outdated(path: str) -> tuple[int, ...]:
    """Close what was opened here of a file that changed since, and say what the file is now.

    A reader that still has such a handle finds it closed, looks at its file and reports the change.
    """
    now = _stamp(path)
    with _ours_lock:
        living = [(file, stamps) for ref, stamps in _ours if (file := ref()) is not None and file.id.valid]
        _ours[:] = [(weakref.ref(file), stamps) for file, stamps in living]
    for file, stamps in living:
        own, *_ = stamps.values()
        if now and own[:2] == now[:2] and any(_stamp(one) != stamp for one, stamp in stamps.items()):
            file.close()
    return now


def watch(file: Any, behind: Iterable[str]) -> None:
    """Note that a file opened here reads others, which libhdf5 keeps open with it."""
    stamps = {path: _stamp(path) for path in behind}
    with _ours_lock:
        for ref, known in _ours:
            if ref() is file:
                known.update(stamps)


def _stamp(path: str) -> tuple[int, ...]:
    """Say what a file is now: device, inode, bytes, time of the last change; nothing of one that is not there."""
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return (*_key(found), found.st_size, found.st_mtime_ns)


def _flush(key: tuple[int, int]) -> None:
    _written.discard(key)
    for writer in _writers(key):
        _written.add(key)
        with contextlib.suppress(*DAMAGE):  # closed meanwhile, by another thread
            h5f.flush(writer, h5f.SCOPE_GLOBAL)


def _key(stat: os.stat_result) -> tuple[int, int]:
    return stat.st_dev, stat.st_ino


def _writers(key: tuple[int, int]) -> Iterator[Any]:
    """Yield an open object of each writable handle of a file that this process, not its parent, opened."""
    if os.getpid() != _pid or not _others_are_open():
        return
    seen: set[int] = set()
    for thing in h5f.get_obj_ids(h5f.OBJ_ALL, _OPENED):
        with contextlib.suppress(*DAMAGE):
            number = h5py.h5o.get_info(thing).fileno
            if number not in seen:
                seen.add(number)
                file = h5i.get_file_id(thing)
                if file.get_intent() & h5f.ACC_RDWR and _key_of(file) == key:
                    yield thing


def _others_are_open() -> bool:
    """Tell, by counting, whether anything may be open that is not of a file opened here: to look at each takes long."""
    with _ours_lock:
        files = [file for ref, _ in _ours if (file := ref()) is not None]
    try:
        ours = sum(h5f.get_obj_count(file.id, _OPENED | h5f.OBJ_LOCAL) for file in files if file.id.valid)
    except DAMAGE:  # closed meanwhile
        return True
    return bool(h5f.get_obj_count(h5f.OBJ_ALL, _OPENED) != ours)


def _key_of(file: Any) -> tuple[int, int]:
    if file.get_access_plist().get_driver() in (h5fd.SEC2, h5fd.LOG):
        return _key(os.fstat(file.get_vfd_handle()))
    return _key(os.stat(file.name))


def _flush_before_fork() -> None:
    """Leave nothing held back: a child cannot write it, and would read the file without it."""
    for key in list(_written):
        _flush(key)


def _forget_in_child() -> None:
    """Leave the parent's handles alone, and its lock, which another of its threads may have held."""
    global _ours_lock, _apart_lock
    _ours_lock, _apart_lock = threading.Lock(), threading.RLock()
    _ours.clear()


os.register_at_fork(before=_flush_before_fork, after_in_child=_forget_in_child)
