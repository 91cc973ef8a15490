"""Several files as one dataset: they follow one another in the order given, and are shuffled as a whole.

    python examples/multi_file.py 'day*.h5'

Files need not agree in chunks or filters, only in what a row of each field looks like.
"""

import argparse

from h5stream import Field, H5Dataset, H5StreamLoader


def main(*paths):
    dataset = H5Dataset(list(paths), {"signal": Field("x", columns=slice(0, 4)), "label": "y"})
    print(dataset)
    with H5StreamLoader(dataset, batch_size=256, shuffle=True, drop_last=True) as loader:
        for batch in loader:
            signal, label = batch["signal"], batch["label"]
        print(f"{len(loader)} batches of {tuple(signal.shape)} {signal.dtype} and {tuple(label.shape)} {label.dtype}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", metavar="day.h5", nargs="+", help="files or patterns, with fields x and y")
    main(*parser.parse_args().files)
