"""Opening: files and field names become a `SampleLayout`, with every rule checked and nothing left open."""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from h5stream.errors import (
    FieldLengthError,
    H5StreamError,
    OptionError,
)
from h5stream.samples.boxes import FieldSteps, axis_space
from h5stream.samples.columns import Padding, SampleColumn, SampleNumber, SourceNumber, Values
from h5stream.samples.kinds import Objects, Sequences
from h5stream.samples.lookup import Lookup
from h5stream.samples.ragged import DENSE
from h5stream.samples.segments import Segmentation, edges_over, in_memory
from h5stream.samples.space import Space, number_outside, space_of_rows, steps_of
from h5stream.samples.table import ROW, Table, table_space
from h5stream.storage.decode.elements import batch_dtype
from h5stream.storage.decode.filters import DecodeError
from h5stream.storage.decode.images import COLOURS, LOOKED_AT, Images, decode_image, palette_bits
from h5stream.storage.decode.small_floats import held_as, shown, widened, widened_dtype
from h5stream.storage.file.discovery import refusal
from h5stream.storage.file.h5py_reader import H5pyReader
from h5stream.storage.file.meanings import warn_of_meanings, with_packings
from h5stream.storage.file.stored import Files
from h5stream.storage.layout.fields import Field
from h5stream.storage.layout.layout import FieldLayout, SampleLayout, SparseEntry, leaves_of, numbers_of
from h5stream.storage.layout.parts import DatasetPart
from h5stream.storage.layout.request import Fields, Request, SampleShape, Source, read_request
from h5stream.storage.open.extents import SampleKind
from h5stream.storage.open.joining import FileParts, joined_parts, with_named_shapes, with_rows_of_values
from h5stream.storage.open.lookups import align_crops, share_arrays
from h5stream.storage.open.reading import MemberReader, paths_text, read_members

_KINDS = "Sequences(...), Rows(...), Objects(...), Table(...) or Boxes(...)"


def open_layout(
    source: Source | Request, fields: Fields = None, *, samples: SampleKind | None = None, allow_external: bool = False
) -> SampleLayout:
    """Open files, find the fields in each, and return the layout of a sample."""
    if samples is not None and not isinstance(samples, SampleKind):
        raise OptionError(f"samples= takes {_KINDS}, such as Sequences(16, of='data/*'), not {samples!r}")
    request = source if isinstance(source, Request) else read_request(source, fields)
    files = Files(request.paths)
    read = read_members(request, files, samples, allow_external)
    parts, shape, where = read.parts, read.shape, paths_text(request.paths)
    if len(parts) > 1:
        paths = [files.identities[number].path for number, _ in read.names]
        parts = joined_parts(parts, paths, read.labels)
    if read.rows == 0:
        raise _no_rows_error(request.paths, shape)
    first, datasets = parts[0], [*zip(*[file.parts for file in parts], strict=True)]
    datasets += [tuple(lookup.parts) for lookup in read.lookups.values()]
    layout = SampleLayout(
        files=tuple(files.identities),
        file_starts=(*read.starts, read.rows),
        fields=first.fields,
        datasets=tuple(datasets),
        shape=shape,
        entries=first.entries,
        allow_external=allow_external,
        space=None if samples is None else _space(samples, read, request.paths, first.fields),
        left_out=0 if isinstance(samples, Objects) else read.left_out,
    )
    lookups: tuple[Lookup, ...] = ()
    if read.lookups:
        builders = enumerate(read.lookups.values(), len(first.parts))
        lookups = share_arrays(
            align_crops(
                [one.lookup(number, layout.rows, layout.space, where) for number, one in builders],
                [one.crop for one in read.lookups.values()],
            )
        )
    layout = replace(layout, columns=_columns(layout, parts, samples), lookups=lookups)
    if lookups:
        layout = with_named_shapes(layout, read.lookups.values())
    if layout.columns:
        layout = with_rows_of_values(layout)
    _check_padding(layout)
    may_lack = isinstance(samples, Objects) and samples.missing == "fill"
    layout = _normalized(_with_image_sizes(layout))
    if any(isinstance(field, Field) and field.missing for field in shape.fields):
        layout = with_packings(layout, [file.packed for file in parts], may_lack=may_lack)
    if layout.is_joined:
        warn_of_meanings(layout)
    return layout


def _no_rows_error(paths: tuple[str, ...], shape: SampleShape) -> FieldLengthError:
    """Return the error for files that have no sample."""
    named = any(isinstance(one, Field) and one.lookup is not None for one in shape.fields)
    why = f"has zero {'samples' if named else 'rows'} in {', '.join(shape.keys)}"
    why += ", by what lookup= names; there is nothing to stream" if named else "; there is nothing to stream"
    return FieldLengthError(f"{paths_text(paths)} {why}", file=paths[0])


def _normalized(layout: SampleLayout) -> SampleLayout:
    """Set the normalization of fields; raise if it, or ``dtype=``, does not fit their type or shape."""
    fields = list(layout.fields)
    if listed := next((one for one in fields if one.cast is not None and one.is_listed and one.images is None), None):
        raise OptionError(f"field {listed.name!r}: {_why_not_for_lists(listed, 'dtype=')}")
    for spec, entry in zip(layout.shape.fields, layout.entries, strict=True):
        wanted = spec.normalize if isinstance(spec, Field) else None
        if wanted is None:
            continue
        for _, leaf in leaves_of("", entry):
            number = numbers_of(leaf)[0]
            field, is_image = fields[number], fields[number].images is not None
            is_dense = field.ragged is not None and field.ragged.form == DENSE
            shape = (field.ragged.wanted,) if is_dense and field.ragged is not None else field.row_shape
            why = "" if is_image and field.kind == "object" else wanted.misfit(shape)
            if field.is_listed and not is_image:
                why = _why_not_for_lists(field, "normalize=")
            elif field.dtype.kind == "c":
                why = "normalize= is for real numbers, and these are complex; leave it out"
            if isinstance(entry, SparseEntry) and not is_dense and wanted.mean != 0:
                why = "normalize= would make values of the zeros that are not stored; ragged='dense' has them"
            if why:
                raise OptionError(f"field {field.name!r}: {why}")
            fields[number] = replace(field, normalize=wanted)
    return replace(layout, fields=tuple(fields))


def _why_not_for_lists(field: FieldLayout, option: str) -> str:
    """Return why an option for numbers is refused for a field whose values come in lists."""
    if field.items is not None:
        return f"{option} is for tensors, and values of variable length come in lists; with ragged='list' it takes them"
    return f"{option} is for real numbers, and this field is of texts, which come in lists; leave {option} out"


def _columns(
    layout: SampleLayout, files: Sequence[FileParts], samples: SampleKind | None
) -> tuple[tuple[int, SampleColumn], ...]:
    """Return the numbers and columns of fields that are not read from a dataset."""
    columns, are_objects = list[tuple[int, SampleColumn]](), files[0].are_objects
    for number, spec in zip(layout.entries, layout.shape.fields, strict=True):
        if not isinstance(number, int):
            continue
        if isinstance(spec, (SampleNumber, SourceNumber)):
            columns.append((number, SampleColumn(starts=(0,) if isinstance(spec, SourceNumber) else ())))
        elif isinstance(spec, Padding):
            steps = steps_of(spec.steps, samples, "Padding()") or ()
            columns.append((number, SampleColumn(steps=steps, space=layout.space)))
        elif isinstance(spec, Values):
            if len(spec.values) != layout.samples:
                why = f"{len(spec.values):,} values, and there are {layout.samples:,} samples: it needs one for each"
                raise FieldLengthError(f"{spec.name!r} in memory has {why}, also for those that rows= leaves out")
            columns.append((number, SampleColumn(spec.values)))
    for place, (number, first) in enumerate(files[0].constants):
        values: Any = [file.constants[place][1] for file in files]
        if isinstance(first, np.ndarray) and layout.fields[number].ragged is None:
            values = np.concatenate(values) if are_objects else np.stack(values)
            values = values.view(batch_dtype(values.dtype))
        elif are_objects:
            values = [*itertools.chain(*values)]
        column = SampleColumn(values) if are_objects else SampleColumn(values, layout.file_starts, by_rows=True)
        columns.append((number, column))
    return tuple(columns)


def _space(
    samples: SampleKind, read: MemberReader, paths: tuple[str, ...], fields: tuple[FieldLayout, ...]
) -> Space | None:
    """Return the space of all samples; None if each sample is a row."""
    numbers = {name: number for number, name in enumerate(read.names)}
    if read.parts[0].are_objects:
        if not read.left_out and all(file.anchors is None for file in read.parts):
            return None
        rows = (np.arange(file.rows) if file.anchors is None else file.anchors for file in read.parts)
        every = np.concatenate([row + start for row, start in zip(rows, read.starts, strict=True)])
        return space_of_rows(every[None], np.array([0, read.rows]), left_out=read.left_out)
    volumes = [file.volume for file in read.parts if file.volume is not None]
    if volumes:
        space = volumes[0].space(volumes, read.labels, numbers, paths)
        return replace(space, left_out=read.left_out) if isinstance(samples, Objects) and read.left_out else space
    if isinstance(samples, Table):
        steps = [(field.take.at or ROW, field.take.steps) for field in fields]
        return table_space(samples, np.array([*read.starts, read.rows]), numbers, paths, steps)
    if not isinstance(samples, Sequences):
        return None
    edges = np.concatenate([np.zeros(1, dtype=np.int64), *(edges[1:] for edges in read.edges)])
    if in_memory(samples.of):
        edges = edges_over(cast(Segmentation, samples.of), edges)
    taken = [field.take.steps for field in fields if field.take.steps is not None] or [tuple(samples.steps or (0,))]
    lengths, least, most = np.diff(edges), min(map(min, taken)), max(map(max, taken))
    return axis_space(samples, lengths[:, None], [FieldSteps(elements=lengths, least=least, most=most)], edges)


def _check_padding(layout: SampleLayout) -> None:
    """Raise if the type of a field cannot hold its padding, or if pad= is set and samples have no padding."""

    def check(one: FieldLayout, option: str, number: float) -> None:
        if not _can_hold(one.dtype, number):
            message = f"{option}={number:g} does not fit into field {one.name!r}, which is stored as {shown(one.dtype)}"
            raise OptionError(
                f"{message} (dtype= casts what was padded); take another, or lengths or Padding() for a mask"
            )

    for one in layout.fields:
        if one.ragged is not None and not one.is_listed:
            check(one, "pad_value", one.ragged.pad_value)
    for parts in layout.aligned:
        for target in parts[0].targets:
            one = layout.fields[target.field]
            if one.take.pad is not None and (layout.space is None or layout.space.pad is None):
                message = f"field {one.name!r} has Take(pad={one.take.pad!r}), and nothing is padded"
                raise OptionError(f"{message}: samples= says with pad= that it is")
            number = number_outside(layout.pad_of(one)) if one.take.steps is not None or parts[0].along else None
            if number and one.kind == "array":
                check(one, "pad", number)


def _can_hold(dtype: np.dtype, number: float) -> bool:
    """Return whether a type can hold a number, exactly or, for floats, approximately."""
    if isinstance(number, int) and not -(2**63) <= number < 2**64:
        number = float(number)  # too large for any integer type
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        converted = widened(held_as(number, dtype))
    return bool(
        converted == number if widened_dtype(dtype).kind in "biu" else np.isfinite(converted) or not np.isfinite(number)
    )


# --- whether images are of one size: decided once, so that a batch never changes its type


def _with_image_sizes(layout: SampleLayout) -> SampleLayout:
    """Return a layout whose fields of images are tensors if some images, spread over all, are of one size."""
    if not any(field.images is not None for field in layout.fields):
        return layout
    fields = list(layout.fields)
    with contextlib.closing(H5pyReader(layout)) as reader:
        for parts in layout.datasets:
            for target in parts[0].targets[:1]:
                if (images := fields[target.field].images) is not None:
                    fields[target.field] = _with_size(fields[target.field], images.format, parts, layout, reader)
    return replace(layout, fields=tuple(fields))


def _with_size(
    field: FieldLayout, form: str, parts: tuple[DatasetPart, ...], layout: SampleLayout, reader: H5pyReader
) -> FieldLayout:
    """Return a field of images as a tensor if the images that are examined have one size and type."""
    images, why = list[np.ndarray](), ""
    palettes = set[bool]()  # whether an image has a palette; grayscale images do not count
    path, prefix = layout.files[parts[0].file].path, f": field {field.name!r}: "
    unread = list[H5StreamError]()
    for data in _spread_images(parts, layout, reader, unread):
        try:
            images.append(decode_image(data, form))
            is_palette = bool(palette_bits(data))
            palettes |= {is_palette} if is_palette or images[-1].ndim == 3 else set()
        except DecodeError as error:
            why = str(error)
    if not images:
        if unread and not why:
            raise unread[0]
        why = why or "there are none"
        message = f"of the values that were looked at none is an image that decode={form!r} takes: {why}"
        raise refusal(path, field.name, prefix + message)
    if len(palettes) > 1 and not form.endswith(COLOURS):
        message = f"some images have a palette, of which decode={form!r} gives the numbers, and others have colours; "
        raise refusal(path, field.name, f"{prefix}{message}decode='{form}{COLOURS}' gives the colours of all")
    nbytes = [image.nbytes for image in images]
    layout_images = Images(format=form, mean_nbytes=float(np.mean(nbytes)), most_nbytes=max(nbytes))
    if field.ragged is None and len({(image.shape, image.dtype) for image in images}) == 1:
        steps = () if field.take.steps is None else (len(field.take.steps),)
        return replace(
            field, kind="array", row_shape=(*steps, *images[0].shape), dtype=images[0].dtype, images=layout_images
        )
    if field.take.steps is not None:
        message = (
            "images of unlike sizes, or with ragged='list', make no tensor of several rows; samples of one row have "
        )
        raise refusal(path, field.name, f"{prefix}{message}them as a list")
    return replace(field, images=layout_images)


def _spread_images(
    parts: tuple[DatasetPart, ...], layout: SampleLayout, reader: H5pyReader, unread: list[H5StreamError]
) -> Iterator[NDArray[np.uint8]]:
    """Yield the bytes of some images, spread over all rows; append the errors of others to `unread`."""
    starts = np.array([part.row_start for part in parts])
    rows = int(starts[-1]) + parts[-1].rows
    for row in np.unique(np.linspace(0, rows - 1, LOOKED_AT).astype(np.int64)).tolist() if rows else ():
        part = parts[int(np.searchsorted(starts, row, side="right")) - 1]
        within = row - part.row_start
        try:
            yield _bytes_at(part, within, layout, reader)
        except H5StreamError as error:
            unread.append(error)


def _bytes_at(part: DatasetPart, row: int, layout: SampleLayout, reader: H5pyReader) -> NDArray[np.uint8]:
    """Return the bytes of one image."""
    if part.heap is not None:
        data = part.heap.one(layout.files[part.file], row)
        return data if len(data) or part.objects is None else reader.bytes_of(part, row)
    data = np.ascontiguousarray(reader.rows(part, row, 1)).reshape(-1).view(np.uint8)
    lengths = part.targets[0].lengths
    return data if lengths is None else data[: lengths[row]]
