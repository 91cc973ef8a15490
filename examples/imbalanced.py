"""Rare classes as often as common ones: what a plain epoch has of each class, and what an even one has.

    python examples/imbalanced.py FILE FIELD [WEIGHTS]

FIELD is one of few values, such as a label; WEIGHTS, if given, one with a number for each sample: how likely it is.
"""

import argparse
import collections

import torch

from h5stream import Balanced, H5StreamLoader, Weighted


def classes_of(loader):
    seen = collections.Counter()
    for labels in loader:
        seen.update(labels.tolist() if isinstance(labels, torch.Tensor) else labels)
    return dict(sorted(seen.items()))


def main(path, field, weights=None):
    asked = {"a plain epoch": None, "an even one": Balanced(field)}
    asked["one without repeats"] = Balanced(field, replacement=False)
    if weights is not None:
        asked["one by weights"] = Weighted(weights)
    for name, draw in asked.items():
        with H5StreamLoader(path, 256, shuffle=True, fields=field, draw=draw) as loader:
            print(f"{name}: {classes_of(loader)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", metavar="train.h5")
    parser.add_argument("field", help="a field of few values, such as a label")
    parser.add_argument("weights", nargs="?", help="a field with a number for each sample")
    arguments = parser.parse_args()
    main(arguments.file, arguments.field, arguments.weights)
