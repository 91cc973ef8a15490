"""Similar datasets, groups and files: each is a sample, rows of samples, or a recording. Pure, from the listing."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath

from h5stream.advice.listing import DatasetEntry, Listing
from h5stream.advice.program import (
    MOST_FIELDS,
    Lines,
    Proposal,
    StreamRecipe,
    form_of,
    keyed,
    last_name,
    most_of,
    named,
    quoted,
    with_options,
)
from h5stream.base.limits import cached_property
from h5stream.base.texts import counted, shape_text
from h5stream.samples.whole import (
    LABEL,
    LEAST_GROUPS,
    LONG_COUNT,
    LONG_NBYTES,
    MANY_GROUPS,
    MIN_SIMILAR,
    MOST,
    PART,
    STEPS,
    are_samples,
    datasets_are_samples,
    numbered,
    pattern_of,
)
from h5stream.samples.whole import differing_axes as differing_shape_axes

MOST_TRIED = 2000  # datasets and groups that a program is tried on; with more, only those that were inspected
WINDOW = 16  # rows of a window of an episode, in printed programs

INDEX_NAME = re.compile(r"(^|[/_])(idxs?|index|indices|ids?|rows?)$", re.I)
_SAYS = re.compile(rf"{LABEL.pattern}|(^|_)(max|min|mean|std|scale|norm)", re.I)
_EPISODE = re.compile(r"(.*[/_])?(traj|trajectory|demo|episode|ep|rollout)s?[_-]?\d+(\.\w+)?$", re.I)

Inside = dict[str, DatasetEntry]


class _SimilarObjects:
    """Datasets, groups or files with the same contents, and properties that tell how to stream them."""

    def __init__(
        self,
        seen: Listing,
        what: str,  # "datasets", "groups" or "files"
        where: str,  # the group or the pattern that holds them
        objects: Mapping[
            str, Inside
        ],  # the inspected ones, with their datasets by relative path; a dataset itself is "."
        pattern: str,  # as given to `Objects`, `Rows` and `Sequences`; empty if lines of code find them
        count: int,  # all of them, inspected or not
    ) -> None:
        self.what, self.where, self.count = what, where or "The root", count
        self.objects, self.every = objects, [*objects.values()]
        self.first = first = self.every[0]
        own, *others = (_attributes(seen, name, inside) for name, inside in objects.items())
        self.attributes = [name for name in own if all(name in other for other in others)]
        self.before = () if pattern else _finding_lines(seen.path, objects, self.attributes)
        self.of = quoted(pattern) if pattern else "names" if what == "datasets" else "groups"
        # The number of rows of each dataset in each object; and the datasets with as many rows as most of the data.
        self.counts = {n: tuple(inside[n].rows or 0 for inside in self.every) for n, e in first.items() if e.shape}
        nbytes = defaultdict[tuple[int, ...], int](int)
        for name, counts in self.counts.items():
            nbytes[counts] += sum(inside[name].raw_nbytes for inside in self.every)
        self.lengths = max(nbytes, key=lambda counts: nbytes[counts], default=())
        self.rows = [name for name, counts in self.counts.items() if counts == self.lengths]
        # Datasets with one row more, or one row less, in each object.
        more = {name: {n - m for n, m in zip(k, self.lengths, strict=True)} for name, k in self.counts.items()}
        self.longer = [name for name, rows in more.items() if rows in ({1}, {-1})]
        once = [
            name
            for name, entry in first.items()
            if entry.shape is not None and name not in self.rows and not self.differing(name) and not entry.clues.image
        ]
        self.once = {name: f'Field({quoted(name)}, take="all")' for name in once[:MOST_FIELDS]}

    @cached_property
    def is_batches(self) -> bool:
        """Whether each object holds many images, channels first, or is named as a part."""
        whole = self.what == "datasets"
        picture = self.first["."].inner if whole and self.first["."].axes == 4 else ()
        return picture[:1] in ((1,), (3,)) or (whole and all(map(PART.search, self.objects)))

    @cached_property
    def is_episode(self) -> bool:
        """Whether each object is an episode, by its name or the names of its datasets."""
        longest = max(self.lengths, default=0)
        named_so = self.what != "datasets" and longest > 1 and all(map(_EPISODE.match, self.objects))
        return named_so or sum(bool(STEPS.search(name)) for name in (*self.rows, *self.longer)) > 1

    @cached_property
    def steps(self) -> str:
        """The kind of sequence if rows follow one another: an episode or a film; else empty."""
        if self.is_episode:
            return "an episode"
        whole, longest = self.what == "datasets", max(self.lengths, default=0)
        picture = self.first["."].inner if whole and self.first["."].axes == 4 else ()
        years = self.what == "files" and all(re.search(r"(19|20)\d\d", PurePath(name).name) for name in self.objects)
        is_film = picture[-1:] in ((1,), (3,)) and self.differing(".") == [0]
        return "a film" if is_film or (years and len(self.first) == 1 and longest >= WINDOW) else ""

    @cached_property
    def is_table(self) -> bool:
        """Whether rows are samples by their names or types: steps of an episode, or compounds."""
        has_steps = any(self.first[name].members or STEPS.search(name) for name in self.rows)
        return self.what != "datasets" and (has_steps or self.is_episode)

    @cached_property
    def is_image(self) -> bool:
        """Whether any dataset of the first object holds an image."""
        return any(map(_is_image, self.first.values()))

    @cached_property
    def is_labelled(self) -> bool:
        """Whether any common attribute is a label by its name."""
        return any(map(LABEL.search, self.attributes))

    @cached_property
    def nbytes(self) -> int:
        """The bytes of the largest object."""
        return max(sum(entry.raw_nbytes for entry in inside.values()) for inside in self.every)

    def differing(self, name: str) -> list[int]:
        return differing_axes([inside[name] for inside in self.every])

    def forms(self, names: Iterable[str], *, whole: bool = False) -> dict[str, str]:
        """Return fields for some of the datasets, as code, taken whole or row by row."""
        columns = {name: [inside[name] for inside in self.every] for name in most_of({n: self.first[n] for n in names})}
        return {"x" if name == "." else name: _form_of(entries, name, whole=whole) for name, entries in columns.items()}

    def proposal(self, key: str, is_what: str, recipes: Sequence[StreamRecipe]) -> Proposal:
        key, what = "dataset_a_sample" if self.what == "datasets" else key, f"{_holds(self)}: each is {is_what}"
        about = [entry for inside in self.every for entry in inside.values()]
        is_all = self.what == "files" or self.count <= MOST_TRIED
        tried_on = {} if is_all else {self.of: [*self.objects]}
        return Proposal(
            key, what, about, "", recipes, before=self.before, example=[*self.first.values()], tried_on=tried_on
        )


def _attributes(seen: Listing, name: str, inside: Inside) -> list[str]:
    """Return the attributes of an object that can be fields, and those inside it that look like labels."""
    if "." in inside:
        return [f"@{one}" for one in inside["."].clues.attributes]
    inner = {f"{path}@{one}" for path, entry in inside.items() for one in entry.clues.attributes}
    inner |= {f"{group[len(name) + 1 :]}@{one}" for group in seen.below[name] for one in seen.groups[group].attributes}
    return [*(f"@{one}" for one in seen.groups[name].attributes), *sorted(filter(LABEL.search, inner))]


def _form_of(entries: Sequence[DatasetEntry], name: str, *, whole: bool = True) -> str:
    """Return similar datasets as one field, as code, taken whole or row by row."""
    axes = differing_axes(entries)
    return form_of(entries[0], name, ragged="arrays" if any(axes) else "pad" if axes and whole else "")


def differing_axes(entries: Sequence[DatasetEntry]) -> list[int]:
    """Return the axes along which datasets differ in length."""
    return differing_shape_axes([entry.shape or () for entry in entries])


# --- samples of similar objects ------------------------------------------------------------------------------


def _proposals(similar: _SimilarObjects) -> Iterator[Proposal]:
    if not similar.is_batches and (axis := _stretch_axis(similar)) is not None:
        yield _as_stretches(similar, axis)
    yield from _as_samples(similar) if _is_a_sample(similar) else [_as_rows(similar)]


def _stretch_axis(similar: _SimilarObjects) -> int | None:
    """Return the time axis if each object is a recording to be cut into samples; None otherwise."""
    inside = [similar.first[name] for name in similar.rows]
    shape = inside[0].shape or () if inside else ()
    if similar.is_image or similar.is_table or not shape or any(entry.shape != shape for entry in inside):
        return None
    axes, of_datasets = similar.differing(similar.rows[0]), similar.what == "datasets"
    if len(axes) > 1:
        return None
    # An axis that is long compared to the others is time, as in channels x time.
    axis = axes[0] if axes else int(len(shape) == 2 and _is_long(shape, 1))
    is_flat = len(shape) == 1 and len(inside) == len(similar.first) and not of_datasets and not similar.is_labelled
    may_be_time = bool(axes) and (axis > 0 or is_flat)
    is_time = may_be_time and all(_is_long(one[similar.rows[0]].shape or (), axis) for one in similar.every)
    return axis if is_time or (of_datasets and similar.nbytes > LONG_NBYTES) else None


def _is_long(shape: tuple[int, ...], axis: int) -> bool:
    others = [length for k, length in enumerate(shape) if k != axis]
    return bool(shape) and shape[axis] >= max(LONG_COUNT, 4 * max(others, default=0))


def _is_a_sample(similar: _SimilarObjects) -> bool:
    """Return whether each object is one sample, instead of rows that are."""
    first = similar.first
    if similar.is_image or similar.what == "datasets":
        return not (similar.is_batches or (similar.what == "datasets" and similar.steps))
    if similar.is_table:
        return False
    shapes = {name: [inside[name].shape or () for inside in similar.every] for name in first}
    return are_samples(shapes, similar.rows, nbytes=similar.nbytes, labelled=similar.is_labelled)


def _as_samples(similar: _SimilarObjects) -> Iterator[Proposal]:
    """Propose each object whole: with all attributes, with labels alone, or without objects that lack a field.

    Long objects of different lengths may also be recordings.
    """
    labels = _labels(similar.attributes)
    is_time = similar.rows and similar.differing(similar.rows[0]) == [0] and not similar.is_image
    is_long = sum(similar.lengths) >= LONG_COUNT * len(similar.lengths)
    others = [_stretches(similar, 0)] if is_time and is_long else []
    others += [_rows_of(similar)] if is_time and similar.what != "datasets" else []
    recipes = [
        _whole(similar, similar.attributes[:MOST_FIELDS]),
        _whole(similar, labels),
        _whole(similar, labels, ', missing="skip"'),
        _whole(similar, ()),
    ]
    for recipe in recipes:
        yield similar.proposal("group_a_sample", "a sample of its own", [recipe, *others])


def _rows_of(similar: _SimilarObjects) -> StreamRecipe:
    """Return a recipe for each row, with single values of its group or file."""
    labels = {last_name(name): quoted(name) for name in _labels(similar.attributes)}
    samples = "" if similar.what == "files" and not similar.once else f"Rows(of={similar.of})"
    does = "takes each row of all of them" + ', and take="all" what each has once' * bool(similar.once)
    return StreamRecipe({**similar.forms(similar.rows), **similar.once, **labels}, samples, does)


def _whole(similar: _SimilarObjects, attributes: Sequence[str], missing: str = "") -> StreamRecipe:
    fields = similar.forms(similar.first, whole=True) | {last_name(name): quoted(name) for name in attributes}
    words = {
        '"."': '"." is the thing itself',
        "ragged=": "ragged= says how shapes that differ become a batch",
        '"@': '"@name" is an attribute of it',
    }
    notes = [words[word] for word in words if any(word in form for form in fields.values())]
    notes += ["those that lack a field are left out"] * bool(missing)
    return StreamRecipe(fields, f"Objects({similar.of}{missing})", "; ".join(["takes each whole", *notes]))


def _as_stretches(similar: _SimilarObjects, axis: int) -> Proposal:
    return similar.proposal("group_a_recording", "a recording", [_stretches(similar, axis), _whole(similar, ())])


def _stretches(similar: _SimilarObjects, axis: int) -> StreamRecipe:
    shortest = min(similar.every, key=lambda inside: (inside[similar.rows[0]].shape or ())[axis])
    count = (shortest[similar.rows[0]].shape or ())[axis]
    length = stretch_length(count, sum(shortest[name].raw_nbytes for name in similar.rows) / count)
    along, which = (f", axis={axis}", f" along axis {axis}") if axis else ("", "")
    samples = f"Sequences({length}, stride={length}, of={similar.of}{along})"
    does = f"cuts them into samples of {length:,}{which}, or of a length of your own"
    fields = {
        "x" if name == "." else name: quoted(name)
        for name in most_of({name: similar.first[name] for name in similar.rows})
    }
    return StreamRecipe(fields | similar.once, samples, does)


def stretch_length(count: int, nbytes: float) -> int:
    """Return the length of samples of a recording with `count` steps of `nbytes` bytes each, rounded to two digits."""
    digits = str(max(1, int(min(count // 4, (1 << 20) / nbytes))))
    return int(digits[:2].ljust(len(digits), "0"))


def _as_rows(similar: _SimilarObjects) -> Proposal:
    """Propose rows of all objects; for episodes and films, windows of consecutive rows first."""
    of, steps = similar.of, similar.steps
    every_row = [*similar.rows, *(similar.longer if steps else ())]
    # The next row is also that of another sample.
    now = [name for name in every_row if not (steps and re.search(r"(^|/)next_", name))] or every_row
    fields, once = similar.forms(now), {k: v for k, v in similar.once.items() if k not in every_row}
    labels = {last_name(name): quoted(name) for name in similar.attributes if _SAYS.search(last_name(name))}
    shortest = ', lengths="shortest"' if steps and similar.longer else ""
    # A sample of several steps has one image; rows of files are consecutive anyway.
    forms = {name: with_options(form, take="[0]" if "decode=" in form else "") for name, form in fields.items()}
    is_plain = similar.what == "files" and not any("ragged=" in form for form in fields.values())
    windows = StreamRecipe(
        {**forms, **once},
        f'Sequences({WINDOW}, of={of}, pad="edge"{shortest})',
        "takes rows that follow one another in one of them",
    )
    rows = StreamRecipe(
        {**fields, **once, **labels}, "" if is_plain else f"Rows(of={of})", "takes each row of all of them"
    )
    recipes = [windows, rows] if steps else [rows, windows]
    is_what = steps or "a recording, or a part of one table"
    return similar.proposal("group_a_recording", is_what, [*recipes, _whole(similar, ())])


def _holds(similar: _SimilarObjects) -> str:
    """Return the beginning of a sentence that describes the objects."""
    name = next(iter(similar.objects))
    example = PurePath(name).name if similar.what == "files" else repr(name)
    holds = f"{similar.where} holds {similar.count:,} like {similar.what}"
    (path, entry), *others = similar.first.items()
    if not others and not entry.members:
        sizes = sorted((inside[path] for inside in similar.every), key=lambda one: one.raw_nbytes)
        shapes = list(dict.fromkeys(shape_text(one.shape or ()) for one in (sizes[0], sizes[-1])))
        form = f"{entry.clues.image} images" if similar.is_image else f"{' to '.join(shapes)} {entry.dtype}"
        return f"{holds} ({form}, such as {example})" if path == "." else f"{holds} ({path}: {form}; such as {example})"
    lengths = sorted(similar.lengths)
    rows = " to ".join(f"{length:,}" for length in dict.fromkeys((lengths[0], lengths[-1])))
    inside = ", ".join([*similar.first][:3]) + (" ..." if len(similar.first) > 3 else "")
    return f"{holds} of {rows} {'row' if rows == '1' else 'rows'} (such as {example}, with {inside})"


def _labels(attributes: Sequence[str]) -> list[str]:
    """Return up to two attributes: those that look like labels, else the first."""
    return ([name for name in attributes if LABEL.search(name)] or [*attributes[:1]])[:2]


# --- datasets ----------------------------------------------------------------------------------------------


def like_datasets(seen: Listing) -> Iterator[Proposal]:
    """Find datasets that are one sample each: in one group, in several parallel groups, or in pairs."""
    families: dict[tuple[str, ...], dict[str, Inside]] = defaultdict(dict)
    by_names: dict[tuple[str, frozenset[str]], dict[str, Inside]] = defaultdict(dict)
    by_stems: dict[frozenset[str], dict[str, dict[str, Inside]]] = defaultdict(dict)
    for group, members in seen.by_group.items():
        parent = f"/{group.rpartition('/')[0]}" if group else ""
        if stems := _stems(members):
            by_stems[frozenset(stems)][group] = stems
        in_stems = {stem.replace("{}", number) for stem, similar in stems.items() for number in similar}
        for key, similar in _families({n: e for n, e in members.items() if n not in in_stems}).items():
            if _are_samples(similar):
                families[parent, *key][group] = by_names[parent, frozenset(similar)][group] = similar
    for several in by_stems.values():
        if len(several) > 1 and all(re.fullmatch(r".+\{\}", stem) for stems in several.values() for stem in stems):
            yield _stems_in_groups(seen, several)
        for group, stems in several.items():
            yield from _side_by_side(seen, group, stems)
    used: set[str] = set()
    for groups in by_names.values():
        if len(groups) > 1 and not numbered(groups) and not re.search(r"[{}]", "".join(groups)):
            yield from _side_by_side(seen, "", {f"{group}/{{}}": similar for group, similar in groups.items()})
            used.update(groups)
    for groups in families.values():
        yield from _in_groups(seen, {group: similar for group, similar in groups.items() if group not in used})


def _families(members: Mapping[str, DatasetEntry]) -> dict[tuple[str, ...], Inside]:
    """Group the datasets of a group by type and number of axes."""
    families: dict[tuple[str, ...], Inside] = defaultdict(dict)
    for name, entry in members.items():
        if _is_image(entry):
            families["image", entry.clues.image][name] = entry
        elif entry.shape and entry.rows and not entry.variable_length and not entry.members:
            families[entry.dtype, str(entry.axes)][name] = entry
    return families


def _is_image(entry: DatasetEntry) -> bool:
    """Return whether a dataset is a single encoded image."""
    return bool(entry.clues.image) and not entry.inner and not entry.variable_length


def _are_samples(similar: Inside) -> bool:
    shapes = [entry.shape or () for entry in similar.values()]
    return datasets_are_samples(similar, shapes, is_image=bool(next(iter(similar.values())).clues.image))


def _in_groups(seen: Listing, groups: Mapping[str, Inside]) -> Iterator[Proposal]:
    """Propose the datasets of one group, or of several parallel groups whose names match a pattern."""
    above = next(iter(groups), "").rpartition("/")[0]
    names, datasets = (
        [group.rpartition("/")[2] for group in groups],
        {n for similar in groups.values() for n in similar},
    )
    start = f"{above}/" if above else ""
    beside = {e.path[len(start) :].split("/")[0] for e in seen.entries if e.path.startswith(start)}
    levels = (names, beside), (datasets, {name for group in groups for name in seen.by_group[group]})
    together = [(above, groups, pattern_of(above, *levels) if len(groups) > 1 else "")]
    if not together[0][2]:
        together = [(g, {g: similar}, pattern_of(g, (similar, seen.by_group[g]))) for g, similar in groups.items()]
    for where, members, pattern in together:
        every = [entry for similar in members.values() for entry in similar.values()]
        objects = {e.path: {".": e} for e in sorted(every, key=lambda e: e.raw_nbytes, reverse=True)}
        count = sum(seen.count(group, len(similar)) for group, similar in members.items())
        yield from _proposals(_SimilarObjects(seen, "datasets", where, objects, pattern, count))


def _stems(members: Mapping[str, DatasetEntry]) -> dict[str, Inside]:
    """Group datasets such as lr0, hr0, lr1, hr1 by the text around their numbers, if the numbers are the same."""
    by_stem: dict[str, Inside] = defaultdict(dict)
    for name, entry in members.items():
        if (parts := re.fullmatch(r"([^\d{}]*)(\d+)([^\d{}]*)", name)) and entry.rows and not entry.members:
            by_stem[f"{parts[1]}{{}}{parts[3]}"][parts[2]] = entry
    by_numbers: dict[frozenset[str], dict[str, Inside]] = defaultdict(dict)
    for stem, similar in by_stem.items():
        if len({(entry.dtype, entry.axes) for entry in similar.values()}) == 1:
            by_numbers[frozenset(similar)][stem] = similar
    most = max(by_numbers.values(), key=len, default={})
    together = {
        stem.replace("{}", number): entry for stem, similar in most.items() for number, entry in similar.items()
    }
    return most if len(most) > 1 and _are_samples(together) else {}


def _side_by_side(seen: Listing, group: str, families: Mapping[str, Inside]) -> Iterator[Proposal]:
    """Propose datasets with matching names, such as videos/0 and responses/0, as fields of one sample."""
    above, every = f"{group}/" if group else "", [*families.values()]
    forms = {template: _form_of([*similar.values()], above + template) for template, similar in families.items()}
    fields = {_key_of(template): with_options(form, lookup="names") for template, form in forms.items()}
    count = len(every[0])
    starts = [template.removesuffix("{}") for template in families]
    if starts[0].endswith("/"):
        count = seen.count(starts[0][:-1], count)
        names = f"sorted({' & '.join(f'set(f[{quoted(start[:-1])}])' for start in starts)})"
    else:
        listed, (start, end) = f"f[{quoted(group)}]" if group else "f", next(iter(families)).split("{}")
        cut = f".removeprefix({quoted(start)})" * bool(start) + f".removesuffix({quoted(end)})" * bool(end)
        names = f"[k for name in {listed} if (k := name{cut}).isdigit()]"
    one = named([above + template.replace("{}", next(iter(similar))) for template, similar in families.items()])
    what = f"{one} belong together by their names, and so do {count - 1:,} more: each"
    proposal = Proposal(
        "side_by_side",
        f"{what} is a sample of its own",
        [entry for similar in every for entry in similar.values()],
        "lookup= says which are taken, each whole",
        [StreamRecipe(fields)],
        before=(f"with h5py.File({quoted(seen.path)}) as f:", f"    names = {names}"),
        example=[next(iter(similar.values())) for similar in every],
        tried_on={"names": [*every[0]]} if max(count, seen.count(group, 0)) > MOST_TRIED else {},
    )
    if all(e.axes >= 4 and e.rows == every[0][k].rows for similar in every for k, e in similar.items()):
        # Each dataset holds many images.
        inside = (f"{quoted(_key_of(one))}: f{quoted(above + one.replace('{}', '{k}'))}" for one in families)
        source = f"[H5Dataset({quoted(seen.path)}, {{{', '.join(inside)}}}) for k in names]"
        way_out = "A list of datasets takes the rows of one after the other"
        yield replace(
            proposal, what=f"{what} row is a sample", way_out=way_out, recipes=[StreamRecipe({})], source=source
        )
    yield proposal


def _key_of(template: str) -> str:
    return last_name(template.replace("{}", "").strip("/_-")) or "x"


def _stems_in_groups(seen: Listing, groups: Mapping[str, Mapping[str, Inside]]) -> Proposal:
    """Propose a/lr0, a/hr0, b/lr0, b/hr0 as fields of one sample, with the single datasets of each group."""
    first, stems = next(iter(groups.items()))
    starts = ["/" + stem.removesuffix("{}") for stem in stems]
    replaced = (f"[name.replace({quoted(starts[0])}, {quoted(start)}) for name in names]" for start in starts[1:])
    lookups = dict(zip(map(_key_of, stems), ("names", *replaced), strict=True))
    members = {stem.replace("{}", k) for stem, similar in stems.items() for k in similar}
    once = [
        name for name in seen.by_group[first] if name not in members and all(name in seen.by_group[g] for g in groups)
    ]
    lookups |= {name: f'[name.rpartition("/")[0] + {quoted("/" + name)} for name in names]' for name in once}
    about = [e for group in groups.values() for similar in group.values() for e in similar.values()]
    return Proposal(
        "side_by_side",
        f"{named([f'{first}/{stem}' for stem in stems])} belong together by their names: each is a sample",
        [*about, *(seen.by_group[group][name] for group in groups for name in once)],
        "lookup= says which are taken, each whole",
        [StreamRecipe({name: f'Field("{{}}", lookup={text})' for name, text in lookups.items()})],
        before=(
            "names = []",
            f"with h5py.File({quoted(seen.path)}) as f:",
            f"    f.visit(lambda name: names.append(name) if {quoted(starts[0])} in name else None)",
        ),
        example=[next(iter(similar.values())) for similar in stems.values()],
    )


# --- groups ------------------------------------------------------------------------------------------------


def like_groups(seen: Listing) -> Iterator[Proposal]:
    """Find groups with the same contents: each a sample, an episode or a recording, or part of one table."""
    by_parent: dict[str, dict[str, Inside]] = defaultdict(lambda: defaultdict(dict))
    for entry in seen.entries:
        parts = entry.path.split("/")
        for depth in range(len(parts) - 1):
            by_parent["/".join(parts[:depth])][parts[depth]]["/".join(parts[depth + 1 :])] = entry
    used: set[str] = set()
    for parent in sorted(by_parent, key=lambda p: p.count("/") + bool(p)):
        groups, above = by_parent[parent], f"{parent}/" if parent else ""
        inner = _groups_of(seen, above, groups)
        similar = _hold_the_same(inner or groups)
        paths = [entry.path for inside in similar.values() for entry in inside.values()]
        like_samples = numbered(similar) or len(similar) >= MANY_GROUPS
        if len(similar) < LEAST_GROUPS or not like_samples or used & set(paths):
            continue
        used.update(paths)
        if inner:
            count = sum(seen.count(above + name, len(by_parent[above + name])) for name in groups)
            pattern = pattern_of(parent, *_levels(similar, inner))
        else:
            count, pattern = seen.count(parent, len(similar)), pattern_of(parent, (similar, groups))
        objects = {above + name: inside for name, inside in similar.items()}
        yield from _proposals(_SimilarObjects(seen, "groups", parent, objects, pattern, count))


def _groups_of(seen: Listing, above: str, groups: Mapping[str, Inside]) -> dict[str, Inside]:
    """Return the inner groups if all groups contain nothing but many numbered groups.

    Few inner groups also count if each has a label, if their number varies, so that samples of whole groups would
    leave some out, or if no two have the same name.
    """
    inner: dict[str, Inside] = defaultdict(dict)
    counts, names = list[int](), set[str]()
    for name, inside in groups.items():
        children = {path.split("/")[0] for path in inside if "/" in path}
        counts.append(len(children))
        names |= children
        if any("/" not in path for path in inside) or not numbered(children):
            return {}
        for path, entry in inside.items():
            child, _, rest = path.partition("/")
            inner[f"{name}/{child}"][rest] = entry
    is_labelled = all(any(map(LABEL.search, seen.groups[above + name].attributes)) for name in inner)
    are_named_apart = len(names) == sum(counts) > len(counts) >= LEAST_GROUPS
    many = is_labelled or min(counts, default=0) >= MIN_SIMILAR or len(set(counts)) > 1 or are_named_apart
    patterned = many and len(groups) > 1 and pattern_of("", *_levels(inner, inner))
    return inner if patterned and len(_hold_the_same(inner)) == len(inner) else {}


def _levels(names: Iterable[str], all_of: Iterable[str]) -> list[tuple[set[str], set[str]]]:
    """Return the names on each level of nested groups, wanted and existing, as `pattern_of` takes them."""
    wanted, every = ([*zip(*(name.split("/") for name in which), strict=True)] for which in (names, all_of))
    return [(set(one), set(others)) for one, others in zip(wanted, every, strict=True)]


def _hold_the_same(groups: Mapping[str, Inside]) -> dict[str, Inside]:
    """Return the groups that have all common datasets, with the same row shape, and of each only these datasets."""
    groups_with: dict[tuple[str, str, int], list[str]] = defaultdict(list)
    for name, inside in groups.items():
        for relative, entry in inside.items():
            if entry.shape is not None and 0 not in entry.shape:
                groups_with[relative, entry.dtype, entry.axes].append(name)
    most = max(map(len, groups_with.values()), default=0)
    common: dict[str, list[str]] = {}
    for (relative, _, _), names in groups_with.items():
        # If one name has two types, take the one that more groups have.
        if len(names) >= MOST * most and len(names) > len(common.get(relative, ())):
            common[relative] = names
    members = [name for name in groups if all(name in names for names in common.values())]
    if members and not any(groups[members[0]][relative].shape for relative in common):
        return {}  # single values alone
    similar = {name: {relative: groups[name][relative] for relative in common} for name in members}
    by_shape: dict[tuple[tuple[int, ...], ...], list[str]] = defaultdict(list)
    for name, inside in similar.items():
        by_shape[tuple(entry.inner for entry in inside.values())].append(name)
    usual = max(by_shape.values(), key=len, default=[])
    # If no shape is common, each group may have its own.
    return {name: similar[name] for name in usual} if len(usual) >= MOST * len(similar) else similar


def _finding_lines(path: str, objects: Mapping[str, Inside], attributes: Sequence[str]) -> Lines:
    """Return lines of code that find the datasets, or groups, if no pattern does."""
    first, names = next(iter(objects.items()))
    variable, same, listed = "names", ("ndim", "dtype"), Lines()
    is_alike = ["isinstance(one, h5py.Dataset)", *(f"one.{what} == first.{what}" for what in same)]
    if "." not in names:
        one_shape = all(not any(differing_axes([inside[name] for inside in objects.values()])) for name in names)
        variable, same = "groups", ("dtype", "shape[1:]" if one_shape else "ndim")
        listed = ("names = [", *(f"    {quoted(name)}," for name in names), "]")
        of_each = ("name in one", *(f"one[name].{what} == first[name].{what}" for what in same))
        is_alike = ["isinstance(one, h5py.Group)", *(f"all({test} for name in names)" for test in of_each)]
    labels = [quoted(name[1:]) for name in _labels(attributes) if name[0] == "@"]
    tests = [*is_alike, *(f"{name} in one.attrs" for name in labels)]
    return (
        *listed,
        f"with h5py.File({quoted(path)}) as f:",
        f"    first = f[{quoted('/' + first)}]",
        f"    {variable} = [",
        "        one.name",
        f"        for one in f[{quoted('/' + first.rpartition('/')[0])}].values()",
        *(f"        {'and' if place else 'if'} {test}" for place, test in enumerate(tests)),
        "    ]",
    )


# --- files -------------------------------------------------------------------------------------------------


def like_files(name: str, listings: Mapping[str, Listing], count: int) -> list[Proposal]:
    """Propose how to stream files with the same contents: each a sample or a recording, or parts of one table.

    `name` is the pattern of the files; it is empty if they are listed.
    """
    similar = _hold_the_same({path: listing.without().by_path for path, listing in listings.items()})
    if len(similar) < max(2, MOST * len(listings)):
        return []
    roots = {path: listings[path].groups[""] for path in similar}
    where = "The pattern" if name else "The list"
    return [*_proposals(_SimilarObjects(Listing(name, groups=roots), "files", where, similar, "files", count))]


def families_of(paths: Sequence[str]) -> dict[str, list[str]]:
    """Group files whose names differ only in a number, by a pattern; a single file by its own name."""
    families: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        folder, name = os.path.split(path)
        stem, end = os.path.splitext(name)
        families[os.path.join(folder, re.sub(r"\d+(?=\D*$)", "*", stem) + end)].append(path)
    return {pattern if len(similar) > 1 else similar[0]: similar for pattern, similar in families.items()}


def joined_files(families: Mapping[str, Sequence[str]], listings: Mapping[str, Listing]) -> Iterator[Proposal]:
    """Propose samples with fields in several files, or in one file from each of several families."""
    counts = {len(paths) for paths in families.values()}
    inspected = {name: {path: listings[path] for path in paths if path in listings} for name, paths in families.items()}
    if len(families) < 2 or len(counts) > 1 or not all(inspected.values()):
        return
    first = {name: next(iter(listed.values())).without() for name, listed in inspected.items()}
    if counts == {1}:
        yield from _joined_objects(first)
        yield from _joined_rows(first)
        return
    proposals = {name: like_files(name, inspected[name], len(paths)) for name, paths in families.items()}
    parts = {name: several[0] for name, several in proposals.items() if several}
    samples = {part.samples_text for part in parts.values()}
    if len(parts) == len(families) and len(samples) == 1:
        fields = {pattern: part.recipes[0].fields for pattern, part in parts.items()}
        yield _joined(first, fields, counted(counts.pop(), "file"), samples.pop())


def _joined(
    files: Mapping[str, Listing],
    fields: Mapping[str, Mapping[str, str]],
    what: str,
    samples: str = "",
    lookup: Mapping[str, str] | None = None,
    before: Lines = (),
) -> Proposal:
    """Return a proposal whose samples are those of the first file, with fields of all files."""
    (lead, own), *others = fields.items()
    together = dict(own)
    for path, forms in others:
        for name, form in forms.items():
            key = name if name not in together else f"{PurePath(path).stem.strip('*_-')}_{name}"
            together[key] = with_options(form, file=quoted(path), lookup=(lookup or {}).get(path, ""))
    about = [e for listing in files.values() for e in listing.entries]
    what = f"{named([*files])} belong together: a sample has fields of each ({what})"
    way_out = "file= says where a field lies that is not in the first of them"
    return Proposal("joined", what, about, way_out, [StreamRecipe(together, samples)], path=lead, before=before)


def _joined_rows(files: Mapping[str, Listing]) -> Iterator[Proposal]:
    # What sparse matrices are made of are no samples, and no rows of others.
    parts = {f"{group}/{name}" for seen in files.values() for group, names in seen.by_group.items()
             if {"indptr", "indices"} <= names.keys() for name in names}  # fmt: skip
    files = {path: seen.without(parts) for path, seen in files.items()}
    for lead, seen in files.items():
        for rows, own in seen.by_rows.items():
            fields, lookup = {lead: keyed(own)}, dict[str, str]()
            for path, other in files.items():
                beside = other.by_rows.get(rows, [])
                for index in own if path != lead and not beside else ():
                    counts = index.clues.counts
                    if counts and counts.least >= 0 and INDEX_NAME.search(index.path):
                        beside = [e for e in other.entries if e.axes > 1 and (e.rows or 0) > counts.most]
                        lookup[path] = quoted(index.path)
                if path != lead and beside:
                    fields[path] = keyed(beside)
            if len(fields) == len(files) and rows > 1:
                yield _joined(files, fields, f"{rows:,} rows", lookup=lookup)


def _joined_objects(files: Mapping[str, Listing]) -> Iterator[Proposal]:
    """Find groups, or datasets, with equal names in several files."""
    candidates = {
        path: next(like_groups(seen), None) or next(like_datasets(seen), None) for path, seen in files.items()
    }
    parts = {
        path: part
        for path, part in candidates.items()
        if part and part.samples_text.startswith("Objects(") and not part.before
    }
    if len(parts) < len(files):
        return
    names = {path: {e.path.split("/")[0] for e in part.about} for path, part in parts.items()}
    if not set.intersection(*names.values()) or any("/*" in part.samples_text for part in parts.values()):
        return
    lead, *others = parts
    letters = dict(zip(parts, "fghijklm", strict=False))
    opened = ", ".join(f"h5py.File({quoted(path)}) as {letter}" for path, letter in letters.items())
    before = (f"with {opened}:", f"    names = sorted({' & '.join(f'set({letter})' for letter in letters.values())})")
    fields = {lead: parts[lead].recipes[0].fields}
    for path in others:
        fields[path] = {
            name: re.sub(r'"(\.|[^"]*)"', lambda text: '"{}"' if text[1] == "." else f'"{{}}/{text[1]}"', form, count=1)
            for name, form in parts[path].recipes[0].fields.items()
            if '"@' not in form
        }
    yield _joined(files, fields, "those of equal names", "Objects(names)", dict.fromkeys(others, "names"), before)
