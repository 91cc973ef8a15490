"""Each test that ``docs/reliability.md`` names is there: a table of promises must not outlive them."""

import re
from pathlib import Path

from support.each import for_each

TESTS = Path(__file__).resolve().parent.parent
TABLE = (TESTS.parent / "docs" / "reliability.md").read_text()
NAMED = re.findall(r"`((?:\w+/)*test_\w+\.py)(?:::(test_\w+?)(?:_?\.\.\.)?)?`", TABLE)


@for_each(NAMED)
def test_a_test_that_the_table_names_exists(file, name):
    assert re.search(rf"^def {name}", (TESTS / file).read_text(), re.MULTILINE) if name else (TESTS / file).is_file()


def test_the_table_names_many():
    assert len(NAMED) > 30
