"""A case that lies in a folder: how it is opened, and the comparison of what comes with what its samples must be."""

from __future__ import annotations

import collections
import contextlib
import copy
import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from h5stream import H5Dataset, H5StreamLoader
from h5stream.errors import BudgetError

from . import compare
from .calls import MAKERS, built, is_call
from .compare import WrongError
from .containers import dressed
from .model import Model

BUSY_S = 0.2
"""So long a loop is busy in one form, all its batches together."""

NEAR = {"mean", "std", "factor", "missing"}


class Reading:
    """A case that lies in a folder, how it is opened, and what its samples must be."""

    def __init__(self, case: dict[str, Any], folder: Path, has_model: bool = True) -> None:
        self.case, self.folder, self.base = case, folder, str(folder)
        self.has_model = has_model and not any(file.get("damaged") for file in case["files"])
        if self.has_model:  # of what is damaged h5py has nothing to say
            self.model = Model(case, folder)
        self.trees: dict[str, Any] = case["fields"]
        self.style: str = case.get("style", "dict")
        self.known: dict[Any, list[int]] | None = None
        self.alike: dict[int, list[int]] = {}
        self.quote: Callable[[str], str] = str
        self.slack_s = BUSY_S

    def elsewhere(self, base: str) -> Reading:
        """Return the same case of files that are named in another place."""
        there = copy.copy(self)
        there.base = base
        return there

    @property
    def source(self) -> Any:
        """What is opened: one path, or several."""
        paths = [f"{self.base}/{self.quote(name)}" for name in self.case["source"]]
        if len(paths) == 1:
            return paths[0]
        how = self.case.get("worn", {}).get("source")
        return MAKERS[how](paths) if how else paths

    @property
    def asked(self) -> dict[str, Any]:
        """The arguments that say what a sample is."""
        how = self.case.get("worn", {})
        fields = {name: built(dressed(tree, how), self.base) for name, tree in self.trees.items()}
        styled = {"dict": fields, "list": list(fields.values()), "one": next(iter(fields.values()))}[self.style]
        return {
            "fields": styled,
            "samples": built(dressed(self.case.get("samples"), how), self.base),
            "allow_external": True,
        }

    @property
    def count(self) -> int:
        """How many samples an epoch has."""
        if not self.model.is_drawn:
            return len(self.model.samples)
        return int(self.model.options.get("per_epoch") or len({sample.segment for sample in self.model.samples}))

    def dataset(self) -> H5Dataset:
        """Open what is to be tested."""
        found = H5Dataset(self.source, **self.asked)
        if len(found) != self.count:
            raise WrongError(f"{len(found)} samples instead of {self.count}")
        return found

    def loader(self, dataset: Any = None, **options: Any) -> H5StreamLoader:
        """Make a loader; with the budget that it says would do, where it refuses the one that it is given."""
        chosen = {**self.case.get("loader", {}), **options}
        try:
            return H5StreamLoader(dataset if dataset is not None else self.dataset(), **chosen)
        except BudgetError as error:
            chosen["memory_budget"] = error.needed
            return H5StreamLoader(dataset if dataset is not None else self.dataset(), **chosen)

    def named(self, sample: Any) -> dict[str, Any]:
        """Turn a batch or a sample of any style into a dict."""
        if self.style == "dict":
            return sample  # type: ignore[no-any-return]
        values = [sample] if self.style == "one" else sample
        if len(values) != len(self.trees):
            raise WrongError(f"{len(values)} values instead of {len(self.trees)}")
        return dict(zip(self.trees, values, strict=True))

    def check_one(self, sample: Any, number: int) -> None:
        """Compare one sample, as its style has it."""
        self.check(self.named(sample), number)

    def check(self, ours: dict[str, Any], number: int) -> None:
        """Compare the fields of one sample."""
        theirs = self.model.sample(number)
        if list(ours) != list(theirs):
            raise WrongError(f"fields {list(ours)} instead of {list(theirs)}")
        for name in theirs:
            tree = self.trees[name]
            near = isinstance(tree, dict) and bool(NEAR & set(tree["options"]))
            if said := compare.matches(ours[name], theirs[name], near):
                raise WrongError(f"sample {number}, field {name!r}: {said}", number=number, field=name)

    def be_busy(self) -> None:
        """Do what the loop does with a batch: hold Python's lock for some ms, or let it go."""
        how = self.case.get("consumer")
        if how is None or self.slack_s <= 0:
            return
        seconds = min(how["ms"] / 1000, self.slack_s)
        self.slack_s -= seconds
        until = time.perf_counter() + seconds
        if how["how"] == "sleeps":
            time.sleep(seconds)
        while time.perf_counter() < until:
            pass

    def check_batch(self, batch: Any, numbers: Any = None) -> list[int]:
        """Compare a batch with the samples of these numbers, or find out which they are; return them."""
        self.be_busy()
        fields = self.named(batch)
        count = compare.count_of(next(iter(fields.values())))
        for name, value in fields.items():
            compare.check_container(value, self.trees[name])
            if compare.count_of(value) != count:
                raise WrongError(f"field {name!r} has {compare.count_of(value)} samples, another {count}")
        if numbers is not None and len(numbers) != count:
            raise WrongError(f"{count} samples instead of {len(numbers)}")
        parts = {name: compare.parts_of(value) for name, value in fields.items()}
        samples = [{name: values[k] for name, values in parts.items()} for k in range(count)]
        if numbers is None or self.model.is_drawn:
            numbers = [self.number_of(sample) for sample in samples]
        for sample, number in zip(samples, numbers, strict=True):
            self.check(sample, int(number))
        return [int(number) for number in numbers]

    def number_of(self, sample: dict[str, Any]) -> int:
        """Find out which sample this is: its number says so, or all of its values do."""
        if not self.model.is_drawn:
            for name, tree in self.trees.items():
                if is_call(tree, "SampleNumber"):
                    number = int(sample[name])
                    if not 0 <= number < len(self.model.samples):
                        raise WrongError(f"sample number {number} of {len(self.model.samples)}")
                    return number
        names = [name for name, tree in self.trees.items() if not self._varies(tree)]
        if self.known is None:
            self.known = collections.defaultdict(list)
            for number in range(len(self.model.samples)):
                theirs = self.model.sample(number)
                self.known[compare.canonical([compare.plain(theirs[name]) for name in names])].append(number)
            self.alike = {number: sorted(found) for found in self.known.values() for number in found}
        found = self.known.get(compare.canonical([compare.plain(sample[name]) for name in names]))
        if not found:
            raise WrongError(f"a sample that is none of the {len(self.model.samples)}: {sample}")
        for _ in found:
            found.append(found.pop(0))  # equal ones in turn
            with contextlib.suppress(WrongError):
                self.check(sample, found[-1])
                break
        return found[-1]

    def like(self, number: int) -> list[int]:
        """Return the samples that one may be taken for, where it was found by its values."""
        return self.alike.get(number, [number])

    @staticmethod
    def _varies(tree: Any) -> bool:
        options = tree["options"] if isinstance(tree, dict) else {}
        return is_call(tree, "SampleNumber") or "crop" in options or bool(NEAR & set(options))

    def check_once(self, numbers: list[int], whole: list[int] | None = None, dropped: bool = False) -> None:
        """Tell whether an epoch has each sample once, or what it draws of them."""
        whole = list(range(len(self.model.samples))) if whole is None else whole
        if self.model.is_drawn:
            self.check_drawn(numbers, dropped)
            return
        numbers, whole = ([self.like(number)[0] for number in some] for some in (numbers, whole))
        if dropped:
            if collections.Counter(numbers) - collections.Counter(whole):
                raise WrongError("a sample comes twice, or is not one of them")
        elif sorted(numbers) != sorted(whole):
            lost, extra = collections.Counter(whole), collections.Counter(numbers)
            raise WrongError(f"lost {sorted(lost - extra)[:9]}, too often {sorted(extra - lost)[:9]}")

    def check_drawn(self, numbers: list[int], dropped: bool) -> None:
        """Tell whether random starts are as many as said, each segment as often as any other."""
        options, samples = self.model.options, self.model.samples
        segments = collections.Counter(samples[number].segment for number in numbers)
        every = len({sample.segment for sample in samples})
        count = options.get("per_epoch") or every
        if not dropped and len(numbers) != count:
            raise WrongError(f"{len(numbers)} samples instead of {count}")
        if options.get("draw", "segments" if self.model.kind == "Sequences" else "rows") == "segments" and not dropped:
            shares = [segments[one] for one in {sample.segment for sample in samples}]
            are_known = all(
                samples[number].segment == samples[other].segment for number in numbers for other in self.like(number)
            )
            if are_known and max(shares) - min(shares) > 1:
                raise WrongError(f"segments come {sorted(shares)} times")


def numbers_in(loader: Any, reading: Reading, most: int | None = None) -> list[list[int]]:
    """Compare an epoch's batches, or the first of them; return the numbers of their samples."""
    return [reading.check_batch(batch) for batch in itertools.islice(iter(loader), most)]


def flat(batches: list[list[int]]) -> list[int]:
    """Chain batches."""
    return list(itertools.chain(*batches))
