"""``python -m h5stream``: the command line, where no script is on the path."""

from h5stream.cli.app import main

main()
