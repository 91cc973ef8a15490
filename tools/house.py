"""The house of h5stream in one table: its rooms from the top down, and the one home of each foreign library.

`tests/house/test_layers.py` holds the sources to it. ``python tools/house.py`` draws the picture in `docs/design.md`
anew: the floors, and which rooms each room really imports. With ``--check`` it only says whether the picture is true.
"""

from __future__ import annotations

import ast
import functools
import itertools
import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "h5stream"
PAGE = ROOT / "docs" / "design.md"

# From the top of the house down. A room may import itself and what stands before it; what is in it, in a few words.
ROOMS = {
    "_version": "the version",
    "errors": "the error tree: what was asked, the rule, the value, the way out",
    "base": "numbers and words: sizes as texts, limits of the machine, file systems, names",
    "compiled": "inner loops in C",
    "samples": "what a sample is: rows, sequences; pure",
    "structure": "walks over batches, whatever their structure",
    "storage/source": "bytes at offsets, and the identity that tells whether they have changed",
    "storage/decode": "stored bytes become elements: filters, plugins, images, types",
    "storage/headers": "headers of many objects, read without libhdf5",
    "storage/layout": "chunk indexes, heaps, fields, and the layout that joins them",
    "storage/file": "one file: what is in it, how it is stored, rows through h5py",
    "storage/many": "many objects of the same kind, read as one dataset",
    "storage/open": "from a user's request to a layout",
    "order": "which rows, when: pure NumPy, no files, threads or tensors",
    "engine": "bytes become batches: plans, slots, reader threads",
    "device": "batches go to the GPU: the only home of torch.cuda",
    "workers": "processes that work for this one: for each sample",
    "repacking": "files rewritten so that they stream well",
    "staging": "copies of files on faster storage",
    "dataset": "`H5Dataset`: samples by number, splits, statistics, mixtures",
    "profiles": "what `h5stream tune` wrote",
    "loader": "`H5StreamLoader`: settings, draws, position, epochs, routes",
    "monitor": "what the machine does while training runs",
    "advice": "about files and the loader: inspect, diagnose, tune, doctor",
    "training": "about the training: batch size, GPU memory, learning rate, presets",
    "baseline": "the rivals that we are measured against, and the sample file",
    "results": "what calls return, by name",
    "ray": "files as a dataset of Ray Data",
    "cli": "the command line",
    "__main__": "`python -m h5stream`",
}

# The floors of the picture: the first room of each, and the floor's name.
FLOORS = {
    "_version": "what every room may import",
    "storage/source": "from files to batches",
    "dataset": "the dataset and the loader",
    "monitor": "beside training",
    "cli": "the command line",
}

# Foreign library -> the rooms (or files) that may import it.
HOMES = {
    "h5py": {
        "storage/decode",
        "storage/file",
        "storage/layout",
        "storage/many",
        "storage/open",
        "storage/source",
        "repacking",
        "advice/listing.py",
        "baseline",
    },
    "hdf5plugin": {"storage/decode", "storage/file", "repacking", "baseline"},
    "imagecodecs": {"storage/decode", "repacking", "baseline"},
    "pynvml": {"monitor"},
    "psutil": {"monitor"},
    "prometheus_client": {"monitor"},
    "subprocess": {"workers/processes.py"},
    "multiprocessing": {"workers", "advice/doctor.py", "baseline"},
    "xxhash": {"staging/copying.py", "storage/source/disk_cache.py"},
    "ray": {"ray"},
    "typer": {"cli"},
    "matplotlib": {"monitor", "advice", "cli"},
}

# order/ and storage/ know nothing of tensors; order/ also nothing of files or threads.
FORBIDDEN = {
    "order": {"torch", "threading", "os", "io", "pathlib"},
    **{room: {"torch"} for room in ROOMS if room.startswith("storage/")},
}

NAME, WHAT, USED = 15, 42, 36  # columns of the picture
MARKS = ("<!-- house: drawn by tools/house.py -->\n", "<!-- house: end -->\n")


def modules() -> list[Path]:
    """Return all files of the package."""
    return sorted(PACKAGE.rglob("*.py"))


def room_of(path: Path) -> str:
    """Return the room that a file belongs to; that of a folder of rooms alone is ``"__init__"``, as the package's."""
    return _room(path.relative_to(PACKAGE).with_suffix("").parts)


def _room(parts: Sequence[str]) -> str:
    """Return the room of a module, given the steps of its name inside the package."""
    if parts[0] != "storage" or len(parts) == 1:
        return parts[0]
    return "__init__" if parts[1] == "__init__" else "/".join(parts[:2])


@functools.cache
def imports_of(path: Path) -> tuple[str, ...]:
    """Return the absolute names of everything that a module imports, also inside functions."""
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            names += (f"{module}.{alias.name}" for alias in node.names)
    return tuple(names)


def rooms_imported_by(path: Path) -> set[str]:
    """Return the rooms of ours, other than its own, that a file imports."""
    parts = [name.split(".") for name in imports_of(path)]
    rooms = {_room(each[1:]) for each in parts if each[0] == "h5stream" and each[1:]}
    return {room for room in rooms if room in ROOMS} - {room_of(path)}


def picture() -> str:
    """Return the picture: a box for each floor, a line for each room with what it imports.

    Rooms of the first floor are left out of the lists, since nearly every room imports some of them.
    """
    used: dict[str, set[str]] = {room: set() for room in ROOMS}
    for path in modules():
        used.setdefault(room_of(path), set()).update(rooms_imported_by(path))
    order, starts = list(ROOMS), [list(ROOMS).index(room) for room in FLOORS]
    floors = [order[first:last] for first, last in zip(starts, [*starts[1:], None], strict=True)]
    lines: list[str] = []
    for name, floor in zip(FLOORS.values(), floors, strict=True):
        stair = "┴" if lines else "─"
        lines += [f"{'│':>8}"] * bool(lines)
        lines.append(f"┌──────{stair}────── {name} ".ljust(NAME + WHAT + USED + 7, "─") + "┐")
        for room in floor:
            above = [each for each in order if each in used[room] and each not in floors[0]]
            lines += _room_lines(room, above)
        lines.append("└──────▲".ljust(NAME + WHAT + USED + 7, "─") + "┘")
    lines[-1] = lines[-1].replace("▲", "─")
    return "```text\n" + "\n".join(lines) + "\n```\n"


def _is_home(home: str, room: str) -> bool:
    """Return whether a room, or a file in it, is a home of a library."""
    return room in (home, *(str(parent) for parent in Path(home).parents))


def _room_lines(room: str, above: list[str]) -> Iterator[str]:
    """Yield the lines of one room: its name, what is in it, the rooms and the foreign libraries that it imports."""
    libraries = [name for name, homes in HOMES.items() if any(_is_home(home, room) for home in homes)]
    what = textwrap.wrap(ROOMS[room].replace("`", ""), WHAT)
    uses = textwrap.wrap("; ".join(filter(None, (", ".join(above), ", ".join(libraries)))), USED)
    for i, (left, right) in enumerate(itertools.zip_longest(what, uses, fillvalue="")):
        arrow = "←" if right and not i else " "
        yield f"│ {'' if i else room:{NAME}} {left:{WHAT}} {arrow} {right:{USED}} │"


def drawn(page: str) -> str:
    """Return a page's text with the picture of today between its marks."""
    begin, end = MARKS
    found = re.search(f"{re.escape(begin)}.*?{re.escape(end)}", page, flags=re.S)
    if not found:
        raise SystemExit(f"{PAGE.name} has no place for the picture: {begin.strip()} ... {end.strip()}")
    return page[: found.start()] + begin + picture() + end + page[found.end() :]


def main(arguments: list[str]) -> int:
    """Draw the picture in `docs/design.md`, or say whether it is true."""
    page = PAGE.read_text()
    if drawn(page) == page:
        return 0
    if arguments == ["--check"]:
        print(f"{PAGE.name}: the picture of the house is not that of the code; run `python tools/house.py`")
        return 1
    PAGE.write_text(drawn(page))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
