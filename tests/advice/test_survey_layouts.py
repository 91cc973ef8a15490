"""What `h5stream inspect` prints for a file of each layout of public programs is what the program reads."""

import re
from pathlib import Path

import pytest
from support.commands import printed
from support.forking import guards_are_forks

pytest.importorskip("imagecodecs")
from support.layouts import GALLERY, LAYOUTS, write

from examples.gallery import PROGRAMS
from h5stream.advice.inspection import inspect_file, printed_of, proposals_of_files
from h5stream.advice.listing import list_files
from h5stream.advice.program import samples_from_text
from h5stream.storage.layout.sources import paths_of

KINDS = {"windows": r"Sequences\(", "objects": r"Objects\(|\{\}", "boxes": r"Boxes\(", "sparse": r"ragged=\"dense\""}
KINDS |= {"ragged": r"(Bounds|Lengths|Between)\(", "rows": ""}
OTHERWISE = {
    "laminlabs/lamindb": ("half", "genes in another order in each file are put in one order by the program itself"),
    "aiqm/torchani": ("half", "species are there once for each group, as many as its molecules have atoms"),
}
"""Of which programs what is printed is half of what they read, and what is wanting."""


def patterns_of(names):
    """Give what a user names of some files: a pattern for those that are numbered, or a file."""
    by_stem = {}
    for name in names:
        by_stem.setdefault(re.sub(r"\d+(?=\D*$)", "*", name[:-3]) + name[-3:], []).append(name)
    return [pattern if len(alike) > 1 else alike[0] for pattern, alike in by_stem.items()]


def proposed(given):
    """Give the lines that are printed for some files, and all that is said beside them."""
    if len(given) == 1 and "*" not in given[0]:
        found = inspect_file(given[0])
        kind = printed_of(found.kinds, found.sample is not None)
        return kind.lines if kind else found.lines, " ".join(one.way_out for one in found.kinds)
    families = {pattern: paths_of(pattern, None) for pattern in given}
    listings = list_files([path for some in families.values() for path in some])
    kind = proposals_of_files(families, listings)
    return (kind.lines, kind.way_out) if kind else ((), "")


def kind_in(text):
    return next((kind for kind, words in KINDS.items() if re.search(words, text)), "")


def judged(wanted, lines, said):
    """Tell whether printed lines are right, half or wrong: the kind of samples, their axis, number and fields."""
    kind, count, *fields = wanted.split()
    kind, _, axis = kind.partition("@")
    text = "\n".join(lines)
    if not lines or kind_in(text) != kind or (axis and f"axis={axis}" not in text):
        return "half" if re.search(KINDS[kind] or "Rows", said) else "wrong", "another kind"
    scope = {}
    exec(compile(text.replace("    ...  # your training step", "    break"), "<printed>", "exec"), scope)
    with scope["loader"] as loader:
        next(iter(loader))
        found = len(loader.dataset)
    text = re.sub(r"\{\w*\}", "{}", text)
    lost = [name for name in fields if not re.search(rf'["/]{re.escape(name)}"', text)]
    wrong = f"{found} samples" * (count not in ("?", str(found)))
    return ("half" if lost or wrong else "right"), " ".join([*lost, wrong])


def written(program):
    """Write the files of a program; give their names, and what it reads of them."""
    if program in LAYOUTS:
        held, wanted = LAYOUTS[program]
        return write(Path(), held), wanted
    PROGRAMS[program].make(Path())
    return sorted(str(path) for path in Path().rglob("*.h*5*")), GALLERY[program]


@pytest.mark.parametrize("program", [*LAYOUTS, *GALLERY])
def test_what_is_printed_for_a_layout_is_what_its_program_reads(program, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names, wanted = written(program)
    lines, said = proposed(patterns_of(names))
    verdict, why = judged(wanted, lines, said)
    for way in re.findall(r"samples=(\w+\(.*?\)) ", said):
        assert re.search("names|places", way) or samples_from_text(way)
    assert verdict in {"right", OTHERWISE.get(program, ("right",))[0]}, f"{why}\n" + "\n".join(lines)


def test_files_that_hold_fields_of_one_sample_are_shown_together(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    guards_are_forks(monkeypatch)
    write(Path(), LAYOUTS["pytorch/vision"][0])
    for given in (["train_x.h5", "train_y.h5"], ["."]):
        shown = printed("inspect", *given, width=80)
        assert 'Field("y", file="' in shown.split("Each of them:")[0]
        assert "train_y.h5  " in shown.split("Each of them:")[1]
