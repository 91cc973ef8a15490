"""Parse the user's arguments: sources, fields by name, and the structure of a sample.

``"x"`` requests one tensor, ``["x", "y"]`` a tuple, ``{"image": "x"}`` a dict. A name is the path of a dataset,
``"group/x"``, with a compound member after a colon: ``"obs:bulk_labels"``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import glob
import operator
import os
import re
import reprlib
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from fractions import Fraction
from types import EllipsisType
from typing import Annotated, Any, Literal, NamedTuple, TypedDict, Unpack, cast, get_type_hints

import h5py
import numpy as np
from h5py import h5f, h5fd
from numpy.typing import NDArray

from h5stream.base.names import Within, as_pattern, braces_in, parted, quoted, tokens_of, unquoted
from h5stream.base.texts import check_ordered, did_you_mean, listed, names_in
from h5stream.errors import OptionError, SourceNotFoundError
from h5stream.samples.boxes import ROWS
from h5stream.samples.columns import FROM_NO_FILE, VirtualField
from h5stream.samples.kinds import Objects, Pad, Rows, checked_pad, checked_steps, integer
from h5stream.samples.packing import Missing, missing_of
from h5stream.samples.ragged import (
    ARRAYS,
    STACKED,
    Crop,
    Form,
    Normalization,
    Ragged,
    changed,
    normalization,
)
from h5stream.samples.segments import RowLists, Stretches, as_array, in_memory, renamed, row_lists
from h5stream.samples.space import fraction_of
from h5stream.samples.table import ROW, Table
from h5stream.storage.decode.columns import ColumnNames, Columns, Mask, axes_taken
from h5stream.storage.decode.images import FORMATS, Format
from h5stream.storage.source.remote import matches
from h5stream.storage.source.stores import is_address, parts_of


class OldField(TypedDict, total=False):
    """Former names of arguments of `Field`, annotated with their replacements."""

    members: Annotated[Sequence[str], "columns=[NAMES]"]

    steps: Annotated[Any, "take=STEPS, or take=Take(STEPS, ...)"]
    at: Annotated[str, "take=Take(at=...)"]
    pad: Annotated[Pad, "take=Take(pad=...)"]
    axis: Annotated[int | Literal["rows"] | None, "take=Take(axis=...)"]
    scale: Annotated[Any, "take=Take(scale=...)"]
    repeat: Annotated[bool, "take='all'"]
    rows: Annotated[Any, "lookup=..."]
    names: Annotated[Any, "lookup=..."]
    max_length: Annotated[int | None, "ragged=Ragged(FORM, crop=Crop(ROWS, at='start'))"]
    crop: Annotated[Crop | None, "ragged=Ragged(FORM, crop=Crop(...))"]
    pad_value: Annotated[float, "ragged=Ragged('pad', pad_value=...)"]
    length: Annotated[str, "decode=(FORMAT, LENGTH)"]
    mean: Annotated[Any, "normalize={'mean': ...}"]
    std: Annotated[Any, "normalize={'std': ...}"]
    factor: Annotated[float | None, "normalize={'factor': ...}"]
    nan: Annotated[float | None, "normalize={'nan': ...}"]
    normalise: Annotated[Mapping[str, Any] | None, "normalize=..."]


_TOOK = ("steps", "at", "axis", "scale", "pad")
_SCALED = ("mean", "std", "factor", "nan")


def _scales(scale: Any) -> tuple[Fraction, ...]:
    """Return scales as fractions."""
    if scale is None:
        return ()
    check_ordered("Take: scale=", scale)
    try:
        every = tuple(scale) if isinstance(scale, Iterable) else (scale,)
        scales = tuple(fraction_of(value) for value in every)
    except (TypeError, ValueError, OverflowError):
        scales = ()
    if not scales or min(scales) <= 0:
        raise OptionError(f"Take: scale= is a number above 0, or one for each axis of a box, not {scale!r}")
    return scales


@dataclass(frozen=True, slots=True)
class Take:
    """The part of a dataset that a sample takes, if it differs from ``samples=``.

    Parameters
    ----------
    steps : range or sequence of int, optional
        For ``samples=Sequences(...)`` or ``Table(...)``: the rows to take, counted from the row at which a sample
        begins. The field then has one more axis, that of the steps.
    at : str, optional, keyword-only
        For ``samples=Table(...)``: the column with the row that `steps` count from, instead of ``"row"``.
    axis : int or "rows", optional, keyword-only
        The axis of this dataset that samples lie along, if it is not the one of ``samples=``. ``"rows"`` takes the
        whole row of axis 0 that a sample belongs to, for example the parameters of a simulation.
    scale : number, fraction, or one for each axis of a box, optional, keyword-only
        Elements of this dataset per element of the other fields: 0.5 for a label of half the resolution, 1 / 3000 for a
        label every 30 seconds beside a recording of 100 values per second. Fractions and whole numbers are exact. A
        float stands for the ratio of small whole numbers that it is the nearest float to, as 1 / 3000 and 0.1 are, or,
        if there is none, for its own value.
    pad : str or number, optional, keyword-only
        What fills steps or boxes outside of the data, if it is not what ``samples=`` says, which must have a ``pad=``
        too: ``"edge"``, ``"zeros"`` or a number, for example ``"edge"`` for an image, -100 for its label.

    Raises
    ------
    OptionError
        If an argument is none of these.

    Examples
    --------
    >>> Take(range(-1, 3), pad="edge").steps
    (-1, 0, 1, 2)
    """

    steps: Any = None
    _: dataclasses.KW_ONLY
    at: str = ""
    axis: int | Literal["rows"] | None = None
    scale: Any = None
    pad: Pad = None

    def __post_init__(self) -> None:
        checked = {
            "steps": None if self.steps is None else checked_steps(self.steps),
            "at": "" if self.at == ROW else self.at,
            "axis": self.axis if self.axis is None or self.axis == ROWS else integer(self.axis, "axis"),
            "scale": _scales(self.scale),
            "pad": checked_pad("Take", self.pad),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)


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
        batch's device. Of opaque bytes it is the type that they are, bfloat16 or a float of 8 bits, as h5py stores
        arrays of ml_dtypes.
    take : range or sequence of int, "all" or Take, optional, keyword-only
        With ``samples=Sequences(...)`` or ``Table(...)``: the rows that a sample takes, counted from the row at which
        it begins. They are an axis of the sample, also the single row of ``take=[0]``. A `Take` says what else differs
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
        `normalize` gets the numbers that come of this. Objects that lack the dataset are NaN with
        ``Objects(..., missing="fill")``.
    **old
        Arguments of earlier versions, which warn and say what to write.

    Raises
    ------
    OptionError
        If the name is not a name, `columns` are neither a slice nor numbers, or options contradict each other.
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
    take: Take = Take()
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
        name: Any,
        *,
        columns: slice | Sequence[int] | Sequence[str] | tuple[Any, ...] | str | None = None,
        dtype: Any = None,
        take: Take | Iterable[int] | Literal["all"] | None = None,
        file: Any = None,
        lookup: Any = None,
        ragged: Form | Ragged | None = None,
        decode: Format | tuple[Format, str] | Literal[""] | None = "",
        normalize: Mapping[str, Any] | None = None,
        missing: Missing | None = None,
        **old: Unpack[OldField],
    ) -> None:
        if old:
            new_options = {"take": take, "lookup": lookup, "ragged": ragged, "decode": decode}
            new_options |= {"normalize": normalize, "columns": columns}
            take, lookup, ragged, decode, normalize, columns = _with_new_names(new_options, old).values()
        named, of = named_by(name), ""
        if named is not None and named[2]:
            of, name, _ = named
        if not isinstance(name, str) or not name.strip("/"):
            raise OptionError(f"a field's name is the path of a dataset, not {name!r}")
        if isinstance(take, str) and take != "all":
            raise OptionError(f"Field({name!r}): take= is steps, such as range(16), 'all' or a Take, not {take!r}")
        format_, length = decode if isinstance(decode, tuple) and len(decode) == 2 else (decode or "", "")
        values = {
            "_file": of,
            "_beside": None,
            "name": name,
            "columns": _columns(columns),
            "members": (),
            "dtype": dtype,
            "take": take if isinstance(take, Take) else Take(None if isinstance(take, str) else take),
            "repeat": isinstance(take, str),
            "file": ()
            if file is None
            else tuple(path for one in several(file, "Field(file=)") for path in paths_of(one, None)),
            "lookup": _checked_lookup(name, lookup),
            "decode": _decode(name, format_, length, ragged),
            "length": length,
            "normalize": normalization(name, normalize),
            "missing": () if missing is None else missing_of(name, missing),
        }
        for key, value in values.items():
            object.__setattr__(self, key, value)
        object.__setattr__(self, "ragged", self._ragged_form(ragged))
        present = options_of(self)
        for option, what, refused, way_out in _CLASHES:
            if option in present and not present.isdisjoint(refused):
                rule = f"{option} takes {what}, without {', '.join(refused)}{way_out}"
                raise OptionError(f"Field({name!r}): {rule}")

    def __repr__(self) -> str:
        arguments = {
            "columns": _columns_argument(self.columns),
            "dtype": self.dtype,
            "take": "all" if self.repeat else None if self.take == Take() else self.take,
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
        """Return a name with each * replaced by the text that it matches in a group's path."""
        match = self.of.fullmatch(group)
        stood = iter(match.groups() if match else ())
        *before, last = [*tokens_of(name, r"\*"), ""] if name.endswith("*") else tokens_of(name, r"\*")
        literal = "".join(next(stood, "*") if one == "*" else unquoted(one) for one in before)
        return Within(literal, last)


def beside(field: Field, of: str | Sequence[str], root: str) -> Field:
    """Return a field that can replace the * of its absolute name for each object of a pattern or a list."""
    count = tokens_of(field.name, r"\*").count("*")
    if not count or not field.name.startswith("/") or field.names_objects:
        return field
    pattern = "/".join(one for one in of.split("/") if one not in ("", ".")) if isinstance(of, str) else "*"
    pieces = re.findall(r"\[[^]]+\]|\*|\\.|[^*[\\]+|.", pattern, re.DOTALL)
    text = "".join("([^/]*)" if one == "*" else _piece_regex(one) for one in pieces)
    regex = re.compile((re.escape(f"{root}/") if root else "") + text if isinstance(of, str) else f"(?:.*/)?{text}")
    if count > regex.groups:
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


def _checked_lookup(name: str, lookup: Any) -> Any:
    """Check `lookup`, and return it in its normal form."""
    if lookup is None or (isinstance(lookup, str) and not braces_in(name)):
        return lookup
    values = lookup.names[0] if in_memory(lookup) else lookup
    if isinstance(values, Sized) and getattr(values, "ndim", None) != 0 and not len(values):
        rule = (
            "lookup= is empty and so names no sample, and there is nothing to read: leave this field, or this dataset"
        )
        raise OptionError(f"Field({name!r}): {rule}, out")
    is_named, why, itself = braces_in(name) > 0, "", r"; \{} is a {} of the name itself"
    if callable(lookup) or isinstance(lookup, Stretches):
        if is_named:
            what = "a function as" if callable(lookup) else f"{type(lookup).__name__}(...) as"
            why = f"{what} lookup= gives rows of one dataset, and {{}} takes names{itself}"
    elif is_named:
        lookup = lookup if isinstance(lookup, str) else [*names_in(f"Field({name!r}): lookup=", lookup)]
        wrong = [one for one in lookup if not isinstance(one, str) or not one]
        if wrong:
            why = f"lookup= takes a name for each sample, or a dataset of names, not {wrong[0]!r}"
    elif (lists := row_lists(lookup, f"Field({name!r})")) is not None:
        return lists
    else:
        lookup = as_array(lookup)
        if lookup.ndim != 1 or (lookup.size and lookup.dtype.kind not in "iu"):
            why = "lookup= takes a dataset's name, or one row number for each sample, or a list of them, not "
            why += f"{lookup.dtype} {lookup.shape}. "
            why += "Names of objects need {} in the field's name: 'images/{}'"
        else:
            lookup = lookup.astype(np.int64)
    if why:
        raise OptionError(f"Field({name!r}): {why}")
    return lookup


def ragged_by_default(lookup: Any) -> Form | Literal["stacked"] | None:
    """Return the default form of the rows that `lookup` gives a sample; None if a sample is one row."""
    if isinstance(lookup, RowLists):
        return STACKED if lookup.are_even else "packed"
    return "packed" if isinstance(lookup, Stretches) else None


def _with_new_names(options: dict[str, Any], old: Mapping[str, Any]) -> dict[str, Any]:
    """Merge options under their former names into the new ones, with a warning for each."""
    replacements = {name: hint.__metadata__[0] for name, hint in get_type_hints(OldField, include_extras=True).items()}
    for name in old:
        if name not in replacements:
            raise TypeError(f"Field has no argument {name}=.{did_you_mean(name, options)}")
        warning = f"Field({name}=) will be removed in 0.4: write {replacements[name]}"
        warnings.warn(warning, DeprecationWarning, stacklevel=3)
    used = {name: value for name, value in old.items() if is_given(value)}
    clashes = (("repeat", _TOOK), ("rows", ("names",)), ("max_length", ("crop",)), ("normalise", _SCALED))
    for name, others in clashes:
        if name in used and (clash := used.keys() & others):
            raise OptionError(f"Field: {name}= and {min(clash)}= do not go together; give one of them")
    took, scaled = ({key: used[key] for key in keys if key in used} for keys in (_TOOK, _SCALED))
    form = {key: used[key] for key in ("crop", "pad_value") if used.get(key)}
    if "max_length" in used:
        form["crop"] = Crop(used["max_length"], at="start")
    meant = {
        "take": "all" if "repeat" in used else Take(**took) if took else None,
        "lookup": used.get("rows", used.get("names")),
        "normalize": used.get("normalise", scaled or None),
        "columns": _members(used["members"]) if "members" in used else None,
    }
    if wrong := [key for key, value in meant.items() if value is not None and options[key] is not None]:
        raise OptionError(f"Field: {wrong[0]}= was given, and so was an old name of it; leave out the old one")
    meant["ragged"] = Ragged(options["ragged"] or "packed", **form) if form else None
    meant["decode"] = (options["decode"], used["length"]) if "length" in used else None
    return {key: value if meant[key] is None else meant[key] for key, value in options.items()}


def _decode(name: str, decode: Any, length: str, ragged: str | Ragged | None) -> str:
    if decode and decode not in FORMATS:
        raise OptionError(f"Field({name!r}): decode= is {', '.join(map(repr, FORMATS))}, not {decode!r}")
    if length and not decode:
        raise OptionError(f"Field({name!r}): decode= is a format, or (format, {length!r}), where that says how long")
    if decode and isinstance(ragged, str) and ragged != "list":
        raise OptionError(f"Field({name!r}, decode={decode!r}): ragged= is 'list' for images, not {ragged!r}")
    return str(decode)


def not_ragged(name: str) -> OptionError:
    """Return the error for ragged options of other fields."""
    kinds = "which lookup=Bounds(...), Lengths(...), Between(...) or lists of rows say, for whole objects, "
    kinds += "samples=Objects(...), and"
    kinds = f"samples of unlike lengths, {kinds} for numbers of variable length"
    return OptionError(f"Field({name!r}): ragged= is for {kinds}")


BY_NAME, BY_PLACE = "by name", "by place"


def _members(members: Any) -> list[str]:
    """Check the names in the former argument `members`."""
    names = [members] if isinstance(members, str) else [*names_in("Field: members=", members)]
    if wrong := [one for one in names if not isinstance(one, str) or not one]:
        raise OptionError(f"Field: members= takes names of members of a compound, not {wrong[0]!r}")
    return names


def _columns(columns: Any) -> Columns:
    """Parse the argument `columns` of `Field`."""
    if isinstance(columns, str) and columns in (BY_NAME, BY_PLACE):
        return ColumnNames(by_place=columns == BY_PLACE)
    if not isinstance(columns, (str, bytes, tuple, slice, dict)) and (names := _column_names(columns)):
        if len(set(names)) < len(names):
            raise OptionError(f"columns= names a column twice, of {reprlib.repr(names)}; name each once")
        return ColumnNames(names)
    if not isinstance(columns, tuple):
        return columns if columns is None else _axis_index(columns)
    if columns and all(isinstance(index, (int, np.integer)) for index in columns):
        numbers = ", ".join(map(str, columns))
        meanings = f"columns=[{numbers}] takes these columns, and columns=({numbers}, ...) what x[i, {numbers}] is"
        raise OptionError(f"columns={columns!r} is a tuple of numbers, which may mean two things: {meanings}")
    return tuple(_axis_index(index, is_one=True) for index in columns)


def _columns_argument(columns: Columns) -> Any:
    """Return columns in the form of the argument."""
    if not isinstance(columns, ColumnNames):
        return columns
    return BY_PLACE if columns.by_place else [*columns.names] or BY_NAME


def _column_names(columns: Any) -> tuple[str, ...]:
    """Return the names in a list of column names; nothing for numbers or anything else."""
    if not isinstance(columns, Iterable) and not _is_array(columns):
        return ()
    check_ordered("columns=", columns)
    if isinstance(columns, Iterator):
        return ()
    names = names_in("columns=", columns) if np.ndim(columns) == 1 or not _is_array(columns) else ()
    if (
        wrong := [one for one in names if not isinstance(one, str)]
        if any(isinstance(one, str) for one in names)
        else []
    ):
        raise OptionError(f"columns= takes names alone, or numbers alone, not {wrong[0]!r} among names")
    return () if names and not isinstance(names[0], str) else names


def _axis_index(index: Any, *, is_one: bool = False) -> Any:
    """Parse an index of one axis: a slice, numbers, a mask, or if it `is_one` of several axes, a single number."""
    check_ordered("columns=", index)
    if isinstance(index, (slice, EllipsisType)):
        return index
    with contextlib.suppress(ValueError, TypeError):  # rows of different lengths, or no numbers
        flat = np.asarray(index)
        if flat.dtype == bool and flat.ndim == 1 and len(flat):
            return Mask(flat)
        if is_one and flat.ndim == 0 and flat.dtype != bool:
            return operator.index(index)
        if not any(isinstance(one, (bool, np.bool_)) for one in index):
            return [operator.index(one) for one in index]
    rule = (
        "one column is [3], or (3, ...) without its axis, and a tuple has an index for each axis of a row. A list of "
    )
    rule += "texts names columns; 'by name' lines those of several files up, and 'by place' takes them as they are"
    raise OptionError(f"columns= takes a slice or column numbers, not {reprlib.repr(index)}; {rule}")


# Open h5py objects are accepted as well, in place of their names; h5py has no types to annotate that.
FieldLike = str | Field | VirtualField
Fields = FieldLike | Sequence[FieldLike] | Mapping[str, FieldLike] | None
Source = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleShape:
    """The structure of a sample."""

    kind: str  # `"one"`, `"tuple"` or `"dict"`
    keys: tuple[str, ...]  # a key for each entry: the dict's key, or the field's name
    fields: tuple[Field | VirtualField, ...]  # the entries, in the user's order

    def inside(self, group: str) -> SampleShape:
        """Return the structure with all fields in a group."""
        inner = (field.inside(group) if isinstance(field, Field) else field for field in self.fields)
        return replace(self, fields=tuple(inner))

    @property
    def by_name(self) -> list[int]:
        """The indices of fields with ``columns="by name"``."""
        every = enumerate(self.fields)
        return [k for k, one in every if isinstance(one, Field) and one.columns == ColumnNames()]

    def with_columns(self, columns: Mapping[int, tuple[str, ...]]) -> SampleShape:
        """Return the structure with column names for fields with ``columns="by name"``."""
        places = set(self.by_name) & columns.keys()
        named = (
            changed(one, columns=ColumnNames(columns[k])) if k in places and isinstance(one, Field) else one
            for k, one in enumerate(self.fields)
        )
        return replace(self, fields=tuple(named))


def sample_shape(fields: FieldLike | Sequence[FieldLike] | Mapping[str, FieldLike]) -> SampleShape:
    """Parse the argument ``fields``."""
    kind, names = "tuple", cast(Any, fields)
    if isinstance(fields, (str, Field, *FROM_NO_FILE)) or named_by(fields) is not None:
        kind, names = "one", [fields]
    elif isinstance(fields, Mapping):
        kind, names = "dict", [*fields.values()]
    elif not isinstance(names, Iterable) and not _is_array(names):
        raise OptionError(f"fields= takes a name, a Field, a sequence or a mapping of them, not {fields!r}")
    else:
        names = names_in("fields=", names)
    entries = tuple(Field(one) if isinstance(one, str) or named_by(one) else one for one in names)
    if wrong := [one for one in entries if not isinstance(one, (Field, *FROM_NO_FILE))]:
        raise OptionError(f"a field is a name or h5stream.Field(...), not {wrong[0]!r}")
    if not entries:
        raise OptionError("fields= is empty; name at least one dataset, or leave it out for all at the file's root")
    keys = tuple(map(str, fields)) if isinstance(fields, Mapping) else tuple(one.name for one in entries)
    return SampleShape(kind=kind, keys=keys, fields=entries)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The parsed source and fields of a user."""

    paths: tuple[str, ...]  # the files, in order
    group: str  # the group in which fields are looked up, and whose datasets are the default; empty for the root
    shape: SampleShape | None  # the structure of the fields; None for the default fields
    of_pattern: tuple[bool, ...] = ()  # for each file, whether it matched a pattern


def read_request(source: Source, fields: Fields) -> Request:
    """Parse the arguments for the source and the fields."""
    sources = several(source, "a source")
    named = [named_by(one) for one in sources]
    every = [(one, opened, paths_of(one, opened)) for one, opened in zip(sources, named, strict=True)]
    paths = [path for *_, matched in every for path in matched]
    of_pattern = tuple(
        opened is None and (is_folder(one) or matched != [checked_path(one)])
        for one, opened, matched in every
        for _ in matched
    )
    if not paths:
        raise SourceNotFoundError("no file was named: the source is empty")
    (name, is_dataset), *others = {opened[1:] if opened else ("", False) for opened in named}
    if others or (is_dataset and len(set(paths)) < len(paths)):
        problem = "several h5py objects are a source if they lie at one place, each in a file of its own"
        raise OptionError(f"{problem}; for fields of one file give the file, and fields=[...]")
    if is_dataset and fields is not None:
        raise OptionError(f"the source is the dataset {name!r}, so it is the field; leave out fields=, or give a file")
    if is_dataset:
        return Request(paths=tuple(paths), group="", shape=sample_shape(name), of_pattern=of_pattern)
    shape = None if fields is None else sample_shape(fields)
    for one in shape.fields if shape else ():
        of = one._file if isinstance(one, Field) else ""
        if of and not any(os.path.exists(path) and os.path.samefile(of, path) for path in paths):
            problem = f"the field {one.name!r} is a dataset of {of!r}, which is not among the files that are opened"
            raise OptionError(f"{problem}; all fields come from the source")
    return Request(paths=tuple(paths), group=name, shape=shape, of_pattern=of_pattern)


# --- sources: paths, patterns, and open h5py objects in place of their names


_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
_SCHEMES = ("s3", "gs", "az", "https", "hf")

_WRITE_THEM = "For arrays in memory take torch's DataLoader over a TensorDataset, or write them to a file first"

Named = tuple[str, str, bool]
"""The file of an open h5py object, its path in the file, empty for the file itself, and whether it is a dataset."""


def named_by(source: object) -> Named | None:
    """Return the names of an open h5py file, group or dataset; None for anything else."""
    if not isinstance(source, (h5py.Group, h5py.Dataset)):
        return None
    if not source:
        raise OptionError(f"{source!r} is closed, so that it no longer says which file it is of; give the file's path")
    path = _path_of(source.file)
    access = source.file.id.get_access_plist()
    in_memory = access.get_driver() == h5fd.CORE and bool(source.file.id.get_intent() & h5f.ACC_RDWR)
    if not os.path.isfile(path) or (in_memory and not access.get_fapl_core()[1]):  # its data stay in memory
        raise OptionError(f"{source!r} is not of a file on disk, and h5stream reads the file itself; give a path")
    if source.name is None or source.name not in source.file:
        raise OptionError(f"{source!r} has no name in {path!r}, so that it cannot be found there; give it one")
    return path, source.name.strip("/"), isinstance(source, h5py.Dataset)


def _path_of(file: h5py.File) -> str:
    """Return the path under which a file was opened, or its current path if that no longer leads to the file."""
    path = os.fsdecode(file.filename)
    if file.id.get_access_plist().get_driver() == h5fd.SEC2:
        descriptor = file.id.get_vfd_handle()
        if not os.path.exists(path) or not os.path.samestat(os.stat(path), os.fstat(descriptor)):
            return os.path.realpath(f"/proc/self/fd/{descriptor}")
    return path


def paths_of(source: Any, opened: Named | None) -> list[str]:
    """Return the paths of one source; those of a pattern are sorted."""
    if opened is not None:
        return [opened[0]]
    if is_folder(source):
        return _files_in(os.fsdecode(source))
    path = checked_path(source)
    is_far = is_address(path)
    if not (glob.has_magic(path) or "\\" in path) or (not is_far and os.path.exists(path)):
        return [path]
    every = matches(path) if is_far else sorted(glob.glob(_as_glob(path), recursive=True))
    if not every and glob.has_magic(as_pattern(path)):
        raise SourceNotFoundError(f"no {'object' if is_far else 'file'} matches {path!r}", file=path)
    return every or [path]


ENDINGS = (".h5", ".hdf5", ".hdf", ".he5", ".h5ad", ".nc", ".nc4", ".nwb", ".mat")
"""Endings of HDF5 file names, which select the files of a folder."""


def is_folder(source: object) -> bool:
    """Return whether a source is a folder on a disk, or an address of a folder or bucket that ends with a slash."""
    if not isinstance(source, str | bytes | os.PathLike):
        return False
    path = os.fsdecode(source)
    if is_address(path):
        return path.endswith("/") and not path.startswith("http") and bool(path.partition("://")[2].strip("/"))
    return os.path.isdir(path) or (path.startswith("~") and os.path.isdir(os.path.expanduser(path)))


def _files_in(folder: str) -> list[str]:
    """Return the sorted paths of the HDF5 files in a folder, without those in its subfolders."""
    if is_address(folder):
        every = matches(f"{quoted(folder)}*")
    else:
        folder = folder if os.path.isdir(folder) else os.path.expanduser(folder)
        paths = (os.path.join(folder, name) for name in sorted(os.listdir(folder)))
        every = [path for path in paths if os.path.isfile(path)]
    matching = [path for path in every if path.lower().endswith(ENDINGS) and not os.path.basename(path).startswith(".")]
    if not matching:
        problem = f"no file in the folder {folder!r} ends in {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}"
        raise SourceNotFoundError(
            f"{problem}; name files, or a pattern such as {os.path.join(folder, '*')!r}", file=folder
        )
    return matching


def _as_glob(path: str) -> str:
    """Return a pattern for `glob`; steps that are names of existing folders are taken literally."""
    done, *steps = path.split("/")
    is_literal = os.path.lexists(done) if done else True
    done = glob.escape(done) if is_literal else as_pattern(done)
    for step in steps:
        plain, below = f"{done}/{glob.escape(step)}", f"{done}/{as_pattern(step)}"
        # Below a pattern, a name without a character class matches itself.
        if plain == below or step in ("", "**"):
            done = below
        elif is_literal:
            is_literal = bool(glob.glob(plain))
            done = plain if is_literal else below
        else:
            done = plain if "[" in step and glob.glob(plain, recursive=True) else below
    return done


def checked_path(source: object) -> str:
    """Return a source as a path, with a leading ``~`` expanded; raise `OptionError` if it is not a path."""
    if isinstance(source, str | bytes | os.PathLike):
        path = os.fsdecode(source)
        if is_address(path):
            inside = f"{path.rstrip('/')}/" if path.rpartition("://")[2] else f"{path}bucket/"
            if not parts_of(path)[1] or path.endswith("/"):
                others = (
                    "" if path.startswith("http") else f", or all with '{inside}' or a pattern such as '{inside}*.h5'"
                )
                problem = f"{path!r} is a bucket or a folder, not an object; name one, such as '{inside}a.h5'"
                raise OptionError(problem + others)
            if {"", ".", ".."} & {*parts_of(path)[1].removeprefix("/").split("/")}:
                problem = (
                    f"{path!r} has an empty name between its slashes, or '.' or '..', by which obstore reads no object"
                )
                raise OptionError(f"{problem}; copy it under another key")
            return path
        address = _ADDRESS.match(path)
        if address and not os.path.exists(path):
            near = re.sub(r"'(\w+)'", r"'\1://'", did_you_mean(address[1], _SCHEMES))
            others = f"s3://, gs://, az://, https:// and hf:// are.{near}"
            way_out = "leave out 'file://'" if address[1] == "file" else others
            raise OptionError(f"{path!r} is an address that h5stream does not read: {way_out}")
        return os.path.expanduser(path) if path.startswith("~") and not os.path.exists(path) else path
    kind = f"{type(source).__module__.split('.')[0]}.{type(source).__name__}"
    if _is_array(source):
        raise OptionError(f"a source is a path, not {kind}. {_WRITE_THEM}")
    if callable(getattr(source, "read", None)):
        raise OptionError(f"a source is a path, not an open stream ({kind}); give the path of the file")
    raise OptionError(f"a source is a path, a pattern or several of them, not {repr(source)[:200]}")


def several(source: Any, what: str) -> list[Any]:
    """Return a list of sources: the items of a sequence or an array, or the source itself."""
    one = isinstance(source, (str, bytes, os.PathLike, h5py.Group, h5py.Dataset))
    if _is_array(source) and not one:
        one = np.asarray(source).dtype.kind not in "OSUT"
    if one or callable(getattr(source, "read", None)) or not (isinstance(source, Iterable) or _is_array(source)):
        return [source]
    if isinstance(source, dict):
        raise OptionError(f"a source is a path or several of them, not a dict of {len(source)}. {_WRITE_THEM}")
    return listed(what, source)


def _is_array(value: object) -> bool:
    return hasattr(value, "__array__") or hasattr(value, "__array_interface__")


# --- combinations of options, kinds of fields and kinds of samples

_RAGGED = ("ragged=", "Ragged(crop=)", "Ragged(pad_value=)")
_PLACED = tuple(f"Take({name}=)" for name in _TOOK)
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


def is_given(value: object) -> bool:
    """Return whether an option has a value other than its default."""
    return value is not None and value is not False and not (isinstance(value, (str, tuple)) and not value)


def options_of(field: Field) -> set[str]:
    """Return the options of a field that have values."""
    ragged, columns = field.ragged, field.columns
    options = {f"{name}=": getattr(field, name) for name in ("columns", "dtype", "file", "lookup", "ragged", "missing")}
    options |= {_NAMED: field.members}
    options |= {"decode=": field.decode, "normalize=": field.normalize, "take='all'": field.repeat}
    options |= {f"Take({name}=)": getattr(field.take, name) for name in _TOOK}
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
        raise OptionError(f"{where}: {problem}; samples of one row have them, such as Table(row=...) without length=")
