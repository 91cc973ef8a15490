"""Reads the groups of one file as objects in every form, and says of each whether it is what h5py reads."""

from __future__ import annotations

import collections
import contextlib
import itertools
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import h5py
import numpy as np
from oracle.compare import count_of, differs, parts_of, plain

from h5stream import Field, H5Dataset, Objects, Rows, Sequences
from h5stream.errors import H5StreamError
from h5stream.storage import whereabouts
from h5stream.storage.values import in_stored_byte_order

MOST_NBYTES = 1 << 22
MOST_COMPARED = 100
MOST_FORMS = 150
MOST_FIELDS = 8
MOST_PARTS = 8
RAGGED = (None, "list", "packed", "pad", "arrays")
MANY = whereabouts.MANY


class Form(NamedTuple):
    """A way to read a group; `expected` are the samples, of each field, or why h5py has none."""

    label: str
    open: Callable[[], H5Dataset]
    expected: Callable[[], list[Any]]
    key: str | None = None


def report_on_groups(path: str, most: int | None) -> list[list[Any]]:
    """Say how each form of each group went, `most` groups of those that hold alike: outcome, form, message, seconds."""
    found: list[list[Any]] = []
    with contextlib.suppress(OSError), h5py.File(path, "r", locking=False) as file:
        for form in itertools.islice(forms_of(file, path, most), MOST_FORMS):
            for whereabouts.MANY in (0, MANY):
                began = time.perf_counter()
                outcome, message = outcome_of(form)
                how = "from bytes" if whereabouts.MANY == 0 else "through libhdf5"
                found.append([outcome, f"{form.label} ({how})", message, time.perf_counter() - began])
    return found


def outcome_of(form: Form) -> tuple[str, str]:
    """Read in one form: ``equal``, ``refused``, ``unlike`` or ``raw``."""
    try:
        dataset = form.open()
        batch = dataset[:]
        alone = [dataset[k] for k in {0, len(dataset) - 1}]
    except H5StreamError as error:
        return "refused", f"{type(error).__name__}: {error}"
    except Exception:
        return "raw", traceback.format_exc()
    try:
        expected = form.expected()
    except Exception as error:
        return "equal", f"h5py cannot read it ({type(error).__name__}: {error}), and h5stream does not complain"
    if form.key is not None:
        batch, alone = batch[form.key], [one[form.key] for one in alone]
    if count_of(batch) != len(expected):
        return "unlike", f"{count_of(batch)} samples, not {len(expected)}"
    some = np.unique(np.linspace(0, len(expected) - 1, MOST_COMPARED).astype(int)).tolist() if expected else []
    parts = parts_of(batch)
    several = ((f"sample {k}", parts[k], expected[k]) for k in some)
    ends = ((f"sample {k} alone", alone[n], expected[k]) for n, k in enumerate({0, len(expected) - 1}))
    for name, ours, theirs in itertools.chain(several, ends):
        if problem := differs(plain(ours), as_given(theirs)):
            return "unlike", f"{name}: {problem}"
    return "equal", ""


def as_given(value: Any) -> Any:
    """Return what h5py gave in the form of a sample."""
    if isinstance(value, np.ndarray) and value.dtype.kind == "O":
        return [as_given(one) for one in value.tolist()]
    if isinstance(value, (np.bytes_, np.str_)):
        return value.item()
    return plain(value)


def forms_of(file: Any, path: str, most: int | None) -> Iterator[Form]:
    """Yield the ways to read all groups of an open file."""
    seen: collections.Counter[Any] = collections.Counter()
    for name, group in groups_of(file):
        kind, within = kind_of(group)
        if seen[kind] == most:
            continue
        seen[kind] += 1
        yield from forms_of_group(file, path, name, within)


def groups_of(file: Any) -> Iterator[tuple[str, Any]]:
    """Yield the groups that hard links lead to, each once."""
    found = [("", file)]

    def note(name: str, thing: Any) -> None:
        if isinstance(thing, h5py.Group):
            found.append((name, thing))

    with contextlib.suppress(Exception):
        file.visititems(note)
    yield from found


def kind_of(group: Any) -> tuple[Any, dict[str, Any]]:
    """Return what groups that hold alike have in common, and what a group holds."""
    within, kinds = {}, []
    for name in (name for name in group if isinstance(name, str)):
        thing = None
        with contextlib.suppress(Exception):
            thing = group[name]
        within[name] = thing
        if isinstance(thing, h5py.Dataset):
            kinds.append(stored(thing))
        elif isinstance(thing, h5py.Group):
            with contextlib.suppress(Exception):
                kinds.append((*thing, *thing.attrs))
    return frozenset(map(str, kinds)), within


def stored(dataset: Any) -> Any:
    """Return what datasets that are laid out alike have in common."""
    with contextlib.suppress(Exception):
        creation = dataset.id.get_create_plist()
        return dataset.dtype.str, dataset.shape, creation.get_layout(), creation.get_nfilters(), *dataset.attrs
    return dataset.name


def forms_of_group(file: Any, path: str, group: str, within: dict[str, Any]) -> Iterator[Form]:
    above = f"{group}/" if group else ""
    datasets = {f"{above}{name}": thing for name, thing in within.items() if isinstance(thing, h5py.Dataset)}
    groups = {f"{above}{name}": thing for name, thing in within.items() if isinstance(thing, h5py.Group)}
    if datasets and sum(map(nbytes_of, datasets.values())) <= MOST_NBYTES:
        yield from forms_of_datasets(file, path, group, datasets, is_all=len(datasets) == len(within))
    holding = [*groups][:MOST_PARTS]
    common = [{*names_in(groups[name])} for name in holding]
    fields = [f for f in names_in(groups[holding[0]]) if all(f in names for names in common)] if holding else []
    sizes = (nbytes_of(groups[name].get(f)) for name in holding for f in fields)
    nbytes = sum(sizes)
    if fields and nbytes <= MOST_NBYTES:
        yield from forms_of_subgroups(file, path, holding, fields[:MOST_FIELDS])
    if datasets and sum(map(nbytes_of, datasets.values())) <= MOST_NBYTES and group:
        yield from forms_of_subgroups(file, path, [group], names_in(file[group])[:MOST_FIELDS])


def names_in(group: Any) -> list[str]:
    """Name the datasets of a group, and the attributes of the group and of these."""
    found = [f"@{name}" for name in attributes_in(group)]
    for name in group:
        with contextlib.suppress(Exception):
            if isinstance(group[name], h5py.Dataset):
                found.append(name)
                found += [f"{name}:{member}" for member in group[name].dtype.names or ()][:3]
                found += [f"{name}@{attribute}" for attribute in attributes_in(group[name])][:2]
    return [*dict.fromkeys(name for name in found if "@" not in name or name not in group)]


def attributes_in(thing: Any) -> list[str]:
    with contextlib.suppress(Exception):
        return list(thing.attrs)
    return []


def nbytes_of(dataset: Any) -> int:
    with contextlib.suppress(Exception):
        return int(np.prod(dataset.shape or (), dtype=object)) * dataset.dtype.itemsize
    return 0


def forms_of_datasets(file: Any, path: str, group: str, datasets: dict[str, Any], *, is_all: bool) -> Iterator[Form]:
    """Datasets as objects: all, and those that are alike; by names, by a pattern, and by names in each sample."""
    alike = collections.defaultdict(list)
    for name, dataset in datasets.items():
        with contextlib.suppress(Exception):
            alike[dataset.dtype.str, dataset.shape].append(name)
            alike[dataset.dtype.str, (dataset.shape or ())[1:]].append(name)
    several = {tuple(names) for names in ([*datasets], *alike.values())}
    several |= {(name,) for name in [*datasets][:MOST_PARTS]}
    for names in several:
        told = f"{group!r}: {len(names)} datasets from {names[0]!r}"
        attributes = [
            name
            for name in attributes_in(datasets[names[0]])
            if all(name in attributes_in(datasets[one]) and f"{one}@{name}" not in file for one in names)
        ]
        for ragged in RAGGED:
            field = Field(".", ragged=ragged)

            def of_all(names: Any = names) -> list[Any]:
                return [value_of(file, name) for name in names]

            yield Form(f"{told} ragged={ragged}", lambda f=field, n=names: opened(path, f, Objects([*n])), of_all)
            if not any("{" in name or "}" in name for name in names):
                yield Form(
                    f"{told} named ragged={ragged}",
                    lambda r=ragged, n=names: opened(path, Field("{}", names=[*n], ragged=r), None),
                    of_all,
                    key="x",
                )
            if is_all and len(names) == len(datasets) and not {*"*?["} & {*group}:
                pattern = Objects(f"{group}/*" if group else "*")
                yield Form(f"{told} by pattern ragged={ragged}", lambda f=field, p=pattern: opened(path, f, p), of_all)
        for name in attributes[:MOST_FIELDS]:
            yield Form(
                f"{told} @{name}",
                lambda a=name, n=names: H5Dataset(
                    path, {"x": Field(".", ragged="arrays"), "a": f"@{a}"}, samples=Objects([*n])
                ),
                lambda a=name, n=names: [value_of(file, f"{one}@{a}") for one in n],
                key="a",
            )


def forms_of_subgroups(file: Any, path: str, groups: list[str], fields: list[str]) -> Iterator[Form]:
    """Groups as objects with what they have in common; their rows; and sequences of these."""
    told = f"{len(groups)} groups from {groups[0]!r}"
    for name in fields:
        for ragged in (None,) if "@" in name else RAGGED:
            yield Form(
                f"{told}: {name!r} ragged={ragged}",
                lambda f=name, r=ragged: opened(path, Field(f, ragged=r), Objects([*groups])),
                lambda f=name: [value_of(file, joined(group, f)) for group in groups],
            )
        if "@" in name:
            continue
        for ragged in (None, "packed"):
            yield Form(
                f"{told}: rows of {name!r} ragged={ragged}",
                lambda f=name, r=ragged: opened(path, Field(f, ragged=r), Rows(of=[*groups])),
                lambda f=name: [row for group in groups for row in value_of(file, joined(group, f))],
            )
        yield Form(
            f"{told}: sequences of {name!r}",
            lambda f=name: opened(path, Field(f), Sequences(2, of=[*groups])),
            lambda f=name: [pair for group in groups for pair in pairs_of(value_of(file, joined(group, f)))],
        )

    for name in fields:
        yield Form(
            f"{told}: {name!r} beside {len(fields)} fields",
            lambda f=name: H5Dataset(path, beside(path, groups, fields, f), samples=Objects([*groups])),
            lambda f=name: [value_of(file, joined(group, f)) for group in groups],
            key=name,
        )


def beside(path: str, groups: list[str], fields: list[str], name: str) -> dict[str, str]:
    """Return the fields that can be read beside one."""
    found = {name: name}
    for one in fields:
        with contextlib.suppress(H5StreamError):
            H5Dataset(path, one, samples=Objects([*groups])).close()
            found[one] = one
    return found


def joined(group: str, field: str) -> str:
    return f"{group}{field}" if field.startswith("@") else f"{group}/{field}"


def pairs_of(rows: Any) -> list[Any]:
    return [rows[k : k + 2] for k in range(len(rows) - 1)]


def opened(path: str, field: Field, samples: Any) -> H5Dataset:
    return (
        H5Dataset(path, {"x": field}, samples=samples) if samples is None else H5Dataset(path, field, samples=samples)
    )


def value_of(file: Any, name: str) -> Any:
    """Read a dataset, or an attribute, with h5py."""
    owner, at, attribute = name.rpartition("@")
    whole, colon, member = name.rpartition(":")
    if colon and name not in file and whole in file:
        return file[whole][()][member]
    if at and name not in file:
        thing = file[owner or "/"].attrs
        return in_stored_byte_order(thing[attribute], thing.get_id(attribute).dtype)
    return in_stored_byte_order(file[name][()], file[name].dtype)
