"""`H5StreamLoader`: takes the place of ``torch.utils.data.DataLoader``. Puts the rooms together."""

from __future__ import annotations

import inspect
import logging
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack

import torch
from torch.utils.data import Dataset

from h5stream.arguments import OLD, OldNames, with_new_names
from h5stream.cursor import Cursor
from h5stream.device.cuda import backend_for
from h5stream.dropped import Living
from h5stream.engine.footprint import Footprint, WindowRows
from h5stream.engine.statistics import LoaderStatistics, RunCounters
from h5stream.iteration import Iterations, LoaderIterator, engine_for
from h5stream.order.draw import Balanced, Sized, Weighted
from h5stream.order.users import OrderFactory
from h5stream.route import route_for, sizing_for
from h5stream.settings import DEFAULT_BATCH_ROWS, Settings, checked_epoch, remade
from h5stream.storage.extents import SampleKind
from h5stream.storage.fields import Fields, Source
from h5stream.structure import copy_batch
from h5stream.weighting import epoch_draws, recognised, sized_batches


class H5StreamLoader:
    """Streams shuffled batches from HDF5 files; every parameter of ``DataLoader`` keeps its name and place.

    Parameters
    ----------
    dataset : path, pattern, open h5py object, H5Dataset, or sequence of them
        The files, or datasets over them; see `H5Dataset`. Several in a list or a ``ConcatDataset`` are read as one. A
        ``Subset`` gives its rows in its own order with ``shuffle=False``, and as often as it names them; a sampler's
        indices are places in it.
    batch_size : int or None
        Rows of a batch; up to the default of 8,192 samples are one batch. None gives single samples, as in DataLoader.
    shuffle : bool, optional
        True for the two-level shuffle, another one each epoch. Default False.
    sampler, batch_sampler : iterable, optional
        An order of your own, as in DataLoader. Rows that lie apart cost a chunk each; the loader's own
        shuffle does not. torch's own random samplers are read as what they mean, such as `Weighted`, in that shuffle.
    num_workers : int, optional
        Reader threads. By default as many as the machine allows and scratch fits; 0 reads in the asking thread.
    collate_fn : callable, optional
        Gets a list of samples, as in DataLoader. They are taken apart one by one for it, which costs more than
        reading them; `batch_transform` works on whole batches.
    pin_memory : bool
        Pinned host batches, for copies of your own. It has no effect without a CUDA device, as in
        DataLoader, and with `device`, whose slots are always pinned.
    drop_last : bool
        Leave out the last batch if it is not full.
    timeout : float
        Seconds to wait for a batch; 0 waits as long as it takes. Has no effect with ``num_workers=0``.
    worker_init_fn : callable, optional
        Called with the thread's number in each reader thread before it reads; with `sample_workers`, with the
        process's number in each of those instead.
    generator : torch.Generator, optional
        The seed is drawn from it, unless `seed` is given, which several ranks need: each would draw its own.
    prefetch_factor : int, optional
        Batches that are held ready on `device`, or that each of `sample_workers` has at a time. Has no effect on the
        host otherwise, where a window is read ahead.
    persistent_workers : bool
        Has no effect: readers are threads, and the next epoch's first window is read while this one's last batches
        are consumed. It is held until that epoch begins, the loader is closed or gone.
    multiprocessing_context : str or context, optional
        How `sample_workers` are started: "spawn" (the default), "forkserver" or "fork". Readers are threads.
    pin_memory_device, in_order : optional
        Have no effect: batches always come in order.
    device : torch.device or str, optional
        Where batches are wanted. On a GPU every batch crosses in one copy, beside the training step,
        `prefetch_factor` (default 2) batches ahead; casts and `batch_transform` run there, on a side stream.
    fields : str, Field, sequence or mapping, optional
        What a sample is made of; see `H5Dataset`. A batch of a sequence of fields is a list, as DataLoader's is.
    samples : Sequences, Rows, Objects, Table or Boxes, optional
        What a sample is, where it is not a row: a sequence of rows that stays inside a group, a file or an episode, or
        a row of any of many groups.
    seed : int, optional
        Of the shuffle and all else that is drawn. By default drawn once, from `generator` or torch's default generator,
        so that ``torch.manual_seed`` repeats a run; with several ranks it is 0. Loaders over two files do *not* give
        the same order for the same seed where rows, chunks or windows differ: never zip them; ``Field(..., file=)``
        makes them fields of one loader.
    window : int, "auto" or "all"
        Rows that are shuffled with one another. ``"auto"`` is the most of 4 batches, 1,024 blocks and 256 MiB, of which
        two fit 2 GiB, whatever `memory_budget` is; where it is too small for them, windows are smaller and the log says
        so. ``"all"`` is an exact global shuffle.
    memory_budget : int or str, optional
        Bytes that slots, windows, plans, scratch and kept rows may take together, as a number or a text such as
        ``"4GiB"``.
        Default 2 GiB, at most a quarter of the machine's, which loaders that were given none share.
    batch_transform : callable, optional
        Applied to each whole batch, in the thread that asks for it. The batch is its own to change: in place
        (``x.sub_(mean).div_(std)``) is several times as fast as new memory for each large result. torchvision's and
        albumentations' transforms are for single samples, which `sample_transform` is for.
    rank, world_size : int, optional
        Which part of each epoch is ours; every rank has the same number of batches. By default those of the
        `torch.distributed` process group, if there is one when an epoch begins.
    storage_options : dict or store, optional
        What opens the stores of addresses; see `H5Dataset`, which also takes ``cache=``.
    stage_to : path, optional
        Copy the files, or objects, there first (`h5stream.stage`) and read the copies, leased until it is closed or
        gone. On unfiltered copies ``window="all"`` is cheap.
    on_error : "raise" or "skip"
        What a corrupt chunk does: fail the batch that needs it, or leave its rows out, with one warning an epoch and
        a count in `stats`. A batch of which nothing is left is left out too; with several ranks, it fails.
    draw : Weighted, Balanced, Sized, int or callable, optional
        Which samples an epoch takes, how often, and in which batches; by default each once, `batch_size` at a time.
        `Weighted` draws each by its weight, `Balanced` as many of each class, and a number takes the next so many
        samples of an endless line of shuffled epochs. With these, ``shuffle`` is True unless False is given, and
        samples come in the loader's own windows, whose chunks are decoded once however often samples come. `Sized` cuts
        batches by the rows of a ragged field, of samples of like lengths if asked for, of whatever another draw takes.
        A function makes orders of your own: called as ``draw(blocks, epoch, ranks)`` for each epoch, it returns an
        `h5stream.order.Order`, which names rows by their places in the dataset. No batch may have more than
        `batch_size` rows, nor a window more than `window`. It takes no `shuffle` or sampler.
    keep : "auto" or "never"
        Whether rows stay in memory once they are decoded, as many as `memory_budget` has room for beside all else:
        later epochs gather them instead of decoding them again, in the same order. Loaders of this process with the
        same fields of the same files share them. They go with the last of these or its `close`, and while others that
        were given no budget need the room.
    sample_transform : callable, optional
        Applied to each sample, as ``H5Dataset[i]`` gives it, before samples are collated. What it draws with Python's,
        NumPy's or torch's global generators is a function of seed, epoch and sample, however many workers there are.
    sample_workers : int, optional
        Processes that apply `sample_transform` and `collate_fn`, or one of them. Default 0: done in the thread that
        asks for batches.
    transform_workers : int, optional
        Processes that apply `batch_transform`, with random numbers that are a function of seed, epoch and batch; the
        same ones as `sample_workers`. Default None: applied in the thread that asks for batches.
    **old
        Names of 0.2, which will be removed in 0.4, each with a `DeprecationWarning` that says what to write:
        `transform` is ``batch_transform=``; `order`, `max_batch_rows`, `bucket`, `weights`, `balance`,
        `samples_per_epoch` and `replacement` are ``draw=``; `window_device` is ``device=``; `allow_external` is
        ``H5Dataset(..., allow_external=True)``; `isolation` has no effect.

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

    # Arguments that are attributes as they were given, as in DataLoader.
    shuffle: bool
    collate_fn: Callable[[list[Any]], Any] | None
    pin_memory: bool
    drop_last: bool
    timeout: float
    worker_init_fn: Callable[[int], None] | None
    multiprocessing_context: Any
    generator: torch.Generator | None
    prefetch_factor: int | None
    persistent_workers: bool
    pin_memory_device: str
    in_order: bool
    batch_transform: Callable[[Any], Any] | None

    _made = False

    def __init__(
        self,
        dataset: Source | Dataset[Any] | Sequence[Dataset[Any]],
        batch_size: int | None = DEFAULT_BATCH_ROWS,
        shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        num_workers: int | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
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
        batch_transform: Callable[[Any], Any] | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        storage_options: Any = None,
        stage_to: str | os.PathLike[str] | None = None,
        on_error: Literal["raise", "skip"] = "raise",
        draw: Weighted | Balanced | Sized | int | OrderFactory | None = None,
        keep: Literal["auto", "never"] = "auto",
        sample_transform: Callable[[Any], Any] | None = None,
        sample_workers: int | None = None,
        transform_workers: int | None = None,
        **old: Unpack[OldNames],
    ) -> None:
        given = dict(locals())  # first, so that it is the arguments
        del given["self"]
        self._make(Settings.of(**given))

    def _make(self, asked: Settings) -> None:
        """Put the rooms together."""
        settings, followed = recognised(asked.opened())
        settings = settings.with_seed()
        self.dataset, self._give_back = settings.staged(self)
        layout = settings.seeded(self.dataset.layout)
        blocks = self.dataset.blocks_for(settings.shuffle)
        draws = epoch_draws(settings, self.dataset, blocks)
        backend = None if settings.device is None else backend_for(settings.device)
        sized = sized_batches(self.dataset, settings.sized)
        listed = settings.given_order(self.dataset)
        self._sizing, given = sizing_for(settings, self.dataset, listed, sized, draws)
        footprint = self._sizing.choose(settings.window)
        route = route_for(settings, layout, footprint, self._sizing.most_rows, backend)
        self._cursor = Cursor(
            settings,
            self.dataset,
            given,
            footprint,
            sized,
            blocks=blocks,
            draws=None if draws is None else draws.make(),  # not before there is known to be room for it
            followed=followed,
        )
        engine = engine_for(settings, layout, footprint, route, self._cursor)
        self._iterations = Iterations(engine, route, self._cursor, footprint)
        self._iterators: Living[LoaderIterator] = Living()
        self._counters: RunCounters | None = None
        self._settings, self.batch_size, self._unnamed = settings, settings.batch_rows, asked.names_fields(layout)
        vars(self).update({name: getattr(settings, name) for name in _AS_GIVEN})
        self.num_workers, self.memory_budget = footprint.threads, footprint.memory_budget
        self.device = None if backend is None else backend.device
        if settings.memory_budget is None:
            _without_budget.add(self)
        self._cursor.check(self._sizing.budget_for)  # complains now, not in the first epoch
        self._made = True

    def __setattr__(self, name: str, value: Any) -> None:
        # DataLoader refuses some; here all is worked out once, so that nothing else would be heard of again.
        if self._made and name in _FIXED:
            raise ValueError(
                f"{name} attribute should not be set after {type(self).__name__} is initialized; make another loader, "
                "which costs as much as opening the files"
            )
        super().__setattr__(name, value)

    if not TYPE_CHECKING:  # so that a type checker finds names that are not there

        def __getattr__(self, name: str) -> Any:
            if name == "transform":  # the old name of an attribute
                return with_new_names({name: self.batch_transform}, stacklevel=2).get("batch_transform")
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as the arguments: the copy opens the files itself, and begins with the epoch that is next here.

        An iterator that is under way stays behind, and so does what a state brought back within an epoch.
        """
        return remade, (type(self), self._settings.travelling(self._cursor.seed_of_copies), self._cursor.next_epoch)

    def __len__(self) -> int:
        """Batches of an epoch; the same on every rank."""
        return len(self._cursor)

    @property
    def seed(self) -> int:
        """The seed of the shuffle, and of all else that is drawn."""
        return self._cursor.seed

    @property
    def window_size(self) -> Footprint:
        """How much is read together, and what that takes."""
        return self._iterations.footprint

    @property
    def rank(self) -> int:
        """Which part of each epoch is ours."""
        return self._cursor.ranks.rank

    @property
    def world_size(self) -> int:
        """How many parts there are."""
        return self._cursor.ranks.world_size

    @property
    def sampler(self) -> Any:
        """The sampler that was given, or the loader's own order of batches."""
        return self._cursor.sampler

    @property
    def batch_sampler(self) -> Any:
        """What gives the indices of each batch; None where samples come singly, as in DataLoader."""
        return self._cursor.batch_sampler

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration.

        Without it the first iteration is epoch 0 and each one adds one, so that every epoch is shuffled anew.

        Parameters
        ----------
        epoch : int
            Its number, 0 or more.

        Raises
        ------
        OptionError
            If it is no such number.
        """
        self._cursor.set_epoch(checked_epoch(epoch))

    def state_dict(self) -> dict[str, Any]:
        """Say where the newest iteration is: a few numbers and a fingerprint of the data and settings.

        What counts is the batches that were given to you, not those that are held ready. A state at the end of
        an epoch is the beginning of the next. All ranks' states are alike, so one of them is enough.

        Returns
        -------
        dict
            Numbers, texts and lists only, for JSON or ``torch.save``.
        """
        return self._cursor.state()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where a state was saved: the next iteration begins with the batch after it, without replay.

        With another number of ranks, what all ranks had left is cut anew, and each row still comes once. The data
        may lie at another path; data or settings that differ are refused.

        Parameters
        ----------
        state_dict : dict
            What `state_dict` gave, on this rank or another.

        Raises
        ------
        StateError
            If the state does not fit; the message says what changed, and so does its `changed`.
        OptionError
            If what is left cannot be cut for this number of ranks.

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
        self._iterations.resize(self._cursor.restore(state_dict, self._sizing.taken_over))

    def __iter__(self) -> LoaderIterator:
        """Start an epoch; any number of iterators may be in use at once."""
        if self._iterations.renew_after_fork():
            self._iterators = Living()
        if self._settings.memory_budget is None:
            self._make_room()
        if self._unnamed:
            _say_once(
                "without fields= a batch is a dict by name; to unpack it, as in `for x, y in loader`: fields=%s",
                self._unnamed,
            )
        if self._settings.has_usual_batches and len(self) == 1 < len(self.dataset):
            _say_once(
                "an epoch is one batch, since it has no more samples than batch_size=%s, the default; a smaller one "
                "gives more batches",
                DEFAULT_BATCH_ROWS,
            )
        iterator = self._iterations.begin(self)
        self._counters = iterator.counters
        self._iterators.add(iterator)
        return iterator

    def copy_into(self, static: Any) -> Iterator[int]:
        """Stream an epoch into tensors that stay where they are, as a captured CUDA graph needs them.

        Each batch is copied on the current stream, so that a graph that is replayed there next sees it.

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
        """Say what was done since the newest iteration began.

        Returns
        -------
        LoaderStatistics
            Counts, bytes and seconds, and what high and low mean; all 0 before the first iteration.
        """
        return LoaderStatistics() if self._counters is None else self._counters.snapshot()

    @classmethod
    def from_profile(cls, profile: str | Path, dataset: Any = None, **arguments: Any) -> H5StreamLoader:
        """Make a loader with the settings that `h5stream tune` wrote; what is given here goes before them.

        It shuffles, as `tune` did, unless the profile says otherwise, or ``shuffle=False`` or a sampler is given here.

        Parameters
        ----------
        profile : path
            The TOML file.
        dataset : path, H5Dataset, or sequence of them, optional
            The data; by default the file that was tuned for.
        **arguments
            Further arguments of `H5StreamLoader`.

        Returns
        -------
        H5StreamLoader
            The loader.

        Raises
        ------
        OptionError
            If the file is not there, is no profile, or sets what a profile does not set.
        """
        from h5stream.profiles import arguments_from

        found = arguments_from(profile, dataset, with_new_names(arguments, stacklevel=2))
        with warnings.catch_warnings():  # which were given right now
            warnings.filterwarnings("ignore", "allow_external= will be removed", DeprecationWarning)
            return cls(**found)

    @property
    def is_drawn(self) -> bool:
        """Whether its arguments, or a `Mixture`, say how often each sample comes in an epoch."""
        return self._settings.is_drawn

    @property
    def is_idle(self) -> bool:
        """Whether no epoch is under way."""
        return all(iterator.is_closed for iterator in self._iterators)

    @property
    def held_nbytes(self) -> int:
        """Bytes of the slots that this loader has, filled or free; without those that were given back."""
        return self._iterations.engine.held_nbytes

    def trim(self) -> None:
        """Let go of the memory of slots that are not in use; the next epoch takes what it needs anew.

        That goes for what was read ahead, too: until the next epoch begins, it is in use by no batch of yours.
        """
        self._iterations.trim()

    def _make_room(self) -> None:
        """Let idle loaders without a budget let go of their slots, the largest first, until what this one needs fits.

        Only memory is shared, never the size of a window: that is part of the order, which must not depend on what else
        is open. So loaders that take turns, as training and validation do, hold one default budget together; those that
        run at the same time hold what each of them needs.
        """
        held = {other: other.held_nbytes for other in _without_budget if other is not self}
        for other in sorted((one for one in held if one.is_idle), key=lambda one: -held[one]):
            if sum(held.values()) + self.window_size.needed_nbytes <= self.memory_budget:
                return
            other.trim()
            held[other] = 0

    def close(self) -> None:
        """End all iterators and their threads, and let go of the slots and files."""
        for iterator in self._iterators:
            iterator.close()
        self._iterations.close()
        self._give_back()

    def __enter__(self) -> H5StreamLoader:
        """Close the loader when the block ends."""
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return (
            f"H5StreamLoader({self.dataset!r}, batch_size={self.batch_size}, shuffle={self.shuffle}, "
            f"window_rows={self.window_size.window_rows:,}, num_workers={self.num_workers})"
        )


_log = logging.getLogger("h5stream.defaults")


_said: list[str] = []

_without_budget: Living[H5StreamLoader] = Living()
"""All loaders of this process that were given no budget; see `H5StreamLoader._make_room`."""


def _say_once(what: str, *values: Any) -> None:
    """Say, once per process, what comes of an argument that was not given."""
    if what not in _said:
        _said.append(what)
        _log.warning(what, *values)


_AS_GIVEN = tuple(H5StreamLoader.__annotations__)
"""Arguments that are attributes as they were given."""

_FIXED = (frozenset(inspect.signature(H5StreamLoader.__init__).parameters) | OLD.keys()) - {"self", "timeout", "old"}
"""What cannot be changed once a loader is made: all arguments but `timeout`, which is looked at for each batch."""
