"""What a sound file may be refused for: the words of each reason, and what a case must have for it to be true."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .calls import is_call
from .spaces import says_without_doubt


@dataclass(frozen=True, slots=True)
class Reason:
    """A rule of h5stream that a drawn case may break."""

    name: str
    words: str  # a pattern of the message
    needs: tuple[str, ...] = ()  # of which a case, written as text, must have one
    holds: Callable[[dict[str, Any]], bool] | None = None  # what else must be true of the case


def nothing_says_how_many(case: dict[str, Any]) -> bool:
    """Tell whether no field has rows, or is looked up by a dataset that says how many samples there are."""

    def says(tree: Any) -> bool:
        if not isinstance(tree, str) and not is_call(tree, "Field"):
            return False
        name, options = (tree, {}) if isinstance(tree, str) else (tree["args"][0], tree["options"])
        if "rows" in options or "names" in options:
            return says_without_doubt(options)
        return "@" not in name and not name.startswith("/") and "repeat" not in options

    return not any(map(says, case["fields"].values()))


def has_bounds_of_two_meanings(case: dict[str, Any]) -> bool:
    """Tell whether bounds do not say what they hold."""
    trees = [tree for tree in case["fields"].values() if is_call(tree, "Field")]
    rows = [tree["options"].get("rows") for tree in trees]
    return any(is_call(one, "Bounds") and not one["options"].get("holds") for one in rows)


UNNUMBERED = ("'V8'", "'g'", "'time'", "'integer'", "'unused'")
VARIES = ("'vlen'", "'str'")
OUTSIDE = ("'remote'", "'served'", "'staged'")
TYPES = ("unlike sizes", "unlike stored", "unlike dates", "unlike byte order")
LACKING = ("'missing': 'skip'", "'missing': 'fill'", "unlike lacking", "unlike no group")
MANY = (
    r"one value a row|come one a sample|has several rows|samples of several rows|is not for (values of variable length|"
    "rows of a sparse matrix|encoded images)"
)
UNLIKE = (
    "must be alike|takes any shapes|takes numbers along axes|images of objects are read|different lengths|"
    "in another file, .*and decode="
)
REASONS = [
    Reason("no batch", "leaves no batch", ("'drop_last': True",)),
    Reason("ranks", "same number of batches|give each of .* ranks one|cannot be divided among", ("'ranks'",)),
    Reason("draws of its own", "draws its samples itself", ("'starts'", "'per_epoch'", "'random'", "Boxes")),
    Reason("no number type", "have no number type|wider than any torch dtype|torch has no", UNNUMBERED),
    Reason("type that h5py lacks", "h5py|HDF5's time|24 bits|NumPy|does not read|no type", UNNUMBERED),
    Reason("nested lengths", "variable length", ("{'vlen': {'vlen'",)),
    Reason("pad does not fit", "pad(_value)?=.* does not fit", ("'?'", "'u1'", "'pad_value'", "'pad'")),
    Reason("nothing is padded", "and nothing is padded", ("'pad'",)),
    Reason("nothing fits", "no sequence fits|no box fits", ("Sequences", "Boxes")),
    Reason("a box of nothing", "from where a box of .* (has nothing|leads out) of a volume", ("Boxes",)),
    Reason("table leaves its rows", "Table: .* a sample may begin", ("Table",)),
    Reason("one value a sample", MANY, (*VARIES, "'indptr'", "/indptr", "'image", "'picks")),
    Reason("several rows of lists", "make no tensor of several rows", ("'vlen'",)),
    Reason("images in libhdf5's own way", "decode= takes bytes that h5stream reads|decode= .*image", ("'image",)),
    Reason("mask of other columns", "columns= is a mask", ("True", "False")),
    Reason("lookup beside steps", "lookup= takes something else for each sample", ("'rows'", "'names'")),
    Reason("volumes are numbers", "parts of volumes are of numbers", ("Objects", "Boxes", "'axis'")),
    Reason("links of objects in stores", "external link|the external file|external storage", OUTSIDE),
    Reason("no object is named", "lookup= names no object, so that nothing says", ("'data': []",)),
    Reason("nothing says how many", "says how many samples there are", holds=nothing_says_how_many),
    Reason("bounds of two meanings", "it may say where they begin or where they end", holds=has_bounds_of_two_meanings),
    Reason("array of rows of several files", "of several files or groups|go backwards or beyond the end", ("'rows'",)),
    Reason("an array alone says how many", r"lookup= has [\d,]+ numbers, and needs one for each", ("'args': [[",)),
    Reason("a file of no rows that are objects", "nothing has a name such as", ("'shape': [0",)),
    Reason("rows that are objects", "rows that are objects are of", ("frame",)),
    Reason("unlike objects", UNLIKE, ("Objects", "'o/", "arrays", "unlike", "'external'")),
    Reason("lacking", "has no (dataset|attribute)|there is no dataset|lacks|matches no group", LACKING),
    Reason("unlike lengths of what is there once", "What is there once is of one shape in all", VARIES),
    Reason("arrays of nothing", "without elements", ("'arrays'", "[0, ", ", 0]", "[0]")),
    Reason("ragged compounds", "each member of a ragged one is a field of its own", ("'members'",)),
    Reason("nothing ragged", "goes by a ragged field", ("'sized'",)),
    Reason("joined unlike", "read as one must", ("'joined'", "'several'")),
    Reason("unlike genes", "gene|var/|var of|columns", ("unlike genes",)),
    Reason("columns of other axes", "is not there: the rows have", ("'axis'",)),
    Reason("unlike widths", r"\d columns|columns", ("unlike widths",)),
    Reason("unlike meanings", "enum|mean", ("unlike meanings", "unlike stored")),
    Reason("unlike types", "must agree|same type|one type|holds .* and|dtype|stored as|type", TYPES),
    Reason("unlike units", "units|do not mean|missing='netcdf'", ("unlike units", "scale_factor", "'_FillValue'")),
    Reason("braces in a name", r"\{\} takes names|\{\} itself", ("{}'",)),
    Reason(
        "columns of texts", "is not for an attribute, a single value, or texts or values", ("'str'", "'S", "'vlen'")
    ),
    Reason("nothing to stream", "has zero (rows|samples) in .* there is nothing to stream", ("'shape': [0",)),
    Reason("passed once", "generator|list of names", ("'generator'",)),
]
"""All that is refused of what is drawn; a message that none of these has is a fault, as is a reason that is untrue."""


def reason_of(case: dict[str, Any], message: str, form: dict[str, Any] | None = None) -> str | None:
    """Return the reason that a case was refused for, None if there is none that is true."""
    if names_no_difference(message):
        return None
    drawn = repr({key: value for key, value in case.items() if key != "forms"}) + repr(form)
    for reason in REASONS:
        is_true = not reason.needs or any(need in drawn for need in reason.needs)
        if re.search(reason.words, message) and is_true and (reason.holds is None or reason.holds(case)):
            return reason.name
    return None


def names_no_difference(message: str) -> bool:
    """Tell whether a message says that two types differ, and names the same one twice."""
    types = re.findall(r"(?:holds|rows of|before of|and '[^']*'|has) ([a-z0-9<>]+ \(\d*,?\))", message)
    return len(types) > 1 and len(set(types)) == 1
