"""Staging: `stage` brings files to a folder and says where they are, `staged` takes them away again."""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from h5stream.errors import OptionError, StagingError
from h5stream.executors import check_executor
from h5stream.repacking.recipe import Recipe
from h5stream.staging.claims import Terms
from h5stream.staging.copying import OBJECT_THREADS, default_threads
from h5stream.staging.folder import StagingFolder, new_session
from h5stream.staging.run import ProgressCallback, Remaking, StagedFiles, StagingRun
from h5stream.storage.given import paths_of
from h5stream.storage.remote import ObjectIdentity, opened_with, opening
from h5stream.storage.source import FileIdentity
from h5stream.storage.stores import SCHEMES, is_address

if TYPE_CHECKING:
    from h5stream.storage.layout import SampleLayout

_log = logging.getLogger("h5stream")

PathLike = str | os.PathLike[str]


def stage(
    files: PathLike | Iterable[PathLike],
    *,
    to: PathLike,
    follow: bool = False,
    lease: bool = True,
    threads: int | None = None,
    margin_bytes: int | None = None,
    repack: Mapping[str, Any] | None = None,
    progress: ProgressCallback | None = None,
    storage_options: Any = None,
    executor: Executor | None = None,
) -> StagedFiles:
    """Copy files to a folder on faster storage, verified, each of them once; return where the copies are.

    A copy that is there already and whose source has not changed is reused; a stale one is replaced, unless
    a live process uses it, in which case the new copy goes to a subfolder. What another process is copying is
    waited for.

    Parameters
    ----------
    files : path or iterable of path
        The files, addresses of objects in stores (``s3://bucket/a.h5``), or patterns of either; of any format. HDF5
        files are looked into for others that they need; objects are not.
    to : path
        The folder, on a tmpfs or a fast disk; it is made where it is absent.
    follow : bool
        Bring along the files that they need: external links, virtual dataset sources, external storage. What leads
        out of an object in a store is not found.
    lease : bool
        Protect the copies from `remove_staged` until `StagedFiles.release`, or until this process ends.
    threads : int, optional
        Threads that copy; by default the number of processors, at least 4 and at most 8, and 16 for objects in stores.
        Each of those waits for up to four ranges of 1 MiB.
    margin_bytes : int, optional
        What is to stay free. By default, of memory 5 %, at least 256 MiB, and of a disk 1 %.
    repack : mapping, optional
        Rewrite the files on their way, with these options of `h5stream.repack`; an empty mapping takes its
        defaults. A copy that was made in another way is replaced like a stale one.
    progress : callable, optional
        Called with a `StagingProgress` about ten times a second; see `ProgressCallback`.
    storage_options : dict or store, optional
        What opens the stores of addresses; see `H5Dataset`.
    executor : concurrent.futures.Executor, optional
        What copies or rewrites the files, each in a call: a ``ProcessPoolExecutor``, or that of dask or mpi4py, whose
        machines see the same folders. By default threads of this process copy, and files are rewritten in turn.

    Returns
    -------
    StagedFiles
        Paths of the copies, and how they came there.

    Raises
    ------
    SourceNotFoundError, SourceError
        If a file does not exist or is not a regular file.
    SourceChangedError
        If a file changes while it is copied, or an object has another ETag.
    NotEnoughSpaceError
        If the copies do not fit into the folder or into memory.
    UnfollowableReferenceError
        If `follow` is asked for and a needed file would not be found beside the copy.
    StagingError
        If the folder cannot be used.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     source = Path(place, "a.h5")
    ...     _ = source.write_bytes(b"any bytes")
    ...     first = stage(source, to=Path(place, "fast"))
    ...     again = stage(source, to=Path(place, "fast"))
    ...     first.paths[0].read_bytes(), len(first.copied), len(again.copied)
    (b'any bytes', 1, 0)
    """
    terms = Terms(session=new_session(), hold=lease, keep=True, margin_bytes=margin_bytes)
    with opened_with(storage_options):
        return _stage(files, to, terms, follow, threads, repack, progress, executor)


@contextlib.contextmanager
def staged(
    files: PathLike | Iterable[PathLike],
    *,
    to: PathLike,
    follow: bool = False,
    threads: int | None = None,
    margin_bytes: int | None = None,
    repack: Mapping[str, Any] | None = None,
    progress: ProgressCallback | None = None,
    storage_options: Any = None,
    executor: Executor | None = None,
) -> Iterator[tuple[Path, ...]]:
    """Stage files for the time of a ``with`` block.

    At the end the copies are deleted, unless another process still uses them or `stage` (or the command
    line) put them there to stay. Errors are those of `stage`.

    Parameters
    ----------
    files, to, follow, threads, margin_bytes, repack, progress, storage_options, executor
        As for `stage`.

    Yields
    ------
    tuple of Path
        The copies, in the order of `files`.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     source = Path(place, "a.h5")
    ...     _ = source.write_bytes(b"any bytes")
    ...     with staged(source, to=Path(place, "fast")) as paths:
    ...         content = paths[0].read_bytes()
    ...     content, paths[0].exists()
    (b'any bytes', False)
    """
    terms = Terms(session=new_session(), hold=True, keep=False, margin_bytes=margin_bytes)
    with opened_with(storage_options):
        result = _stage(files, to, terms, follow, threads, repack, progress, executor)
    try:
        yield result.paths
    finally:
        result.release()


def _stage(
    files: PathLike | Iterable[PathLike],
    to: PathLike,
    terms: Terms,
    follow: bool,
    threads: int | None,
    repack: Mapping[str, Any] | None,
    progress: ProgressCallback | None = None,
    executor: Executor | None = None,
    known: Mapping[str, ObjectIdentity] | None = None,
) -> StagedFiles:
    check_executor(executor)
    if threads is not None and threads < 1:
        raise OptionError(f"threads must be at least 1, not {threads}")
    if terms.margin_bytes is not None and terms.margin_bytes < 0:
        raise OptionError(f"margin_bytes must not be negative, not {terms.margin_bytes}")
    if repack is not None and follow:
        raise OptionError("follow=True copies files that belong together and cannot repack them; leave one of both out")
    remaking = None if repack is None else Remaking(Recipe.of(**repack))
    if re.match(rf"{SCHEMES}:/", os.fspath(to)):
        raise OptionError(f"{os.fspath(to)!r} is in a store, and files are staged to a folder: stores are only read")
    folder = StagingFolder.of(to)
    if folder.path.exists() and not folder.path.is_dir():
        raise StagingError(f"{folder.path} is no folder", folder=str(folder.path))
    if remaking is not None:
        terms = replace(terms, recipe=remaking.text, estimate=remaking.estimate)
    given = [files] if isinstance(files, str | os.PathLike) else files
    paths = [path for one in given for path in paths_of(one, None)]
    from_stores = [path for path in paths if is_address(path)]
    if follow and from_stores:
        raise OptionError(
            f"follow=True (--follow) brings along what files need, and what leads out of an object in a store, here "
            f"{from_stores[0]!r}, cannot be followed; leave it out, and name all objects"
        )
    asked_for = [path for path in from_stores if path not in (known or {}) and not path.endswith("/")]
    opening().identities(asked_for)  # all at once
    usual = OBJECT_THREADS if from_stores else default_threads()
    run = StagingRun(folder, terms, threads or usual, progress, remaking, executor)
    return run.run(paths, follow, known or {})


def stage_layout(layout: SampleLayout, to: PathLike) -> tuple[SampleLayout, Callable[[], None]]:
    """Stage the files of a layout; give the layout over the copies, and what gives their lease back.

    A copy has its source's bytes, so every address in the layout holds for it too: nothing is opened again. A file that
    is not the one any more that the layout was made of is an error.
    """
    every = [one for identity in layout.files for one in identity.each()]
    _log.info("staging %d file(s) to %s", len(every), to)
    # What links lead to is among the files. Other files that those need come along only where they may be outside.
    follow = layout.allow_external and any(part.leads_on for parts in layout.datasets for part in parts)
    # Of objects in stores it is those that the layout was made of that are copied, or that lie there already.
    known = {one.path: one for one in every if isinstance(one, ObjectIdentity)}
    terms = Terms(session=new_session(), hold=True, keep=True, margin_bytes=None)
    staged = _stage([one.path for one in every], to, terms, follow, None, None, known=known)
    for notice in staged.notices:
        _log.info("%s", notice)
    try:
        for one in every:
            one.check_unchanged()
        made = iter([FileIdentity.of(str(path)) for path in staged.paths])
        copies = tuple(identity.over([next(made) for _ in identity.file_sizes]) for identity in layout.files)
    except BaseException:
        staged.release()
        raise
    return replace(layout, files=copies), staged.release
