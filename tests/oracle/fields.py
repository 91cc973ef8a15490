"""The fields of rows, drawn: each function adds the datasets that its field needs, and the field."""

import random
import zlib
from collections.abc import Callable
from typing import Any

import imagecodecs
import numpy as np

from . import storage
from .calls import call, is_call
from .draft import Draft, Place

STEPPED = ("Sequences", "Table")


def options_of(draft: Draft, tail: list[int], kind: Any) -> dict[str, Any]:
    """Draw what a plain field may be asked for besides."""
    rng, found = draft.rng, {}
    if tail and rng.random() < 0.35:
        found["columns"] = draft.columns(tail)
    if draft.kind in STEPPED and rng.random() < 0.4:
        found["steps"] = sorted(rng.sample(range(-2, 4), rng.randint(1, 3)), key=lambda _: rng.random())
    if draft.kind in STEPPED and rng.random() < 0.15:
        found["pad"] = rng.choice(["edge", "zeros", 5])
    if draft.kind == "Table" and rng.random() < 0.4:
        found["at"] = "target"
    if storage.is_number(kind) and rng.random() < 0.12:
        found["dtype"] = call(rng.choice(["torch.float32", "torch.float64", "torch.int64"]))
    elif storage.is_number(kind) and rng.random() < 0.08:
        found |= rng.choice([{"mean": 1.5, "std": 2.0}, {"factor": 0.5}, {"mean": 1.0, "nan": 0}])
    return found


def shape_with(draft: Draft, tail: list[int]) -> Any:
    """Return what makes the shape of a dataset whose samples lie along the case's axis, of the rows of each place."""

    def shape(place: Place) -> list[int]:
        found = list(place.others) + tail if draft.axis else tail
        return [*found[: draft.axis], place.rows, *found[draft.axis :]] if draft.axis >= 0 else [*found, place.rows]

    return shape


def plain(draft: Draft, odd: float = 0.25) -> None:
    """Rows of numbers, or of any other type."""
    kind, tail, name = storage.drawn_type(draft.rng, odd), draft.tail(), draft.unique("x")
    if draft.kind in STEPPED and draft.rng.random() < 0.08:
        kind = "str"
    if draft.kind in STEPPED and kind == "str":
        draft.mark("texts of steps")
    if not isinstance(kind, str) or kind in ("str", "S5", "V8"):
        tail = tail[:1] if draft.rng.random() < 0.3 else []
    power = draft.rng.choice([-199, -170, 200, 303]) if kind == "<f8" and draft.rng.random() < 0.25 else 0
    draft.add(name, shape_with(draft, tail), kind, **({"power": power} if power else {}))
    options = options_of(draft, tail, kind)
    if power:
        draft.mark("tiny or huge")
        options = {}
    draft.fields[name] = call("Field", name, **options) if options else name


def first_plain(draft: Draft) -> None:
    """Rows of numbers, without any options: what says how many samples there are."""
    kind, tail = draft.rng.choice(storage.NUMBERS), draft.tail()
    draft.add("first", shape_with(draft, tail), kind)
    draft.fields["first"] = "first"


def member(draft: Draft) -> None:
    """A member of a compound, or several as one matrix."""
    name, rng, tail = draft.unique("record"), draft.rng, draft.tail(1)
    kind = rng.choice([storage.COMPOUND, storage.APART, storage.DECLARED[2], *storage.VARYING, *storage.BESIDE])
    ending = rng.choice([":pt", "@T", "{}", " x", "[0]", ".", "é", "*", "/"]) if rng.random() < 0.2 else ""
    if ending:
        draft.mark("names")
    is_varying, is_rare = kind in storage.VARYING, kind in storage.BESIDE
    kind = {**kind, "members": [[member + ending, one] for member, one in kind["members"]]}
    draft.add(name, shape_with(draft, [] if storage.has_varying(kind) else tail), kind)
    if "order" in kind:
        draft.mark("declared")
    asked = rng.random()
    if is_varying or (is_rare and asked < 0.3):
        draft.mark("varying member" if is_varying else "rare member")
        which = rng.choice(["a", "b", "a", ""])
        if not which:
            draft.fields[name] = name
            return
        which += ending
        inner = dict(kind["members"])[which]
        is_vlen = isinstance(inner, dict) and "vlen" in inner
        options = draft.ragged() if is_vlen and rng.random() < 0.5 else {}
        options |= stepped_options(draft) if is_vlen else {}
        draft.fields[name] = call("Field", f"{name}:{which}", **options) if options else f"{name}:{which}"
    elif asked < 0.6:
        options = options_of(draft, [], "<f4")
        draft.fields[name] = call("Field", f"{name}:b{ending}", **options)
    else:
        members = [one + ending for one in rng.choice([["b", "c"], ["c", "b"]])]
        draft.fields[name] = call("Field", name, members=members, **options_of(draft, [], "g"))


NOTES: list[Any] = ["<i4", "<f8", "str", ">i2", storage.OFFSET[0], "S5", "?", "<c8", {"enum": "<i2"}, "<f2"]
NOTES += storage.SMALL
"""Types of attributes."""


def attribute(draft: Draft) -> None:
    """An attribute of the group or file, which every sample gets; or one of a dataset in it."""
    name, kind = draft.unique("note"), draft.rng.choice(NOTES)
    shape = [] if draft.rng.random() < 0.7 or kind in ("str", "S5") else [3]
    plain = [field for field, tree in draft.fields.items() if tree == field and field.startswith(("x", "first"))]
    of = draft.rng.choice(plain) if plain and draft.rng.random() < 0.4 and not linked(draft, plain) else ""
    draft.attribute(name, kind, lambda place: shape, of)
    draft.fields[name] = f"{of}@{name}"


def linked(draft: Draft, names: list[str]) -> bool:
    """Tell whether datasets are behind links, or lacking, so that attributes of them are somewhere else."""
    paths = {place.name(name) for place in draft.places for name in names}
    nodes = [node for file in draft.files for node in file["nodes"] if node["path"] in paths]
    return len(nodes) < len(paths) or any({"soft", "external"} & node.keys() for node in nodes)


def attribute_lengths(draft: Draft) -> None:
    """An attribute that has another length in each group, dataset or file."""
    name, rng = draft.unique("picks"), draft.rng
    if draft.kind not in ("Objects", "Rows", "rows") or draft.axis:
        return
    draft.attribute(
        name,
        rng.choice(["<f8", "<i4", "<f4", storage.SMALL[1]]),
        lambda place: [rng.randint(0 if place.rows % 2 else 1, 4)],
    )
    options = draft.ragged()
    options.pop("max_length", None)
    if rng.random() < 0.2:
        options = {"ragged": "arrays"}
    draft.fields[name] = call("Field", f"@{name}", **options)
    draft.mark("attribute lengths")


def packed(draft: Draft) -> None:
    """Numbers that stand for others, as netCDF packs them: some are missing, the others are scaled."""
    rng, name, tail = draft.rng, draft.unique("packed"), draft.tail(1)
    kind = rng.choice(["<i2", "<i2", "u1", "<i4", "<f4", ">i2"])
    fill = 7 if kind == "u1" else -3
    draft.add(name, shape_with(draft, tail), kind, lambda place: packed_numbers(rng, place, tail, fill), fill=fill)
    if linked(draft, [name]):
        return
    attributes: dict[str, tuple[str, float]] = {}
    for attribute, share, numbers in (
        ("scale_factor", 0.6, [0.5, 0.001, 2.0]), ("add_offset", 0.5, [270.0, -1.5]), ("_FillValue", 0.6, [fill]),
        ("missing_value", 0.2, [1]), ("valid_min", 0.2, [2]),
    ):  # fmt: skip
        if rng.random() < share:
            is_scale = attribute in ("scale_factor", "add_offset")
            attributes[attribute] = (rng.choice(["<f8", "<f8", "<f4"]) if is_scale else kind, rng.choice(numbers))
    are_alike = rng.random() < 0.6
    for k, place in enumerate(draft.places):
        for attribute, (form, number) in attributes.items():
            own = number if are_alike or attribute not in ("scale_factor", "add_offset") else number + k
            about = {"attr": attribute, "type": form, "shape": [], "data": own}
            place.file["nodes"].append({"path": place.name(name), **about})
    asked = rng.choice(["netcdf", "netcdf", "netcdf", "fill", 5, ["netcdf", 5], ["fill", 1.0], None])
    options: dict[str, Any] = {"missing": asked} if asked is not None else {}
    if rng.random() < 0.4 and asked is not None:
        options["dtype"] = call(rng.choice(["torch.float32", "torch.float64"]))
    draft.fields[name] = call("Field", name, **options) if options else name
    draft.mark("missing" if asked is not None else "packed")


def packed_numbers(rng: random.Random, place: Place, tail: list[int], fill: int) -> Any:
    """Draw numbers, some of which are the fill value."""
    shape = (place.rows, *tail)
    count = int(np.prod(shape))
    return np.array([rng.choice([fill, 1, 2, 5, 90, 100]) for _ in range(count)]).reshape(shape).tolist()


def shared(draft: Draft) -> None:
    """What a file has once, by its path from the root: one value, a dataset as a whole, or an attribute."""
    name, rng = draft.unique("shared"), draft.rng
    how = rng.choice(["value", "all", "attribute"])
    draft.once(name, [] if how == "value" else [rng.randint(1, 4)], rng.choice(storage.NUMBERS), ("unit",))
    asked = {"value": f"/{name}", "all": call("Field", f"/{name}", repeat=True), "attribute": f"/{name}@unit"}
    if how == "value" and draft.kind != "Objects":
        asked["value"] = call("Field", f"/{name}", repeat=True)
    draft.fields[name] = asked[how]
    draft.mark("shared value")


def repeated(draft: Draft) -> None:
    """What a group or file has once."""
    rng, name, shape = draft.rng, draft.unique("once"), draft.tail()
    kind: Any = rng.choice(storage.NUMBERS)
    if rng.random() < 0.4:
        kind, shape = rng.choice([storage.COMPOUND, storage.NESTED, *storage.VARYING[:2], *storage.ODD]), shape[:1]
        draft.mark("whole compound" if isinstance(kind, dict) and "members" in kind else "whole dataset")
    draft.add(name, lambda place: shape, kind, written=1)
    draft.fields[name] = call("Field", name, repeat=True)


def stepped_options(draft: Draft, share: float = 0.3) -> dict[str, Any]:
    """Draw options that this kind of field may honour or refuse."""
    found: dict[str, Any] = {}
    if draft.kind in STEPPED and draft.rng.random() < share:
        found["steps"] = draft.rng.choice([[0], [1], [0, 1], [-1, 0]])
    if draft.kind == "Table" and draft.rng.random() < share:
        found["at"] = "target"
    return found


def varying(draft: Draft) -> None:
    """Values of variable length."""
    name, kind = draft.unique("vary"), draft.rng.choice(["<i4", "<f4", "u1", ">i4"])
    fixed: dict[str, Any] = {}
    if draft.rng.random() < 0.6 and len(draft.places) < 4:  # filters whose output is longer than their input
        fixed = {"chunks": [5], "filters": [draft.rng.choice(["zstd", "lz4"])], "maxshape": [None], "first": None}
        fixed |= {"layout": "chunked", "written": 1, "masked": False}
        draft.mark("reallocates")
    draft.add(name, lambda place: [place.rows], {"vlen": kind}, **fixed)
    options = {**draft.ragged(), **stepped_options(draft)} if draft.rng.random() < 0.8 else {}
    draft.fields[name] = call("Field", name, **options) if options else name


def coarse(draft: Draft) -> None:
    """A field of another rate, beside a recording that is long if the rate is low."""
    rng = draft.rng
    if draft.kind != "Sequences" or draft.axis or draft.samples is None or draft.samples["call"] != "Sequences":
        return
    if "of" in draft.samples["options"] or "starts" in draft.samples["options"]:
        return
    per = rng.choice([2, 3, 10, 1000, 1000, 1 << 20, 1_000_001, 1_500_000, 3_600_000])
    labels = rng.randint(2, 4)
    for place in draft.places:
        place.rows = per * labels
    name = draft.unique("long")
    for number, place in enumerate(draft.places):
        node = {"path": place.name(name), "shape": [place.rows], "type": "i1", "chunks": [1 << 16], "written": 0}
        small = {"layout": "contiguous", "written": 1, "chunks": None}
        place.file["nodes"].append({**node, **(small if place.rows < 5000 else {}), "seed": number})
    draft.samples["options"]["stride"] = max(1, place.rows // rng.randint(8, 30))
    draft.add("label", lambda place: [labels], rng.choice(storage.NUMBERS), written=1)
    scale = 1 / per if rng.random() < 0.5 else call("Fraction", 1, per)
    draft.fields = {name: name, "label": call("Field", "label", steps=[0], scale=scale)}
    draft.mark("scale")


def sparse(draft: Draft) -> None:
    """A sparse matrix, row by row."""
    name, width = draft.unique("matrix"), draft.rng.choice([1, 3, 6, 250])
    edges: dict[str, list[int]] = {}
    for place in draft.places:
        counts = [draft.rng.randint(0, 4) for _ in range(place.rows)]
        edges[place.file["name"] + place.path] = np.cumsum([0, *counts]).tolist()
        path = {"path": place.name(name)}
        kind = {"attr": "encoding-type", "type": "str", "shape": [], "data": "csr_matrix"}
        shape = {"attr": "shape", "type": "<i8", "shape": [2], "data": [place.rows, width]}
        place.file["nodes"] += [path, path | kind, path | shape]

    def of(place: Place) -> list[int]:
        return edges[place.file["name"] + place.path]

    draft.add(f"{name}/data", lambda place: [of(place)[-1]], draft.rng.choice(["<f4", "<i4", "<f8"]), written=1)
    draft.add(
        f"{name}/indices",
        lambda place: [of(place)[-1]],
        draft.rng.choice(["<i4", "<i4", "<i8", "u1", ">u2"]),
        lambda place: [draft.rng.randrange(width) for _ in range(of(place)[-1])],
    )
    draft.add(f"{name}/indptr", lambda place: [place.rows + 1], "<i8", of)
    options = {"ragged": draft.rng.choice(["dense", "dense", "packed"]), **stepped_options(draft)}
    if draft.rng.random() < 0.2 and options["ragged"] == "dense":
        options["columns"] = [draft.rng.randrange(width)]
    if draft.rng.random() < 0.3 and (least := min(place.rows for place in draft.places)):
        options["rows"] = rows_of(draft, name, least)
    draft.fields[name] = call("Field", name, **options)


def palette_png(labels: np.ndarray) -> bytes:
    """Encode class numbers as a PNG with a palette, each row without a filter."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return len(data).to_bytes(4) + name + data + zlib.crc32(name + data).to_bytes(4)

    height, width = labels.shape
    head = width.to_bytes(4) + height.to_bytes(4) + bytes([8, 3, 0, 0, 0])
    rows = b"".join(b"\0" + row.tobytes() for row in labels)
    parts = [(b"IHDR", head), (b"PLTE", bytes(range(90, 90 + 24))), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*one) for one in parts)


def encoded_image(draft: Draft, seeds: np.random.Generator, shape: tuple[int, ...], is_palette: bool) -> bytes:
    """Encode an image."""
    if is_palette:
        draft.mark("palette")
        return palette_png(seeds.integers(0, 8, shape[:2], "u1"))
    return bytes(imagecodecs.png_encode(seeds.integers(0, 255, shape, "u1")))


def images(draft: Draft) -> None:
    """Encoded images, in values of variable length."""
    name, seeds = draft.unique("image"), np.random.default_rng(draft.rng.getrandbits(30))
    is_palette, shape = draft.rng.random() < 0.3, draft.rng.choice([(3, 2), (3, 2), (2, 4, 3), (2, 2, 4)])

    def encoded(place: Place) -> list[list[int]]:
        return [list(encoded_image(draft, seeds, shape, is_palette)) for _ in range(place.rows)]

    draft.add(name, lambda place: [place.rows], {"vlen": "u1"}, encoded)
    draft.fields[name] = call("Field", name, decode=draft.rng.choice(["png", "auto"]), **stepped_options(draft))


def each_row(draft: Draft, name: str, kind: str, draw: Callable[[], Any]) -> None:
    """Add a dataset that has a drawn value for each row."""
    draft.add(name, lambda place: [place.rows], kind, lambda place: [draw() for _ in range(place.rows)])


def rows_of(draft: Draft, name: str, there: int, is_elsewhere: bool = False) -> Any:
    """Draw which of so many rows samples have: an array, a function, or the name of a dataset that says it."""
    rng = draft.rng
    if draft.count is not None and rng.random() < 0.3:
        return [rng.randrange(there) for _ in range(draft.count)]
    if rng.random() < 0.3 and (is_elsewhere or len(draft.places) == 1):
        return call("Spread", there, rng.randint(1, 9))
    each_row(draft, f"{name}_rows", rng.choice(["<i4", "<i8", "u1"]), lambda: rng.randrange(there))
    return f"{name}_rows"


def many_rows_of(draft: Draft, there: int, options: dict[str, Any]) -> list[list[int]]:
    """Draw some rows for each sample: as many for each, or some."""
    rng, count = draft.rng, draft.count or 0
    if "file" not in options:  # rows of an array count through all places; of a table, through the groups it names
        named = draft.samples["options"].get("group") if is_call(draft.samples, "Table") else None
        there *= len(set(named)) if named else len(draft.places)
    draft.mark("rows of each sample")
    if rng.random() < 0.5:
        each = rng.randint(1, 3)
        return [[rng.randrange(there) for _ in range(each)] for _ in range(count)]
    options |= draft.ragged()
    return [[rng.randrange(there) for _ in range(rng.randint(0, 3))] for _ in range(count)]


def looked_up(draft: Draft) -> None:
    """Rows that another field, or an array, names: of this part, or of another file."""
    name, rng, tail = draft.unique("look"), draft.rng, draft.tail(1)
    there, kind, options = rng.randint(1, 20), rng.choice(storage.NUMBERS), {}
    if rng.random() < 0.5:
        rows = [rng.randint(1, 9) for _ in range(rng.randint(2, 3))] if rng.random() < 0.3 else [there]
        there, options["file"] = sum(rows), other_files(draft, name, rows, tail, kind)
    else:
        draft.add(name, lambda place: [there, *tail], kind)
    options["rows"] = rows_of(draft, name, there, is_elsewhere="file" in options)
    if draft.count is not None and rng.random() < 0.25:
        options["rows"] = many_rows_of(draft, there, options)
    if tail and rng.random() < 0.2:
        options["columns"] = draft.columns(tail)
    draft.fields[name] = call("Field", name, **options, **stepped_options(draft, 0.1))


def other_files(draft: Draft, name: str, rows: list[int], tail: list[int], kind: Any) -> Any:
    """Add a dataset of so many rows in each of several other files, of which samples look up rows; return the files."""
    where = []
    for k, count in enumerate(rows):
        file = {**storage.drawn_file(draft.rng, f"{name}{k or ''}.hdf5")}
        draft.files.append(file)
        stored = storage.stored(draft.rng, [count, *tail], kind, 999 + k, file["libver"])
        file["nodes"].append({**stored, "path": name})
        where.append(call("path", file["name"]))
    return where if len(where) > 1 else where[0]


def stretches_elsewhere(draft: Draft) -> None:
    """Rows of other files that count through all of these, of which each sample has its own number."""
    name, rng, tail = draft.unique("far"), draft.rng, draft.tail(1)
    rows, kind, is_apart = [rng.randint(1, 9) for _ in range(rng.randint(1, 3))], rng.choice(storage.NUMBERS), True
    if rng.random() < 0.1:
        is_apart = False  # some samples have rows of two files, which is refused
        draft.mark("rows of two files")

    def pair() -> tuple[int, int]:
        low, high = 0, sum(rows)
        if is_apart:
            number = rng.randrange(len(rows))
            low, high = sum(rows[:number]), sum(rows[: number + 1])
        first, end = sorted(rng.randint(low, high) for _ in range(2))
        return first, end

    options: dict[str, Any] = {"file": other_files(draft, name, rows, tail, kind), **draft.ragged()}
    if draft.count is not None and rng.random() < 0.3:
        options["rows"] = call("Between", *map(list, zip(*(pair() for _ in range(draft.count)), strict=True)))
    else:
        pairs = {id(place): [pair() for _ in range(place.rows)] for place in draft.places}
        for k, end in enumerate(("at", "to")):
            draft.add(
                f"{name}_{end}", lambda place: [place.rows], "<i8", lambda place, k=k: [p[k] for p in pairs[id(place)]]
            )
        options["rows"] = call("Between", f"{name}_at", f"{name}_to")
    draft.fields[name] = call("Field", name, **options, **stepped_options(draft, 0.1))


def stretches(draft: Draft) -> None:
    """Rows of which each sample has its own number."""
    if draft.rng.random() < 0.25:
        stretches_elsewhere(draft)
        return
    name, rng, tail = draft.unique("hits"), draft.rng, draft.tail(1)
    counts = {id(place): [rng.randint(0, 4) for _ in range(place.rows)] for place in draft.places}
    total = {key: sum(one) for key, one in counts.items()}
    is_text = rng.random() < 0.25
    kind = rng.choice(["str", "S5"] if is_text else storage.NUMBERS)
    tail = [] if kind == "str" else tail
    draft.add(name, lambda place: [total[id(place)], *tail], kind)
    edges = {key: np.cumsum([0, *one]).tolist() for key, one in counts.items()}
    how = rng.choice(["Bounds", "Bounds", "Lengths", "Between"])
    if how == "Bounds":
        rows = bounds_of(draft, f"{name}_at", edges)
    elif how == "Lengths":
        draft.add(f"{name}_at", lambda place: [place.rows], "<i4", lambda place: counts[id(place)])
        rows = call("Lengths", f"{name}_at")
    else:
        draft.add(f"{name}_at", lambda place: [place.rows], "<i8", lambda place: edges[id(place)][:-1])
        draft.add(f"{name}_to", lambda place: [place.rows], "<i8", lambda place: edges[id(place)][1:])
        rows = call("Between", f"{name}_at", f"{name}_to")
    if draft.count is not None and rng.random() < 0.3:
        rows = _in_memory(draft, how, [*total.values()])
    options = {"rows": rows, **draft.ragged(numeric=not is_text)}
    if "max_length" not in options and rng.random() < 0.2:
        options["crop"] = call("Crop", rng.randint(1, 4), at=rng.choice(["start", "center", "random"]))
    draft.fields[name] = call("Field", name, **options, **stepped_options(draft, 0.1))


HELD: dict[str, Callable[[list[int]], list[int]]] = {
    "bounds": lambda edges: edges,
    "starts": lambda edges: edges[:-1],
    "ends": lambda edges: edges[1:],
    "starts from 1": lambda edges: [one + 1 for one in edges[:-1]],
    "bounds from 1": lambda edges: [one + 1 for one in edges],
    "wrong": lambda edges: [one + 3 for one in reversed(edges)],
}
"""What a dataset may hold of the rows at which samples begin and end."""


def bounds_of(draft: Draft, name: str, edges: dict[int, list[int]]) -> Any:
    """Add a dataset that says where samples begin and end, in one of several ways; say which, or leave it open."""
    rng = draft.rng
    holds = rng.choice(["bounds"] * 2 + [*HELD, "starts from 1", "ends"])

    def numbers(place: Place) -> list[int]:
        return HELD[holds](edges[id(place)])

    draft.add(name, lambda place: [len(numbers(place))], rng.choice(["<i8", "<u8", "<f8", "<i4"]), numbers)
    if holds == "bounds":
        return call("Bounds", name)
    draft.mark("bounds")
    if rng.random() < 0.4 and holds != "wrong":
        draft.mark("holds")
        return call("Bounds", name, holds=holds.split()[0], base=int("1" in holds))
    return call("Bounds", name)


def _in_memory(draft: Draft, how: str, rows: list[int]) -> Any:
    """Say in memory which rows each sample has, of as many as each place has: of one of them, whatever its own is."""
    edges = sorted(draft.rng.randint(0, sum(rows)) for _ in range((draft.count or 0) + 1))
    if how == "Bounds":
        return call(how, edges)
    if how == "Lengths":
        return call(how, np.diff(edges).tolist())
    places = [draft.rng.randrange(len(rows)) for _ in edges[1:]]
    pairs = [sorted(sum(rows[:k]) + draft.rng.randint(0, rows[k]) for _ in range(2)) for k in places]
    return call(how, [first for first, _ in pairs], [end for _, end in pairs])


def beside(draft: Draft) -> None:
    """Rows of other files, as many as there are."""
    if any(place.path for place in draft.places) or draft.axis:
        return
    name, tail, kind, files = draft.unique("beside"), draft.tail(), draft.rng.choice(storage.NUMBERS), []
    for k, place in enumerate(draft.places):
        files.append(storage.drawn_file(draft.rng, f"{name}{k}.hdf5"))
        files[-1]["nodes"].append(
            {**storage.stored(draft.rng, [place.rows, *tail], kind, k, files[-1]["libver"]), "path": name}
        )
    draft.files += files
    where = [call("path", file["name"]) for file in files]
    draft.fields[name] = call(
        "Field", name, file=where if len(where) > 1 else where[0], **options_of(draft, tail, kind)
    )


def named(draft: Draft) -> None:
    """Objects that each sample names, in another file."""
    name, rng, tail = draft.unique("named"), draft.rng, draft.tail(1)
    file, kind, is_ragged = storage.drawn_file(rng, f"{name}.hdf5"), rng.choice(storage.NUMBERS), rng.random() < 0.5
    draft.files.append(file)
    ending = rng.choice(["", "", "", "[0]", ":x", "{}", "@y", " z", ".5", "é", "?"])
    keys = [f"k{k}{ending}" for k in range(rng.randint(1, 4))]
    member = ""
    if rng.random() < 0.3:
        kind, member, tail = storage.COMPOUND, rng.choice([":b", ":a"]), []
        draft.mark("named member")
    elif rng.random() < 0.1:
        kind = rng.choice([*storage.UNREADABLE, *storage.SMALL])
        draft.mark("rare type")
    if ending:
        draft.mark("names")
    first = rng.randint(1, 5)
    alike, state, axes = rng.random() < 0.5, rng.getrandbits(40), rng.choice([0, 0, 2, 3])
    for k, key in enumerate(keys):
        shape = [rng.randint(1, 5) if is_ragged else first, *tail]
        shape = [rng.randint(1, 4) for _ in range(axes)] if axes and not member else shape
        inner = random.Random(state) if alike else rng
        file["nodes"].append({**storage.stored(inner, shape, kind, k, file["libver"]), "path": f"o/{key}"})
    options: dict[str, Any] = {"file": call("path", file["name"])}
    if draft.count is not None and rng.random() < 0.5:
        options["names"] = [rng.choice(keys) for _ in range(draft.count)]
    else:
        each_row(draft, f"{name}_names", rng.choice(["str", "S9"]), lambda: rng.choice(keys).encode())
        options["names"] = f"{name}_names"
    axes = 0 if member else axes
    if axes:
        options |= {"ragged": "arrays"} | ({"columns": call("tuple", 0, call("..."))} if rng.random() < 0.3 else {})
    elif is_ragged:
        options |= draft.ragged()
    draft.fields[name] = call("Field", f"o/{{}}{member}", **options)


def values(draft: Draft) -> None:
    """Values that are no file's."""
    if draft.count is not None:
        draft.fields[draft.unique("value")] = call("Values", [draft.rng.randint(0, 99) for _ in range(draft.count)])


def numbered(draft: Draft) -> None:
    """Objects with numbers in their names, which are rows."""
    if draft.axis:
        return
    name, kind, shape = draft.unique("frame"), draft.rng.choice(storage.NUMBERS), [draft.rng.randint(1, 5)]
    if draft.rng.random() < 0.15:
        kind = draft.rng.choice([*storage.UNREADABLE, *storage.SMALL, storage.ARRAYS[0]])
        draft.mark("rare type")
    behind, state = draft.rng.choice(["", "/x"]), draft.rng.getrandbits(40)
    for place in draft.places:
        for row in draft.rng.sample(range(place.rows), place.rows):
            draft.seeds += 1
            stored = storage.stored(random.Random(state), shape, kind, draft.seeds, place.file["libver"])
            place.file["nodes"].append({**stored, "path": place.name(f"{name}_{row}{behind}"), "masked": False})
    options = options_of(draft, shape, kind)
    draft.fields[name] = call("Field", f"{name}_{{}}{behind}", **options)


OTHERS = [numbered, member, member, attribute, repeated, repeated, varying, sparse, images, looked_up, stretches]
OTHERS += [stretches, beside, named, values, shared, attribute_lengths, packed, sparse, varying]


def draw_fields(draft: Draft) -> None:
    """Draw the fields of samples that are rows, or sequences of them."""
    rng = draft.rng
    if rng.random() < 0.08 and draft.kind == "Sequences":
        coarse(draft)
    if "scale" in draft.marks:
        return
    if rng.random() < 0.02 and draft.kind not in STEPPED:
        stretches(draft)  # and nothing else says how many samples there are
        draft.fields = {name: tree for name, tree in draft.fields.items() if name.startswith("hits")}
        draft.fields["number"] = call("SampleNumber")
        draft.mark("bounds alone")
        return
    if rng.random() < 0.85:
        first_plain(draft)
    for _ in range(rng.randint(0 if draft.fields else 1, 2)):
        plain(draft) if rng.random() < 0.5 else rng.choice(OTHERS)(draft)
    if all(any(one in name for one in ("note", "once", "value", "shared", "picks")) for name in draft.fields):
        first_plain(draft)
    if draft.kind == "Sequences" and rng.random() < 0.3:
        draft.fields["is_pad"] = call("Padding")
    if rng.random() < 0.7:
        draft.fields["number"] = call("SampleNumber")
