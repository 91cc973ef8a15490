"""Hints for users who read rows although each file, group or dataset seems to be one sample.

The decision uses names and shapes, like that of ``h5stream inspect``; both call `h5stream.samples.whole`.
"""

from __future__ import annotations

import contextlib
import math
import os
import posixpath
from collections import defaultdict
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import h5py
import numpy as np

from h5stream.base.names import is_address
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
from h5stream.storage.decode.pipeline import check_stored
from h5stream.storage.file.discovery import is_hard_link, is_matrix, some_of, spread
from h5stream.storage.file.stored import open_hdf5
from h5stream.storage.layout.layout import SampleLayout
from h5stream.storage.layout.request import Request
from h5stream.storage.source.handles import DAMAGE

_MOST_SAMPLED = 8  # files or groups that are examined
_MOST_DATASETS = 64  # a group with more datasets is not examined
_MOST_GROUPS = 100_000  # the links of a group with more are not listed
_TABLE = 4  # an array this many times as long as wide is a table, whose rows may well be samples


class _Contents(NamedTuple):
    """The datasets of a file, or a group, that are fields or are beside them."""

    shapes: dict[str, Shape]  # by the path inside it
    nbytes: int = 0
    is_labelled: bool = False  # whether an attribute looks like a label
    images: Mapping[str, str] = MappingProxyType({})  # the formats of datasets that are one encoded image


def hint_of_rows(request: Request, layout: SampleLayout) -> str:
    """Return a hint on what to write if the requested rows do not seem to be the samples; else empty."""
    names, (first, *others) = layout.paths, request.paths
    if not request.may_be_whole(names) or layout.lookups or layout.space is not None:
        return ""
    with contextlib.suppress(*DAMAGE, H5StreamError):
        if others:
            return _hint_of_files(request, layout, names)
        if not is_address(first):
            with open_hdf5(first) as file:
                return _hint_inside(file, request, names)
    return ""


# --- files


def _hint_of_files(request: Request, layout: SampleLayout, names: Sequence[str]) -> str:
    chosen, contents = spread(request.paths, _MOST_SAMPLED), list[_Contents]()
    if any(map(is_address, chosen)):  # use the layout alone: opening a file would send requests
        by_path = defaultdict[str, dict[str, Shape]](dict)
        for part in (part for parts in layout.datasets for part in parts):
            by_path[layout.files[part.file].path][part.path.strip("/")] = part.shape
        for shapes in (by_path[path] for path in chosen if by_path[path]):
            contents.append(_Contents(shapes, layout.row_nbytes * max(shape[0] for shape in shapes.values())))
    else:
        for path in chosen:
            with open_hdf5(path) as file:
                contents.append(_contents_of(file, names))
    fields = _fields_of_whole(contents, names)
    if not fields or any("decode=" in form for form in fields.values()):  # decode= does not take whole files
        return ""
    what = f"each of {len(request.paths):,} files holds {_names_with_shapes(contents[0], names)}"
    within = f"{request.group}/" if request.group else ""
    text = _fields_code({name.removeprefix(within): form for name, form in fields.items()})
    return _hint_text(what, "file", text, 'Objects("files")')


def _hint_text(what: str, kind: str, fields: str, samples: str) -> str:
    way_out = f"if each {kind} is a sample, write fields={fields}, samples={samples}"
    return f"{what}, whose rows are samples now; {way_out} (`h5stream inspect` shows the program)"


def _names_with_shapes(contents: _Contents, names: Sequence[str]) -> str:
    return names_text([f"{name} ({shape_text(contents.shapes[name])})" for name in names])


def _fields_code(fields: Mapping[str, str]) -> str:
    """Return the Python code of fields, from their relative paths and the arguments of `Field`."""
    forms = [f'Field("{path}", {form})' if form else f'"{path}"' for path, form in fields.items()]
    return forms[0] if len(forms) == 1 else f"[{', '.join(forms)}]"


# --- one file: groups, datasets, parts of a sparse matrix


def _hint_inside(file: h5py.File, request: Request, names: Sequence[str]) -> str:
    group = os.path.commonpath([posixpath.dirname(name) for name in names])
    if group and is_matrix(file[group]):
        what = f"{group} is a sparse matrix, and {names_text(names)} hold its values one by one"
        return f'{what}; for its rows write fields=Field("{group}", ragged="dense")'
    if request.shape is None:
        return _hint_of_datasets(file[group] if group else file, [posixpath.basename(name) for name in names])
    while group:
        if text := _hint_of_groups(file, group, [name.removeprefix(f"{group}/") for name in names]):
            return text
        group = posixpath.dirname(group)
    return ""


def _hint_of_groups(file: h5py.File, group: str, names: Sequence[str]) -> str:
    """Return a hint if groups beside a group have the same datasets and each seems to be one sample."""
    above, own = posixpath.split(group)
    parent = file[above] if above else file
    if len(parent) > _MOST_GROUPS:
        return ""
    names_beside = some_of([*parent])
    groups = [name for name in names_beside if is_hard_link(parent, name) and isinstance(parent[name], h5py.Group)]
    if len(groups) < LEAST_GROUPS or not (numbered(groups) or len(groups) >= MANY_GROUPS):
        return ""
    contents = [_contents_of(parent[name], names) for name in dict.fromkeys([own, *spread(groups, _MOST_SAMPLED)])]
    fields = _fields_of_whole([entry for entry in contents if entry.shapes], names)
    pattern = pattern_of(above, (groups, names_beside))
    if not fields or not pattern:
        return ""
    count = len(parent) - len(names_beside) + len(groups)
    finding = f"{group} is one of {count:,} like groups, and holds {_names_with_shapes(contents[0], names)}"
    return _hint_text(finding, "group", _fields_code(fields), f'Objects("{pattern}")')


def _hint_of_datasets(group: h5py.Group, names: Sequence[str]) -> str:
    """Return a hint if the datasets of a group, which are now the fields, each seem to be one sample."""
    families = defaultdict[tuple[np.dtype, int], list[str]](list)
    for name in names:
        families[group[name].dtype, group[name].ndim].append(name)
    similar = max(families.values(), key=len)
    are_most = len(similar) >= LEAST_GROUPS and datasets_are_samples(similar, [group[name].shape for name in similar])
    pattern = pattern_of("", (similar, [*group])) if are_most else ""
    if not pattern:
        return ""
    where, shape = group.name.strip("/"), shape_text(group[similar[0]].shape)
    what = f"{where or 'the root'} holds {len(similar):,} like datasets ({shape}, such as {similar[0]!r})"
    return _hint_text(what, "dataset", '"."', f'Objects("{pattern}")')


# --- the contents of a file or a group


def _contents_of(group_or_file: h5py.Group, names: Sequence[str]) -> _Contents:
    """Return the datasets in the groups of the named fields; none if a group is missing or too large."""
    shapes, nbytes, images = dict[str, Shape](), 0, dict[str, str]()
    is_labelled = any(map(LABEL.search, group_or_file.attrs))
    for where in dict.fromkeys(posixpath.dirname(name) for name in names):
        group = group_or_file.get(where) if where else group_or_file
        if not isinstance(group, h5py.Group) or len(group) > _MOST_DATASETS:
            return _Contents({})
        for name in (name for name in group if is_hard_link(group, name)):
            one, path = group[name], posixpath.join(where, name)
            if isinstance(one, h5py.Dataset) and one.shape is not None and not one.dtype.names:
                shapes[path], nbytes = one.shape, nbytes + one.nbytes
                if one.ndim == 1 and one.dtype == np.uint8:
                    check_stored(one, (0,), (min(16, len(one)),))
                    if form := format_of(one[:16].tobytes()):
                        images[path] = form
    return _Contents(shapes, nbytes, is_labelled, images)


def _fields_of_whole(contents: Sequence[_Contents], wanted: Sequence[str]) -> dict[str, str]:
    """Return the `Field` arguments of each field if files or groups are samples; empty if rows may be."""
    if len(contents) < 2 or any(map(STEPS.search, wanted)):
        return {}
    shapes = {
        name: [entry.shapes[name] for entry in contents]
        for name in contents[0].shapes
        if len({len(entry.shapes.get(name, ())) if name in entry.shapes else -1 for entry in contents}) == 1
    }
    if not shapes.keys() >= {*wanted}:
        return {}
    if images := {name: contents[0].images[name] for name in wanted if name in contents[0].images}:
        return {name: f'decode="{images[name]}"' if name in images else "" for name in wanted}
    lengths = [one[:1] for one in shapes[wanted[0]]]
    rows, labelled = [name for name in shapes if [one[:1] for one in shapes[name]] == lengths], contents[0].is_labelled
    nbytes = max(entry.nbytes for entry in contents)
    if not are_samples(shapes, rows, nbytes=nbytes, labelled=labelled) or _is_table(shapes, rows, labelled):
        return {}
    axes = {name: differing_axes(shapes[name]) for name in wanted}
    return {name: 'ragged="arrays"' if any(along) else 'ragged="pad"' * bool(along) for name, along in axes.items()}


def _is_table(shapes: Mapping[str, Sequence[Shape]], rows: Sequence[str], labelled: bool) -> bool:
    """Return whether rows of a few numbers each may be those of one large table, split into equal parts."""
    widest = max((shapes[name][0] for name in rows), key=math.prod)
    is_equal = not any(differing_axes(shapes[name]) for name in rows)
    return not labelled and is_equal and len(widest) == 2 and widest[0] >= _TABLE * widest[1]
