"""Whether rows are read of things that are a sample each: files, groups, datasets; the line that reads them whole.

The answer goes by names and shapes, as that of ``h5stream inspect``: both ask `h5stream.samples.whole`.
"""

from __future__ import annotations

import contextlib
import math
import os
import posixpath
from collections import defaultdict
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import h5py
import numpy as np

from h5stream.base.texts import names_text, shape_text
from h5stream.errors import H5StreamError
from h5stream.samples.whole import (
    LABEL,
    LEAST_GROUPS,
    MANY_GROUPS,
    STEPS,
    Shape,
    are_samples,
    datasets_are_samples,
    differing_axes,
    numbered,
    pattern_of,
)
from h5stream.storage.decode.images import format_of
from h5stream.storage.file.discovery import is_hard_link, is_matrix, some_of, spread
from h5stream.storage.file.stored import open_hdf5
from h5stream.storage.layout.fields import Asked
from h5stream.storage.layout.layout import SampleLayout
from h5stream.storage.source.handles import DAMAGE
from h5stream.storage.source.stores import is_address

_SOME = 8  # things of many that are looked at
_MOST_HELD = 64  # datasets of a group, up to which it is looked at
_MOST_GROUPS = 100_000  # links of a group, up to which they are listed
_TABLE = 4  # how many times as long as wide a table is: its rows are samples as often as not


class _Held(NamedTuple):
    """What a file, or a group, holds: the fields, and what is beside them."""

    shapes: dict[str, Shape]  # by the path inside it
    nbytes: int = 0
    is_labelled: bool = False  # whether an attribute looks like a label
    images: Mapping[str, str] = MappingProxyType({})  # the formats of datasets that are one encoded image


def hint_of_rows(asked: Asked, layout: SampleLayout) -> str:
    """Return what to write if samples are not the rows that were asked for; empty if they seem to be."""
    names = [*dict.fromkeys(parts[0].path.strip("/") for parts in layout.datasets)]
    first, *others = asked.paths
    if not names or layout.lookups or layout.space is not None:
        return ""
    with contextlib.suppress(*DAMAGE, H5StreamError):
        if others:
            return _hint_of_files(asked, layout, names)
        if (asked.shape is None or "/" in names[0]) and not is_address(first):
            with open_hdf5(first) as file:
                return _hint_inside(file, asked, names)
    return ""


# --- files


def _hint_of_files(asked: Asked, layout: SampleLayout, names: Sequence[str]) -> str:
    chosen, every = spread(asked.paths, _SOME), list[_Held]()
    if any(map(is_address, chosen)):  # by what was asked for alone, since a look would be a request
        by_path = defaultdict[str, dict[str, Shape]](dict)
        for part in (part for parts in layout.datasets for part in parts):
            by_path[layout.files[part.file].path][part.path.strip("/")] = part.shape
        for shapes in (by_path[path] for path in chosen if by_path[path]):
            every.append(_Held(shapes, layout.row_nbytes * max(shape[0] for shape in shapes.values())))
    else:
        for path in chosen:
            with open_hdf5(path) as file:
                every.append(_held_in(file, names))
    fields = _fields_of_whole(every, names)
    if not fields or any("decode=" in form for form in fields.values()):  # of files, no images are decoded
        return ""
    what = f"each of {len(asked.paths):,} files holds {_say(every[0], names)}"
    within = f"{asked.group}/" if asked.group else ""
    text = _written({name.removeprefix(within): form for name, form in fields.items()})
    return _text(what, "file", text, 'Objects("files")')


def _text(what: str, thing: str, fields: str, samples: str) -> str:
    way_out = f"if each {thing} is a sample, write fields={fields}, samples={samples}"
    return f"{what}, whose rows are samples now; {way_out} (`h5stream inspect` shows the program)"


def _say(held: _Held, names: Sequence[str]) -> str:
    return names_text([f"{name} ({shape_text(held.shapes[name])})" for name in names])


def _written(fields: Mapping[str, str]) -> str:
    """Write fields as Python: each by its path inside the thing, and what else it takes."""
    forms = [f'Field("{path}", {form})' if form else f'"{path}"' for path, form in fields.items()]
    return forms[0] if len(forms) == 1 else f"[{', '.join(forms)}]"


# --- one file: groups, datasets, parts of a sparse matrix


def _hint_inside(file: Any, asked: Asked, names: Sequence[str]) -> str:
    group = os.path.commonpath([posixpath.dirname(name) for name in names])
    if group and is_matrix(file[group]):
        what = f"{group} is a sparse matrix, and {names_text(names)} hold its values one by one"
        return f'{what}; for its rows write fields=Field("{group}", ragged="dense")'
    if asked.shape is None:
        return _hint_of_datasets(file[group] if group else file, [posixpath.basename(name) for name in names])
    while group:
        if text := _hint_of_groups(file, group, [name.removeprefix(f"{group}/") for name in names]):
            return text
        group = posixpath.dirname(group)
    return ""


def _hint_of_groups(file: Any, group: str, names: Sequence[str]) -> str:
    """Tell of a group that others beside it hold the same, and that each of them is a sample."""
    above, own = posixpath.split(group)
    parent = file[above] if above else file
    if len(parent) > _MOST_GROUPS:
        return ""
    some = some_of([*parent])
    groups = [name for name in some if is_hard_link(parent, name) and isinstance(parent[name], h5py.Group)]
    if len(groups) < LEAST_GROUPS or not (numbered(groups) or len(groups) >= MANY_GROUPS):
        return ""
    every = [_held_in(parent[name], names) for name in dict.fromkeys([own, *spread(groups, _SOME)])]
    fields = _fields_of_whole([held for held in every if held.shapes], names)
    pattern = pattern_of(above, (groups, some))
    if not fields or not pattern:
        return ""
    count = len(parent) - len(some) + len(groups)
    what = f"{group} is one of {count:,} like groups, and holds {_say(every[0], names)}"
    return _text(what, "group", _written(fields), f'Objects("{pattern}")')


def _hint_of_datasets(group: Any, names: Sequence[str]) -> str:
    """Tell of all datasets of a group, which were taken for fields, that each is a sample."""
    families = defaultdict[tuple[Any, int], list[str]](list)
    for name in names:
        families[group[name].dtype, group[name].ndim].append(name)
    alike = max(families.values(), key=len)
    are_most = len(alike) >= LEAST_GROUPS and datasets_are_samples(alike, [group[name].shape for name in alike])
    pattern = pattern_of("", (alike, [*group])) if are_most else ""
    if not pattern:
        return ""
    where, shape = group.name.strip("/"), shape_text(group[alike[0]].shape)
    what = f"{where or 'the root'} holds {len(alike):,} like datasets ({shape}, such as {alike[0]!r})"
    return _text(what, "dataset", '"."', f'Objects("{pattern}")')


# --- what is in a thing


def _held_in(thing: Any, names: Sequence[str]) -> _Held:
    """Return what holds the fields: the datasets of their groups."""
    shapes, nbytes, images = dict[str, Shape](), 0, dict[str, str]()
    is_labelled = any(map(LABEL.search, thing.attrs))
    for where in dict.fromkeys(posixpath.dirname(name) for name in names):
        group = thing.get(where) if where else thing
        if not isinstance(group, h5py.Group) or len(group) > _MOST_HELD:
            return _Held({})
        for name in (name for name in group if is_hard_link(group, name)):
            one, path = group[name], posixpath.join(where, name)
            if isinstance(one, h5py.Dataset) and one.shape is not None and not one.dtype.names:
                shapes[path], nbytes = one.shape, nbytes + one.nbytes
                if one.ndim == 1 and one.dtype == np.uint8 and (form := format_of(one[:16].tobytes())):
                    images[path] = form
    return _Held(shapes, nbytes, is_labelled, images)


def _fields_of_whole(every: Sequence[_Held], wanted: Sequence[str]) -> dict[str, str]:
    """Return what fields of whole things take besides their names; nothing if the rows of these may be samples."""
    if len(every) < 2 or any(map(STEPS.search, wanted)):
        return {}
    shapes = {
        name: [held.shapes[name] for held in every]
        for name in every[0].shapes
        if len({len(held.shapes.get(name, ())) if name in held.shapes else -1 for held in every}) == 1
    }
    if not shapes.keys() >= {*wanted}:
        return {}
    if images := {name: every[0].images[name] for name in wanted if name in every[0].images}:
        return {name: f'decode="{images[name]}"' if name in images else "" for name in wanted}
    lengths = [one[:1] for one in shapes[wanted[0]]]
    rows, labelled = [name for name in shapes if [one[:1] for one in shapes[name]] == lengths], every[0].is_labelled
    nbytes = max(held.nbytes for held in every)
    if not are_samples(shapes, rows, nbytes=nbytes, labelled=labelled) or _is_table(shapes, rows, labelled):
        return {}
    axes = {name: differing_axes(shapes[name]) for name in wanted}
    return {name: 'ragged="arrays"' if any(along) else 'ragged="pad"' * bool(along) for name, along in axes.items()}


def _is_table(shapes: Mapping[str, Sequence[Shape]], rows: Sequence[str], labelled: bool) -> bool:
    """Tell whether rows of a few numbers each may be those of one large table, in equal parts."""
    widest = max((shapes[name][0] for name in rows), key=math.prod)
    is_equal = not any(differing_axes(shapes[name]) for name in rows)
    return not labelled and is_equal and len(widest) == 2 and widest[0] >= _TABLE * widest[1]
