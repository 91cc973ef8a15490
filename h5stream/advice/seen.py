"""What `inspect` knows of a file while it looks for layouts, and what it finds: pure, from the listing."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from h5stream.advice.lines import Lines, fields_text, loader_lines, quoted
from h5stream.storage.clues import GroupEntry
from h5stream.storage.listing import DatasetEntry

BATCH_NBYTES = 256 << 20
"""Bytes of a batch that the lines ask for, at most."""

MOST_FIELDS = 16
"""Fields that the lines name, at most."""

LABEL = re.compile(
    r"label|class|target|categ|arrival|text|caption|transcript|speaker|cell_?type|cluster|age$|^y$", re.I
)
"""Names of what a sample is asked for, where shapes and numbers leave it open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Something in a file that is not rows of datasets."""

    key: str
    """A stable name."""
    datasets: tuple[str, ...]
    """What it is about."""
    what: str
    """What it is."""
    way_out: str
    """What h5stream makes of it today, and what to do instead; empty where nothing is to be done."""
    lines: Lines = ()
    """Python that streams it, or writes a file which can be streamed and streams that; empty where there is none."""
    samples: tuple[str, ...] = ()
    """Those of the datasets whose rows can be streamed as they are."""
    nbytes: float = 0.0
    """Bytes that were ever written of what it is about."""
    example: tuple[str, ...] = ()
    """Those of the datasets that stand for all of them, where they are alike; else empty."""
    samples_text: str = ""
    fields_text: str = ""
    batch_size: int = 0
    """What the lines give for ``samples=``, ``fields=`` and ``batch_size=``, by which a batch's cost is counted."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What is known of a file, and how its loader is written."""

    path: str
    """The file, as the lines name it."""
    entries: Sequence[DatasetEntry]
    """Those of its datasets that nothing is known of so far."""
    groups: Mapping[str, GroupEntry] = field(default_factory=dict)
    """Its groups, by path."""

    @cached_property
    def by_path(self) -> dict[str, DatasetEntry]:
        """The datasets by path."""
        return {entry.path: entry for entry in self.entries}

    @cached_property
    def by_group(self) -> dict[str, dict[str, DatasetEntry]]:
        """The datasets of each group, by name."""
        found: dict[str, dict[str, DatasetEntry]] = defaultdict(dict)
        for entry in self.entries:
            group, _, name = entry.path.rpartition("/")
            found[group][name] = entry
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

    def kind(
        self,
        key: str,
        entries: Iterable[DatasetEntry],
        what: str,
        way_out: str,
        fields: Mapping[str, str],
        *,
        samples: str = "",
        samples_count: int = 1 << 30,
        sample_nbytes: float = 0,
        rows: Iterable[DatasetEntry] = (),
        before: Lines = (),
        of_rows: bool = False,
        example: Iterable[DatasetEntry] = (),
    ) -> Kind:
        """Make a kind whose lines are a loader's."""
        about = [*entries]
        batch = max(1, min(256 if of_rows else 64, samples_count, int(BATCH_NBYTES // max(1, sample_nbytes))))
        return Kind(
            key=key,
            datasets=tuple(entry.path for entry in about),
            what=what,
            way_out=way_out,
            lines=loader_lines(self.path, fields, batch_size=batch, samples=samples, before=before),
            samples=tuple(entry.path for entry in rows),
            nbytes=sum(entry.written_nbytes for entry in about),
            example=tuple(entry.path for entry in example),
            samples_text=samples,
            fields_text="" if before else fields_text(fields, as_dict=True),
            batch_size=batch,
        )


# --- fields --------------------------------------------------------------------------------------------------


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
    return f"{form[:-1] if form.startswith('Field(') else f'Field({form}'}, names={names})"


def most_of(members: Mapping[str, DatasetEntry]) -> list[str]:
    """Return the names that the lines have: all, or where these are many those with the most bytes."""
    most = sorted(members, key=lambda name: -members[name].raw_nbytes)[:MOST_FIELDS]
    return [name for name in members if name in most]


def keyed(entries: Iterable[DatasetEntry]) -> dict[str, str]:
    """Give fields by short names."""
    return short_keys({entry.path: form_of(entry) for entry in entries})


def short_keys(fields: Mapping[str, str]) -> dict[str, str]:
    """Give fields by the ends of their paths, where these differ."""
    short = [last_name(name) for name in fields]
    differ = len(set(short)) == len(short)
    return dict(zip(short if differ else fields, fields.values(), strict=True))


def last_name(path: str) -> str:
    """Return the end of the path of a dataset, or of a member.

    Examples
    --------
    >>> last_name("obs:cell_type"), last_name("data/x")
    ('cell_type', 'x')
    """
    return re.split(r"[/:]", path)[-1]


def named(names: Sequence[str]) -> str:
    """Write names one behind the other, in a sentence.

    Examples
    --------
    >>> named(["a", "b", "c"])
    'a, b and c'
    """
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
