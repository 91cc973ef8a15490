"""A case that is being drawn: its files, the parts of them that fields are looked up in, and its fields."""

import collections
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import storage


@dataclass
class Place:
    """A file, group or dataset that fields are in."""

    file: dict[str, Any]
    path: str
    rows: int
    others: tuple[int, ...] = ()

    def name(self, field: str) -> str:
        """Return the path of a field in its file."""
        return f"{self.path}/{field}".lstrip("/") if field != "." else self.path


class Draft:
    """What has been drawn so far."""

    def __init__(self, rng: random.Random, seed: int, kind: str) -> None:
        self.rng, self.kind = rng, kind
        self.fields: dict[str, Any] = {}
        self.files: list[dict[str, Any]] = []
        self.places: list[Place] = []
        self.samples: Any = None
        self.axis = 0
        self.seeds = 0
        self.count: int | None = None
        self.marks: set[str] = set()
        self.seed = seed

    def new_file(self, name: str) -> dict[str, Any]:
        """Begin a file."""
        self.files.append(storage.drawn_file(self.rng, name))
        return self.files[-1]

    def use_files(self, lengths: list[int]) -> None:
        """Make each file a place, in any order of their names."""
        numbers = self.rng.sample(range(len(lengths)), len(lengths))
        self.places = [Place(self.new_file(f"f{k}.h5"), "", rows) for k, rows in zip(numbers, lengths, strict=True)]

    def use_groups(self, lengths: list[int], pattern: str = "g/e{}", files: int = 1) -> None:
        """Make groups the places, of one file or several, each file some of them."""
        every = [self.new_file(f"f{k}.h5") for k in range(files)]
        parent = pattern.rpartition("/")[0]
        for file in every if parent else []:
            file["nodes"].append({**storage.drawn_group(self.rng, parent), "beside": 0})
        for k, rows in enumerate(lengths):
            file = every[k * files // len(lengths)]
            path = pattern.replace("{}", str(k))
            file["nodes"].append(storage.drawn_group(self.rng, path))
            self.places.append(Place(file, path, rows))

    def shuffle(self) -> None:
        """Write each file in another order: one object after the other, or the datasets of all of them mixed."""
        is_mixed = self.rng.random() < 0.5
        for file in self.files:
            ranks = collections.defaultdict[str, float](self.rng.random)

            def rank(node: dict[str, Any], ranks: Any = ranks) -> list[float]:
                if node["path"].startswith("behind_"):  # what links are to
                    return []
                parts = node["path"].split("/")
                if not is_mixed:  # a group comes before what is in it
                    return [ranks["/".join(parts[: k + 1])] for k in range(len(parts))]
                if "attr" in node:
                    return [2]
                return [1, ranks[node["path"]]] if {"type", "soft", "external"} & node.keys() else [0]

            file["nodes"].sort(key=rank)

    def add(
        self,
        field: str,
        shape_of: Callable[[Place], list[int]],
        kind: Any,
        data: Callable[[Place], Any] | None = None,
        alike: bool | None = None,
        **fixed: Any,
    ) -> None:
        """Add a dataset to each place; each lies as the first one does, or each in its own way."""
        alike = self.rng.random() < 0.6 if alike is None else alike
        state = self.rng.getrandbits(40)
        for place in self.places:
            self.seeds += 1
            rng = random.Random(state) if alike else self.rng
            shape, stored = shape_of(place), kind(place) if callable(kind) else kind
            node = storage.stored(rng, shape, stored, self.seeds, place.file["libver"])
            node = {**node, "path": place.name(field), **fixed}
            if data is not None:
                node = {**node, "data": data(place), "written": 1, "masked": False}
                node.pop("fill", None)
            link = self.rng.random()
            if node.get("chunks") and link < 0.06:
                self._put_behind(place, node, "soft" if link < 0.03 else "external")
            else:
                place.file["nodes"].append(node)

    def _put_behind(self, place: Place, node: dict[str, Any], link: str) -> None:
        """Store a dataset elsewhere, in its file or in another, and link to it."""
        target = f"behind_{self.seeds}"
        if link == "soft":
            place.file["nodes"] += [{**node, "path": target}, {"path": node["path"], "soft": f"/{target}"}]
            return
        name = f"other-{place.file['name']}"
        other = next((file for file in self.files if file["name"] == name), None) or self.new_file(name)
        other["nodes"].append({**node, "path": target})
        place.file["nodes"].append({"path": node["path"], "external": [name, f"/{target}"]})

    def attribute(self, name: str, kind: Any, shape: Callable[[Place], list[int]], of: str = "") -> None:
        """Add an attribute to each place, or to a dataset in it."""
        for place in self.places:
            self.seeds += 1
            path = (place.name(of) if of else place.path) or "/"
            place.file["nodes"].append(
                {"path": path, "attr": name, "type": kind, "shape": shape(place), "seed": self.seeds}
            )

    def once(self, path: str, shape: list[int], kind: Any, attributes: tuple[str, ...] = ()) -> None:
        """Add a dataset to each file, and numbers as attributes of it."""
        for file in {place.file["name"]: place.file for place in self.places}.values():
            self.seeds += 1
            file["nodes"].append({**storage.stored(self.rng, shape, kind, self.seeds, file["libver"]), "path": path})
            for name in attributes:
                file["nodes"].append({"path": path, "attr": name, "type": "<i4", "shape": [], "seed": self.seeds})

    def tail(self, most: int = 2) -> list[int]:
        """Draw the shape of a row."""
        found = [self.rng.randint(1, 5) for _ in range(self.rng.randint(0, most))]
        if found and not self.axis and self.rng.random() < 0.05:  # rows without elements
            found[self.rng.randrange(len(found))] = 0
        return found

    def unique(self, stem: str) -> str:
        """Return a name that no field has."""
        return next(name for name in (stem, *(f"{stem}{k}" for k in range(99))) if name not in self.fields)

    def lengths(self, most: int = 4, rows: int = 14, least: int = 1) -> list[int]:
        """Draw numbers of rows."""
        return [self.rng.randint(least, rows) for _ in range(self.rng.randint(1, most))]

    def mark(self, *names: str) -> None:
        """Note what is drawn seldom, so that it is counted."""
        self.marks.update(names)

    def ragged(self, numeric: bool = True) -> dict[str, Any]:
        """Draw how a ragged field comes."""
        how = self.rng.choice(["packed", "pad", "list", "nested"] if numeric else ["list"])
        found: dict[str, Any] = {"ragged": how}
        if how == "pad" and self.rng.random() < 0.5:
            found["pad_value"] = 9
        if self.rng.random() < 0.2:
            found["max_length"] = self.rng.randint(1, 4)
        return found

    def columns(self, tail: list[int]) -> Any:
        """Draw columns of a row's shape."""
        from .calls import call

        rng = self.rng

        def along(n: int) -> Any:
            if n == 0:
                return call("slice", None)
            how = rng.choice(["slice", "list", "mask", "int", "all"])
            if how == "slice":
                first, step = rng.randint(0, n - 1), rng.choice([None, -1, 2])
                return call("slice", -1, first - n - 1, -1) if step == -1 else call("slice", first, n, step)
            if how == "list":
                return [rng.randrange(n) for _ in range(rng.randint(1, n))] if n < 2 else rng.sample(range(n), 2)
            if how == "mask":
                mask = [rng.random() < 0.6 for _ in range(n)]
                return mask if any(mask) else [True] * n
            return rng.randrange(n) - n * (n % 2) if how == "int" else call("slice", None)  # of some from the end

        if len(tail) == 1 or rng.random() < 0.4:
            first = along(tail[0])
            return first if not isinstance(first, int) else [first]
        every = [along(n) for n in tail]
        if rng.random() < 0.4:
            every = [every[0], call("...")] if rng.random() < 0.5 else [call("..."), every[-1]]
        elif all(isinstance(one, int) for one in every):
            every[0] = call("slice", None)
        return call("tuple", *every)
