"""Draw cases of h5stream's oracle for a while: files, samples, fields and ways of reading, beside h5py and NumPy.

    python -m tools.fuzz --minutes 120 --seed 1 --processes 2
    python -m tools.fuzz --kind objects --minutes 10
    python -m tools.fuzz --case 1234 --kind objects       # one again

Each case is read in a process that may crash. What is neither right nor refused for a reason that is true (see
`tests/oracle/refusals.py`) is made smaller, printed as a script of h5py and h5stream, and kept in a folder. Ends with
status 1 if there was any; a table counts what was right and what was refused, for each kind of samples and each way of
reading, for what is drawn seldom, and for each reason. Ctrl-C, or SIGTERM, ends it after the running cases.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from oracle.compare import plain  # type: ignore[import-not-found]
from oracle.kinds import KINDS, case_of  # type: ignore[import-not-found]
from oracle.model import Crops, Model  # type: ignore[import-not-found]
from oracle.run import write  # type: ignore[import-not-found]
from oracle.shrink import script, shrink  # type: ignore[import-not-found]

from tools.fuzz_workers import CASE_S, Worker

FAILURES = ("wrong", "raw", "unmodelled", "unexplained", "unwritten")

MOST = 12
"""Samples that stand beside a failing case."""


def right_answer(case: dict[str, Any], result: dict[str, Any]) -> str:
    """Return the samples of a case as h5py has them, or the one that is wrong."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            write(case, Path(folder))
            model = Model(case, Path(folder))
            numbers = [result["number"]] if "number" in result else range(min(MOST, len(model.samples)))
            return "\n".join(f"{number}: {listed(model.sample(number))}" for number in numbers)
        except Exception as error:
            return f"the model fails with {error!r}"


def listed(value: Any) -> Any:
    """Return lists and dicts where there are arrays."""
    if isinstance(value, Crops):
        return f"{value.length} rows of {listed(value.rows)}"
    if isinstance(value, dict):
        return {name: listed(one) for name, one in value.items()}
    value = plain(value)
    return value.tolist() if hasattr(value, "tolist") else value


class Fuzzing:
    """Seeds that are taken by several threads, each with a process; and what came of them."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.seeds: Iterator[int] = itertools.count(options.seed)
        self.counts: collections.Counter[tuple[str, str, str]] = collections.Counter()
        self.reasons: collections.Counter[str] = collections.Counter()
        self.marks: collections.defaultdict[str, collections.Counter[str]] = collections.defaultdict(
            collections.Counter
        )
        self.seen: collections.Counter[str] = collections.Counter()
        self.began, self.lock, self.stopped = time.monotonic(), threading.Lock(), threading.Event()
        self.folder = Path(options.folder or tempfile.mkdtemp(prefix="h5stream-fuzz-"))
        self.folder.mkdir(parents=True, exist_ok=True)

    def work(self) -> None:
        """Run one case after the other, until the time is over."""
        worker = Worker(self.options.seconds)
        while time.monotonic() - self.began < 60 * self.options.minutes and not self.stopped.is_set():
            with self.lock:
                seed = next(self.seeds)
            self.one(worker, case_of(seed, self.options.kind))
        worker.close()

    def one(self, worker: Worker, case: dict[str, Any]) -> None:
        """Run a case, count how it went, and keep what failed."""
        for result in worker.run(case):
            with self.lock:
                self.counts[case["kind"], result["form"], result["status"]] += 1
                for mark in case["marks"]:
                    self.marks[mark][result["status"]] += 1
                if result["status"] == "refused":
                    self.reasons[result["reason"]] += 1
            if result["status"] in FAILURES and not any(one in result["said"] for one in self.options.ignore):
                self.keep(worker, case, result)

    def keep(self, worker: Worker, case: dict[str, Any], result: dict[str, Any]) -> None:
        """Make a failing case smaller, print it, and write it to the folder; of a class the first two."""
        group = f"{case['kind']} {result['status']} {''.join(c for c in result['said'][:60] if not c.isdigit())}"
        self.seen[group] += 1
        seconds = time.monotonic() - self.began
        print(
            f"seed {case['seed']} after {seconds:.0f} s, {case['kind']}, {result['form']}: {result['status']}, "
            f"{result['said'][:300]}",
            flush=True,
        )
        form = next((one for one in case["forms"] if one["form"] == result["form"]), case["forms"][0])
        if self.options.no_shrinking or self.seen[group] > 2 or result["status"] in ("unmodelled", "unwritten"):
            return
        is_slow = "processor time" in result["said"]  # each try would take as long again
        small = {**case, "forms": [form]} if is_slow else shrink(case, form, result["status"], worker.run)
        last = worker.run(small)[0]
        told = script(small, last, right_answer(small, last))
        path = self.folder / f"{case['kind']}-{case['seed']}-{result['form']}.py"
        path.write_text(told)
        print(f"{told}\n# kept as {path}", flush=True)

    def table(self) -> str:
        """Return the counts: right and refused, for each kind and form; of what is drawn seldom; and of refusals."""
        forms = sorted({form for _, form, _ in self.counts})
        kinds = sorted({kind for kind, _, _ in self.counts})
        lines = [f"{'right / refused':<14}" + "".join(f"{kind:>15}" for kind in [*kinds, "share refused"])]
        for form in forms:
            cells = [f"{self.counts[kind, form, 'right']} / {self.counts[kind, form, 'refused']}" for kind in kinds]
            cells.append(self.share(form=form))
            lines.append(f"{form:<14}" + "".join(f"{cell:>15}" for cell in cells))
        lines.append(f"{'refused':<14}" + "".join(f"{self.share(kind=kind):>15}" for kind in [*kinds, ""]))
        rest: collections.Counter[str] = collections.Counter()
        for (_, _, status), count in self.counts.items():
            rest[status] += count
        lines += ["", "drawn seldom: right / refused / failures"]
        for mark, counts in sorted(self.marks.items()):
            failures = sum(counts[status] for status in FAILURES)
            lines.append(f"  {mark:<24}{counts['right']:>7} /{counts['refused']:>6} /{failures:>6}")
        lines += ["", "refused, because"] + [
            f"  {reason:<40}{count:>6}" for reason, count in self.reasons.most_common()
        ]
        return "\n".join([*lines, "", ", ".join(f"{count:,} {status}" for status, count in sorted(rest.items()))])

    def share(self, kind: str = "", form: str = "") -> str:
        """Return the share of refusals, of a kind or a form or of all."""
        some = {key: count for key, count in self.counts.items() if kind in ("", key[0]) and form in ("", key[1])}
        refused = sum(count for (_, _, status), count in some.items() if status == "refused")
        return f"{refused / max(1, sum(some.values())):.0%}"


def main(arguments: list[str] | None = None) -> int:
    """Fuzz as the arguments say; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=int(time.time()), help="the first; by default the time")
    parser.add_argument("--seconds", type=int, default=CASE_S, help="of processor time that a case may take")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--kind", choices=sorted(KINDS), help="draw cases of this kind alone")
    parser.add_argument("--no-shrinking", action="store_true", help="say only which cases fail, which is faster")
    parser.add_argument("--case", type=int, help="run the case of this seed, and no other")
    parser.add_argument("--folder", help="where failing cases are kept; by default a new one")
    parser.add_argument("--ignore", action="append", default=[], help="failures whose words hold this are counted only")
    options = parser.parse_args(arguments)
    fuzzing = Fuzzing(options)
    if options.case is not None:
        worker = Worker(options.seconds)
        fuzzing.one(worker, case_of(options.case, options.kind))
        worker.close()
    else:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: fuzzing.stopped.set())
        threads = [threading.Thread(target=fuzzing.work) for _ in range(options.processes)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    print(fuzzing.table())
    return int(any(status in FAILURES for _, _, status in fuzzing.counts))


if __name__ == "__main__":
    sys.exit(main())
