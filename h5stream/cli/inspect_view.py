"""The output of `h5stream inspect`: tables of datasets, the cost of a batch, and advice."""

from __future__ import annotations

import datetime
import math
import re
import shlex
from collections.abc import Iterator, Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Column
from rich.text import Text

from h5stream.advice.cost import EVERY_EPOCH, BatchCost, SampleCost, SamplesCost
from h5stream.advice.inspection import Inspection, printed_of
from h5stream.advice.listing import DAMAGED, REFUSED, DatasetEntry
from h5stream.advice.program import Proposal, fields_text
from h5stream.base.texts import count_text, counted, names_text, shape_text, text_of_bytes
from h5stream.cli.showing import labelled, named_lines, table, whole
from h5stream.monitor.progress import printable
from h5stream.storage.file.catalogue import CatalogueEntry
from h5stream.storage.file.meanings import packed_text
from h5stream.storage.layout.access import DECODED, DIRECT, HEAP, VIA_H5PY

_LISTED, _LISTED_GROUPS = 12, 5  # unless --all is given: datasets of one length, members of a compound; and lengths
_WIDE = 110  # from this width on there is room for shapes of chunks beside their sizes
_WIDE_TYPE, _NARROW_TYPE = 28, 20  # characters of a type before it goes on in the next line

_ACCESS_MEANS = {
    DIRECT: "bytes as they lie in the file",
    DECODED: "filters undone by h5stream's threads",
    HEAP: "values of variable length, read by h5stream's threads",
    VIA_H5PY: "through h5py, slower",
    REFUSED: "not at all",
}
_ACCESS_STYLES = {VIA_H5PY: "yellow", REFUSED: "red"}

Shown = Iterator[RenderableType]


def _heading(text: str) -> Text:
    return Text(text, style="bold cyan")


def _show(console: Console, part: Shown) -> None:
    for place, shown in enumerate(part):
        if place == 0:
            console.print()
        console.print(shown, soft_wrap=isinstance(shown, Text) and bool(shown.no_wrap))


# --- the datasets -----------------------------------------------------------------------------------------


def _datasets(inspection: Inspection, width: int, *, everything: bool) -> Shown:
    similar = {name for kind in inspection.kinds if kind.example for name in kind.datasets}
    similar -= {entry.path for kind in inspection.kinds for entry in kind.example}
    groups = [*inspection.groups.items()]
    if not everything:
        own = [(rows, [e for e in entries if not e.clues.role and e.path not in similar]) for rows, entries in groups]
        groups = sorted((one for one in own if one[1]), key=lambda one: not one[0])
    listed = groups if everything else groups[:_LISTED_GROUPS]
    shown = None if everything else _LISTED
    entries = [entry for _, members in listed for entry in members[:shown]]
    wide = width >= _WIDE
    titles = ["a row", "chunk" if wide else "chunk rows", "chunk size", "filters", "stored", "ratio", "read"]
    titles = [title for title in titles if wide or title != "stored"]
    cells = {entry.path: _cells(entry, titles) for entry in entries}
    named = [(f"  {path}", row_cells) for path, row_cells in cells.items()]
    most = _WIDE_TYPE if wide else _NARROW_TYPE
    lines_of = named_lines(["dataset", *titles], named, width, gap=1 + wide, most=most)
    yield from lines_of()
    for rows, members in listed:
        yield Text("no rows" if rows is None else counted(rows, "row"), style="bold")
        for entry in members[:shown]:
            style = "" if rows and not entry.clues.role else "dim"
            yield from lines_of(f"  {entry.path}", cells[entry.path], style)
            yield from _members(entry, width, shown)
        if hidden := len(members) - len(members[:shown]):
            yield Text(f"  and {hidden:,} more (--all)", style="dim")
    with_rows = [entry for entry in entries if entry.rows]
    legend = ["ratio: how many times smaller filters make it"] * any(entry.filters for entry in with_rows)
    accesses = {entry.access for entry in with_rows}
    legend += [f"{access} = {means}" for access, means in _ACCESS_MEANS.items() if access in accesses]
    if legend:
        yield Text("; ".join(legend), style="dim")
    yield from (
        Text(packed_text(entry.path, entry.clues.packed), style="yellow") for entry in entries if entry.clues.packed
    )
    if everything:
        return
    lengths = len(groups) - len(listed)
    left_out = {
        f" of {counted(lengths, 'other length')}": sum(len(members) for _, members in groups[len(listed) :]),
        " without data of its own": sum(bool(entry.clues.role) for entry in inspection.entries),
        " like one of these": len(similar),
        " not looked at": inspection.left_out,
    }
    yield from (Text(f"and {counted(n, 'dataset')}{what} (--all)", style="dim") for what, n in left_out.items() if n)


def _cells(entry: DatasetEntry, titles: Sequence[str]) -> list[Text]:
    shape, wide, inner = entry.chunk_shape, "stored" in titles, shape_text(entry.inner) if entry.inner else ""
    members = f"{inner} of " * bool(inner) + counted(len(entry.members), "member")
    cells = {
        "a row": members if entry.members else f"{inner} {entry.dtype}".lstrip(),
        "chunk": shape_text(shape) if shape else entry.layout,
        "chunk rows": f"{shape[0]:,}" if shape else "-",
        "chunk size": text_of_bytes(entry.chunk_nbytes) if shape else "-",
        "filters": (entry.filters if wide else entry.filters.replace(" + ", "+")) or "none",
        "stored": text_of_bytes(entry.stored_nbytes),
        "ratio": f"{entry.ratio:,.1f}" if entry.ratio and entry.filters else "-",
        "read": entry.access if _is_shown(entry) else "-",
    }
    styles = {"read": _ACCESS_STYLES.get(entry.access, "green") if _is_shown(entry) else ""}
    return [Text(cells[title], style=styles.get(title, "")) for title in titles]


def _members(entry: DatasetEntry, width: int, most: int | None) -> Iterator[Text]:
    """List the members of a compound by the names under which they are fields."""
    shown = [(f"    {member['name']}", [member["dtype"]]) for member in entry.members[:most]]
    lines_of = named_lines(["member", "type"], shown, width)
    for name, dtype in shown:
        yield from lines_of(name, dtype)
    if hidden := len(entry.members) - len(shown):
        yield Text(f"    and {hidden:,} more members (--all)", style="dim")


def _is_shown(entry: DatasetEntry) -> bool:
    """Return whether it matters how a dataset is reached: it has rows, or it is damaged and nothing is known of it."""
    return bool(entry.rows) or entry.layout == DAMAGED


def _reasons(inspection: Inspection) -> Shown:
    """List the reasons why datasets with rows are refused or read through h5py; equal reasons share a line."""
    by_reason: dict[tuple[str, str], list[str]] = {}
    for entry in inspection.entries:
        if _is_shown(entry) and entry.access in _ACCESS_STYLES and not entry.clues.role:
            by_reason.setdefault((entry.access, entry.reason), []).append(entry.path)
    for (access, reason), paths in by_reason.items():
        yield Text.assemble((access, _ACCESS_STYLES[access]), f"  {names_text(paths)}: {reason}")


# --- what it is, and what to write ------------------------------------------------------------------------


def _kinds(inspection: Inspection, printed: Proposal | None) -> Shown:
    if inspection.kinds:
        yield _heading("What is special about this file")
    for place, kind in enumerate(sorted(inspection.kinds, key=lambda kind: kind is not printed)):
        if place:
            yield Text()
        yield from _proposal(kind, [inspection.file] if kind is printed else [])


def _proposal(kind: Proposal, files: Sequence[str]) -> Shown:
    """Describe a proposal; for named files, add the program that streams them and the command for its cost."""
    yield Text(f"{kind.what}.")
    if kind.way_out:
        yield Text(f"{kind.way_out}{':' if files and kind.lines else '.'}")
    yield from _code(kind.lines if files else ())
    if not files or not kind.fields_text:
        return
    yield Text()
    yield Text("This counts what a batch of these costs:")
    alone = re.fullmatch(r'"([\w./]+)"', kind.fields_text)
    fields = alone[1] if alone and kind.samples_text else shlex.quote(kind.fields_text)
    if len(fields) > 60:
        fields = shlex.quote(fields_text(kind.recipes[0].fields, kind.samples_text, 0).replace("\n", "\n    "))
    words = [f"h5stream inspect {shlex.join(files)} --batch-size {kind.batch_size}"]
    words += [f"--samples {shlex.quote(kind.samples_text)}"] if kind.samples_text else []
    yield from _code(" \\\n    ".join([*words, f"--fields {fields}"]).splitlines(), "bold")


def _code(lines: Sequence[str], style: str = "green") -> Iterator[Text]:
    """Yield lines to paste, unchanged, after an empty line."""
    return (whole(line, style) for line in ("", *lines) if lines)


def _to_stream_it(inspection: Inspection, sample: SampleCost) -> Shown:
    if printed_of(inspection.kinds, has_rows=True) or not inspection.lines:
        return  # the program of that proposal is already printed
    yield _heading("To stream it")
    count, others = len(sample.fields), "--fields tries others"
    datasets, fields = (name if count == 1 else f"{count:,} {name}s" for name in ("dataset", "field"))
    introductions = {
        "named": "The fields that you named:",
        "root": f"A sample is a row of the {datasets} at the root, as is the default; {others}:",
        "rows": f"A sample is taken for a row of the {fields} with the most data; {others}:",
    }
    yield Text(introductions[sample.chosen_by])
    yield from _code(inspection.lines)
    if entry := next((e for e in inspection.entries if e.members and e.path in sample.fields), None):
        yield Text()
        alone = entry.members[0]["name"]
        yield Text(f"{entry.path} comes as a dict of its members; a member alone is a field too, such as {alone!r}.")


# --- what a batch costs -----------------------------------------------------------------------------------


def _cost(sample: SampleCost, as_they_are: str) -> Shown:
    fewer = f" (there are no {sample.batch.size:,})" if sample.batch.rows < sample.batch.size else ""
    yield _heading(f"A shuffled batch of {counted(sample.batch.rows, 'row')}{as_they_are}")
    one, together = text_of_bytes(sample.row_nbytes), text_of_bytes(sample.batch.nbytes)
    make = "makes" if sample.batch.rows == 1 else "make"
    size = f"of {one} {make} {together}" if sample.row_nbytes else "of no fixed size"
    yield Text(f"{counted(sample.batch.rows, 'row')}{fewer} {size}.")
    needed = BatchCost(0, sample.needed.read_nbytes, sample.needed.decoded_nbytes, None, None)
    readers = {"needed": needed, "row by row, h5py": sample.naive, "h5stream": sample.ours}
    yield _readers("average, first epoch", readers)
    yield labelled([("row by row", sample.naive_words), ("h5stream", [*_our_words(sample)])])


def _readers(title: str, readers: dict[str, BatchCost], decoded: str = "decoded") -> RenderableType:
    """Return a table of the cost of a batch for several readers."""
    costs = readers.values()
    rows = [
        ["read from the file", *(_amplified(c.read_nbytes, c.read_amplification) for c in costs)],
        [decoded, *(_amplified(c.decoded_nbytes, c.decode_amplification) for c in costs)],
        ["chunks, or runs of rows", *(count_text(c.chunks) if c.chunks else "" for c in costs)],
    ]
    columns = [Column(title), *(Column(one, justify="right") for one in readers)]
    return table(columns, rows if any(c.decoded_nbytes for c in costs) else rows[::2], gap=2, header_style="dim")


def _amplified(nbytes: float, amplification: float | None) -> str:
    if amplification is None:
        return text_of_bytes(nbytes)
    return f"{text_of_bytes(nbytes)}  {f'{amplification:,.{int(amplification < 99.95)}f}x':>7}"


def _our_words(sample: SampleCost) -> Iterator[str]:
    yield from sample.our_words
    if sample.decode_rows_per_s is not None:
        rate = float(f"{sample.decode_rows_per_s:.2g}")
        threads = counted(sample.resources.threads, "thread")
        yield f"undoing filters alone allows {rate:,.0f} rows/s on {threads} (timed on chunks of this file)"
    # The time of the first batch is of that work alone, and starting up is not in it.
    first, ms = sample.first_batch, float(f"{1e3 * sample.first_batch.seconds:.1g}")
    decoded = f" ({text_of_bytes(first.decoded_nbytes)} decoded)" if first.decoded_nbytes else ""
    takes = "under 1 ms" if ms < 1 else f"about {ms:.0f} ms" if ms < 1000 else f"about {first.seconds:,.1f} s"
    yield (
        f"first batch: after {text_of_bytes(first.read_nbytes)} of the file{decoded}; that alone takes {takes}, and "
        "starting up comes on top; later epochs' first batches are read ahead"
    )
    taken = sample.resources
    yield f"memory: {text_of_bytes(taken.memory_nbytes)} at most, of a budget of {text_of_bytes(taken.memory_budget)}"
    if taken.kept_rows_nbytes:
        yield f"of it {text_of_bytes(taken.kept_rows_nbytes)} are decoded rows that stay for later epochs"
    if taken.notice:
        yield taken.notice


def _mixing(sample: SampleCost) -> Shown:
    shuffle = sample.shuffle
    yield _heading("The shuffle")
    blocks = f"{counted(shuffle.blocks, 'block')} of {counted(shuffle.block_rows, 'row')}"
    if shuffle.windows == 1:
        lines = [f"all rows ({blocks}) fit one window, so this is a full shuffle"]
    else:
        lines = [
            f"{blocks} are shuffled, then the rows inside {shuffle.windows:,} windows, the largest with "
            f"{counted(shuffle.window_rows, 'row')} from {counted(shuffle.blocks_per_window, 'block')}",
            f"the rows of a batch come from {shuffle.blocks_per_batch:,.0f} blocks on average; a full shuffle "
            f"would give {shuffle.blocks_per_batch_full:,.0f}",
        ]
    scatter = math.sqrt(1 / max(1e-12, shuffle.mixing_score))
    if scatter > 1.5:
        lines.append(
            f"the mean row number of a batch scatters {count_text(scatter)} times as far as in a full shuffle; that "
            "matters where neighbouring rows resemble each other"
        )
    yield labelled([("", lines)])


def _advice(inspection: Inspection) -> Shown:
    yield _heading("Advice")
    if not inspection.advice:
        yield Text("None: this layout costs no more than it must.", style="green")
    for number, advice in enumerate(inspection.advice, start=1):
        every = advice.costs == EVERY_EPOCH
        once = "" if every else " It is read once and kept, so this delays the first batch only."
        about = (f"{names_text(advice.fields)}: " if advice.fields else "", "bold")
        problem = Text.assemble(about, f"{advice.problem}.{once}")
        way_out = Text.assemble(("way out: ", "dim"), advice.way_out)
        columns = [Column("", justify="right", style="yellow" if every else "dim"), Column("", overflow="fold")]
        yield table(columns, [(f"{number}.", Group(problem, way_out))])
    if inspection.repack_command:
        yield Text("This writes such a layout to a new file:")
        yield whole(inspection.repack_command, "bold")


# --- the command ------------------------------------------------------------------------------------------


def print_all(console: Console, inspection: Inspection, *, everything: bool, one_of_many: bool = False) -> None:
    """Print everything about a file, or only the contents of one of many similar files."""
    count = len(inspection.entries) + inspection.left_out
    facts = f"{text_of_bytes(inspection.file_nbytes)}, {counted(count, 'dataset')}"
    if inspection.asked.requests:
        facts += (
            f", opened with {counted(inspection.asked.requests, 'request')}, {text_of_bytes(inspection.asked.nbytes)}"
        )
    apart = "  " if len(inspection.file) + len(facts) + 2 <= console.width else "\n"
    console.print(Text.assemble((inspection.file, "bold"), f"{apart}{facts}"), soft_wrap=True)
    sample, printed = inspection.sample, printed_of(inspection.kinds, has_rows=inspection.sample is not None)
    if count:
        _show(console, _datasets(inspection, console.width, everything=everything))
        _show(console, _reasons(inspection))
    if not one_of_many:
        _show(console, _kinds(inspection, printed))
    if sample is None and (printed is None or printed.key == "single_values"):
        _show(console, iter([Text(f"What a batch costs is not known: {inspection.no_sample}.", style="yellow")]))
    if sample is not None and not one_of_many:
        as_they_are = ", without samples=" if printed and printed.samples_text else ""
        for part in (_to_stream_it(inspection, sample), _cost(sample, as_they_are), _mixing(sample)):
            _show(console, part)
    if sample is not None:
        _show(console, _advice(inspection))


def print_files(console: Console, files: Sequence[str], count: int, kind: Proposal) -> None:
    """Print what several files, or those of a pattern, hold together."""
    names = ", ".join(files) if len(files) < 4 else f"{files[0]} ... {files[-1]}"
    console.print(Text.assemble((names, "bold"), f"  {counted(count, 'file')}"), soft_wrap=True)
    _show(console, _proposal(kind, [kind.path] if kind.path else files))
    _show(console, iter([Text("Each of them:" if kind.key == "joined" else "The first of them:")]))


def print_samples(console: Console, file: str, cost: SamplesCost) -> None:
    """Print the cost of shuffled batches of samples."""
    console.print(Text(file, "bold"), soft_wrap=True)
    what = ("object without a field", "objects without a field")
    what = what if cost.text.startswith("Objects") else ("segment shorter than one", "segments shorter than one")
    short = f"; left out: {counted(cost.left_out, *what)}" if cost.left_out else ""
    short += f"; {counted(cost.asked, 'object')} asked of HDF5" if cost.asked else ""
    readers = {"one sample at a time": cost.alone, "h5stream": cost.ours}
    size, window = text_of_bytes(cost.batch_nbytes), f"{cost.window_samples:,} samples"
    shown: list[RenderableType] = [
        _heading("A sample"),
        Text(f"{cost.text}: {cost.samples:,} of {text_of_bytes(cost.sample_nbytes)}{short}."),
        table(["", ""], ((f"  {printable(name)}", shape) for name, shape in cost.shapes.items()), gap=2),
        Text(),
        _heading(f"A shuffled batch of {cost.batch_samples:,}"),
        Text(f"It holds {size}; {window} are shuffled with one another."),
        _readers("average, counted", readers, decoded="decoded, or as it lies there"),
        Text("1.0x is the bytes that the batch holds; what samples share is counted once.", style="dim"),
    ]
    _show(console, iter(shown))


def print_catalogue(console: Console, path: str, entries: Sequence[CatalogueEntry], dropped: int | None) -> None:
    """Print the cached catalogues of a file, or how many of them were deleted."""
    what = (
        f"{counted(len(entries), 'catalogue')} kept" if dropped is None else f"{counted(dropped, 'catalogue')} dropped"
    )
    console.print(Text(printable(f"{path}: {what}"), "bold cyan" if dropped is None else ""))
    if dropped is not None:
        return
    for one in entries:
        when = datetime.datetime.fromtimestamp(one.made).strftime("%Y-%m-%d %H:%M")
        state = "" if one.is_current else "; of the file as it was, made anew when it is opened"
        console.print(Text(printable(f"  {one.of}: {counted(one.objects, 'object')}, {one.fields}")))
        looked_up = f"{one.asked:,} of them asked of HDF5"
        console.print(Text(f"    {text_of_bytes(one.nbytes)}, made {when}, {looked_up}{state}", style="dim"))
    console.print(Text("--forget drops them" if entries else "Objects(...) of 2,000 and more are kept", style="dim"))
