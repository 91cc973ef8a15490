"""How `h5stream inspect` looks: tables of datasets, what a batch costs, advice."""

from __future__ import annotations

import datetime
import math
import re
import shlex
from collections.abc import Iterator, Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from h5stream.advice.cost_in_words import count_text, counted, names_text, shape_text
from h5stream.advice.inspection import Inspection, RowGroup
from h5stream.advice.kinds import printed_of
from h5stream.advice.layout_advice import EVERY_EPOCH, Advice
from h5stream.advice.sample_cost import SampleCost
from h5stream.advice.samples_cost import SamplesCost
from h5stream.advice.seen import Kind
from h5stream.cli.showing import printable
from h5stream.storage.catalogue import Kept
from h5stream.storage.layout import DECODED, DIRECT, HEAP, VIA_H5PY
from h5stream.storage.listing import DAMAGED, REFUSED, DatasetEntry
from h5stream.units import text_of_bytes

# Unless --all is given: datasets of one length, members of one compound, and lengths, that are listed.
_LISTED = 12
_LISTED_GROUPS = 5

# From this width on there is room for shapes of chunks beside their sizes.
_WIDE = 110

# Characters of a type before it goes on in the next line, and of the names for which other columns leave room.
_WIDE_TYPE, _NARROW_TYPE = 28, 20
_LEAST_NAME = 12

_ACCESS_MEANS = {
    DIRECT: "bytes as they lie in the file",
    DECODED: "filters undone by h5stream's threads",
    HEAP: "values of variable length, read by h5stream's threads",
    VIA_H5PY: "through h5py, slower",
    REFUSED: "not at all",
}
_ACCESS_STYLES = {VIA_H5PY: "yellow", REFUSED: "red"}


def _heading(text: str) -> Text:
    return Text(text, style="bold cyan")


# --- the datasets -----------------------------------------------------------------------------------------


def _datasets(found: Inspection, console: Console, *, everything: bool) -> Iterator[RenderableType]:
    wide = console.width >= _WIDE
    alike = {name for kind in found.kinds if kind.example for name in kind.datasets}
    alike -= {name for kind in found.kinds for name in kind.example}
    rows = [group for one in found.groups if (group := _without_roles(one, alike)).datasets]
    rows.sort(key=lambda group: not group.rows)
    listed = list(found.groups) if everything else rows[:_LISTED_GROUPS]
    shown = [group.datasets[: None if everything else _LISTED] for group in listed]
    yield from _Table([entry for entries in shown for entry in entries], console.width, wide).lines(
        listed, shown, everything=everything
    )
    if legend := _legend([entry for entries in shown for entry in entries if entry.rows]):
        yield Text(legend, style="dim")
    if everything:
        return
    apart = sum(bool(entry.role) for group in found.groups for entry in group.datasets)
    left = sum(len(group.datasets) for group in rows[len(listed) :])
    for count, what in (
        (
            left,
            f" of {len(rows) - len(listed):,} other lengths" if len(rows) > len(listed) + 1 else " of another length",
        ),
        (apart, " without data of their own, such as indexes" if apart > 1 else " without data of its own"),
        (len(alike), " like one of these"),
        (found.left_out, " not looked at"),
    ):
        if count:
            yield Text(f"and {counted(count, 'dataset')}{what} (--all)", style="dim")


def _legend(entries: Sequence[DatasetEntry]) -> str:
    """Explain the columns that do not explain themselves."""
    accesses = {entry.access for entry in entries}
    said = ["ratio: how many times smaller filters make it"] if any(entry.filters for entry in entries) else []
    return "; ".join([*said, *(f"{access} = {means}" for access, means in _ACCESS_MEANS.items() if access in accesses)])


def _without_roles(group: RowGroup, alike: set[str]) -> RowGroup:
    kept = tuple(entry for entry in group.datasets if not entry.role and entry.path not in alike)
    return RowGroup(rows=group.rows, datasets=kept)


class _Table:
    """Datasets beneath one another, a line each; a name that is too long for its column has a line of its own.

    Not rich's table: that breaks names, and a broken name cannot be copied.
    """

    def __init__(self, entries: Sequence[DatasetEntry], width: int, wide: bool) -> None:
        self._wide, self._width = wide, width
        self._titles = [
            "a row", "chunk" if wide else "chunk rows", "chunk size", "filters", *(["stored"] if wide else []), "ratio",
            "read",
        ]  # fmt: skip
        self._right = [False, not wide, True, False, *([True] if wide else []), True, False]
        type_width = _WIDE_TYPE if wide else _NARROW_TYPE
        cells = [[cell.plain for cell in self._cells(entry)] for entry in entries]
        self._widths = [
            min(max([*map(len, column), max(map(len, title.split()))]), type_width)
            for title, column in zip(self._titles, zip(*cells, strict=True), strict=True)
        ] if cells else [len(title) for title in self._titles]  # fmt: skip
        room = width - sum(self._widths) - (2 if wide else 1) * len(self._widths)
        longest = max(len("dataset"), *(len(entry.path) + 2 for entry in entries), 0)
        self._name_width = min(longest, max(_LEAST_NAME, room)) if longest <= room else max(_LEAST_NAME, min(room, 26))

    def lines(
        self, groups: Sequence[RowGroup], shown: Sequence[Sequence[DatasetEntry]], *, everything: bool
    ) -> Iterator[Text]:
        """Return the lines of the table."""
        yield from self._line(Text("dataset"), [Text(title) for title in self._titles], style="dim")
        for group, entries in zip(groups, shown, strict=True):
            yield Text("no rows" if group.rows is None else counted(group.rows, "row"), style="bold")
            for entry in entries:
                yield from self._line(
                    Text(f"  {entry.path}"), self._cells(entry), style="" if group.rows and not entry.role else "dim"
                )
                yield from self._members(entry, everything=everything)
            if left := len(group.datasets) - len(entries):
                yield Text(f"  and {left:,} more (--all)", style="dim")

    def _line(self, name: Text, cells: Sequence[Text], style: str) -> Iterator[Text]:
        folded = [
            _folded(cell.plain, width) if len(cell) > width else [cell.plain]
            for cell, width in zip(cells, self._widths, strict=True)
        ]
        depth = max(map(len, folded))
        if len(name) > self._name_width:
            yield _whole(name.plain, style)
            name = Text("")
        for place in range(depth):
            line = Text(name.plain.ljust(self._name_width) if place == 0 else " " * self._name_width, style=style)
            for cell, parts, width, right in zip(cells, folded, self._widths, self._right, strict=True):
                part = parts[place] if place < len(parts) else ""
                line.append("  " if self._wide else " ")
                line.append(part.rjust(width) if right else part.ljust(width), style=cell.style or style)
            line.rstrip()
            yield line

    def _cells(self, entry: DatasetEntry) -> list[Text]:
        shape = entry.chunk_shape
        if self._wide:
            chunk = shape_text(shape) if shape else entry.layout
        else:
            chunk = f"{shape[0]:,}" if shape else "-"
        return [
            Text(_row_text(entry, _WIDE_TYPE if self._wide else _NARROW_TYPE)),
            Text(chunk),
            Text(text_of_bytes(entry.chunk_nbytes) if shape else "-"),
            Text((entry.filters if self._wide else entry.filters.replace(" + ", "+")) or "none"),
            *([Text(text_of_bytes(entry.stored_nbytes))] if self._wide else []),
            Text(f"{entry.ratio:,.1f}" if entry.ratio and entry.filters else "-"),
            Text(entry.access, style=_ACCESS_STYLES.get(entry.access, "green")) if _is_shown(entry) else Text("-"),
        ]

    def _members(self, entry: DatasetEntry, *, everything: bool) -> Iterator[Text]:
        """List the members of a compound by the names under which they are fields."""
        shown = entry.members[: None if everything else _LISTED]
        width = max((len(member.name) for member in shown), default=0)
        if any(4 + width + 2 + len(member.dtype) > self._width for member in shown):
            width = 0  # a name that is long gets no company; it is not broken
        for member in shown:
            name, room = f"    {member.name.ljust(width)}", self._width - len(member.dtype) - 2
            yield from (
                [_whole(f"{name}  {member.dtype}", "dim")]
                if len(name) <= room
                else [_whole(name, "dim"), _whole(f"      {member.dtype}", "dim")]
            )
        if left := len(entry.members) - len(shown):
            yield Text(f"    and {left:,} more members (--all)", style="dim")


def _is_shown(entry: DatasetEntry) -> bool:
    """Tell whether it matters how a dataset is reached: it has rows, or it is damaged and nothing is known of it."""
    return bool(entry.rows) or entry.layout == DAMAGED


def _folded(text: str, width: int) -> list[str]:
    """Break a text after spaces and plus signs."""
    lines = [""]
    for part in re.split(r"(?<=[ +])", text):
        if lines[-1] and len(lines[-1] + part.rstrip()) > width:
            lines.append("")
        lines[-1] += part
    return [line.rstrip() for line in lines]


def _whole(text: str, style: str = "") -> Text:
    """Make a line that is printed as it is, however long: it is there to be copied."""
    return Text(text, style=style, no_wrap=True, overflow="ignore")


def _row_text(entry: DatasetEntry, width: int) -> str:
    inner = entry.shape[1:] if entry.shape else ()
    text = f"{shape_text(inner)} {entry.dtype}" if inner else entry.dtype
    if not entry.members:
        return text
    count = len(entry.members)
    return f"{shape_text(inner)} of " * bool(inner) + (f"{count:,} members" if count > 1 else "1 member")


def _reasons(found: Inspection) -> Iterator[RenderableType]:
    """Say why datasets with rows are refused, or read through h5py; those that are alike share a line."""
    by_reason: dict[tuple[str, str], list[str]] = {}
    for group in found.groups:
        for entry in group.datasets:
            if _is_shown(entry) and entry.access in _ACCESS_STYLES and not entry.role:
                by_reason.setdefault((entry.access, entry.reason), []).append(entry.path)
    for (access, reason), paths in by_reason.items():
        names = ", ".join(paths[:3]) + (f" and {len(paths) - 3:,} more" if len(paths) > 3 else "")
        yield Text.assemble((access, _ACCESS_STYLES[access]), f"  {names}: {reason}")


# --- what it is, and what to write ------------------------------------------------------------------------


def _kinds(found: Inspection) -> Iterator[RenderableType]:
    if found.kinds:
        yield _heading("What is special about this file")
    for place, kind in enumerate(sorted(found.kinds, key=lambda kind: not _has_lines(kind, found))):
        if place:
            yield Text()
        yield Text(f"{kind.what}.")
        if kind.way_out:
            yield Text(f"{kind.way_out}{':' if _has_lines(kind, found) else '.'}")
        if _has_lines(kind, found):
            yield from _code(kind.lines)
            yield from _command(kind, found.file)


def _has_lines(kind: Kind, found: Inspection) -> bool:
    """Say whether to print a kind's program: where there is no other way, or its samples are only a part."""
    return kind is printed_of(found.kinds, found.sample is not None)


def _command(kind: Kind, file: str) -> Iterator[RenderableType]:
    """Return the command that counts what a batch of a kind's samples costs, a line for each option and field."""
    if not kind.fields_text:
        return
    yield Text("This counts what a batch of these costs:")
    alone = re.fullmatch(r'"([\w./]+)"', kind.fields_text)
    fields = alone[1] if alone and kind.samples_text else shlex.quote(kind.fields_text)
    if len(fields) > 60:
        fields = re.sub(r', (?="[^"]*": )', ",\n        ", fields)
    words = [f"h5stream inspect {shlex.quote(file)} --batch-size {kind.batch_size}"]
    words += [f"--samples {shlex.quote(kind.samples_text)}"] if kind.samples_text else []
    for line in " \\\n    ".join([*words, f"--fields {fields}"]).splitlines():
        yield _whole(f"    {line}", "bold")


def _code(lines: Sequence[str]) -> Iterator[Text]:
    for line in lines:
        yield _whole(f"    {line}" if line else "", "green")


def _to_stream_it(found: Inspection, sample: SampleCost) -> Iterator[RenderableType]:
    if printed_of(found.kinds, has_rows=True):
        return  # the lines of that are there
    yield _heading("To stream it")
    yield Text(_why_these(sample))
    yield from _code(found.lines)
    members = {e.path: e.members for group in found.groups for e in group.datasets}
    compound = next((name for name in sample.fields if members.get(name)), None)
    if compound is not None:
        alone = members[compound][0].name
        yield Text(f"{compound} comes as a dict of its members; a member alone is a field too, such as {alone!r}.")


def _why_these(sample: SampleCost) -> str:
    if sample.chosen_by == "named":
        return "The fields that you named:"
    many = len(sample.fields) > 1
    if sample.chosen_by == "root":
        which = f"a row of each of the {len(sample.fields):,} datasets" if many else "a row of the dataset"
        return f"A sample is {which} at the root, as H5StreamLoader has it by default; --fields tries others:"
    which = f"each of these {len(sample.fields):,} fields, which have" if many else "this field, which has"
    return f"A sample is taken for a row of {which} the most data; --fields tries others:"


# --- what a batch costs -----------------------------------------------------------------------------------


def _cost(sample: SampleCost, as_they_are: str) -> Iterator[RenderableType]:
    fewer = f" (there are no {sample.batch_size:,})" if sample.batch_rows < sample.batch_size else ""
    yield _heading(f"A shuffled batch of {counted(sample.batch_rows, 'row')}{as_they_are}")
    one, together = text_of_bytes(sample.row_nbytes), text_of_bytes(sample.batch_nbytes)
    size = f"of {one} make {together}" if sample.row_nbytes else "of no fixed size"
    yield Text(f"{counted(sample.batch_rows, 'row')}{fewer} {size}.")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("average, first epoch")
    for title in ("needed", "row by row, h5py", "h5stream"):
        table.add_column(title, justify="right")
    naive, ours = sample.naive, sample.ours
    table.add_row(
        "read from the file",
        text_of_bytes(sample.needed_read_nbytes),
        _amplified(naive.read_nbytes, naive.read_amplification),
        _amplified(ours.read_nbytes, ours.read_amplification),
    )
    if sample.needed_decoded_nbytes:
        table.add_row(
            "decoded",
            text_of_bytes(sample.needed_decoded_nbytes),
            _amplified(naive.decoded_nbytes, naive.decode_amplification),
            _amplified(ours.decoded_nbytes, ours.decode_amplification),
        )
    table.add_row("chunks, or runs of rows", "", count_text(naive.chunks), count_text(ours.chunks))
    yield table
    yield from _labelled([("row by row", sample.naive_words), ("h5stream", _our_words(sample))])


def _amplified(nbytes: float, amplification: float | None) -> str:
    if amplification is None:
        return text_of_bytes(nbytes)
    return f"{text_of_bytes(nbytes)}  {_times(amplification):>7}"


def _times(amplification: float) -> str:
    return f"{amplification:,.0f}x" if amplification >= 99.95 else f"{amplification:.1f}x"


def _our_words(sample: SampleCost) -> Iterator[str]:
    yield from sample.our_words
    if sample.decode_rows_per_s is not None:
        threads = f"{sample.threads} threads" if sample.threads > 1 else "1 thread"
        rate = float(f"{sample.decode_rows_per_s:.2g}")
        yield f"undoing filters alone allows {rate:,.0f} rows/s on {threads} (timed on chunks of this file)"
    yield _first_batch_words(sample)
    yield f"memory: {text_of_bytes(sample.memory_nbytes)} at most, of a budget of {text_of_bytes(sample.memory_budget)}"
    if sample.kept_rows_nbytes:
        yield f"of it {text_of_bytes(sample.kept_rows_nbytes)} are decoded rows that stay for later epochs"
    if sample.device_nbytes:
        nbytes = text_of_bytes(sample.device_nbytes)
        yield f"on a device all samples take {nbytes}, at most half of what is free there (keep='device')"
    if sample.notice:
        yield sample.notice


def _first_batch_words(sample: SampleCost) -> str:
    """Say what comes before the first batch; its time is of that work alone, and starting up is not in it."""
    first = sample.first_batch
    decoded = f" ({text_of_bytes(first.decoded_nbytes)} decoded)" if first.decoded_nbytes else ""
    work = "reading and decoding that" if first.decoded_nbytes else "reading that"
    return (
        f"first batch: after {text_of_bytes(first.read_nbytes)} of the file{decoded}; {work} alone takes "
        f"{_seconds_text(first.seconds)}, and starting up comes on top; later epochs' first batches are read ahead"
    )


def _seconds_text(seconds: float) -> str:
    """Return an estimated time; its second digit would mean nothing under a second.

    Examples
    --------
    >>> _seconds_text(7.2e-05), _seconds_text(0.074), _seconds_text(0.9996), _seconds_text(2.53)
    ('under 1 ms', 'about 70 ms', 'about 1.0 s', 'about 2.5 s')
    """
    if seconds < 1e-3:
        return "under 1 ms"
    if (ms := float(f"{1e3 * seconds:.1g}")) < 1000:
        return f"about {ms:.0f} ms"
    return f"about {seconds:,.1f} s"


def _labelled(parts: Sequence[tuple[str, Iterator[str] | Sequence[str]]]) -> Iterator[RenderableType]:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(justify="right", style="dim", min_width=10, no_wrap=True)
    grid.add_column(overflow="fold")
    for label, lines in parts:
        for place, line in enumerate(lines):
            grid.add_row(label if place == 0 else "", Text(line))
    yield grid


def _mixing(sample: SampleCost) -> Iterator[RenderableType]:
    shuffle = sample.shuffle
    yield _heading("The shuffle")
    blocks = f"{counted(shuffle.blocks, 'block')} of {counted(shuffle.block_rows, 'row')}"
    if shuffle.windows == 1:
        lines = [f"all rows ({blocks}) fit one window, so this is a full shuffle"]
    else:
        lines = [
            f"{blocks} are shuffled, then the rows inside {shuffle.windows:,} windows, the largest with "
            f"{counted(shuffle.window_rows, 'row')} from {counted(shuffle.blocks_per_window, 'block')}"
        ]
    if shuffle.windows > 1:
        lines.append(
            f"the rows of a batch come from {shuffle.blocks_per_batch:,.0f} blocks on average; a full shuffle "
            f"would give {shuffle.blocks_per_batch_full:,.0f}"
        )
    scatter = math.sqrt(1 / max(1e-12, shuffle.mixing_score))
    if scatter > 1.5:
        lines.append(
            f"the mean row number of a batch scatters {count_text(scatter)} times as far as in a full shuffle; that "
            "matters where neighbouring rows resemble each other"
        )
    yield from _labelled([("", lines)])


# --- advice -----------------------------------------------------------------------------------------------


def _advice(found: Inspection) -> Iterator[RenderableType]:
    yield _heading("Advice")
    if not found.advice:
        yield Text("None: this layout costs no more than it must.", style="green")
    for number, advice in enumerate(found.advice, start=1):
        yield _one_advice(number, advice)
    if found.repack_command:
        yield Text("This writes such a layout to a new file:")
        yield _whole(found.repack_command, "bold")


def _one_advice(number: int, advice: Advice) -> RenderableType:
    once = "" if advice.costs == EVERY_EPOCH else " It is read once and kept, so this delays the first batch only."
    text = Text.assemble(
        (f"{names_text(advice.fields)}: " if advice.fields else "", "bold"), f"{advice.problem}.{once}"
    )
    way_out = Text.assemble(("way out: ", "dim"), advice.way_out)
    grid = Table.grid(padding=(0, 1))
    grid.add_column(justify="right", style="yellow" if advice.costs == EVERY_EPOCH else "dim")
    grid.add_column(overflow="fold")
    grid.add_row(f"{number}.", Group(text, way_out))
    return grid


# --- the command ------------------------------------------------------------------------------------------


def print_all(console: Console, found: Inspection, *, everything: bool, one_of_many: bool = False) -> None:
    """Print everything that was found about a file; of one of many that are alike, what is in it."""
    count = sum(len(group.datasets) for group in found.groups) + found.left_out
    facts = f"{text_of_bytes(found.file_nbytes)}, {counted(count, 'dataset')}"
    apart = "  " if len(found.file) + len(facts) + 2 <= console.width else "\n"
    console.print(Text.assemble((found.file, "bold"), f"{apart}{facts}"), soft_wrap=True)
    parts: list[Iterator[RenderableType]] = []
    if count:
        parts += [_datasets(found, console, everything=everything), _reasons(found)]
    printed = printed_of(found.kinds, has_rows=found.sample is not None)
    if not one_of_many:
        parts.append(_kinds(found))
    if found.sample is None and (printed is None or printed.key == "single_values"):
        parts.append(iter([Text(f"What a batch costs is not known: {found.no_sample}.", style="yellow")]))
    if found.sample is not None and not one_of_many:
        as_they_are = ", without samples=" if printed and printed.samples_text else ""
        parts += [_to_stream_it(found, found.sample), _cost(found.sample, as_they_are), _mixing(found.sample)]
    if found.sample is not None:
        parts.append(_advice(found))
    for part in parts:
        for place, shown in enumerate(part):
            if place == 0:
                console.print()
            # What is to be copied is not broken, however long.
            console.print(shown, soft_wrap=isinstance(shown, Text) and bool(shown.no_wrap))


def print_files(console: Console, pattern: str, count: int, kind: Kind) -> None:
    """Print what files are that hold the same."""
    console.print(Text.assemble((pattern, "bold"), f"  {counted(count, 'file')}"), soft_wrap=True)
    console.print()
    console.print(Text(f"{kind.what}.\n{kind.way_out}:"))
    for shown in (*_code(kind.lines), *_command(kind, pattern)):
        console.print(shown, soft_wrap=isinstance(shown, Text) and bool(shown.no_wrap))
    console.print()
    console.print(Text("The first of them:"))


def print_samples(console: Console, file: str, cost: SamplesCost) -> None:
    """Print what shuffled batches of samples cost."""
    console.print(Text(file, "bold"), soft_wrap=True)
    why = "objects lack a field" if cost.text.startswith("Objects") else "segments are shorter than one"
    short = f"; {cost.left_out:,} {why}" if cost.left_out else ""
    short += f"; {cost.asked:,} objects were asked of HDF5" if cost.asked else ""
    console.print()
    console.print(_heading("A sample"))
    console.print(f"{cost.text}: {cost.samples:,} of {text_of_bytes(cost.sample_nbytes)}{short}.", markup=False)
    shapes = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    for name, shape in cost.shapes.items():
        shapes.add_row(f"  {printable(name)}", shape)
    console.print(shapes)
    console.print()
    console.print(_heading(f"A shuffled batch of {cost.batch_samples:,}"))
    console.print(
        f"It holds {text_of_bytes(cost.batch_nbytes)}; {cost.window_samples:,} samples are shuffled with one another."
    )
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("average, counted")
    for title in ("one sample at a time", "h5stream"):
        table.add_column(title, justify="right")
    for what, of in (("read from the file", "read_nbytes"), ("decoded, or as it lies there", "decoded_nbytes")):
        each = (getattr(reader, of) for reader in (cost.alone, cost.ours))
        table.add_row(what, *(_amplified(nbytes, nbytes / max(1, cost.batch_nbytes)) for nbytes in each))
    table.add_row("chunks, or runs of rows", count_text(cost.alone.chunks), count_text(cost.ours.chunks))
    console.print(table)
    console.print("x: for each byte that the batch holds; what samples share is counted once.", style="dim")


def print_catalogue(console: Console, path: str, kept: Sequence[Kept], dropped: int | None) -> None:
    """Print what is kept of a file's objects, or how much of it was dropped."""
    if dropped is not None:
        console.print(Text(printable(f"{path}: {counted(dropped, 'catalogue')} dropped")))
        return
    console.print(_heading(printable(f"{path}: {counted(len(kept), 'catalogue')} kept")))
    for one in kept:
        when = datetime.datetime.fromtimestamp(one.made).strftime("%Y-%m-%d %H:%M")
        state = "" if one.is_current else "; of the file as it was, made anew when it is opened"
        console.print(Text(printable(f"  {one.of}: {counted(one.objects, 'object')}, {one.fields}")))
        asked = f"{one.asked:,} of them asked of HDF5"
        console.print(Text(f"    {text_of_bytes(one.nbytes)}, made {when}, {asked}{state}", style="dim"))
    console.print(Text("--forget drops them" if kept else "Objects(...) of 2,000 and more are kept", style="dim"))
