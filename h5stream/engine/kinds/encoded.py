"""Images: their bytes are brought as those of any row, decoded where a core's cache keeps them, and copied from there.

Decoded straight into the batch they drive the decoder's own tables out of the cache: images of 96 x 96 took 930 ms of
processor time in place of 700, of 640 x 480 570 in place of 530.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import torch

from h5stream.base.cancel import raise_if_stopped
from h5stream.compiled._native import copy_past_cache
from h5stream.engine.counters import clock
from h5stream.engine.plan.failing import row_by_row
from h5stream.engine.plan.tasks import Bytes, Destination, Placement, Task, Tools, Way, cut_by
from h5stream.engine.slots import SlotFormat, address_of
from h5stream.errors import CorruptChunkError, FieldLengthError, H5StreamError
from h5stream.storage.decode.filters import DecodeError
from h5stream.storage.decode.images import Images, OtherShapeError, Pixels, decode_image
from h5stream.storage.layout.layout import FieldLayout
from h5stream.storage.layout.parts import DatasetPart

DECODED_NBYTES = 2 * 1024 * 1024
"""Bytes of images that a task decodes, about: some milliseconds, so that no thread waits for another's last one."""

BytesOfRows = Callable[[Placement, Tools], Iterator[Bytes]]
"""Brings the bytes of one row of a part after the other, each good until the next."""


class EncodedRows:
    """The images of a dataset part."""

    def __init__(
        self,
        part: DatasetPart,
        layout: FieldLayout,
        images: Images,
        rows: BytesOfRows,
        in_file_order: Callable[[Placement], Placement] = Placement.each_row,
    ) -> None:
        self._part, self._layout, self._images, self._rows = part, layout, images, rows
        self._in_file_order = in_file_order
        self._image_nbytes = max(1, int(images.mean_nbytes))
        self._shape = layout.row_shape if layout.take.steps is None else layout.row_shape[1:]

    def plan(self, placement: Placement, task_nbytes: int) -> Iterator[Task]:
        """Cut rows of the part, ascending, into tasks of about as many decoded bytes, of whole chunks if decoded."""
        placement = self._in_file_order(placement.each_row())
        edges = placement.row_edges()
        images = np.ones(len(edges) - 1, dtype=np.int64)
        if self._part.index is not None and self._part.pipeline.filters:
            edges = placement.in_chunks(self._part)[1]
            images = np.diff(edges)
        for cut in cut_by(images * self._image_nbytes, min(task_nbytes, DECODED_NBYTES)):
            rows = placement[int(edges[cut.start]) : int(edges[cut.stop])]
            yield Task(shared=rows, bring=self._decode, apart=row_by_row)

    def _decode(self, placement: Placement, destination: Destination, tools: Tools) -> None:
        """Decode one image after the other, each once for all the samples that have it."""
        edges = placement.row_edges()
        once = placement[edges[:-1]]
        where = zip(once.rows.tolist(), itertools.starmap(slice, itertools.pairwise(edges.tolist())), strict=True)
        for (row, samples), data in zip(where, self._rows(once, tools), strict=False):
            raise_if_stopped()
            since = clock()
            nbytes = self._put(row, data, placement, samples, destination, tools)
            tools.tally.decoded(since, nbytes)

    def _put(
        self, row: int, data: Bytes, placement: Placement, samples: slice, destination: Destination, tools: Tools
    ) -> int:
        """Decode an image and bring it to some of the places; return its bytes."""
        field = self._part.targets[0].field
        if self._layout.kind == "object":
            image = torch.from_numpy(self._decoded(row, data, None, tools))
            destination.put(
                field, placement[samples], [image, *(image.clone() for _ in range(samples.start + 1, samples.stop))]
            )
            return image.nbytes
        nbytes = destination.row_nbytes[field]
        memory = tools.scratch.buffer("image", nbytes)
        self._decoded(row, data, memory.view(self._layout.dtype).reshape(self._shape), tools)
        for batch, within in zip(placement.batch[samples].tolist(), placement.within[samples].tolist(), strict=True):
            at = int(destination.slots[batch]) + destination.format.offsets[field] + within * nbytes
            copy_past_cache(at, address_of(memory), nbytes)
        return nbytes

    def _decoded(self, row: int, data: Bytes, out: Pixels | None, tools: Tools) -> Pixels:
        try:
            return decode_image(data, self._images.format, out)
        except (OtherShapeError, DecodeError) as error:
            raise self._named(error, row, data, tools) from error

    def _named(self, error: Exception, row: int, data: Bytes, tools: Tools) -> H5StreamError:
        """Say which image cannot be had, and why."""
        identity = tools.sources[self._part.file].identity
        number = row - self._part.row_start
        path = self._part.path_of(number)
        named = f"{identity.path!r}, dataset {path!r}: the image of row {number:,}"
        named += f" (row {row:,} of all files)" if self._part.row_start else ""
        if isinstance(error, OtherShapeError):
            first = f"{' x '.join(map(str, self._shape))} {self._layout.dtype}"
            return FieldLengthError(
                f"{named} is {error}, and those that were looked at when the file was opened are {first}, so a batch "
                f"is one tensor; Field({self._layout.name!r}, decode=..., ragged='list') takes images of any size",
                field=self._layout.name,
                file=identity.path,
            )
        identity.check_unchanged()
        return CorruptChunkError(
            f"{named} ({data.nbytes:,} bytes) is damaged: {error}. Copy the file again from its source.",
            file=identity.path,
            field=path,
            chunk=(number,),
        )


def padded_bytes(part: DatasetPart, fields: int, way: Way, placement: Placement, tools: Tools) -> Iterator[Bytes]:
    """Return rows of one length as bytes; each image occupies the first bytes of its row."""
    leaf, count = part.targets[0].leaf, len(placement)
    nbytes = int(np.prod(part.shape[1:], dtype=np.int64)) * (leaf.nbytes if leaf is not None else 1)
    memory = np.empty(count * nbytes, dtype=np.uint8)
    destination = Destination(
        slots=np.array([address_of(memory)], dtype=np.int64),
        format=SlotFormat(rows=count, offsets=(0,) * fields, nbytes=memory.nbytes),
        row_nbytes=(nbytes,) * fields,
    )
    within = np.arange(count).astype(placement.rows.dtype)
    for task in way(replace(placement, batch=np.zeros_like(within), within=within), max(1, memory.nbytes)):
        task.land(destination, tools)
    rows = placement.rows.astype(np.int64) - part.row_start
    used = np.full(count, nbytes) if (lengths := part.targets[0].lengths) is None else lengths[rows]
    for k, most in enumerate(used.tolist()):
        yield memory[k * nbytes : k * nbytes + most]
