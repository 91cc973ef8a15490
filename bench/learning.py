"""What window shuffling costs learning: ten seeds of each order, the same data, the same models.

python -m bench.learning --data digits --out bench/results/learning.json

Deterministic: no timing, so that it may run on a busy machine. Results of other data in the file are kept. The
seeds of a case are trained side by side, as one batched model, which changes nothing but the time it takes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.learning_data import SOURCES, Data
from bench.machine import describe
from h5stream.engine.footprint import Scratch, Shape
from h5stream.order.blocks import Blocks, make_blocks
from h5stream.order.epoch import EpochOrder, OrderSettings
from h5stream.order.quality import forecast

SEEDS = 10
HIDDEN = 64
MODELS = {"logistic regression": 0.05, "MLP": 0.05}
"""Model -> the learning rate that it begins with; it falls to 0 in a straight line."""

SORTINGS = ("label", "session", "random")
CHUNKS = ("small", "large")

# Order -> blocks in a window. The second full shuffle is a placebo: whatever it seems to cost is chance.
# "auto, first small" begins an epoch with a window of 64 blocks and doubles, as the loader does where rows are large;
# "auto, first 8 once" begins the first epoch with 8 blocks: a first batch would come after an eighth of the reading.
ORDERS: dict[str, int | None] = {
    "full": None,
    "full, other seeds": None,
    "auto": None,
    "auto, first small": None,
    "auto, first 8 once": None,
    "1,024 blocks": 1024,
    "64 blocks": 64,
    "16 blocks": 16,
    "4 blocks": 4,
    "blocks only": 1,
    "none": 1,
}
# Where blocks are many every order takes a while, so that one of the middle is left out; a first window that is
# small needs many blocks to differ.
LEFT_OUT: dict[str, tuple[str, ...]] = {"many blocks": ("16 blocks", "auto, first 8 once")}
ONLY_WITH_MANY_BLOCKS = ("auto, first small", "1,024 blocks")
ALIKE_FOR_ALL_BLOCKS = ("full", "full, other seeds", "none")


def orders_of(name: str) -> list[str]:
    """List the orders that a data set is trained in."""
    left_out = LEFT_OUT.get(name, ONLY_WITH_MANY_BLOCKS)
    return [order for order in ORDERS if order not in left_out]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A file's rows and blocks."""

    blocks: Blocks
    block_rows: int
    batch_rows: int
    row_nbytes: int

    def window_rows(self, order: str) -> int:
        """Give the rows of a window, as the loader would for plenty of memory."""
        rows = self.blocks.total_rows
        if order.startswith("auto"):
            return self._shape.wished_rows("auto", self.batch_rows)
        count = ORDERS[order]
        return rows if count is None else min(rows, count * self.block_rows)

    def first_window_rows(self, order: str, epoch: int = 0) -> int:
        """Give the rows of an epoch's first window."""
        window = self.window_rows(order)
        if order == "auto, first 8 once" and epoch == 0:
            return min(window, 8 * self.block_rows)
        if order != "auto, first small":
            return window
        return min(window, self._shape.first_rows(self.batch_rows))

    @property
    def _shape(self) -> Shape:
        rows, nbytes = self.blocks.total_rows, (self.row_nbytes,)
        return Shape(rows=rows, field_nbytes=nbytes, block_rows=self.block_rows, scratch=Scratch(0))

    def epoch(self, order: str, seed: int, epoch: int) -> EpochOrder:
        """Give the order of an epoch."""
        settings = OrderSettings(
            batch_size=self.batch_rows,
            window_rows=self.window_rows(order),
            first_window_rows=self.first_window_rows(order, epoch),
            shuffle=order != "none",
            seed=seed + (1000 if order == "full, other seeds" else 0),
            epoch=epoch,
        )
        # A full shuffle is one over rows, not over blocks: the yardstick must not be made by what it measures.
        rows_alone = order.startswith("full")
        return EpochOrder(make_blocks((0, self.blocks.total_rows), (1,)) if rows_alone else self.blocks, settings)


def line_of(order: EpochOrder) -> Any:
    """Give the rows of an epoch in the order in which batches hold them."""
    line = np.empty(order.rows, dtype=np.int64)
    for window in order.windows():
        line[window.batch * order.settings.batch_size + window.within] = window.rows
    return line


def measured_score(order: EpochOrder) -> float:
    """Return by how much the means of batches scatter less than those of a full shuffle would; 1 for as little."""
    line, size, total = line_of(order), order.settings.batch_size, order.rows
    expected = np.arange(total).var() / size * (total - size) / (total - 1)
    return min(1.0, float(expected / np.var(line[: total // size * size].reshape(-1, size).mean(axis=1))))


def score_of(layout: Layout, order: str) -> float:
    """Give `forecast`'s score of an order."""
    made = layout.epoch(order, 0, 0)
    return measured_score(made) if order == "none" else forecast(made).score


def lines_of(layout: Layout, order: str, epochs: int) -> list[Any]:
    """Give each epoch's lines: a row a seed."""
    return [
        torch.from_numpy(np.stack([line_of(layout.epoch(order, seed, epoch)) for seed in range(SEEDS)]))
        for epoch in range(epochs)
    ]


def train(model: str, data: Data, x: Any, y: Any, lines: list[Any]) -> tuple[list[float], list[float]]:
    """Train all seeds side by side in the order of `lines_of`; gives the test loss and accuracy of each."""
    weights = _first_weights(model, x.shape[1], int(y.max()) + 1)
    optimizer = torch.optim.SGD(weights, lr=MODELS[model], momentum=0.9)
    batches = [rows for line in lines for rows in line.split(data.batch_rows, dim=1)]
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / len(batches))
    features, labels = torch.from_numpy(x), torch.from_numpy(y)
    for rows in batches:
        optimizer.zero_grad(set_to_none=True)
        # The sum over seeds: each seed's gradient is its own.
        _losses(weights, features[rows], labels[rows]).sum().backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        test_x = torch.from_numpy(data.test_x).expand(SEEDS, -1, -1)
        test_y = torch.from_numpy(data.test_y).expand(SEEDS, -1)
        loss = _losses(weights, test_x, test_y)
        right = (_logits(weights, test_x).argmax(dim=2) == test_y).float().mean(dim=1)
    return loss.tolist(), right.tolist()


def _first_weights(model: str, width: int, classes: int) -> list[Any]:
    """Draw each seed's weights; the same for every order, so that orders are compared in pairs."""
    sizes = [width, classes] if model == "logistic regression" else [width, HIDDEN, classes]
    weights = []
    for before, after in itertools.pairwise(sizes):
        drawn = [
            torch.randn(before, after, generator=torch.Generator().manual_seed(seed)) / math.sqrt(before)
            for seed in range(SEEDS)
        ]
        weights += [torch.stack(drawn).requires_grad_(), torch.zeros(SEEDS, 1, after, requires_grad=True)]
    return weights


def _logits(weights: list[Any], x: Any) -> Any:
    out = x @ weights[0] + weights[1]
    return out if len(weights) == 2 else torch.relu(out) @ weights[2] + weights[3]


def _losses(weights: list[Any], x: Any, y: Any) -> Any:
    logits = _logits(weights, x)
    each = torch.nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none")
    return each.view(SEEDS, -1).mean(dim=1)


def cases(name: str, sortings: tuple[str, ...] = SORTINGS, sizes: tuple[str, ...] = CHUNKS) -> Iterator[dict[str, Any]]:
    """Train every case of one data set."""
    data = SOURCES[name]()
    files = {sorting: data.sorted_by(sorting) for sorting in sortings}
    rows = len(data.y)
    trained: dict[tuple[str, ...], tuple[list[float], list[float]]] = {}
    for chunks, order in itertools.product(sizes, orders_of(name)):
        block_rows = data.small_block if chunks == "small" else data.large_block
        layout = Layout(
            blocks=make_blocks((0, rows), (block_rows,)),
            block_rows=block_rows,
            batch_rows=data.batch_rows,
            row_nbytes=data.row_nbytes,
        )
        score = round(score_of(layout, order), 5)
        lines: list[Any] = []
        for (sorting, (x, y)), model in itertools.product(files.items(), MODELS):
            same = (sorting, model, order, "" if order in ALIKE_FOR_ALL_BLOCKS else chunks)
            if same not in trained:
                lines = lines or lines_of(layout, order, data.epochs)
                trained[same] = train(model, data, x, y, lines)
            loss, accuracy = trained[same]
            yield {
                "data": name, "sorted_by": sorting, "chunks": chunks, "model": model, "order": order,
                "rows": rows, "block_rows": block_rows, "blocks": layout.blocks.count,
                "window_rows": layout.window_rows(order), "score": score,
                "loss": [round(v, 5) for v in loss], "accuracy": [round(v, 5) for v in accuracy],
            }  # fmt: skip


def main() -> int:
    """Train and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=list(SOURCES), action="append")
    parser.add_argument("--sorted-by", choices=SORTINGS, action="append")
    parser.add_argument("--chunks", choices=CHUNKS, action="append")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    names, sortings = given.data or list(SOURCES), tuple(given.sorted_by or SORTINGS)
    torch.set_num_threads(1)  # the steps are small, and sums come out the same on every machine's number of cores
    sizes = tuple(given.chunks or CHUNKS)
    kept = json.loads(given.out.read_text())["results"] if given.out.exists() else []
    again = {(name, sorted_by, chunks) for name in names for sorted_by in sortings for chunks in sizes}
    kept = [one for one in kept if (one["data"], one["sorted_by"], one["chunks"]) not in again]
    found = []
    for name in names:
        try:
            found += list(cases(name, sortings, sizes))
        except (ImportError, FileNotFoundError) as error:
            print(f"{name}: left out, {error}")
    report = describe() | {"seeds": SEEDS, "models": MODELS, "results": sorted(kept + found, key=_place)}
    report["machine"].pop("load_before")
    given.out.write_text(_one_line_a_case(report))
    print(f"{given.out}: {len(found)} cases of {', '.join(names)}")
    return 0


def _place(case: dict[str, Any]) -> tuple[int, ...]:
    """Give a case's place in the file, so that it does not depend on what was measured first."""
    axes = (("data", SOURCES), ("sorted_by", SORTINGS), ("chunks", CHUNKS), ("model", MODELS), ("order", ORDERS))
    return tuple(list(values).index(case[name]) for name, values in axes)


def _one_line_a_case(report: dict[str, Any]) -> str:
    """Write JSON whose results are one line each: a change of one case is a change of one line."""
    head = json.dumps({key: value for key, value in report.items() if key != "results"}, indent=1)
    lines = ",\n  ".join(json.dumps(one) for one in report["results"])
    return f'{head[:-2]},\n "results": [\n  {lines}\n ]\n}}\n'


if __name__ == "__main__":
    raise SystemExit(main())
