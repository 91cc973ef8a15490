"""h5py handles that are isolated from the user's handles of the same file, and see what those have written.

libhdf5 opens a file once: a second handle shares the state of the first, and must agree with it on file locking, or is
refused ("file locking flag values don't match"). Files are the same if their driver and inode are, so h5stream opens
files with the "log" driver, which logs nothing here and otherwise equals the default one. Then neither side sees the
other: no mode, locking or `libver` of the user's handles affects h5stream's, or the reverse.

Data that a user has written may still be in libhdf5's buffers. They are flushed, through the user's own handle, when
h5stream opens the file, and while that handle lives also before the file is examined again.

h5stream's handles share libhdf5's cached metadata. If the file was written to since, these no longer match its bytes,
so older handles are closed first.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import traceback
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path

import h5py
from h5py import h5f, h5fd, h5i, h5p
from h5py._objects import phil

from h5stream.base.names import is_address
from h5stream.storage.source.remote import ObjectFile, ObjectIdentity, failures, opening

_OPENED = h5f.OBJ_FILE | h5f.OBJ_GROUP | h5f.OBJ_DATASET
"""Kinds of objects that keep a file open: a dataset does even without a handle of its file."""

DAMAGE = (OSError, RuntimeError, ValueError, TypeError, KeyError)
"""h5py's exceptions for objects that libhdf5 cannot open, or that were closed meanwhile."""

_written: set[tuple[int, int]] = set()
"""Device and inode of files that were open for writing in this process when h5stream opened them."""

_handles: list[tuple[weakref.ref[h5py.File], dict[str, tuple[int, ...]]]] = []
"""h5stream's live handles, each with the stamps of its file and of the files behind it, by path."""

_LOCKS = Path("/proc/locks")

_handles_lock = threading.Lock()

_apart_lock = threading.RLock()
"""Held while a file is briefly open alone, so that no two such handles share state."""

_inherited, _at_fork = set[int](), set[int]()
"""libhdf5's numbers of the files that a parent had open for writing when it forked this process; at the next fork."""

_is_forked = False


def open_file(path: str, *, marked: bool = True, alone: bool = False) -> h5py.File:
    """Open a file for reading, without file locks, whatever else this process has open, or an object in a store.

    A handle opened `alone` shares nothing with h5stream's other handles, such as cached chunks.
    """
    if is_address(path):
        failures.pop(path, None)
        identity = ObjectIdentity.of(path)
        opening().begin(identity)
        try:
            access = h5p.create(h5p.FILE_ACCESS)
            access.set_fclose_degree(h5f.CLOSE_WEAK)
            access.set_fileobj_driver(h5fd.fileobj_driver, ObjectFile(identity))
            return h5py.File(h5f.open(os.fsencode(path), h5f.ACC_RDONLY, fapl=access))  # h5py.File names it in ASCII
        except Exception as error:  # it may live until the process ends, when h5py objects in its frames would crash
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
        with _handles_lock:
            _handles.append((weakref.ref(file), {path: stamp}))
        return file
    except FileNotFoundError:
        raise
    except OSError:
        for writer in _writers(_stamp(path)[:2]) if marked else ():
            return h5py.File(h5i.get_file_id(writer).reopen())
        raise


def said_of_writer(path: str) -> str:
    """Say that another process holds HDF5's lock of a local file, for writing; empty if none does.

    As for h5py, ``HDF5_USE_FILE_LOCKING=FALSE`` says that locks mean nothing here, and so does a file system without
    any. A file that this process's libhdf5 has open for writing is read, whether it opened it or was forked since:
    the locks of its descriptors say less, since other libraries and programs that were started inherit those too.
    """
    if is_address(path) or os.environ.get("HDF5_USE_FILE_LOCKING") in ("FALSE", "0"):
        return ""
    with contextlib.suppress(OSError), phil:  # no other thread of this process opens or closes a file meanwhile
        stat = os.stat(path)
        if _is_locked(path) and not _is_written_here((stat.st_dev, stat.st_ino)):
            return (
                f"{path!r} is open for writing in {_holder(stat.st_ino)}, and what that has not written yet would be "
                "missing. Wait until it has closed the file; HDF5_USE_FILE_LOCKING=FALSE reads what is there, except "
                "of a file that is marked as open, as with libver='latest'"
            )
    return ""


def _is_locked(path: str) -> bool:
    """Return whether a file has a lock for writing, by having one for reading for a moment."""
    with phil:  # or another thread that opens the file for writing in this moment would be refused
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe does not wait for its writer
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # also of a child that was forked meanwhile
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
    return False


def _is_written_here(key: tuple[int, int]) -> bool:
    """Return whether this process's libhdf5 has a file open for writing, be it since before a fork."""
    for opened in h5f.get_obj_ids(h5f.OBJ_ALL, _OPENED):
        with contextlib.suppress(*DAMAGE):  # not a file of this machine
            file = h5i.get_file_id(opened)
            if file.get_intent() & h5f.ACC_RDWR and _key_of(file) == key:
                return True
    return False


def _holder(inode: int) -> str:
    """Name the process that has a lock of a file for writing, as far as this one can see it."""
    with contextlib.suppress(OSError, ValueError):
        for line in _LOCKS.read_text().splitlines():
            match line.split():
                case [_, "FLOCK", _, "WRITE", process, place, *_] if place.endswith(f":{inode}"):
                    return f"process {process}"
    return "another process"


@contextlib.contextmanager
def opened_apart(path: str) -> Iterator[h5py.File]:
    """Open a file briefly, sharing nothing with any other handle of h5stream."""
    with _apart_lock, open_file(path, alone=True) as file:
        yield file


def is_shared(dataset: h5py.Dataset) -> bool:
    """Return whether a dataset's file may be shared with other handles of h5stream."""
    return bool(h5i.get_file_id(dataset.id).get_access_plist().get_driver() == h5fd.LOG)


def flush_written(path: str, *, opening: bool) -> None:
    """Flush the handles through which this process writes to a file.

    A forked child may have many objects of its parent, and examines them only if the file is locked.
    """
    if not (opening or _written):
        return
    with contextlib.suppress(OSError):
        stat = os.stat(path)
        key = stat.st_dev, stat.st_ino
        if key in _written or (opening and (not _is_forked or _is_locked(path))):
            _flush(key)


def _close_outdated(path: str) -> tuple[int, ...]:
    """Close h5stream's handles of a file that changed since, and return its current stamp.

    A reader that still has such a handle finds it closed, examines its file and reports the change.
    """
    now, living = _stamp(path), list[tuple[h5py.File, dict[str, tuple[int, ...]]]]()
    with _handles_lock:
        handles, _handles[:] = [*_handles], []
        for ref, stamps in handles:
            if (file := ref()) is not None and file.id.valid:
                living.append((file, stamps))
                _handles.append((ref, stamps))
    for file, stamps in living:
        own, *_ = stamps.values()
        if now and own[:2] == now[:2] and any(_stamp(one) != stamp for one, stamp in stamps.items()):
            file.close()
    return now


def watch(file: h5py.File, behind: Iterable[str]) -> None:
    """Record other files that libhdf5 keeps open with a file of h5stream's."""
    stamps = {path: _stamp(path) for path in behind}
    with _handles_lock:
        for ref, recorded in _handles:
            if ref() is file:
                recorded.update(stamps)


def _stamp(path: str) -> tuple[int, ...]:
    """Return device, inode, bytes and modification time of a file; empty if it is missing."""
    try:
        stat = os.stat(path)
    except OSError:
        return ()
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns


def _flush(key: tuple[int, int]) -> None:
    _written.discard(key)
    for writer in _writers(key):
        _written.add(key)
        with contextlib.suppress(*DAMAGE):  # closed meanwhile, by another thread
            h5f.flush(writer, h5f.SCOPE_GLOBAL)


def _writers(key: tuple[int, ...]) -> Iterator[h5py.h5g.GroupID]:
    """Yield an open object of each writable handle of a file that this process opened, not its parent."""
    for opened, number in _writable():
        with contextlib.suppress(*DAMAGE):
            if number not in _inherited and _key_of(h5i.get_file_id(opened)) == key:
                yield opened


def _writable() -> Iterator[tuple[h5py.h5g.GroupID, int]]:
    """Yield an open object of each file that is open for writing, and libhdf5's number of the file."""
    # Counting tells whether objects are open outside of h5stream's files: examining each takes long.
    files, own = list[h5py.File](), 0
    with _handles_lock:
        for ref, _ in _handles:
            if (opened_file := ref()) is not None:
                files.append(opened_file)
    with contextlib.suppress(*DAMAGE):  # closed meanwhile
        for opened_file in files:
            if opened_file.id.valid:
                own += h5f.get_obj_count(opened_file.id, _OPENED | h5f.OBJ_LOCAL)
        if h5f.get_obj_count(h5f.OBJ_ALL, _OPENED) == own:
            return
    seen: set[int] = set()
    for opened in h5f.get_obj_ids(h5f.OBJ_ALL, _OPENED):
        with contextlib.suppress(*DAMAGE):
            if h5i.get_file_id(opened).get_intent() & h5f.ACC_RDWR:
                number = h5py.h5o.get_info(opened).fileno
                if number not in seen:
                    seen.add(number)
                    yield opened, number


def _key_of(file: h5f.FileID) -> tuple[int, int]:
    is_descriptor = file.get_access_plist().get_driver() in (h5fd.SEC2, h5fd.LOG)
    stat = os.fstat(file.get_vfd_handle()) if is_descriptor else os.stat(file.name)
    return stat.st_dev, stat.st_ino


def _flush_before_fork() -> None:
    """Flush all written data before a fork: the child cannot, and would read the file without them."""
    for key in list(_written):
        _flush(key)
    _at_fork.clear()
    _at_fork.update(number for _, number in _writable())


def _forget_in_child() -> None:
    """Forget the parent's handles and replace its locks, which another of its threads may have held."""
    global _handles_lock, _apart_lock, _is_forked
    _handles_lock, _apart_lock = threading.Lock(), threading.RLock()
    _is_forked = True
    _handles.clear()
    _written.clear()
    _inherited.update(_at_fork)


os.register_at_fork(before=_flush_before_fork, after_in_child=_forget_in_child)
