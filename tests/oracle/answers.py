"""What stands beside a failing case in its script: the samples as h5py has them."""

import tempfile
from pathlib import Path
from typing import Any

from .compare import plain
from .model import Crops, Model
from .run import write

MOST = 12


def right_answer(case: dict[str, Any], result: dict[str, Any]) -> str:
    """Return the samples of a case, or the one that is wrong."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            write(case, Path(folder))
            model = Model(case, Path(folder))
            numbers = [result["number"]] if "number" in result else range(min(MOST, len(model.samples)))
            return "\n".join(f"{number}: {listed(model.sample(number))}" for number in numbers)
        except Exception as error:
            return f"the model fails with {error!r}"


def listed(value: Any) -> Any:
    """Return lists and dicts where there are arrays."""
    if isinstance(value, Crops):
        return f"{value.length} rows of {listed(value.rows)}"
    if isinstance(value, dict):
        return {name: listed(one) for name, one in value.items()}
    value = plain(value)
    return value.tolist() if hasattr(value, "tolist") else value
