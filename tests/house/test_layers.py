"""The house's order holds: a room imports the rooms above it, and each foreign library has one home.

The table of rooms and homes is in `tools/house.py`, which draws the picture in `docs/design.md` from it.
"""

import ast

from support.each import for_each

from tools import house
from tools.house import FLOORS, FORBIDDEN, HOMES, PACKAGE, ROOMS, imports_of, modules, room_of, rooms_imported_by


@for_each(modules())
def test_a_module_imports_only_rooms_above_its_own(path):
    room = room_of(path)
    if room == "__init__":
        return
    order = list(ROOMS)
    assert room in order, f"{room} has no place in the house; add it to ROOMS with a reason in docs/design.md"
    for above in rooms_imported_by(path):
        assert order.index(above) < order.index(room), f"{path.name} in {room} imports {above}, below it"


def test_every_room_of_the_table_is_there():
    assert set(ROOMS) - {room_of(path) for path in modules()} == set()
    assert next(iter(FLOORS)) == next(iter(ROOMS))


def test_no_import_is_relative():
    found = [(path.name, name) for path in modules() for name in imports_of(path) if name.startswith(".")]
    assert found == []


def test_the_picture_in_the_design_is_that_of_the_code():
    page = house.PAGE.read_text()
    assert house.drawn(page) == page, "run `python tools/house.py`"


@for_each(modules())
def test_a_foreign_library_has_one_home(path):
    place, room = str(path.relative_to(PACKAGE)), room_of(path)
    for name in imports_of(path):
        library = name.split(".")[0]
        assert library not in FORBIDDEN.get(room, set()), f"{place} imports {library}"
        if library in HOMES:
            assert {place, room} & HOMES[library], f"{place} imports {library}, whose home is {HOMES[library]}"


MOST_LINES = 80
# What is longer than that, and how long it may be; nothing new belongs here.
LONGER: dict[str, int] = {}


@for_each(modules())
def test_a_function_is_one_idea(path):
    """A file is as long as its idea; a function whose body does not fit on a screen has more than one."""
    place = path.relative_to(PACKAGE)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            lines = node.end_lineno - body[0].lineno + 1 if body else 0
            assert lines <= LONGER.get(f"{place}:{node.name}", MOST_LINES), f"{place}:{node.lineno} {node.name}"
