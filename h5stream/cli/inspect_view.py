"""How `h5stream inspect` looks: tables of datasets, what a batch costs, advice."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from h5stream.advice.cost_in_words import count_text, short_names
from h5stream.advice.inspection import Inspection, RowGroup
from h5stream.advice.layout_advice import EVERY_EPOCH, Advice
from h5stream.advice.sample_cost import SampleCost
from h5stream.advice.suggestion import bytes_text
from h5stream.storage.layout import DECODED, VIA_H5PY
from h5stream.storage.listing import DAMAGED, REFUSED, DatasetEntry

# Unless --all is given: datasets of one length, and lengths, that are listed.
_LISTED = 12
_LISTED_GROUPS = 5
# Of a long list of fields in one line.
_FIELDS_NAMED = 6

# From this width on there is room for shapes of chunks beside their sizes.
_WIDE = 110

# Characters of a dataset's path and type before they are broken.
_WIDE_PATH, _NARROW_PATH = 42, 24
_WIDE_TYPE, _NARROW_TYPE = 28, 14

_ACCESS_STYLES = {VIA_H5PY: "yellow", REFUSED: "red"}


def _heading(text: str) -> Text:
    return Text(text, style="bold cyan")


# --- the datasets -----------------------------------------------------------------------------------------


def _datasets(found: Inspection, *, everything: bool, wide: bool) -> Iterator[RenderableType]:
    groups = found.groups if everything else found.groups[:_LISTED_GROUPS]
    table = Table(box=None, pad_edge=False, padding=(0, 2 if wide else 1, 0, 0), header_style="dim")
    table.add_column("dataset", overflow="fold")
    table.add_column("a row", overflow="fold", max_width=_WIDE_TYPE if wide else _NARROW_TYPE)
    table.add_column("chunk" if wide else "chunk\nrows", justify="left" if wide else "right", no_wrap=True)
    table.add_column("chunk\nsize", justify="right", no_wrap=True)
    table.add_column("filters", overflow="fold", max_width=28 if wide else 14)
    if wide:
        table.add_column("stored", justify="right", no_wrap=True)
    table.add_column("ratio", justify="right", no_wrap=True)
    table.add_column("read", no_wrap=True, min_width=len(DECODED))
    for group in groups:
        _add_group(table, group, _LISTED if not everything else len(group.datasets), wide)
    yield table
    left = sum(len(group.datasets) for group in found.groups[len(groups) :])
    if left:
        yield Text(f"and {left:,} datasets of {len(found.groups) - len(groups):,} other lengths (--all)", style="dim")
    if found.left_out:
        yield Text(f"and {found.left_out:,} datasets that were not looked at (--all)", style="dim")


def _add_group(table: Table, group: RowGroup, most: int, wide: bool) -> None:
    shown = group.datasets[:most]
    table.add_row(Text("no rows" if group.rows is None else _rows_text(group.rows), style="bold"))
    for entry in shown:
        table.add_row(*_cells(entry, wide), style="" if group.rows else "dim")
    left = len(group.datasets) - len(shown)
    if left:
        table.add_row(Text(f"  and {left:,} more (--all)", style="dim"))
    table.add_section()


def _cells(entry: DatasetEntry, wide: bool) -> list[Text]:
    chunk = (
        _shape_text(entry.chunk_shape[: None if wide else 1]) if entry.chunk_shape else entry.layout if wide else "-"
    )
    return [
        Text(_broken(entry.path, _WIDE_PATH if wide else _NARROW_PATH)),
        Text(_row_text(entry, _WIDE_TYPE if wide else _NARROW_TYPE)),
        Text(chunk),
        Text(bytes_text(entry.chunk_nbytes) if entry.chunk_shape else "-"),
        Text((entry.filters if wide else entry.filters.replace(" + ", "+")) or "none"),
        *([Text(bytes_text(entry.stored_nbytes))] if wide else []),
        Text(f"{entry.ratio:,.1f}" if entry.ratio and entry.filters else "-"),
        Text(entry.access, style=_ACCESS_STYLES.get(entry.access, "green")) if _is_shown(entry) else Text("-"),
    ]


def _is_shown(entry: DatasetEntry) -> bool:
    """Tell whether it matters how a dataset is reached: it has rows, or it is damaged and nothing is known of it."""
    return bool(entry.rows) or entry.layout == DAMAGED


def _broken(path: str, width: int) -> str:
    """Break a long path after slashes, so that its names stay whole."""
    lines = ["  "]
    for part in path.replace("/", "/\n").split("\n"):
        if lines[-1].strip() and len(lines[-1]) + len(part) > width:
            lines.append("  ")
        lines[-1] += part
    return "\n".join(lines)


def _row_text(entry: DatasetEntry, width: int) -> str:
    inner = entry.shape[1:] if entry.shape else ()
    text = f"{_shape_text(inner)} {entry.dtype}" if inner else entry.dtype
    # A compound's members are in the JSON; here a long one is a number.
    if not entry.dtype.startswith("{") or len(text) <= width:
        return text
    members = entry.dtype.count(": ")
    return f"{members:,} members" if members > 1 else "1 member"


def _shape_text(shape: Sequence[int]) -> str:
    return " x ".join(f"{n:,}" for n in shape)


def _reasons(found: Inspection) -> Iterator[RenderableType]:
    """Say why datasets with rows are refused, or read through h5py; those that are alike share a line."""
    by_reason: dict[tuple[str, str], list[str]] = {}
    for group in found.groups:
        for entry in group.datasets:
            if _is_shown(entry) and entry.access in _ACCESS_STYLES:
                by_reason.setdefault((entry.access, entry.reason), []).append(entry.path)
    for (access, reason), paths in by_reason.items():
        names = ", ".join(paths[:3]) + (f" and {len(paths) - 3:,} more" if len(paths) > 3 else "")
        yield Text.assemble((access, _ACCESS_STYLES[access]), f"  {names}: {reason}")


# --- what a batch costs -----------------------------------------------------------------------------------


def _cost(sample: SampleCost) -> Iterator[RenderableType]:
    yield _heading(f"A shuffled batch of {sample.batch_rows:,} rows")
    yield Text(_sample_text(sample))
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("average, first epoch")
    for title in ("needed", "row by row, h5py", "h5stream"):
        table.add_column(title, justify="right")
    naive, ours = sample.naive, sample.ours
    table.add_row(
        "read from the file",
        bytes_text(sample.needed_read_nbytes),
        _amplified(naive.read_nbytes, naive.read_amplification),
        _amplified(ours.read_nbytes, ours.read_amplification),
    )
    if sample.needed_decoded_nbytes:
        table.add_row(
            "decoded",
            bytes_text(sample.needed_decoded_nbytes),
            _amplified(naive.decoded_nbytes, naive.decode_amplification),
            _amplified(ours.decoded_nbytes, ours.decode_amplification),
        )
    table.add_row("chunks, or runs of rows", "", count_text(naive.chunks), count_text(ours.chunks))
    yield table
    yield from _labelled([("row by row", sample.naive_words), ("h5stream", _our_words(sample))])


def _amplified(nbytes: float, amplification: float | None) -> str:
    if amplification is None:
        return bytes_text(nbytes)
    return f"{bytes_text(nbytes)}  {_times(amplification):>7}"


def _times(amplification: float) -> str:
    return f"{amplification:,.0f}x" if amplification >= 99.95 else f"{amplification:.1f}x"


def _sample_text(sample: SampleCost) -> str:
    names = list(short_names(sample.fields).values())
    shown = ", ".join(names[:_FIELDS_NAMED])
    shown += f" and {len(names) - _FIELDS_NAMED:,} more" if len(names) > _FIELDS_NAMED else ""
    why = {
        "named": "",
        "root": " (the datasets at the root; choose others with --fields)",
        "rows": " (the most data of one length; choose others with --fields)",
    }[sample.chosen_by]
    fewer = f" (there are no {sample.batch_size:,})" if sample.batch_rows < sample.batch_size else ""
    return (
        f"Fields {shown}{why}. {sample.batch_rows:,} rows{fewer} of {bytes_text(sample.row_nbytes)} make "
        f"{bytes_text(sample.batch_nbytes)}."
    )


def _our_words(sample: SampleCost) -> Iterator[str]:
    yield from sample.our_words
    if sample.decode_rows_per_s is not None:
        threads = f"{sample.threads} threads" if sample.threads > 1 else "1 thread"
        rate = float(f"{sample.decode_rows_per_s:.2g}")
        yield f"undoing filters alone allows {rate:,.0f} rows/s on {threads} (timed on chunks of this file)"
    first = sample.first_batch
    yield (
        f"first batch: after {bytes_text(max(first.read_nbytes, first.decoded_nbytes))} of the file, in about "
        f"{first.seconds:.2g} s; later epochs' first batches are read ahead"
    )
    yield f"memory: {bytes_text(sample.memory_nbytes)} at most, of a budget of {bytes_text(sample.memory_budget)}"
    if sample.notice:
        yield sample.notice


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
    blocks = f"{_blocks_text(shuffle.blocks)} of {_rows_text(shuffle.block_rows)}"
    if shuffle.windows == 1:
        lines = [f"all rows ({blocks}) fit one window, so this is a full shuffle"]
    else:
        lines = [
            f"{blocks} are shuffled, then the rows inside {shuffle.windows:,} windows, the largest with "
            f"{_rows_text(shuffle.window_rows)} from {_blocks_text(shuffle.blocks_per_window)}"
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


def _rows_text(count: int) -> str:
    return f"{count:,} rows" if count != 1 else "1 row"


def _blocks_text(count: int) -> str:
    return f"{count:,} blocks" if count != 1 else "1 block"


# --- advice -----------------------------------------------------------------------------------------------


def _advice(found: Inspection) -> Iterator[RenderableType]:
    yield _heading("Advice")
    if not found.advice:
        yield Text("None: nothing in this layout costs more than it must.", style="green")
    for number, advice in enumerate(found.advice, start=1):
        yield _one_advice(number, advice)
    if found.repack_command:
        yield Text("This writes such a layout to a new file:")


def _one_advice(number: int, advice: Advice) -> RenderableType:
    names = list(short_names(advice.fields).values())
    shown = ", ".join(names[:_FIELDS_NAMED])
    shown += f" and {len(names) - _FIELDS_NAMED:,} more" if len(names) > _FIELDS_NAMED else ""
    once = "" if advice.costs == EVERY_EPOCH else " It is read once and kept, so this delays the first batch only."
    text = Text.assemble((f"{shown}: " if shown else "", "bold"), f"{advice.problem}.{once}")
    way_out = Text.assemble(("way out: ", "dim"), advice.way_out)
    grid = Table.grid(padding=(0, 1))
    grid.add_column(justify="right", style="yellow" if advice.costs == EVERY_EPOCH else "dim")
    grid.add_column(overflow="fold")
    grid.add_row(f"{number}.", Group(text, way_out))
    return grid


# --- the command ------------------------------------------------------------------------------------------


def print_all(console: Console, found: Inspection, *, everything: bool) -> None:
    """Print everything that was found about a file."""
    count = sum(len(group.datasets) for group in found.groups) + found.left_out
    datasets = "1 dataset" if count == 1 else f"{count:,} datasets"
    console.print(Text.assemble((found.file, "bold"), f"  {bytes_text(found.file_nbytes)}, {datasets}"))
    parts: list[Iterator[RenderableType]] = []
    if count:
        parts += [_datasets(found, everything=everything, wide=console.width >= _WIDE), _reasons(found)]
    if found.sample is None:
        parts.append(iter([Text(f"What a batch costs is not known: {found.no_sample}.", style="yellow")]))
    else:
        parts += [_cost(found.sample), _mixing(found.sample), _advice(found)]
    for part in parts:
        shown = list(part)
        if shown:
            console.print()
            console.print(Group(*shown))
    if found.repack_command:
        # In one line, however long, so that it can be copied.
        console.print(Text(found.repack_command, style="bold"), soft_wrap=True)
