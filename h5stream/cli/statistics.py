"""`h5stream statistics FILE`: mean, deviation, extremes, NaNs and counts of values of each field."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Annotated, Any

from rich.text import Text

from h5stream.cli import options
from h5stream.cli.showing import NamedLines, print_json, safe_console
from h5stream.errors import OptionError
from h5stream.monitor.progress import printable
from h5stream.units import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from h5stream.field_statistics import FieldStatistics

_COLUMNS = ("mean", "std", "min", "max", "NaN", "inf")

# Channels of a field, and values that are counted, that are listed.
_MOST_LINES, _MOST_COUNTS = 64, 20


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

    dataset = H5Dataset(paths, **options.loader_options(fields, samples))
    found = dataset.statistics(axis=_axis(axis))
    if as_json:
        print_json({name: one.to_dict() for name, one in found.items()})
        return
    console = safe_console()
    for line in _lines([*found.values()], console.width):
        console.print(line, soft_wrap=True)


def _axis(text: str) -> Any:
    """Read an axis, or one for each of several fields."""
    try:
        if "=" not in text:
            return int(text) if text else None
        return {name.strip(): int(number) for name, _, number in (one.partition("=") for one in text.split(","))}
    except ValueError:
        raise OptionError(f"--axis takes a number, such as -1, or one for each field: x=-1,y=0, not {text!r}") from None


def _lines(found: list[FieldStatistics], width: int) -> Iterator[Text]:
    import numpy as np

    rows = {one.name: [*_rows(one)] for one in found}
    lines = NamedLines(["field", *_COLUMNS], [row for some in rows.values() for row in some], width)
    if found:
        yield Text(f"{found[0].samples:,} samples")
    yield from lines.heading()
    for one in found:
        for name, cells in rows[one.name]:
            yield from lines.of(name, cells)
        if (left := np.size(one.mean) - _MOST_LINES) > 0:
            yield Text(f"  and {left:,} more (--json)", style="dim")
        if one.counts:
            yield from _counts(one, width)


def _rows(one: FieldStatistics) -> Iterator[tuple[str, list[str]]]:
    """Return a name and the cells of its line, for a field or for each of its channels."""
    import numpy as np

    columns = (one.mean, one.std, one.min, one.max, one.nan, one.inf)
    for place in list(np.ndindex(np.shape(one.mean)))[:_MOST_LINES]:
        index = f"[{', '.join(map(str, place))}]" if place else ""
        yield printable(f"{one.name}{index}", kept=""), [_number(np.asarray(each)[place]) for each in columns]


def _number(value: Any) -> str:
    if value != value:
        return "-"
    if float(value).is_integer() and abs(value) < 1e9:
        return str(int(value))
    return f"{value:.1f}" if 1e3 <= abs(value) < 1e6 else f"{value:.4g}"  # not 1e+04 for 9999.5


def _counts(one: FieldStatistics, width: int) -> Iterator[Text]:
    """List the most frequent values and how often they come, broken between them."""
    assert one.counts is not None
    total = max(1, sum(one.counts.values()))
    often = sorted(one.counts.items(), key=lambda item: -item[1])[:_MOST_COUNTS]
    said = [f"{_value(value)}: {count:,} ({count / total:.1%})" for value, count in often]
    said += [f"and {more} more"] if (more := len(one.counts) - len(often)) else []
    whole = ", ".join(text.replace(" ", "\xa0") for text in said)
    first = f"  {counted(len(one.counts), 'value')}  "
    unbroken: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}
    for line in textwrap.wrap(whole, width, initial_indent=first, subsequent_indent="    ", **unbroken):
        yield Text(line.replace("\xa0", " "), style="dim")


def _value(value: Any) -> str:
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return printable(text if len(text) <= 24 else text[:21] + "...", kept="")
