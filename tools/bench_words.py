"""What the results show, in words: the opening of the page of benchmarks."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

from tools.bench_report import KINDS, rates
from tools.bench_tables import OURS, kinds, literal, ranking
from tools.not_first import Behind, why

Reports = dict[str, dict[str, Any] | None]


def opening(reports: Reports) -> str:
    """Say what each part shows, one after the other, with its figures."""
    return "\n".join(
        f"- {sentence}"
        for says in (_main, _peers, _limits, _stores, _worlds, _programs, _samples)
        for sentence in says(reports)
    )


def slower(reports: Reports) -> list[str]:
    """List where a program's own reader, or another loader out of a store, gives more samples a second."""
    found = [
        f"{one['program']} (file {one['seed']}, {one['stored']}; we shuffle {one['our_shuffle']}): its own reader "
        f"{one['theirs']['samples_per_s']:,.0f} samples/s, h5stream {one['ours']['samples_per_s']:,.0f}"
        for one in _results(reports, "programs")
        if one["times"] < 1
    ]
    stores = [one for one in _results(reports, "object-store") if "samples_per_s" in one]
    ours = {(one["case"], one["latency_ms"]): one["samples_per_s"] for one in stores if one["loader"] == OURS}
    return found + [
        f"{one['case']} out of a store {one['latency_ms']:.0f} ms away: {one['loader']} {one['samples_per_s']:,.0f} "
        f"samples/s, h5stream {ours[one['case'], one['latency_ms']]:,.0f}"
        for one in stores
        if not one["loader"].startswith(OURS) and one["samples_per_s"] > ours[one["case"], one["latency_ms"]]
    ]


def behind_others(reports: Reports) -> list[str]:
    """List where another reader was ahead in another project's benchmark, and why."""
    found = []
    for part in filter(lambda part: part.startswith("others-"), reports):
        cells: dict[tuple[str, str], dict[str, float]] = {}
        unit = {}
        for one in _results(reports, part):
            # What lies in memory was read and decoded before the clock started.
            if one["figure"] != "size" and not one["reader"].startswith(("limit", "NumPy array in memory")):
                key = one["case"], one["figure"]
                cells.setdefault(key, {})[one["reader"]] = statistics.median(one["values"])
                unit[key] = one["unit"]
        for (case, figure), rate in cells.items():
            sign, form = (-1, "{:.2f} {}") if unit[case, figure] == "s" else (1, "{:,.0f} {}")
            for reader, value in rate.items():
                behind = {
                    name: own for name, own in rate.items() if name.startswith(OURS) and sign * value > sign * own
                }
                if reader.startswith(OURS) or not behind:
                    continue
                its, *ours = (form.format(one, unit[case, figure]) for one in (value, *behind.values()))
                reason = why(
                    Behind(part=part, case=f"{case}, {figure}", who=reader, its=value, ours=max(behind.values()))
                )
                who = "; ".join(f"{name} {own}" for name, own in zip(behind, ours, strict=True))
                found.append(f"{part.removeprefix('others-')}, {case}, {figure}: {reader} {its}, {who}: {reason}")
    return found


def missed(reports: Reports) -> list[str]:
    """List the lines that were set for h5stream and are missed, with the figures."""
    found = []
    for one in _results(reports, "limits"):
        reached, least, most = one["newer"]["median"], one.get("least"), one.get("most")
        if least is not None and reached < least:
            found.append(f"{one['case']}: {reached:.2f} of {one['against']} (at least {least:g})")
        elif most is not None and reached > most:
            found.append(f"{one['case']}: {reached:.2f} {one['against']} (at most {most:g})")
    return found


def _results(reports: Reports, part: str) -> list[dict[str, Any]]:
    return list((reports.get(part) or {"results": []})["results"])


def _main(reports: Reports) -> Iterator[str]:
    if report := reports.get("main"):
        found = rates(report)
        ours, kept = found["gzip4_shuffle", "ours"], found["gzip4_shuffle", "kept"]
        naive, tuned = (ours / found["gzip4_shuffle", name] for name in ("naive", "tuned"))
        yield (
            f"[The main job](#the-main-job): shuffled batches of gzip-compressed rows of 1 KiB come at {ours:,.0f} "
            f"rows/s on {report['machine']['cpus']} processors, {naive:,.0f} times as fast as a `DataLoader` with one "
            f"row per `__getitem__`, and {tuned:,.0f} times as fast as one with batched and sorted reads. Rows that "
            f"fit memory are decoded once: {kept:,.0f} rows/s from the second epoch on."
        )


def _peers(reports: Reports) -> Iterator[str]:
    if report := reports.get("peers"):
        said = []
        for kind in kinds(report):
            rows = ranking(report, kind)
            ours = next(one["rows_per_s"] for one in rows if one["peer"] == OURS)
            other = next(one for one in rows if not one["peer"].startswith(OURS))
            said.append(f"{ours:,} against {other['rows_per_s']:,} of {literal(other['peer'])} ({KINDS[kind]})")
        count = len({one["peer"] for one in report["results"] if not one["peer"].startswith(OURS)})
        yield (
            f"[Every alternative](#every-alternative): {count} other ways to the same rows, converted files and arrays "
            f"in memory among them. Rows/s beside the best of them: {'; '.join(said)}."
        )


def _limits(reports: Reports) -> Iterator[str]:
    results = _results(reports, "limits")
    if results:
        spans = {}
        for against in ("only inflating", "a threaded copy"):
            of = [one["newer"]["median"] for one in results if one["against"] == against and one.get("least")]
            spans[against] = f"{min(of):.2f} to {max(of):.2f}"
        yield (
            f"[How near the limit](#how-near-the-limit): compressed data come at {spans['only inflating']} of what the "
            f"processors can inflate, unfiltered rows at {spans['a threaded copy']} of a copy in memory."
        )


def _stores(reports: Reports) -> Iterator[str]:
    ours = [one for one in _results(reports, "object-store") if one["loader"] == OURS and one.get("of_line")]
    near = {one["case"]: one["of_line"] for one in ours if one["latency_ms"] == 20}
    if near:
        said = ", ".join(f"{case} {share:.2f}" for case, share in near.items())
        yield (
            "[Object stores](#out-of-a-store-that-is-far-away): 20 ms away, shuffled epochs use this share of the "
            f"line: {said}."
        )


def _worlds(reports: Reports) -> Iterator[str]:
    found = {
        (one["where"], {"lance": "jpeg"}.get(one["stored"], one["stored"]), one["reader"] == OURS): one["samples_per_s"]
        for one in _results(reports, "world-model")
        if one["seed"] == 0
    }
    said = [
        f"{ours / found[where, stored, False]:.0f} ({stored}, {where})"
        for (where, stored, is_ours), ours in found.items()
        if is_ours and (where, stored, False) in found
    ]
    if said:
        yield (
            "[World models](#world-models): times as fast as the program's own readers, of JPEG the one of its Lance "
            f"copy: {', '.join(said)}."
        )


def _programs(reports: Reports) -> Iterator[str]:
    results = _results(reports, "programs")
    times = [one["times"] for one in results]
    if times:
        programs = len({one["program"] for one in results})
        yield (
            f"[Readers of real programs](#readers-of-real-programs): {min(times):.1f} to {max(times):,.0f} times as "
            f"fast as those of {programs} programs, shuffled fully or not."
        )


def _samples(reports: Reports) -> Iterator[str]:
    times = [one["of_usual"] for one in _results(reports, "samples") if one.get("of_usual")]
    if times:
        yield (
            "[Sequences, boxes, variable-length values and other samples](#samples-that-are-no-rows): "
            f"{min(times):.1f} to {max(times):,.0f} times as fast as the readers that programs have."
        )
