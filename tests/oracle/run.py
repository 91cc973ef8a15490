"""Run one case: write its files, read them in its forms, and say of each whether it was right, refused or wrong."""

import random
import re
import tempfile
import traceback
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

from h5stream import H5Dataset, errors
from h5stream.engine import sizing
from h5stream.storage.file import groups
from h5stream.storage.open import reading as members

from . import writing
from .beside import loader_beside
from .compare import WrongError
from .containers import has_set
from .forms import FORMS
from .reading import BUSY_S, Reading
from .refusals import reason_of
from .stored import RefusalError

REFUSALS = (
    errors.OptionError,
    errors.UnsupportedFieldError,
    errors.FieldLengthError,
    errors.FieldNotFoundError,
    errors.MissingFilterError,
    errors.ExternalDataError,
    errors.UnfollowableReferenceError,
)
"""What a sound file may be refused with; any other error of ours says that it is damaged, which is wrong."""

EXPECTED = ("the shuffle is weak", "the seed", "left out", "row by row")


def write(case: dict[str, Any], folder: Path) -> None:
    """Write a case's files."""
    for described in case["files"]:
        writing.write_file(str(folder), described)


def run(case: dict[str, Any]) -> list[dict[str, Any]]:
    """Return for each form how it went: "right", "refused", "wrong", "raw" or "unwritten", and what was said."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            write(case, folder)
        except Exception as error:
            return [{"form": form["form"], "status": "unwritten", "said": repr(error)} for form in case["forms"]]
        try:
            reading = Reading(case, folder)
        except RefusalError as error:
            return [{"form": form["form"], **refused_as_a_whole(case, folder, str(error))} for form in case["forms"]]
        except Exception:
            return [{"form": "model", "status": "unmodelled", "said": traceback.format_exc()}]
        if has_set(case):
            what = "a set, which has no order"
            return [{"form": form["form"], **refused_as_a_whole(case, folder, what)} for form in case["forms"][:1]]
        with (
            mock.patch.object(groups, "MANY", case.get("many", groups.MANY)),
            mock.patch.object(members, "MOST_OPENED", min(members.MOST_OPENED, case.get("many", members.MOST_OPENED))),
            mock.patch.object(sizing, "KEEP_NBYTES", -1 if case.get("streamed") else sizing.KEEP_NBYTES),
            loader_beside(reading),
        ):
            return [{"form": form["form"], **run_form(reading, form)} for form in case["forms"]]


def refused_as_a_whole(case: dict[str, Any], folder: Path, reason: str) -> dict[str, Any]:
    """Open a case that has no samples which would be right."""
    reading = Reading(case, folder, has_model=False)
    try:
        dataset = H5Dataset(reading.source, **reading.asked)
        dataset[: len(dataset)]
    except errors.H5StreamError as error:
        return {"status": "refused", "said": f"{type(error).__name__}: {error}", "reason": "the model's"}
    except Exception as error:
        return {"status": "raw", "said": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
    return {"status": "wrong", "said": f"is not refused, though it has {reason}"}


def refusal(reading: Reading, error: Exception, form: dict[str, Any]) -> dict[str, Any]:
    """Tell whether there is a true reason for a refusal, or whether the model finds that there is no value."""
    reason = reason_of(reading.case, str(error), form)
    if reason is None and reading.has_model and reading.model.answers() == "refused":
        reason = "the model's"
    said = f"{type(error).__name__}: {error}"
    return {"status": "refused" if reason else "unexplained", "said": said, "reason": reason}


def run_form(reading: Reading, form: dict[str, Any]) -> dict[str, Any]:
    """Read a case in one form."""
    random.seed(0)
    reading.slack_s = BUSY_S
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for said in EXPECTED:
            warnings.filterwarnings("ignore", message=f".*{said}")
        warnings.filterwarnings("ignore", category=errors.SlowSamplerWarning)
        try:
            FORMS[form["form"]][0](reading, form)
        except WrongError as error:
            return {"status": "wrong", "said": str(error), **error.facts}
        except RefusalError as error:
            return {"status": "wrong", "said": f"is not refused, though it has {error}"}
        except REFUSALS as error:
            return refusal(reading, error, form)
        except Exception as error:
            packed = re.search("scale_factor|add_offset", repr(reading.case["files"]))
            is_unlike = "unlike units" in reading.case["marks"] or packed
            if type(error).__name__ == "MeaningWarning" and is_unlike:
                return {"status": "refused", "said": f"warned: {error}", "reason": "a warning of other meanings"}
            return {"status": "raw", "said": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
    return {"status": "right", "said": ""}
