"""Results files as tables: pure functions from JSON to Markdown."""

from __future__ import annotations

import re
from typing import Any

from tools.bench_report import KINDS

OURS = "h5stream"


def kinds(report: dict[str, Any]) -> list[str]:
    """List the files that peers were measured on."""
    return list(dict.fromkeys(one["file"] for one in report["results"]))


def ranking(report: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    """Give the results on one file, the fastest first; those that failed last."""
    found = [one for one in report["results"] if one["file"] == kind]
    return sorted(found, key=lambda one: -one.get("rows_per_s", 0))


def peers_table(report: dict[str, Any]) -> str:
    """Make the table of peers, fastest first: what each gave of each file, needed and promised."""
    files = kinds(report)
    heads = " | ".join(f"{KINDS[file]}, rows/s" for file in files)
    lines = [
        f"| | {heads} | first batch, s | memory, MiB | disk, MiB | converted in, s | reads | shuffle |",
        f"|---|{'---:|' * len(files)}---:|---:|---:|---:|---|---|",
    ]
    results = {(one["peer"], one["file"]): one for one in report["results"]}
    for first in ranking(report, files[0]):
        each = [results[first["peer"], file] for file in files if (first["peer"], file) in results]
        rates = " | ".join(_peer_rate(one) for one in each)
        needs = " | ".join("; ".join(dict.fromkeys(cells)) for cells in zip(*map(_peer_needs, each), strict=True))
        batch = report["batch_rows"]
        # Measured in smaller batches: what a full one takes is worked out.
        about = "about " if first.get("batch_rows", batch) != batch else ""
        name = _strong(first["peer"])
        lines.append(f"| {name} | {rates} | {about}{needs} | {first['reads']} | {first['shuffle']} |")
    return "\n".join(lines)


def _peer_rate(one: dict[str, Any]) -> str:
    if "error" in one:
        return f"failed: {one['error']}"
    return f"{one['rows_per_s']:,}" + ("" if one["whole_epoch"] else " (part)")


def _peer_needs(one: dict[str, Any]) -> list[str]:
    """Write what a peer needed: seconds to the first batch, memory, disk, seconds to convert."""
    if "error" in one:
        return [""] * 4
    return [f"{one['first_batch_s']:.2f}", _mib(one["peak_mb"]), _mib(one["disk_mb"]), f"{one['convert_s'] or ''}"]


def _mib(megabytes: float) -> str:
    """Write what results have in millions of bytes."""
    return f"{megabytes * 1e6 / (1 << 20):,.0f}"


def _strong(name: str) -> str:
    return f"**{name}**" if name == OURS else literal(name)


def literal(text: str) -> str:
    """Quote Python's own names, which Markdown would print bold.

    Examples
    --------
    >>> literal("NumPy in RAM, __getitems__")
    'NumPy in RAM, `__getitems__`'
    """
    return re.sub(r"(?<!`)(__\w+__)", r"`\1`", text)


def many_cores_table(report: dict[str, Any]) -> str:
    """Make the table of simulated processors: a row for each kind of data, a column for each number of readers."""
    results = {(one["cell"], one["readers"]): one for one in report["results"]}
    readers = sorted({number for _, number in results})
    lines = [
        "| data | " + " | ".join(f"{number} readers" for number in readers) + " |",
        "|---" * (len(readers) + 1) + "|",
    ]
    for data in dict.fromkeys(data for data, _ in results):
        cells = [_many_cores_cell(results[data, number]) for number in readers if (data, number) in results]
        lines.append(f"| {data} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _many_cores_cell(one: dict[str, Any]) -> str:
    shares = [f"{one[name]:.2f}" for name in ("of_ideal", "in_steps", "in_steps_torch") if one.get(name) is not None]
    return "; ".join([f"{one['idle_rows_per_s']:,.0f}", *shares])


def is_ours(result: dict[str, Any]) -> bool:
    """Say whether a result is of h5stream, with any budget."""
    return bool(result["loader"].startswith(OURS))


def stores_table(report: dict[str, Any]) -> str:
    """Make the table of other loaders out of a store: a row a case, a column a loader."""
    found = {(one["case"], one["latency_ms"], one["loader"]): one for one in report["results"]}
    others = list(dict.fromkeys(one["loader"] for one in report["results"] if not is_ours(one)))
    lines = [
        "Samples/s of other loaders, with two workers each, and behind them the seconds to the first batch of 16 "
        "samples. h5py over s3fs reads the file, Lance and zarr read copies of it; their rates begin behind the first "
        "batch. The streamed ones read copies in their order through a buffer, and their first batches count: "
        "`datasets` Parquet, WebDataset tar files; MDS and LitData copy shards to the disk. An empty cell was not "
        "measured, or failed.\n",
        f"| case | latency, ms | h5stream | {' | '.join(others)} |",
        "|---|---:|---:|" + "---:|" * len(others),
    ]
    for case, latency in dict.fromkeys((case, latency) for case, latency, _ in found):
        cells = [_store_cell(found.get((case, latency, loader), {})) for loader in (OURS, *others)]
        lines.append(f"| {case} | {latency:.0f} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _store_cell(one: dict[str, Any]) -> str:
    return f"{one['samples_per_s']:,.0f} ({one['first_batch_s']:.1f})" if "samples_per_s" in one else ""


def absent_list(report: dict[str, Any]) -> str:
    """List the peers that could not be measured, and why."""
    return "\n".join(f"- {one['peer']}: {one['reason']}" for one in report["absent"])


def slower_cells(sweep: dict[str, Any]) -> list[dict[str, Any]]:
    """List the cells of a sweep in which ours was slower than the naive loader."""
    return [one for one in sweep["results"] if "error" not in one and one["ours"] < one["naive"]]


def cell_name(cell: dict[str, Any]) -> str:
    """Name a cell by what was varied."""
    return f"{cell['axis']} = {cell['value']}"


VARIED = {
    "row_nbytes": "bytes a row",
    "chunk_rows": "rows a chunk",
    "shape": "chunks",
    "filter_name": "filter",
    "batch_rows": "rows a batch",
    "threads": "reader threads",
    "cold": "page cache",
}
"""What a reader calls what a sweep varies."""
_VALUES = {"False": "full", "True": "empty"}


def sweep_table(sweep: dict[str, Any]) -> str:
    """Make the table of a sweep, axis by axis."""
    lines = [
        "| varied | value | h5stream, rows/s | row by row, rows/s | batched, rows/s |",
        "|---|---|---:|---:|---:|",
    ]
    for one in sweep["results"]:
        name, value = VARIED.get(one["axis"], one["axis"]), _VALUES.get(str(one["value"]), one["value"])
        if "error" in one:
            lines.append(f"| {name} | {value} | failed: {one['error']} | | |")
            continue
        rivals = " | ".join(_rival_cells(one, who) for who in ("naive", "tuned"))
        lines.append(f"| {name} | {value} | {one['ours']:,} | {rivals} |")
    return "\n".join(lines)


def _rival_cells(one: dict[str, Any], who: str) -> str:
    if who not in one:
        return ""
    return f"{'under ' if one.get(f'{who}_at_most') else ''}{one[who]:,}"


def sweep_verdict(sweep: dict[str, Any]) -> str:
    """Say in a sentence whether ours was ever slower than naive."""
    counted = [one for one in sweep["results"] if "error" not in one]
    slower, failed = slower_cells(sweep), len(sweep["results"]) - len(counted)
    said = f"Slower than row by row in {len(slower)} of {len(counted)} cells"
    spans = []
    for who, name in (("naive", "row by row"), ("tuned", "batched")):
        ratios = [one["ours"] / max(1, one[who]) for one in counted if who in one]
        if ratios:
            spans.append(f"{min(ratios):,.0f} to {max(ratios):,.0f} times as fast as {name}")
    return f"{said}{f'; {failed} could not be measured' if failed else ''}: {', '.join(spans)}."


SHOWN_ROWS = (10**4, 10**6, 10**8, 10**9)
"""Which rows of a growth are in its table; the picture has all of them."""


def growth_table(growth: dict[str, Any]) -> str:
    """Make the table of how cost grows with rows."""
    lines = [
        "| file | rows | open, s | first batch, s | again, s | memory, MiB |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for one in growth["results"]:
        if one["rows"] not in SHOWN_ROWS:
            continue
        if "error" in one:
            lines.append(f"| {one['file']} | {one['rows']:,} | failed: {one['error']} | | | |")
        else:
            lines.append(
                f"| {one['file']} | {one['rows']:,} | {one['open_s']:.3f} | {one['first_batch_s']:.3f} | "
                f"{one['again_s']:.3f} | {_mib(one['peak_mb'])} |"
            )
    return "\n".join(lines)


def growth_of_states(growth: dict[str, Any]) -> str:
    """Say how large the states were, and how long they took."""
    measured = [one for one in growth["results"] if "error" not in one]
    nbytes, ms = ([one["state_bytes"] for one in measured], [1000 * one["state_s"] for one in measured])
    return f"A state takes {min(nbytes)} to {max(nbytes)} bytes and {min(ms):.2f} to {max(ms):.2f} ms."


def sweep_caveat(report: Any) -> str:
    """Say what small files hide: a field under the keeping limit is read once and then lies in memory."""
    nbytes = report.get("file_nbytes")
    if not nbytes:
        return ""
    small = "; fields that take under 8 MiB are read once and kept, which flatters ours" if nbytes < 128 << 20 else ""
    return f"Files of {nbytes >> 20} MiB{small}."


def others_table(report: dict[str, Any]) -> str:
    """Make the table of another project's benchmark: a row for each reader, a column for each case and figure."""
    figures = {one["case"]: {other["figure"] for other in report["results"] if other["case"] == one["case"]}
               for one in report["results"]}  # fmt: skip
    is_plain = all(len(names) == 1 for names in figures.values())
    readers: dict[str, dict[str, str]] = {}
    columns = dict[str, None]()
    for one in report["results"]:
        if one["figure"] == "size":
            continue
        unit = one["unit"].rpartition("/s")[0] and one["unit"]
        head = one["case"] if is_plain else one["figure"] if len(figures) == 1 else f"{one['case']}, {one['figure']}"
        head = f"{head}, {unit or one['unit']}"
        columns[head] = None
        form = "{:.2f}" if one["unit"] == "s" else "{:,.0f}"
        readers.setdefault(one["reader"], {})[head] = "; ".join(form.format(value) for value in one["values"])
    order = sorted(readers, key=lambda name: (name.startswith("limit"), not name.startswith(OURS)))
    lines = ["| reader | " + " | ".join(columns) + " |", "|---|" + "---:|" * len(columns)]
    for name in order:
        shown = f"**{literal(name)}**" if name.startswith(OURS) else literal(name)
        lines.append(f"| {shown} | " + " | ".join(readers[name].get(head, "") for head in columns) + " |")
    return "\n".join(lines)


def loops_table(report: dict[str, Any]) -> str:
    """Make the table of loops that train: for each model its steps alone, and the epochs with each reader."""
    lines = ["| model | steps alone, s | reader | first epoch, s | later epochs, s | in steps |"]
    lines.append("|---|---:|---|---:|---:|---:|")
    for one in report["results"]:
        first, later = (
            "; ".join(f"{s:.{1 if s > 99 else 2}f}" for s in one[key]) for key in ("first_epoch_s", "epoch_s")
        )
        is_one, is_part = "over h5py" in one["reader"], min(one["part"]) < 1
        name = f"**{one['reader']}**" if one["reader"] == OURS else one["reader"]
        what = f"{one['model']}, {one['count']:,} {one['samples']} | {one['steps_alone_s']:.2f}"
        cells = [what, name, f"{'about ' * is_part}{first}", "" if is_one else later]
        lines.append(f"| {' | '.join([*cells, '; '.join(f'{share:.0%}' for share in one['in_steps'])])} |")
    return "\n".join(lines)
