"""`swap_in_before.py` with H5StreamLoader: the loader's name, its import, and the file instead of a Dataset."""

import sys

import torch

from h5stream import H5StreamLoader


def main(path):
    loader = H5StreamLoader(path, batch_size=256, shuffle=True, fields=["x", "y"])
    total = torch.zeros(())
    for x, y in loader:
        total += (x.mean(1) * y).sum()
    print(f"{len(loader)} batches, {float(total):.3f}")


if __name__ == "__main__":
    main(sys.argv[1])
