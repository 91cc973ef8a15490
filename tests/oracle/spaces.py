"""Which samples there are, worked out by walking through the files with h5py: the first half of the model."""

import fnmatch
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from .calls import is_call
from .stored import RefusalError, attribute_of, resolved, values_of


@dataclass
class Part:
    """Where names are looked up: a file, or a group or dataset of it; what was read is kept."""

    file: h5py.File
    path: str
    known: dict[str, Any] = field(default_factory=dict)

    def read(self, name: str) -> Any:
        """Read a dataset, a member of one behind a colon, or an attribute behind an @."""
        if name not in self.known:
            try:
                self.known[name] = self._read(name)
            except Exception as error:  # which would be the same the next time, and may take long
                self.known[name] = error
        if isinstance(self.known[name], Exception):
            raise self.known[name]
        return self.known[name]

    def path_of(self, name: str) -> str:
        """Return the path of what a name leads to; "." is this part itself, a slash leads beside it or to the root."""
        if name.startswith("/"):
            above, _, last = name.rpartition("/")
            member = re.fullmatch(r"[^*]*\*+(:.*)", last)
            own = self.path.rpartition("/")[2] + (member[1] if member else "")
            return f"{above}/{own}" if "*" in last and not self._is_there(name) else name
        behind = name[1:] if name[:1] == "." and name[1:2] in ("", ":", "@") else f"/{name}"
        return f"{self.path}{behind if name[:1] not in ('@', '') else name}"

    def _is_there(self, name: str) -> bool:
        """Tell whether a path from the root leads to something as it is."""
        try:
            return bool(resolved(self.file, name)[0])
        except KeyError:
            return False

    def find(self, name: str) -> tuple[Any, tuple[str, ...], str]:
        """Find the object that a name leads to, the members of its compound, and the attribute."""
        return resolved(self.file, self.path_of(name))

    def at(self, name: str) -> Any:
        """Return the h5py object of a name, or rows that are objects with numbers in their names."""
        if self.is_numbered(name):
            return self._numbered(*name.split("{}"))
        return self.find(name)[0]

    def is_numbered(self, name: str) -> bool:
        """Tell whether a name has a place for numbers, and is none itself."""
        return "{}" in name and self.path_of(name) not in self.file and not self.has(name)

    def is_attribute(self, name: str) -> bool:
        """Tell whether a name leads to an attribute."""
        return "@" in name and self.has(name) and bool(self.find(name)[2])

    def has(self, name: str) -> bool:
        """Tell whether there is a dataset, a member or an attribute of a name."""
        try:
            return bool(self.find(name)[0])
        except KeyError:
            return False

    def members(self, name: str, wanted: Sequence[str]) -> np.ndarray:
        """Read some members of a compound, side by side; others may be of a type that h5py does not read."""
        owner, above, _ = self.find(name)
        return np.stack([values_of(owner, (*above, one)) for one in wanted], axis=-1)

    def _numbered(self, before: str, behind: str) -> Any:
        """Return objects with numbers in their names as rows, in the order of these."""
        above, _, stem = f"{self.path}/{before}".rpartition("/")
        numbers = sorted(int(name[len(stem) :]) for name in self.file[above or "/"] if name.startswith(stem))
        if not numbers:
            return np.zeros(0)
        every = (resolved(self.file, f"{above}/{stem}{number}{behind}") for number in numbers)
        return np.stack([values_of(owner, members) for owner, members, _ in every])

    def _read(self, name: str) -> Any:
        if self.is_numbered(name):
            return self._numbered(*name.split("{}"))
        owner, members, attribute = self.find(name)
        return attribute_of(owner, attribute) if attribute else values_of(owner, members)


@dataclass
class Sample:
    """One sample: its part, its row and those of other columns, the segment, and the index of axis 0 or the origin."""

    part: Part
    row: int = 0
    first: int = 0
    end: int = 0
    index: int | None = None
    columns: dict[str, int] = field(default_factory=dict)
    origin: tuple[int, ...] = ()
    segment: int = 0


def matched(file: h5py.File, pattern: str) -> list[str]:
    """List what a pattern matches, level by level; the name of an object is that object."""
    if pattern in file:
        return [f"/{pattern}"]
    found = [""]
    for level in pattern.split("/"):
        found = [
            f"{one}/{name}"
            for one in found
            if isinstance(file[one or "/"], h5py.Group)
            for name in file[one or "/"]
            if fnmatch.fnmatchcase(name, level)
        ]
    return found


def parts_of(paths: list[Path], of: Any, datasets: bool = False) -> list[Part]:
    """Open the parts that `of` names, in their order."""
    files = [h5py.File(path, "r", locking=False) for path in paths]
    if of in (None, "files", "rows") or isinstance(of, dict):
        return [Part(file, "/") for file in files]
    found = []
    for file in files:
        names = matched(file, of) if isinstance(of, str) else of
        kinds = h5py.Dataset if datasets else h5py.Group
        found += [Part(file, name) for name in names if isinstance(file[name], kinds)]
    return found


def steps_of(tree: Any, length: int | None) -> list[int] | None:
    """Return the steps of a field, None where it takes one row."""
    options = tree["options"] if isinstance(tree, dict) else {}
    if options.get("steps") is not None:
        return list(options["steps"])
    if length is None:
        return None
    scale = options.get("scale")
    return list(range(length if scale is None else max(1, round(length * scale))))


def edges_of(part: Part, of: Any, rows: int, base: int) -> list[int]:
    """Return where the segments of a part begin, and where the last ends; arrays count from `base` rows before it."""
    if not isinstance(of, dict):
        return [0, rows]
    is_array = isinstance(of["args"][0], list)
    values = [np.asarray(one if is_array else part.read(one)) for one in of["args"]]
    if any(one.dtype.kind == "O" for one in values):
        raise RefusalError("lists where values are compared")
    if of["call"] in ("Ends", "Ids"):
        values = [one[base : base + rows] if is_array else one for one in values]
        ends = np.any([one != 0 for one in values], axis=0)
        changes = np.flatnonzero(ends if of["call"] == "Ends" else values[0][1:] != values[0][:-1]) + 1
        return sorted({0, *changes.tolist(), rows})
    edges = np.cumsum(values[0]) if of["call"] == "Lengths" else values[0]
    inside = edges - base if is_array else edges
    return sorted({0, *inside[(inside > 0) & (inside < rows)].tolist(), rows})


def anchors(first: int, end: int, options: dict[str, Any], least: int, most: int) -> list[int]:
    """Walk through a segment, row by row, and return those at which a sample begins."""
    limits = options["pad_rows"]["args"] if options.get("pad_rows") else (1 << 30, 1 << 30)
    before, after = (0, 0) if options.get("pad") is None else limits
    fits = range(max(first, first - least - before), min(end, end + after - most))
    chosen = [*fits[:: options.get("stride", 1)]]
    if options.get("tail") == "shift" and fits and fits[-1] not in chosen:
        chosen.append(fits[-1])
    return chosen


def box_origins(shape: tuple[int, ...], boxes: dict[str, Any], multiples: list[int]) -> list[tuple[int, ...]]:
    """List the first elements of all boxes of a grid, or of all that a random draw may take."""
    inner, options = boxes["args"][0]["args"], boxes["options"]
    stride = options["stride"]["args"] if options.get("stride") else inner
    along = []
    for whole, size, step, multiple in zip(shape, inner, stride, multiples, strict=True):
        if options.get("at", "random") == "random":
            along.append(list(range(0, max(whole - size, 0) + 1, multiple)))
        else:
            last = max(0, whole - size)
            along.append(sorted({*range(0, last + 1, step), last}))
    return list(itertools.product(*along))


def row_count(model: Any, part: Part, axis: int) -> int:
    """Return how many rows a part has along an axis: those of its fields that have the axis, the fewest of them."""
    found: list[int] = []
    lookups: list[int] = []
    certain: list[int] = []
    for tree in model.fields.values():
        name, options = (tree, {}) if isinstance(tree, str) else ((tree["args"] or [""])[0], tree["options"])
        if not (isinstance(tree, str) or is_call(tree, "Field")) or part.is_attribute(name):
            continue
        if "unlike" in model.case.get("marks", ()) and not part.has(name):
            return 0  # a file without a group has no rows of it
        if {"repeat", "scale"} & set(options) or options.get("axis") is not None:
            continue
        if "rows" in options or "names" in options:
            (certain if says_without_doubt(options) else lookups).extend(looked_up_rows(part, options))
            continue
        if options.get("ragged") == "dense" or model.is_sparse(part, name):
            found.append(len(part.read(f"{name}/indptr")) - 1)
        else:
            there = model.elsewhere(options)[model.paths.index(Path(part.file.filename))] if "file" in options else part
            shape = there.at(name).shape
            if len(shape) > abs(axis) or axis < 0:
                found.append(shape[axis])
    model.is_alone = bool(lookups) and not found and not certain  # nothing else says how many samples there are
    return min(found or certain or lookups or [0])


def says_without_doubt(options: dict[str, Any]) -> bool:
    """Tell whether a dataset that looks up says how many samples there are; bounds may be of one sample more."""
    rows = options.get("rows", options.get("names"))
    if not isinstance(rows, dict):
        return isinstance(rows, str)
    is_named = bool(rows["args"]) and isinstance(rows["args"][0], str)
    return is_named and (rows["call"] != "Bounds" or bool(rows["options"].get("holds")))


def looked_up_rows(part: Part, options: dict[str, Any]) -> list[int]:
    """Return how many samples a part has where fields are looked up alone: as many as name a row, or an object."""
    rows = options.get("rows", options.get("names"))
    if isinstance(rows, list) or is_call(rows, "Spread"):
        return [len(rows)] if isinstance(rows, list) else []
    given = rows if isinstance(rows, str) else rows["args"][0]
    is_one_more = is_call(rows, "Bounds") and rows["options"].get("holds", "bounds") == "bounds"
    return [len(given if isinstance(given, list) else part.read(given)) - is_one_more]


def samples_of(model: Any) -> list[Sample]:
    """List every sample, in the order of their numbers."""
    tree, paths = model.case.get("samples"), model.paths
    if tree is None:
        parts = model.parts = parts_of(paths, None)
        return [Sample(part, row) for part in parts for row in range(row_count(model, part, 0))]
    options = tree["options"]
    of, axis = options.get("of"), options.get("axis") or 0
    if tree["call"] == "Objects":
        of = tree["args"][0]
        fields = model.fields.values()
        datasets = any((one if isinstance(one, str) else (one["args"] or [""])[0]) == "." for one in fields)
        return [Sample(part) for part in parts_of(paths, of, datasets) if model.has_all(part, options)]
    if tree["call"] == "Table":
        return table_samples(model, tree)
    parts = model.parts = parts_of(paths, of)
    if tree["call"] == "Boxes":
        return box_samples(model, tree, parts)
    found: list[Sample] = []
    segments = base = 0
    length = tree["args"][0] if tree["args"] else None
    every = [steps_of(one, length) or [0] for one in model.fields.values() if model.steps_count(one)]
    every = every or [list(range(length or 1))]
    least, most = min(map(min, every)), max(map(max, every))
    for part in parts:
        rows = row_count(model, part, axis)
        indices = range(model.first_axis(part, axis)) if of == "rows" else [None]
        for index, (first, end) in itertools.product(indices, itertools.pairwise(edges_of(part, of, rows, base))):
            starts = range(first, end) if tree["call"] == "Rows" else anchors(first, end, options, least, most)
            inside = [row for row in starts if model.fits_scaled(part, row, length)]
            found += [Sample(part, row, first, end, index, segment=segments) for row in inside]
            segments += 1
        base += rows
    return found


def table_samples(model: Any, tree: Any) -> list[Sample]:
    """List the samples of a table."""
    columns = tree["options"]
    groups = parts_of(model.paths, list(dict.fromkeys(columns.get("group", []))))
    by_group = {part.path.lstrip("/"): part for part in groups}
    files, found = parts_of(model.paths, None), []
    model.parts = groups or files
    counts = [row_count(model, part, 0) for part in files] if "group" not in columns else []
    edges = np.cumsum([0, *counts])
    names = [name for name in columns if name not in ("length", "pad", "group", "file")]
    for k in range(len(columns["row"])):
        values = {name: columns[name][k] for name in names}
        if "group" in columns:
            part, base = by_group[columns["group"][k]], 0
        elif "file" in columns:
            part, base = files[columns["file"][k]], 0
        else:
            number = min(int(np.searchsorted(edges, values["row"], side="right")), len(files)) - 1
            part, base = files[number], int(edges[number])
        values = {name: value - base for name, value in values.items()}
        found.append(Sample(part, values["row"], 0, row_count(model, part, 0), None, values))
    return found


def box_samples(model: Any, tree: Any, parts: list[Part]) -> list[Sample]:
    """List the boxes of all volumes."""
    at, axes = tree["options"].get("at", "random"), len(tree["args"][0]["args"])
    shapes = [model.volume(part, axes) for part in parts]
    if not isinstance(at, str):
        found = [(0, *one) if len(one) == axes else tuple(one) for one in at]
        return [Sample(parts[one[0]], origin=tuple(one[1:])) for one in found]
    multiples = model.multiples(axes)
    every = [box_origins(shape, tree, multiples) for shape in shapes]
    volumes = enumerate(zip(parts, every, strict=True))
    return [Sample(part, origin=origin, segment=k) for k, (part, origins) in volumes for origin in origins]
