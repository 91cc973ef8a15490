"""`H5Dataset`: a map-style dataset over HDF5 files, for single rows, slices, lists, and a stock DataLoader."""

from __future__ import annotations

import bisect
import contextlib
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from typing import Any, Literal, TypedDict, Unpack, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch.utils.data import ConcatDataset, Dataset, Subset

from h5stream.base.hints import SAMPLES, hint
from h5stream.base.limits import return_freed_memory
from h5stream.base.names import is_address
from h5stream.base.texts import answering, check_ordered, checked_number, counted
from h5stream.dataset import indexing
from h5stream.dataset.collating import Samples
from h5stream.dataset.indexing import BlockCache
from h5stream.dataset.leaks import in_order
from h5stream.dataset.splits import (
    BY,
    check_no_others,
    codes_of,
    group_numbers,
    parts_of,
    repeated,
    values_of,
    warn_of_leaks,
)
from h5stream.dataset.statistics import Axes, FieldStatistics, statistics_of
from h5stream.dataset.torch_types import copied, with_torch_dtypes
from h5stream.engine.assemble import Assembler
from h5stream.engine.counters import Tally
from h5stream.engine.kinds.ragged import objects_for
from h5stream.engine.plan.tasks import Destination
from h5stream.engine.reader import RowReader
from h5stream.engine.slots import SlotFormat, map_memory
from h5stream.errors import H5StreamError, OptionError, UnsupportedFieldError
from h5stream.order.blocks import Blocks, epoch_blocks, numbers, row_numbers, select_rows
from h5stream.order.places import Places, is_ascending, place_dtype
from h5stream.order.weights import SourceShares, random_samples, samples_of_segments
from h5stream.order.window import Window
from h5stream.samples.boxes import ROWS
from h5stream.samples.columns import Values
from h5stream.samples.kinds import Objects, Sequences
from h5stream.samples.segments import Ints
from h5stream.samples.space import hint_of_short_segments
from h5stream.storage.file.groups import FILES
from h5stream.storage.layout.access import DIRECT, HEAP
from h5stream.storage.layout.fields import Field
from h5stream.storage.layout.layout import SampleLayout
from h5stream.storage.layout.request import Fields, Request, SampleShape, Source, are_local, read_request, sample_shape
from h5stream.storage.many.whole import hint_of_rows
from h5stream.storage.open.extents import SampleKind
from h5stream.storage.open.joining import joined_layout
from h5stream.storage.open.opening import open_layout
from h5stream.storage.source.disk_cache import ObjectCache
from h5stream.storage.source.remote import opened_with
from h5stream.structure import as_numpy, foreign_dtype, sample_of, with_tensors

_log = logging.getLogger("h5stream")

REUSED_NBYTES = 32 * 1024 * 1024
"""The C library reuses freed memory of fewer bytes; mapping it afresh costs more than reading into it. Source:
``mallopt(3)``, M_MMAP_THRESHOLD, whose upper limit this is."""

"""Limits on the values of a field that are read together for a split."""
_CACHED_BLOCK_NBYTES = 8 * 1024 * 1024

_Requests = tuple[tuple[Request, SampleKind | None], ...]


class _Changes(TypedDict, total=False):
    """The attributes in which a dataset may differ from another one over the same open files."""

    layout: SampleLayout
    chosen: NDArray[np.int64]
    shares: SourceShares
    numpy: bool
    requests: _Requests


@answering(others=" Arguments of batches, such as sample_transform= and batch_size=, belong to H5StreamLoader")
class H5Dataset(Dataset[Any]):
    """Rows of HDF5 files as samples.

    Opening reads the chunk index and checks every field once; afterwards no file stays open through h5py unless a field
    needs it. The object can be pickled, and works in processes started by fork, spawn or forkserver.

    Parameters
    ----------
    source : path, folder, pattern, open h5py.File, Group or Dataset, H5Dataset, or sequence of them
        One file, or several, whose rows follow one another. A folder is its HDF5 files, by their names, without those
        of folders in it; in a store it ends with a slash. An h5py object stands for its name: the datasets of a group
        are the fields, and names are looked up in it; a dataset is a file and its only field. Or several `H5Dataset`,
        such as groups of one file, in a list or a ``ConcatDataset``: their samples must be alike, but the paths of
        their fields may differ.
    fields : str, Field, h5py.Dataset, sequence or mapping of them, optional
        With ``"x"``, a sample is a tensor, with ``["x", "y"]`` a tuple, with ``{"image": "x"}`` a dict. By default all
        datasets at the root of the file, which must have the same length; linked ones are included, each dataset once.
    rows : slice, or array-like of int or bool, optional
        The rows to use (or the samples, with `samples`), as indices or a mask; they keep the file's order.
    samples : Sequences, Rows, Objects, Table or Boxes, optional
        What a sample is, if it is not a row of the files: see `Sequences`, `Rows`, `Objects`, `Table` and `Boxes`.
    allow_external : bool
        Whether external links, external storage and virtual sources may lead out of the opened files.
    numpy : bool
        Whether indexing this object gives NumPy arrays and scalars instead of tensors, for code that was written for
        h5py and calls ``.astype``. bfloat16 and floats of 8 bits are arrays of ml_dtypes, which must be installed.
        Loaders give tensors all the same.
    storage_options : dict or store, optional
        How to open addresses such as ``"s3://bucket/a.h5"``, which need the extra ``remote``: options of obstore's
        `from_url` (``config``, ``client_options``, ``retry_config``, ``region`` and other options of that store), or an
        obstore store. By default, credentials come from the environment.
    cache : path, optional
        A folder on a local disk that keeps what is read of objects in stores, so that later epochs, other ranks of this
        machine and later runs read it there. Entries are named by a hash of the object's address, size and ETag: an
        object that changes is read anew, and one without an ETag is not kept. Damaged entries are requested again. Any
        number of processes may share a folder. If it cannot be written, the log says so once, and everything is read
        from the store. It has no effect on files.
    cache_size : int or str, optional
        Bytes that the folder may take, as a number or a text such as ``"500GB"``; what was used longest ago is deleted
        first. By default a tenth of the disk's free space.

    Attributes
    ----------
    layout : SampleLayout
        The fields and how their bytes are reached.
    chosen : ndarray of int64 or None
        The numbers of the samples that were chosen, of which an epoch may draw some; None for all.
    shares : SourceShares or None
        The share of each source in an epoch, if this is a `Mixture`.

    Raises
    ------
    H5StreamError
        See `h5stream.errors`: no such file, not HDF5, no such field, fields of unlike length, and so on.

    Examples
    --------
    >>> import h5py, tempfile, os
    >>> path = os.path.join(tempfile.mkdtemp(), "a.h5")
    >>> with h5py.File(path, "w") as f:
    ...     f["x"] = np.arange(12, dtype="f4").reshape(6, 2)
    ...     f["y"] = np.arange(6)
    >>> dataset = H5Dataset(path, ["x", "y"])
    >>> len(dataset), dataset[4]
    (6, (tensor([8., 9.]), tensor(4)))
    >>> dataset[[5, 0]][1]
    tensor([5, 0])
    >>> H5Dataset(path, "x", numpy=True)[2:4, 0].astype("f8")
    array([4., 6.])
    """

    layout: SampleLayout
    chosen: NDArray[np.int64] | None
    shares: SourceShares | None
    _numpy: bool
    _cache: BlockCache
    _requests: _Requests  # one per joined dataset, to open further fields

    def __init__(
        self,
        source: Source | Dataset[Any] | Sequence[Dataset[Any]],
        fields: Fields = None,
        *,
        rows: slice | ArrayLike | None = None,
        samples: SampleKind | None = None,
        allow_external: bool = False,
        numpy: bool = False,
        storage_options: object = None,
        cache: str | os.PathLike[str] | None = None,
        cache_size: int | str | None = None,
    ) -> None:
        of_files = {"storage_options": storage_options, "cache": cache, "cache_size": cache_size}
        if (existing := opened(source, fields, samples=samples, **of_files)) is not None:
            self._become(existing, numpy=numpy or existing._numpy)
        else:
            is_local = storage_options is None and cache is None and cache_size is None and are_local(source, fields)
            with contextlib.ExitStack() as of_stores:
                if not is_local:
                    of_stores.enter_context(opened_with(storage_options, ObjectCache.of(cache, cache_size)))
                request = read_request(cast(Source, source), fields)
                if (shape := request.shape) and any(getattr(one, "dtype", None) is not None for one in shape.fields):
                    request = replace(request, shape=with_torch_dtypes(shape))
                self.layout = open_layout(request, samples=samples, allow_external=allow_external)
                may_be_whole = samples is None and request.may_be_whole(self.layout.paths)
                if may_be_whole and (text := hint_of_rows(request, self.layout)):
                    hint(text, SAMPLES)
                if isinstance(samples, Sequences) and (space := self.layout.space) and space.left_out:
                    hint(hint_of_short_segments(space), SAMPLES)
            if is_local:
                return_freed_memory()
            if cache is not None and not any(is_address(file.path) for file in self.layout.files):
                _log.warning("cache= keeps what is read of stores, and no file of this dataset is in one: leave it out")
            self._requests = ((replace(request, shape=self.layout.shape), samples),)
            self.chosen, self.shares, self._numpy, self._cache = None, None, numpy, BlockCache()
            self._prepare()
        if rows is not None:
            self._become(self._replace().subset(rows))

    def _prepare(self) -> None:
        """Derive the other attributes from those of the open files."""
        H5Dataset.set_epoch(self, 0)
        self._reader, self._assembler = RowReader(self.layout), Assembler(self.layout)
        for field, dtype in self._assembler.dtypes if self._numpy else ():
            try:
                foreign_dtype(dtype)
            except (ImportError, TypeError) as error:
                way_out = "leave numpy= out, or give dtype=torch.float32"
                if isinstance(error, ImportError):
                    way_out += ", or install ml_dtypes, which has it for NumPy"
                problem = f"field {field.name!r}: numpy=True cannot give {dtype}, which NumPy has no type for"
                raise OptionError(f"{problem}; {way_out}") from None

    def _become(self, other: H5Dataset, **changes: Unpack[_Changes]) -> None:
        """Take over the open files of another dataset, with changes."""
        self.layout = changes.get("layout", other.layout)
        self.chosen = changes.get("chosen", other.chosen)
        self.shares = changes.get("shares", other.shares)
        self._numpy = changes.get("numpy", other._numpy)
        self._requests = changes.get("requests", other._requests)
        self._cache = BlockCache() if "layout" in changes else other._cache
        self._prepare()

    def _replace(self, **changes: Unpack[_Changes]) -> H5Dataset:
        """Return a plain `H5Dataset` of the same open files, with changes."""
        copied = H5Dataset.__new__(H5Dataset)
        copied._become(self, **changes)
        return copied

    def __len__(self) -> int:
        chosen = self.rows
        return self.layout.samples if chosen is None else len(chosen)

    def set_epoch(self, epoch: int, *, seed: int = 0) -> None:
        """Draw the samples of an epoch, if ``samples=`` has random starts, and random crops of ragged fields.

        `H5StreamLoader` does not need this call: it draws by its own seed and epoch. With a stock DataLoader, call it
        before each epoch; persistent workers keep the epoch that they began with.

        Parameters
        ----------
        epoch : int
            The epoch, 0 or more; 0 at first.
        seed : int
            The seed of the draws, 0 or more.

        Raises
        ------
        OptionError
            If one of them is no such number.
        """
        epoch = checked_number("set_epoch", epoch, 0, "a non-negative integer")
        seed = checked_number("set_epoch's seed=", seed, 0, "a non-negative integer", is_seed=True)
        self._seed_and_epoch = seed, epoch
        space = self.layout.space
        draws_none = space is None or space.draws is None
        self._drawn = None if draws_none else random_samples(space, self.chosen, seed, epoch)

    def __repr__(self) -> str:
        names = ", ".join(self.layout.shape.keys)
        what, space = "row" if self.layout.space is None else "sample", self.layout.space
        notes = [f"{counted(len(self), what)} of {names}", counted(len(self.layout.file_sizes), "file")]
        if space and space.left_out:
            notes.append(f"{counted(space.left_out, 'segment or object', 'segments or objects')} of no sample left out")
        if self.layout.left_out:
            lacking = counted(self.layout.left_out, "file or group", "files or groups")
            notes.append(f"{lacking} without a field left out")
        if self.layout.asked:
            notes.append(f"{counted(self.layout.asked, 'object')} asked of HDF5")
        return f"H5Dataset({'; '.join(notes)})"

    def close(self) -> None:
        """Close the files; the next read opens them again."""
        self._reader.close()

    def subset(self, indices: slice | ArrayLike) -> H5Dataset:
        """Choose some of these rows, as ``rows=`` would; the files are not opened again.

        Parameters
        ----------
        indices : slice, or array-like of int or bool
            Rows of this dataset, as numbers or a mask; they keep the file's order.

        Returns
        -------
        H5Dataset
            A dataset of these rows; this one stays as it is.

        Raises
        ------
        OptionError
            If a row is not there, comes twice, or a mask has another length.

        Examples
        --------
        >>> import h5py, tempfile, os
        >>> path = os.path.join(tempfile.mkdtemp(), "a.h5")
        >>> with h5py.File(path, "w") as f:
        ...     f["x"] = np.arange(6)
        >>> len(H5Dataset(path).subset(slice(0, 4)))
        4
        """
        chosen = select_rows(indices, len(self))
        return self if chosen is None else self._over_rows(chosen)

    def listed(self, indices: slice | ArrayLike) -> H5Dataset:
        """Return rows in an order of your own, repeated as often as they are named, as a ``Subset`` of torch does.

        An epoch that is not shuffled has the rows in this order.

        Parameters
        ----------
        indices : array-like of int
            Rows of this dataset; negative ones count from the end.

        Returns
        -------
        H5Dataset
            A dataset with a sample for each entry of `indices`; the files are not opened again.

        Raises
        ------
        OptionError
            If a row is not there, or `indices` are no integers.
        """
        return self._over_rows(row_numbers(indices, len(self)))

    def split(
        self,
        *shares: ArrayLike,
        seed: int = 0,
        by: str | Field | Values | ArrayLike | None = None,
        stratify: str | Field | Values | ArrayLike | None = None,
        **others: object,
    ) -> tuple[H5Dataset, ...]:
        """Split the samples into parts, such as one to train with and one to validate with.

        Which sample goes where is a function of `seed` and the data alone: the same on every machine and rank, and in
        every epoch.

        Parameters
        ----------
        *shares : float or int
            The size of each part: fractions that add up to 1, or numbers of samples, also as one sequence. A single
            size gives two parts: one of that size, and the rest. With fractions, a part ends at their sum so far,
            rounded to the nearest sample, halves up.
        seed : int
            Another seed gives other parts.
        by : str, field or array-like, optional
            Which samples must stay together: those with the same value of a field or dataset of one value per sample
            (``"patient_id"``), or of an array; those of a ``"segment"`` (an episode, a group, a volume), of a
            ``"file"``, or of a ``"block"``: samples that begin in the same chunks, so that of rows no chunk is read for
            two parts. Groups are dealt out greedily, large ones first, each to the part that lacks most of what the
            group has: the sizes of parts are right to within a group.
        stratify : str, field or array-like, optional
            A field, dataset or array of few values, such as ``"label"``, of which each part gets equal shares: to
            within one sample of each value without `by`, and with `by` as far as groups allow.
        **others
            Arguments of other libraries' splits, which are refused with what to write.

        Returns
        -------
        tuple of H5Dataset
            A dataset for each part; the files are not opened again. ``part.rows`` are the numbers of its samples.

        Raises
        ------
        OptionError
            If shares do not add up, a part would be empty, or there is not one value for each sample.

        Warns
        -----
        LeakWarning
            If samples of several parts share rows, as overlapping sequences do.

        Examples
        --------
        >>> import h5py, tempfile, os
        >>> path = os.path.join(tempfile.mkdtemp(), "a.h5")
        >>> with h5py.File(path, "w") as f:
        ...     f["x"], f["patient"] = np.arange(8), [1, 1, 2, 2, 3, 3, 4, 4]
        >>> train, val = H5Dataset(path, "x").split(0.75, by="patient")
        >>> train.rows, val[:]
        (array([0, 1, 2, 3, 6, 7]), tensor([4, 5]))
        """
        check_no_others(others)
        is_list = len(shares) == 1 and (isinstance(shares[0], (list, tuple)) or getattr(shares[0], "ndim", 0) == 1)
        sizes: Any = shares[0] if is_list else shares
        total = len(self)
        strata = None if stratify is None else codes_of(self._values(stratify, "stratify="), total, "stratify=")
        if isinstance(by, str) and by in BY:
            are_objects = all(isinstance(samples, Objects) for _, samples in self._requests)
            numbers = group_numbers(self.layout, self.rows, by, self.blocks, are_objects=are_objects)
            groups: Ints | None = codes_of(numbers, total, "by=")
        elif by is not None:
            groups = codes_of(self._values(by, "by="), total, "by=")
        else:
            groups = repeated(self.rows)
        seed = checked_number("split: seed=", seed, 0, "a non-negative integer", is_seed=True)
        recipe = partial(in_order, self.layout, self.rows, total)
        parts = parts_of(tuple(sizes), total, seed=seed, groups=groups, strata=strata, recipe=recipe)
        warn_of_leaks(self.layout, self.rows, parts, are_whole=isinstance(by, str) and by in ("segment", "file"))
        return tuple(map(self._over_rows, parts))

    def statistics(
        self,
        fields: Iterable[str] | None = None,
        *,
        axis: Axes | Mapping[str, Axes | None] | None = None,
        executor: Executor | None = None,
    ) -> dict[str, FieldStatistics]:
        """Find mean, standard deviation, extremes, NaNs and counts of values in one pass over the files.

        Only the samples of this dataset count, such as one part of a split, and each value as often as batches have it,
        also if samples overlap or are padded. Results are kept in the user's cache folder, so a second call reads
        nothing unless the files have changed. ``h5stream inspect FILE --forget`` deletes them, and
        ``H5STREAM_CATALOGUE=0`` in the environment turns this off.

        Parameters
        ----------
        fields : str or sequence of str, optional
            Which fields; by default all. Text has counts only.
        axis : int, sequence of int or mapping, optional
            Axes of a sample along which each index has its own results: -1 for the columns of a table, or for images
            whose channels come last, 0 for images whose channels come first. A mapping names an axis for some of the
            fields. By default there is one result per field.
        executor : concurrent.futures.Executor, optional
            Reads large files, half a gigabyte or more per call: a ``ProcessPoolExecutor``, or the executor of dask or
            mpi4py, whose machines must see the same files. Results are the same without it.

        Returns
        -------
        dict of str to FieldStatistics
            The statistics of each field; members of a compound have their name behind a colon.

        Raises
        ------
        OptionError
            If there is no such field or axis.
        H5StreamError
            Where the files cannot be read.
        """
        return statistics_of(self.layout, self.rows, fields, axis, executor)

    def _values(self, name: str | Field | Values | ArrayLike, what: str) -> object:
        """Return each sample's value of a field, or of another dataset of the files; arrays are returned unchanged."""
        if isinstance(name, Values):
            return name.values
        if not isinstance(name, (str, Field)):
            return name
        pieces = [values for _, values in values_of(self, name, f"split: {what}", of_first_step=True)[1]]
        if isinstance(pieces[0], list):
            return np.array([value for piece in pieces for value in piece], dtype=object)
        return np.concatenate(pieces)

    def _with_field(self, name: str | Field, take: Literal["all"] | None = None) -> SampleLayout:
        """Open the files again with an additional field; return the layout."""
        shapes = []
        for (_, samples), shape in zip(self._requests, self._shapes, strict=True):
            steps = (0,) if isinstance(samples, Sequences) else None
            field = Field(name, take=take or steps) if isinstance(name, str) else name
            shapes.append(SampleShape(kind="dict", keys=(*shape.keys, ""), fields=(*shape.fields, field)))
        try:
            return self._reopened(shapes, repr(name))[0]
        except (OptionError, UnsupportedFieldError) as error:
            # An attribute, or a single value, is that of each sample of its file, group or object.
            is_once = isinstance(error, UnsupportedFieldError)
            if take is None and isinstance(name, str) and (is_once or "@" in name or name.startswith("/")):
                with contextlib.suppress(H5StreamError):
                    return self._with_field(name, "all")
            raise

    def with_fields(self, fields: Fields) -> H5Dataset:
        """Return a dataset of the same samples with other fields; the files are opened again.

        Parameters
        ----------
        fields : str, Field, sequence or mapping
            The fields, as `H5Dataset` takes them.

        Returns
        -------
        H5Dataset
            A dataset of the same samples, also if they were chosen by `subset`, `listed` or `split`.

        Raises
        ------
        OptionError
            If a sample lacks a field, or this is a `Mixture`.

        Examples
        --------
        >>> import h5py, tempfile, os
        >>> path = os.path.join(tempfile.mkdtemp(), "a.h5")
        >>> with h5py.File(path, "w") as f:
        ...     f["x"], f["y"] = np.arange(6), np.arange(6) * 10
        >>> H5Dataset(path, "x").subset(slice(2, 4)).with_fields("y")[:]
        tensor([20, 30])
        """
        if self.shares is not None:
            raise OptionError("fields= of a Mixture are those of its sources; name them there")
        shape = with_torch_dtypes(sample_shape(cast(Any, fields)))
        layout, requests = self._reopened([shape] * len(self._requests), "one of fields=")
        return self._replace(layout=layout, requests=requests)

    def _with_columns_of(self, first: H5Dataset) -> H5Dataset:
        """Return the same dataset with columns by name in the order of another."""
        columns = first.layout.columns_by_name
        if not columns or not any(shape.by_name for shape in self._shapes):
            return self
        shapes = [shape.with_columns(columns) for shape in self._shapes]
        layout, requests = self._reopened(shapes, "one of fields=")
        return self._replace(layout=layout, requests=requests)

    @property
    def _shapes(self) -> list[SampleShape]:
        return [request.shape for request, _ in self._requests if request.shape is not None]

    def _reopened(self, shapes: list[SampleShape], what: str) -> tuple[SampleLayout, _Requests]:
        """Open the files again with other fields; return the layout, and the requests that it was opened with."""
        layouts, opened_as = [], []
        for (request, samples), shape in zip(self._requests, shapes, strict=True):
            changed_request = replace(request, shape=shape)
            layouts.append(open_layout(changed_request, samples=samples, allow_external=self.layout.allow_external))
            opened_as.append((replace(changed_request, shape=layouts[-1].shape), samples))
        layout = layouts[0] if len(layouts) == 1 else joined_layout(layouts)
        if layout.samples != self.layout.samples:
            raise OptionError(
                f"{what} is not there for each of {self.layout.samples:,} samples, but for {layout.samples:,}; see "
                "whether the files have changed since they were opened"
            )
        return layout, tuple(opened_as)

    def _over_rows(self, places: NDArray[np.int64]) -> H5Dataset:
        if self._drawn is not None:
            return self._replace(chosen=samples_of_segments(self.layout.space, self.chosen, places))
        return self._replace(chosen=places if self.chosen is None else self.chosen[places])

    @property
    def rows(self) -> NDArray[np.int64] | None:
        """The number of each sample in the files, in the order of this dataset; None if it has all of them.

        A sample that is a row has the row's number; other samples are numbered in the order of `samples`.
        """
        return self.chosen if self._drawn is None else self._drawn

    @property
    def is_of_pattern(self) -> bool:
        """Whether the groups or objects of samples are named by a pattern."""
        patterns = (getattr(samples, "of", None) for _, samples in self._requests)
        return any(isinstance(of, str) and of not in (FILES, ROWS) for of in patterns)

    @property
    def is_in_file_order(self) -> bool:
        """Whether rows come in file order instead of an order of their own; see `listed`."""
        return self.rows is None or is_ascending(self.rows)

    @property
    def categories(self) -> dict[str, tuple[str, ...]]:
        """The category names of each field that has some, as in AnnData, by code; code -1 has no name."""
        shape, fields = self.layout.shape, self.layout.fields
        entries = zip(shape.keys, self.layout.entries, strict=True)
        numbered = {key: fields[entry].labels.categories for key, entry in entries if isinstance(entry, int)}
        return {key: listed for key, listed in numbered.items() if listed is not None}

    @property
    def blocks(self) -> Blocks:
        """The samples cut into blocks, the unit of the coarse shuffle."""
        return self.blocks_for(True)

    def blocks_for(self, shuffle: bool, *, seed: int | None = None, epoch: int = 0) -> Blocks:
        """Cut the samples of an epoch into blocks; without a shuffle it keeps the order of `listed`.

        Parameters
        ----------
        shuffle : bool
            Whether the epoch is shuffled.
        seed, epoch : int, optional
            The seed and epoch of the draws if ``samples=`` has random starts; by default those of `set_epoch`.

        Returns
        -------
        Blocks
            The rows, and the begin of each block.
        """
        rows = self.rows
        if self._drawn is not None and seed is not None:
            rows = random_samples(self.layout.space, self.chosen, seed, epoch)
        blocks = epoch_blocks(self.layout, rows, shuffle=shuffle, is_drawn=rows is not self.rows)
        return self.shares.stratified(blocks) if shuffle and self.shares is not None else blocks

    # --- samples and batches ----------------------------------------------------------------------------

    def __getitem__(self, index: Any) -> Any:
        """Return one sample for an integer, a batch for a slice, a list, an array or a mask of rows, or ``...``.

        With one field that is a tensor, further indices mean the same as in h5py: ``dataset[2:4, 0]`` is column 0 of
        two rows. Unlike in h5py, rows may come in any order and repeat, and slices may run backwards.
        """
        if type(index) is int:  # the common case, without arrays
            value = self._sample(index)
        else:
            rows, inside = indexing.split(index, self._shape)
            is_one = indexing.is_one(rows)
            value = self._sample(int(rows)) if is_one else self._several(rows)
            value = indexing.inside(value, inside, taken=not is_one) if inside else value
        return as_numpy(value) if self._numpy else value

    @property
    def _shape(self) -> tuple[int, ...] | None:
        """The shape of a batch of all rows if it is a single tensor, else None."""
        field = self.layout.fields[0]
        if self.layout.shape.kind != "one" or len(self.layout.fields) != 1 or field.kind != "array":
            return None
        return None if isinstance(self.layout.entries[0], dict) else (len(self), *field.row_shape)

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return a list of samples, each chunk decoded once; a stock DataLoader calls this.

        The samples view one batch; `h5stream.collate` gives it back whole, without stacking.
        """
        check_ordered("a batch of indices", indices)
        return Samples(self.read(np.asarray(indices)), len(indices), self._numpy)

    def _several(self, rows: object) -> Any:
        """Read rows as one batch; consecutive rows without a plan if possible."""
        if isinstance(rows, slice) and self.rows is None:
            first, stop, step = rows.indices(len(self))
            values = self._reader.single(first, stop - first) if step == 1 and first < stop else None
            if values is not None:
                return self.layout.assemble(values)
        return self.read(numbers(rows, len(self), axis=0))

    def read(self, rows: NDArray[np.int64]) -> Any:
        """Read rows as one batch of tensors, in the order given; rows may repeat.

        Parameters
        ----------
        rows : ndarray of int64
            Rows of this dataset; negative ones count from the end.

        Returns
        -------
        Tensor, tuple or dict
            Like a sample, with a first axis as long as `rows`; lists for fields that no tensor can hold.

        Raises
        ------
        IndexError
            If a row is not there.
        SourceChangedError, CorruptChunkError
            If a file is not what was opened, or its bytes do not decode.
        """
        return self._read(self._row_numbers(rows))

    def _read(self, numbers: Places, tally: Tally | None = None) -> Any:
        """Read samples by their numbers in the files, and count the work in `tally`."""
        count = len(numbers)
        # In the small type that plans need: converting later costs more than reading a few thousand rows.
        numbers = numbers.astype(place_dtype(self.layout.samples), copy=False)
        by_row: Places = np.arange(count, dtype=place_dtype(count))
        if not is_ascending(numbers):
            by_row = np.argsort(numbers, kind="stable")
            numbers = numbers[by_row]
        slot_format = SlotFormat.for_rows(self.layout.fields, count)
        nbytes = slot_format.nbytes
        memory = map_memory(nbytes) if nbytes >= REUSED_NBYTES else np.empty(nbytes, dtype=np.uint8)
        objects = objects_for(self.layout.fields, count)
        destination = Destination.of_batch(memory, slot_format, self.layout.fields, [objects])
        if count:
            batch = np.zeros(count, dtype=np.int32)
            window = Window(rows=numbers, batch=batch, within=by_row, drawn=self._seed_and_epoch)
            self._reader.read(window, destination, tally)
            self._check_unchanged(numbers)
        return self._assembler.batch(memory, slot_format, count, objects)

    def _check_unchanged(self, numbers: Places) -> None:
        """Raise if files of these rows have changed since they were opened, since their chunks may have moved."""
        for file in self.layout.files_of(numbers):
            self.layout.files[file].check_unchanged()

    def _row_numbers(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        count = len(self)
        if not isinstance(rows, np.ndarray) or rows.dtype != np.int64 or rows.ndim != 1:
            rows = numbers(rows, count, axis=0)
        if len(rows) and (rows.min() < 0 or rows.max() >= count):
            wrong = rows[(rows < -count) | (rows >= count)]
            if len(wrong):
                # IndexError, because iterating over a sequence ends with it.
                raise IndexError(
                    f"row {wrong[0]} is not there: the dataset has {counted(count, 'row')}, 0 to {count - 1:,}"
                )
            rows = np.where(rows < 0, rows + count, rows)
        return rows if self.rows is None else self.rows[rows]

    def _sample(self, index: int) -> Any:
        """Read one row; decoded blocks are cached for neighbouring rows."""
        plain = self.rows is None and 0 <= index < self.layout.samples
        row = index if plain else int(self._row_numbers(np.array([index]))[0])
        if (values := self._reader.single(row)) is not None:
            return self.layout.assemble(values)
        if self.layout.space is not None:
            return sample_of(self._read(np.array([row])), 0)
        part = self.layout.leading[bisect.bisect_right(self.layout.file_starts, row) - 1]
        if part.access in (DIRECT, HEAP) or part.chunk_rows * self.layout.row_nbytes > _CACHED_BLOCK_NBYTES:
            return sample_of(self._read(np.array([row])), 0)
        first = part.row_start + (row - part.row_start) // part.chunk_rows * part.chunk_rows
        key = first, self._seed_and_epoch
        if (block := self._cache.get(key)) is not None:
            self._check_unchanged(np.array([row]))
        else:
            last = min(first + part.chunk_rows, part.row_start + part.rows)
            block = self._read(np.arange(first, last, dtype=np.int64))
            self._cache.put(key, block)
        return with_tensors(sample_of(block, row - first), copied)


def read_counted(dataset: H5Dataset, numbers: NDArray[np.int64], tally: Tally) -> None:
    """Read samples by their numbers in the files, and count the work in `tally`."""
    dataset._read(numbers, tally)


def of_copies(dataset: H5Dataset, layout: SampleLayout) -> H5Dataset:
    """Return the dataset of the same samples in byte-for-byte copies of its files, such as staged ones."""
    return dataset._replace(layout=layout)


def opened(source: object, fields: Fields = None, **of_files: object) -> H5Dataset | None:
    """Return the dataset for `H5Dataset` objects: one, a subset, or several joined; None if the source names files."""
    dataset = _opened_dataset(source, fields)
    for name, value in of_files.items():
        if dataset is not None and value is not None:
            raise OptionError(f"{name}= belongs to the H5Dataset that was given; name it there")
    return dataset


def _opened_dataset(source: object, fields: Fields) -> H5Dataset | None:
    if isinstance(source, Subset):
        if (inner := opened(source.dataset, fields)) is None:
            raise OptionError(f"a Subset needs a dataset whose rows it names, not {source.dataset!r}")
        return inner.listed(source.indices)
    if isinstance(source, ConcatDataset):
        return joined(source.datasets, fields)
    if isinstance(source, (list, tuple)) and any(isinstance(one, Dataset) for one in source):
        return joined(source, fields)
    if not isinstance(source, Dataset):
        if isinstance(getattr(source, "dataset", None), Dataset):
            raise OptionError(f"a source is a path or a dataset, not {type(source).__name__}; give it that .dataset")
        return None
    if not isinstance(source, H5Dataset):
        raise OptionError(
            f"h5stream reads HDF5 files and cannot see into a {type(source).__name__}; give it the path, an H5Dataset, "
            "or a Subset or ConcatDataset of some, and put what __getitem__ does into batch_transform="
        )
    return source if fields is None else source.with_fields(fields)


def joined(sources: Sequence[object], fields: Fields = None) -> H5Dataset:
    """Return the concatenation of several datasets; see `opened`."""
    fields = list(fields) if isinstance(fields, Iterator) else fields
    parts = [opened(source, fields) for source in sources]
    paths = [source for source, part in zip(sources, parts, strict=True) if part is None]
    if paths:
        raise OptionError(f"{paths[0]!r} stands among datasets; make it an H5Dataset, with the fields= of the others")
    datasets = [part for part in parts if part is not None]
    if len(datasets) == 1:
        return datasets[0]
    if any(part.shares is not None for part in datasets):
        raise OptionError("a Mixture stands among datasets that are read one behind the other; mix all sources in one")
    datasets = [datasets[0], *(part._with_columns_of(datasets[0]) for part in datasets[1:])]
    layout = joined_layout([part.layout for part in datasets])
    requests = tuple(one for part in datasets for one in part._requests)
    changes: _Changes = {"layout": layout, "requests": requests, "numpy": all(part._numpy for part in datasets)}
    if any(part.chosen is not None for part in datasets):
        starts = np.cumsum([0] + [part.layout.samples for part in datasets])
        own = (np.arange(part.layout.samples) if part.chosen is None else part.chosen for part in datasets)
        changes["chosen"] = np.concatenate([rows + start for rows, start in zip(own, starts, strict=False)])
    return datasets[0]._replace(**changes)
