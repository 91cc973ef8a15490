"""Options that several commands have: one name, one meaning, one text."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import typer
from typer.models import ArgumentInfo, OptionInfo

from h5stream.advice import batch_rows
from h5stream.base.texts import as_bytes
from h5stream.errors import OptionError

if TYPE_CHECKING:
    from h5stream.storage.layout.request import Fields as LoaderFields
    from h5stream.storage.open.extents import SampleKind


def size(text: str | int) -> int:
    """Return the bytes of a size on the command line; typer names the option."""
    try:
        return as_bytes(text, name="SIZE")
    except OptionError:
        raise typer.BadParameter(
            f"takes bytes, as a number or with a unit such as 512MiB or 4GiB, not {str(text)!r}"
        ) from None


def positive_size(text: str | int) -> int:
    """Return the bytes of a size of at least 1 byte."""
    if (nbytes := size(text)) < 1:
        raise typer.BadParameter(f"takes at least 1 byte, not {str(text)!r}")
    return nbytes


def flag(name: str, text: str) -> OptionInfo:
    """Return an option that takes no value."""
    option: OptionInfo = typer.Option(*[name] * bool(name), help=text)
    return option


def number(name: str, text: str, metavar: str = "N", least: float | None = 1) -> OptionInfo:
    """Return an option of a number."""
    option: OptionInfo = typer.Option(name, min=least, metavar=metavar, help=text)
    return option


def nbytes(
    name: str, text: str, parser: Callable[[str], float] = positive_size, show_default: bool = True
) -> OptionInfo:
    """Return an option of a number of bytes."""
    option: OptionInfo = typer.Option(name, parser=parser, metavar="SIZE", help=text, show_default=show_default)
    return option


def files_argument(text: str) -> ArgumentInfo:
    """Return the argument for files."""
    argument: ArgumentInfo = typer.Argument(metavar="FILE", help=text, show_default=False)
    return argument


def words(name: str, text: str, metavar: str = "TEXT") -> OptionInfo:
    """Return an option that takes a text and shows no default."""
    option: OptionInfo = typer.Option(name, metavar=metavar, help=text, show_default=False)
    return option


def _without_credentials(wanted: bool) -> bool:
    """Turn credentials off in the environment, which helper processes inherit."""
    if wanted:
        os.environ.update({f"{provider}_SKIP_SIGNATURE": "true" for provider in ("AWS", "GOOGLE", "AZURE")})
    return wanted


Files = Annotated[
    list[str],
    files_argument(
        "HDF5 files, folders of them, addresses (s3://...), or patterns such as 'day*.h5'; one after the other."
    ),
]
Fields = Annotated[
    str,
    words(
        "--fields",
        "Fields of a sample, separated by commas, or what fields= takes, such as \"Field('x', ragged='pad'), 'y'\".",
        "NAMES",
    ),
]
Samples = Annotated[str, words("--samples", "What a sample is, if it is no row: \"Sequences(16, of='data/*')\".")]
BatchSize = Annotated[
    int | None,
    number("--batch-size", "Rows of a batch; by default 8192, less for short files and large rows.", "ROWS"),
]
Threads = Annotated[int | None, number("--threads", "h5stream's reader threads; by default all that are allowed.")]
Window = Annotated[str, typer.Option("--window", metavar="ROWS", help="Rows shuffled together, 'auto' or 'all'.")]
MemoryBudget = Annotated[int | None, nbytes("--memory-budget", "Memory that the loader may take, such as 4GiB.")]
Anonymous = Annotated[
    bool,
    typer.Option("--anonymous", callback=_without_credentials, help="Use no credentials: for public buckets."),
]
AsJson = Annotated[bool, flag("--json", "Print the figures as JSON.")]


class SampleOptions(TypedDict):
    """The arguments of a loader, or of a dataset, that tell what a sample is."""

    fields: LoaderFields
    samples: SampleKind | None


class LoaderOptions(SampleOptions):
    """The arguments of a loader of shuffled batches."""

    dataset: list[str]
    batch_size: int
    shuffle: bool
    seed: int
    num_workers: int | None
    window: Any  # an int, or a text that the loader checks
    memory_budget: int | None


def loader_options(fields: str, samples: str) -> SampleOptions:
    """Return the loader's ``fields=`` (from names with commas between them, or from Python) and ``samples=``."""
    names: LoaderFields = None
    if samples or is_python(fields):
        from h5stream.advice import program
    if is_python(fields):
        names = program.fields_from_text(fields)
    elif listed := listed_names(fields):
        names = listed[0] if len(listed) == 1 else listed
    return {"fields": names, "samples": program.samples_from_text(samples) if samples else None}


def loader_of(
    paths: list[str],
    fields: str,
    samples: str,
    batch_size: int | None,
    threads: int | None,
    window: str,
    memory_budget: int | None,
) -> LoaderOptions:
    """Return the arguments of a loader of shuffled batches; the loader itself checks the window."""
    arguments = loader_options(fields, samples)
    return {
        **arguments,
        "dataset": paths,
        "batch_size": batch_size or batch_rows_of(paths, **arguments),
        "shuffle": True,
        "seed": 0,
        "num_workers": threads,
        "window": int(window) if window.isdigit() else window,
        "memory_budget": memory_budget,
    }


def is_python(text: str) -> bool:
    """Tell fields in Python from names: they begin with a bracket or a quote, or call something."""
    return re.match(r"""\s*([{[('"]|(Field|Values|SampleNumber|Padding)\()""", text) is not None


def listed_names(text: str) -> list[str] | None:
    """Return the names of a text with commas between them; None where there is no text at all."""
    names = [name for name in split_names(text) if name]
    if is_python(text) or (text and not names):
        raise OptionError(f"--fields takes names separated by commas, not {text!r}")
    return names or None


def split_names(text: str) -> list[str]:
    """Split names at commas, unless a backslash is before them, and without spaces around them."""
    names = re.findall(r"(?:\\.|[^\\,]|\\$)+", text, re.DOTALL)
    return [re.sub(r"(?<!\\)\s+$", "", name.lstrip()) for name in names]


def files_of(names: list[str]) -> list[str]:
    """Return the readable files that paths and patterns name; a wrong path is refused before torch is imported."""
    from h5stream.storage.layout.sources import paths_of
    from h5stream.storage.source.local import identities_of
    from h5stream.storage.source.one_file import FileIdentity, not_permitted

    paths = [path for one in names for path in paths_of(one, None)]
    for path, identity in zip(paths, identities_of(paths), strict=True):
        if isinstance(identity, FileIdentity) and not os.access(path, os.R_OK):
            raise not_permitted(path)
    return paths


def named(paths: list[str]) -> str:
    """Return the name of the file, or the number of files."""
    return paths[0] if len(paths) == 1 else f"{len(paths)} files"


def batch_rows_of(paths: list[str], fields: LoaderFields, samples: SampleKind | None) -> int:
    """Return the default number of rows of a batch of these files."""
    from h5stream.storage.open.opening import open_layout

    layout = open_layout(paths, fields, samples=samples)
    return batch_rows(layout.samples, layout.row_nbytes)


def pattern_of(names: list[str]) -> str:
    """Return the pattern or folder that stands for all the given files; empty where there is none."""
    from h5stream.base.names import as_pattern
    from h5stream.storage.layout.sources import is_folder, paths_of

    (one, *others) = names
    if others or os.path.isfile(one) or not (is_folder(one) or glob.has_magic(as_pattern(one))):
        return ""
    if not os.path.isdir(one):
        return one
    endings = {os.path.splitext(path)[1] for path in paths_of(one, None)}
    return os.path.join(one, f"*{endings.pop()}") if len(endings) == 1 else one


def check_writable(path: Path | None, option: str) -> None:
    """Refuse an output path that cannot be written, before anything is measured; an existing file is not changed."""
    if path is None:
        return
    from h5stream.base.names import is_address, restored

    if is_address(address := restored(path)):
        reason = "is in a store, which h5stream only reads: name a local file, and copy it there"
        raise OptionError(f"{option} {address!r} {reason}")
    is_new = not path.exists()
    try:
        path.open("ab").close()
    except OSError as error:
        raise OptionError(f"{option} {str(path)!r} cannot be written: {error.strerror}") from error
    if is_new:
        path.unlink()
