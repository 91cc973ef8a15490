"""What attributes say of the numbers of many datasets whose headers are alike, by the bytes of these."""

from __future__ import annotations

from typing import Any

import h5py
import numpy as np

from h5stream.base.names import Ints
from h5stream.storage.decode import elements
from h5stream.storage.file.meanings import meaning_of, text_of_value
from h5stream.storage.headers.headers import Alike, Superblock
from h5stream.storage.headers.templates import Bytes, Raw
from h5stream.storage.layout.heap import DOUBTFUL, values_of
from h5stream.storage.layout.layout import Meaning

_MOST_TEXT = 64
"""Bytes of a text that are compared."""
_AT_ONCE = 1024
"""Texts that are read together: of many files each has a collection of its own."""


def said_of(raw: Raw, alike: Alike, dataset: Any) -> tuple[list[Meaning], Ints]:
    """Return what is said in all, and which of it each says; `dataset` is the first of those that are alike.

    What is not in the headers, and what is neither numbers nor a text, is taken to be what the first one says.
    """
    first = dict(meaning_of(dataset))
    texts, number = dict[str, list[str]](), np.zeros(len(alike.which), np.int64)
    for name in first.keys() & alike.said.keys():
        data = _values(raw.of(alike.which), alike.said[name], dataset.attrs.get_id(name))
        if data is None or (data == data[0]).all():
            continue
        each, which = np.unique(data.view(f"V{data.shape[1]}")[:, 0], return_inverse=True)
        dtype = np.dtype(dataset.attrs.get_id(name).dtype)
        dtype = np.dtype(f"S{data.shape[1]}") if dtype.kind == "O" else dtype.base
        texts[name] = [text_of_value(np.frombuffer(one.tobytes(), dtype)) for one in each]
        number = number * len(each) + which
    every, number = np.unique(number, return_inverse=True)
    return [_meaning(first, texts, one) for one in every.tolist()], number


def _meaning(first: dict[str, str], texts: dict[str, list[str]], number: int) -> Meaning:
    """Return what is said where all but some is as in the first, by the number of what it is in these."""
    own = dict(first)
    for name, each in reversed(texts.items()):
        number, place = divmod(number, len(each))
        own[name] = each[place]
    return tuple(own.items())


def _values(raw: Raw, data: Bytes, attribute: Any) -> Bytes | None:
    """Return the bytes of the values of an attribute, of texts those that the file's heap has; None for others."""
    kind, dtype = attribute.get_type(), np.dtype(attribute.dtype)
    text = h5py.check_string_dtype(dtype)
    if text is not None and text.length is None:
        return _texts(raw, data) if data.shape[1] == 8 + raw.wide else None
    is_plain = dtype.kind in "biufS" and (text is not None or elements.is_stored_as(kind, dtype))
    return np.ascontiguousarray(data) if is_plain and data.shape[1] else None


def _texts(raw: Raw, stored: Bytes) -> Bytes:
    """Return texts of variable length, cut; one that cannot be had, or is the first one's, is that."""
    superblock = Superblock(int(raw.end.max()), raw.wide, raw.long, 0)
    heap = values_of(np.ascontiguousarray(stored), superblock, np.dtype(np.uint8), len(stored), is_text=True)
    address, length = heap.address, heap.length
    is_there = address >= 0
    address[is_there] = (address + raw.origin)[is_there]
    wrong = is_there & ((address > raw.end - 16) | (length > 1 << 16))
    address[wrong], length[wrong] = DOUBTFUL, 1
    texts = np.zeros((len(stored), _MOST_TEXT), np.uint8)
    at = texts.__array_interface__["data"][0] + _MOST_TEXT * np.arange(len(stored))
    wanted = np.minimum(length, _MOST_TEXT).astype(np.int64)
    room = np.empty(heap.room_nbytes, np.uint8)
    for low in range(0, len(stored), _AT_ONCE):
        some = np.arange(low, min(low + _AT_ONCE, len(stored)))
        failed, _ = heap.read(raw.source, some, at[some], wanted[some], room)
        texts[some[failed]] = texts[0]
    return texts
