"""Datasets, groups and files that are alike: each a sample, or its rows, or stretches of it. Pure, from the listing."""

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
    Way,
    form_of,
    keyed,
    last_name,
    most_of,
    named,
    quoted,
    with_options,
)
from h5stream.base.texts import shape_text
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
from h5stream.samples.whole import differing_axes as differing_axes_of

MOST_TRIED = 2000  # datasets and groups that a program is tried on; of more, on those that were looked at
WINDOW = 16  # rows of a window of an episode, in the lines

INDEX_NAME = re.compile(r"(^|[/_])(idxs?|index|indices|ids?|rows?)$", re.I)
_SAYS = re.compile(rf"{LABEL.pattern}|(^|_)(max|min|mean|std|scale|norm)", re.I)
_EPISODE = re.compile(r"(.*[/_])?(traj|trajectory|demo|episode|ep|rollout)s?[_-]?\d+(\.\w+)?$", re.I)

Inside = dict[str, DatasetEntry]


class _Alike:
    """Datasets, groups or files that hold the same, and what that says of them."""

    def __init__(
        self,
        seen: Listing,
        what: str,  # "datasets", "groups" or "files"
        where: str,  # what holds them
        things: Mapping[str, Inside],  # those looked at, and what each holds by its path inside; a dataset as "."
        pattern: str,  # how `Objects`, `Rows` and `Sequences` are told which they are; empty where lines find them
        count: int,  # of all
    ) -> None:
        self.what, self.where, self.count = what, where or "The root", count
        self.things, self.every = things, [*things.values()]
        self.first = first = self.every[0]
        own, *others = (_attributes(seen, name, inside) for name, inside in things.items())
        self.attributes = [name for name in own if all(name in other for other in others)]
        self.before = () if pattern else _finding_lines(seen.path, things, self.attributes)
        self.of = quoted(pattern) if pattern else "names" if what == "datasets" else "groups"
        # How many rows each of what they hold has in each of them; and what has as many as most of the data has.
        self.counts = {n: tuple(inside[n].rows or 0 for inside in self.every) for n, e in first.items() if e.shape}
        nbytes = defaultdict[tuple[int, ...], int](int)
        for name, counts in self.counts.items():
            nbytes[counts] += sum(inside[name].raw_nbytes for inside in self.every)
        self.lengths = max(nbytes, key=lambda counts: nbytes[counts], default=())
        self.rows = [name for name, counts in self.counts.items() if counts == self.lengths]
        # What has a row more in each of them, or a row less.
        more = {name: {n - m for n, m in zip(k, self.lengths, strict=True)} for name, k in self.counts.items()}
        self.longer = [name for name, rows in more.items() if rows in ({1}, {-1})]
        once = [
            name
            for name, entry in first.items()
            if entry.shape is not None and name not in self.rows and not self.unlike(name) and not entry.image
        ]
        self.once = {name: f'Field({quoted(name)}, take="all")' for name in once[:MOST_FIELDS]}
        whole, longest = what == "datasets", max(self.lengths, default=0)
        # Whether each holds many images, channels first, or says that it is a part.
        picture = first["."].inner if whole and first["."].axes == 4 else ()
        self.is_batches = picture[:1] in ((1,), (3,)) or (whole and all(map(PART.search, things)))
        # What each is if its rows follow one another: an episode, by the names of what they hold or their own, or a
        # film, as files of years are.
        named_so = not whole and longest > 1 and all(map(_EPISODE.match, things))
        is_episode = named_so or sum(bool(STEPS.search(name)) for name in (*self.rows, *self.longer)) > 1
        years = what == "files" and all(re.search(r"(19|20)\d\d", PurePath(name).name) for name in things)
        is_film = picture[-1:] in ((1,), (3,)) and self.unlike(".") == [0]
        is_film = is_film or (years and len(first) == 1 and longest >= WINDOW)
        self.steps = "an episode" if is_episode else "a film" if is_film else ""
        # Whether rows of each are samples by their names or types: steps of an episode, or compounds.
        held = any(first[name].members or STEPS.search(name) for name in self.rows)
        self.is_table = not whole and (held or is_episode)
        self.is_image = any(map(_is_image, first.values()))
        self.is_labelled = any(map(LABEL.search, self.attributes))
        self.nbytes = max(sum(entry.raw_nbytes for entry in inside.values()) for inside in self.every)  # of the largest

    def unlike(self, name: str) -> list[int]:
        return unlike_axes([inside[name] for inside in self.every])

    def forms(self, names: Iterable[str], *, whole: bool = False) -> dict[str, str]:
        """Write some of what they hold as fields, taken whole or row by row."""
        some = {name: [inside[name] for inside in self.every] for name in most_of({n: self.first[n] for n in names})}
        return {"x" if name == "." else name: _form_of(held, name, whole=whole) for name, held in some.items()}

    def proposal(self, key: str, is_what: str, ways: Sequence[Way]) -> Proposal:
        key, what = "dataset_a_sample" if self.what == "datasets" else key, f"{_holds(self)}: each is {is_what}"
        about = [entry for inside in self.every for entry in inside.values()]
        is_all = self.what == "files" or self.count <= MOST_TRIED
        some = {} if is_all else {self.of: [*self.things]}
        return Proposal(key, what, about, "", ways, before=self.before, example=[*self.first.values()], some=some)


def _attributes(seen: Listing, name: str, inside: Inside) -> list[str]:
    """Return the attributes of a thing that can be fields, and those inside it that look like labels."""
    if "." in inside:
        return [f"@{one}" for one in inside["."].attributes]
    held = {f"{path}@{one}" for path, entry in inside.items() for one in entry.attributes}
    held |= {f"{group[len(name) + 1 :]}@{one}" for group in seen.below[name] for one in seen.groups[group].attributes}
    return [*(f"@{one}" for one in seen.groups[name].attributes), *sorted(filter(LABEL.search, held))]


def _form_of(entries: Sequence[DatasetEntry], name: str, *, whole: bool = True) -> str:
    """Write datasets that are alike as one field, taken whole or row by row."""
    axes = unlike_axes(entries)
    return form_of(entries[0], name, ragged="arrays" if any(axes) else "pad" if axes and whole else "")


def unlike_axes(entries: Sequence[DatasetEntry]) -> list[int]:
    """Return the axes along which datasets differ in length."""
    return differing_axes_of([entry.shape or () for entry in entries])


# --- what samples are of them --------------------------------------------------------------------------------


def _proposals(alike: _Alike) -> Iterator[Proposal]:
    if not alike.is_batches and (axis := _stretch_axis(alike)) is not None:
        yield _as_stretches(alike, axis)
    yield from _as_samples(alike) if _is_a_sample(alike) else [_as_rows(alike)]


def _stretch_axis(alike: _Alike) -> int | None:
    """Return the axis along which each is a recording, of which samples are stretches; None where it is none."""
    inside = [alike.first[name] for name in alike.rows]
    shape = inside[0].shape or () if inside else ()
    if alike.is_image or alike.is_table or not shape or any(entry.shape != shape for entry in inside):
        return None
    axes, of_datasets = alike.unlike(alike.rows[0]), alike.what == "datasets"
    if len(axes) > 1:
        return None
    # An axis that is long beside the others is time, as of channels x time.
    axis = axes[0] if axes else int(len(shape) == 2 and _is_long(shape, 1))
    is_flat = len(shape) == 1 and len(inside) == len(alike.first) and not of_datasets and not alike.is_labelled
    may_be_time = bool(axes) and (axis > 0 or is_flat)
    is_time = may_be_time and all(_is_long(one[alike.rows[0]].shape or (), axis) for one in alike.every)
    return axis if is_time or (of_datasets and alike.nbytes > LONG_NBYTES) else None


def _is_long(shape: tuple[int, ...], axis: int) -> bool:
    others = [length for k, length in enumerate(shape) if k != axis]
    return bool(shape) and shape[axis] >= max(LONG_COUNT, 4 * max(others, default=0))


def _is_a_sample(alike: _Alike) -> bool:
    """Tell whether each is a sample, and not rows of which each is one."""
    first = alike.first
    if alike.is_image or alike.what == "datasets":
        return not (alike.is_batches or (alike.what == "datasets" and alike.steps))
    if alike.is_table:
        return False
    shapes = {name: [inside[name].shape or () for inside in alike.every] for name in first}
    return are_samples(shapes, alike.rows, nbytes=alike.nbytes, labelled=alike.is_labelled)


def _as_samples(alike: _Alike) -> Iterator[Proposal]:
    """Propose each of them whole: with all attributes, or with labels alone; where some lack a field, without these.

    Long ones of unlike lengths may be recordings, too.
    """
    labels = _labels(alike.attributes)
    is_time = alike.rows and alike.unlike(alike.rows[0]) == [0] and not alike.is_image
    is_long = sum(alike.lengths) >= LONG_COUNT * len(alike.lengths)
    others = [_stretches(alike, 0)] if is_time and is_long else []
    others += [_rows_of(alike)] if is_time and alike.what != "datasets" else []
    ways = [
        _whole(alike, alike.attributes[:MOST_FIELDS]),
        _whole(alike, labels),
        _whole(alike, labels, ', missing="skip"'),
        _whole(alike, ()),
    ]
    for way in ways:
        yield alike.proposal("group_a_sample", "a sample of its own", [way, *others])


def _rows_of(alike: _Alike) -> Way:
    """Take each row, with what its group or file has once."""
    labels = {last_name(name): quoted(name) for name in _labels(alike.attributes)}
    samples = "" if alike.what == "files" and not alike.once else f"Rows(of={alike.of})"
    does = "takes each row of all of them" + ', and take="all" what each has once' * bool(alike.once)
    return Way({**alike.forms(alike.rows), **alike.once, **labels}, samples, does)


def _whole(alike: _Alike, attributes: Sequence[str], missing: str = "") -> Way:
    fields = alike.forms(alike.first, whole=True) | {last_name(name): quoted(name) for name in attributes}
    words = {
        '"."': '"." is the thing itself',
        "ragged=": "ragged= says how shapes that differ become a batch",
        '"@': '"@name" is an attribute of it',
    }
    said = [words[word] for word in words if any(word in form for form in fields.values())]
    said += ["those that lack a field are left out"] * bool(missing)
    return Way(fields, f"Objects({alike.of}{missing})", "; ".join(["takes each whole", *said]))


def _as_stretches(alike: _Alike, axis: int) -> Proposal:
    return alike.proposal("group_a_recording", "a recording", [_stretches(alike, axis), _whole(alike, ())])


def _stretches(alike: _Alike, axis: int) -> Way:
    shortest = min(alike.every, key=lambda inside: (inside[alike.rows[0]].shape or ())[axis])
    count = (shortest[alike.rows[0]].shape or ())[axis]
    length = stretch_length(count, sum(shortest[name].raw_nbytes for name in alike.rows) / count)
    along, which = (f", axis={axis}", f" along axis {axis}") if axis else ("", "")
    samples = f"Sequences({length}, stride={length}, of={alike.of}{along})"
    does = f"cuts them into samples of {length:,}{which}, or of a length of your own"
    fields = {
        "x" if name == "." else name: quoted(name) for name in most_of({name: alike.first[name] for name in alike.rows})
    }
    return Way(fields | alike.once, samples, does)


def stretch_length(count: int, nbytes: float) -> int:
    """Return how long samples of a recording are in the lines, of so many steps of so many bytes: two digits of it."""
    digits = str(max(1, int(min(count // 4, (1 << 20) / nbytes))))
    return int(digits[:2].ljust(len(digits), "0"))


def _as_rows(alike: _Alike) -> Proposal:
    """Propose rows of all of them; of episodes and films, first windows of rows that follow one another."""
    of, steps = alike.of, alike.steps
    every_row = [*alike.rows, *(alike.longer if steps else ())]
    # The row behind is another sample's too.
    now = [name for name in every_row if not (steps and re.search(r"(^|/)next_", name))] or every_row
    fields, once = alike.forms(now), {k: v for k, v in alike.once.items() if k not in every_row}
    said = {last_name(name): quoted(name) for name in alike.attributes if _SAYS.search(last_name(name))}
    shortest = ', lengths="shortest"' if steps and alike.longer else ""
    # Of images a sample of steps has one; rows of files follow one another anyway.
    each = {name: with_options(form, take="[0]" if "decode=" in form else "") for name, form in fields.items()}
    is_plain = alike.what == "files" and not any("ragged=" in form for form in fields.values())
    windows = Way(
        {**each, **once},
        f'Sequences({WINDOW}, of={of}, pad="edge"{shortest})',
        "takes rows that follow one another in one of them",
    )
    rows = Way({**fields, **once, **said}, "" if is_plain else f"Rows(of={of})", "takes each row of all of them")
    ways = [windows, rows] if steps else [rows, windows]
    is_what = steps or "a recording, or a part of one table"
    return alike.proposal("group_a_recording", is_what, [*ways, _whole(alike, ())])


def _holds(alike: _Alike) -> str:
    """Say what there is, in a sentence that is not closed."""
    name = next(iter(alike.things))
    example = PurePath(name).name if alike.what == "files" else repr(name)
    holds = f"{alike.where} holds {alike.count:,} like {alike.what}"
    (path, entry), *others = alike.first.items()
    if not others and not entry.members:
        sizes = sorted((inside[path] for inside in alike.every), key=lambda one: one.raw_nbytes)
        shapes = list(dict.fromkeys(shape_text(one.shape or ()) for one in (sizes[0], sizes[-1])))
        form = f"{entry.image} images" if alike.is_image else f"{' to '.join(shapes)} {entry.dtype}"
        return f"{holds} ({form}, such as {example})" if path == "." else f"{holds} ({path}: {form}; such as {example})"
    lengths = sorted(alike.lengths)
    rows = " to ".join(f"{length:,}" for length in dict.fromkeys((lengths[0], lengths[-1])))
    inside = ", ".join([*alike.first][:3]) + (" ..." if len(alike.first) > 3 else "")
    return f"{holds} of {rows} {'row' if rows == '1' else 'rows'} (such as {example}, with {inside})"


def _labels(attributes: Sequence[str]) -> list[str]:
    """Return two attributes at most: those that look like what a sample is asked for; else the first."""
    return ([name for name in attributes if LABEL.search(name)] or [*attributes[:1]])[:2]


# --- datasets ----------------------------------------------------------------------------------------------


def like_datasets(seen: Listing) -> Iterator[Proposal]:
    """Find datasets that are a sample each: in one group, in several beside one another, or in pairs."""
    found: dict[tuple[str, ...], dict[str, Inside]] = defaultdict(dict)
    by_names: dict[tuple[str, frozenset[str]], dict[str, Inside]] = defaultdict(dict)
    by_stems: dict[frozenset[str], dict[str, dict[str, Inside]]] = defaultdict(dict)
    for group, members in seen.by_group.items():
        parent = f"/{group.rpartition('/')[0]}" if group else ""
        if stems := _stems(members):
            by_stems[frozenset(stems)][group] = stems
        in_stems = {stem.replace("{}", number) for stem, alike in stems.items() for number in alike}
        for key, alike in _families({n: e for n, e in members.items() if n not in in_stems}).items():
            if _are_samples(alike):
                found[parent, *key][group] = by_names[parent, frozenset(alike)][group] = alike
    for several in by_stems.values():
        if len(several) > 1 and all(re.fullmatch(r".+\{\}", stem) for stems in several.values() for stem in stems):
            yield _stems_in_groups(seen, several)
        for group, stems in several.items():
            yield from _side_by_side(seen, group, stems)
    taken: set[str] = set()
    for groups in by_names.values():
        if len(groups) > 1 and not numbered(groups) and not re.search(r"[{}]", "".join(groups)):
            yield from _side_by_side(seen, "", {f"{group}/{{}}": alike for group, alike in groups.items()})
            taken.update(groups)
    for groups in found.values():
        yield from _in_groups(seen, {group: alike for group, alike in groups.items() if group not in taken})


def _families(members: Mapping[str, DatasetEntry]) -> dict[tuple[str, ...], Inside]:
    """Return the datasets of a group that are of one type and have as many axes."""
    found: dict[tuple[str, ...], Inside] = defaultdict(dict)
    for name, entry in members.items():
        if _is_image(entry):
            found["image", entry.image][name] = entry
        elif entry.shape and entry.rows and not entry.variable_length and not entry.members:
            found[entry.dtype, str(entry.axes)][name] = entry
    return found


def _is_image(entry: DatasetEntry) -> bool:
    """Tell whether a dataset is one image, as its bytes."""
    return bool(entry.image) and not entry.inner and not entry.variable_length


def _are_samples(alike: Inside) -> bool:
    shapes = [entry.shape or () for entry in alike.values()]
    return datasets_are_samples(alike, shapes, is_image=bool(next(iter(alike.values())).image))


def _in_groups(seen: Listing, groups: Mapping[str, Inside]) -> Iterator[Proposal]:
    """Propose the datasets of one group, or of several beside one another whose names a pattern gives."""
    above = next(iter(groups), "").rpartition("/")[0]
    names, datasets = [group.rpartition("/")[2] for group in groups], {n for alike in groups.values() for n in alike}
    start = f"{above}/" if above else ""
    beside = {e.path[len(start) :].split("/")[0] for e in seen.entries if e.path.startswith(start)}
    levels = (names, beside), (datasets, {name for group in groups for name in seen.by_group[group]})
    together = [(above, groups, pattern_of(above, *levels) if len(groups) > 1 else "")]
    if not together[0][2]:
        together = [(g, {g: alike}, pattern_of(g, (alike, seen.by_group[g]))) for g, alike in groups.items()]
    for where, some, pattern in together:
        every = [entry for alike in some.values() for entry in alike.values()]
        things = {e.path: {".": e} for e in sorted(every, key=lambda e: e.raw_nbytes, reverse=True)}
        count = sum(seen.count(group, len(alike)) for group, alike in some.items())
        yield from _proposals(_Alike(seen, "datasets", where, things, pattern, count))


def _stems(members: Mapping[str, DatasetEntry]) -> dict[str, Inside]:
    """Return datasets such as lr0, hr0, lr1, hr1 by what stands around the numbers, where these are the same."""
    found: dict[str, Inside] = defaultdict(dict)
    for name, entry in members.items():
        if (parts := re.fullmatch(r"([^\d{}]*)(\d+)([^\d{}]*)", name)) and entry.rows and not entry.members:
            found[f"{parts[1]}{{}}{parts[3]}"][parts[2]] = entry
    by_numbers: dict[frozenset[str], dict[str, Inside]] = defaultdict(dict)
    for stem, alike in found.items():
        if len({(entry.dtype, entry.axes) for entry in alike.values()}) == 1:
            by_numbers[frozenset(alike)][stem] = alike
    most = max(by_numbers.values(), key=len, default={})
    together = {stem.replace("{}", number): entry for stem, alike in most.items() for number, entry in alike.items()}
    return most if len(most) > 1 and _are_samples(together) else {}


def _side_by_side(seen: Listing, group: str, families: Mapping[str, Inside]) -> Iterator[Proposal]:
    """Make of datasets that are named alike, such as videos/0 and responses/0, the fields of one sample."""
    above, every = f"{group}/" if group else "", [*families.values()]
    forms = {template: _form_of([*alike.values()], above + template) for template, alike in families.items()}
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
    one = named([above + template.replace("{}", next(iter(alike))) for template, alike in families.items()])
    what = f"{one} belong together by their names, and so do {count - 1:,} more: each"
    proposal = Proposal(
        "side_by_side",
        f"{what} is a sample of its own",
        [entry for alike in every for entry in alike.values()],
        "lookup= says which are taken, each whole",
        [Way(fields)],
        before=(f"with h5py.File({quoted(seen.path)}) as f:", f"    names = {names}"),
        example=[next(iter(alike.values())) for alike in every],
        some={"names": [*every[0]]} if max(count, seen.count(group, 0)) > MOST_TRIED else {},
    )
    if all(e.axes >= 4 and e.rows == every[0][k].rows for alike in every for k, e in alike.items()):
        # Many images each.
        inside = (f"{quoted(_key_of(one))}: f{quoted(above + one.replace('{}', '{k}'))}" for one in families)
        source = f"[H5Dataset({quoted(seen.path)}, {{{', '.join(inside)}}}) for k in names]"
        way_out = "A list of datasets takes the rows of one after the other"
        yield replace(proposal, what=f"{what} row is a sample", way_out=way_out, ways=[Way({})], source=source)
    yield proposal


def _key_of(template: str) -> str:
    return last_name(template.replace("{}", "").strip("/_-")) or "x"


def _stems_in_groups(seen: Listing, groups: Mapping[str, Mapping[str, Inside]]) -> Proposal:
    """Make of a/lr0, a/hr0, b/lr0, b/hr0 the fields of one sample, with what each group has once."""
    first, stems = next(iter(groups.items()))
    starts = ["/" + stem.removesuffix("{}") for stem in stems]
    replaced = (f"[name.replace({quoted(starts[0])}, {quoted(start)}) for name in names]" for start in starts[1:])
    lookups = dict(zip(map(_key_of, stems), ("names", *replaced), strict=True))
    ours = {stem.replace("{}", k) for stem, alike in stems.items() for k in alike}
    once = [name for name in seen.by_group[first] if name not in ours and all(name in seen.by_group[g] for g in groups)]
    lookups |= {name: f'[name.rpartition("/")[0] + {quoted("/" + name)} for name in names]' for name in once}
    about = [e for group in groups.values() for alike in group.values() for e in alike.values()]
    return Proposal(
        "side_by_side",
        f"{named([f'{first}/{stem}' for stem in stems])} belong together by their names: each is a sample",
        [*about, *(seen.by_group[group][name] for group in groups for name in once)],
        "lookup= says which are taken, each whole",
        [Way({name: f'Field("{{}}", lookup={text})' for name, text in lookups.items()})],
        before=(
            "names = []",
            f"with h5py.File({quoted(seen.path)}) as f:",
            f"    f.visit(lambda name: names.append(name) if {quoted(starts[0])} in name else None)",
        ),
        example=[next(iter(alike.values())) for alike in stems.values()],
    )


# --- groups ------------------------------------------------------------------------------------------------


def like_groups(seen: Listing) -> Iterator[Proposal]:
    """Find groups that hold the same: a sample, an episode or a recording each, or parts of one table."""
    by_parent: dict[str, dict[str, Inside]] = defaultdict(lambda: defaultdict(dict))
    for entry in seen.entries:
        parts = entry.path.split("/")
        for depth in range(len(parts) - 1):
            by_parent["/".join(parts[:depth])][parts[depth]]["/".join(parts[depth + 1 :])] = entry
    taken: set[str] = set()
    for parent in sorted(by_parent, key=lambda p: p.count("/") + bool(p)):
        groups, above = by_parent[parent], f"{parent}/" if parent else ""
        inner = _groups_of(seen, above, groups)
        alike = _hold_the_same(inner or groups)
        paths = [entry.path for inside in alike.values() for entry in inside.values()]
        like_samples = numbered(alike) or len(alike) >= MANY_GROUPS
        if len(alike) < LEAST_GROUPS or not like_samples or taken & set(paths):
            continue
        taken.update(paths)
        if inner:
            count = sum(seen.count(above + name, len(by_parent[above + name])) for name in groups)
            pattern = pattern_of(parent, *_levels(alike, inner))
        else:
            count, pattern = seen.count(parent, len(alike)), pattern_of(parent, (alike, groups))
        things = {above + name: inside for name, inside in alike.items()}
        yield from _proposals(_Alike(seen, "groups", parent, things, pattern, count))


def _groups_of(seen: Listing, above: str, groups: Mapping[str, Inside]) -> dict[str, Inside]:
    """Return the groups of like groups, where each of these holds many of them that are numbered, and nothing else.

    Few are samples too where some hold more of them than others do, which would be left out of samples of all, where
    each has a label, and where no two have a name in common.
    """
    found: dict[str, Inside] = defaultdict(dict)
    counts, names = list[int](), set[str]()
    for name, inside in groups.items():
        held = {path.split("/")[0] for path in inside if "/" in path}
        counts.append(len(held))
        names |= held
        if any("/" not in path for path in inside) or not numbered(held):
            return {}
        for path, entry in inside.items():
            child, _, rest = path.partition("/")
            found[f"{name}/{child}"][rest] = entry
    is_labelled = all(any(map(LABEL.search, seen.groups[above + name].attributes)) for name in found)
    are_named_apart = len(names) == sum(counts) > len(counts) >= LEAST_GROUPS
    many = is_labelled or min(counts, default=0) >= MIN_SIMILAR or len(set(counts)) > 1 or are_named_apart
    patterned = many and len(groups) > 1 and pattern_of("", *_levels(found, found))
    return found if patterned and len(_hold_the_same(found)) == len(found) else {}


def _levels(names: Iterable[str], all_of: Iterable[str]) -> list[tuple[set[str], set[str]]]:
    """Return names of groups in groups, and all that there are, as `pattern_of` takes them."""
    some, every = ([*zip(*(name.split("/") for name in which), strict=True)] for which in (names, all_of))
    return [(set(one), set(others)) for one, others in zip(some, every, strict=True)]


def _hold_the_same(groups: Mapping[str, Inside]) -> dict[str, Inside]:
    """Return the groups that hold all datasets which most of them hold, of one shape of rows, and of each those."""
    held: dict[tuple[str, str, int], list[str]] = defaultdict(list)
    for name, inside in groups.items():
        for relative, entry in inside.items():
            if entry.shape is not None and 0 not in entry.shape:
                held[relative, entry.dtype, entry.axes].append(name)
    most = max(map(len, held.values()), default=0)
    common: dict[str, list[str]] = {}
    for (relative, _, _), names in held.items():
        # Of two types under one name, the one that more groups have.
        if len(names) >= MOST * most and len(names) > len(common.get(relative, ())):
            common[relative] = names
    members = [name for name in groups if all(name in names for names in common.values())]
    if members and not any(groups[members[0]][relative].shape for relative in common):
        return {}  # single values alone
    alike = {name: {relative: groups[name][relative] for relative in common} for name in members}
    by_shape: dict[tuple[tuple[int, ...], ...], list[str]] = defaultdict(list)
    for name, inside in alike.items():
        by_shape[tuple(entry.inner for entry in inside.values())].append(name)
    usual = max(by_shape.values(), key=len, default=[])
    # Where no shape is that of most, each may have its own.
    return {name: alike[name] for name in usual} if len(usual) >= MOST * len(alike) else alike


def _finding_lines(path: str, things: Mapping[str, Inside], attributes: Sequence[str]) -> Lines:
    """Return the lines that find the datasets, or groups, where no pattern does."""
    first, names = next(iter(things.items()))
    found, same, listed = "names", ("ndim", "dtype"), Lines()
    is_alike = ["isinstance(one, h5py.Dataset)", *(f"one.{what} == first.{what}" for what in same)]
    if "." not in names:
        one_shape = all(not any(unlike_axes([inside[name] for inside in things.values()])) for name in names)
        found, same = "groups", ("dtype", "shape[1:]" if one_shape else "ndim")
        listed = ("names = [", *(f"    {quoted(name)}," for name in names), "]")
        of_each = ("name in one", *(f"one[name].{what} == first[name].{what}" for what in same))
        is_alike = ["isinstance(one, h5py.Group)", *(f"all({test} for name in names)" for test in of_each)]
    labels = [quoted(name[1:]) for name in _labels(attributes) if name[0] == "@"]
    tests = [*is_alike, *(f"{name} in one.attrs" for name in labels)]
    return (
        *listed,
        f"with h5py.File({quoted(path)}) as f:",
        f"    first = f[{quoted('/' + first)}]",
        f"    {found} = [",
        "        one.name",
        f"        for one in f[{quoted('/' + first.rpartition('/')[0])}].values()",
        *(f"        {'and' if place else 'if'} {test}" for place, test in enumerate(tests)),
        "    ]",
    )


# --- files -------------------------------------------------------------------------------------------------


def like_files(pattern: str, listings: Mapping[str, Listing], count: int) -> list[Proposal]:
    """Tell what files are that hold the same: a sample or a recording each, or parts of one table."""
    alike = _hold_the_same({path: listing.without().by_path for path, listing in listings.items()})
    if len(alike) < max(2, MOST * len(listings)):
        return []
    roots = {path: listings[path].groups[""] for path in alike}
    return [*_proposals(_Alike(Listing(pattern, groups=roots), "files", "The pattern", alike, "files", count))]


def families_of(paths: Sequence[str]) -> dict[str, list[str]]:
    """Return files by what their names have in common that differ in a number, as a pattern; one alone by its name."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        folder, name = os.path.split(path)
        stem, end = os.path.splitext(name)
        found[os.path.join(folder, re.sub(r"\d+(?=\D*$)", "*", stem) + end)].append(path)
    return {pattern if len(alike) > 1 else alike[0]: alike for pattern, alike in found.items()}


def joined_files(families: Mapping[str, Sequence[str]], listings: Mapping[str, Listing]) -> Iterator[Proposal]:
    """Find samples of which each has fields in several files, or in a file of each of several families."""
    counts = {len(paths) for paths in families.values()}
    some = {name: {path: listings[path] for path in paths if path in listings} for name, paths in families.items()}
    if len(families) < 2 or len(counts) > 1 or not all(some.values()):
        return
    first = {name: next(iter(found.values())).without() for name, found in some.items()}
    if counts == {1}:
        yield from _joined_objects(first)
        yield from _joined_rows(first)
        return
    found = {name: like_files(name, some[name], len(paths)) for name, paths in families.items()}
    parts = {name: each[0] for name, each in found.items() if each}
    samples = {part.samples_text for part in parts.values()}
    if len(parts) == len(families) and len(samples) == 1:
        fields = {pattern: part.ways[0].fields for pattern, part in parts.items()}
        yield _joined(first, fields, f"{counts.pop():,} files", samples.pop())


def _joined(
    files: Mapping[str, Listing],
    fields: Mapping[str, Mapping[str, str]],
    what: str,
    samples: str = "",
    lookup: Mapping[str, str] | None = None,
    before: Lines = (),
) -> Proposal:
    """Return the program whose fields are those of the first file, and of others as theirs."""
    (lead, own), *others = fields.items()
    together = dict(own)
    for path, forms in others:
        for name, form in forms.items():
            key = name if name not in together else f"{PurePath(path).stem.strip('*_-')}_{name}"
            together[key] = with_options(form, file=quoted(path), lookup=(lookup or {}).get(path, ""))
    about = [e for listing in files.values() for e in listing.entries]
    what = f"{named([*files])} belong together: a sample has fields of each ({what})"
    way_out = "file= says where a field lies that is not in the first of them"
    return Proposal("joined", what, about, way_out, [Way(together, samples)], path=lead, before=before)


def _joined_rows(files: Mapping[str, Listing]) -> Iterator[Proposal]:
    for lead, seen in files.items():
        for rows, own in seen.by_rows.items():
            fields, lookup = {lead: keyed(own)}, dict[str, str]()
            for path, other in files.items():
                beside = other.by_rows.get(rows, [])
                for index in own if path != lead and not beside else ():
                    counts = index.counts
                    if counts and counts.least >= 0 and INDEX_NAME.search(index.path):
                        beside = [e for e in other.entries if e.axes > 1 and (e.rows or 0) > counts.most]
                        lookup[path] = quoted(index.path)
                if path != lead and beside:
                    fields[path] = keyed(beside)
            if len(fields) == len(files) and rows > 1:
                yield _joined(files, fields, f"{rows:,} rows", lookup=lookup)


def _joined_objects(files: Mapping[str, Listing]) -> Iterator[Proposal]:
    """Find groups, or datasets, of equal names in several files."""
    found = {path: next(like_groups(seen), None) or next(like_datasets(seen), None) for path, seen in files.items()}
    parts = {
        path: part
        for path, part in found.items()
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
    fields = {lead: parts[lead].ways[0].fields}
    for path in others:
        fields[path] = {
            name: re.sub(r'"(\.|[^"]*)"', lambda text: '"{}"' if text[1] == "." else f'"{{}}/{text[1]}"', form, count=1)
            for name, form in parts[path].ways[0].fields.items()
            if '"@' not in form
        }
    yield _joined(files, fields, "those of equal names", "Objects(names)", dict.fromkeys(others, "names"), before)
