"""The house's order holds: a room imports the rooms above it, and each foreign library has one home."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "h5stream"

# From the top of the house down. A room may import itself and whatever stands before it.
ROOMS = [
    "_version",
    "errors",
    "units",
    "allowance",
    "filesystem",
    "space",
    "notebook",
    "structure",
    "storage",
    "order",
    "engine",
    "device",
    "isolation",
    "repacking",
    "staging",
    "block_cache",
    "indexing",
    "dataset",
    "mixing",
    "sampler",
    "ranks",
    "settings",
    "routes",
    "state",
    "cursor",
    "iteration",
    "profiles",
    "sharing",
    "loader",
    "monitor",
    "advice",
    "training",
    "baseline",
    "cli",
    "__main__",
]

# Foreign library -> the rooms (or files) that may import it.
HOMES = {
    "h5py": {"storage", "baseline"},
    "hdf5plugin": {"storage", "baseline"},
    "imagecodecs": {"storage", "baseline"},
    "numba": {"engine/kernels.py", "engine/instructions.py"},
    "llvmlite": {"engine/instructions.py"},
    "pynvml": {"monitor"},
    "psutil": {"monitor"},
    "prometheus_client": {"monitor"},
    "subprocess": {"isolation/process.py", "isolation/guard.py"},
    "multiprocessing": {"isolation", "advice/doctor.py", "baseline/stopped.py"},
    "xxhash": {"staging/checksum.py"},
    "typer": {"cli"},
    "matplotlib": {"monitor", "advice", "cli"},
}

# order/ and storage/ know nothing of tensors; order/ also nothing of files or threads.
FORBIDDEN = {"order": {"torch", "threading", "os", "io", "pathlib"}, "storage": {"torch"}}


def modules():
    return sorted(PACKAGE.rglob("*.py"))


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports_of(path: Path):
    """Absolute names of everything that a module imports, also inside functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import; write it absolutely"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_module_imports_only_rooms_above_its_own(path):
    room = room_of(path)
    if room == "__init__":
        return
    assert room in ROOMS, f"{room} has no place in the house; add it to ROOMS with a reason in docs/design.md"
    for name in imports_of(path):
        parts = name.split(".")
        if parts[0] == "h5stream" and len(parts) > 1 and parts[1] in ROOMS:
            assert ROOMS.index(parts[1]) <= ROOMS.index(room), f"{path.name} in {room} imports {name}, below it"


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_foreign_library_has_one_home(path):
    place, room = str(path.relative_to(PACKAGE)), room_of(path)
    for name in imports_of(path):
        library = name.split(".")[0]
        assert library not in FORBIDDEN.get(room, set()), f"{place} imports {library}"
        if library in HOMES:
            assert {place, room} & HOMES[library], f"{place} imports {library}, whose home is {HOMES[library]}"


MOST_LINES = 45
# What is longer than that, and how long it may be; nothing new belongs here.
LONGER: dict[str, int] = {}


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_function_is_one_idea(path):
    """A file is as long as its idea; a function whose body does not fit on a screen has more than one."""
    place = path.relative_to(PACKAGE)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            lines = node.end_lineno - body[0].lineno + 1 if body else 0
            assert lines <= LONGER.get(f"{place}:{node.name}", MOST_LINES), f"{place}:{node.lineno} {node.name}"
