"""Names of every kind: what a drawn case calls files, groups, datasets and attributes is renamed throughout."""

import copy
import glob
import random
import re
from typing import Any

from .calls import is_call

ENDINGS = [
    "[0]",
    "[ab]",
    "{}",
    "{0}",
    ":x",
    ":b",
    "@y",
    " z",
    " ",
    ".",
    ".5",
    "..",
    "é",
    "Ω中",
    "?",
    "*",
    "\\",
    "-",
    "%20",
    "#",
    "'",
    '"',
]
FILE_ENDINGS = ["[0]", "{}", " z", ".5", "é", "?", "*", "%20", "#", "+", "&"]
FIXED = {"data", "indices", "indptr", "encoding-type", "shape", "beside", "rows", "files", "var", "_index"}
WORD = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")


def renamed(rng: random.Random, case: dict[str, Any]) -> dict[str, Any]:
    """Rename some groups, datasets, attributes and files of a case, wherever it names them."""
    found = copy.deepcopy(case)
    words = {word for file in case["files"] for node in file["nodes"] for word in _words(node)}
    chosen = [word for word in sorted(words - _texts(case)) if rng.random() < 0.5]
    # A field of many datasets has braces of its own, and no others.
    endings = [ending for ending in ENDINGS if ending != "{}" or "{}" not in str(case["fields"])]
    new = {word: word + rng.choice(endings) for word in chosen}
    new |= {word: f"{word} z" for word in chosen if word.startswith("shared")}  # a * of a whole path stands for names
    for file in found["files"]:
        for node in file["nodes"]:
            _rename_node(node, new)
    if found["samples"]:
        _rename_call(found["samples"], new, is_pattern=True)
    found["fields"] = {name: _renamed_tree(tree, new) for name, tree in found["fields"].items()}
    for form in found["forms"]:
        if "path" in form:
            form["path"] = _name(form["path"], new)
    for file in found["files"]:
        if file.get("damaged"):
            file["damaged"] = _name(file["damaged"], new)
    if rng.random() < 0.5:
        _rename_files(rng, found)
    return found


def _texts(case: dict[str, Any]) -> set[str]:
    """Return all texts that samples name objects by, in datasets and in memory."""
    lists = [node.get("data") for file in case["files"] for node in file["nodes"]]
    lists += [tree["options"].get("names") for tree in case["fields"].values() if is_call(tree, "Field")]
    every = {one for some in lists if isinstance(some, list) for one in some if isinstance(one, (str, bytes))}
    return {one.decode() if isinstance(one, bytes) else one for one in every}


def _words(node: dict[str, Any]) -> list[str]:
    if "attr" in node and node["attr"] not in FIXED:
        return [node["attr"]]
    steps = node["path"].split("/")
    is_ours = not node["path"].startswith("behind_") and "attr" not in node
    return [step for step in steps if is_ours and WORD.fullmatch(step) and step not in FIXED and "frame" not in step]


def _name(text: str, new: dict[str, str]) -> str:
    return WORD.sub(lambda word: new.get(word[0], word[0]), text)


def _rename_node(node: dict[str, Any], new: dict[str, str]) -> None:
    if not node["path"].startswith("behind_"):
        node["path"] = _name(node["path"], new)
    if "attr" in node:
        node["attr"] = _name(node["attr"], new)


def _renamed_tree(tree: Any, new: dict[str, str]) -> Any:
    if isinstance(tree, str):
        return _field_name(tree, new)
    if is_call(tree, "Field"):
        tree["args"][0] = _field_name(tree["args"][0], new)
        for key in ("rows", "names"):
            one = tree["options"].get(key)
            if isinstance(one, str):
                tree["options"][key] = _name(one, new)
            elif is_call(one) and one["call"] in ("Bounds", "Lengths", "Between"):
                one["args"] = [_name(name, new) if isinstance(name, str) else name for name in one["args"]]
    return tree


def _field_name(text: str, new: dict[str, str]) -> str:
    path, colon, members = text.partition(":")
    return _name(path, new) + colon + members


def _rename_call(tree: dict[str, Any], new: dict[str, str], is_pattern: bool) -> None:
    def one(of: Any) -> Any:
        if isinstance(of, list) and of and isinstance(of[0], str):
            return [_name(name, new) for name in of]
        if is_call(of):
            return {**of, "args": [_name(name, new) if isinstance(name, str) else name for name in of["args"]]}
        if isinstance(of, str) and "*" not in of and of not in FIXED:
            return _name(of, new)  # the name of one, as it is
        if isinstance(of, str) and of not in FIXED:
            return WORD.sub(lambda word: glob.escape(new[word[0]]) if word[0] in new else word[0], of)
        return of

    if tree["call"] == "Objects":
        tree["args"][0] = one(tree["args"][0])
    if "of" in tree["options"]:
        tree["options"]["of"] = one(tree["options"]["of"])
    if "group" in tree["options"]:
        tree["options"]["group"] = one(tree["options"]["group"])


def _rename_files(rng: random.Random, case: dict[str, Any]) -> None:
    new = {}
    for name in case["source"]:
        stem, dot, ending = name.rpartition(".")
        new[name] = f"{stem}{rng.choice(FILE_ENDINGS)}{dot}{ending}"
    case["source"] = [new[name] for name in case["source"]]
    for file in case["files"]:
        file["name"] = new.get(file["name"], file["name"])
    for form in case["forms"]:
        if form.get("file") in new:
            form["file"] = new[form["file"]]
