"""What a file or a group has once: an attribute, or a dataset without an axis of rows."""

from __future__ import annotations

from typing import Any

import h5py

from h5stream.errors import FieldNotFoundError
from h5stream.storage.discovery import find_dataset
from h5stream.storage.external import Guard
from h5stream.storage.nearest import did_you_mean


def once_of(file: Any, name: str, path: str, guard: Guard) -> Any:
    """Read an attribute (``"@name"``, ``"path@name"``), or the whole of a dataset.

    Parameters
    ----------
    file : h5py.File
        Open.
    name : str
        As the user wrote it, in its group.
    path : str
        The file's path, for messages.
    guard : Guard
        Says which files external links may lead to.

    Raises
    ------
    FieldNotFoundError
        If it is not there; names what is.
    """
    if name in file and isinstance(file[name], h5py.Dataset):
        dataset, _, member = find_dataset(file, name, path, guard)
        values = dataset[()]
        for part in member:
            values = values[part]
        return values
    where, at, attribute = name.rpartition("@")
    if not at:
        find_dataset(file, name, path, guard)  # says what there is
    where = where.strip("/")
    guard.check_links(file, where, path)
    owner = file.get(where) if where else file
    if owner is None or attribute not in owner.attrs:
        there = [] if owner is None else list(owner.attrs)
        raise FieldNotFoundError(
            f"{path!r}: {'the file' if not where else repr(where)} has no attribute {attribute!r}."
            f"{did_you_mean(attribute, there)}",
            field=name,
            file=path,
        )
    return owner.attrs[attribute]
