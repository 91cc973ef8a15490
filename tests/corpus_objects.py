"""Reads the groups of one file as objects in several forms, and says of each whether it is what h5py reads."""

from __future__ import annotations

import contextlib
import itertools
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import h5py
import numpy as np
from oracle.compare import count_of, differs, parts_of, plain

from h5stream import Field, H5Dataset, Objects
from h5stream.errors import H5StreamError
from h5stream.storage.values import in_stored_byte_order

MOST_NBYTES, MOST_FORMS, MOST_FIELDS, MOST_PARTS = 1 << 22, 150, 8, 8
RAGGED = (None, "list", "packed", "pad", "arrays")


def report_on_groups(path: str, most: int | None) -> list[list[Any]]:
    """Say how each form of each group went, `most` groups of those that hold alike: outcome, form and message."""
    found: list[list[Any]] = []
    with contextlib.suppress(OSError), h5py.File(path, "r", locking=False) as file:
        for label, field, samples, names in itertools.islice(forms_of(file, most), MOST_FORMS):
            said = outcome_of(
                lambda f=field, s=samples: H5Dataset(path, f, samples=s),
                lambda n=names: [value_of(file, name) for name in n],
            )
            found.append([said[0], label, said[1]])
    return found


def outcome_of(read: Callable[[], H5Dataset], expected: Callable[[], list[Any]]) -> tuple[str, str]:
    """Read in one form: ``equal``, ``refused``, ``unlike`` or ``raw``."""
    try:
        batch = read()[:]
        ours = parts_of(batch)
    except H5StreamError as error:
        return "refused", f"{type(error).__name__}: {error}"
    except Exception:
        return "raw", traceback.format_exc()
    try:
        theirs = expected()
    except Exception as error:
        return "equal", f"h5py cannot read it ({error!r}), and h5stream does not complain"
    if count_of(batch) != len(theirs):
        return "unlike", f"{count_of(batch)} samples, not {len(theirs)}"
    for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        if problem := differs(plain(one), as_given(other)):
            return "unlike", f"sample {number}: {problem}"
    return "equal", ""


def as_given(value: Any) -> Any:
    """Return what h5py gave in the form of a sample."""
    if isinstance(value, np.ndarray) and value.dtype.kind == "O":
        return [as_given(one) for one in value.tolist()]
    return value.item() if isinstance(value, (np.bytes_, np.str_)) else plain(value)


def forms_of(file: Any, most: int | None) -> Iterator[tuple[str, Field, Objects, list[str]]]:
    """Yield for each group its datasets as objects, and what its groups have in common."""
    groups, seen = ["/"], dict[str, int]()
    with contextlib.suppress(Exception):
        file.visititems(lambda name, thing: groups.append(f"/{name}") if isinstance(thing, h5py.Group) else None)
    for group in groups:
        datasets, inner = (names_of(file[group], kind) for kind in (h5py.Dataset, h5py.Group))
        held = str([sorted({dtype_of(file[group][name]) for name in datasets}), len(datasets), len(inner)])
        seen[held] = seen.get(held, 0) + 1
        if most is not None and seen[held] > most:
            continue
        every = [f"{group}/{name}".lstrip("/") for name in datasets]
        holding = [f"{group}/{name}".lstrip("/") for name in inner[:MOST_PARTS]]
        common = [names_of(file[name], h5py.Dataset) + [f"@{one}" for one in file[name].attrs] for name in holding]
        fields = [name for name in common[0] if all(name in names for names in common)] if common else []
        for field, names in [(".", every), *((name, holding) for name in fields[:MOST_FIELDS])]:
            paths = [name if field == "." else f"{name}{'/' * ('@' not in field)}{field}" for name in names]
            if names and sum(nbytes_of(file, path) for path in paths) <= MOST_NBYTES:
                for ragged in RAGGED[: 1 if "@" in field else None]:
                    label = f"{group}: {field!r} of {len(names)} ragged={ragged}"
                    yield label, Field(field, ragged=ragged), Objects([*names]), paths


def names_of(group: Any, kind: type) -> list[str]:
    """Name the members of a kind."""
    found = []
    for name in group:
        with contextlib.suppress(Exception):
            found += [name] * (isinstance(name, str) and isinstance(group[name], kind))
    return found


def dtype_of(dataset: Any) -> str:
    """Name the type of a dataset; some have one that NumPy has not."""
    with contextlib.suppress(Exception):
        return str(dataset.dtype)
    return "none"


def nbytes_of(file: Any, path: str) -> int:
    """Return how large a dataset is; attributes are small."""
    with contextlib.suppress(Exception):
        return int(file[path].nbytes)
    return 0


def value_of(file: Any, name: str) -> Any:
    """Read a dataset, or an attribute, with h5py."""
    owner, at, attribute = name.rpartition("@")
    if at and name not in file:
        found = file[owner or "/"].attrs
        return in_stored_byte_order(found[attribute], found.get_id(attribute).dtype)
    return in_stored_byte_order(file[name][()], file[name].dtype)
