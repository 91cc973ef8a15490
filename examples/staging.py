"""Train from copies on a RAM disk: made once for all processes of the machine, verified, and gone afterwards.

    python examples/staging.py /dev/shm/run42 train.h5 more.h5

`staged` deletes at the end of the block what no other process uses. `H5StreamLoader(..., stage_to=folder)` and `stage`
leave the copies for the next run, and `h5stream stage --list`, `--verify` and `--remove` look after them.
"""

import argparse

from h5stream import H5StreamLoader, staged


def main(folder, *files):
    with staged(files, to=folder) as copies:
        print("reading " + ", ".join(str(copy) for copy in copies))
        with H5StreamLoader(list(copies), batch_size=256, shuffle=True, fields=["x", "y"]) as loader:
            rows = sum(len(y) for _, y in loader)
    print(f"{rows:,} rows; still there afterwards: {[copy.name for copy in copies if copy.exists()]}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", metavar="/dev/shm/run42", help="where the copies go")
    parser.add_argument("files", metavar="train.h5", nargs="+", help="files with fields x and y")
    arguments = parser.parse_args()
    main(arguments.folder, *arguments.files)
