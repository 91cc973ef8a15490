"""Fields: a name and how its dataset is read, and which options go together.

A name is the path of a dataset, ``"group/x"``, with a compound member after a colon: ``"obs:bulk_labels"``.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import re
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from h5stream.base.names import Within, as_pattern, braces_in, parted, tokens_of, unquoted
from h5stream.base.texts import answering
from h5stream.errors import OptionError
from h5stream.samples.kinds import Objects, Rows
from h5stream.samples.packing import Missing, missing_of
from h5stream.samples.ragged import ARRAYS, STACKED, Form, Normalization, Ragged, changed, normalization
from h5stream.samples.segments import Stretches, renamed
from h5stream.samples.table import Table
from h5stream.storage.decode.columns import Columns, axes_taken
from h5stream.storage.decode.images import Format
from h5stream.storage.layout.field_options import (
    AS_SAMPLES,
    TAKE_OPTIONS,
    WAY_OUTS,
    Take,
    checked_format,
    checked_lookup,
    columns_argument,
    is_given,
    not_ragged,
    parsed_columns,
    ragged_by_default,
)
from h5stream.storage.layout.sources import named_by, paths_of, several


@answering(WAY_OUTS)
@dataclass(frozen=True, slots=True, repr=False)
class Field:
    """One field, if its name alone does not say enough.

    Parameters
    ----------
    name : str or h5py.Dataset
        Path of a dataset, with a compound member after a colon; an open dataset stands for its path. ``"@name"`` and
        ``"path@name"`` are an attribute, which all samples of the file or group share. If ``samples=`` names datasets
        and not groups, ``"."`` is the dataset itself, and ``".:image"`` a member of a compound one. A path with a slash
        in front begins at the file's root; a ``*`` in it stands for the text that the ``*`` of ``of=`` matches:
        ``"/scores/*"`` with ``of="data/*"``. If ``of=`` is a list of names, the ``*`` is the last step of each. ``{}``
        stands for numbers: with ``"frame_{}_x"``, each object (``frame_0_x``, ``frame_1_x``, ...) is a row, in the
        order of the numbers; all must have the same shape and type. A name that is in the file is taken as it is,
        whatever characters it has, and a backslash takes the next character as it is.
    columns : slice, list or array of int, mask, list of str, "by name", "by place" or a tuple, optional, keyword-only
        Columns (axis 1 of the dataset) to take, in that order, or a mask of all columns. A tuple says what to take of
        axes 1, 2 and so on, as in brackets: slices, lists, masks, integers (which remove the axis) and ``...``. A tuple
        of integers alone is refused as ambiguous: ``[0, 1]`` are columns, ``(0, 1, ...)`` is an index into two axes.
        Only the chunks that hold the columns are read; of chunks without a filter only their bytes, and gaps of up to 4
        KiB between them. Names are members of a compound that make one tensor, whose last axis is that of the members;
        they must be numbers of one type. If the file names its columns (the index of ``var`` in AnnData, features of
        10x, dimension scales of texts), a list of names takes these columns of each file, also of a sparse matrix, and
        ``"by name"`` takes all, in the order of the first file. Without either, columns of other names are not joined;
        ``"by place"`` joins them all the same.
    dtype : torch.dtype or str, optional, keyword-only
        The type that the batch is cast to, or its name such as ``"float32"``, after the stored bytes have reached the
        batch's device. For opaque bytes it names the type that they hold, bfloat16 or a float of 8 bits, as h5py
        stores arrays of ml_dtypes.
    take : range or sequence of int, "all" or Take, optional, keyword-only
        With ``samples=Sequences(...)`` or ``Table(...)``: the rows that a sample takes, counted from the row at which
        it begins. They form an axis of the sample, even for one row (``take=[0]``). A `Take` says what else differs
        from the other fields, such as the axis. ``"all"`` is for a dataset that exists once per file, or per group of
        ``samples=``, and has no axis of rows: every sample gets all of it.
    file : path, pattern or several, optional, keyword-only
        The files that the dataset is in, if they are not those of the other fields: the same number of files, or any
        number with `lookup`.
    lookup : str, array of int, lists of int, Bounds, Lengths, Between, list of str or function, optional, keyword-only
        Row numbers: sample ``k`` gets row ``lookup[k]`` of the dataset, which may have any number of rows. Either an
        array, or the name of a dataset beside the other fields. An array of the shape (n, k) gives each sample k rows,
        in any order, as one tensor of the shape (batch, k, ...). A list of lists, or a dataset of variable length,
        gives each sample as many rows as its list has, which come as `ragged` says; lists of one length are such an
        array. A dataset of the shape (n, 1) names single rows. With `file`, row numbers count through all of these
        files. Without it, those of an array count through all files that are read, without those that
        ``missing="skip"`` leaves out, and those of a dataset from 0 in each file or group. ``Bounds("offsets")``,
        ``Lengths("counts")`` and ``Between("first", "last")``, also of arrays, give each sample as many consecutive
        rows as they say. If `name` contains ``{}``, `lookup` is a list of names of objects
        that replace it, one for each sample, or the path of a dataset of names; objects of different lengths need
        `ragged`. ``"hits/{}:energy"`` is a member of each. A
        function ``lookup(samples, epoch, seed)`` gets an array of sample numbers and returns a row for each, in each
        epoch anew; `h5stream.order.fractions` gives it random numbers.
    ragged : str or Ragged, optional, keyword-only
        How batches hold samples with different numbers of rows, which `lookup` or values of variable length have:
        ``"packed"`` (`Packed`, the default with ``lookup=`` `Bounds`, `Lengths`, `Between` or lists), ``"nested"`` (a
        jagged `torch.nested` tensor over the same memory), ``"pad"`` (`Padded`, as long as the longest sample of the
        batch) or ``"list"`` (the default for values of variable length, and the form of texts). A single sample is a
        tensor of its rows. An attribute whose arrays differ in length has these forms, too. ``"arrays"`` is for whole
        objects, or rows of groups or files (``Rows(of=)``), whose shapes differ along any axes: the batch is a list of
        tensors. A sparse matrix (AnnData, 10x) needs ``"dense"``, a tensor of (samples, columns), or ``"packed"``,
        which gives `SparseRows`. A `Ragged` says more, such as a crop.
    decode : str or (str, str), optional, keyword-only
        The format of encoded images that are values of variable length, or rows of bytes: ``"jpeg"``, ``"png"``,
        ``"webp"``, or ``"auto"``, which looks at the first bytes of each. Reader threads decode them. If the images
        that are examined when the files are opened have the same size, a batch is one tensor, (samples, height, width,
        channels), else a list; ``ragged="list"`` makes it a list in any case. Samples of several rows are (samples,
        steps, height, width, channels), and such images must have the same size. Pixels keep the type of the image,
        uint8 for JPEG, and grayscale images have no axis of channels. A PNG with a palette, such as a mask of classes,
        comes as the numbers of its colours, (height, width), as PIL gives it; ``"png-rgb"`` and ``"auto-rgb"`` give the
        palette's colours, (height, width, 3), without transparency. For rows that are filled up to one length, pass a
        pair: the format, and the dataset that says how many bytes of each row are the image. Not with `dtype` or
        `columns`; `normalize` makes numbers of pixels.
    normalize : dict, optional, keyword-only
        ``mean`` and ``std``, numbers or arrays, and the numbers ``factor`` and ``nan``: the batch becomes
        ``(x * factor - mean) / std``, as float32 unless `dtype` says otherwise, on the device if there is one, and then
        ``nan`` replaces NaN. Arrays must broadcast to one sample: one number per column of a table, or the shape (3, 1,
        1) for images of (3, height, width). With a factor of ``1 / 255`` for pixels, ``mean`` and ``std`` are on the
        scale of 0 to 1. `FieldStatistics.normalize` gives both.
    missing : "netcdf", "fill", number or several, optional, keyword-only
        Stored numbers that become NaN; the batch is float32 unless `dtype` says otherwise. A number is compared as the
        dataset's type holds it, ``"fill"`` is the dataset's fill value, and ``"netcdf"`` follows the attributes of each
        dataset: ``_FillValue``, ``missing_value``, ``valid_min``, ``valid_max``, ``valid_range`` and ``_Unsigned`` say
        which numbers are valid, and these are multiplied by ``scale_factor`` before ``add_offset`` is added. The type
        is then the one that xarray decodes to, float32 or float64, unless `dtype` or `normalize` are given.
        `normalize` is applied to the result. Objects that lack the dataset are NaN with
        ``Objects(..., missing="fill")``.

    Raises
    ------
    OptionError
        If the name is empty or malformed, `columns` are neither a slice nor numbers, or options contradict each other.
    SourceNotFoundError
        If `file` matches nothing.

    Examples
    --------
    >>> Field("x", columns=slice(0, 4)).name
    'x'
    >>> Field("action", take=range(2), normalize={"mean": 0.5}).take
    Take(steps=(0, 1), at='', axis=None, scale=(), pad=None)
    """

    name: str
    columns: Columns = None
    members: tuple[str, ...] = ()
    """Names in `columns`, which is then None."""
    dtype: Any = None
    take: Take = AS_SAMPLES
    repeat: bool = False
    file: tuple[str, ...] = ()
    lookup: Any = dataclasses.field(default=None, compare=False)
    ragged: Ragged | None = None
    decode: str = ""
    length: str = ""
    normalize: Normalization | None = None
    missing: tuple[str | int | float, ...] = ()
    _file: str = ""
    """The file of an open dataset that was passed as name; empty for other names."""
    _beside: SiblingPattern | None = dataclasses.field(default=None, compare=False)
    """How to replace the * of a name outside of the group of `samples`; None for other names."""

    def __init__(
        self,
        name: object,
        *,
        columns: slice | Sequence[int] | Sequence[str] | tuple[Any, ...] | str | None = None,
        dtype: Any = None,
        take: Take | Iterable[int] | Literal["all"] | None = None,
        file: object = None,
        lookup: Any = None,
        ragged: Form | Ragged | None = None,
        decode: Format | tuple[Format, str] | Literal[""] | None = "",
        normalize: Mapping[str, object] | None = None,
        missing: Missing | None = None,
    ) -> None:
        of = ""
        if not isinstance(name, str) and (named := named_by(name)) is not None and named[2]:
            of, name, _ = named
        if not isinstance(name, str) or not name.strip("/"):
            raise OptionError(f"a field's name is the path of a dataset, not {name!r}")
        if isinstance(take, str) and take != "all":
            raise OptionError(f"Field({name!r}): take= is steps, such as range(16), 'all' or a Take, not {take!r}")
        format_, length = decode if isinstance(decode, tuple) and len(decode) == 2 else (decode or "", "")
        files = () if file is None else several(file, "Field(file=)")
        takes_all = isinstance(take, str) or take is None
        values = {
            "_file": of,
            "_beside": None,
            "name": name,
            "columns": None if columns is None else parsed_columns(columns),
            "members": (),
            "dtype": dtype,
            "take": AS_SAMPLES if takes_all else take if isinstance(take, Take) else Take(take),
            "repeat": isinstance(take, str),
            "file": tuple(path for one in files for path in paths_of(one, None)) if files else (),
            "lookup": None if lookup is None else checked_lookup(name, lookup),
            "decode": checked_format(name, format_, length, ragged) if format_ or length else "",
            "length": length,
            "normalize": None if normalize is None else normalization(name, normalize),
            "missing": () if missing is None else missing_of(name, missing),
        }
        for key, value in values.items():
            object.__setattr__(self, key, value)
        is_one_row = ragged is None and lookup is None
        object.__setattr__(self, "ragged", None if is_one_row else self._ragged_form(ragged))
        if self.decode or self.repeat or not is_one_row:  # options that exclude others
            present = options_of(self)
            for option, what, refused, way_out in _CLASHES:
                if option in present and not present.isdisjoint(refused):
                    rule = f"{option} takes {what}, without {', '.join(refused)}{way_out}"
                    raise OptionError(f"Field({name!r}): {rule}")

    def __repr__(self) -> str:
        arguments = {
            "columns": columns_argument(self.columns),
            "dtype": self.dtype,
            "take": "all" if self.repeat else None if self.take == AS_SAMPLES else self.take,
            "file": self.file or None,
            "lookup": self.lookup,
            "ragged": self.ragged,
            "decode": (self.decode, self.length) if self.length else self.decode or None,
            "normalize": self.normalize,
            "missing": self.missing or None,
        }
        return f"Field({', '.join([repr(self.name), *(f'{k}={v!r}' for k, v in arguments.items() if v is not None)])})"

    def _ragged_form(self, ragged: Form | Ragged | None) -> Ragged | None:
        """Return the form of rows in a batch if samples have several; None if each sample is one row."""
        if isinstance(ragged, Ragged) or (ragged is None and self.decode):
            form = ragged
        elif self.decode:
            form = Ragged("list")
        else:
            default = STACKED if self.names_objects else ragged_by_default(self.lookup)
            form = Ragged(ragged or default) if ragged is not None or default else None  # type: ignore[arg-type]
        # A dataset that `lookup` names may list several rows for each sample.
        is_one = callable(self.lookup) or isinstance(self.lookup, np.ndarray)
        if form is not None and form.crop is not None and is_one:
            raise not_ragged(self.name)
        return form

    @property
    def is_looked_up(self) -> bool:
        """Whether its rows are chosen by `lookup`, or read from another file."""
        return bool(self.file) or self.lookup is not None

    @property
    def names_objects(self) -> bool:
        """Whether `lookup` names an object for each sample, instead of rows of a dataset."""
        return isinstance(self.lookup, str | list) and braces_in(self.name) > 0

    @property
    def is_numbered(self) -> bool:
        """Whether its rows are objects with numbered names."""
        return self.lookup is None and braces_in(self.name) > 0

    @property
    def has_own_shape(self) -> bool:
        """Whether samples differ in shape."""
        return self.ragged is not None and self.ragged.form == ARRAYS

    @property
    def shown(self) -> str:
        """Its name as the user wrote it, with any *."""
        return self.name if self._beside is None else self._beside.name

    @property
    def beside(self) -> str:
        """Its path with a * for the names of the objects of one group; empty for other fields."""
        return "" if self._beside is None else self._beside.path

    def inside(self, group: str) -> Field:
        """Return the field with its path in a group, unless its name begins with a slash.

        Paths in `lookup` are resolved in the same way. In an absolute name, a * is replaced by the text from `group`.

        Parameters
        ----------
        group : str
            Path of the group.

        Returns
        -------
        Field
            The field with its full path; itself if `group` is empty.
        """
        if not group:
            return self
        stays = self._beside is None and (self._file or self.file or self.name.startswith("/") or self.names_objects)

        def resolve(name: str) -> str:
            literal, written = parted(name)
            if name.startswith("/"):
                return name if self._beside is None else self._beside.put(name, group)
            if name == "." or name.startswith((".:", ".@")):
                return Within(group, name[1:])
            return Within(f"{group}/{literal}", written)

        lookup = self.lookup
        if isinstance(lookup, (str, Stretches)):
            lookup = resolve(lookup) if isinstance(lookup, str) else renamed(lookup, resolve)
        name, length = self.name if stays else resolve(self.name), self.length
        return changed(self, name=name, lookup=lookup, length=resolve(length) if length and not stays else length)


class SiblingPattern(NamedTuple):
    """A pattern of object paths, and how a field beside each object is named after it."""

    of: re.Pattern[str]
    path: str  # the field's path, with a * for the object's name; empty if that does not determine it
    name: str  # the field's name, as the user wrote it

    def put(self, name: str, group: str) -> Within:
        """Return a name with each * replaced by the text that it matches in a group's path; others are of a member."""
        match, tokens = self.of.fullmatch(group), tokens_of(name, r"\*")
        stars = [k for k, one in enumerate(tokens) if one == "*"][: self.of.groups]
        texts = dict(zip(stars, match.groups() if match else "*" * len(stars), strict=False))
        end = stars[-1] + 1 if stars else 0
        return Within("".join(texts.get(k, unquoted(tokens[k])) for k in range(end)), "".join(tokens[end:]))


def beside(field: Field, of: str | Sequence[str], root: str) -> Field:
    """Return a field that can replace the * of its absolute name for each object of a pattern or a list."""
    count = tokens_of(field.name, r"\*").count("*")
    if not count or not field.name.startswith("/") or field.names_objects:
        return field
    pattern = "/".join(one for one in of.split("/") if one not in ("", ".")) if isinstance(of, str) else "*"
    pieces = re.findall(r"\[[^]]+\]|\*|\\.|[^*[\\]+|.", pattern, re.DOTALL)
    text = "".join("([^/]*)" if one == "*" else _piece_regex(one) for one in pieces)
    regex = re.compile((re.escape(f"{root}/") if root else "") + text if isinstance(of, str) else f"(?:.*/)?{text}")
    if tokens_of(re.sub("[:@][^/]*$", "", field.name), r"\*").count("*") > regex.groups:
        rule = f"a * of its name stands for what that of of= stood for, and {reprlib.repr(of)} has {regex.groups}"
        rule += "; with names in a list there is one, the last step of each. \\* is a * of a name itself"
        raise OptionError(f"Field({field.name!r}): {rule}")
    steps, last = re.split("[:@]", field.name)[0].split("/"), pattern.rpartition("/")[2]
    path = "/".join("*" if step == last else step for step in steps)
    is_all = last == "*" or ("*" in last and path.count("*") == path.split("/").count("*"))
    is_all = is_all and regex.groups == 1 and "\\" not in path
    return changed(field, _beside=SiblingPattern(regex, path if is_all else "", field.name))


def _piece_regex(piece: str) -> str:
    """Return a regular expression that matches a piece of a pattern, as a pattern or literally."""
    return f"(?:{fnmatch.translate(as_pattern(piece))[4:-3]}|{re.escape(piece)})"


def columns_wanted(field: Field, width: int) -> NDArray[np.int32]:
    """Return the position of each column of a matrix among the selected ones; -1 for the others."""
    try:
        ((wanted, _),) = axes_taken((width,), slice(None) if field.columns is None else field.columns)
    except OptionError as error:
        raise OptionError(f"Field({field.name!r}): {error}") from None
    places = np.full(width, -1, dtype=np.int32)  # int32 halves the bytes, all of which are read for each row
    places[wanted] = np.arange(len(wanted))
    return places


# --- combinations of options, kinds of fields and kinds of samples

_RAGGED = ("ragged=", "Ragged(crop=)", "Ragged(pad_value=)")
_PLACED = tuple(f"Take({name}=)" for name in TAKE_OPTIONS)
_NAMED = "columns= of names"
_ARRAYS = f"ragged={ARRAYS!r}"
_EACH = (_ARRAYS, "a part of an axis", "lookup= of rows", "lookup= of several rows")
"""Names of special cases of options."""

_TAKEN: dict[str, tuple[str, tuple[str, ...]]] = {
    "sparse": ("rows of a sparse matrix", ("dtype=", "normalize=", "columns=", "ragged=", "file=", "lookup=")),
    "values": ("values of variable length with ragged=", ("dtype=", "normalize=", "missing=", *_RAGGED)),
    "images": (
        "encoded images",
        ("normalize=", "decode=", "ragged=", "file=", "lookup=", "Take(steps=)", "Take(at=)", "Take(pad=)"),
    ),
    "objects": ("whole objects with ragged=", ("dtype=", "normalize=", "missing=", "columns=", _NAMED, *_RAGGED)),
    "attributes": ("an attribute with ragged=", ("dtype=", "normalize=", *_RAGGED)),
    "once": (
        "an attribute, a single value, or texts or values of variable length of an object",
        ("dtype=", "normalize=", "missing=", "take='all'"),
    ),
}
"""Kinds of fields: what each is called, and the options that it accepts; all others are refused."""

_CLASHES: tuple[tuple[str, str, tuple[str, ...], str], ...] = (
    (
        "decode=",
        "whole images",
        ("columns=", _NAMED, "missing=", "take='all'", "dtype="),
        "; cut or cast in sample_transform=",
    ),
    (
        "decode=",
        "one image a sample",
        ("lookup= of several rows",),
        "; lookup= of row numbers gives each sample an image, and Sequences(..., of=Bounds(...)) several images",
    ),
    ("lookup=", "something else for each sample", ("take='all'", *_PLACED), ""),
    ("take='all'", "the whole dataset", ("columns=", _NAMED), ""),
    (
        _ARRAYS,
        "whole arrays, or one place of some axes, columns=(0, ...)",
        ("lookup= of rows", "take='all'", "Ragged(crop=)", "a part of an axis", *_PLACED),
        "",
    ),
)
"""An option, what it accepts, the options that it excludes, and an alternative."""


def options_of(field: Field) -> set[str]:
    """Return the options of a field that have values."""
    ragged, columns = field.ragged, field.columns
    options = {f"{name}=": getattr(field, name) for name in ("columns", "dtype", "file", "lookup", "ragged", "missing")}
    options |= {_NAMED: field.members}
    options |= {"decode=": field.decode, "normalize=": field.normalize, "take='all'": field.repeat}
    options |= {f"Take({name}=)": getattr(field.take, name) for name in TAKE_OPTIONS}
    options |= {
        "a part of an axis": any(
            isinstance(one, (slice, list)) for one in (columns if isinstance(columns, tuple) else [columns])
        ),
        "lookup= of rows": field.lookup is not None and not field.names_objects,
        "lookup= of several rows": isinstance(field.lookup, Stretches),
        _ARRAYS: field.has_own_shape,
        "Ragged(crop=)": ragged and ragged.crop,
        "Ragged(pad_value=)": ragged is not None and ragged.pad_value != 0,
    }
    return {name for name, value in options.items() if is_given(value)}


def check_options(kind: str, field: Field, samples: object, path: str) -> None:
    """Raise if a kind of field does not accept an option, or allows no samples of several rows."""
    (what, taken), where = _TAKEN[kind], f"{path!r}: field {field.name!r}"
    if wrong := sorted(options_of(field) - {*taken, *_EACH}):
        problem = f"{', '.join(wrong)} is not for {what}, but {', '.join(taken)} are"
        raise OptionError(f"{where}: {problem}; leave it out, and change the batch in batch_transform=")
    is_one = samples is None or field.is_looked_up or isinstance(samples, (Objects, Rows))
    is_one = is_one or (isinstance(samples, Table) and samples.length is None and samples.axis is None)
    if kind in ("sparse", "values") and not is_one:
        problem = f"a sample of {type(samples).__name__}(...) has several rows, and {what} come one a sample"
        raise OptionError(
            f"{where}: {problem}; samples of one row have them, such as Table(row=...) without length=; "
            "windows of numbers need no ragged=, and whole sequences are samples of Objects(...)"
        )
