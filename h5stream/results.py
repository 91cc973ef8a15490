"""Classes of what calls return: ragged and sparse fields of a batch, measurements, findings, written files."""

from h5stream.advice.diagnose import Diagnosis
from h5stream.advice.track import EpochSummary
from h5stream.advice.tune import Tuning
from h5stream.dataset.statistics import FieldStatistics
from h5stream.engine.statistics import LoaderStatistics
from h5stream.repacking.repack import RepackResult
from h5stream.staging import StagedFiles
from h5stream.structure import Packed, Padded, SparseRows

__all__ = [
    "Diagnosis",
    "EpochSummary",
    "FieldStatistics",
    "LoaderStatistics",
    "Packed",
    "Padded",
    "RepackResult",
    "SparseRows",
    "StagedFiles",
    "Tuning",
]
