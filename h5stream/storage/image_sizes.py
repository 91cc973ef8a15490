"""Whether images are of one size: decided once, when files are opened, so that a batch never changes its type."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h5stream.errors import H5StreamError, UnsupportedFieldError
from h5stream.storage.codecs import DecodeError
from h5stream.storage.fallback import H5pyReader
from h5stream.storage.images import LOOKED_AT, Images, decode_image
from h5stream.storage.layout import DatasetPart, FieldLayout, SampleLayout


def with_image_sizes(layout: SampleLayout) -> SampleLayout:
    """Return a layout whose fields of images are tensors if some images, spread over all, are of one size."""
    if all(field.images is None for field in layout.fields):
        return layout
    fields, reader = list(layout.fields), H5pyReader(layout)
    try:
        for parts in layout.datasets:
            number = parts[0].targets[0].field if parts[0].targets else None
            if number is not None and fields[number].images is not None:
                fields[number] = _sized(fields[number], parts, layout, reader)
    finally:
        reader.close()
    return replace(layout, fields=tuple(fields))


def _sized(field: FieldLayout, parts: tuple[DatasetPart, ...], layout: SampleLayout, reader: H5pyReader) -> FieldLayout:
    assert field.images is not None
    found: list[NDArray[Any]] = []
    why = "there are none"
    for data in _some(parts, layout, reader):
        try:
            found.append(decode_image(data, field.images.format))
        except DecodeError as error:
            why = str(error)
    if not found:
        raise UnsupportedFieldError(
            f"{layout.files[parts[0].file].path!r}: field {field.name!r}: of the values that were looked at none is an "
            f"image that decode={field.images.format!r} takes: {why}",
            field=field.name,
            file=layout.files[parts[0].file].path,
        )
    nbytes = [image.nbytes for image in found]
    images = Images(format=field.images.format, mean_nbytes=float(np.mean(nbytes)), most_nbytes=max(nbytes))
    if field.ragged is not None or len({(image.shape, image.dtype) for image in found}) > 1:
        return replace(field, images=images)
    return replace(field, kind="array", row_shape=found[0].shape, dtype=found[0].dtype, images=images)


def _some(parts: tuple[DatasetPart, ...], layout: SampleLayout, reader: H5pyReader) -> Iterator[NDArray[np.uint8]]:
    """Return the bytes of some rows, spread over all; what cannot be read is left to the batch that needs it."""
    starts = np.array([part.row_start for part in parts])
    rows = int(starts[-1]) + parts[-1].rows
    for row in np.unique(np.linspace(0, rows - 1, LOOKED_AT).astype(np.int64)).tolist() if rows else ():
        part = parts[int(np.searchsorted(starts, row, side="right")) - 1]
        within = row - part.row_start
        try:
            if part.heap is not None:
                data = part.heap.one(layout.files[part.file], within)
                yield data if len(data) or not part.objects else reader.bytes_of(part, within)
            else:
                data = np.ascontiguousarray(reader.rows(part, within, 1)).reshape(-1).view(np.uint8)
                yield data if part.lengths is None else data[: part.lengths[within]]
        except H5StreamError:
            continue
