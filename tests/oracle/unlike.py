"""Files, groups or objects that differ in one thing: each is right, or all are refused; none is taken for the first."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np

from . import storage
from .calls import call
from .draft import Draft

Trait = Callable[[Draft, str], None]


def unlike(draft: Draft) -> None:
    """Draw two or three places that differ in one trait."""
    rng = draft.rng
    trait = rng.choice([*TRAITS])
    lengths = [rng.randint(1, 4) for _ in range(rng.randint(2, 3))]
    ways = {"genes": ["files"], "widths": ["files", "groups"]}.get(
        trait, ["files", "files", "groups", "sequences", "objects"]
    )
    how = rng.choice(ways)
    if how == "files":
        draft.use_files(lengths)
    else:
        draft.use_groups([lengths[0]] * len(lengths) if how == "objects" else lengths, files=rng.choice([1, 1, 2]))
        kinds = {"groups": call("Rows", of="g/*"), "sequences": call("Sequences", 1, of="g/*")}
        draft.samples = kinds.get(how) or call("Objects", "g/*")
    draft.kind = {"groups": "Rows", "sequences": "Sequences", "objects": "Objects"}.get(how, "rows")
    TRAITS[trait](draft, how)
    draft.mark("unlike", f"unlike {trait}")
    if rng.random() < 0.7:
        draft.fields["number"] = call("SampleNumber")


def each(draft: Draft, name: str, kinds: list[Any], **fixed: Any) -> None:
    """Add a dataset to each place, of the types in turn."""
    of = {id(place): kinds[min(k, 1)] for k, place in enumerate(draft.places)}
    draft.add(name, lambda place: [place.rows], lambda place: of[id(place)], **fixed)
    draft.fields[name] = name


def genes(draft: Draft, how: str) -> None:
    """Columns that are genes, in another order in the second file."""
    rng, count = draft.rng, draft.rng.randint(2, 5)
    names = [f"GENE{k}" for k in range(count)]
    is_sparse = rng.random() < 0.5
    if is_sparse:
        sparse_matrix(draft, [count] * len(draft.places))
    else:
        draft.add("X", lambda place: [place.rows, count], rng.choice(["<f4", "<i4"]), written=1)
        draft.fields["X"] = "X"
    if rng.random() < 0.6:
        wanted = {"columns": rng.sample(names, rng.randint(1, count))}
        draft.fields["X"] = call("Field", "X", **({"ragged": "dense"} if is_sparse else {}), **wanted)
    for k, place in enumerate(draft.places):
        order = names if k == 0 else rng.sample(names, count)
        root = {"path": "/", "attr": "encoding-type", "type": "str", "shape": [], "data": "anndata"}
        group = {"path": "var"}
        about = [
            {"path": "var", "attr": "encoding-type", "type": "str", "shape": [], "data": "dataframe"},
            {"path": "var", "attr": "_index", "type": "str", "shape": [], "data": "_index"},
        ]
        index = {"path": "var/_index", "type": "str", "shape": [count], "data": [one.encode() for one in order]}
        place.file["nodes"] += [root, group, *about, index]


def sparse_matrix(draft: Draft, widths: list[int]) -> None:
    """Add a sparse matrix of so many columns to each place."""
    rng = draft.rng
    for place, width in zip(draft.places, widths, strict=True):
        rows = [sorted(rng.sample(range(width), rng.randint(0, width))) for _ in range(place.rows)]
        columns = [column for row in rows for column in row]
        path, edges = place.name("X"), np.cumsum([0, *map(len, rows)]).tolist()
        kind = {"path": path, "attr": "encoding-type", "type": "str", "shape": [], "data": "csr_matrix"}
        shape = {"path": path, "attr": "shape", "type": "<i8", "shape": [2], "data": [place.rows, width]}
        parts = [
            ("data", "<f4", [k + 1 for k in range(len(columns))]),
            ("indices", "<i4", columns),
            ("indptr", "<i8", edges),
        ]
        is_chunked = rng.random() < 0.5
        lies = {"chunks": [rng.choice([2, 50])], "maxshape": [None], "filters": ["gzip"]} if is_chunked else {}
        nodes = [
            {"path": f"{path}/{name}", "type": one, "shape": [len(data)], "data": data, **lies}
            for name, one, data in parts
        ]
        place.file["nodes"] += [{"path": path}, kind, shape, *nodes]
    draft.fields["X"] = call("Field", "X", ragged="dense")


def widths(draft: Draft, how: str) -> None:
    """Sparse matrices with other numbers of columns."""
    sparse_matrix(draft, [draft.rng.randint(2, 5) for _ in draft.places])


def meanings(draft: Draft, how: str) -> None:
    """Enums whose labels have other numbers."""
    base = draft.rng.choice(["u1", "<i2"])
    other = draft.rng.choice([{"A": 1, "B": 0}, {"A": 0, "C": 1}, {"A": 0, "B": 1, "C": 2}, {"A": 0, "B": 1}])
    each(draft, "y", [{"enum": base, "meanings": {"A": 0, "B": 1}}, {"enum": base, "meanings": other}])


def dates(draft: Draft, how: str) -> None:
    """Dates of other units."""
    each(draft, "t", ["M8[s]", draft.rng.choice(["M8[ms]", "M8[s]"])])


def byte_order(draft: Draft, how: str) -> None:
    """Numbers of other byte order."""
    kind = draft.rng.choice(["i4", "f8", "u2", "f4"])
    each(draft, "x", draft.rng.choice([[f"<{kind}", f">{kind}"], [f">{kind}", f"<{kind}"]]))


def sizes(draft: Draft, how: str) -> None:
    """Numbers of other sizes or kinds."""
    each(draft, "x", draft.rng.choice([["<i2", "<i4"], ["<f4", "<f8"], ["<i4", "<f4"], ["u1", "?"], ["S3", "S5"]]))


def stored(draft: Draft, how: str) -> None:
    """Types that are stored in another way, of which h5py makes one dtype."""
    int11 = {"bits": "<i2", "precision": 11, "offset": 0}
    pairs = [["<f4", storage.SMALL[0]], ["<i2", int11], ["<i2", {"enum": "<i2"}], ["<c8", storage.COMPLEX[0]]]
    pair = draft.rng.choice([*pairs, ["u1", {"field": 1}], [storage.COMPOUND, storage.APART]])
    each(draft, "x", pair if draft.rng.random() < 0.5 else pair[::-1])


def lacking(draft: Draft, how: str) -> None:
    """A dataset that some places lack."""
    _lacking(draft, "x")


def no_group(draft: Draft, how: str) -> None:
    """A group that some files lack, since they have no rows of it."""
    if how == "files":
        _lacking(draft, "part/x")
        if draft.rng.random() < 0.5:
            kind = draft.rng.choice([call("Rows", of="part"), call("Sequences", 1, of="part")])
            draft.samples, draft.fields = kind, {"x": "x"}
    else:
        notes(draft, how)


def _lacking(draft: Draft, name: str) -> None:
    place = draft.rng.choice(draft.places[1:])
    plain = {"layout": "contiguous", "chunks": None, "maxshape": None, "first": None, "masked": False}
    draft.add(name, lambda one: [one.rows], "<i4", alike=True, **plain)
    draft.fields["x"] = name
    place.file["nodes"] = [node for node in place.file["nodes"] if node["path"] != place.name(name)]


def units(draft: Draft, how: str) -> None:
    """Numbers of other units, or packed with other factors."""
    rng = draft.rng
    each(draft, "x", ["<i2", "<i2"])
    about, pair = rng.choice([("units", ["m", "km"]), ("scale_factor", [0.5, 2.0]), ("add_offset", [0.0, 3.0])])
    are_alike = rng.random() < 0.3
    for k, place in enumerate(draft.places):
        kind = "str" if about == "units" else "<f8"
        own = pair[0] if are_alike else pair[min(k, 1)]
        place.file["nodes"].append({"path": place.name("x"), "attr": about, "type": kind, "shape": [], "data": own})


def notes(draft: Draft, how: str) -> None:
    """Attributes that differ."""
    each(draft, "x", ["<i4", "<i4"])
    draft.attribute("note", draft.rng.choice(["<i4", "str", "S5"]), lambda place: [])
    draft.fields["note"] = "@note"


TRAITS: dict[str, Trait] = {
    "genes": genes,
    "widths": widths,
    "meanings": meanings,
    "dates": dates,
    "byte order": byte_order,
    "sizes": sizes,
    "stored": stored,
    "lacking": lacking,
    "no group": no_group,
    "units": units,
    "notes": notes,
}
"""By its name what makes places differ in a trait."""


def drawn_forms(rng: random.Random) -> list[str]:
    """Draw ways of reading that put the places together."""
    return rng.sample(["items", "listed", "sliced", "shuffled", "unshuffled", "joined", "several", "pickled"], 2)
