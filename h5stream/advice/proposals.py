"""What detectors see of a file, what they propose to make of it, and the fields that they write: pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from h5stream.advice.listing import DatasetEntry, GroupEntry
from h5stream.advice.program import Lines, fields_text, loader_lines, quoted, tried
from h5stream.advice.suggestion import batch_rows

MOST_FIELDS = 16  # fields that the lines name, at most

# Names of what a sample is asked for, where shapes and numbers leave it open.
LABEL = re.compile(
    r"label|class|target|categ|arrival|text|caption|transcript|speaker|cell_?type|cluster|age$|^y$", re.I
)


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """Something in a file that is not rows of datasets, and what to make of it."""

    key: str  # a stable name
    path: str = ""  # the file, as the lines name it
    allow_external: bool = False  # whether what leads out of it is followed
    about: Sequence[DatasetEntry] = ()
    what: str
    way_out: str = ""  # what h5stream makes of it, and what to do instead; empty where nothing is to be done
    fields: Mapping[str, str] = field(default_factory=dict)  # what the loader is given, as Python
    samples_text: str = ""
    before: Lines = ()  # lines with h5py that come before it
    written: Lines = ()  # a program that is no loader's alone, in place of these
    batch_size: int = 0  # samples of a batch, once it is tried
    rows: Sequence[DatasetEntry] = ()  # those of the datasets whose rows can be streamed as they are
    example: Sequence[DatasetEntry] = ()  # those of the datasets that stand for all of them, where they are alike
    some: Mapping[str, list[str]] = field(default_factory=dict)
    """By a pattern of very many, or a name of the lines before, as Python, those looked at, on which it is tried."""
    is_refused: bool = False  # whether it was tried in vain: there are no lines, and the way out says why

    @property
    def lines(self) -> Lines:
        """Python that streams it; empty where there is none."""
        options = ["allow_external=True"] * self.allow_external
        if self.written or not self.fields:
            return self.written
        return loader_lines(self.path, self.fields, self.batch_size, self.samples_text, self.before, options)

    @property
    def datasets(self) -> tuple[str, ...]:
        """What it is about."""
        return tuple(entry.path for entry in self.about)

    @property
    def fields_text(self) -> str:
        """What ``fields=`` is given, where no lines come before."""
        return "" if self.before or not self.fields else fields_text(self.fields, as_dict=True)

    @property
    def nbytes(self) -> float:
        """Bytes that were ever written of what it is about."""
        return sum(entry.written_nbytes for entry in self.about)

    def tried(self, files: Sequence[str] = ()) -> Proposal:
        """Return it as it may be printed: what is refused when some samples are read becomes prose."""
        if not self.fields:
            return self
        given = (self.fields, self.samples_text, self.some, self.allow_external)
        found = tried([*files] or self.path, *given)
        if found.refused:
            way_out = f"It cannot be streamed as it is: {found.refused}".rstrip(".")
            return replace(self, way_out=way_out, fields={}, is_refused=True)
        are_rows = self.samples_text[:4] in ("", "Rows") and not any("{}" in form for form in self.fields.values())
        most = 256 if are_rows else 64
        count = most if files or self.some else found.samples
        return replace(self, batch_size=max(1, min(most, count, batch_rows(None, found.sample_nbytes))))

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain containers for JSON."""
        names = ("key", "datasets", "what", "way_out", "lines", "nbytes", "samples_text", "fields_text", "batch_size")
        entries = {"samples": self.rows, "example": self.example}
        paths = {name: [entry.path for entry in of] for name, of in entries.items()}
        return {name: getattr(self, name) for name in names} | paths


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What is known of a file, and not yet taken."""

    path: str
    entries: Sequence[DatasetEntry]
    groups: Mapping[str, GroupEntry] = field(default_factory=dict)

    @cached_property
    def by_path(self) -> dict[str, DatasetEntry]:
        """The datasets by path."""
        return {entry.path: entry for entry in self.entries}

    @cached_property
    def by_group(self) -> dict[str, dict[str, DatasetEntry]]:
        """The datasets of each group, by name."""
        found: dict[str, dict[str, DatasetEntry]] = defaultdict(dict)
        for entry in self.entries:
            found[entry.group][entry.path.rpartition("/")[2]] = entry
        return found

    @cached_property
    def by_rows(self) -> dict[int, list[DatasetEntry]]:
        """The datasets by their number of rows."""
        found: dict[int, list[DatasetEntry]] = defaultdict(list)
        for entry in self.entries:
            found[entry.rows or 0].append(entry)
        return found

    def children(self, group: str) -> set[str]:
        """Return the names of what lies in a group and holds datasets, or is one."""
        above = f"{group}/" if group else ""
        return {entry.path[len(above) :].split("/")[0] for entry in self.entries if entry.path.startswith(above)}

    def attributes(self, group: str) -> tuple[str, ...]:
        """Return the attributes of a group that can be fields."""
        return self.groups[group].attributes if group in self.groups else ()

    def count(self, group: str, seen: int) -> int:
        """Return how many of a group's links there are, of which some that are alike were seen."""
        entry = self.groups.get(group)
        return seen if entry is None else seen + entry.links - entry.looked_at


# --- fields, names ----------------------------------------------------------------------------------------


def form_of(entry: DatasetEntry, name: str = "", *, ragged: str = "") -> str:
    """Write the field that a dataset is, as Python, under its path or another name."""
    text = quoted(name or entry.path)
    if entry.clues.image:
        return f'Field({text}, decode="{entry.clues.image}")'
    if ragged or entry.is_numbers_of_any_length:
        return f'Field({text}, ragged="{ragged or "packed"}")'
    return text


def looked_up(form: str, names: str) -> str:
    """Write a field of datasets that names say, of one that `form_of` wrote."""
    return f"{form[:-1] if form.startswith('Field(') else f'Field({form}'}, lookup={names})"


def most_of(members: Mapping[str, DatasetEntry]) -> list[str]:
    """Return the names that the lines have: all, or where these are many those with the most bytes."""
    most = sorted(members, key=lambda name: -members[name].raw_nbytes)[:MOST_FIELDS]
    return [name for name in members if name in most]


def keyed(entries: Iterable[DatasetEntry]) -> dict[str, str]:
    """Return fields by short names."""
    return short_keys({entry.path: form_of(entry) for entry in entries})


def short_keys(fields: Mapping[str, str]) -> dict[str, str]:
    """Return fields by the ends of their paths, where these differ."""
    short = [last_name(name) for name in fields]
    return dict(zip(short if len(set(short)) == len(short) else fields, fields.values(), strict=True))


def last_name(path: str) -> str:
    """Return the end of the path of a dataset, or of a member."""
    return re.split(r"[/:]", path)[-1]


def named(names: Sequence[str]) -> str:
    """Write names one behind the other, in a sentence."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
