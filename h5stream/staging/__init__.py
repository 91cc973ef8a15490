"""Files to faster storage and back: copy, verify, manifest, lease."""

from __future__ import annotations

from h5stream.staging.front import (
    RemovedFiles,
    StagedFile,
    StagedState,
    VerifiedFile,
    list_staged,
    remove_staged,
    stage,
    staged,
    verify_staged,
)
from h5stream.staging.run import ProgressCallback, StagedFiles, StagingProgress

__all__ = [
    "ProgressCallback",
    "RemovedFiles",
    "StagedFile",
    "StagedFiles",
    "StagedState",
    "StagingProgress",
    "VerifiedFile",
    "list_staged",
    "remove_staged",
    "stage",
    "staged",
    "verify_staged",
]
