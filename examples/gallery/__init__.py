"""Other people's programs that read HDF5 for training, and the same samples through h5stream.

Each program is a class of one shape: `make` writes files as its converter does, an instance is the reader as its
authors have it (written anew), and `ours` is what one writes here. `PROGRAMS` lists them; docs/gallery.md shows them.

    python -m pytest tests/house/test_gallery.py                                  # the samples are equal
    python -m pytest bench/test_gallery.py --benchmark-enable -s -k act     # how fast both are
"""

from examples.gallery import groups, images, lookups, objects, ragged, rows, sequences, volumes
from examples.gallery.program import Program

MODULES = (rows, groups, lookups, sequences, objects, ragged, images, volumes)
PROGRAMS: dict[str, type[Program]] = {
    name: program
    for module in MODULES
    for name, program in vars(module).items()
    if isinstance(program, type) and issubclass(program, Program) and program.__module__ == module.__name__
}
"""Every program by its name, in the order of the gallery."""
