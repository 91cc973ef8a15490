"""Programs of Python: written as lines to copy, tried before they are printed, and read from the command line."""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from textwrap import indent
from typing import Any, NamedTuple

import torch

import h5stream
from h5stream.advice import batch_rows
from h5stream.advice.listing import DatasetEntry
from h5stream.dataset.dataset import opened
from h5stream.errors import OptionError
from h5stream.storage.open.extents import SampleKind
from h5stream.storage.source.stores import is_unsigned

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
_WORDS = {"all", "h5py", "isinstance", "np", "set", "sorted"}
_METHODS = {
    "append",
    "arange",
    "attrs",
    "concatenate",
    "Dataset",
    "dtype",
    "Group",
    "isdigit",
    "name",
    "ndim",
    "replace",
}
_METHODS |= {"removeprefix", "removesuffix", "rpartition", "shape", "values", "visit"}


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
    together = fields_text(forms, samples, WIDTH - len("    fields=,"))
    nodes = [node for text in (samples, source, together) if text for node in ast.walk(ast.parse(text, mode="eval"))]
    calls = {node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    imported = {"H5StreamLoader", *calls, *(["H5Dataset"] if allow_external else [])}
    source = source or (quoted(path) if isinstance(path, str) else f"[{', '.join(map(quoted, path))}]")
    unsigned = '{"skip_signature": True}' * is_unsigned(path if isinstance(path, str) else path[0])
    wanted = {"samples": samples, "storage_options": unsigned, "fields": together}
    given = [f"{name}={text}" for name, text in wanted.items() if text]
    options = [f"batch_size={batch_size}", "shuffle=True", *options]
    arguments = [source, *options, *given]
    if allow_external:  # which the dataset takes, and not the loader
        arguments = ["H5Dataset" + _lined("()", [source, *given, "allow_external=True"]), *options]
    return (
        *(f"import {name}" for name, word in _IMPORTED.items() if any(word in line for line in before)),
        f"from h5stream import {', '.join(sorted(imported))}",
        "",
        *((*before, "") if before else ()),
        *f"loader = H5StreamLoader{_lined('()', arguments)}".splitlines(),
        f"for {'batch' if together.startswith('{') else _batch_name([*forms])} in loader:",
        "    ...  # your training step",
    )


def fields_text(forms: Mapping[str, str], samples: str = "", width: int = 1 << 30) -> str:
    """Write what ``fields=`` takes: one alone, a list, or a dict where a batch is one; where it is long, by lines."""
    if len(forms) < 2:
        return "".join(forms.values())
    around, entries = "[]", [*forms.values()]
    if samples or any(name not in form for name, form in forms.items()):
        around, entries = "{}", [f"{quoted(key)}: {form}" for key, form in forms.items()]
    together = f"{around[0]}{', '.join(entries)}{around[1]}"
    return together if len(together) <= width else _lined(around, entries)


def _lined(around: str, parts: Iterable[str]) -> str:
    """Write parts between brackets, each on lines of its own."""
    return "\n".join([around[0], *(indent(f"{part},", "    ") for part in parts), around[1]])


def _batch_name(fields: Sequence[str]) -> str:
    """Name what a batch holds: each field by the end of its name, where those can be names and differ."""
    names = [re.sub(r"\W", "_", last_name(name), flags=re.ASCII) for name in fields]
    together = ", ".join(names)
    good = all(name.isidentifier() and not keyword.iskeyword(name) for name in names)
    fits = 1 < len(names) <= MOST_UNPACKED and len(f"for {together} in loader:") <= WIDTH
    return together if good and fits and len({*names, "loader"}) > len(names) else "batch"


def tried(lines: Lines) -> tuple[str, int, int]:
    """Run a program to its loader, and read some samples of that.

    Return why it was refused, else how many samples there are, and the bytes of one.
    """
    body = ast.parse("\n".join(lines)).body  # what is imported lazily is there
    program = ast.Module([one for one in body if not isinstance(one, ast.ImportFrom | ast.For)], [])
    scope = {name: getattr(h5stream, name) for name in ("H5Dataset", *KINDS, *FIELDS)}
    scope["H5StreamLoader"] = _dataset_of
    if not _is_ours(program, scope):
        return "it does more than open files and list names", 0, 0
    try:
        exec(compile(program, "<proposed>", "exec"), scope)
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
    nodes, known = [*ast.walk(program)], {*scope, *_WORDS}
    made = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    made |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    # A file is opened by a name that stands there, to be read, and under no other name.
    opens = [
        node.func
        for node in nodes
        if isinstance(node, ast.Call)
        and not node.keywords
        and len(node.args) == 1
        and isinstance(node.args[0], ast.Constant)
    ]

    def is_known(node: ast.AST) -> bool:
        match node:
            case ast.Name(name):
                return name in known or name in made
            case ast.Attribute(attr=name):
                return name in _METHODS or (name == "File" and node in opens)
            case ast.Import(names):
                return {one.name for one in names} <= {"h5py", "numpy"}
        return not isinstance(node, ast.ImportFrom | ast.FunctionDef | ast.ClassDef)

    return made.isdisjoint(known) and all(map(is_known, nodes))  # what is allowed by its name must be that


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
    words = {name: getattr(h5stream, name) for name in known} | (
        {"slice": slice, "range": range} if known is FIELDS else {}
    )
    try:
        return _made(ast.parse(text.strip(), mode="eval").body, words)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        raise OptionError(
            f"{option} takes what {option[2:]}= does, such as {example}, and {text!r} is not that: {error}"
        ) from None


def _made(node: ast.expr, known: Mapping[str, Any]) -> Any:
    """Make what an expression says, of literals and known words."""
    match node:
        case ast.Call(ast.Name(name), args, keywords):
            if name not in known:
                raise ValueError(f"{name} is none of {', '.join(known)}")
            named = {str(one.arg): _made(one.value, known) for one in keywords}
            return known[name](*(_made(arg, known) for arg in args), **named)
        case ast.Dict(keys) if None in keys:
            raise ValueError("** is not read here")
        case ast.Dict(keys, values):
            return {_made(key, known): _made(value, known) for key, value in zip(keys, values, strict=True) if key}
        case ast.List(elements):
            return [_made(one, known) for one in elements]
        case ast.Tuple(elements):
            return tuple(_made(one, known) for one in elements)
        case ast.Attribute(ast.Name("torch"), name):
            if not isinstance(dtype := getattr(torch, name, None), torch.dtype):
                raise ValueError(f"torch.{name} is no dtype")
            return dtype
    return ast.literal_eval(node)


# --- what detectors see, and propose ---------------------------------------------------------------------


MOST_FIELDS = 16  # fields that the lines name, at most


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
    ways: Sequence[Way] = ()  # the lines are of the first that works; others are said before it
    _: KW_ONLY
    path: str = ""  # the file that the lines name, if it is not the one that was looked at
    before: Lines = ()  # lines with h5py that come before the loader
    source: str = ""  # what the loader is given in place of the file, as Python
    lines: Lines = ()  # Python that streams it, once it is tried; empty where there is none
    batch_size: int = 0  # samples of a batch, once it is tried
    rows: Sequence[DatasetEntry] = ()  # those of the datasets whose rows can be streamed as they are
    example: Sequence[DatasetEntry] = ()  # those of the datasets that stand for all of them, where they are alike
    some: Mapping[str, list[str]] = field(default_factory=dict)
    """By a pattern of very many, or a name of the lines before, as Python, those looked at, on which it is tried."""
    is_refused: bool = False  # whether it was tried in vain: there are no lines, and the way out says why

    @property
    def samples_text(self) -> str:
        """What ``samples=`` takes; empty for rows."""
        return self.ways[0].samples if self.ways else ""

    @property
    def fields_text(self) -> str:
        """What ``fields=`` is given, where no lines come before."""
        is_whole = self.ways and not (self.before or self.source)
        return fields_text(self.ways[0].fields, self.samples_text) if is_whole else ""

    @property
    def datasets(self) -> tuple[str, ...]:
        """What it is about."""
        return tuple(entry.path for entry in self.about)

    @property
    def nbytes(self) -> float:
        """Bytes that were ever written of what it is about."""
        return sum(entry.written_nbytes for entry in self.about)

    def tried(self, path: str, files: Sequence[str] = (), *, allow_external: bool = False) -> Proposal:
        """Return it as it may be printed: without ways that are refused when some samples are read."""
        if not self.ways:
            return self
        path = self.path or path

        def program(way: Way, path: str | Sequence[str], size: int, some: Mapping[str, list[str]]) -> Lines:
            samples, before = way.samples, self.before
            for name, names in some.items():
                if name.isidentifier():
                    before = (f"{name} = {names!r}",)
                else:
                    samples = samples.replace(name, repr(names))
            return loader_lines(path, way.fields, size, samples, before, (), allow_external, self.source)

        every = [(way, *tried(program(way, [*files] or path, 1, self.some))) for way in self.ways]
        good = [(way, count, nbytes) for way, refused, count, nbytes in every if not refused]
        if not good:
            way_out = f"It cannot be streamed as it is: {every[0][1]}".rstrip(".")
            return replace(self, way_out=way_out, ways=(), is_refused=True)
        first, count, nbytes = good[0]
        are_rows = first.samples[:4] in ("", "Rows") and not any("{}" in form for form in first.fields.values())
        most = 256 if are_rows else 64
        most = most if files or self.some else min(most, count)
        size = max(1, min(most, batch_rows(None, nbytes)))
        ways = [way for way, *_ in good]
        # That of the lines last, since these follow it.
        said = [*(str(way) for way in reversed(ways) if way.does), *([self.way_out] if self.way_out else [])]
        lines = program(first, path, size, {})
        return replace(self, ways=ways, way_out="; ".join(said), batch_size=size, lines=lines)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain containers for JSON."""
        names = ("key", "datasets", "what", "way_out", "lines", "nbytes", "samples_text", "fields_text", "batch_size")
        entries = {"samples": self.rows, "example": self.example}
        paths = {name: [entry.path for entry in of] for name, of in entries.items()}
        return {name: getattr(self, name) for name in names} | paths


# --- fields, names ----------------------------------------------------------------------------------------


def form_of(entry: DatasetEntry, name: str = "", *, ragged: str = "") -> str:
    """Write the field that a dataset is, as Python, under its path or another name."""
    text = quoted(name or entry.path)
    if entry.image:
        return f'Field({text}, decode="{entry.image}")'
    form = f'Field({text}, ragged="{ragged or "packed"}")' if ragged or entry.is_numbers_of_any_length else text
    return with_options(form, missing='"netcdf"' * bool(entry.packed))


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
