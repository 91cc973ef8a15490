"""`H5StreamLoader`: a replacement for ``torch.utils.data.DataLoader``, made of the package's parts."""

from __future__ import annotations

import inspect
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, Literal, NoReturn, Self, TypeVar, Unpack, overload

import torch

from h5stream.base.hints import hint
from h5stream.base.leases import Living
from h5stream.base.limits import return_freed_memory
from h5stream.base.texts import answering, checked_number
from h5stream.dataset.dataset import of_copies
from h5stream.device.cuda import backend_for
from h5stream.engine.counters import RunCounters
from h5stream.engine.footprint import Footprint, WindowRows
from h5stream.engine.statistics import LoaderStatistics
from h5stream.errors import OptionError
from h5stream.loader.arguments import OLD, WAY_OUTS, drawn_seed, hint_of_channels
from h5stream.loader.draws import recognised
from h5stream.loader.epoch import Iterations, LoaderIterator
from h5stream.loader.options import Batch, FunctionOptions, PlainArguments, PlainOptions
from h5stream.loader.position import Cursor, current_ranks
from h5stream.loader.route import with_seeds
from h5stream.loader.sampler import batch_sampler_of, sampler_of, warn_of_weak_shuffle
from h5stream.loader.settings import (
    DEFAULT_BATCH_ROWS,
    DataArguments,
    DataLoaderAttributes,
    DataSource,
    FunctionArguments,
    ReadingArguments,
    SamplingArguments,
    Settings,
    checked,
    remade,
)
from h5stream.order.epoch import EpochOrder
from h5stream.order.users import Balanced, OrderFactory, Sized, Weighted
from h5stream.storage.layout.request import FieldLike, Fields
from h5stream.storage.open.extents import SampleKind
from h5stream.structure import copy_batch

_T = TypeVar("_T")


@answering(WAY_OUTS)
class H5StreamLoader(DataLoaderAttributes, Generic[Batch]):
    """Streams shuffled batches from HDF5 files; every parameter of ``DataLoader`` keeps its name and place.

    Parameters
    ----------
    dataset : path, folder, pattern, open h5py object, H5Dataset, or sequence of them
        Files, or datasets of them; see `H5Dataset`. A list or ``ConcatDataset`` is read as one dataset. With
        ``shuffle=False``, a ``Subset`` gives its rows in its own order, repeated ones too. The indices of a sampler
        count in the ``Subset``.
    batch_size : int or None
        Samples in a batch, by default 8,192; fewer samples are a single batch. None gives single samples, as in
        DataLoader.
    shuffle : bool, optional
        Whether to shuffle, on two levels and differently in each epoch. By default False, but True for a `Mixture` and
        with ``draw=`` `Weighted`, `Balanced` or a number.
    sampler, batch_sampler : iterable, optional
        An order of your own, as in DataLoader. Each row that lies apart from the others decodes a whole chunk; the
        loader's own shuffle avoids that. torch's random samplers are replaced by what they mean, such as `Weighted`, in
        that shuffle.
    num_workers : int, optional
        Number of reader threads. By default as many as the machine allows and memory has room for; 0 reads in the
        thread that iterates.
    collate_fn : callable, optional
        Gets a list of samples, as in DataLoader. Splitting a batch into samples costs more than reading it;
        `batch_transform` works on whole batches.
    pin_memory : bool
        Whether host batches are in pinned memory, for copies of your own. Has no effect without a CUDA device, as in
        DataLoader, nor with `device`, whose buffers are always pinned.
    drop_last : bool
        Leave out the last batch if it is not full.
    timeout : float
        Seconds to wait for a batch; 0 waits as long as it takes. Has no effect with ``num_workers=0``.
    worker_init_fn : callable, optional
        Called in each reader thread before it reads, with the thread's number; the threads stay while one epoch follows
        another. With `sample_workers`, called in each of these processes instead, with the process's number.
    generator : torch.Generator, optional
        The seed is drawn from this generator, unless `seed` is given. Several ranks need `seed`: each would draw
        another.
    prefetch_factor : int, optional
        Batches that are held ready on `device`, or that each of `sample_workers` has at a time. Otherwise it has no
        effect: on the host, a whole window is read ahead.
    persistent_workers : bool
        For files in object stores, set this if another epoch will follow: its first window is then read while the last
        batches of the first epoch are used. Otherwise stores are asked for nothing that may not be needed, until a
        second epoch has begun. The windows of later epochs, and those of local files, are always read ahead; such a
        window is held until its epoch begins or the loader is closed or deleted.
    multiprocessing_context : str or context, optional
        How `sample_workers` are started: "spawn" (the default), "forkserver" or "fork". Readers are threads.
    pin_memory_device, in_order : optional
        Have no effect: batches always come in order.
    device : torch.device or str, optional
        The device that batches are brought to. Each batch goes to a GPU in one copy, while the training step runs,
        `prefetch_factor` (default 2) batches ahead; casts and `batch_transform` run on the GPU, on a side stream.
    fields : str, Field, sequence or mapping, optional
        The fields of a sample; see `H5Dataset`. With a sequence of fields, a batch is a list, as in DataLoader.
    samples : Sequences, Rows, Objects, Table or Boxes, optional
        What a sample is, if it is not a row: for example, a sequence of rows inside a group, a file or an episode, or a
        row of one of many groups.
    seed : int, optional
        The seed of the shuffle and of all else that is random. By default it is drawn once, from `generator` or torch's
        default generator, so that ``torch.manual_seed`` repeats a run; with several ranks it is 0. Loaders over two
        files do *not* give the same order for the same seed if rows, chunks or windows differ: never zip them.
        ``Field(..., file=)`` makes them fields of one loader.
    window : int, "auto" or "all"
        Number of rows that are shuffled together. ``"auto"`` is the largest of three numbers of rows: those of 4
        batches, those of 1,024 blocks, and those that 256 MiB hold (at most 2**20); limited so that two windows fit 2
        GiB, whatever `memory_budget` is. If the budget is too small for them, windows are smaller and the log says so.
        A block is as many rows as a chunk of the largest field holds. ``"all"`` is an exact global shuffle.
    memory_budget : int or str, optional
        Bytes that batches, windows, the buffers of threads and rows that stay in memory may take together, as a number
        or a text such as ``"4GiB"``. The default is 2 GiB, or a quarter of the machine's memory if that is less; all
        loaders with the default share it.
    batch_transform : callable, optional
        Applied to each whole batch, in the thread that asks for it. It may change the batch in place
        (``x.sub_(mean).div_(std)``), which is several times as fast as allocating large results. Transforms of
        torchvision and albumentations are for single samples: pass them as `sample_transform`.
    rank, world_size : int, optional
        Which part of each epoch this loader reads, and of how many; every rank has the same number of batches. By
        default those of the `torch.distributed` process group, if there is one when an epoch begins.
    storage_options : dict or store, optional
        Options and credentials of object stores; see `H5Dataset`, which also takes ``cache=``.
    stage_to : path, optional
        A folder to which the files or objects are copied first (`h5stream.stage`). The loader reads the copies, which
        cannot be removed until it is closed or deleted. On unfiltered copies, ``window="all"`` is cheap.
    on_error : "raise" or "skip"
        What to do about a corrupt chunk: raise an error at the batch that needs it, or leave its rows out, with one
        warning per epoch and a count in `stats`. A batch that loses all its rows is dropped; with several ranks, it is
        an error.
    draw : Weighted, Balanced, Sized, int or callable, optional
        Which samples an epoch takes, how often, and in which batches; by default each once, `batch_size` at a time.
        `Weighted` draws samples by weight, `Balanced` the same number of each class, and a number takes that many
        samples of an endless sequence of shuffled epochs. With these, ``shuffle`` is True unless False is given, and
        samples come in the loader's own windows, so chunks are decoded once per window however often samples come.
        `Sized` limits the rows of a ragged field in a batch, groups samples of similar lengths, or both; it can take
        another draw. A function makes orders of your own: it is called as ``draw(blocks, epoch, ranks)`` for each
        epoch, and returns an `h5stream.order.Order`, which names rows by their places in the dataset. No batch of it
        may have more than `batch_size` rows, and no window more than `window`; it cannot be combined with `shuffle` or
        a sampler.
    keep : "auto" or "never"
        Whether decoded rows, and rows of a store, stay in memory, as many as `memory_budget` has room for beside all
        else: later epochs do not decode or request these again. The order is the same. Loaders of this process with the
        same fields of the same files share the rows. Their memory is freed when the last of these loaders is closed or
        deleted, or when other loaders without a budget of their own need it.
    sample_transform : callable, optional
        Applied to each sample, as ``H5Dataset[i]`` gives it, before samples are collated. What it draws from the global
        generators of Python, NumPy or torch depends on seed, epoch and sample, not on the number of workers.
    sample_workers : int, optional
        Number of processes that apply `sample_transform` and `collate_fn`. With 0, the default, the thread that asks
        for batches applies them.
    transform_workers : int, optional
        Number of processes that apply `batch_transform`, with random numbers that depend on seed, epoch and batch. They
        are those of `sample_workers`; if both are given, the numbers must be equal. With None, the default, the thread
        that asks for batches applies it, also with `sample_workers`.

    Raises
    ------
    H5StreamError
        See `h5stream.errors`; wrong arguments are refused at once, not in the first epoch.

    Examples
    --------
    >>> import h5py, tempfile, os, numpy as np
    >>> path = os.path.join(tempfile.mkdtemp(), "a.h5")
    >>> with h5py.File(path, "w") as f:
    ...     f["x"] = np.arange(20, dtype="f4").reshape(10, 2)
    ...     f["y"] = np.arange(10)
    >>> loader = H5StreamLoader(path, batch_size=4, shuffle=True, fields=["x", "y"])
    >>> [len(y) for x, y in loader]
    [4, 4, 2]
    """

    _is_made = False

    # The type of a batch, as far as `fields` and the functions tell: a field that is named by a text is taken for a
    # tensor, and `Field(name)` leaves the type open.
    @overload
    def __init__(
        self: H5StreamLoader[torch.Tensor],
        dataset: DataSource,
        batch_size: int = ...,
        *,
        fields: str,
        **options: Unpack[PlainArguments],
    ) -> None: ...
    @overload
    def __init__(
        self: H5StreamLoader[list[torch.Tensor]],
        dataset: DataSource,
        batch_size: int = ...,
        *,
        fields: list[str] | tuple[str, ...],
        **options: Unpack[PlainArguments],
    ) -> None: ...
    @overload
    def __init__(
        self: H5StreamLoader[dict[str, Any]],
        dataset: DataSource,
        batch_size: int = ...,
        *,
        fields: Mapping[str, FieldLike],
        **options: Unpack[PlainArguments],
    ) -> None: ...
    @overload
    def __init__(
        self: H5StreamLoader[_T],
        dataset: DataSource,
        batch_size: int | None = ...,
        *,
        batch_transform: Callable[[Any], _T],
        fields: Fields = ...,
        collate_fn: Callable[[list[Any]], object] | None = ...,
        **options: Unpack[FunctionOptions],
    ) -> None: ...
    @overload
    def __init__(
        self: H5StreamLoader[_T],
        dataset: DataSource,
        batch_size: int | None = ...,
        *,
        collate_fn: Callable[[list[Any]], _T],
        fields: Fields = ...,
        **options: Unpack[FunctionOptions],
    ) -> None: ...
    @overload
    def __init__(
        self: H5StreamLoader[Any],
        dataset: DataSource,
        batch_size: int | None = ...,
        shuffle: bool | None = ...,
        sampler: Iterable[object] | None = ...,
        batch_sampler: Iterable[object] | None = ...,
        num_workers: int | None = ...,
        collate_fn: Callable[[list[Any]], object] | None = ...,
        pin_memory: bool = ...,
        drop_last: bool = ...,
        timeout: float = ...,
        worker_init_fn: Callable[[int], None] | None = ...,
        multiprocessing_context: object = ...,
        generator: torch.Generator | None = ...,
        *,
        fields: Fields = ...,
        batch_transform: None = ...,
        sample_transform: Callable[[Any], object] | None = ...,
        sample_workers: int | None = ...,
        transform_workers: int | None = ...,
        **options: Unpack[PlainOptions],
    ) -> None: ...
    def __init__(
        self,
        dataset: DataSource,
        batch_size: int | None = DEFAULT_BATCH_ROWS,
        shuffle: bool | None = None,
        sampler: Iterable[object] | None = None,
        batch_sampler: Iterable[object] | None = None,
        num_workers: int | None = None,
        collate_fn: Callable[[list[Any]], object] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: object = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        device: torch.device | str | None = None,
        fields: Fields = None,
        samples: SampleKind | None = None,
        seed: int | None = None,
        window: WindowRows = "auto",
        memory_budget: int | str | None = None,
        batch_transform: Callable[[Any], object] | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        storage_options: object = None,
        stage_to: str | os.PathLike[str] | None = None,
        on_error: Literal["raise", "skip"] = "raise",
        draw: Weighted | Balanced | Sized | int | OrderFactory | None = None,
        keep: Literal["auto", "never"] = "auto",
        sample_transform: Callable[[Any], object] | None = None,
        sample_workers: int | None = None,
        transform_workers: int | None = None,
    ) -> None:
        data = DataArguments(
            dataset=dataset,
            fields=fields,
            samples=samples,
            storage_options=storage_options,
            stage_to=stage_to,
        )
        sampling = SamplingArguments(
            batch_size=batch_size,
            shuffle=shuffle,
            sampler=sampler,
            batch_sampler=batch_sampler,
            drop_last=drop_last,
            generator=generator,
            seed=seed,
            window=window,
            draw=draw,
            rank=rank,
            world_size=world_size,
        )
        functions = FunctionArguments(
            collate_fn=collate_fn,
            batch_transform=batch_transform,
            sample_transform=sample_transform,
            worker_init_fn=worker_init_fn,
            sample_workers=sample_workers,
            transform_workers=transform_workers,
            prefetch_factor=prefetch_factor,
            multiprocessing_context=multiprocessing_context,
        )
        reading = ReadingArguments(
            num_workers=num_workers,
            memory_budget=memory_budget,
            keep=keep,
            on_error=on_error,
            timeout=timeout,
            device=device,
            pin_memory=pin_memory,
            pin_memory_device=pin_memory_device,
            persistent_workers=persistent_workers,
            in_order=in_order,
        )
        sampling, functions, reading = checked(data, sampling, functions, reading)
        self._make(data, sampling, functions, reading)

    def _make(
        self,
        data: DataArguments,
        sampling: SamplingArguments,
        functions: FunctionArguments,
        reading: ReadingArguments,
    ) -> None:
        """Open the dataset, and make the parts of the loader from its arguments."""
        opened, followed = data.opened(), None
        if sampling.is_listed:
            opened, sampling, followed = recognised(opened, sampling)
        settings = Settings(
            dataset=opened,
            stage_to=data.stage_to,
            shuffle=bool(sampling.shuffle),
            seed=0 if sampling.seed is None else sampling.seed,
            sampling=sampling,
            functions=functions,
            reading=reading,
        )
        if sampling.seed is None:  # several ranks would draw several
            is_alone = (sampling.ranks or current_ranks()).world_size == 1
            settings = replace(
                settings, seed=drawn_seed(sampling.generator, needed=is_alone and settings.draws_by_seed)
            )
        self.dataset, self._give_back = opened, _nothing
        if settings.stage_to is not None:
            from h5stream.staging import stage_layout  # imported here since few loaders stage

            copies, release = stage_layout(opened.layout, settings.stage_to)
            self.dataset, self._give_back = of_copies(opened, copies), weakref.finalize(self, release)
        layout = self.dataset.layout
        if functions.sample_transform is not None:
            hint_of_channels(functions.sample_transform, layout.fields)
        if functions.are_seeded:
            layout = with_seeds(layout)
        backend = None if reading.device is None else backend_for(reading.device)
        self._cursor = Cursor(settings, self.dataset, layout, followed)
        self._iterations = Iterations(settings, layout, self._cursor, backend)
        self._iterators: Living[LoaderIterator[Any]] = Living()
        self._counters: RunCounters | None = None
        self._settings = settings
        DataLoaderAttributes.__init__(self, settings)
        self.device = None if backend is None else backend.device
        self.num_workers, self.memory_budget = self.window_size.threads, self.window_size.memory_budget
        if reading.memory_budget is None:
            _without_budget.add(self)
        self._hints = data.hints(self.dataset.layout)  # for the first iteration
        if self._cursor.sampler_order is None:
            order = self._cursor.order(0)  # raises now, not in the first epoch
            if settings.shuffle and isinstance(order, EpochOrder):
                size, rows = order.settings, order.blocks.total_rows
                # A batch of all rows needs no mixing, and a window of all of them has it.
                if size.batch_size < len(self.dataset) and size.world_size * size.window_rows < rows:
                    warn_of_weak_shuffle(layout, order, self._cursor.sizing.budget_for)
        self._is_made = True

    def __setattr__(self, name: str, value: object) -> None:
        # DataLoader refuses some; here all settings are applied once, so later changes would have no effect.
        if self._is_made and name in _FIXED:
            raise ValueError(
                f"{name} attribute should not be set after {type(self).__name__} is initialized; make another loader"
            )
        super().__setattr__(name, value)

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        """Pickle as the arguments: the copy opens the files itself, and begins with the next epoch of this loader.

        An iterator in progress is not copied, and neither is a position within an epoch that a state restored.
        """
        return remade, (type(self), self._settings.travelling(self._cursor.seed), self._cursor.position[0].epoch)

    def __len__(self) -> int:
        """Return the batches of a whole epoch, the same on every rank; after a resume ``len(iter(loader))`` is less."""
        return self._cursor.batches()

    @property
    def seed(self) -> int:
        """The seed of the shuffle, and of all else that is drawn."""
        return int(self._cursor.seed)

    @property
    def window_size(self) -> Footprint:
        """The size of windows, and the memory that they need.

        Its `window_rows` and `first_window_rows` are the rows of a window, and of an epoch's first; `batch_nbytes` the
        bytes of a batch, `max_open_batches` the number of batches that are filled or ready at a time, `needed_nbytes`
        the memory in total, and `memory_budget` its limit.
        """
        return self._cursor.footprint

    @property
    def rank(self) -> int:
        """The rank whose part of each epoch this loader reads."""
        return self._cursor.ranks.rank

    @property
    def world_size(self) -> int:
        """The number of ranks that share an epoch."""
        return self._cursor.ranks.world_size

    @property
    def sampler(self) -> Any:
        """The sampler that was given, or the loader's own order of batches."""
        return sampler_of(self._cursor)

    @property
    def batch_sampler(self) -> Any:
        """The iterable of each batch's indices; None if samples come singly, as in DataLoader."""
        # Accelerate would silently make a stock DataLoader of the dataset and order, without `batch_transform`. It can
        # only be recognized by its frame.
        caller = inspect.currentframe()
        if caller and caller.f_back and caller.f_back.f_code.co_name == "skip_first_batches":
            raise OptionError(
                "skip_first_batches would read the rest of this epoch through a stock DataLoader, without reader "
                "threads, device= and batch_transform=. An H5StreamLoader goes on by itself: "
                "loader.load_state_dict(state), with the state that loader.state_dict() gave at the checkpoint; under "
                "transformers.Trainer with TrainingArguments(ignore_data_skip=True)"
            )
        return batch_sampler_of(self._cursor)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration.

        Without this call, the first iteration is epoch 0 and each one adds 1, so that every epoch is shuffled anew.

        Parameters
        ----------
        epoch : int
            The number of the epoch, 0 or more.

        Raises
        ------
        OptionError
            If `epoch` is no such number.
        """
        self._cursor.set_epoch(checked_number("set_epoch", epoch, 0, "a non-negative integer"))

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the newest iteration: a few numbers, and a fingerprint of the data and settings.

        It counts the batches that you got, not those that are held ready. A state at the end of an epoch is the
        beginning of the next. The states of all ranks are the same, so one of them is enough.

        Returns
        -------
        dict
            Numbers, texts and lists only, for JSON or ``torch.save``. ``state["epoch"]`` is the epoch that the next
            iteration is of; other entries may change between versions.
        """
        return self._cursor.state()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume from a saved state: the next iteration begins with the next batch, without reading earlier ones.

        With another number of ranks, the rest of the epoch is divided anew, and each row still comes once. The data may
        have another path; other data or settings are refused.

        Parameters
        ----------
        state_dict : dict
            What `state_dict` gave, on this rank or another.

        Raises
        ------
        StateError
            If the state does not fit; the message and the error's `changed` say what changed.
        OptionError
            If what is left cannot be divided among this number of ranks.

        Examples
        --------
        >>> import h5py, tempfile, os, numpy as np
        >>> path = os.path.join(tempfile.mkdtemp(), "a.h5")
        >>> with h5py.File(path, "w") as f:
        ...     f["x"] = np.arange(10)
        >>> loader = H5StreamLoader(path, batch_size=4)
        >>> next(iter(loader))
        tensor([0, 1, 2, 3])
        >>> later = H5StreamLoader(path, batch_size=4)
        >>> later.load_state_dict(loader.state_dict())
        >>> list(later)
        [tensor([4, 5, 6, 7]), tensor([8, 9])]
        """
        self._iterations.restore(state_dict)

    def __iter__(self) -> LoaderIterator[Batch]:
        """Start an epoch; any number of iterators may be in use at once."""
        if self._iterations.renew_after_fork():
            self._iterators = Living()
        settings, sampling = self._settings, self._settings.sampling
        if settings.reading.memory_budget is None:
            self._make_room()
        for text in self._hints:
            hint(text)
        is_default = self.batch_size == DEFAULT_BATCH_ROWS and sampling.factory is None and sampling.sized is None
        if is_default and self._cursor.sampler_order is None and len(self) == 1 < len(self.dataset):
            hint(
                f"an epoch is one batch, since it has no more samples than batch_size={DEFAULT_BATCH_ROWS}, the "
                "default; a smaller one gives more batches"
            )
        iterator = self._iterations.begin(self)
        self._counters = iterator.counters
        self._iterators.add(iterator)
        return iterator

    def __next__(self) -> NoReturn:
        """Raise for ``next(loader)``: only iterators, which belong to one epoch, yield batches."""
        raise OptionError("a loader is no iterator: write iterator = iter(loader), then next(iterator)")

    def __getitem__(self, index: object) -> NoReturn:
        """Raise for ``loader[index]``, as a stock DataLoader over a loader would call it."""
        raise OptionError(
            f"an H5StreamLoader has no sample {index!r}: it gives batches itself, in place of a DataLoader; "
            "loader.dataset, an H5Dataset, has samples by number, also for a DataLoader"
        )

    def copy_into(self, static: object) -> Iterator[int]:
        """Stream an epoch into fixed tensors, as a captured CUDA graph needs them.

        Each batch is copied on the current stream, so a graph that is replayed next on this stream sees the batch.

        Parameters
        ----------
        static : Tensor, or list, tuple or dict of tensors
            The structure of a batch, with at least `batch_size` rows in each tensor.

        Yields
        ------
        int
            The rows that were copied; fewer than `batch_size` only in a last batch that is not full.
        """
        for batch in self:
            yield copy_batch(batch, static)

    def stats(self) -> LoaderStatistics:
        """Return the statistics of the newest iteration.

        Returns
        -------
        LoaderStatistics
            Counts, bytes and seconds, and what high and low mean; all 0 before the first iteration.
        """
        if self._counters is None:
            return LoaderStatistics()
        return self._counters.snapshot(self._iterations.asked_ahead())

    @classmethod
    def from_profile(
        cls, profile: str | Path, dataset: DataSource | None = None, **arguments: Any
    ) -> H5StreamLoader[Any]:
        """Make a loader with the settings that `h5stream tune` wrote; arguments given here take precedence.

        It shuffles, as `tune` did, unless the profile says otherwise, or ``shuffle=False`` or a sampler is given here.

        Parameters
        ----------
        profile : path
            The TOML file.
        dataset : path, H5Dataset, or sequence of them, optional
            The data; by default the file that `tune` measured.
        **arguments
            Further arguments of `H5StreamLoader`.

        Returns
        -------
        H5StreamLoader
            The loader.

        Raises
        ------
        OptionError
            If the file does not exist, is no profile, or has settings that a profile cannot have.
        """
        from h5stream.profiles import arguments_from

        return cls(**arguments_from(profile, dataset, arguments))

    @property
    def is_drawn(self) -> bool:
        """Whether `draw=` or a `Mixture` decides how often each sample comes in an epoch."""
        return self._settings.is_drawn

    @property
    def is_idle(self) -> bool:
        """Whether no epoch is in progress."""
        return all(iterator.is_closed for iterator in self._iterators)

    @property
    def held_nbytes(self) -> int:
        """Bytes of the batch buffers that this loader holds, filled or free."""
        return self._iterations.engine.held_nbytes

    def trim(self) -> None:
        """Free the memory of unused batch buffers; the next epoch allocates buffers as needed.

        Data read ahead for the next epoch is freed, too.
        """
        self._iterations.trim()

    def _make_room(self) -> None:
        """Trim idle loaders without a budget, the largest first, until this loader fits into the default budget.

        Only memory is shared, never the size of a window, which is part of the order and must not depend on other
        loaders. So loaders that take turns, as for training and validation, hold one default budget together; loaders
        that run at the same time each hold what they need.
        """
        idle, held_nbytes = [], self.window_size.needed_nbytes
        for other in _without_budget:
            if other is not self:
                held_nbytes += (nbytes := other.held_nbytes)
                if other.is_idle:
                    idle.append((nbytes, other))
        for nbytes, other in sorted(idle, key=lambda pair: -pair[0]):
            if held_nbytes <= self.memory_budget:
                return
            other.trim()
            held_nbytes -= nbytes

    def close(self) -> None:
        """End all iterators and their threads, free their memory and close the files."""
        for iterator in self._iterators:
            iterator.close()
        self._iterations.close()
        self._give_back()
        return_freed_memory()

    def __enter__(self) -> Self:
        """Close the loader when the block ends."""
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return (
            f"H5StreamLoader({self.dataset!r}, batch_size={self.batch_size}, shuffle={self.shuffle}, "
            f"window_rows={self.window_size.window_rows:,}, num_workers={self.num_workers})"
        )


_without_budget: Living[H5StreamLoader[Any]] = Living()
"""All loaders of this process that were given no budget; see `H5StreamLoader._make_room`."""


_ARGUMENTS = tuple(inspect.signature(H5StreamLoader.__init__).parameters)

_FIXED = (OLD | {*_ARGUMENTS}) - {"self", "timeout"}
"""Attributes that cannot be changed after initialization: all arguments but `timeout`, which is read for each batch."""


def _nothing() -> None:
    """Give nothing back: the loader has no staged copies."""
