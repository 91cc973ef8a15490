"""Attributes that give numbers a meaning, such as scale factors, for many datasets, compared as bytes of headers."""

from __future__ import annotations

import h5py
import numpy as np

from h5stream.base.names import Ints
from h5stream.storage.decode import elements
from h5stream.storage.file.meanings import meaning_of, text_of_value
from h5stream.storage.headers.headers import HeaderBatch, Superblock
from h5stream.storage.headers.templates import Bytes, Raw
from h5stream.storage.layout.heap import DOUBTFUL, values_of
from h5stream.storage.layout.parts import Meaning

_MOST_TEXT = 64
"""Bytes of a text that are compared."""
_AT_ONCE = 1024
"""Texts read in one call; in many files, each text is in a heap collection of its own."""


def distinct_meanings(raw: Raw, headers: HeaderBatch, dataset: h5py.Dataset) -> tuple[list[Meaning], Ints]:
    """Return the distinct meanings of datasets, and the index of each one's; `dataset` is the first of them.

    Attributes that are not in the headers, or that are neither numbers nor text, are assumed to equal the first's.
    """
    first = dict(meaning_of(dataset))
    texts, number = dict[str, list[str]](), np.zeros(len(headers.which), np.int64)
    for name in first.keys() & headers.said.keys():
        data = _values(raw.of(headers.which), headers.said[name], dataset.attrs.get_id(name))
        if data is None or (data == data[0]).all():
            continue
        values, index = np.unique(data.view(f"V{data.shape[1]}")[:, 0], return_inverse=True)
        dtype = np.dtype(dataset.attrs.get_id(name).dtype)
        dtype = np.dtype(f"S{data.shape[1]}") if dtype.kind == "O" else dtype.base
        texts[name] = [text_of_value(np.frombuffer(one.tobytes(), dtype)) for one in values]
        number = number * len(values) + index
    combinations, number = np.unique(number, return_inverse=True)
    return [_meaning(first, texts, one) for one in combinations.tolist()], number


def _meaning(first: dict[str, str], texts: dict[str, list[str]], number: int) -> Meaning:
    """Return the first dataset's meaning with the texts of one combination, given by its mixed-radix number."""
    own = dict(first)
    for name, values in reversed(texts.items()):
        number, place = divmod(number, len(values))
        own[name] = values[place]
    return tuple(own.items())


def _values(raw: Raw, data: Bytes, attribute: h5py.h5a.AttrID) -> Bytes | None:
    """Return the bytes of an attribute's values, reading text from the heap; None for any other type."""
    kind, dtype = attribute.get_type(), np.dtype(attribute.dtype)
    text = h5py.check_string_dtype(dtype)
    if text is not None and text.length is None:
        return _texts(raw, data) if data.shape[1] == 8 + raw.wide else None
    is_plain = dtype.kind in "biufS" and (text is not None or elements.is_stored_as(kind, dtype))
    return np.ascontiguousarray(data) if is_plain and data.shape[1] else None


def _texts(raw: Raw, stored: Bytes) -> Bytes:
    """Return the first bytes of variable-length texts; an unreadable one is replaced by the first text."""
    superblock = Superblock(int(raw.end.max()), raw.wide, raw.long, 0)
    heap = values_of(np.ascontiguousarray(stored), superblock, np.dtype(np.uint8), len(stored), is_text=True)
    address, length = heap.address, heap.length
    is_stored = address >= 0
    address[is_stored] = (address + raw.origin)[is_stored]
    wrong = is_stored & ((address > raw.end - 16) | (length > 1 << 16))
    address[wrong], length[wrong] = DOUBTFUL, 1
    texts = np.zeros((len(stored), _MOST_TEXT), np.uint8)
    at = texts.__array_interface__["data"][0] + _MOST_TEXT * np.arange(len(stored))
    wanted = np.minimum(length, _MOST_TEXT).astype(np.int64)
    room = np.empty(heap.room_nbytes, np.uint8)
    for low in range(0, len(stored), _AT_ONCE):
        indices = np.arange(low, min(low + _AT_ONCE, len(stored)))
        failed, _ = heap.read(raw.source, indices, at[indices], wanted[indices], room, of_one_file=False)
        texts[indices[failed]] = texts[0]
    return texts
