"""How much of what could be tried is tried: a share by default, all of it by ``python -m pytest -m slow``."""

import itertools

import hypothesis
import pytest

FULL = "every example"
hypothesis.settings.register_profile("a share", max_examples=25, deadline=None, derandomize=True)
hypothesis.settings.register_profile(FULL, max_examples=100, deadline=None)


def examples(most, **options):
    """Settings of a property: `most` examples where all are wanted, else a twentieth of them, and 20 at least.

    A share is the same in every run; all examples differ from run to run.
    """
    full = hypothesis.settings.get_current_profile_name() == FULL
    return hypothesis.settings(max_examples=most if full else max(20, most // 20), deadline=None, **options)


def crossed(*axes):
    """Parameters for every combination of some axes' values; by default a diagonal of them, and the rest is slow.

    On the diagonal every value of every axis stands at least once, beside other neighbours each time round. The axes
    are given as ``(value, ...)``; one argument of the test takes each.
    """
    length = max(map(len, axes))
    diagonal = {
        tuple((k + k // len(axis) * shift) % len(axis) for shift, axis in enumerate(axes)) for k in range(length)
    }
    return [
        pytest.param(
            *(axis[place] for axis, place in zip(axes, places, strict=True)),
            marks=() if places in diagonal else pytest.mark.slow,
        )
        for places in itertools.product(*(range(len(axis)) for axis in axes))
    ]
