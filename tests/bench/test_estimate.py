"""How long measuring takes is said before it begins."""

import pytest

pytest.importorskip("bench.estimate", reason="bench/ belongs to a checkout, not to an installed package")

from bench.estimate import PARTS


@pytest.mark.parametrize("size", ["quick", "full"])
@pytest.mark.parametrize("part", PARTS)
def test_every_part_can_be_estimated(part, size):
    assert 0 < PARTS[part](size) < 3600
