"""What each sample must be, read with h5py and cut with NumPy: nothing here plans, shares or skips any reading."""

import zlib
from fractions import Fraction
from pathlib import Path
from typing import Any

import h5py
import imagecodecs
import numpy as np

from .calls import built, is_call
from .spaces import Part, Sample, parts_of, row_count, samples_of, steps_of
from .stored import RefusalError, refuse_unreadable, small_float


class Crops:
    """All rows of a sample, any stretch of which is right: `length` rows that follow one another."""

    def __init__(self, rows: np.ndarray, length: int) -> None:
        self.rows, self.length = rows, length


class Model:
    """The samples of a case, each a dict of what its fields must be."""

    def __init__(self, case: dict[str, Any], folder: Path) -> None:
        self.case, self.folder, self.fields = case, folder, case["fields"]
        self.paths = [folder / name for name in case["source"]]
        self.others: dict[str, list[Part]] = {}
        self.firsts: dict[str, Part] = {}
        tree = case.get("samples")
        self.options = tree["options"] if tree else {}
        self.kind = tree["call"] if tree else "rows"
        self.axis = self.options.get("axis") or 0
        self.length = self._length(tree)
        self.parts: list[Part] = []
        self.is_alone = False
        self.samples: list[Sample] = samples_of(self)
        self.is_drawn = self.options.get("starts") == "random" or (
            self.kind == "Boxes" and self.options.get("at", "random") == "random"
        )

    def _length(self, tree: Any) -> int | None:
        if self.kind == "Sequences":
            return tree["args"][0] if tree["args"] else None
        return self.options.get("length") if self.kind == "Table" else None

    def sample(self, number: int) -> dict[str, Any]:
        """Return what the fields of a sample must be."""
        return {name: self.value(tree, number) for name, tree in self.fields.items()}

    def answers(self) -> str:
        """Tell whether samples are "right", "refused" since one has no value that would be right, or "unknown"."""
        try:
            for number in range(len(self.samples)):
                self.sample(number)
        except RefusalError:
            return "refused"
        except Exception:  # h5stream must have refused the case before
            return "unknown"
        return "right"

    def value(self, tree: Any, number: int) -> Any:
        """Return what a field of a sample must be."""
        sample = self.samples[number]
        if is_call(tree, "SampleNumber"):
            return np.int64(number)
        if is_call(tree, "Values"):
            return np.asarray(tree["args"][0])[number]
        if is_call(tree, "Padding"):
            places = self.places(tree, sample)
            return np.array([not sample.first <= place < sample.end for place in places])
        name, options = (tree, {}) if isinstance(tree, str) else (tree["args"][0], tree["options"])
        if self._has_genes(name, sample.part) and isinstance(columns := options.get("columns"), list):  # by their names
            row = self._stored(name, {**options, "columns": None}, sample, number, tree)
            order = [*sample.part.file["var/_index"].asstr()]
            return row[[order.index(gene) for gene in columns]]
        found = self._aligned(name, self._stored(name, options, sample, number, tree), sample.part)
        if isinstance(found, (np.ndarray, np.void)):
            refuse_unreadable(found.dtype.base)
        if options.get("missing") is not None:
            is_there = has(sample.part, name)
            part = sample.part if is_there else self._first_with(name)
            found = self._unpacked(found, options, part.find(name)[0])
            found = found if is_there else np.full_like(found, np.nan)
        if options.get("ragged") or "crop" in options or options.get("max_length"):
            found = self._cropped(found, options)
        return self._arithmetic(found, options)

    @staticmethod
    def _has_genes(name: str, part: Part) -> bool:
        """Tell whether the columns of a field have names."""
        return name == "X" and isinstance(part.file.get("var/_index"), h5py.Dataset)

    def _aligned(self, name: str, value: Any, part: Part) -> Any:
        """Give what another file says of itself the meaning that it has in the first; refuse what has none there."""
        first = self.samples[0].part
        if part is first or "unlike" not in self.case.get("marks", ()) or part.is_attribute(name):
            return value
        owner, before = part.find(name)[0], first.find(name)[0]
        if self._has_genes(name, part):
            order, wanted = ([*one.file["var/_index"].asstr()] for one in (part, first))
            return value[[order.index(gene) for gene in wanted]]
        if isinstance(owner, h5py.Group):
            return value
        ours, theirs = meanings_of(owner), meanings_of(before)
        if ours and theirs and ours != theirs:
            labels = {number: label for label, number in ours.items()}
            if not {labels[number] for number in np.ravel(value).tolist()} <= set(theirs):
                raise RefusalError("enums whose labels differ")
            return np.vectorize(lambda number: theirs[labels[number]], otypes=[value.dtype])(value)
        if any(owner.attrs.get(one) != before.attrs.get(one) for one in ("units", "scale_factor", "add_offset")):
            raise RefusalError("numbers that have other units, or are packed in another way")
        if opaque_unit(owner) != opaque_unit(before):
            raise RefusalError("dates of other units")
        return value

    # --- one way of storing after the other --------------------------------------------------------------------

    def _stored(self, name: str, options: dict[str, Any], sample: Sample, number: int, tree: Any) -> Any:
        part = sample.part
        if part.is_attribute(name) or options.get("repeat"):
            return part.read(name)
        if "names" in options:
            return self._named(name, options, sample, number)
        if "rows" in options:
            return self._looked_up(name, options, sample, number)
        if "file" in options:
            part = self.elsewhere(options)[self.paths.index(Path(part.file.filename))]
        if self.kind == "Objects":
            return self._whole(part, name, options)
        if self.kind == "Boxes":
            return self._boxed(part.read(name), part.at(name).ndim, options, sample)
        if options.get("axis") == "rows":
            return chosen(part.read(name), options.get("columns"), [1])[0][sample.index]
        steps = self.places(tree, sample)
        if self.is_sparse(part, name):
            return self._stepped(lambda row: self._sparse(part, name, row, options), steps, sample, options)
        if "decode" in options:
            return self._stepped(lambda row: self._image(part, name, row, options), steps, sample, options)
        return self._taken(self._read(part, name, options), part.at(name).ndim, steps, sample, options)

    @staticmethod
    def _read(part: Part, name: str, options: dict[str, Any]) -> Any:
        """Read a dataset, or the members of it that a field asks for."""
        wanted = options.get("members")
        if not wanted or not part.is_numbered(name):
            return part.members(name, wanted) if wanted else part.read(name)
        values = part.read(name)
        return np.stack([values[one] for one in wanted], axis=-1)

    def _taken(self, values: np.ndarray, axes: int, steps: Any, sample: Sample, options: dict[str, Any]) -> Any:
        """Take rows along the field's axis, those outside of the segment as padding says."""
        axis = self.axis if options.get("axis") is None else options["axis"]
        axis %= axes  # of the dataset: those of its elements come behind
        lacks_axis = axis == 0 and self.axis != 0 and options.get("axis") is None
        if sample.index is not None and options.get("axis") is None:
            if axes <= abs(self.axis) or axes == 1 or lacks_axis:
                return values[sample.index]
            values, axis, axes = values[sample.index], axis - 1, axes - 1
        others = [one for one in range(axes) if one != axis]
        values, axis = chosen(values, options.get("columns"), others, axis)
        if isinstance(steps, int):
            return np.take(values, steps, axis)
        first, end = self._segment(sample, options, values.shape[axis])
        found = np.take(values, np.clip(steps, first, end - 1), axis)
        fill = options.get("pad", self.options.get("pad"))
        outside = [k for k, place in enumerate(steps) if not first <= place < end]
        if outside and fill != "edge":
            where = [slice(None)] * found.ndim
            where[axis] = outside
            found[tuple(where)] = filling(found.dtype, fill)
        return found

    def _segment(self, sample: Sample, options: dict[str, Any], count: int) -> tuple[int, int]:
        if options.get("scale") is None:
            return sample.first, min(sample.end, count)
        return 0, count

    def _stepped(self, read: Any, steps: Any, sample: Sample, options: dict[str, Any]) -> Any:
        if isinstance(steps, int):
            return read(steps)
        fill = options.get("pad", self.options.get("pad"))
        found = []
        for place in steps:
            one = read(min(max(place, sample.first), sample.end - 1))
            if place != min(max(place, sample.first), sample.end - 1) and fill != "edge":
                one = np.full_like(one, 0 if fill == "zeros" else fill)
            found.append(one)
        return np.stack(found)

    def _whole(self, part: Part, name: str, options: dict[str, Any]) -> Any:
        if not has(part, name):
            return self._lacking(name, options)
        if "decode" in options:
            return decoded(np.asarray(part.read(name)).tobytes())
        values = self._read(part, name, options)
        if options.get("columns") is None:
            return values
        # Columns are of the dataset's axes, and neither of those that its elements have nor of stacked members.
        axes = values.ndim if part.is_attribute(name) else self._rank(part, name)
        return chosen(values, options["columns"], list(range(axes))[options.get("ragged", "arrays") != "arrays" :])[0]

    def _rank(self, part: Part, name: str) -> int:
        return len(part.at(name).shape)

    def _lacking(self, name: str, options: dict[str, Any]) -> Any:
        """Return what an object that lacks a field is given: no rows, or the fill value of the first that has all."""
        dataset = self._first_with(name).at(name)
        small = small_float(dataset.id.get_type())
        fill = dataset.fillvalue if small is None else filling(small, float(dataset.fillvalue))
        values = np.full(dataset.shape, fill, dataset.dtype if small is None else small)
        if "ragged" in options:
            values = values[(slice(0),) * (values.ndim if options["ragged"] == "arrays" else 1)]
        axes = list(range(len(dataset.shape)))["ragged" in options :]
        return chosen(values, options.get("columns"), axes)[0]

    def _first_with(self, name: str) -> Part:
        """Return the first object that has every field, or else the first that has this one."""
        if name not in self.firsts:
            having = [one.part for one in self.samples if has(one.part, name)]
            if not having:
                raise RefusalError("nothing anywhere of what it looks up")
            whole = (part for part in having if all(has(part, each) for each in self.field_names))
            self.firsts[name] = next(whole, having[0])
        return self.firsts[name]

    def _boxed(self, values: np.ndarray, rank: int, options: dict[str, Any], sample: Sample) -> Any:
        """Cut a box of the last of a dataset's axes, behind which are those of its elements."""
        shape = self.case["samples"]["args"][0]["args"]
        axes = len(shape)
        halo = self.options["halo"]["args"] if self.options.get("halo") else [0] * axes
        scales, pad = self.scales(options, axes), options.get("pad", self.options.get("pad"))
        for k, (first, size, more) in enumerate(zip(sample.origin, shape, halo, strict=True)):
            axis, begin, count = rank - axes + k, int((first - more) * scales[k]), int((size + 2 * more) * scales[k])
            whole = values.shape[axis]
            before, after = max(0, -begin), max(0, begin + count - whole)
            mode = pad if pad in ("edge", "reflect") else "edge"
            indices = np.pad(np.arange(whole), (before, after) if pad is not None else 0, mode=mode)
            values = np.take(values, indices[begin + before : begin + before + count], axis)
            if pad not in (None, "edge", "reflect") and before + after:
                outside = [*range(before), *range(count - after, count)]
                values[(slice(None),) * axis + (outside,)] = filling(values.dtype, pad)
        return values

    def _looked_up(self, name: str, options: dict[str, Any], sample: Sample, number: int) -> Any:
        rows = options["rows"]
        if self.is_sparse(sample.part, name):
            row, parts = self._row(rows, sample, number), iter(self.parts if isinstance(rows, list) else [sample.part])
            while row >= (count := len((part := next(parts)).read(f"{name}/indptr")) - 1):
                row -= count
            return self._sparse(part, name, row, options)
        parts = [sample.part]
        if "file" in options:
            parts = self.elsewhere(options)
        elif isinstance(rows["args"][0] if is_call(rows) else rows, list):  # arrays count through all
            parts = self.parts
        values = np.concatenate([part.read(name) for part in parts])
        values, _ = chosen(values, options.get("columns"), list(range(1, values.ndim)))
        if isinstance(rows, dict) and not is_call(rows, "Spread"):
            first, end = self._stretch(rows, sample, number, len(values))
            return values[first:end]
        if isinstance(rows, list) and isinstance(rows[number], list):
            return values[np.asarray(rows[number], "i8")]
        return values[self._row(rows, sample, number)]

    def _row(self, rows: Any, sample: Sample, number: int) -> int:
        if is_call(rows, "Spread"):
            return int(built(rows)(number))
        return int(rows[number] if isinstance(rows, list) else sample.part.read(rows)[sample.row])

    def _stretch(self, rows: dict[str, Any], sample: Sample, number: int, there: int) -> tuple[int, int]:
        is_array = isinstance(rows["args"][0], list)
        values = [np.asarray(one) if is_array else sample.part.read(one) for one in rows["args"]]
        k = number if is_array else sample.row
        if rows["call"] == "Bounds":
            count = len(self.samples) if is_array else row_count(self, sample.part, self.axis)
            is_alone = self.is_alone and not is_array
            edges = bounds_said(values[0].astype("i8"), rows["options"], count, there, is_alone)
            return int(edges[k]), int(edges[k + 1])
        if rows["call"] == "Lengths":
            return int(values[0][:k].sum()), int(values[0][: k + 1].sum())
        first, last = int(values[0][k]), int(values[1][k])
        return (0, 0) if first < 0 else (first, last + bool(rows["options"].get("inclusive")))

    def _named(self, name: str, options: dict[str, Any], sample: Sample, number: int) -> Any:
        names = options["names"]
        one = names[number] if isinstance(names, list) else sample.part.read(names)[sample.row]
        one = one.decode() if isinstance(one, bytes) else one  # bytes hold UTF-8
        part = self.elsewhere(options)[0] if "file" in options else Part(sample.part.file, "/")
        before, _, behind = name.rpartition("{}")  # of a group whose own name has braces the last are meant
        every = (name.replace("{}", one), f"{before}{one}{behind}")
        return self._whole(part, next((each for each in every if has(part, each)), every[0]), options)

    def _sparse(self, part: Part, name: str, row: int, options: dict[str, Any]) -> np.ndarray:
        values, columns, edges = (part.read(f"{name}/{one}") for one in ("data", "indices", "indptr"))
        found = np.zeros(int(part.read(f"{name}@shape")[1]), values.dtype.newbyteorder("="))
        np.add.at(found, columns[edges[row] : edges[row + 1]], values[edges[row] : edges[row + 1]])
        return chosen(found, options.get("columns"), [0])[0]

    def _image(self, part: Part, name: str, row: int, options: dict[str, Any]) -> np.ndarray:
        return decoded(np.asarray(part.read(name)[row]).tobytes())

    # --- what is done to values --------------------------------------------------------------------------------

    def _cropped(self, values: Any, options: dict[str, Any]) -> Any:
        most, crop = options.get("max_length"), options.get("crop")
        if most is not None:
            return values[:most]
        if crop is None or values is None:
            return values
        length, at = crop["args"][0], crop["options"].get("at", "random")
        if at == "start" or len(values) <= length:
            return values[:length]
        first = (len(values) - length) // 2
        is_led = at == "center" and self._centered() > 1  # may begin where another's crop says, see `Field`
        return values[first : first + length] if at == "center" and not is_led else Crops(values, length)

    def _unpacked(self, values: Any, options: dict[str, Any], dataset: h5py.Dataset) -> np.ndarray:
        """Turn what is missing into NaN, and what is packed into what it means, as attributes say."""
        asked = options["missing"] if isinstance(options["missing"], list) else [options["missing"]]
        about = dict(dataset.attrs) if "netcdf" in asked else {}
        own = dataset.id.get_create_plist().fill_value_defined() == h5py.h5d.FILL_VALUE_USER_DEFINED
        if "fill" in asked and not own:
            raise RefusalError("a fill value that is not its own")
        absent = [one for one in asked if not isinstance(one, str)] + [dataset.fillvalue] * ("fill" in asked)
        absent += [about[name] for name in ("_FillValue", "missing_value") if name in about]
        hidden = np.isin(values, np.asarray(absent)) | (np.asarray(values) < about.get("valid_min", -np.inf))
        factor, offset = about.get("scale_factor"), about.get("add_offset")
        found = np.asarray(values, "f8") * (1 if factor is None else float(factor)) + (float(offset) if offset else 0)
        kind = float_type(dataset.dtype, factor, offset) if "netcdf" in asked else np.dtype("f4")
        return np.where(hidden, np.nan, found).astype(kind)

    def _centered(self) -> int:
        crops = [tree["options"].get("crop") for tree in self.fields.values() if isinstance(tree, dict)]
        return sum(crop is not None and crop["options"].get("at") == "center" for crop in crops)

    def _arithmetic(self, values: Any, options: dict[str, Any]) -> Any:
        if not {"mean", "std", "factor", "nan", "dtype"} & set(options):
            return values
        if isinstance(values, Crops):
            return Crops(self._arithmetic(values.rows, options), values.length)
        kind = options["dtype"]["call"].removeprefix("torch.") if options.get("dtype") else None
        if {"mean", "std", "factor"} & set(options):
            values = np.asarray(values, "f8") * options.get("factor", 1)
            values = (values - np.asarray(options.get("mean", 0))) / np.asarray(options.get("std", 1))
            values = values.astype(kind or "f4")
        elif kind:
            values = np.asarray(values).astype(kind)
        if "nan" in options:
            values = np.where(np.isnan(values), np.asarray(options["nan"], values.dtype), values)
        return values

    # --- what the spaces ask -----------------------------------------------------------------------------------

    def places(self, tree: Any, sample: Sample) -> Any:
        """Return the row that a field takes, or those of its steps."""
        options = tree["options"] if isinstance(tree, dict) else {}
        row = sample.columns[options["at"]] if options.get("at") else sample.row
        if options.get("scale") is not None:
            row = int(row * scale_of(options["scale"]))
        steps = steps_of(tree, self.length)
        return row if steps is None else [row + step for step in steps]

    def elsewhere(self, options: dict[str, Any]) -> list[Part]:
        """Open the files of ``file=``."""
        names = options["file"] if isinstance(options["file"], list) else [options["file"]]
        key = str(names)
        if key not in self.others:
            self.others[key] = parts_of([self.folder / one["args"][0] for one in names], None)
        return self.others[key]

    def steps_count(self, tree: Any) -> bool:
        """Tell whether a field's steps say where a sequence fits."""
        if isinstance(tree, str):
            return not self.is_attribute(tree)
        options = tree["options"]
        is_other = {"repeat", "rows", "names", "scale"} & set(options) or options.get("axis") == "rows"
        return is_call(tree, "Field") and not self.is_attribute(tree["args"][0]) and not is_other

    def is_sparse(self, part: Part, name: str) -> bool:
        """Tell whether a field is a group that holds a sparse matrix."""
        return isinstance(part.file.get(part.path_of(name)), h5py.Group)

    def is_attribute(self, name: str) -> bool:
        """Tell whether a name leads to an attribute, in the first part that has it."""
        return next((part.is_attribute(name) for part in self.parts if part.has(name)), False)

    @property
    def field_names(self) -> list[str]:
        """What fields are called in an object."""
        names = [tree if isinstance(tree, str) else (tree["args"] or [""])[0] for tree in self.fields.values()]
        return [name for name in names if isinstance(name, str) and name]

    def has_all(self, part: Part, options: dict[str, Any]) -> bool:
        """Tell whether an object has all fields, or is kept without."""
        return options.get("missing") != "skip" or all(has(part, name) for name in self.field_names)

    def first_axis(self, part: Part, axis: int) -> int:
        """Return how many indices axis 0 has, of the fields that samples lie along another axis of."""
        name = next(tree for tree in self.fields.values() if isinstance(tree, str))
        return int(part.at(name).shape[0])

    def fits_scaled(self, part: Part, row: int, length: int | None) -> bool:
        """Tell whether fields of another rate have all that a sample at a row takes."""
        for tree in self.fields.values():
            options = tree["options"] if isinstance(tree, dict) else {}
            if options.get("scale") is not None and self.kind == "Sequences":
                steps = steps_of(tree, length) or [0]
                begin = int(row * scale_of(options["scale"]))
                if not (begin + min(steps) >= 0 and begin + max(steps) < len(part.read(tree["args"][0]))):
                    return self.options.get("pad") is not None
        return True

    def volume(self, part: Part, axes: int) -> tuple[int, ...]:
        """Return the shape that boxes are cut of."""
        for tree in self.fields.values():
            name, options = (tree, {}) if isinstance(tree, str) else ((tree["args"] or [""])[0], tree["options"])
            if name and not part.is_attribute(name) and not ({"scale", "repeat"} & set(options)):
                return tuple(part.at(name).shape[-axes:])
        raise AssertionError("no field is a volume")

    def scales(self, options: dict[str, Any], axes: int) -> list[Fraction]:
        """Return the scale of a field along each axis of a box."""
        given = options.get("scale", 1)
        return [scale_of(one) for one in (given["args"] if isinstance(given, dict) else [given] * axes)]

    def multiples(self, axes: int) -> list[int]:
        """Return along each axis what a box's first element is a multiple of, so that each field has it."""
        found = [1] * axes
        for tree in self.fields.values():
            for k, one in enumerate(self.scales(tree["options"] if isinstance(tree, dict) else {}, axes)):
                found[k] = int(np.lcm(found[k], one.denominator))
        return found


def decoded(data: bytes) -> np.ndarray:
    """Decode a PNG: the class numbers of one with a palette, whose rows have no filters here."""
    if data[25] != 3:
        return np.asarray(imagecodecs.png_decode(data))
    width, height = int.from_bytes(data[16:20]), int.from_bytes(data[20:24])
    place = data.index(b"IDAT")
    pixels = zlib.decompress(data[place + 4 : place + 4 + int.from_bytes(data[place - 4 : place])])
    return np.frombuffer(pixels, "u1").reshape(height, width + 1)[:, 1:]


def scale_of(number: Any) -> Fraction:
    """Turn a scale into a fraction: a float is the ratio of small whole numbers that it is nearest to."""
    return Fraction(*number["args"]) if is_call(number, "Fraction") else Fraction(number).limit_denominator(10**9)


def meanings_of(dataset: h5py.Dataset) -> dict[str, int]:
    """Return the numbers of an enum's labels."""
    kind = dataset.id.get_type()
    return dict(h5py.check_enum_dtype(kind.dtype) or {}) if isinstance(kind, h5py.h5t.TypeEnumID) else {}


def opaque_unit(dataset: h5py.Dataset) -> Any:
    """Return the dtype of what is opaque, such as dates."""
    kind = dataset.id.get_type()
    return kind.dtype if isinstance(kind, h5py.h5t.TypeOpaqueID) else None


def float_type(stored: np.dtype[Any], factor: Any, offset: Any) -> np.dtype[Any]:
    """Return the type that packed numbers are decoded to, as xarray has it."""
    kinds = {np.asarray(one).dtype for one in (factor, offset) if one is not None}
    if not kinds:
        wide = stored if stored.kind == "f" else np.dtype("f4" if stored.itemsize <= 2 else "f8")
        return wide.newbyteorder("=")
    if len(kinds) > 1 or (factor is None and offset is not None):
        return np.dtype("f8")
    is_wide = offset is not None and stored.kind in "iu" and stored.itemsize == 4
    return np.dtype("f8") if is_wide else kinds.pop()


def bounds_said(
    numbers: np.ndarray, options: dict[str, Any], samples: int, there: int, is_alone: bool = False
) -> np.ndarray:
    """Return where each sample begins, and where the last ends, of so many rows; refuse what may mean two things."""
    numbers, holds = numbers - options.get("base", 0), options.get("holds")
    if holds is None:
        if len(numbers) == samples:
            is_from_0, is_to_end = bool(samples) and numbers[0] == 0, bool(samples) and numbers[-1] == there
            is_either = bool(samples) and not numbers.any() and there == 0  # both are the same
            if (is_from_0 == is_to_end and not is_either) or (is_to_end and numbers[0] == 1):
                raise RefusalError("numbers that are neither where samples begin nor where they end, or both")
            holds = "starts" if is_from_0 else "ends"
        elif len(numbers) and numbers[0] == 1 and numbers[-1] == there + 1:
            raise RefusalError("numbers that count from 1")
        elif is_alone and len(numbers) and (numbers[0] != 0 or numbers[-1] != there):
            raise RefusalError("rows that belong to no sample")
    found = {"starts": [*numbers, there], "ends": [0, *numbers]}.get(holds or "", numbers)
    if len(found) != samples + 1 or (np.diff(found) < 0).any() or (samples and (found[0] < 0 or found[-1] > there)):
        raise RefusalError("bounds of other rows")
    return np.asarray(found)


BITS = {"bfloat16": (7, 127), "e4m3": (3, 7), "e5m2": (2, 15)}


def bits_of(name: str, number: float) -> int:
    """Return the bits of a whole number as a small float."""
    mantissa, bias = BITS[name]
    fraction, exponent = np.frexp(number)
    return 0 if not number else (int(exponent) - 1 + bias << mantissa) + int((2 * fraction - 1) * 2**mantissa)


def filling(dtype: np.dtype[Any], fill: Any) -> Any:
    """Return what padding puts outside: a number in all that is a number, and empty texts and values of no numbers."""
    if dtype.kind == "O":
        if h5py.check_string_dtype(dtype) or dtype.metadata is None:
            return b""
        empty = np.empty((), object)
        empty[()] = np.empty(0, h5py.check_vlen_dtype(dtype))
        return empty
    if dtype.names and dtype.names[0] in BITS:
        return np.array((bits_of(dtype.names[0], 0 if fill == "zeros" else fill),), dtype)
    found = np.zeros((), dtype)
    for name in dtype.names or ():
        found[name] = filling(dtype[name].base, fill)
    if fill != "zeros" and dtype.kind not in "SVO":
        found[...] = fill
    return found


def has(part: Part, name: str) -> bool:
    """Tell whether an object has a dataset or an attribute."""
    return part.has(name)


def chosen(values: Any, columns: Any, axes: list[int], sample_axis: int = -1) -> tuple[Any, int]:
    """Choose of some axes, each on its own; also return where the samples' axis is then."""
    if columns is None:
        return values, sample_axis
    indices = [columns] if not is_call(columns, "tuple") else list(columns["args"])
    if any(is_call(one, "...") for one in indices):
        place = next(k for k, one in enumerate(indices) if is_call(one, "..."))
        indices[place : place + 1] = [None] * (len(axes) - len(indices) + 1)
    for axis, one in reversed(list(zip(axes, indices, strict=False))):
        if one is None:
            continue
        index = slice(*one["args"]) if is_call(one, "slice") else one
        values = values[(slice(None),) * axis + (index,)]
        if isinstance(one, int) and axis < sample_axis:
            sample_axis -= 1
    return values, sample_axis
