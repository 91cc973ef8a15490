"""Stream random data with random options for a while, and compare rows, bytes and orders with h5py and DataLoader.

    python tools/fuzz_loader.py --minutes 30
    python tools/fuzz_loader.py --seed 1234 --minutes 0     # one round again

A round makes files, groups or linked files, and loaders over them with the same options but for their threads; it reads
an epoch, breaks off, resumes (also with other ranks), goes back, closes in the loop, or reads two epochs at once. Sizes
that only large data reach (cut chunks, pieces, 64-bit row numbers, datasets that are not kept) are made small in some
rounds. Ends with status 1 if any round failed; a line for each failure has the seed that repeats it.
"""

from __future__ import annotations

import argparse
import collections
import faulthandler
import gc
import itertools
import json
import logging
import operator
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import h5py
import hdf5plugin
import numpy as np
import torch
from torch.utils.data import ConcatDataset, DataLoader, Subset

from h5stream import Field, H5Dataset, H5StreamLoader
from h5stream.engine import footprint, reader, sizing
from h5stream.errors import BudgetError, LoaderClosedError, OptionError
from h5stream.order import blocks, places

HANG_S = 90
"""Seconds that a round may take."""

STORAGE: tuple[dict[str, Any], ...] = (
    {},
    {"compression": "gzip"},
    {"compression": "gzip", "shuffle": True, "fletcher32": True},
    {"compression": "lzf"},
    {"scaleoffset": 0},
    dict(hdf5plugin.LZ4()),
    dict(hdf5plugin.Zstd()),
)

SMALL: tuple[tuple[Any, str, Sequence[int]], ...] = (
    (sizing, "KEEP_NBYTES", (-1, 400)),
    (reader, "ASKING_ROWS", (0, 50)),
    (blocks, "WHOLE_NBYTES", (0, 64)),
    (blocks, "BLOCK_NBYTES", (16, 64, 300)),
    (blocks, "SMALL_NBYTES", (-1, 500)),
    (places, "_MOST_32", (20, 100)),
    (places, "PIECE", (1, 7, 64)),
    (places, "MAPPED_NBYTES", (1,)),
    (footprint, "AUTO_NBYTES", (100, 1000)),
    (footprint, "AUTO_BLOCKS", (2, 5)),
    (footprint, "FIRST_NBYTES", (50,)),
    (footprint, "FIRST_BLOCKS", (1, 3)),
    (footprint, "FILE_ORDER_NBYTES", (100, 1000)),
)
"""Limits that only large data reach, and what they are in some rounds."""

Batches = list[list[int]]


class RefusedError(Exception):
    """The options cannot be had together, and the loader said so."""


class HangError(BaseException):
    """The round takes too long; not an error that what is tested could take for one of its own."""


class Data:
    """Random datasets in random files, and what h5py reads of them."""

    def __init__(self, rng: random.Random, folder: Path) -> None:
        self.rng, self.folder = rng, folder
        self.kinds = ["row", *rng.sample(["array", "texts", "ragged", "member", "columns"], rng.randint(0, 2))]
        self.lengths = [rng.choice([0, 1, 7, rng.randint(1, 80), 200]) for _ in range(rng.randint(1, 4))]
        self.lengths[0] = max(1, self.lengths[0])
        self.rows, self.how = sum(self.lengths), rng.choice(["files", "groups", "objects", "concat"])
        self.row_shape = tuple(rng.randint(1, 6) for _ in range(rng.randint(0, 2)))
        self.dtype = rng.choice(["u1", "<i2", ">i4", "<f4", ">f8", "<i8"])
        self.columns: Any = rng.choice([slice(1, 4), [0, 4, 5], [7], slice(0, 8)])
        self.theirs: dict[str, list[Any]] = {kind: [] for kind in self.kinds}
        self.places = [self._write(number, rows) for number, rows in enumerate(self.lengths)]
        self.values = {kind: np.concatenate(arrays) for kind, arrays in self.theirs.items()}

    def _write(self, number: int, rows: int) -> tuple[str, str]:
        together = self.how == "groups" or (self.how in ("objects", "concat") and self.rng.random() < 0.5)
        name, group = ("all.h5", f"g{number}") if together else (f"{number}.h5", "/")
        with h5py.File(self.folder / name, "a", libver=self.rng.choice(["earliest", "latest"])) as file:
            for kind in self.kinds:
                self._write_field(file.require_group(group), kind, number, rows)
        return str(self.folder / name), group

    def _write_field(self, group: Any, kind: str, number: int, rows: int) -> None:
        rng = self.rng
        values = self._values_of(kind, number, rows)
        where = group
        link = rng.choice(["none", "none", "soft", "external"])
        if link == "external":
            path = self.folder / f"linked{rng.randint(0, 1)}.h5"
            with h5py.File(path, "a") as other:
                self._store(other, f"{number}{kind}", values)
            where[kind] = h5py.ExternalLink(path.name, f"{number}{kind}")
        elif link == "soft":
            self._store(where, f"{kind}_behind", values)
            where[kind] = h5py.SoftLink(f"{where.name.rstrip('/')}/{kind}_behind")
        else:
            self._store(where, kind, values)
        read = where[kind][()]
        read = read["b"] if kind == "member" else read[:, self.columns] if kind == "columns" else read
        self.theirs[kind].append(read)

    def _store(self, group: Any, name: str, values: Any) -> None:
        rng = self.rng
        plain = values.dtype.kind in "iuf"
        options: dict[str, Any] = dict(rng.choice(STORAGE))
        if values.dtype.kind == "O" or ("scaleoffset" in options and values.dtype.kind not in "iu"):
            options = {}
        if options or rng.random() < 0.5:
            shape = (rng.randint(1, max(1, len(values)) + 3), *(rng.randint(1, n) for n in values.shape[1:]))
            options |= {"chunks": shape, "maxshape": (None, *values.shape[1:])}
        dataset = group.create_dataset(name, values.shape, values.dtype, **options)
        if plain and "chunks" in options and "behind" not in name and not name.endswith("row") and rng.random() < 0.2:
            dataset[: len(values) // 2] = values[: len(values) // 2]  # the other chunks are missing
        elif "ragged" in name:
            for k, value in enumerate(
                values
            ):  # h5py takes one value, or as many of one length, for an array of numbers
                dataset[k] = value
        elif len(values):
            dataset[...] = values

    def _values_of(self, kind: str, number: int, rows: int) -> Any:
        first = sum(self.lengths[:number])
        source = np.random.default_rng(self.rng.getrandbits(32))
        if kind == "row":
            return np.arange(first, first + rows)
        if kind == "array":
            return source.integers(0, 100, (rows, *self.row_shape)).astype(self.dtype)
        if kind == "columns":
            return source.integers(0, 100, (rows, 8)).astype(self.dtype)
        if kind == "member":
            stored = np.zeros(rows, dtype=[("a", "u1"), ("b", self.dtype, (2,)), ("c", "<f8")])
            stored["b"] = source.integers(0, 100, (rows, 2))
            return stored
        values = np.empty(rows, dtype=h5py.string_dtype() if kind == "texts" else h5py.vlen_dtype(np.dtype("<i4")))
        for k in range(rows):
            values[k] = f"text {first + k}" if kind == "texts" else np.arange(k % 5, dtype="<i4")
        return values

    def dataset(self) -> H5Dataset:
        """Open the data, or some of its rows, as one dataset."""
        if self.how == "files" and all(group == "/" for _, group in self.places):
            return H5Dataset([path for path, _ in self.places], self._fields("/"), allow_external=True)
        parts = [
            H5Dataset(path, self._fields(group), allow_external=True)
            for (path, group), rows in zip(self.places, self.lengths, strict=True)
            if rows
        ]
        return H5Dataset(ConcatDataset(parts) if self.how == "concat" else parts)

    def _fields(self, group: str) -> dict[str, Any]:
        names = {kind: f"{group.rstrip('/')}/{kind}" for kind in self.kinds}
        if "member" in names:
            names["member"] += ":b"
        return {k: Field(name, columns=self.columns) if k == "columns" else name for k, name in names.items()}

    def rows_of(self, batch: Mapping[str, Any], single: bool) -> list[int]:
        """Compare a batch with what h5py read; give its rows."""
        rows = batch["row"].reshape(-1).numpy()
        for kind in self.kinds:
            theirs = self.values[kind][rows]
            ours: Any = [batch[kind]] if single else batch[kind]
            assert len(ours) == len(rows), f"{kind} has {len(ours)} rows of {len(rows)}"
            if theirs.dtype.kind == "O":
                alike = all(map(np.array_equal if kind == "ragged" else operator.eq, ours, theirs))
            else:
                mine = (ours[0][None] if single else ours).numpy()
                theirs = theirs.astype(theirs.dtype.newbyteorder("="))
                alike = mine.dtype == theirs.dtype and mine.shape == theirs.shape and mine.tobytes() == theirs.tobytes()
            assert alike, f"{kind} of rows {rows.tolist()[:10]} differs from h5py"
        return list(rows.tolist())


class NoSize:
    """A batch sampler that does not say how large its batches are."""

    def __init__(self, batches: Batches) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


class Round:
    """Data, the options of loaders over them, and what these must give."""

    def __init__(self, rng: random.Random, folder: Path) -> None:
        self.rng = rng
        self.data = Data(rng, folder)
        dataset = self.data.dataset()
        self.chosen = list(range(self.data.rows))
        choice = rng.choice(["all", "all", "some", "subset"])
        if choice == "some":
            self.chosen = sorted(rng.sample(self.chosen, rng.randint(1, len(self.chosen))))
            dataset = dataset.subset(self.chosen)
        self.dataset: Any = dataset
        if choice == "subset":
            self.chosen = rng.choices(self.chosen, k=rng.randint(1, 100))
            self.dataset = Subset(dataset, self.chosen)
        self.options, self.listed = self._options(folder)
        self.single = self.options["batch_size"] is None and "batch_sampler" not in self.options
        self.ranks = 1 if self.listed is not None or rng.random() < 0.6 else rng.randint(2, 3)

    def _options(self, folder: Path) -> tuple[dict[str, Any], Batches | None]:
        rng, count = self.rng, len(self.chosen)
        size = rng.choice([None, 1, rng.randint(1, 20), rng.randint(1, count), 500])
        window: Any = rng.choice(["auto", "auto", "all", rng.randint(1, count + 5)])
        options: dict[str, Any] = {"batch_size": size, "seed": rng.getrandbits(70), "window": window}
        if rng.random() < 0.3:
            options["memory_budget"] = int(2 ** rng.uniform(10, 22))
        if rng.random() < 0.1:
            options["on_error"] = "skip"
        if rng.random() < 0.05:
            options["stage_to"] = folder / "staged"
        kind = rng.choice(["own", "own", "own", "sampler", "batches", "sizeless"])
        drawn = [rng.choices(range(count), k=rng.randint(1, 20)) for _ in range(rng.randint(1, 12))]
        if kind == "sizeless":
            options.pop("memory_budget", None)  # only the loader knows how much room a small one gives
        if kind in ("batches", "sizeless"):
            options |= {"batch_size": None, "batch_sampler": NoSize(drawn) if kind == "sizeless" else drawn}
            return options, [[self.chosen[k] for k in batch] for batch in drawn]
        options["drop_last"] = size is not None and rng.random() < 0.3
        if kind == "sampler":
            options["sampler"] = indices = list(itertools.chain(*drawn))
            return options, _cut([self.chosen[k] for k in indices], size or 1, options["drop_last"])
        options["shuffle"] = rng.random() < 0.7
        return options, None

    def loader(
        self, threads: int | None = None, rank: int = 0, ranks: int | None = None, **options: Any
    ) -> H5StreamLoader:
        """Make a loader; with the budget that it says would do, where it refuses the one that it was given."""
        given = {**self.options, "num_workers": self.rng.choice([0, 1, 3]) if threads is None else threads, **options}
        ranks = self.ranks if ranks is None else ranks
        if self.listed is None:
            given |= {"rank": rank, "world_size": ranks}
        try:
            try:
                return H5StreamLoader(self.dataset, **given)
            except BudgetError as error:
                self.options["memory_budget"] = given["memory_budget"] = error.needed
                return H5StreamLoader(self.dataset, **given)
        except OptionError as error:
            if ranks > 1 or given.get("drop_last"):
                raise RefusedError from error  # there may be too few rows for it
            raise

    def epoch(self, loader: H5StreamLoader, most: int | None = None) -> Batches:
        """Give the rows of an epoch, or of its first batches; in single samples, of each."""
        return [self.data.rows_of(batch, self.single) for batch in itertools.islice(iter(loader), most)]

    def reference(self, epoch: int, rank: int = 0) -> Batches:
        """Give the rows of an epoch, read by the thread that asks, in this process."""
        with self.loader(0, rank) as loader:
            loader.set_epoch(epoch)
            batches = self.epoch(loader)
            assert len(batches) == len(loader), f"{len(batches)} batches, and len() is {len(loader)}"
        return batches

    def check_epoch(self, every_rank: Sequence[Batches]) -> None:
        """Compare the rows of an epoch on all ranks with what they must be."""
        rows = [row for batches in every_rank for batch in batches for row in batch]
        assert len({len(batches) for batches in every_rank}) == 1, "ranks have unlike numbers of batches"
        size, dropped = self.options["batch_size"] or 1, self.options.get("drop_last", False)
        if self.listed is not None:
            assert every_rank[0] == self.listed, "not the sampler's order"
        elif not dropped:
            assert sorted(rows) == sorted(self.chosen), "rows lost or repeated"
        else:
            extra = collections.Counter(rows) - collections.Counter(self.chosen)
            whole = len(self.chosen) // (size * self.ranks) * size * self.ranks
            assert len(rows) == whole, f"{len(rows)} rows of {whole}"
            assert not extra, f"rows {list(extra)[:5]} come too often"
        if self.ranks == 1 and self.listed is None and not self.options["shuffle"]:
            options = {"batch_size": size, "drop_last": dropped, "collate_fn": list}
            plain: DataLoader[Any] = DataLoader(self.chosen, **options)  # type: ignore[arg-type]
            assert every_rank[0] == list(plain), "not DataLoader's order"

    # --- what is done ---------------------------------------------------------------------------------------

    def whole(self) -> None:
        """Read epochs with every number of threads, one after the other in one loader."""
        for epoch in range(2):
            self.check_epoch([self.reference(epoch, rank) for rank in range(self.ranks)])
        rank = self.rng.randrange(self.ranks)
        known = [self.reference(epoch, rank) for epoch in range(3)]
        for threads in (1, 3):
            with self.loader(threads, rank) as loader:
                assert [self.epoch(loader) for _ in range(3)] == known, f"another order with {threads} threads"

    def broken_off(self) -> None:
        """Leave a loop, and go on with the next epoch; then close in the loop."""
        known = [self.reference(epoch) for epoch in range(3)]
        with self.loader() as loader:
            taken = self.rng.randint(1, len(known[0]) or 1)
            assert self.epoch(loader, taken) == known[0][:taken], "another order before the break"
            iterator = iter(loader)
            first = itertools.islice(iterator, self.rng.randint(0, len(known[1])))
            begun = [self.data.rows_of(batch, self.single) for batch in first]
            assert begun == known[1][: len(begun)], "another order behind the break"
            loader.close()
            try:
                next(iterator)
                raise AssertionError("a batch after close()")
            except LoaderClosedError:
                assert len(begun) < len(known[1])
            except StopIteration:
                assert len(begun) == len(known[1])
            if "stage_to" not in self.options:
                # An iterator that gave nothing may not have used its epoch up.
                assert self.epoch(loader) in known[2 if begun else 1 :], "another order after close()"

    def resumed(self) -> None:
        """Take a state in the middle, and go on in a fresh loader, perhaps with other ranks."""
        known = [self.reference(epoch) for epoch in range(2)]
        with self.loader() as first:
            taken = self.rng.randint(0, len(known[0]))
            begun = [self.epoch(first, taken) if taken else []]
            state = json.loads(json.dumps(first.state_dict()))
        with self.loader() as second:
            if self.rng.random() < 0.3:
                next(iter(second), None)
            second.load_state_dict(state)
            rest = self.epoch(second)
            if taken == len(known[0]):
                assert rest == known[1], "another order in the epoch behind a state"
                return
            assert begun[0] + rest == known[0], f"another order behind a state of batch {taken}"
            assert self.epoch(second) == known[1], "another order in the epoch behind a resume"
        if self.listed is None and not self.options["drop_last"] and not self.options.get("on_error"):
            self._resumed_by_others(state, taken)

    def _resumed_by_others(self, state: dict[str, Any], taken: int) -> None:
        begun = [self.reference(0, rank)[:taken] for rank in range(self.ranks)]
        ranks = self.rng.randint(1, 4)
        for rank in range(ranks):
            with self.loader(None, rank, ranks) as loader:
                try:
                    loader.load_state_dict(state)
                except OptionError as error:
                    raise RefusedError from error
                begun.append(self.epoch(loader))
        rows = sorted(row for batches in begun for batch in batches for row in batch)
        assert rows == sorted(self.chosen), f"rows lost or repeated over a resume by {ranks} ranks"

    def at_once(self) -> None:
        """Read two epochs in turns, then an earlier one."""
        known = [self.reference(epoch) for epoch in range(3)]
        with self.loader() as loader:
            iterators, seen = [iter(loader), None], [[], []]  # type: ignore[var-annotated]
            for _ in range(len(known[0]) + len(known[1]) + 4):
                which = self.rng.randrange(2)
                if which and iterators[1] is None:
                    if not seen[0]:
                        continue
                    iterators[1] = iter(loader)
                iterator = iterators[which]
                batch = None if iterator is None else next(iterator, None)
                if batch is not None:
                    seen[which].append(self.data.rows_of(batch, self.single))
            for ours, theirs in zip(seen, known, strict=False):
                assert ours == theirs[: len(ours)], "another order of two iterators at once"
            for epoch in (self.rng.randrange(3), self.rng.randrange(3)):
                loader.set_epoch(epoch)
                assert self.epoch(loader) == known[epoch], f"another order behind set_epoch({epoch})"
            assert self.epoch(loader, 1) == self.reference(epoch + 1)[:1], "another order behind the set epoch"


def _cut(rows: list[int], size: int, drop_last: bool) -> Batches:
    batches = [rows[k : k + size] for k in range(0, len(rows), size)]
    return [batch for batch in batches if len(batch) == size or not drop_last]


Act = Callable[[Round], None]
ACTS: tuple[Act, ...] = (Round.whole, Round.broken_off, Round.resumed, Round.at_once)


def _hang(*_: object) -> None:
    faulthandler.dump_traceback(all_threads=True)
    raise HangError(f"nothing for {HANG_S} seconds")


def one_round(seed: int) -> tuple[str, str]:
    """Do one round; give what was done, and what was wrong."""
    rng, threads = random.Random(seed), set(threading.enumerate())
    act, limits, made = rng.choice(ACTS), {}, None
    folder = Path(tempfile.mkdtemp(prefix="fuzz"))
    signal.alarm(HANG_S)
    faulthandler.dump_traceback_later(2 * HANG_S, exit=True)
    try:
        small = rng.random() < 0.7
        patches = [mock.patch.object(m, n, rng.choice(v)) for m, n, v in SMALL if small and rng.random() < 0.4]
        for patch in patches:
            limits[patch.attribute] = patch.new
            patch.start()
        made = Round(rng, folder)
        act(made)
        gc.collect()
        end = time.monotonic() + 1
        while (left := set(threading.enumerate()) - threads) and time.monotonic() < end:
            time.sleep(0.01)
        assert not left, f"threads are left: {left}"
        return act.__name__, ""
    except RefusedError:
        return "refused", ""
    except (Exception, HangError) as error:
        text = "".join(traceback.format_exception(error)[-4:]) if "-v" in sys.argv else ""
        options = "" if made is None else f" {made.options} ranks={made.ranks} of {made.data.how} {made.data.lengths}"
        return act.__name__, f"seed {seed}, {act.__name__}: {type(error).__name__}: {error};{options} {limits}\n{text}"
    finally:
        signal.alarm(0)
        faulthandler.cancel_dump_traceback_later()
        mock.patch.stopall()
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    """Do rounds until the time is over; gives the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=None, help="of the first round, each next one is one more")
    parser.add_argument("-v", action="store_true", help="print where it failed")
    options = parser.parse_args()
    first = int(time.time()) if options.seed is None else options.seed
    warnings.filterwarnings("ignore", "the shuffle is weak")
    logging.getLogger("h5stream").setLevel(logging.ERROR)
    signal.signal(signal.SIGALRM, _hang)
    torch.set_num_threads(1)
    end, counts, failures = time.monotonic() + 60 * options.minutes, collections.Counter[str](), 0
    for seed in itertools.count(first):
        what, wrong = one_round(seed)
        counts[what] += 1
        if wrong:
            failures += 1
            print(wrong, flush=True)
        if time.monotonic() >= end:
            break
    print(f"{counts.total():,} rounds from seed {first}, {failures} failures: {dict(counts)}")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
