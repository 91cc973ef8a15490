"""Python programs, written as lines to copy and tried before they are printed; and arguments of the command line."""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import PurePath
from textwrap import indent
from typing import Any, NamedTuple

import torch

import h5stream
from h5stream.advice import batch_rows
from h5stream.advice.listing import DatasetEntry
from h5stream.dataset.dataset import opened
from h5stream.errors import OptionError
from h5stream.storage.layout.request import Fields, Source
from h5stream.storage.open.extents import SampleKind
from h5stream.storage.source.stores import is_unsigned

Lines = tuple[str, ...]

WIDTH = 76  # characters of a line; longer names get a line of their own
MOST_UNPACKED = 4  # fields that a loop unpacks into names
TRIED_NBYTES = 256 << 20  # samples up to this size are read when a program is tried

_IMPORTED = {"h5py": "h5py.", "numpy as np": "np."}  # import, and the text in lines that need it

# The classes allowed in ``--samples`` and in ``--fields``, which also takes names, slices and ranges.
KINDS = ("Sequences", "Rows", "Objects", "Table", "Boxes", "Ends", "Bounds", "Lengths", "Ids")
FIELDS = ("Field", "Take", "Ragged", "Bounds", "Lengths", "Between", "Crop", "Values", "SampleNumber", "Padding")


# What lines before a loader may call and access. Names from a file occur in them only as text; a program with anything
# else is not run.
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
    """Return a text as a Python literal, in double quotes if possible."""
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

    `fields` are names, none for the loader's own choice, or code for `fields=` by name. `samples` is code for
    `samples=`, with which a batch is a dict. `before` are lines with h5py to run before the loader, and `source` is
    code for a list of datasets in place of the file.
    """
    forms = fields if isinstance(fields, Mapping) else {name: quoted(name) for name in fields}
    together = fields_text(forms, samples, WIDTH - len("    fields=,"))
    nodes = [node for text in (samples, source, together) if text for node in ast.walk(ast.parse(text, mode="eval"))]
    calls = {node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    imported = {"H5StreamLoader", *calls, *(["H5Dataset"] if allow_external else [])}
    source = source or (quoted(path) if isinstance(path, str) else f"[{', '.join(map(quoted, path))}]")
    unsigned = '{"skip_signature": True}' * is_unsigned(path if isinstance(path, str) else path[0])
    wanted = {"samples": samples, "storage_options": unsigned, "fields": together}
    keywords = [f"{name}={text}" for name, text in wanted.items() if text]
    options = [f"batch_size={batch_size}", "shuffle=True", *options]
    arguments = [source, *options, *keywords]
    if allow_external:  # an argument of the dataset, not of the loader
        arguments = ["H5Dataset" + _lined("()", [source, *keywords, "allow_external=True"]), *options]
    return (
        *(f"import {name}" for name, word in _IMPORTED.items() if any(word in line for line in before)),
        f"from h5stream import {', '.join(sorted(imported))}",
        "",
        *((*before, "") if before else ()),
        *f"loader = H5StreamLoader{_lined('()', arguments)}".splitlines(),
        f"for {'batch' if together.startswith('{') else _batch_name([*forms])} in loader:",
        "    ...  # your training step",
    )


def turned_to_rows(path: str, group: str, label: Mapping[str, str]) -> Lines:
    """Return code that rewrites a matrix row by row; its label stays in the file where it is."""
    label = {name: with_options(form, file=quoted(path)) for name, form in label.items()}
    target = f"{PurePath(path).stem}.rows.h5"  # in the current folder, wherever the source is
    return (
        "import h5py",
        "import numpy as np",
        "from h5stream import Field, H5StreamLoader",
        f"source = {quoted(path)}",
        f"target = {quoted(target)}",
        'with h5py.File(source) as f, h5py.File(target, "w") as out:',
        f"    matrix = f[{quoted(group)}]",
        '    data, indices, indptr = (matrix[name][:] for name in ("data", "indices", "indptr"))',
        "    columns = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))",
        '    order = np.argsort(indices, kind="stable")',
        '    shapes = matrix.attrs.get("shape"), matrix.attrs.get("h5sparse_shape"), matrix.get("shape")',
        "    rows = int(next(shape for shape in shapes if shape is not None)[0])",
        "    counts = np.bincount(indices, minlength=rows)",
        '    out["x/data"], out["x/indices"] = data[order], columns[order]',
        '    out["x/indptr"] = np.append(0, counts.cumsum())',
        '    out["x"].attrs["shape"] = [rows, len(indptr) - 1]',
        "",
        *loader_lines(target, {"x": 'Field("x", ragged="dense")', **label}, batch_size=256)[2:],
    )


def fields_text(forms: Mapping[str, str], samples: str = "", width: int = 1 << 30) -> str:
    """Return the code for ``fields=``: a single field, a list, or a dict if batches are dicts; long code in lines."""
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
    """Return the loop variables for a batch: the last part of each field's name, if these are valid and distinct."""
    names = [re.sub(r"\W", "_", last_name(name), flags=re.ASCII) for name in fields]
    together = ", ".join(names)
    good = all(name.isidentifier() and not keyword.iskeyword(name) for name in names)
    fits = 1 < len(names) <= MOST_UNPACKED and len(f"for {together} in loader:") <= WIDTH
    return together if good and fits and len({*names, "loader"}) > len(names) else "batch"


def tried(lines: Lines) -> tuple[str, int, int]:
    """Run a program up to its loader, and read some samples.

    Return why it was refused, or an empty text, the number of samples and the bytes of one.
    """
    body = ast.parse("\n".join(lines)).body  # lazy imports are in `scope`
    program = ast.Module([one for one in body if not isinstance(one, ast.ImportFrom | ast.For)], [])
    scope = {name: getattr(h5stream, name) for name in ("H5Dataset", *KINDS, *FIELDS)}
    scope["H5StreamLoader"] = _dataset_of
    if not _is_safe(program, scope):
        return "it does more than open files and list names", 0, 0
    try:
        exec(compile(program, "<proposed>", "exec"), scope)
        dataset = scope["loader"]
        count, nbytes = len(dataset), dataset.layout.row_nbytes
        if nbytes <= TRIED_NBYTES:
            for sample in sorted({0, count // 2, count - 1}):
                dataset[sample]
    except Exception as error:  # users who copy the program would meet any error
        return str(error) or type(error).__name__, 0, 0
    return "", count, nbytes


def _is_safe(program: ast.Module, scope: Mapping[str, object]) -> bool:
    """Return whether a program only opens files to read, and lists their contents."""
    nodes, allowed = [*ast.walk(program)], {*scope, *_WORDS}
    assigned = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    assigned |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    # A file must be opened by a literal name, for reading.
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
                return name in allowed or name in assigned
            case ast.Attribute(attr=name):
                return name in _METHODS or (name == "File" and node in opens)
            case ast.Import(names):
                return {one.name for one in names} <= {"h5py", "numpy"}
        return not isinstance(node, ast.ImportFrom | ast.FunctionDef | ast.ClassDef)

    return assigned.isdisjoint(allowed) and all(map(is_known, nodes))  # an allowed name must not be reassigned


def _dataset_of(
    source: Source | h5stream.H5Dataset, *, fields: Fields = None, samples: SampleKind | None = None, **_: object
) -> h5stream.H5Dataset:
    """Open the dataset that a loader would read; a loader itself would take a share of the loaders' memory."""
    return opened(source, fields) or h5stream.H5Dataset(source, fields, samples=samples)


# --- read -------------------------------------------------------------------------------------------------


def samples_from_text(text: str) -> SampleKind:
    """Parse ``--samples`` from Python code, of literals and allowed classes only."""
    value = _read(text, KINDS, "--samples", "\"Sequences(16, of='data/*')\"")
    if not isinstance(value, SampleKind):
        raise OptionError(f"--samples takes one of {', '.join(KINDS)}, not {text!r}")
    return value


def fields_from_text(text: str) -> Any:
    """Parse ``--fields`` from Python code, of literals and allowed classes only."""
    value = _read(text, FIELDS, "--fields", "\"{'x': Field('hits', lookup=Bounds('index')), 'y': 'label'}\"")
    return list(value) if isinstance(value, tuple) else value


def _read(text: str, allowed: Sequence[str], option: str, example: str) -> object:
    words = {name: getattr(h5stream, name) for name in allowed} | (
        {"slice": slice, "range": range} if allowed is FIELDS else {}
    )
    try:
        return _evaluated(ast.parse(text.strip(), mode="eval").body, words)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        raise OptionError(
            f"{option} takes what {option[2:]}= does, such as {example}, and {text!r} is not that: {error}"
        ) from None


def _evaluated(node: ast.expr, allowed: Mapping[str, Callable[..., object]]) -> object:
    """Evaluate an expression of literals and allowed names."""
    match node:
        case ast.Call(ast.Name(name), args, keywords):
            if name not in allowed:
                raise ValueError(f"{name} is none of {', '.join(allowed)}")
            named = {str(one.arg): _evaluated(one.value, allowed) for one in keywords}
            return allowed[name](*(_evaluated(arg, allowed) for arg in args), **named)
        case ast.Dict(keys) if None in keys:
            raise ValueError("** is not read here")
        case ast.Dict(keys, values):
            return {
                _evaluated(key, allowed): _evaluated(value, allowed)
                for key, value in zip(keys, values, strict=True)
                if key
            }
        case ast.List(elements):
            return [_evaluated(one, allowed) for one in elements]
        case ast.Tuple(elements):
            return tuple(_evaluated(one, allowed) for one in elements)
        case ast.Attribute(ast.Name("torch"), name):
            if not isinstance(dtype := getattr(torch, name, None), torch.dtype):
                raise ValueError(f"torch.{name} is no dtype")
            return dtype
        case ast.Name(name) if name not in ("True", "False", "None"):
            raise ValueError(f"{name} is no text; in quotes it is: {name!r}")
    return ast.literal_eval(node)


# --- proposals of detectors ------------------------------------------------------------------------------


MOST_FIELDS = 16  # the most fields that a program names


class StreamRecipe(NamedTuple):
    """Arguments to stream the data of a proposal."""

    fields: Mapping[str, str]  # code of the loader's fields, by name
    samples: str = ""  # code for ``samples=``; empty for rows
    does: str = ""  # what that does, as the end of a sentence; empty if the proposal's way out says it

    def __str__(self) -> str:
        return f"{f'samples={self.samples}' if self.samples else 'The loader without samples='} {self.does}"


@dataclass(frozen=True)
class Proposal:
    """Something in a file that is not rows of datasets, and how to stream it."""

    key: str  # a stable name
    what: str
    about: Sequence[DatasetEntry] = ()
    way_out: str = ""  # how h5stream streams it, or what to do instead; empty if nothing is to be done
    recipes: Sequence[StreamRecipe] = ()  # the lines use the first that works; the others are described
    _: KW_ONLY
    path: str = ""  # the file that the lines name, if it is not the inspected one
    before: Lines = ()  # lines with h5py to run before the loader
    source: str = ""  # code for the loader's source in place of the file
    lines: Lines = ()  # code that streams it, once it was tried; empty if there is none
    batch_size: int = 0  # samples of a batch, once it was tried
    rows: Sequence[DatasetEntry] = ()  # the datasets whose rows can be streamed as they are
    example: Sequence[DatasetEntry] = ()  # the datasets that represent all of them, if they are similar
    tried_on: Mapping[str, list[str]] = field(default_factory=dict)
    """The inspected names to try it on, by the code of a pattern of very many, or by a variable of the lines before."""
    is_refused: bool = False  # whether trying it failed: there are no lines, and the way out says why

    @property
    def samples_text(self) -> str:
        """The code for ``samples=``; empty for rows."""
        return self.recipes[0].samples if self.recipes else ""

    @property
    def fields_text(self) -> str:
        """The code for ``fields=``, unless lines come before the loader."""
        is_whole = self.recipes and not (self.before or self.source)
        return fields_text(self.recipes[0].fields, self.samples_text) if is_whole else ""

    @property
    def datasets(self) -> tuple[str, ...]:
        """The paths of its datasets."""
        return tuple(entry.path for entry in self.about)

    @property
    def nbytes(self) -> float:
        """The bytes ever written of its datasets."""
        return sum(entry.written_nbytes for entry in self.about)

    def tried(
        self, source: str | Sequence[str], files: Sequence[str] = (), *, allow_external: bool = False
    ) -> Proposal:
        """Return it as it may be printed: without recipes that fail when some samples are read."""
        if not self.recipes:
            return self
        path = self.path or source

        def program(
            recipe: StreamRecipe, path: str | Sequence[str], size: int, names_of: Mapping[str, list[str]]
        ) -> Lines:
            samples, before = recipe.samples, self.before
            for name, names in names_of.items():
                if name.isidentifier():
                    before = (f"{name} = {names!r}",)
                else:
                    samples = samples.replace(name, repr(names))
            return loader_lines(path, recipe.fields, size, samples, before, (), allow_external, self.source)

        attempts = [(recipe, *tried(program(recipe, [*files] or path, 1, self.tried_on))) for recipe in self.recipes]
        good = [(recipe, count, nbytes) for recipe, refused, count, nbytes in attempts if not refused]
        if not good:
            way_out = f"It cannot be streamed as it is: {attempts[0][1]}".rstrip(".")
            return replace(self, way_out=way_out, recipes=(), is_refused=True)
        first, count, nbytes = good[0]
        are_rows = first.samples[:4] in ("", "Rows") and not any("{}" in form for form in first.fields.values())
        most = 256 if are_rows else 64
        most = most if files or self.tried_on else min(most, count)
        size = max(1, min(most, batch_rows(None, nbytes)))
        recipes = [recipe for recipe, *_ in good]
        # The recipe of the lines comes last, since the lines follow it.
        notes = [
            *(str(recipe) for recipe in reversed(recipes) if recipe.does),
            *([self.way_out] if self.way_out else []),
        ]
        lines = program(first, path, size, {})
        return replace(self, recipes=recipes, way_out="; ".join(notes), batch_size=size, lines=lines)

    def to_dict(self) -> dict[str, object]:
        """Return it as plain containers for JSON."""
        names = ("key", "datasets", "what", "way_out", "lines", "nbytes", "samples_text", "fields_text", "batch_size")
        entries = {"samples": self.rows, "example": self.example}
        paths = {name: [entry.path for entry in of] for name, of in entries.items()}
        return {name: getattr(self, name) for name in names} | paths


# --- fields, names ----------------------------------------------------------------------------------------


def form_of(entry: DatasetEntry, name: str = "", *, ragged: str = "") -> str:
    """Return the code of a dataset's field, under its path or another name."""
    text = quoted(name or entry.path)
    if entry.clues.image:
        return f'Field({text}, decode="{entry.clues.image}")'
    form = f'Field({text}, ragged="{ragged or "packed"}")' if ragged or entry.is_numbers_of_any_length else text
    return with_options(form, missing='"netcdf"' * bool(entry.clues.packed))


def with_options(form: str, **options: str) -> str:
    """Return the code of a field with additional options."""
    more = "".join(f", {name}={text}" for name, text in options.items() if text)
    return f"{form[:-1] if form.startswith('Field(') else f'Field({form}'}{more})" if more else form


def most_of(members: Mapping[str, DatasetEntry]) -> list[str]:
    """Return all names, or those of the datasets with the most bytes if there are too many for a program."""
    most = sorted(members, key=lambda name: -members[name].raw_nbytes)[:MOST_FIELDS]
    return [name for name in members if name in most]


def keyed(entries: Iterable[DatasetEntry]) -> dict[str, str]:
    """Return the code of fields by short names."""
    return short_keys({entry.path: form_of(entry) for entry in entries})


def short_keys(fields: Mapping[str, str]) -> dict[str, str]:
    """Return fields by the last parts of their paths, if these are distinct."""
    short = [last_name(name) for name in fields]
    return dict(zip(short if len(set(short)) == len(short) else fields, fields.values(), strict=True))


def last_name(path: str) -> str:
    """Return the last part of the path of a dataset, a member, or an attribute."""
    return re.split(r"[/:@]", path)[-1]


def family_of(name: str) -> str:
    """Return a name with its numbers replaced by 0."""
    return re.sub(r"\d+", "0", name)


def named(names: Sequence[str]) -> str:
    """Return names as a list in a sentence."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
