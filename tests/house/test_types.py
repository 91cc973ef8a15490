"""The types of a loader's arguments are written once for its signature, and once by name; `mypy` checks those of
batches, in `tests/checked/batches.py`."""

import typing

from h5stream import H5StreamLoader
from h5stream.loader.options import FunctionOptions

DECIDING = {"dataset", "batch_size", "fields", "collate_fn", "batch_transform"}
"""Arguments that decide on the type of a batch; overloads name them."""


def test_arguments_by_name_are_those_of_the_signature():
    signature = typing.get_type_hints(H5StreamLoader.__init__)
    by_name = typing.get_type_hints(FunctionOptions)
    wanted = {name: kind for name, kind in signature.items() if name not in {*DECIDING, "return"}}
    assert by_name == wanted
