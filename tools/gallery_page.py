"""Make docs/gallery.md of the gallery's programs, of what was measured, and of the verdicts.

python tools/gallery_page.py [--check]
"""

from __future__ import annotations

import csv
import inspect
import json
import re
import statistics
import sys
import tempfile
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from examples.gallery import PROGRAMS  # noqa: E402

PAGE, RESULTS = ROOT / "docs" / "gallery.md", ROOT / "bench" / "results" / "gallery.json"
VERDICTS = ROOT / "examples" / "gallery" / "verdicts.tsv"
TRAINING, PICTURE = RESULTS.with_name("gallery-training.json"), ROOT / "docs" / "images" / "gallery-training.svg"

SIDES = ("theirs", "ours")

INTRO = """# Gallery

<!-- made by tools/gallery_page.py -->

{count} programs on GitHub read HDF5 for training with a reader of their own (*theirs*). This page shows the lines of
h5stream that read the same samples from the same files (*ours*). Look for a file like yours in the table and follow its
link. `h5stream inspect FILE` prints such lines for a file of your own.

h5stream is {least} to {most} times as fast, with a median of {median}. {all} programs were surveyed: {fast} can be read
on the fast path, {slower} only slower, and {impossible} not at all ([those {other}](#not-on-the-fast-path)).

Both readers of a program are a class in `examples/gallery/`, in the file that its section names. Their reader is
rewritten in a few lines and reaches a sample as the program does. `tests/house/test_gallery.py` writes a file in the
layout of each program and compares every sample; `bench/test_gallery.py` measures both readers in turns.

Theirs runs under a `DataLoader` with 2 workers, ours with 2 threads. Both shuffle, with files in the page cache. Ours
decodes everything again in each epoch, unless the program itself reads all of its data into memory first. The first
batch of a new process, compiled code loaded, comes after {first}; the process and its workers take
{memory} (medians; each in `bench/results/gallery.json`). Measured on {machine}.

| program | subject | its files | samples/s, theirs | ours | times |
|---|---|---|---:|---:|---:|
"""

TRAINED = """
## Trained

Five of the programs train a small model with {seeds} seeds for {epochs} epochs (`python -m bench.gallery_training`).
Initial weights, batches and learning rate are the same; the target is a fixed function of what the model sees. The
model has one thread. The table shows epochs after the first; waiting is the part of an epoch that the loop spends in
`next()`. TorchEM's model sees one voxel in eight along each axis and its loss is noisy: from one voxel in four it
learned nothing, with either reader.

| program | samples | an epoch, theirs | ours | waiting, theirs | ours | last loss, theirs | ours |
|---|---|---:|---:|---:|---:|---:|---:|
{rows}
![loss curves of both readers, by steps and by seconds](images/gallery-training.svg)

Above, losses by steps: the curves of both readers coincide as well as those of two seeds of one reader. Below, the same
losses by seconds.
"""

NOT_FAST = """
## Not on the fast path

`examples/gallery/verdicts.tsv` says how each of the {all} programs reads its files, and what some need beside a field.

| program | how it reads | verdict | as | what is missing |
|---|---|---|---|---|
"""


def verdicts() -> list[dict[str, str]]:
    """Read the verdicts."""
    with VERDICTS.open() as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def measured() -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Read what was measured: the report, and the figures of each program."""
    report = json.loads(RESULTS.read_text())
    return report, {one["program"]: one for one in report["results"]}


def anchor(name: str) -> str:
    """Give what a heading is linked by."""
    return f"[{name}](#{name.lower()})"


def looks(program: Any) -> str:
    """List the first of a program's files."""
    with tempfile.TemporaryDirectory() as folder:
        program.make(Path(folder))
        paths = sorted(path for path in Path(folder).rglob("*") if h5py.is_hdf5(path))
        lines = []
        for name in sorted({re.sub(r"\d.*|\.\w+$", "", path.name) for path in paths})[:2]:
            alike = [path for path in paths if path.name.startswith(name)]
            more = f"   and {len(alike) - 1} more" if len(alike) > 1 else ""
            with h5py.File(alike[0]) as file:
                lines += [f"{alike[0].relative_to(folder)}{more}", *_members(file, "  ")]
        return "\n".join(lines)


def _members(group: h5py.Group, indent: str) -> list[str]:
    """List a group: members of one kind by the first of them."""
    lines: list[tuple[str, str]] = [("", f"{indent}@{name}") for name in list(group.attrs)[:4]]
    seen: dict[str, int] = {}
    for name, one in group.items():
        kind = name.rstrip("0123456789")
        kind = kind if len(kind) < len(name) or len(group) < 12 else str(type(one))
        seen[kind] = seen.get(kind, 0) + 1
        if seen[kind] == 1:
            lines.append((kind, f"{indent}{name}{_stored(one)}"))
            if isinstance(one, h5py.Group):
                lines += [("", line) for line in _members(one, indent + "  ")]
            else:
                lines += [("", f"{indent}  @{attribute}") for attribute in list(one.attrs)[:4]]
    return [line + (f"   and {seen[kind] - 1} more" if seen.get(kind, 0) > 1 else "") for kind, line in lines]


def _stored(one: Any) -> str:
    if isinstance(one, h5py.Group):
        return "/"
    kind = one.dtype.kind
    vlen = h5py.check_vlen_dtype(one.dtype)
    text = "text of any length" if vlen in (str, bytes) else f"{vlen} of any length"
    dtype = text if vlen else "text" if kind in "OS" else "compound" if kind == "V" else one.dtype
    return f"  {one.shape} {dtype}{f', {one.compression}' if one.compression else ''}"


def ours(program: Any) -> str:
    """Give what one writes here, as lines of a script."""
    body = inspect.getsource(program.ours).split("**options):\n", 1)[1]
    return textwrap.dedent(body).replace("return H5StreamLoader(", "loader = H5StreamLoader(").replace(
        "**options", f"batch_size={program.batch}, shuffle=True"
    ).rstrip()  # fmt: skip


def link(one: dict[str, str]) -> str:
    """Link a surveyed program."""
    return f"[{one['repository']}](https://github.com/{one['repository']})"


def section(name: str, judged: list[dict[str, str]]) -> str:
    """Make what the page has of one program."""
    program = PROGRAMS[name]
    others = [one for one in judged if one["as"] == name and one["repository"] != program.repository]
    same = [link(one) for one in others if one["verdict"] == "fast"]
    also = f"\n\nRead in the same way: {', '.join(same)}." if same else ""
    return f"""## {name}

[{program.repository}](https://github.com/{program.repository}), in `{program.__module__.rpartition(".")[2]}.py`.
{inspect.cleandoc(program.__doc__)}{also}

```text
{looks(program)}
```

```py
{ours(program)}
```
"""


def of_both(figures: dict[str, dict[str, Any]], name: str, form: Callable[[float], str]) -> str:
    """Write the median of a figure, theirs and ours."""
    theirs, ours = (statistics.median(one[f"{side}_{name}"] for one in figures.values()) for side in SIDES)
    return f"{form(theirs)} with theirs and {form(ours)} with ours"


def rate(value: float) -> str:
    """Write a rate with three digits."""
    return f"{float(f'{value:.3g}'):,.0f}"


def machines(report: dict[str, Any]) -> str:
    """Say where programs were measured: some may have been measured again, on another machine."""
    found: dict[str, list[str]] = {}
    for one in report["results"]:
        where = one.get("measured", report)
        found.setdefault(f"{where['machine']['cpu']}, {where['machine']['cpus']} CPUs, {where['when']}", []).append(
            one["program"]
        )
    most = max(found, key=lambda where: len(found[where]))
    others = [
        f"{len(names)} of the programs on {where} (`bench/results/gallery.json` says which)"
        for where, names in found.items()
        if where != most
    ]
    return "; ".join([most, *others])


def trained() -> str:
    """Make what the page has of training."""
    report = json.loads(TRAINING.read_text())
    rows = ""
    for one in report["results"]:
        sides = one["theirs"], one["ours"]
        epochs = " | ".join(f"{side['epoch_s']:.2f} s" for side in sides)
        waiting = " | ".join(f"{side['waiting']:.0%}" for side in sides)
        losses = " | ".join(f"{statistics.mean(map(last_loss, side['losses'])):.2g}" for side in sides)
        rows += f"| {anchor(one['program'])} | {one['samples']} | {epochs} | {waiting} | {losses} |\n"
    return TRAINED.format(seeds=report["seeds"], epochs=report["epochs"], rows=rows)


def last_loss(losses: list[float]) -> float:
    """Give the mean loss of the last tenth of the steps."""
    some = losses[-max(1, len(losses) // 10) :]
    return sum(some) / len(some)


def times(value: float) -> str:
    """Write a ratio."""
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}"


def page() -> str:
    """Make the page."""
    report, figures = measured()
    ratios, judged = [figures[name]["ratio"] for name in PROGRAMS if name in figures], verdicts()
    counts = {kind: sum(one["verdict"] == kind for one in judged) for kind in ("fast", "slower", "impossible")}
    text = INTRO.format(
        count=len(PROGRAMS),
        median=times(statistics.median(ratios)),
        least=times(min(ratios)),
        most=times(max(ratios)),
        all=len(judged),
        other=counts["slower"] + counts["impossible"],
        first=of_both(figures, "first_s", lambda value: f"{value:.2f} s"),
        memory=of_both(figures, "memory_nbytes", lambda value: f"{value / 2**20:.0f} MiB"),
        machine=machines(report),
        **counts,
    )
    for name, program in PROGRAMS.items():
        cells = "not measured | | "
        if name in figures:
            cells = " | ".join(rate(figures[name][f"{side}_samples_per_s"]) for side in SIDES)
            cells += f" | {times(figures[name]['ratio'])}"
        text += f"| {anchor(name)} | {program.subject} | {program.layout} | {cells} |\n"
    text += trained() + "".join("\n" + section(name, judged) for name in PROGRAMS) + NOT_FAST.format(all=len(judged))
    for one in judged:
        if one["verdict"] != "fast":
            as_program = anchor(one["as"]) if one["as"] else ""
            reads = re.sub(r"[|*\[\]]", r"\\\g<0>", one["how it reads"]).replace("<", "&lt;")
            text += f"| {link(one)} | {reads} | {one['verdict']} | {as_program} | {one['missing']} |\n"
    return text


def draw() -> None:
    """Draw the losses of training."""
    import matplotlib as mpl

    from tools.bench_plots import training_figure

    mpl.rcParams["svg.hashsalt"] = "h5stream"  # the same results make the same file
    training_figure(json.loads(TRAINING.read_text())).savefig(PICTURE, metadata={"Date": None})


def main() -> int:
    """Write the page, or say whether it is what would be written."""
    text = page()
    if "--check" in sys.argv:
        if PAGE.read_text() != text:
            print("docs/gallery.md is not what its programs and figures say: python tools/gallery_page.py")
            return 1
        return 0
    PAGE.write_text(text)
    draw()
    return 0


if __name__ == "__main__":
    sys.exit(main())
