"""Programs of Python: written as lines to copy, tried before they are printed, and read from the command line."""

from __future__ import annotations

import ast
import functools
import keyword
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from textwrap import indent
from typing import Any, NamedTuple

import torch

import h5stream
from h5stream.advice import batch_rows
from h5stream.advice.listing import DatasetEntry, GroupEntry
from h5stream.dataset import opened
from h5stream.errors import OptionError
from h5stream.storage.extents import SampleKind
from h5stream.storage.stores import is_unsigned

Lines = tuple[str, ...]

WIDTH = 76  # characters of a line; a name that is longer than that stays whole on a line of its own
MOST_UNPACKED = 4  # fields that a loop gives names of their own
TRIED_NBYTES = 256 << 20  # bytes of a sample, up to which some are read when a program is tried

_IMPORTED = {"h5py": "h5py.", "numpy as np": "np."}  # by what stands in lines that need it

# What ``--samples`` is made of, and what ``--fields`` is, beside names, slices and ranges.
KINDS = ("Sequences", "Rows", "Objects", "Table", "Boxes", "Ends", "Bounds", "Lengths", "Ids")
FIELDS = ("Field", "Take", "Ragged", "Bounds", "Lengths", "Between", "Crop", "Values", "SampleNumber", "Padding")


# What lines before a loader may call and look at. Names out of a file stand in them as text alone; whatever else came
# to stand in a program is not run.
_WORDS = {"all", "any", "h5py", "isinstance", "len", "np", "range", "set", "slice", "sorted", "torch"}
_METHODS = {"append", "arange", "concatenate", "isdigit", "items", "keys", "removeprefix", "removesuffix", "replace"}
_METHODS |= {"rpartition", "startswith", "values", "visit", "Dataset", "File", "Group", "attrs", "dtype", "name"}
_METHODS |= {"ndim", "shape"}
_METHODS |= {name for name, what in vars(torch).items() if isinstance(what, torch.dtype)}


# --- written ----------------------------------------------------------------------------------------------


def quoted(text: str) -> str:
    """Write a text as Python does, in double quotes where that is the same."""
    plain = text.isprintable() and '"' not in text and "\\" not in text
    return f'"{text}"' if plain else repr(text)


def loader_lines(
    path: str | Sequence[str],
    fields: Sequence[str] | Mapping[str, str],
    batch_size: int,
    samples: str = "",
    before: Lines = (),
    options: Sequence[str] = (),
    allow_external: bool = False,
    source: str = "",
) -> Lines:
    """Return the program that streams fields of a file in shuffled batches.

    `fields` are names, none for the loader's own choice, or by name what `fields=` takes, as Python; with `samples`,
    what that takes, a batch is a dict. `before` are lines with h5py that come before the loader, and `source` is a list
    of datasets in place of the file, as Python.
    """
    forms = fields if isinstance(fields, Mapping) else {name: quoted(name) for name in fields}
    entries, around = _entries(forms, samples)
    trees = [ast.parse(text, mode="eval") for text in (samples, source, *forms.values()) if text]
    calls = [node.func for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)]
    imported = {"H5StreamLoader", *(func.id for func in calls if isinstance(func, ast.Name))}
    imported |= {"H5Dataset"} if allow_external else set()
    source = source or (quoted(path) if isinstance(path, str) else f"[{', '.join(map(quoted, path))}]")
    options = [f"batch_size={batch_size}", "shuffle=True", *options]
    wanted = [f"samples={samples}"] if samples else []
    if is_unsigned(path if isinstance(path, str) else path[0]):
        wanted.append('storage_options={"skip_signature": True}')
    if forms:
        together = f"fields={fields_text(forms, samples)}"
        if len(entries) == 1 or len(together) <= WIDTH - 5:
            wanted.append(together)
        else:
            inside = "".join(f"\n    {entry}," for entry in entries)
            wanted.append(f"fields={around[0]}{inside}\n{around[1]}")
    arguments = [source, *options, *wanted]
    if allow_external:  # which the dataset takes, and not the loader
        inside = indent("\n".join(f"{one}," for one in (source, *wanted, "allow_external=True")), "    ")
        arguments = [f"H5Dataset(\n{inside}\n)", *options]
    return (
        *(f"import {name}" for name, word in _IMPORTED.items() if any(word in line for line in before)),
        f"from h5stream import {', '.join(sorted(imported))}",
        "",
        *((*before, "") if before else ()),
        "loader = H5StreamLoader(",
        *(line for one in arguments for line in indent(f"{one},", "    ").splitlines()),
        ")",
        f"for {'batch' if around == '{}' else _batch_name([*forms])} in loader:",
        "    ...  # your training step",
    )


def fields_text(forms: Mapping[str, str], samples: str = "", between: str = ", ") -> str:
    """Write what ``fields=`` takes: one alone, a list, or a dict where a batch is one."""
    entries, around = _entries(forms, samples)
    return f"{around[:1]}{between.join(entries)}{around[1:]}"


def _entries(forms: Mapping[str, str], samples: str) -> tuple[list[str], str]:
    """Return what ``fields=`` takes, one by one, and what stands around them."""
    if len(forms) == 1:
        return [*forms.values()], ""
    if samples or any(name not in form for name, form in forms.items()):
        return [f"{quoted(key)}: {form}" for key, form in forms.items()], "{}"
    return [*forms.values()], "[]"


def _batch_name(fields: Sequence[str]) -> str:
    """Name what a batch holds: each field by the end of its name, where those can be names and differ."""
    names = [re.sub(r"\W", "_", last_name(name), flags=re.ASCII) for name in fields]
    together = ", ".join(names)
    good = all(name.isidentifier() and not keyword.iskeyword(name) for name in names)
    fits = 1 < len(names) <= MOST_UNPACKED and len(f"for {together} in loader:") <= WIDTH
    return together if good and fits and len({*names, "loader"}) > len(names) else "batch"


def tried(lines: Lines, stand_ins: Mapping[str, Any] | None = None) -> tuple[str, int, int]:
    """Run a program to its loader, and read some samples of that; `stand_ins` are names of lines that are left out.

    Return why it was refused, else how many samples there are, and the bytes of one.
    """
    body = ast.parse("\n".join(lines)).body
    scope = {name: getattr(h5stream, name) for name in ("H5Dataset", *KINDS, *FIELDS)} | dict(stand_ins or {})
    run = [one for one in body if not isinstance(one, ast.ImportFrom | ast.For)]  # what is imported lazily is there
    scope |= {"H5StreamLoader": _dataset_of}
    if not _is_ours(ast.Module(run, []), scope):
        return "it does more than open files and list names", 0, 0
    try:
        exec(compile(ast.Module(run, []), "<proposed>", "exec"), scope)
        dataset = scope["loader"]
        count, nbytes = len(dataset), dataset.layout.row_nbytes
        if nbytes <= TRIED_NBYTES:
            for sample in sorted({0, count // 2, count - 1}):
                dataset[sample]
    except Exception as error:  # whatever it is, it would meet who copies the program
        return str(error) or type(error).__name__, 0, 0
    return "", count, nbytes


def _is_ours(program: ast.Module, scope: Mapping[str, Any]) -> bool:
    """Tell whether a program does nothing but what is written here: open files to read, and list what they hold."""
    made, known, called = set[str](), {*scope, *_WORDS}, list[ast.expr]()
    for node in ast.walk(program):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            made.add(node.id)
        elif isinstance(node, ast.arg | ast.FunctionDef):
            made.add(node.arg if isinstance(node, ast.arg) else node.name)
        elif isinstance(node, ast.Call):
            called.append(node.func)

    def is_known(node: ast.AST) -> bool:
        match node:
            case ast.Name(name):
                return name in known or name in made
            case ast.Attribute(attr="File"):
                return node in called  # under no other name
            case ast.Call(ast.Attribute(attr="File"), arguments, options):
                return len(arguments) == 1 and isinstance(arguments[0], ast.Constant) and not options
            case ast.Attribute(attr=name):
                return name in _METHODS
            case ast.Import(names):
                return {one.name for one in names} <= {"h5py", "numpy"}
        return not isinstance(node, ast.ImportFrom)

    return made.isdisjoint(known) and all(map(is_known, ast.walk(program)))  # what is allowed by its name must be that


def _dataset_of(source: Any, *, fields: Any = None, samples: Any = None, **_: Any) -> h5stream.H5Dataset:
    """Open what a loader would read; a loader itself would take a share of the memory that loaders have."""
    return opened(source, fields) or h5stream.H5Dataset(source, fields, samples=samples)


# --- read -------------------------------------------------------------------------------------------------


def samples_from_text(text: str) -> SampleKind:
    """Read what a sample is from text as Python has it, of literals alone."""
    made = _read(text, KINDS, "--samples", "\"Sequences(16, of='data/*')\"")
    if not isinstance(made, SampleKind):
        raise OptionError(f"--samples takes one of {', '.join(KINDS)}, not {text!r}")
    return made


def fields_from_text(text: str) -> Any:
    """Read what ``fields=`` takes from text as Python has it, of literals and fields alone."""
    made = _read(text, FIELDS, "--fields", "\"{'x': Field('hits', lookup=Bounds('index')), 'y': 'label'}\"")
    return list(made) if isinstance(made, tuple) else made


def _read(text: str, known: Sequence[str], option: str, example: str) -> Any:
    words = {name: getattr(h5stream, name) for name in known}
    if option == "--fields":
        words |= {"slice": slice, "range": range}
    try:
        return _made(ast.parse(text.strip(), mode="eval").body, words)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        raise OptionError(
            f"{option} takes what {option[2:]}= does, such as {example}, and {text!r} is not that: {error}"
        ) from None


def _made(node: ast.expr, known: Mapping[str, Any]) -> Any:
    """Make what an expression says, of literals and known words."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id not in known:
            raise ValueError(f"{node.func.id} is none of {', '.join(known)}")
        named = {str(keyword.arg): _made(keyword.value, known) for keyword in node.keywords}
        return known[node.func.id](*(_made(arg, known) for arg in node.args), **named)
    if isinstance(node, ast.Dict):
        if None in node.keys:
            raise ValueError("** is not read here")
        pairs = zip(node.keys, node.values, strict=True)
        return {_made(key, known): _made(value, known) for key, value in pairs if key is not None}
    if isinstance(node, ast.List | ast.Tuple):
        every = [_made(one, known) for one in node.elts]
        return every if isinstance(node, ast.List) else tuple(every)
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "torch":
        if isinstance(dtype := getattr(torch, node.attr, None), torch.dtype):
            return dtype
        raise ValueError(f"torch.{node.attr} is no dtype")
    return ast.literal_eval(node)


# --- what detectors see, and propose ---------------------------------------------------------------------


MOST_FIELDS = 16  # fields that the lines name, at most

# Names of what a sample is asked for, where shapes and numbers leave it open.
LABEL = re.compile(
    r"label|class|target|categ|arrival|text|caption|transcript|speaker|cell_?type|cluster|age$|^y$", re.I
)


class Way(NamedTuple):
    """A way to stream what was found."""

    fields: Mapping[str, str]  # what the loader is given, by name, as Python
    samples: str = ""  # what ``samples=`` takes; empty for rows
    does: str = ""  # what that does, in words that follow it; empty where the way out of all ways says it

    def __str__(self) -> str:
        return f"{f'samples={self.samples}' if self.samples else 'The loader without samples='} {self.does}"


@dataclass(frozen=True)
class Proposal:
    """Something in a file that is not rows of datasets, and what to make of it."""

    key: str  # a stable name
    what: str
    about: Sequence[DatasetEntry] = ()
    way_out: str = ""  # what h5stream makes of it, and what to do instead; empty where nothing is to be done
    ways: Sequence[Way] = ()  # the lines are of the first; others that work are said behind the way out
    _: KW_ONLY
    path: str = ""  # the file, as the lines name it
    allow_external: bool = False  # whether what leads out of it is followed
    before: Lines = ()  # lines with h5py that come before the loader
    source: str = ""  # what the loader is given in place of the file, as Python
    written: Lines = ()  # a program that is no loader's alone, in place of these
    batch_size: int = 0  # samples of a batch, once it is tried
    rows: Sequence[DatasetEntry] = ()  # those of the datasets whose rows can be streamed as they are
    example: Sequence[DatasetEntry] = ()  # those of the datasets that stand for all of them, where they are alike
    some: Mapping[str, list[str]] = field(default_factory=dict)
    """By a pattern of very many, or a name of the lines before, as Python, those looked at, on which it is tried."""
    is_refused: bool = False  # whether it was tried in vain: there are no lines, and the way out says why

    @property
    def fields(self) -> Mapping[str, str]:
        """By name what ``fields=`` takes, as Python."""
        return self.ways[0].fields if self.ways else {}

    @property
    def samples_text(self) -> str:
        """What ``samples=`` takes; empty for rows."""
        return self.ways[0].samples if self.ways else ""

    @property
    def lines(self) -> Lines:
        """Python that streams it; empty where there is none."""
        return self.written if self.written or not self.ways else self._program(self.ways[0], self.path)

    def _program(self, way: Way, path: str | Sequence[str], stand_ins: Mapping[str, Any] | None = None) -> Lines:
        samples, before = way.samples, self.before
        if stand_ins is not None:
            before = ()
            for pattern in self.some.keys() - stand_ins:
                samples = samples.replace(pattern, repr(self.some[pattern]))
        given = (path, way.fields, self.batch_size or 1, samples, before)
        return loader_lines(*given, allow_external=self.allow_external, source=self.source)

    @property
    def datasets(self) -> tuple[str, ...]:
        """What it is about."""
        return tuple(entry.path for entry in self.about)

    @property
    def fields_text(self) -> str:
        """What ``fields=`` is given, where no lines come before."""
        return "" if self.before or self.source or not self.fields else fields_text(self.fields, self.samples_text)

    @property
    def nbytes(self) -> float:
        """Bytes that were ever written of what it is about."""
        return sum(entry.written_nbytes for entry in self.about)

    def tried(self, files: Sequence[str] = ()) -> Proposal:
        """Return it as it may be printed: without ways that are refused when some samples are read."""
        if not self.ways:
            return self
        stand_ins = {name: names for name, names in self.some.items() if name.isidentifier()} if self.some else None

        def read(way: Way) -> tuple[str, int, int]:
            return tried(self._program(way, [*files] or self.path, stand_ins), stand_ins)

        refused, count, nbytes = read(first := self.ways[0])
        if refused:
            way_out = f"It cannot be streamed as it is: {refused}".rstrip(".")
            return replace(self, way_out=way_out, ways=(), is_refused=True)
        good = [first, *(way for way in self.ways[1:] if not read(way)[0])]
        are_rows = first.samples[:4] in ("", "Rows") and not any("{}" in form for form in first.fields.values())
        most = 256 if are_rows else 64
        most = most if files or self.some else min(most, count)
        size = max(1, min(most, batch_rows(None, nbytes)))
        said = [*(str(way) for way in good if way.does), *([self.way_out] if self.way_out else [])]
        return replace(self, ways=good, way_out="; ".join(said), batch_size=size)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain containers for JSON."""
        names = ("key", "datasets", "what", "way_out", "lines", "nbytes", "samples_text", "fields_text", "batch_size")
        entries = {"samples": self.rows, "example": self.example}
        paths = {name: [entry.path for entry in of] for name, of in entries.items()}
        return {name: getattr(self, name) for name in names} | paths


class Seen:
    """What is known of a file, and not yet taken: its datasets, and these by path, group and number of rows."""

    def __init__(
        self, path: str, entries: Sequence[DatasetEntry], groups: Mapping[str, GroupEntry] | None = None
    ) -> None:
        self.path, self.entries = path, entries
        # One that is not known has no links but those that were seen.
        self.groups = defaultdict(functools.partial(GroupEntry, links=0, looked_at=0), groups or {})
        self.by_path = {entry.path: entry for entry in entries}
        self.by_group: dict[str, dict[str, DatasetEntry]] = defaultdict(dict)
        self.by_rows: dict[int, list[DatasetEntry]] = defaultdict(list)
        self.below: dict[str, list[str]] = defaultdict(list)  # the groups inside a group, at any depth
        for path in self.groups:
            for depth in range(path.count("/")):
                self.below[path.rsplit("/", depth + 1)[0]].append(path)
        for entry in entries:
            self.by_group[entry.group][entry.path.rpartition("/")[2]] = entry
            self.by_rows[entry.rows or 0].append(entry)
        self.by_most_bytes = sorted(self.by_rows.items(), key=lambda item: -sum(e.raw_nbytes for e in item[1]))

    def children(self, group: str) -> set[str]:
        """Return the names of what lies in a group and holds datasets, or is one."""
        above = f"{group}/" if group else ""
        return {entry.path[len(above) :].split("/")[0] for entry in self.entries if entry.path.startswith(above)}

    def count(self, group: str, seen: int) -> int:
        """Return how many of a group's links there are, of which some that are alike were seen."""
        return seen + self.groups[group].links - self.groups[group].looked_at


# --- fields, names ----------------------------------------------------------------------------------------


def form_of(entry: DatasetEntry, name: str = "", *, ragged: str = "") -> str:
    """Write the field that a dataset is, as Python, under its path or another name."""
    text = quoted(name or entry.path)
    if entry.clues.image:
        return f'Field({text}, decode="{entry.clues.image}")'
    if ragged or entry.is_numbers_of_any_length:
        return f'Field({text}, ragged="{ragged or "packed"}")'
    return text


def with_options(form: str, **options: str) -> str:
    """Write a field with more options than the one has that `form_of` wrote."""
    more = "".join(f", {name}={text}" for name, text in options.items() if text)
    return f"{form[:-1] if form.startswith('Field(') else f'Field({form}'}{more})" if more else form


def most_of(members: Mapping[str, DatasetEntry]) -> list[str]:
    """Return the names that the lines have: all, or where these are many those with the most bytes."""
    most = sorted(members, key=lambda name: -members[name].raw_nbytes)[:MOST_FIELDS]
    return [name for name in members if name in most]


def keyed(entries: Iterable[DatasetEntry]) -> dict[str, str]:
    """Return fields by short names."""
    return short_keys({entry.path: form_of(entry) for entry in entries})


def short_keys(fields: Mapping[str, str]) -> dict[str, str]:
    """Return fields by the ends of their paths, where these differ."""
    short = [last_name(name) for name in fields]
    return dict(zip(short if len(set(short)) == len(short) else fields, fields.values(), strict=True))


def last_name(path: str) -> str:
    """Return the end of the path of a dataset, of a member, or of an attribute."""
    return re.split(r"[/:@]", path)[-1]


def named(names: Sequence[str]) -> str:
    """Write names one behind the other, in a sentence."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
