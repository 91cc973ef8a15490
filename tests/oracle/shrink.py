"""Make a failing case smaller, and print it as a script that needs nothing of this folder."""

import copy
import inspect
from collections.abc import Callable, Iterator
from typing import Any

from . import writing
from .calls import text

Case = dict[str, Any]

SIMPLER: dict[str, Any] = dict.fromkeys(("fill", "alloc", "first", "maxshape"))
SIMPLER |= dict.fromkeys(("userblock", "beside", "streamed"), 0)
SIMPLER |= {"written": 1, "masked": False, "track": False, "filters": [], "style": "dict"}
SIMPLER |= {"libver": ["earliest", "latest"]}


def smaller(case: Case) -> Iterator[Case]:
    """Return one simpler case after the other, those first that leave out most."""
    for name in list(case["fields"]):
        if len(case["fields"]) > 1:
            yield changed(case, lambda one, name=name: one["fields"].pop(name))
    for k, file in enumerate(case["files"]):
        nodes = file["nodes"]
        half = len(nodes) // 2
        for first in range(0, len(nodes), max(1, half)) if half > 8 else ():
            yield changed(case, lambda one, k=k, first=first, half=half: _cut(one["files"][k]["nodes"], first, half))
        for place in range(len(nodes)) if len(nodes) < 60 else ():
            yield changed(case, lambda one, k=k, place=place: one["files"][k]["nodes"].pop(place))
    for name in case["source"]:
        if len(case["source"]) > 1:
            yield changed(case, lambda one, name=name: one["source"].remove(name))
    for where in _dicts(case):
        for key in list(_at(case, where)):
            if key in SIMPLER and _at(case, where)[key] != SIMPLER[key]:
                yield changed(case, lambda one, where=where, key=key: _at(one, where).update({key: SIMPLER[key]}))
        if "options" in _at(case, where):
            for key in list(_at(case, where)["options"]):
                yield changed(case, lambda one, where=where, key=key: _at(one, where)["options"].pop(key))
    for key in ("window", "keep", "memory_budget", "drop_last"):
        if key in case["loader"]:
            yield changed(case, lambda one, key=key: one["loader"].pop(key))
    for key in ("many", "consumer", "beside"):
        if key in case:
            yield changed(case, lambda one, key=key: one.pop(key))
    if case["loader"]["num_workers"]:
        yield changed(case, lambda one: one["loader"].update(num_workers=0))


def changed(case: Case, change: Callable[[Case], Any]) -> Case:
    """Return a case with a change, and the case itself as it was."""
    found = copy.deepcopy(case)
    change(found)
    return found


def _cut(nodes: list[Any], first: int, count: int) -> None:
    del nodes[first : first + count]


def _dicts(tree: Any, where: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(tree, dict):
        yield where
    for key, one in tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ():
        if isinstance(one, (dict, list)):
            yield from _dicts(one, (*where, key))


def _at(tree: Any, where: tuple[Any, ...]) -> Any:
    for key in where:
        tree = tree[key]
    return tree


def shrink(case: Case, form: dict[str, Any], status: str, run: Callable[[Case], list[Any]], most: int = 300) -> Case:
    """Leave out of a case what its failure does not need: in a form, with "wrong" or "raw"."""
    case = {**case, "forms": [form]}
    tried, goes_on = 0, True
    while goes_on:
        goes_on = False
        for one in smaller(case):
            tried += 1
            if tried > most:
                return case
            if run(one)[0]["status"] == status:
                case, goes_on = one, True
                break
    return case


def script(case: Case, result: dict[str, Any], right: str) -> str:
    """Write a case as a script: h5py writes the files, h5stream reads them, and the right answer stands beside."""
    form, names = case["forms"][0], case["source"]
    lines = [f'"""Seed {case["seed"]}, {case["kind"]}, {form["form"]}: {_one_line(result["said"])}"""', ""]
    lines += ["import tempfile", "", "from h5stream import *", "import torch", inspect.getsource(writing)]
    lines += ["folder = tempfile.mkdtemp()"]
    for file in case["files"]:
        rest = {key: value for key, value in file.items() if key != "nodes"}
        lines += [f"nodes = {file['nodes']!r}", f"write_file(folder, {{**{rest!r}, 'nodes': nodes}})"]
    if "many" in case:
        lines += ["from h5stream.storage.file import groups", "from h5stream.storage.open import reading"]
        lines += [f"groups.MANY = reading.MOST_OPENED = {case['many']}"]
    if case["streamed"]:
        lines += ["from h5stream.engine import sizing", "sizing.KEEP_NBYTES = -1"]
    source = [f'f"{{folder}}/{name}"' for name in names]
    fields = text(case["fields"])
    if case["style"] != "dict":
        fields = ", ".join(map(text, case["fields"].values()))
        fields = f"[{fields}]" if case["style"] == "list" else fields
    lines += [
        f"dataset = H5Dataset({source[0] if len(source) == 1 else '[' + ', '.join(source) + ']'}, {fields}, "
        f"samples={text(case['samples'])}, allow_external=True)"
    ]
    if form["form"] in ("items", "sliced", "listed", "pickled", "repacked"):
        lines += [f"found = dataset[{result.get('number', ':')}]", "print('found:', found)"]
    else:
        options = "".join(f", {key}={value!r}" for key, value in case["loader"].items())
        lines += [f"# {form}", f"for batch in H5StreamLoader(dataset{options}, shuffle=True):", "    print(batch)"]
    return "\n".join([*lines, f"print('right:', {right!r})", f"print('said:', {result['said'][:2000]!r})", ""])


def _one_line(said: str) -> str:
    return said.replace("\n", " ").replace('"""', "'''").replace("\\", "/")[:300]
