"""Make pages and pictures of docs/ and a sentence of the README from bench/results/: no number there is typed by hand.

python tools/bench_pages.py           write them
python tools/bench_pages.py --check   fail unless the pages are those of the committed results
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools import bench_report  # noqa: E402
from tools import bench_tables as tables  # noqa: E402
from tools import bench_words as words  # noqa: E402
from tools import learning_tables as learning  # noqa: E402
from tools.main_tables import WORDS, machine_line, main_table, usual_facts  # noqa: E402
from tools.not_first import behind, not_first_table  # noqa: E402

RESULTS, DOCS, README = ROOT / "bench" / "results", ROOT / "docs", ROOT / "README.md"
IMAGES = DOCS / "images"
# The files of a part, the best first: a full run, or where there is none what was measured before or quickly.
FILES = {part: (f"{part}-full", f"{part}-quick") for part in ("peers", "sweep", "growth")} | {
    "main": ("main-full", "reference-2core"),
    "learning": ("learning",),
    "samples": ("samples",),
    **{name: (name,) for name in ("limits", "ragged", "objects", "object-store", "world-model", "sparse")},
    **{name: (name,) for name in ("programs", "weights", "augmentation", "statistics", "many-cores", "training-loops")},
    **{f"others-{name}": (f"others-{name}",) for name in ("insitubatch", "cells", "volumes", "virtual", "images")},
}
SHUFFLING, LEARNED = DOCS / "shuffling.md", ("<!-- learning: start -->\n", "<!-- learning: end -->")
_MADE = """\
---
hide:
  - toc
---
<!-- made by tools/bench_pages.py from bench/results/: change those -->

"""
"""How a made page begins; its tables need the room that a table of contents would take."""

_REPEAT = """\
To measure your own machine: `h5stream bench` takes a minute; everything on this page is one command, which says first
how long it will take:

```bash
python -m pip install -c constraints.txt '.[test,peers]'
tools/bench --full
```
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of samples and its table.

    Attributes
    ----------
    part, title, says : str
        Name of the results, head of the section, and what its columns mean.
    columns : dict of str to str
        For each head, how a result becomes a cell; a result that lacks something has an empty one.
    made : callable, optional
        Makes the table from the report in place of `columns`.
    same : tuple of str
        Results that agree in these share a row: a cell has the figure of each.
    only : callable, optional
        Which results the table has.
    after : callable, optional
        Makes what follows the table from the report.
    """

    part: str
    title: str
    says: str
    columns: dict[str, str]
    made: Callable[[dict[str, Any]], str] | None = None
    same: tuple[str, ...] = ()
    only: Callable[[dict[str, Any]], bool] | None = None
    after: Callable[[dict[str, Any]], str] | None = None

    def table(self, report: dict[str, Any]) -> str:
        """Make the Markdown table."""
        if self.made is not None:
            return self.made(report)
        groups: dict[Any, list[dict[str, Any]]] = {}
        for place, one in enumerate(report["results"]):
            if self.only is None or self.only(one):
                key = tuple(one[name] for name in self.same) or place
                groups.setdefault(key, []).append({**one, "nbytes_mb": one.get("nbytes", 0) / 1e6})
        rows = [[_cells(form, group) for form in self.columns.values()] for group in groups.values()]
        bars = ["---" if head.islower() and head in WORDED else "---:" for head in self.columns]
        lines = [[*self.columns], bars, *(row for row in rows if sum(map(bool, row)) > 2)]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)


WORDED = (
    *("samples", "stored", "where", "case", "data", "form", "loader", "`ragged=`"),
    *("program", "subject", "their reader", "they shuffle", "we shuffle"),
)
"""Heads of columns of words."""


def _cells(form: str, group: list[dict[str, Any]]) -> str:
    """Write the cells of results that share a row: once if all are equal."""
    return "; ".join(dict.fromkeys(_cell(form, one) for one in group))


def _cell(form: str, one: dict[str, Any]) -> str:
    try:
        return form.format(**one)
    except (KeyError, IndexError, TypeError, ValueError):
        return ""


_OURS = "{samples_per_s:,.0f}"
KINDS = (
    Kind(
        part="training-loops",
        title="Loops that train",
        says="An MLP, a small CNN whose images are cropped and flipped, and a GRU over windows, trained on the "
        "processors that also read (`bench/training_loops.py`), in batches of 8,192, 256 and 256. *In steps*: the "
        "share of its time that the loop spends in augmentation, forward and backward passes and optimizer, the same "
        "for all. Two figures are of two files and seeds. A `DataLoader` over h5py has two workers, which also take "
        "processors from the steps, and trains one epoch; *about*: computed from half a minute of it. What fits in "
        "memory is kept by h5stream, so that later epochs decode nothing.",
        columns={},
        made=tables.loops_table,
    ),
    Kind(
        part="others-insitubatch",
        title="insitubatch's benchmark",
        says="Its own program on its own data: 410 samples of 1 MB, random float32 with zstd, in zarr with 1, 8 or 32 "
        "of them a chunk, and an HDF5 twin with the same chunks and filter. Each of its engines with the better "
        "of two windows. *Later epochs*: its pool keeps chunks, also with `cache=none` if they fit its window. "
        "The array in memory was read before the clock started.",
        columns={},
        made=tables.others_table,
    ),
    Kind(
        part="others-cells",
        title="annbatch's comparison",
        says="Batches of 4,096 cells with their cell lines, as `arrayloader-benchmarks` sets loaders up, on 196,608 "
        "made cells as wide as Tahoe-100M's: 62,710 genes, of which each cell has about 1,200. annbatch reads its"
        " own zarr, with lz4; scDataset an `.h5ad` with gzip, as its benchmark does; h5stream that, and one with "
        "lz4.",
        columns={},
        made=tables.others_table,
    ),
    Kind(
        part="others-volumes",
        title="zarr_benchmarks",
        says="1,024 x 1,024 x 1,024 uint16 in chunks of 256 a side, plain and with zstd, read whole and chunk by chunk"
        " into memory, by its own program and from an HDF5 twin; the best of three, in seconds.",
        columns={},
        made=tables.others_table,
    ),
    Kind(
        part="others-virtual",
        title="The same file as virtual zarr",
        says="What people use to read HDF5 from a bucket without converting it: references to the chunks of one file, "
        "262,144 rows of 1 KiB with gzip, read by zarr in blocks of a chunk, 64 mixed, by 2 threads (local) and "
        "32 (20 ms away). Nothing is kept between epochs.",
        columns={},
        made=tables.others_table,
    ),
    Kind(
        part="others-images",
        title="SPDL's thread scaling",
        says="4,096 JPEGs of 256 x 256 in batches of 32: SPDL's pipeline and Pillow under a `DataLoader` read files, "
        "h5stream one HDF5 file, shuffled. Decoders differ in how they scale up colour.",
        columns={},
        made=tables.others_table,
    ),
    Kind(
        part="many-cores",
        title="Many processors, and a loop that is busy",
        says="A machine of many processors, simulated on two: each read takes as long as decoding its bytes, 2 ns a "
        "byte, without using one (`bench/many_cores.py`). A cell has the rows/s of a loop that only takes batches; "
        "their share of what so many readers could decode; and the share of its time that a loop spends in its own "
        "steps, of Python and of small operations of torch: 5 ms a batch of 8,192 rows of 1 KiB, 0.5 ms a batch of 64. "
        "Rows kept in memory are not decoded and have no second figure.",
        columns={},
        made=tables.many_cores_table,
    ),
    Kind(
        part="limits",
        title="How near the limit",
        says="Medians of rounds in turns, spreads in brackets (`bench/test_limits.py`). *Only inflating* reads and "
        "inflates the same chunks in as many threads; nothing is kept in memory unless the case says so. *Touching* is "
        "what as much memory as is *held* takes to be touched for the first time. *Counts* and *stations* are files of "
        "other makes: 290,011 traces of 600 int16, gzip 6 without shuffle; 962,352 rows of 45 rounded float64, gzip 1 "
        "and shuffle.",
        columns={
            "case": "{case}",
            "of": "{against}",
            "h5stream": "{newer[median]:.3g} [{newer[spread][0]:.3g}, {newer[spread][1]:.3g}]",
            "at least": "{least:g}",
            "at most": "{most:g}",
            "seconds": "{newer[ours_s]:.3f}",
            "touching, s": "{newer[touching_s]:.2f}",
            "held, MiB": "{newer[held_mib]:.0f}",
        },
    ),
    Kind(
        part="samples",
        title="Samples that are no rows",
        says="Shuffled epochs (`bench/test_samples.py`). *The limit* is as many threads that inflate each chunk once "
        "and copy as many bytes as the batches hold. *As written* is the reader as programs have it, under a "
        "`DataLoader` with a worker for each processor.",
        columns={
            "samples": "{case}",
            "stored": "{stored}",
            "ours, samples/s": _OURS,
            "GB/s": "{gb_per_s:.2f}",
            "of the limit": "{of_limit:.2f}",
            "times as written": "{of_usual:.1f}",
        },
    ),
    Kind(
        part="objects",
        title="A dataset or a file a sample",
        says="Shuffled epochs within 256 MiB of a million datasets of 1,200 bytes in one group, of traces of 3 x 6000 "
        "float32, "
        "and of a file a sample (`bench/test_objects.py`). *The limit* is as many threads that read the same bytes in "
        "the order of the file, inflate and copy them. *As written* is h5py under a `DataLoader`. Opened: the first "
        "time, and with the catalogue that was kept then.",
        columns={
            "case": "{case}",
            "samples": "{samples:,}",
            "opened, s": "{first_s:.1f}",
            "again, s": "{second_s:.2f}",
            "ours, samples/s": _OURS,
            "of the limit": "{of_limit:.2f}",
            "times as written": "{of_usual:.0f}",
        },
    ),
    Kind(
        part="object-store",
        title="Out of a store that is far away",
        says="Shuffled epochs out of a server of our own: 60 MB/s a connection, 100 MB/s in all, and a latency until "
        "the first byte of each answer. *Of the line* is the share of what 32 requests of 2 MiB at a time bring of the "
        "same object. *Of needed* is bytes fetched over bytes needed; sequences overlap, so theirs is under 1. *Grown* "
        "is the resident memory. Figures are means of whole epochs, with the default budget and with one of 256 MiB "
        "(`bench/object_store.py`).",
        columns={
            "case": "{case}",
            "latency, ms": "{latency_ms:.0f}",
            "samples/s": _OURS,
            "of the line": "{of_line:.2f}",
            "requests": "{requests:,}",
            "of needed": "{nbytes_of_needed:.2f}",
            "opened, s": "{opened_s:.2f}",
            "round trips": "{round_trips_to_open:.0f}",
            "first batch, s": "{first_batch_s:.1f}",
            "grown, MiB": "{grown_mib:.0f}",
        },
        same=("case", "latency_ms"),
        only=tables.is_ours,
        after=tables.stores_table,
    ),
    Kind(
        part="world-model",
        title="World models",
        says="Shuffled epochs of episodes as stable-worldmodel writes them, a frame of 224 x 224 a chunk: batches of "
        "64 samples of 4 frames, 5 rows apart, and the actions between them, from the disk and out of a store 20 ms "
        "away that brings 100 MB/s in all. Its own readers run under a `DataLoader` with two workers. Its writer "
        "converts frames to JPEG for Lance; the same JPEG is in the HDF5 file beside it. Rates begin at the first "
        "batch. Each cell has the figures of two files. Samples are equal (`bench/world_model.py`).",
        columns={
            "where": "{where}",
            "stored": "{stored}",
            "loader": "{reader}",
            "samples/s": _OURS,
            "first batch, s": "{first_batch_s:.1f}",
            "MB": "{mb:,.0f}",
            "converted in, s": "{convert_s:.0f}",
        },
        same=("where", "stored", "reader"),
    ),
    Kind(
        part="programs",
        title="Readers of real programs",
        says="A program's own reader beside h5stream on the same file; neither needs a converted copy. The Well and "
        "Salt are packages and come with their reader; the other readers are rewritten, and those below WatChMaL are "
        "of programs that h5stream was not made with (`bench/held_out.py`). Theirs run under a `DataLoader` with two "
        "workers that stay between epochs; ours keeps nothing in memory (`keep='never'`). Samples are as the "
        "program's model takes them, joined and masked; those of an epoch are compared before anything is timed "
        "(`bench/programs.py`). Samples/s are of the median epoch; the first batch is that of a new process, from "
        "when the loader is made. To shuffle *batches* is to cut the file into batches of neighbours and shuffle "
        "these. Each cell has the figures of two files.",
        columns={
            "program": "{program}",
            "subject": "{subject}",
            "stored": "{stored}",
            "MB": "{nbytes_mb:.0f}",
            "their reader": "{reader}",
            "they shuffle": "{their_shuffle}",
            "we shuffle": "{our_shuffle}",
            "theirs, samples/s": "{theirs[samples_per_s]:,.0f}",
            "h5stream, samples/s": "{ours[samples_per_s]:,.0f}",
            "times theirs": "{times:.1f}",
            "first batch, theirs, s": "{theirs[first_batch_s]:.1f}",
            "first batch, h5stream, s": "{ours[first_batch_s]:.1f}",
        },
        same=("program", "stored", "our_shuffle"),
    ),
    Kind(
        part="ragged",
        title="Ragged samples",
        says="Shuffled epochs of events of 400 rows of three fields of float32 on average, whose bounds a dataset "
        "says; "
        "*of plain rows* is what as many bytes come at that are rows of one dataset, in turns with ours. Of padded "
        "ones "
        "the bytes that are stored count. `bench/test_ragged.py` writes the files.",
        columns={
            "`ragged=`": "{case}",
            "stored": "{stored}",
            "ours, samples/s": _OURS,
            "GB/s": "{gb_per_s:.2f}",
            "of plain rows": "{of_plain:.2f}",
        },
    ),
    Kind(
        part="sparse",
        title="Sparse matrices",
        says="Shuffled epochs of rows of a CSR matrix with 5 % of 30,000 columns, as AnnData stores it, in batches "
        "of 1,024: "
        "all values (`packed`), or a dense matrix of 2,000 columns. annbatch reads the same rows converted for it, "
        "anndata and scDataset the `.h5ad`. Decoded rows are kept in memory behind the first epoch, where they fit. "
        "`bench/test_sparse.py` writes the files.",
        columns={
            "samples": "{case}",
            "stored": "{stored}",
            "form": "{form}",
            "ours, rows/s": "{rows_per_s:,.0f}",
            "times annbatch": "{of_annbatch:.1f}",
            "times anndata": "{of_anndata:.1f}",
            "times scDataset": "{of_scDataset:.1f}",
        },
    ),
    Kind(
        part="weights",
        title="Weights, balance, mixtures",
        says="Epochs that were drawn beside plain ones of as many samples, in turns (`bench/test_weights.py`).",
        columns={
            "case": "{case}",
            "stored": "{stored}",
            "ours, samples/s": _OURS,
            "of a plain epoch": "{of_plain:.2f}",
        },
    ),
    Kind(
        part="augmentation",
        title="Python for each sample",
        says="`sample_transform=` in so many processes: beside as many processes that do nothing but the same function "
        "(*of pure*), a stock `DataLoader` over `H5Dataset` with as many workers, and the reader as authors write it "
        "(`bench/test_augmentation.py`).",
        columns={
            "case": "{case}",
            "stored": "{stored}",
            "workers": "{workers}",
            "ours, samples/s": "{samples_per_s[ours]:,.0f}",
            "of pure": "{of_pure:.2f}",
            "times stock": "{of_stock:.2f}",
            "times as written": "{of_authors:.1f}",
        },
    ),
    Kind(
        part="statistics",
        title="Statistics of fields",
        says="One pass of `H5Dataset.statistics` beside an epoch in the order of the file "
        "(`bench/test_field_statistics.py`).",
        columns={
            "stored": "{kind}",
            "axis": "{axis}",
            "bytes/s": "{statistics_bytes_per_s:,.0f}",
            "of an epoch": "{ratio:.2f}",
        },
    ),
)


def load(part: str) -> dict[str, Any] | None:
    """Give the results of a part; None where there are none."""
    for name in FILES[part]:
        path = RESULTS / f"{name}.json"
        if path.exists():
            found: dict[str, Any] = json.loads(path.read_text())
            return found
    return None


def benchmarks_page(reports: dict[str, dict[str, Any] | None]) -> str:
    """Write the page of benchmarks, from what there are results for."""
    main, peers, sweep, growth = (reports.get(part) for part in ("main", "peers", "sweep", "growth"))
    usual = usual_facts(report for part, report in reports.items() if report and part != "learning")
    parts = [
        "# Benchmarks\n",
        words.opening(reports) + "\n",
        _REPEAT,
        f"If a section says nothing else, it was measured with {', '.join(usual.values())}. Spreads, rounds and every "
        "figure of every run are in `bench/results/`.\n",
    ]
    if main:
        parts += ["## The main job\n", machine_line(main, usual) + "\n", WORDS + "\n", main_table(main) + "\n"]
    if peers:
        parts += _peers_sections(peers, usual)
    parts += ["## Where ours is not first\n", not_first_table(behind(main, peers, sweep)) + "\n"]
    if slower := [*words.slower(reports), *words.behind_others(reports)]:
        parts.append("\n".join(f"- {one}" for one in slower) + "\n")
    if missed := words.missed(reports):
        parts += [
            "Lines that were set for h5stream, and that it misses:\n",
            "\n".join(f"- {one}" for one in missed) + "\n",
        ]
    for kind in KINDS:
        if report := reports.get(kind.part):
            parts += [
                f"## {kind.title}\n",
                machine_line(report, usual) + "\n",
                kind.says + "\n",
                kind.table(report) + "\n",
            ]
            if kind.after:
                parts.append(kind.after(report) + "\n")
    if sweep:
        parts += [
            "## One thing varied at a time\n",
            tables.sweep_verdict(sweep)
            + " *Row by row* and *batched* (and sorted) are h5py under a `DataLoader`: one process's rate times the "
            "processors. They are stopped after a few seconds; `under` marks one that gave no batch until then. What "
            f"is not varied is: {_said(sweep['base'])}. Every cell's bytes were summed and compared. "
            + tables.sweep_caveat(sweep)
            + "\n",
            "![sweep](images/sweep.svg)\n",
            machine_line(sweep, usual) + "\n",
            tables.sweep_table(sweep) + "\n",
        ]
    if growth:
        parts += [
            "## How cost grows with rows\n",
            "Files that hold next to nothing: what is left is what the number of rows itself costs. The first batch is "
            "that of a fresh process, kernels loaded included; *again* is that of the next epoch. "
            f"{tables.growth_of_states(growth)}\n",
            "![growth](images/growth.svg)\n",
            machine_line(growth, usual) + "\n",
            tables.growth_table(growth) + "\n",
        ]
    return _MADE + "\n".join(parts)


def _said(base: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in base.items())


def _peers_sections(peers: dict[str, Any], usual: dict[str, str]) -> list[str]:
    parts = [
        "## Every alternative\n",
        f"{machine_line(peers, usual)}\n\n{peers['rows']:,} rows of {peers['row_nbytes']:,} bytes, shuffled batches of "
        f"{peers['batch_rows']:,}, files in the page cache, each in a process of its own. rows/s is the median of the "
        "epochs after the first; memory is what the process and its workers took beyond what they had "
        "before the loader was opened. Whole epochs gave the same checksum, parts of one were compared row by row. "
        "`about`: measured in smaller batches, because eight workers fill eight before they give one. *Part*: of a "
        "part of an epoch. Two figures in a cell are of the two files. *h5stream* keeps decoded rows that fit "
        "`memory_budget`, as these do; with `keep='never'` each epoch decodes them all.\n",
    ]
    parts += [
        f"![rows/s of each, {bench_report.KINDS[kind]}](images/peers-{kind}.svg)\n" for kind in tables.kinds(peers)
    ]
    parts.append(tables.peers_table(peers) + "\n")
    if peers["absent"]:
        parts += ["### Not measured\n", tables.absent_list(peers) + "\n"]
    return parts


def learning_page(report: dict[str, Any]) -> str:
    """Write the page of what shuffling costs learning."""
    parts = [
        "# What window shuffling costs learning\n",
        f"{report['seeds']} seeds of each order train with the same first weights, data and steps. A file is sorted by "
        "label (the worst case), by session, or not at all, and has many small chunks or few large ones. Figures are "
        "the final test loss, with the 95 % interval of its mean, and the accuracy, in tables of single cases if "
        "it is half a point from the full shuffle's. *full, other seeds* is a placebo: a second full shuffle, which "
        "shows what chance alone does. *Inside* counts cases "
        "inside the full shuffle's 95 % interval.\n",
        learning.verdict(report) + "\n",
        learning.verdict_table(report) + "\n",
        "The same for the cases in which the automatic window is smaller than the file; in all others it *is* a full "
        "shuffle. *auto, first small*: an epoch begins with 64 blocks and doubles, as it does if rows are large. "
        "*auto, first 8 once*: the first epoch begins with 8 blocks, which no loader does.\n",
        learning.verdict_table(report, subsets_only=True) + "\n",
        "![what an automatic window costs](images/learning-subset.svg)\n",
        "![loss of each order](images/learning.svg)\n",
        "## Does the score foretell harm?\n",
        learning.score_table(report) + "\n",
        "![loss over score](images/learning-score.svg)\n",
        "The score knows how well batches mix *places in the file*; it cannot know whether neighbours are alike. In a "
        "file in random order no order harms, whatever its score.\n",
    ]
    for data in dict.fromkeys(one["data"] for one in report["results"]):
        some = next(one for one in report["results"] if one["data"] == data)
        parts.append(f"## {data}: {some['rows']:,} training rows\n")
        parts.append(_windows(report, data) + "\n")
        for model in report["models"]:
            parts += [f"{model}, by *sorted by, chunks*:\n", learning.cases_table(report, data, model) + "\n"]
    return _MADE + "\n".join(parts)


def _between(page: str, start: str, end: str, text: str) -> str:
    """Put a text between the marks of a page that is otherwise written by hand."""
    before, rest = page.split(start)
    return before + start + text + end + rest.split(end)[1]


def _windows(report: dict[str, Any], data: str) -> str:
    """Say how many blocks each layout has, and what of the file an automatic window holds."""
    autos = {one["chunks"]: one for one in report["results"] if one["data"] == data and one["order"] == learning.OURS}
    return "; ".join(
        f"{chunks}: {one['blocks']:,} blocks of {one['block_rows']:,} rows, an automatic window holds "
        f"{100 * one['window_rows'] / one['rows']:.3g} % of the rows (score {one['score']:.2f})"
        for chunks, one in autos.items()
    )


def pages() -> dict[Path, str]:
    """Make every page that there are results for, and the README with its sentence."""
    reports = {part: load(part) for part in FILES}
    made = {}
    if any(reports[part] for part in ("main", "peers", "sweep", "growth")):
        made[DOCS / "benchmarks.md"] = benchmarks_page(reports)
    if report := reports["learning"]:
        made[DOCS / "shuffling-results.md"] = learning_page(report)
        made[SHUFFLING] = _between(SHUFFLING.read_text(), *LEARNED, learning.verdict_in_short(report) + "\n")
    if peers := reports["peers"]:
        made[README] = bench_report.with_sentence(README.read_text(), bench_report.readme_sentence(peers))
        if (loops := reports["training-loops"]) and (virtual := reports["others-virtual"]):
            made[README] = bench_report.with_table(made[README], bench_report.readme_table(peers, loops, virtual))
    return made


def draw() -> None:
    """Draw every picture that there are results for."""
    import matplotlib as mpl

    from tools import bench_plots

    mpl.rcParams["svg.hashsalt"] = "h5stream"  # the same results make the same file
    figures: dict[str, Any] = {}
    if peers := load("peers"):
        figures["formats"] = bench_plots.formats_figure(peers)
        figures |= {f"peers-{kind}": bench_plots.peers_figure(peers, kind) for kind in tables.kinds(peers)}
    if sweep := load("sweep"):
        figures["sweep"] = bench_plots.sweep_figure(sweep)
    if growth := load("growth"):
        figures["growth"] = bench_plots.growth_figure(growth)
    if report := load("learning"):
        figures["learning"] = bench_plots.learning_figure(report)
        figures["learning-subset"] = bench_plots.subset_figure(report)
        figures["learning-score"] = bench_plots.score_figure(report)
    IMAGES.mkdir(parents=True, exist_ok=True)
    for name, figure in figures.items():
        figure.savefig(IMAGES / f"{name}.svg", metadata={"Date": None})


def main(words: list[str] | None = None) -> int:
    """Write, or check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args(words)
    made = pages()
    if given.check:
        stale = [path.name for path, text in made.items() if not path.exists() or path.read_text() != text]
        print("pages: " + (f"not those of the results: {', '.join(stale)}" if stale else "up to date"))
        return 1 if stale else 0
    for path, text in made.items():
        path.write_text(text)
        print(path.relative_to(ROOT))
    draw()
    return 0


if __name__ == "__main__":
    sys.exit(main())
