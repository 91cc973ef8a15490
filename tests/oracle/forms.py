"""The ways in which samples are asked for; each compares what it is given with the model, sample by sample."""

import collections
import json
import pickle
import uuid
from collections.abc import Callable
from typing import Any

import numpy as np
from torch.utils.data import ConcatDataset, DataLoader, Subset

from h5stream import Balanced, ChunkBatchSampler, H5Dataset, H5StreamError, Sized, Weighted, collate, repack
from h5stream.errors import CorruptChunkError, SourceError

from . import hazards, stops, writing
from .calls import call, is_call
from .compare import WrongError, plain
from .model import Crops
from .reading import Reading, flat, numbers_in

Form = Callable[[Reading, dict[str, Any]], None]


def items(reading: Reading, options: dict[str, Any]) -> None:
    """``dataset[i]``."""
    dataset = reading.dataset()
    for number in np.random.default_rng(options["seed"]).integers(0, len(dataset), 6 if len(dataset) else 0).tolist():
        sample = dataset[number - (len(dataset) if options.get("negative") else 0)]
        reading.check_one(sample, reading.number_of(reading.named(sample)) if reading.model.is_drawn else number)


def places(reading: Reading, options: dict[str, Any], most: int) -> list[int]:
    """Draw numbers of samples, by a fixed seed, of which some repeat."""
    count = reading.count
    return np.random.default_rng(options["seed"]).integers(0, count, most if count else 0).tolist()


def sliced(reading: Reading, options: dict[str, Any]) -> None:
    """``dataset[a:b:c]`` and ``dataset[:]``."""
    dataset, count = reading.dataset(), reading.count
    for one in (slice(*options["slice"]), slice(None)):
        reading.check_batch(dataset[one], list(range(count))[one])


def listed(reading: Reading, options: dict[str, Any]) -> None:
    """``dataset[array]``, with repeats."""
    numbers = places(reading, options, 20)
    reading.check_batch(reading.dataset()[np.array(numbers, dtype="i8")], numbers)


def pickled(reading: Reading, options: dict[str, Any]) -> None:
    """A dataset that was pickled, and one that was opened for the second time."""
    numbers, first = places(reading, options, 20), reading.dataset()
    reading.check_batch(first[numbers], numbers)
    reading.check_batch(pickle.loads(pickle.dumps(first))[numbers], numbers)
    reading.check_batch(reading.dataset()[numbers], numbers)  # while the first is open


def shuffled(reading: Reading, options: dict[str, Any]) -> None:
    """Epochs of a loader that shuffles."""
    where = {options["on"]: "cpu"} if options.get("on") else {}
    with reading.loader(shuffle=True, **where) as loader:
        epochs = [numbers_in(loader, reading) for _ in range(options.get("epochs", 1))]
    for batches in epochs:
        reading.check_once(flat(batches), dropped=reading.case["loader"].get("drop_last", False))


def unshuffled(reading: Reading, options: dict[str, Any]) -> None:
    """An epoch of a loader in file order."""
    with reading.loader() as loader:
        first, size = 0, reading.case["loader"]["batch_size"]
        for batch in loader:
            end = min(first + size, len(reading.model.samples))
            numbers = None if reading.model.is_drawn else list(range(first, end))
            first += len(reading.check_batch(batch, numbers))


def single(reading: Reading, options: dict[str, Any]) -> None:
    """A loader of single samples."""
    with reading.loader(batch_size=None, shuffle=True, drop_last=False) as loader:
        numbers = []
        for sample in loader:
            number = reading.number_of(reading.named(sample))
            reading.check_one(sample, number)
            numbers.append(number)
    reading.check_once(numbers)


def stock(reading: Reading, options: dict[str, Any]) -> None:
    """A stock DataLoader, with our sampler of batches or its own."""
    dataset, size = reading.dataset(), reading.case["loader"]["batch_size"]
    if options.get("sampler"):
        sampler = ChunkBatchSampler(dataset, size, seed=1)
        loader: Any = DataLoader(dataset, batch_sampler=sampler, collate_fn=collate)
    else:
        loader = DataLoader(dataset, size, shuffle=True, collate_fn=collate)
    reading.check_once(flat(numbers_in(loader, reading)))


def ranked(reading: Reading, options: dict[str, Any]) -> None:
    """Several ranks, which have each sample once together."""
    ranks, every = options["ranks"], []
    for rank in range(ranks):
        with reading.loader(shuffle=True, rank=rank, world_size=ranks) as loader:
            every.append(numbers_in(loader, reading))
    if len({len(batches) for batches in every}) != 1:
        raise WrongError(f"ranks have {[len(batches) for batches in every]} batches")
    reading.check_once(flat(flat(every)), dropped=reading.case["loader"].get("drop_last", False))


def resumed(reading: Reading, options: dict[str, Any]) -> None:
    """An epoch that is broken off, and gone on with by other ranks."""
    first: list[int] = []
    for rank in range(options["ranks"]):
        with reading.loader(shuffle=True, rank=rank, world_size=options["ranks"]) as loader:
            first += flat(numbers_in(loader, reading, min(options["batches"], len(loader) - 1)))
            state = json.loads(json.dumps(loader.state_dict()))
    for rank in range(options["then"]):
        with reading.loader(shuffle=True, rank=rank, world_size=options["then"]) as loader:
            loader.load_state_dict(state)
            first += flat(numbers_in(loader, reading))
    if not reading.model.is_drawn:
        reading.check_once(first, dropped=reading.case["loader"].get("drop_last", False))


def chosen(reading: Reading, options: dict[str, Any]) -> None:
    """Some samples alone: a subset, or torch's `Subset`, which lists them in its own order."""
    numbers = places(reading, options, 15)
    dataset = reading.dataset()
    if reading.model.is_drawn or not numbers:
        return
    if options.get("torch"):
        with reading.loader(Subset(dataset, numbers)) as loader:
            first = 0
            for batch in loader:
                first += len(reading.check_batch(batch, numbers[first : first + loader.batch_size]))
            if not reading.case["loader"].get("drop_last") and first != len(numbers):
                raise WrongError(f"a Subset of {len(numbers)} gives {first}")
        return
    numbers = sorted(set(numbers))
    part = dataset.subset(numbers)
    reading.check_batch(part[:], numbers)
    with reading.loader(part, shuffle=True) as loader:
        found = flat(numbers_in(loader, reading))
    reading.check_once(found, numbers, reading.case["loader"].get("drop_last", False))


def repacked(reading: Reading, options: dict[str, Any]) -> None:
    """Copies of the files, written anew."""
    copies = []
    for name in reading.case["source"]:
        copies.append(str(reading.folder / f"copy-{name}"))
        repack(reading.folder / name, copies[-1], **options.get("with", {}))
    dataset = H5Dataset(copies[0] if len(copies) == 1 else copies, **reading.asked)
    numbers = places(reading, options, 20)
    reading.check_batch(dataset[numbers], numbers)


def drawn(reading: Reading, options: dict[str, Any]) -> None:
    """Samples that are drawn by weights, by classes, or as many as are said."""
    count = len(reading.model.samples)
    weights = np.random.default_rng(options["seed"]).integers(0, 3, count)
    weighted = Weighted(weights + (weights.sum() == 0), 30)
    draws = {"weights": weighted, "balance": Balanced(weights), "count": max(1, count // 2), "bootstrap": Weighted()}
    draw = draws[options["how"]]
    with reading.loader(shuffle=True, draw=draw) as loader:
        found = flat(numbers_in(loader, reading))
    dropped = reading.case["loader"].get("drop_last", False)
    wanted = {"weights": 30, "count": draw}.get(options["how"], count)
    if not dropped and len(found) != wanted:
        raise WrongError(f"{len(found)} samples instead of {wanted}")
    if options["how"] == "weights" and weights.sum() and any(not weights[reading.like(one)].any() for one in found):
        raise WrongError("a sample of weight 0 comes")
    if options["how"] == "count" and any(found.count(one) > 1 for one in found if len(reading.like(one)) == 1):
        raise WrongError("a sample comes twice before all have come")
    are_known = all((weights[reading.like(one)] == weights[one]).all() for one in found)
    if options["how"] == "balance" and not dropped and are_known:
        shares = list(collections.Counter(weights[number] for number in found).values())
        if max(shares) - min(shares) > 1:
            raise WrongError(f"classes come {shares} times")


def joined(reading: Reading, options: dict[str, Any]) -> None:
    """A dataset of each file, read as one, where no field lists what each sample of all files has."""
    if (parts := one_of_each_file(reading)) is None:
        return
    with reading.loader(ConcatDataset(parts), shuffle=True) as loader:
        found = flat(numbers_in(loader, reading))
    reading.check_once(found, dropped=reading.case["loader"].get("drop_last", False))


def several(reading: Reading, options: dict[str, Any]) -> None:
    """A list of datasets, one of each file, opened as one."""
    if (parts := one_of_each_file(reading)) is None:
        return
    dataset = H5Dataset(parts)
    if len(dataset) != reading.count:
        raise WrongError(f"{len(dataset)} samples instead of {reading.count}")
    numbers = places(reading, options, 20)
    reading.check_batch(dataset[numbers], numbers)


def one_of_each_file(reading: Reading) -> list[H5Dataset] | None:
    """Open each file on its own, where no field lists what each sample of all files has."""
    model, trees = reading.model, [tree for tree in reading.trees.values() if isinstance(tree, dict)]
    listed = any((isinstance(value, list) and key != "of") or (is_call(value) and isinstance(value["args"][0], list))
                 for tree in [*trees, reading.case["samples"] or call("")]
                 for key in ("rows", "names", "file", "of") for value in [tree["options"].get(key)])  # fmt: skip
    # A function is told the numbers of samples in its own dataset.
    listed = listed or any(is_call(tree["options"].get("rows"), "Spread") for tree in trees)
    listed = listed or not isinstance(model.options.get("at", "grid"), str)
    if model.kind == "Table" or model.is_drawn or listed or any(tree["call"] == "Values" for tree in trees):
        return None
    return [H5Dataset(str(reading.folder / name), **reading.asked) for name in reading.case["source"]]


def staged(reading: Reading, options: dict[str, Any]) -> None:
    """Samples of a copy of the files."""
    with reading.loader(shuffle=True, stage_to=reading.folder / "fast") as loader:
        found = flat(numbers_in(loader, reading))
    reading.check_once(found, dropped=reading.case["loader"].get("drop_last", False))


def remote(reading: Reading, options: dict[str, Any]) -> None:
    """Samples of the files as objects in a store, with a cache or without."""
    from obstore.store import LocalStore

    there = reading.elsewhere(f"memory://{uuid.uuid4().hex}")
    cache = {"cache": reading.folder / "cache", "cache_size": options["cache"]} if "cache" in options else {}
    with reading.loader(shuffle=True) as loader:
        here = [flat(numbers_in(loader, reading)) for _ in range(2)]
    epochs = []
    for _ in range(1 + len(cache) // 2):
        dataset = H5Dataset(there.source, **there.asked, storage_options=LocalStore(str(reading.folder)), **cache)
        if len(dataset) != reading.count:
            raise WrongError(f"{len(dataset)} samples instead of {reading.count}")
        with reading.loader(dataset, shuffle=True) as loader:
            epochs.append([flat(numbers_in(loader, reading)) for _ in range(2)])
    for found in epochs:
        first, other = ([[reading.like(number) for number in epoch] for epoch in some] for some in (found, here))
        if first != other:
            raise WrongError(f"another order than on the disk: {found} and {here}")
    for found in here:
        reading.check_once(found, dropped=reading.case["loader"].get("drop_last", False))


def sized(reading: Reading, options: dict[str, Any]) -> None:
    """Batches of so many rows of a ragged field, with samples of like length or not."""
    reading.dataset()  # which may be refused: the model knows no samples then
    model, kinds = reading.model, dict[str, str]()
    for name, tree in reading.trees.items():
        is_ragged = isinstance(tree, dict) and "ragged" in tree["options"] and model.samples
        is_ragged = is_ragged and not model.is_attribute(tree["args"][0])  # by which Sized does not go
        if is_ragged and not model.is_sparse(model.samples[0].part, tree["args"][0]):  # that counts what is stored
            kinds[name] = tree["options"]["ragged"]
    ragged = [name for name, kind in kinds.items() if kind in ("packed", "pad", "list", "nested")]
    if not ragged or model.is_drawn:
        return
    values = [reading.model.sample(number)[ragged[0]] for number in range(len(reading.model.samples))]
    lengths = [min(one.length, len(one.rows)) if isinstance(one, Crops) else len(one) for one in values]
    most = max(1, *lengths) * (1 + options["seed"] % 3)
    name = ragged[0] if reading.style == "dict" else reading.trees[ragged[0]]["args"][0]
    draw = Sized(most, name, bucket=options["bucket"])
    with reading.loader(shuffle=True, drop_last=False, draw=draw) as loader:
        batches = numbers_in(loader, reading)
    for batch in batches:
        sizes = [lengths[number] for number in batch]
        count = max(sizes) * len(sizes) if kinds[ragged[0]] == "pad" else sum(sizes)
        if count > most and all(len(reading.like(number)) == 1 for number in batch):
            raise WrongError(f"a batch of {count} rows, of {most} at most")
    reading.check_once(flat(batches))


def measured(reading: Reading, options: dict[str, Any]) -> None:
    """Mean, spread and counts of the fields that are rows of numbers, as NumPy's widest floats have them."""
    model, dataset = reading.model, reading.dataset()
    names = [name for name, tree in reading.trees.items() if isinstance(tree, str) and "@" not in tree]
    if model.is_drawn or not reading.count or model.kind not in ("rows", "Rows", "Objects"):
        return
    values = {name: [plain(model.value(reading.trees[name], k)) for k in range(reading.count)] for name in names}
    numeric = {name: some for name, some in values.items() if all(is_real(one) and np.size(one) for one in some)}
    if not numeric:
        return
    found = dataset.statistics([*numeric] if reading.style == "dict" else None)
    for name, some in numeric.items():
        known = found.get(name) or found[reading.trees[name]]
        every = np.concatenate([np.asarray(one, np.longdouble).reshape(-1) for one in some])
        pairs = [(known.mean, every.mean(), 1e-9 * max(abs(every).max(), every.std())), (known.std, every.std(), 0)]
        for ours, theirs, slack in pairs:
            if not np.allclose(np.longdouble(np.mean(ours)), theirs, rtol=1e-6, atol=float(slack)):
                raise WrongError(f"statistics of {name!r}: {ours} instead of {theirs}", field=name)


def is_real(value: Any) -> bool:
    """Tell whether a value is of whole or real numbers."""
    return isinstance(value, np.ndarray) and value.dtype.kind in "iuf"


def same_samples(batch: Any) -> Any:
    """Return a sample as it is, for `sample_transform`."""
    return batch


def shape_of(value: Any) -> Any:
    """Return the shapes of the arrays in a sample, as `plain` makes it."""
    if isinstance(value, (dict, list)):
        return [shape_of(one) for one in (value.values() if isinstance(value, dict) else value)]
    return np.shape(value)


def has_lists(value: Any) -> bool:
    """Tell whether a list is anywhere in a sample, as `plain` makes it."""
    if isinstance(value, dict):
        return any(map(has_lists, value.values()))
    return isinstance(value, list)


def transformed(reading: Reading, options: dict[str, Any]) -> None:
    """Samples that pass through a function, in this thread or in a process."""
    model, dataset = reading.model, reading.dataset()
    ragged = any(isinstance(tree, dict) and "ragged" in tree["options"] for tree in reading.trees.values())
    samples = [plain(model.sample(number)) for number in range(len(model.samples))]
    # Of lists, and of the tuples that one value of a compound is, torch's ``default_collate`` makes columns.
    ragged |= any(map(has_lists, samples))
    ragged |= any(isinstance(value, tuple) for value in reading.named(dataset[0]).values())
    ragged |= len({str(shape_of(sample)) for sample in samples}) > 1
    how = {"sample_transform": same_samples, "sample_workers": options["workers"]}
    how |= {"collate_fn": list} if ragged else {}
    found = []
    with reading.loader(dataset, shuffle=True, **how) as loader:
        for batch in loader:
            for one in batch if ragged else ():
                found.append(reading.number_of(reading.named(one)))
                reading.check_one(one, found[-1])
            found += [] if ragged else reading.check_batch(batch)
    reading.check_once(found, dropped=reading.case["loader"].get("drop_last", False))


def corrupt(reading: Reading, options: dict[str, Any]) -> None:
    """A chunk that does not decode: an error that names it, or, where that is asked for, whatever does not need it.

    What is small is kept in memory as a whole: of that ``dataset[i]`` fails for rows that the loader still gives.
    """
    model, there = reading.model, reading.elsewhere(str(reading.folder / "corrupt"))
    for file in reading.case["files"]:
        writing.write_file(there.base, file)
    if model.is_drawn or not writing.corrupt(f"{there.base}/{options['file']}", options["path"], options["seed"]):
        return
    try:
        dataset, sound = there.dataset(), []
    except (CorruptChunkError, SourceError) as error:  # it says which samples there are, or what they look up
        stops.check_named(error, options)
        return
    for number in range(reading.count):
        try:
            there.check_one(dataset[number], number)
            sound.append(number)
        except CorruptChunkError as error:
            stops.check_named(error, options)
    with there.loader(dataset, shuffle=True, drop_last=False, on_error="skip") as loader:
        found = flat(numbers_in(loader, there))
    numbers = (found, sound, range(reading.count))
    given, needed, every = (collections.Counter(there.like(number)[0] for number in some) for some in numbers)
    if needed - given or given - every or (given == every and len(sound) < reading.count):
        raise WrongError(f"{len(sound)} samples are sound, and of {reading.count} the loader gives {len(found)}")


def damaged(reading: Reading, options: dict[str, Any]) -> None:
    """An object that h5py cannot open: an error that names it, as soon as the dataset is opened."""
    sound = reading.folder / "sound"
    files = [{**file, "damaged": None} for file in reading.case["files"]]
    for file in files:
        writing.write_file(str(sound), file)
    there = Reading({**reading.case, "files": files}, sound)
    reading.model, reading.has_model = there.model, there.has_model  # which may find that no value is right
    there.dataset()
    try:
        found = H5Dataset(reading.source, **reading.asked)
    except H5StreamError as error:
        if repr(options["path"]) not in str(error):
            raise WrongError(f"{options['path']!r} is damaged, and no word of it: {error}") from error
        return
    raise WrongError(f"{options['path']!r} is damaged, and there are {len(found)} samples")


FORMS: dict[str, tuple[Form, float]] = {
    "items": (items, 3),
    "sliced": (sliced, 3),
    "listed": (listed, 3),
    "pickled": (pickled, 1),
    "shuffled": (shuffled, 4),
    "unshuffled": (unshuffled, 2),
    "single": (single, 1),
    "stock": (stock, 1),
    "ranked": (ranked, 1),
    "resumed": (resumed, 1),
    "chosen": (chosen, 1),
    "repacked": (repacked, 0.5),
    "drawn": (drawn, 1),
    "joined": (joined, 0.5),
    "staged": (staged, 0.5),
    "remote": (remote, 1),
    "sized": (sized, 0.7),
    "transformed": (transformed, 0.7),
    "several": (several, 0.5),
    "measured": (measured, 0.6),
    "served": (hazards.served, 0.9),
    "changed": (hazards.changed, 0),
    "keyed": (hazards.keyed, 0),
    "corrupt": (corrupt, 0),
    "stopped": (stops.stopped, 0),
    "faulty": (stops.faulty, 0),
    "damaged": (damaged, 0),
}
"""By its name each form, and how often it is drawn; of stops and of what is damaged, where that is drawn."""
