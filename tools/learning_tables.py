"""The results of bench/learning.py as tables and sentences: pure functions."""

from __future__ import annotations

from typing import Any

from tools.bench_statistics import differs, mean_and_margin, rank_correlation

YARDSTICK, PLACEBO, OURS = "full", "full, other seeds", "auto"
EXTREME = "auto, first 8 once"
"""An order that no loader has, which tables of single cases leave out."""
SHOWN = (
    YARDSTICK,
    PLACEBO,
    OURS,
    "auto, first small",
    EXTREME,
    "1,024 blocks",
    "64 blocks",
    "16 blocks",
    "4 blocks",
    "blocks only",
    "none",
)
FAMILY_LEVEL = 0.95
DIVERGED = 100.0
"""A loss, or a multiple of the full shuffle's, beyond which a figure has no meaning of its own."""


def times(ratio: float) -> str:
    """Show a loss as a multiple; beyond a hundred it says no more than that training diverged."""
    return f"{ratio:.3f} x" if ratio <= DIVERGED else f"over {DIVERGED:g} x"


def groups(report: dict[str, Any]) -> dict[tuple[str, str, str, str], dict[str, Any]]:
    """Group the cases that differ in order alone: (data, sorted by, chunks, model) -> order -> case."""
    found: dict[tuple[str, str, str, str], dict[str, Any]] = {}
    for one in report["results"]:
        key = (one["data"], one["sorted_by"], one["chunks"], one["model"])
        found.setdefault(key, {})[one["order"]] = one
    return found


def orders_of(found: dict[tuple[str, str, str, str], dict[str, Any]]) -> list[str]:
    """List the orders that any group was trained in; not every data set has all of them."""
    return [order for order in SHOWN if any(order in orders for orders in found.values())]


def subset_groups(report: dict[str, Any]) -> dict[tuple[str, str, str, str], dict[str, Any]]:
    """Give the groups in which an automatic window is smaller than the file: elsewhere it is a full shuffle."""
    return {key: orders for key, orders in groups(report).items() if is_subset(orders)}


def is_subset(orders: dict[str, Any]) -> bool:
    """Say whether the automatic window of a group is smaller than the file."""
    return bool(orders[OURS]["window_rows"] < orders[OURS]["rows"])


def inside_interval(case: dict[str, Any], full: dict[str, Any], figure: str = "loss") -> bool:
    """Say whether a case's mean lies in the 95 % interval of the full shuffle's mean."""
    mean, margin = mean_and_margin(full[figure])
    return bool(abs(sum(case[figure]) / len(case[figure]) - mean) <= margin)


def harmed(report: dict[str, Any], order: str) -> list[tuple[str, str, str, str]]:
    """List the groups whose loss under an order differs from the full shuffle's, pairs of seeds compared.

    The level is shared among all groups (Bonferroni), so that with no harm at all a list with anything in it is
    rare: one in twenty.
    """
    found = groups(report)
    level = 1 - (1 - FAMILY_LEVEL) / max(1, len(found))
    return [
        key
        for key, orders in found.items()
        if order in orders and differs(orders[order]["loss"], orders[YARDSTICK]["loss"], level)
    ]


def verdict_table(report: dict[str, Any], *, subsets_only: bool = False) -> str:
    """Make the table that answers the question: for each order, in how many cases it was as good as a full shuffle."""
    found = subset_groups(report) if subsets_only else groups(report)
    lines = [
        "| order | loss inside | accuracy inside | differs, by pairs of seeds | worst mean loss against full |",
        "|---|---:|---:|---:|---:|",
    ]
    for order in orders_of(found):
        if order == YARDSTICK:
            continue
        cases = [(orders[order], orders[YARDSTICK]) for orders in found.values() if order in orders]
        inside = [sum(inside_interval(case, full, figure) for case, full in cases) for figure in ("loss", "accuracy")]
        worst = max(sum(case["loss"]) / sum(full["loss"]) for case, full in cases)
        differing = sum(key in found for key in harmed(report, order))
        lines.append(
            f"| {order} | {inside[0]} of {len(cases)} | {inside[1]} of {len(cases)} | {differing} | {times(worst)} |"
        )
    return "\n".join(lines)


def verdict(report: dict[str, Any]) -> str:
    """Say whether an automatic window costs anything, and list the cases in which it does."""
    found = groups(report)
    listed = [f"- {', '.join(key)}: {_cost(found[key])}" for key in _costly(report)]
    return "\n".join([verdict_in_short(report), *([""] if listed else []), *listed])


def verdict_in_short(report: dict[str, Any]) -> str:
    """Say in two sentences whether an automatic window costs anything."""
    found, wide = groups(report), subset_groups(report)
    outside = [key for key in _costly(report) if key in wide and _is_outside(wide[key])]
    most = max((_rise(found[key]) for key in _costly(report)), default=0.0)
    return (
        f'`window="auto"` differs from a full shuffle in {len(harmed(report, OURS))} of {len(found)} cases; '
        f"in {len(wide)} of them its window is smaller than the file, and in {len(outside)} of those its mean loss "
        f"lies outside the full shuffle's interval. The loss rose by {most:.2f} % at most."
    )


def _costly(report: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    """List the groups in which an automatic window differs from a full shuffle, or lies outside its interval."""
    outside = [key for key, orders in subset_groups(report).items() if _is_outside(orders)]
    return list(dict.fromkeys([*harmed(report, OURS), *outside]))


def _is_outside(orders: dict[str, Any]) -> bool:
    return not inside_interval(orders[OURS], orders[YARDSTICK])


def _rise(orders: dict[str, Any]) -> float:
    """Give by how many per cent an automatic window's mean loss is above the full shuffle's."""
    full, auto = (mean_and_margin(orders[order]["loss"])[0] for order in (YARDSTICK, OURS))
    return 100 * (auto / full - 1)


def excess(orders: dict[str, Any], order: str) -> tuple[float, float]:
    """Give how much higher the loss of an order is than the full shuffle's, in per cent, and the margin of that.

    Seeds are compared in pairs, because the first weights of a pair are the same.
    """
    full = sum(orders[YARDSTICK]["loss"]) / len(orders[YARDSTICK]["loss"])
    pairs = zip(orders[order]["loss"], orders[YARDSTICK]["loss"], strict=True)
    return mean_and_margin([100 * (a - b) / full for a, b in pairs])


def _cost(orders: dict[str, Any]) -> str:
    """Say what an automatic window cost in a group."""
    (full, margin), (auto, _) = (mean_and_margin(orders[order]["loss"]) for order in (YARDSTICK, OURS))
    return f"loss {auto:.4f} against {full:.4f} ± {margin:.4f} ({_rise(orders):+.2f} %)"


def cases_table(report: dict[str, Any], data: str, model: str) -> str:
    """Make the table of one data set and model: a row an order, a column a file."""
    found = {key: orders for key, orders in groups(report).items() if key[0] == data and key[3] == model}
    heads = [f"{sorted_by}, {chunks}" for _, sorted_by, chunks, _ in found]
    lines = ["| order | " + " | ".join(heads) + " |", "|---|" + "---:|" * len(heads)]
    for order in (one for one in orders_of(found) if one != EXTREME):
        cells = [_cell(orders[order], orders[YARDSTICK]) if order in orders else "" for orders in found.values()]
        lines.append(f"| {order} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(case: dict[str, Any], full: dict[str, Any]) -> str:
    """Write the loss of a case, and its accuracy if that differs from the full shuffle's by half a point."""
    if case is not full and case["loss"] == full["loss"]:
        return "as full"
    loss, margin = mean_and_margin(case["loss"])
    accuracies = [100 * sum(one["accuracy"]) / len(one["accuracy"]) for one in (case, full)]
    is_shown = case is full or abs(accuracies[0] - accuracies[1]) >= 0.5
    accuracy = f", {accuracies[0]:.1f} %" if is_shown else ""
    if loss > DIVERGED:
        return f"diverged{accuracy}"
    digits = 3 if margin >= 0.002 else 4  # a margin of 0.000 would say nothing
    return f"{loss:.{digits}f} ± {margin:.{digits}f}{accuracy}"


def excess_loss(report: dict[str, Any]) -> list[tuple[str, float, float]]:
    """Give each case's file order, score, and loss as a multiple of the full shuffle's."""
    return [
        (key[1], case["score"], min(2 * DIVERGED, sum(case["loss"]) / sum(orders[YARDSTICK]["loss"])))
        for key, orders in groups(report).items()
        for order, case in orders.items()
        if order not in (YARDSTICK, PLACEBO)
    ]


def score_table(report: dict[str, Any]) -> str:
    """Make the table of how the score ranks harm, for each way that a file is sorted."""
    points = excess_loss(report)
    lines = [
        "| file sorted by | rank correlation of score and excess loss | worst loss at score over 0.5 | "
        "at 0.1 to 0.5 | below 0.1 |",
        "|---|---:|---:|---:|---:|",
    ]
    for name in dict.fromkeys(point[0] for point in points):
        chosen = [point for point in points if point[0] == name]
        rank = rank_correlation([p[1] for p in chosen], [p[2] for p in chosen])
        bands = [
            max((p[2] for p in chosen if low < p[1] <= high), default=None)
            for low, high in ((0.5, 2.0), (0.1, 0.5), (-1.0, 0.1))
        ]
        cells = " | ".join("" if band is None else times(band) for band in bands)
        lines.append(f"| {name} | {rank:.2f} | {cells} |")
    return "\n".join(lines)
