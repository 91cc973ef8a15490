"""Count how far a reader walks: rooms that an option passes through, lengths, arguments, reaches of the tests.

``python tools/walks.py [folder]`` reads the sources below a checkout (by default this one) and imports nothing of them,
so that two commits are measured the same way.
"""

from __future__ import annotations

import ast
import statistics
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

# What a reader follows -> the identifiers that carry it.
WALKS = {
    "window": {"window"},
    "memory_budget": {"memory_budget", "budget"},
    "fields": {"fields"},
    "device": {"device"},
    "a batch": {"batch"},
}
# Rooms beside the loader's path: who follows an option of the loader need not enter them.
BESIDE = {"staging", "repack", "monitor", "advice", "baseline", "cli"}
Function = ast.FunctionDef | ast.AsyncFunctionDef
NOT_OURS = {
    "os",
    "sys",
    "torch",
    "h5py",
    "multiprocessing",
    "np",
    "numpy",
    "signal",
}  # whose private names are not ours


def rooms_of(folder: Path) -> list[str]:
    """Return the names of the rooms from the top down, as the checkout itself lists them."""
    for source in ("tools/house.py", "tests/house/test_layers.py"):
        path = folder / source
        for node in ast.parse(path.read_text()).body if path.exists() else []:
            target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
            value = getattr(node, "value", None)
            if isinstance(target, ast.Name) and target.id == "ROOMS" and value is not None:
                return list(ast.literal_eval(value))
    raise SystemExit(f"{folder}: no list ROOMS in tools/house.py or tests/house/test_layers.py")


class Module:
    """One file of the package: its tree, its room, and which of our modules its names come from."""

    def __init__(self, path: Path, package: Path) -> None:
        self.tree = ast.parse(path.read_text())
        place = path.relative_to(package)
        self.room = place.parts[0].removesuffix(".py")
        self.name = ".".join((package.name, *place.with_suffix("").parts)).removesuffix(".__init__")
        self.lines = path.read_text().count("\n")
        self.homes: dict[str, str] = {}  # a name here -> the room that it was imported from
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == package.name:
                for alias in node.names:
                    parts = f"{node.module}.{alias.name}".split(".")
                    self.homes[alias.asname or alias.name] = parts[1]

    def functions(self) -> Iterator[Function]:
        """Yield the functions and methods of the file, inner ones too."""
        yield from (node for node in ast.walk(self.tree) if isinstance(node, Function))


def identifiers(node: ast.AST) -> Iterator[str]:
    """Yield the names that stand in a piece of code: variables, attributes, parameters and keywords."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name):
            yield inner.id
        elif isinstance(inner, ast.Attribute):
            yield inner.attr
        elif isinstance(inner, ast.arg | ast.keyword) and inner.arg:
            yield inner.arg


def callee(call: ast.Call) -> str | None:
    """Return the first name of what is called: ``a`` of ``a(...)`` and of ``a.b(...)``."""
    called = call.func
    while isinstance(called, ast.Attribute):
        called = called.value
    return called.id if isinstance(called, ast.Name) else None


def walk(modules: list[Module], rooms: list[str], names: set[str]) -> tuple[int, int, list[str], set[tuple[str, str]]]:
    """Follow some names along the loader's path; raising an error is no climb.

    Returns
    -------
    functions, files : int
        In how many of each they stand.
    passed : list of str
        The rooms of those, from the top down.
    climbs : set of (str, str)
        Who climbs and to where: a function that hands them to something of a room above its own.
    """
    functions, files, passed, climbs = 0, 0, set(), set()
    for module in modules:
        if module.room in BESIDE or not names & set(identifiers(module.tree)):
            continue
        files += 1
        passed.add(module.room)
        for function in module.functions():
            functions += bool(names & set(identifiers(function)))
            for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
                home = module.homes.get(callee(call) or "")
                given = [*call.args, *call.keywords]
                if home not in (None, "errors", module.room) and any(names & set(identifiers(each)) for each in given):
                    climbs.add((f"{module.name}.{function.name}", str(home)))
    return functions, files, [room for room in rooms if room in passed], climbs


def body_lines(function: Function) -> int:
    """Return the lines of a function's body, without its docstring."""
    body = function.body[1:] if ast.get_docstring(function) else function.body
    return (function.end_lineno or 0) - body[0].lineno + 1 if body else 0


def constructor_arguments(node: ast.ClassDef) -> int | None:
    """Return how many arguments a class is made with: its fields, if it is a dataclass; None if it has neither."""
    for inner in node.body:
        if isinstance(inner, Function) and inner.name == "__init__":
            given = inner.args
            return len(given.posonlyargs) + len(given.args) + len(given.kwonlyargs) - 1
    if any("dataclass" in identifiers(each) for each in node.decorator_list):
        return sum(isinstance(inner, ast.AnnAssign) and _is_field(inner) for inner in node.body)
    return None


def _is_field(node: ast.AnnAssign) -> bool:
    text = ast.unparse(node)
    return "ClassVar" not in text and "init=False" not in text


def reaches(tests: Path) -> Counter[str]:
    """Count private names that tests read of others, and what they replace in our modules while a test runs."""
    found: Counter[str] = Counter()
    for path in sorted(tests.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
                owner = ast.unparse(node.value)
                if owner not in ("self", "cls", "super()") and owner.split(".")[0] not in NOT_OURS:
                    found["private names read"] += 1
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("h5stream"):
                found["private names imported"] += sum(alias.name.startswith("_") for alias in node.names)
            elif isinstance(node, ast.Call) and ast.unparse(node.func).startswith("monkeypatch."):
                kind = ast.unparse(node.func)
                if kind in ("monkeypatch.setattr", "monkeypatch.delattr", "monkeypatch.setitem"):
                    found[kind] += 1
    return found


def spread(numbers: list[int]) -> str:
    """Return median, 90th percentile and largest of some numbers as a text."""
    ordered = sorted(numbers)
    return f"median {statistics.median(ordered):g}, 90th {ordered[len(ordered) * 9 // 10]}, longest {ordered[-1]}"


def main(folder: Path) -> None:
    """Print all counts of one checkout."""
    package = folder / "h5stream"
    rooms = rooms_of(folder)
    modules = [Module(path, package) for path in sorted(package.rglob("*.py"))]
    print("## Walks: functions and files that name it, rooms it passes, climbs (handed to a room above)\n")
    for title, names in WALKS.items():
        functions, files, passed, climbs = walk(modules, rooms, names)
        print(f"{title:14} {functions:4} functions {files:3} files {len(passed):3} rooms {len(climbs):3} climbs")
        print(f"{'':14} rooms: {', '.join(passed)}")
    lines: Counter[str] = Counter()
    for module in modules:
        lines[module.room] += module.lines
    print(f"\n## Lines a room ({sum(lines.values())} in {len(modules)} files)\n")
    for room in [*rooms, *sorted(set(lines) - set(rooms))]:
        print(f"{room:14} {lines[room]:6}")
    lengths = [(body_lines(each), f"{module.name}.{each.name}") for module in modules for each in module.functions()]
    print(f"\n## Bodies of {len(lengths)} functions, in lines\n\n{spread([length for length, _ in lengths])}")
    for length, name in sorted(lengths, reverse=True)[:5]:
        print(f"{length:6} {name}")
    made = [
        (count, f"{module.name}.{node.name}")
        for module in modules
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef) and (count := constructor_arguments(node)) is not None
    ]
    print(f"\n## Arguments of {len(made)} constructors\n\n{spread([count for count, _ in made])}")
    for count, name in sorted(made, reverse=True)[:10]:
        print(f"{count:6} {name}")
    print("\n## Reaches of the tests\n")
    for name, count in sorted(reaches(folder / "tests").items()):
        print(f"{name:24} {count:4}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent)
