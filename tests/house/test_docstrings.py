"""Docstrings of what is public say what goes in, what comes out and what is raised; they are read, not only present."""

import ast
import dataclasses
import importlib
import inspect
import itertools
import re
import textwrap

import typer
from support.each import for_each

import h5stream
from h5stream.cli.app import app

DOORS = ("h5stream", "h5stream.errors", "h5stream.monitor", "h5stream.order", "h5stream.staging")
OUR_ERRORS = {name for name in dir(h5stream.errors) if name.endswith("Error")}


def public():
    """Yield each public callable and class once, with its name."""
    seen = set()
    for door in DOORS:
        module = importlib.import_module(door)
        for name in getattr(module, "__all__", vars(module)):
            thing = getattr(module, name)
            if (inspect.isclass(thing) or inspect.isfunction(thing)) and thing not in seen:
                seen.add(thing)
                if thing.__module__.startswith("h5stream") and not name.startswith("_"):
                    yield name, thing


def own_methods(kind):
    """Yield the public methods and properties that a class defines itself."""
    for name, value in vars(kind).items():
        function = getattr(value, "__func__", value)
        if not name.startswith("_") and (inspect.isfunction(function) or isinstance(value, property)):
            yield f"{kind.__name__}.{name}", function


CLASSES = {name: thing for name, thing in public() if inspect.isclass(thing)}
METHODS = dict(pair for kind in CLASSES.values() for pair in own_methods(kind))
FUNCTIONS = {name: thing for name, thing in public() if inspect.isfunction(thing)}
CALLABLES = FUNCTIONS | {name: thing for name, thing in METHODS.items() if inspect.isfunction(thing)}


def section(thing, title):
    """Return the text under a heading of a docstring in numpydoc's style; empty where there is none."""
    found = re.search(rf"^{title}\n-+\n(.*?)(?=^\w+\n-+\n|\Z)", inspect.getdoc(thing) or "", flags=re.S | re.M)
    return found[1] if found else ""


def named_in(text):
    """Return the names of the entries of a section, with several that share one entry apart."""
    heads = re.findall(r"^(\S[^:\n]*?)(?: : .*)?$", text, flags=re.M)
    return {name.strip().lstrip("*") for head in heads for name in head.split(",")}


def arguments(function):
    return [name for name in inspect.signature(function).parameters if name not in ("self", "cls")]


def body_of(function):
    return ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]


def gives_nothing(function):
    return inspect.signature(function).return_annotation in ("None", None)


def raised_by(thing):
    """Return the errors of ours that the body of a function raises, or of what makes an object of a class."""
    body = [body_of(thing)]
    if inspect.isclass(thing):
        body = [node for node in body[0].body if getattr(node, "name", "") in ("__init__", "__post_init__")]
    calls = (node.exc for part in body for node in ast.walk(part) if isinstance(node, ast.Raise))
    names = {ast.unparse(call.func if isinstance(call, ast.Call) else call).split(".")[-1] for call in calls if call}
    return {getattr(h5stream.errors, name) for name in names & OUR_ERRORS}


@for_each([*CLASSES, *METHODS, *FUNCTIONS])
def test_what_is_public_says_in_a_sentence_what_it_is(name):
    thing = (CLASSES | METHODS | FUNCTIONS)[name]
    first = (inspect.getdoc(thing) or "").split("\n\n")[0]
    assert first.endswith((".", "?")), f"{name}: {first!r}"
    assert not first.startswith("Give "), f"{name}: say what comes back: {first!r}"


@for_each([name for name, function in CALLABLES.items() if arguments(function)])
def test_each_argument_has_an_entry(name):
    missing = set(arguments(CALLABLES[name])) - named_in(section(CALLABLES[name], "Parameters"))
    assert missing == set(), f"{name} has no entry under Parameters for {sorted(missing)}"


@for_each([name for name, function in CALLABLES.items() if not gives_nothing(function)])
def test_what_comes_back_has_an_entry(name):
    assert section(CALLABLES[name], "Returns") or section(CALLABLES[name], "Yields"), name


def test_each_error_that_is_raised_somewhere_has_an_entry():
    """Under its own name or that of a base."""
    missing = []
    for name, thing in (CLASSES | CALLABLES).items():
        raised = raised_by(thing)
        listed = named_in(section(thing, "Raises")) if raised else set()
        missing += [(name, e.__name__) for e in raised if not {base.__name__ for base in e.__mro__} & listed]
    assert missing == []


COMMANDS = typer.main.get_command(app).commands


@for_each(COMMANDS)
def test_each_command_says_what_it_does_and_what_each_option_does(name):
    command = COMMANDS[name]
    assert (command.help or "").split("\n\n")[0].rstrip().endswith(".")
    silent = [one.name for one in command.params if not getattr(one, "help", None) and one.name != "help"]
    assert silent == [], f"h5stream {name}: no help for {silent}"


def explained_fields(kind):
    """Return the fields of a class that have a docstring of their own, the line below them."""
    body = body_of(kind).body
    pairs = [pair for pair in itertools.pairwise(body) if isinstance(pair[0], ast.AnnAssign)]
    return {one.target.id for one, two in pairs if isinstance(two, ast.Expr) and isinstance(two.value, ast.Constant)}


def made_by_itself(kind):
    holds = dataclasses.is_dataclass(kind) or "__init__" in vars(kind) or issubclass(kind, BaseException)
    return holds and not getattr(kind, "_is_protocol", False)


@for_each([name for name, kind in CLASSES.items() if made_by_itself(kind)])
def test_what_a_class_is_made_with_or_holds_has_an_entry(name):
    """A class of values says under Attributes what it holds; one that a user makes, under Parameters what it takes."""
    kind = CLASSES[name]
    sections = [section(base, title) for base in kind.__mro__ for title in ("Parameters", "Attributes")]
    named = set().union(explained_fields(kind), *map(named_in, sections))
    is_error = issubclass(kind, BaseException)
    needed = {*inspect.get_annotations(kind)} if is_error else {n for n in arguments(kind) if not n.startswith("_")}
    assert needed - named == set(), f"{name} has no entry for {sorted(needed - named)}"
