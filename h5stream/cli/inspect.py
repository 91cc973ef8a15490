"""`h5stream inspect`: contents of files and the cost of a batch; `h5stream statistics`: statistics of their values."""

from __future__ import annotations

import glob
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

from rich.text import Text

from h5stream.base.texts import counted
from h5stream.cli import options
from h5stream.cli.showing import SafeConsole, named_lines, print_json
from h5stream.errors import OptionError
from h5stream.monitor.progress import printable

if TYPE_CHECKING:
    from h5stream.dataset.statistics import FieldStatistics


def inspect_command(
    files: options.Files,
    fields: options.Fields = "",
    batch_size: options.BatchSize = None,
    threads: options.Threads = None,
    memory_budget: options.MemoryBudget = None,
    samples: options.Samples = "",
    everything: Annotated[bool, options.flag("--all", "List every dataset and every file.")] = False,
    allow_external: Annotated[
        bool, options.flag("--allow-external", "Follow external storage and virtual sources.")
    ] = False,
    catalogue: Annotated[bool, options.flag("--catalogue", "Show what the cache has of their objects.")] = False,
    forget: Annotated[bool, options.flag("--forget", "Delete what the cache has of them.")] = False,
    anonymous: options.Anonymous = False,
    as_json: options.AsJson = False,
) -> None:
    """Show a file's datasets, what a shuffled batch costs, and advice. Nothing is changed.

    With --samples, some samples are read to find what a shuffled batch of them costs.

    The places of samples=Objects(...) are kept in ~/.cache; H5STREAM_CATALOGUE=0 in the environment turns this off.

    Several files are shown one after the other, of a pattern at most 8 without --all.

    --json prints a list, also for one file.

    If the files of a folder or pattern hold the same fields, they are shown together, with the first as an example.

    If files hold fields of the same samples, such as images and labels, a program for all is shown, and each file.
    """
    pattern = options.pattern_of(files)
    paths = options.files_of([pattern] if pattern else files)
    if catalogue or forget:
        show_catalogue(paths, forget, as_json)
        return
    if samples or options.is_python(fields):
        show_samples(paths, samples, fields, as_json, batch_size, memory_budget, threads)
        return
    from h5stream.workers.processes import in_child, ready_children

    ready_children("h5stream.advice.listing")  # which import while this process does
    from h5stream.advice.inspection import inspect_file
    from h5stream.advice.listing import MOST_DATASETS, list_file
    from h5stream.cli.inspect_view import print_all

    names, most = options.listed_names(fields), None if everything else MOST_DATASETS
    inspections = []
    shown, one_of_many = paths, False
    if len(paths) > 1 and not (names or everything or as_json):
        shown = show_files(pattern, paths, allow_external)
        one_of_many = len(shown) < len(paths)
    cut = [] if names or everything or as_json or not pattern else shown[_MOST_FILES:]
    for place, path in enumerate(shown[: len(shown) - len(cut)]):
        # A child goes through the file first, because libhdf5 crashes at some.
        listing = in_child(f"listing {path!r}", list_file, path, most=most, allow_external=allow_external)
        inspection = inspect_file(
            path,
            fields=names,
            batch_size=batch_size,
            memory_budget=memory_budget,
            threads=threads,
            allow_external=allow_external,
            listing=listing,
        )
        inspections.append(inspection)
        if not as_json:
            console = SafeConsole()
            if place or pattern:
                console.print()
            print_all(console, inspection, everything=everything, one_of_many=one_of_many)
    if as_json:
        print_json([inspection.to_dict() for inspection in inspections])
    if cut:
        SafeConsole().print(Text(f"\nand {counted(len(cut), 'more file')}, such as {cut[0]}: name them, or give --all"))


_MOST_FILES = 8  # that hold different things and are shown one by one


def show_files(pattern: str, paths: list[str], allow_external: bool) -> list[str]:
    """Show files that hold the same fields, or fields of one sample; return those to show one by one."""
    from h5stream.advice.inspection import proposals_of_files
    from h5stream.advice.listing import list_files
    from h5stream.advice.similar import families_of
    from h5stream.cli.inspect_view import print_files
    from h5stream.workers.processes import in_child

    families = families_of(paths)
    if len(families) == 1 and sorted(glob.glob(next(iter(families)))) == sorted(paths):
        pattern = pattern or next(iter(families))  # a shell has put the files in its place
    listings = in_child(f"listing {pattern or paths[0]!r}", list_files, paths, allow_external=allow_external)
    groupings = [families] * (len(families) > 1) + [{pattern: paths}]
    proposals = (
        (grouping, proposals_of_files(grouping, listings, allow_external=allow_external)) for grouping in groupings
    )
    families, kind = next((pair for pair in proposals if pair[1]), (families, None))
    if not kind:
        return paths
    print_files(SafeConsole(), [pattern] if pattern else paths, len(paths), kind)
    if not kind.lines:
        return paths  # each has a program of its own
    return [members[0] for members in families.values()] if kind.key == "joined" else paths[:1]


def show_catalogue(paths: list[str], drop: bool, as_json: bool) -> None:
    """Show the cached catalogues of the objects of some files, or delete them."""
    from h5stream.cli.inspect_view import print_catalogue
    from h5stream.storage.file.catalogue import forget, kept_of

    catalogues = {path: kept_of(path) for path in paths}
    dropped = {path: forget(path) if drop else 0 for path in paths}
    if as_json:
        print_json([{"file": path, "dropped": dropped[path], "kept": kept} for path, kept in catalogues.items()])
        return
    for path, kept in catalogues.items():
        print_catalogue(SafeConsole(), path, kept, dropped[path] if drop else None)


def show_samples(
    paths: list[str],
    text: str,
    fields: str,
    as_json: bool,
    batch_size: int | None,
    memory_budget: int | None,
    threads: int | None,
) -> None:
    """Show the cost of a shuffled batch of samples; several files are read as one, in order."""
    from h5stream import H5Dataset
    from h5stream.advice import batch_rows
    from h5stream.advice.cost import cost_samples
    from h5stream.base import limits
    from h5stream.cli.inspect_view import print_samples
    from h5stream.engine.footprint import default_budget

    dataset = H5Dataset(paths, **options.loader_options(fields, text))
    cost = cost_samples(
        dataset,
        text or "Rows",
        batch_size=batch_size or batch_rows(len(dataset), dataset.layout.row_nbytes),
        memory_budget=memory_budget or default_budget(limits.memory_total_bytes()),
        threads=threads,
    )
    if as_json:
        print_json([cost])
        return
    named = ", ".join(paths) if len(paths) < 4 else f"{paths[0]} ... {paths[-1]} ({len(paths):,} files)"
    print_samples(SafeConsole(), named, cost)


# --- statistics: mean, deviation, extremes, NaNs and counts of values of each field -----------------------------


_COLUMNS = ("mean", "std", "min", "max", "NaN", "inf")

_MOST_LINES, _MOST_COUNTS = 64, 20  # channels of a field, and values that are counted, that are listed


def statistics_command(
    files: options.Files,
    fields: options.Fields = "",
    axis: Annotated[
        str,
        options.words(
            "--axis", "Axis whose indices have results of their own: -1 for columns of a table, or x=-1,y=0.", "N"
        ),
    ] = "",
    samples: options.Samples = "",
    anonymous: options.Anonymous = False,
    as_json: options.AsJson = False,
) -> None:
    """Find mean, standard deviation, extremes, NaNs and counts of values, in one pass over the files.

    Several files are read as one. NaN and infinity are counted, and left out of the other numbers.

    Results are kept in ~/.cache for the next time; inspect --forget deletes them.
    """
    paths = options.files_of(files)
    from h5stream import H5Dataset
    from h5stream.storage.file.meanings import not_followed, packed_text

    dataset = H5Dataset(paths, **options.loader_options(fields, samples))
    results = dataset.statistics(axis=_axis(axis))
    if as_json:
        print_json({name: one.to_dict() for name, one in results.items()})
        return
    console = SafeConsole()
    for line in _lines([*results.values()], console.width, dataset.categories):
        console.print(line, soft_wrap=True)
    for name, attributes in not_followed(dataset.layout).items():
        text = f"{packed_text(name, attributes)}; without it stored numbers are counted, fill values among them"
        console.print(Text(text, style="yellow"))


def _axis(text: str) -> int | dict[str, int] | None:
    """Read an axis, or one for each of several fields."""
    try:
        if "=" not in text:
            return int(text) if text else None
        return {name.strip(): int(number) for name, _, number in (one.partition("=") for one in text.split(","))}
    except ValueError:
        raise OptionError(f"--axis takes a number, such as -1, or one for each field: x=-1,y=0, not {text!r}") from None


def _lines(results: list[FieldStatistics], width: int, categories: Mapping[str, Sequence[object]]) -> Iterator[Text]:
    import numpy as np

    rows = {one.name: [*_rows(one)] for one in results}
    lines_of = named_lines(["field", *_COLUMNS], [row for field_rows in rows.values() for row in field_rows], width)
    if results:
        yield Text(counted(results[0].samples, "sample"))
    yield from lines_of()
    for one in results:
        for name, cells in rows[one.name]:
            yield from lines_of(name, cells, "")
        if (hidden := np.size(one.mean) - _MOST_LINES) > 0:
            yield Text(f"  and {hidden:,} more (--json)", style="dim")
        if one.counts:
            names, named = categories.get(one.name), Counter[object]()
            for code, count in one.counts.items():
                named[code if names is None else _category(names, code)] += count
            yield from _counts(named, width)


def _rows(one: FieldStatistics) -> Iterator[tuple[str, list[str]]]:
    """Yield a name and the cells of its line, for a field or for each of its channels."""
    import numpy as np

    columns = (one.mean, one.std, one.min, one.max, one.nan, one.inf)
    for place in list(np.ndindex(np.shape(one.mean)))[:_MOST_LINES]:
        index = f"[{', '.join(map(str, place))}]" if place else ""
        yield printable(f"{one.name}{index}", kept=""), [_number(np.asarray(column).item(*place)) for column in columns]


def _number(value: float) -> str:
    if value != value:
        return "-"
    if float(value).is_integer() and abs(value) < 1e9:
        return str(int(value))
    return f"{value:.1f}" if 1e3 <= abs(value) < 1e6 else f"{value:.4g}"  # not 1e+04 for 9999.5


def _category(names: Sequence[object], code: object) -> object:
    """Return the name of a code; codes that stand for none, such as -1, are no category."""
    return names[code] if isinstance(code, int) and 0 <= code < len(names) else f"no category ({code})"


def _counts(counts: Mapping[object, int], width: int) -> Iterator[Text]:
    """List the most frequent values and how often they come, broken between them."""
    total, most_frequent = (
        max(1, sum(counts.values())),
        sorted(counts.items(), key=lambda item: -item[1])[:_MOST_COUNTS],
    )
    texts = [f"{_value(value)}: {count:,} ({count / total:.1%})" for value, count in most_frequent]
    texts += [f"and {more} more"] if (more := len(counts) - len(most_frequent)) else []
    joined = ", ".join(text.replace(" ", "\xa0") for text in texts)
    first = f"  {counted(len(counts), 'value')}  "
    wrapper = textwrap.TextWrapper(width, first, "    ", break_long_words=False, break_on_hyphens=False)
    for line in wrapper.wrap(joined):
        yield Text(line.replace("\xa0", " "), style="dim")


def _value(value: object) -> str:
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return printable(text if len(text) <= 24 else text[:21] + "...", kept="")
