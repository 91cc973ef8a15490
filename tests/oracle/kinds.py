"""The kinds of samples, drawn: each function makes the places of its samples, says what these are, and adds fields."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np

from . import containers, fields, names, stops, storage, unlike
from .calls import call
from .draft import Draft, Place
from .forms import FORMS


def rows(draft: Draft) -> None:
    """Rows of one file, or of several."""
    draft.use_files(draft.lengths(3, 30, 0 if draft.rng.random() < 0.1 else 1))
    draft.count = sum(place.rows for place in draft.places)
    fields.draw_fields(draft)


def group_rows(draft: Draft) -> None:
    """Rows of many groups."""
    files = draft.rng.choice([1, 1, 2])
    draft.use_groups(draft.lengths(5, 12), files=files)
    draft.count = sum(place.rows for place in draft.places)
    of: Any = draft.rng.choice(["g/*", "*/*", "g/e*"])
    if len(draft.places) == 1 and draft.rng.random() < 0.6:
        of = draft.places[0].path
    elif files == 1 and draft.rng.random() < 0.3:
        draft.rng.shuffle(draft.places)
        of = [place.path for place in draft.places]
    draft.samples = call("Rows", of=of)
    fields.draw_fields(draft)
    _put_beside(draft, of)


def _put_beside(draft: Draft, of: Any) -> None:
    """Put the datasets of a field into another group, each under the name of the group that samples are of."""
    rng, last = draft.rng, of.rpartition("/")[2] if isinstance(of, str) else "*"
    nodes = [node for file in draft.files for node in file["nodes"]]
    stored = {node["path"] for node in nodes if "attr" not in node and {"type", "soft", "external"} & node.keys()}
    plain = [name for name in draft.fields if all(place.name(name) in stored for place in draft.places)]
    if of == "*/*" or not plain or (isinstance(of, str) and "*" not in of) or rng.random() > 0.3:
        return
    name = rng.choice(plain)
    if any(isinstance(tree, str) and tree.startswith(f"{name}@") for tree in draft.fields.values()):
        return  # an attribute of it would move, too
    for place in draft.places:
        for node in place.file["nodes"]:
            if node["path"] == place.name(name):
                node["path"] = f"beside/{place.path.rpartition('/')[2]}"
    tree = draft.fields[name]
    if isinstance(tree, str):
        draft.fields[name] = f"/beside/{last}"
    else:
        tree["args"][0] = tree["args"][0].replace(name, f"/beside/{last}")


def axis_rows(draft: Draft) -> None:
    """Rows along another axis."""
    draft.axis = draft.rng.choice([1, -1])
    _along(draft, 1)
    options: dict[str, Any] = {"axis": draft.axis}
    if draft.rng.random() < 0.3:
        options["of"] = "rows"
    draft.samples = call("Rows", **options)
    _axis_fields(draft)


def _along(draft: Draft, least: int) -> None:
    """Use files, each with another number of rows along the axis and the same of axis 0, more or less."""
    draft.use_files(draft.lengths(2, 14, least))
    first = draft.rng.randint(1, 4)
    for place in draft.places:
        place.others = (first,)


def _axis_fields(draft: Draft) -> None:
    fields.first_plain(draft)
    rng = draft.rng
    for _ in range(rng.randint(0, 2)):
        how = rng.choice(["plain", "time", "attribute", "repeated"])
        if how == "plain":
            fields.plain(draft, 0.1)
        elif how == "time":
            name = draft.unique("time")
            draft.add(name, lambda place: [place.rows], rng.choice(storage.NUMBERS))
            draft.fields[name] = call("Field", name, axis=0)
        else:
            getattr(fields, how)(draft)
    of_rows = draft.samples["options"].get("of") == "rows"
    if of_rows and rng.random() < 0.4:
        draft.add("parameters", lambda place: [place.others[0], 3], "<f4")
        draft.fields["parameters"] = call("Field", "parameters", axis="rows")
    if rng.random() < 0.7:
        draft.fields["number"] = call("SampleNumber")


def sequences(draft: Draft) -> None:
    """Sequences of rows of files, of groups, or of segments that a field says."""
    rng, options = draft.rng, sequence_options(draft)
    how = rng.choice(["files", "groups", "groups", "Ends", "Ids", "Lengths", "Bounds", "axis"])
    if how == "axis":
        draft.axis = rng.choice([1, -1])
        _along(draft, 3)
        options |= {"axis": draft.axis, "of": rng.choice(["rows", "files"])}
        length = rng.randint(1, 4)
        draft.samples = call("Sequences", length, **options)
        _axis_fields(draft)
        if draft.seed % 2 and length % 2 == 0:
            draft.add("coarse", lambda place: [-(-place.rows // 2)], rng.choice(storage.NUMBERS))
            draft.fields["coarse"] = call("Field", "coarse", axis=0, scale=0.5)
        return
    if how == "groups":
        draft.use_groups(draft.lengths(5, 12), files=rng.choice([1, 1, 2]))
        options["of"] = "g/*" if len(draft.places) > 1 or rng.random() < 0.4 else draft.places[0].path
    else:
        draft.use_files(draft.lengths(2, 25, 3))
        if how != "files":
            options["of"] = call(how, _edges(draft, how))
    draft.samples = call("Sequences", rng.randint(1, 5), **options)
    fields.draw_fields(draft)
    if how == "groups":
        _put_beside(draft, options["of"])


def sequence_options(draft: Draft) -> dict[str, Any]:
    """Draw stride, padding, tail and random starts."""
    rng, found = draft.rng, {}
    if rng.random() < 0.4:
        found["stride"] = rng.randint(1, 4)
    if rng.random() < 0.45:
        found["pad"] = rng.choice(["edge", "zeros", 3])
        if rng.random() < 0.4:
            found["pad_rows"] = call("tuple", rng.randint(0, 2), rng.randint(0, 2))
    elif rng.random() < 0.3:
        found["tail"] = "shift"
    if rng.random() < 0.15:
        found["starts"] = "random"
        if rng.random() < 0.5:
            found |= {"per_epoch": rng.randint(1, 20), "draw": rng.choice(["segments", "rows"])}
    return found


def _edges(draft: Draft, how: str) -> Any:
    """Say where segments end: in a dataset of each file, whose name this returns, or in an array for all of them."""
    cuts = {}
    for place in draft.places:
        inside = sorted(draft.rng.sample(range(1, place.rows), min(place.rows - 1, draft.rng.randint(0, 4))))
        cuts[id(place)] = [0, *inside, place.rows]

    def ends(place: Place) -> list[int]:
        return [int(row + 1 in cuts[id(place)][1:]) for row in range(place.rows)]

    said: dict[str, Callable[[Place], list[int]]] = {
        "Ends": ends,
        "Ids": lambda place: (np.cumsum([0, *ends(place)])[:-1] % 3).tolist(),
        "Lengths": lambda place: np.diff(cuts[id(place)]).tolist(),
        "Bounds": lambda place: cuts[id(place)],
    }
    if draft.rng.random() < 0.35:
        begins = np.cumsum([0, *(place.rows for place in draft.places)]).tolist()
        every = [(begin if how == "Bounds" else 0, place) for begin, place in zip(begins, draft.places, strict=False)]
        return [begin + one for begin, place in every for one in said[how](place)]
    if how == "Ids" and draft.rng.random() < 0.1:
        draft.mark("nested")
        draft.add("edges", lambda place: [place.rows], {"vlen": {"vlen": "<i4"}})
        return "edges"
    kinds = {"Ends": ["?", "u1", "<i4"], "Ids": ["<i4"]}.get(how, ["<i8"])
    draft.add("edges", lambda place: [len(said[how](place))], draft.rng.choice(kinds), said[how])
    return "edges"


def table(draft: Draft) -> None:
    """Samples that a table lists."""
    rng = draft.rng
    how = rng.choice(["rows", "group", "file"])
    if how == "group":
        draft.use_groups(draft.lengths(4, 12, 4))
    else:
        draft.use_files(draft.lengths(2, 20, 4))
    draft.count = rng.randint(1, 25)
    chosen = [rng.choice(draft.places) for _ in range(draft.count)]
    begins = {id(place): sum(one.rows for one in draft.places[:k]) for k, place in enumerate(draft.places)}
    base = [begins[id(place)] if how == "rows" else 0 for place in chosen]
    columns: dict[str, Any] = {}
    if how == "group":
        columns["group"] = [place.path for place in chosen]
    elif how == "file":
        columns["file"] = [draft.places.index(place) for place in chosen]
    length = rng.choice([None, 1, 2, 3])
    pad = rng.choice([None, "edge", "zeros", 4])
    # Without padding each sample begins where its steps stay inside.
    inner = [(0, place.rows - 1) if pad is not None else (2, max(2, place.rows - 4)) for place in chosen]
    for name in ("row", "target"):
        columns[name] = [first + rng.randint(*bounds) for first, bounds in zip(base, inner, strict=True)]
    if length is not None:
        columns["length"] = length
    if pad is not None:
        columns["pad"] = pad
    draft.samples = call("Table", **columns)
    fields.draw_fields(draft)


def objects(draft: Draft) -> None:
    """A dataset, a group or a file a sample."""
    rng = draft.rng
    how, many, alike = rng.choice(["datasets", "groups", "files"]), rng.random() < 0.01, rng.random() < 0.6 or None
    count = 2050 if many else rng.choice([1, rng.randint(2, 12), rng.randint(2, 12)])
    if how == "files" and not many:
        draft.use_files([rng.randint(1, 6) for _ in range(count)])
        draft.samples = call("Objects", "files")
    else:
        _object_places(draft, how, count)
        paths = [place.path for place in draft.places]
        of: Any = "o/*" if many or rng.random() < 0.7 else rng.sample(paths, rng.randint(1, len(paths)))
        draft.samples = call("Objects", of)
    draft.count = count if isinstance(draft.samples["args"][0], str) else len(draft.samples["args"][0])
    if rng.random() < 0.15:
        draft.samples["options"]["missing"] = rng.choice(["skip", "fill"])
    has_image = how != "files" and rng.random() < 0.35
    if how == "datasets":
        _object_image(draft, ".", alike) if has_image else _object_field(draft, ".", "x", alike)
        if rng.random() < 0.5:
            rng.choice([fields.attribute, fields.attribute_lengths, fields.shared])(draft)
    else:
        for k in range(rng.randint(1, 3)):
            _object_field(draft, f"x{k}", f"x{k}", alike, is_large=rng.random() < 0.15 and not many)
        if has_image:
            _object_image(draft, "image", alike)
        if rng.random() < 0.4:
            rng.choice([fields.attribute, fields.attribute_lengths, fields.shared])(draft)
    if rng.random() < 0.7 or many:  # of so many none is found by its values
        draft.fields["number"] = call("SampleNumber")
    missing = draft.samples["options"].get("missing")
    if missing and how != "datasets":
        _leave_out(draft)
    if how == "groups":
        _put_beside(draft, draft.samples["args"][0])


def _object_places(draft: Draft, how: str, count: int) -> None:
    file, rng = draft.new_file("f0.h5"), draft.rng
    file["nodes"].append({**storage.drawn_group(rng, "o"), "beside": 0})
    stem = rng.choice(["k{}", "{}"])
    for k in range(count):
        path = f"o/{stem.replace('{}', str(k))}"
        if how != "datasets":
            file["nodes"].append({"path": path})
        draft.places.append(Place(file, path, rng.randint(0, 6) if rng.random() < 0.1 else rng.randint(1, 6)))


def _object_image(draft: Draft, path: str, alike: bool | None) -> None:
    """Add an encoded image to every object: bytes, or one opaque value."""
    rng, seeds = draft.rng, np.random.default_rng(draft.rng.getrandbits(30))
    is_list, how, is_palette = rng.random() < 0.3, rng.choice(["u1", "u1", "opaque"]), rng.random() < 0.3
    found = {
        id(place): fields.encoded_image(draft, seeds, (place.rows + 1 if is_list else 3, 2), is_palette)
        for place in draft.places
    }
    kind: Any = "u1" if how == "u1" else lambda place: f"V{len(found[id(place)])}"
    draft.add(
        path,
        lambda place: [len(found[id(place)])] if how == "u1" else [],
        kind,
        lambda place: found[id(place)] if how == "opaque" else list(found[id(place)]),
        alike=alike,
        **({"layout": "contiguous", "chunks": None, "maxshape": None, "first": None} if rng.random() < 0.8 else {}),
    )
    options = {"decode": rng.choice(["png", "auto"]), **({"ragged": "list"} if is_list else {})}
    draft.fields["image"] = call("Field", path, **options)


def _object_field(draft: Draft, path: str, name: str, alike: bool | None, is_large: bool = False) -> None:
    """Add a dataset of every object: of one shape, of unlike lengths, of unlike shapes, or one value.

    Objects that are alike in all their datasets are read as rows of one, as the largest of these lie.
    """
    rng, tail = draft.rng, draft.tail(1)
    how = rng.choice(["same", "same", "ragged", "ragged", "value" if alike else "arrays", "value"])
    if is_large:
        how, tail = "same", [rng.randint(20, 40)]
    kind = storage.drawn_type(rng, 0.15 if how == "same" else 0.4 if how == "value" else 0)
    if how == "value" and rng.random() < 0.25:
        kind = rng.choice(storage.OFFSET)
    if rng.random() < 0.15:
        kind = rng.choice(storage.SOLID)
        draft.mark("rare type")
    options: dict[str, Any] = {}
    fixed = rng.randint(1, 6)
    shapes = {
        "same": lambda place: [fixed, *tail],
        "ragged": lambda place: [place.rows, *tail],
        "arrays": lambda place: [place.rows, rng.randint(1, 4)],
        "value": lambda place: [],
    }
    if how == "ragged":
        is_text = rng.random() < 0.2
        kind, tail = (rng.choice(["str", "S5"]), []) if is_text else (kind, tail)
        options = draft.ragged(numeric=not is_text)
        if "max_length" not in options and rng.random() < 0.2:
            options["crop"] = call("Crop", rng.randint(1, 4), at=rng.choice(["start", "center", "random"]))
    elif how == "arrays":
        options["ragged"] = "arrays"
    elif how == "same" and tail and rng.random() < 0.2:
        options["columns"] = draft.columns([fixed, *tail])
    if how == "ragged" and tail and rng.random() < 0.2:
        options["columns"] = draft.columns(tail)
    draft.add(path, shapes[how], kind, alike=alike)
    draft.fields[name] = call("Field", path, **options) if options else path


def _leave_out(draft: Draft) -> None:
    """Take some datasets out of their objects."""
    names = tuple(f"/{name}" for name in draft.fields if name.startswith(("x", "image")))

    def stays(node: dict[str, Any]) -> bool:
        is_one = "type" in node and "attr" not in node and node["path"].endswith(names)
        return not is_one or draft.rng.random() > 0.15

    for file in draft.files:
        gone = {node["path"] for node in file["nodes"] if not stays(node)}  # with the attributes of what goes
        file["nodes"] = [node for node in file["nodes"] if node["path"] not in gone]


def boxes(draft: Draft) -> None:
    """Boxes of volumes."""
    rng = draft.rng
    axes = rng.randint(1, 3)
    if rng.random() < 0.5:
        draft.use_files(draft.lengths(2, 2))
    else:
        draft.use_groups(draft.lengths(3, 2))
    unit = 2 if draft.seed % 5 == 0 else 1  # of what a field of another resolution has half as many
    shape = [unit * rng.randint(1, 4 // unit) for _ in range(axes)]
    options: dict[str, Any] = {} if not draft.places[0].path else {"of": "g/*"}
    pad = rng.choice([None, "edge", "reflect", "zeros", 6])
    for place in draft.places:
        place.others = tuple(2 * rng.randint((n + 1) // 2 + (pad is not None), n + 4) for n in shape)
    if pad is not None:
        options["pad"] = pad
        if rng.random() < 0.8:
            options["halo"] = call("tuple", *(unit * rng.randint(0, 2 // unit) for _ in range(axes)))
    at = rng.choice(["grid", "grid", "random", "listed"])
    if at == "listed":
        found = []
        for _ in range(rng.randint(1, 12)):
            number = rng.randrange(len(draft.places))
            place = draft.places[number]
            origin = [unit * rng.randint(0, (n - size) // unit) for n, size in zip(place.others, shape, strict=True)]
            found.append([number, *origin] if len(draft.places) > 1 else origin)
        options["at"] = found
        draft.count = len(found)
    elif at == "grid":
        options["at"] = "grid"
        if rng.random() < 0.6:
            options["stride"] = call("tuple", *(unit * rng.randint(1, 4 // unit) for _ in range(axes)))
    else:
        options["per_epoch"] = rng.randint(1, 20)
        if rng.random() < 0.5:
            options["draw"] = "segments"
    draft.samples = call("Boxes", call("tuple", *shape), **options)
    for k in range(rng.randint(1, 2)):
        channels = [rng.randint(1, 3)] if rng.random() < 0.3 else []
        kind = rng.choice(storage.SOLID) if rng.random() < 0.2 else rng.choice(storage.NUMBERS)
        draft.add(f"v{k}", lambda place, channels=channels: [*channels, *place.others], kind)
        draft.fields[f"v{k}"] = f"v{k}"
    if unit > 1:
        scales = [rng.choice([1, 0.5]) for _ in shape]
        draft.add("other", lambda place: [int(n * k) for n, k in zip(place.others, scales, strict=True)], "<f4")
        draft.fields["other"] = call("Field", "other", scale=call("tuple", *scales))
    if rng.random() < 0.2:
        rng.choice([fields.attribute, fields.attribute, fields.attribute_lengths, fields.shared])(draft)
    if rng.random() < 0.7 and at != "random":
        draft.fields["number"] = call("SampleNumber")


KINDS = {
    "rows": (rows, "rows", 3.0),
    "group_rows": (group_rows, "Rows", 1.0),
    "axis_rows": (axis_rows, "Rows", 0.6),
    "sequences": (sequences, "Sequences", 2.5),
    "table": (table, "Table", 1.2),
    "objects": (objects, "Objects", 2.5),
    "boxes": (boxes, "Boxes", 1.2),
    "unlike": (unlike.unlike, "rows", 1.5),
}
"""By the kind of samples what draws them, what they are called in a case, and how often they are drawn."""


def case_of(seed: int, kind: str | None = None) -> dict[str, Any]:
    """Draw the case of a seed, of one kind of samples or of any."""
    rng = random.Random(seed)
    drawn = rng.choices(list(KINDS), [share for *_, share in KINDS.values()])[0]
    kind = kind or drawn
    draw, called, _ = KINDS[kind]
    draft = Draft(rng, seed, called)
    draw(draft)
    if rng.random() < 0.4:
        draft.shuffle()
    source = list(dict.fromkeys(place.file["name"] for place in draft.places))
    style = rng.choice(["dict", "dict", "dict", "list", "one"])
    trees = draft.fields
    if style == "one":
        trees = {"first": trees["first"]} if "first" in trees and draft.axis == 0 else trees
        style = "one" if len(trees) == 1 else "list"
    found = {
        "seed": seed,
        "kind": kind,
        "marks": sorted(draft.marks.union(*(storage.marks_of(one) for one in types_of(draft)))),
        "files": sorted(draft.files, key=lambda file: not file["name"].startswith("other-")),  # what links are to
        "source": source,
        "samples": draft.samples,
        "fields": trees,
        "style": style,
        "loader": loader_of(rng),
        "forms": forms_of(rng),
        "streamed": seed % 2,  # so small datasets are kept in memory otherwise
    }
    if rng.random() < (0.5 if kind == "objects" else 0.2):
        found["many"] = 1  # objects from which on headers are read as bytes: 2,000 are seldom drawn
    if kind == "unlike":
        found["forms"] = [form_of(rng, name) for name in unlike.drawn_forms(rng)]
        stops.drawn_beside(random.Random(f"beside {seed}"), found, [])
        return dressed(rng, found)
    if rng.random() < 0.05 and (some := matched(draft)):
        place = rng.choice(some)
        place.file["damaged"] = place.path
        found["forms"] = [{"form": "damaged", "path": place.path}]
    elif rng.random() < 0.7 and (chosen := checked(draft)):
        file, path = rng.choice(chosen)
        found["forms"].append({"form": "corrupt", "file": file, "path": path, "seed": rng.randrange(1000)})
    if "declared" in found["marks"] and rng.random() < 0.6:
        found["forms"].append(form_of(rng, "pickled"))
    if "tiny or huge" in found["marks"] and rng.random() < 0.5:
        found["forms"].append(form_of(rng, "measured"))
    if any(reallocates(node) for file in draft.files for node in file["nodes"]):
        found["forms"].append(form_of(rng, "repacked"))
    has_columns = any(node["path"].endswith("indices") for file in draft.files for node in file["nodes"])
    if rng.random() < (0.9 if has_columns else 0.5 if kind == "objects" else 0.25) and "damaged" not in [
        form["form"] for form in found["forms"]
    ]:
        found["forms"] += hazard_of(rng, draft)
    if found["forms"][0]["form"] == "damaged":
        del found["forms"][1:]  # they are drawn, too, so that what follows stays what it is
    stops.drawn_beside(random.Random(f"beside {seed}"), found, checked(draft))
    return dressed(rng, found)


def reallocates(node: dict[str, Any]) -> bool:
    """Tell whether values of variable length are behind a filter whose output is longer than its input."""
    return storage.has_varying(node.get("type")) and not {"gzip", "lzf"} >= {*node.get("filters", ["gzip"])}


def hazard_of(rng: random.Random, draft: Draft) -> list[dict[str, Any]]:
    """Draw bytes that change between epochs, or a key that is damaged."""
    nodes = [
        (file["name"], node) for file in draft.files for node in file["nodes"] if "shape" in node and "attr" not in node
    ]
    told = [one for one in nodes if one[1]["path"].endswith(("indices", "indptr", "_rows", "_at", "_to"))]
    old = {file["name"] for file in draft.files if file["libver"][0] in ("earliest", "v18")}
    chunked = [one for one in nodes if one[0] in old and has_chunks(one[1])]
    if not nodes:
        return []
    found: list[dict[str, Any]] = []
    columns = [one for one in told if one[1]["path"].endswith("indices")]
    file, node = rng.choice(
        columns if columns and rng.random() < 0.6 else told if told and rng.random() < 0.5 else nodes
    )
    how = {"with": rng.choice(["random", "huge", "many", "negative", "one", "most"]), "unseen": rng.random() < 0.7}
    keep = rng.choice(["never", "auto"])
    found.append(
        {"form": "changed", "file": file, "path": node["path"], "seed": rng.randrange(1000), "keep": keep, **how}
    )
    if chunked and rng.random() < 0.5:
        file, node = rng.choice(chunked)
        found = [{"form": "keyed", "file": file, "path": node["path"], "seed": rng.randrange(1000)}]
    return found


def has_chunks(node: dict[str, Any]) -> bool:
    """Tell whether a dataset has several chunks."""
    return bool(node.get("chunks")) and any(n > chunk for n, chunk in zip(node["shape"], node["chunks"], strict=True))


def dressed(rng: random.Random, case: dict[str, Any]) -> dict[str, Any]:
    """Give a case other names, and its lists another form."""
    forms = {form["form"]: form for form in case["forms"]}
    case["forms"] = [*forms.values()]
    of = (case["samples"] or call(""))["options"].get("of")
    is_one = isinstance(of, str) and "*" not in of and of not in ("rows", "files")
    if rng.random() < (0.8 if is_one else 0.12):
        case["marks"] = sorted({*case["marks"], "names"})
        case = names.renamed(rng, case)
    if rng.random() < 0.3:
        case["worn"] = containers.worn(rng, case)
        case["marks"] = sorted({*case["marks"], *(f"as {how}" for how in case["worn"].values())})
    return case


def types_of(draft: Draft) -> list[Any]:
    """Return the types of everything in a draft's files."""
    return [node["type"] for file in draft.files for node in file["nodes"] if "type" in node]


def checked(draft: Draft) -> list[tuple[str, str]]:
    """Return the files and the names of the datasets whose chunks tell whether their bytes are sound."""
    return [
        (file["name"], node["path"])
        for file in draft.files
        for node in file["nodes"]
        if node.get("chunks")
        and {"gzip", "fletcher32"} & {*node.get("filters", ())}
        and not (node.get("masked") or node["path"].startswith("behind_"))  # what a link leads to is named by the link
    ]


def matched(draft: Draft) -> list[Place]:
    """Return the groups and datasets in a file that samples are of, by a pattern or by their names."""
    tree = draft.samples or {"call": "", "args": [], "options": {}}
    of = tree["options"].get("of") or (tree["args"][0] if tree["call"] == "Objects" else None)
    elsewhere = {(file["name"], node["path"]) for file in draft.files for node in file["nodes"] if "external" in node}
    some = [place for place in draft.places if place.path and (isinstance(of, str) or place.path in (of or ()))]
    return [place for place in some if (place.file["name"], place.path) not in elsewhere]


def loader_of(rng: random.Random) -> dict[str, Any]:
    """Draw what a loader is told besides."""
    size, threads = rng.choice([1, 3, 7, 16, 64]), rng.choice([0, 1, 2])
    found: dict[str, Any] = {"batch_size": size, "num_workers": threads, "seed": 0}
    if rng.random() < 0.3:
        found["window"] = rng.choice(["all", 5, 20])
    if rng.random() < 0.3:
        found["keep"] = "never"
    if rng.random() < 0.2:
        found["memory_budget"] = rng.choice([20_000, 200_000, "4MiB"])
    if rng.random() < 0.15:
        found["drop_last"] = True
    return found


def forms_of(rng: random.Random) -> list[dict[str, Any]]:
    """Draw the ways in which samples are asked for."""
    names = rng.choices(list(FORMS), [share for _, share in FORMS.values()], k=3)
    return [form_of(rng, name) for name in dict.fromkeys(names)]


def form_of(rng: random.Random, name: str) -> dict[str, Any]:
    """Draw the options of a form."""
    found: dict[str, Any] = {"form": name, "seed": rng.randrange(1000)}
    if name == "items":
        found["negative"] = rng.random() < 0.3
    elif name == "sliced":
        found["slice"] = [rng.choice([None, 0, 2]), rng.choice([None, 5, 20]), rng.choice([None, 1, 3, -1])]
    elif name == "shuffled":
        found["epochs"] = rng.choice([1, 2])
        found["on"] = rng.choice([None, None, None, "device"])
    elif name == "stock":
        found["sampler"] = rng.random() < 0.7
    elif name == "ranked":
        found["ranks"] = rng.choice([2, 3])
    elif name == "resumed":
        found |= {"ranks": rng.choice([1, 2]), "then": rng.choice([1, 2, 3]), "batches": rng.randint(0, 3)}
    elif name == "chosen":
        found["torch"] = rng.random() < 0.4
    elif name == "repacked":
        found["with"] = rng.choice(
            [{}, {"compress": "gzip"}, {"compress": "lz4", "chunk_nbytes": 4096}, {"contiguous": True}]
        )
    elif name == "drawn":
        found["how"] = rng.choice(["weights", "balance", "count", "bootstrap"])
    elif name == "remote" and found["seed"] % 2:
        found["cache"] = [None, 50_000][found["seed"] // 2 % 2]  # its size
    elif name == "served":
        found["how"] = rng.choice(["no tags", "weak tags", "tags", "dates", "dates"])
        found["replaced"] = rng.random() < 0.8
    elif name == "sized":
        found["bucket"] = rng.random() < 0.5
    elif name == "transformed":
        found["workers"] = 1 if rng.random() < 0.03 else 0
    return found
