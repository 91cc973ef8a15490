"""Every error that h5stream raises on purpose.

::

    H5StreamError
    ├── SourceError (OSError)               a file cannot be used
    │   ├── SourceNotFoundError (FileNotFoundError)
    │   ├── NotHDF5Error
    │   ├── TruncatedFileError
    │   └── SourceChangedError              the file is not the one that was opened
    ├── FieldError (LookupError)            a field cannot be used
    │   ├── FieldNotFoundError
    │   ├── FieldLengthError (ValueError)   fields of different length, or no rows
    │   └── UnsupportedFieldError (TypeError)
    ├── ExternalDataError (PermissionError) data are outside the opened files
    ├── MissingFilterError (RuntimeError)   a filter that nothing here decodes
    ├── CorruptChunkError (OSError)         stored bytes that do not decode
    ├── OptionError (ValueError)            an argument that breaks a rule
    │   └── BudgetError                     more memory asked for than allowed
    ├── StateError (ValueError)             a saved state that does not fit
    ├── StagingError (OSError)              files cannot be staged, or a folder of staged files not used
    │   ├── NotEnoughSpaceError             the copies do not fit, or the folder filled up
    │   ├── StagedFileInUseError            a live process uses the copy
    │   ├── StagedFileDamagedError          a copy's bytes are not the source's
    │   ├── ManifestError                   the list of staged files cannot be read
    │   └── UnfollowableReferenceError      a needed file that cannot come along
    ├── LoaderTimeoutError (TimeoutError)   no batch within ``timeout``
    ├── LoaderClosedError (RuntimeError)    used after ``close()``
    ├── IsolatedProcessError (RuntimeError) a helper process ended
    ├── DeviceMemoryError (MemoryError)     the device has no room for the batches held ready on it
    └── MissingExtraError (ImportError)     an optional dependency is absent

One base class catches them all; the second base is the builtin that a caller who does not know
h5stream would catch. The facts of a message are attributes as well.
"""

from __future__ import annotations

import errno


class H5StreamError(Exception):
    """Base of every error that h5stream raises on purpose."""

    def __init__(self, message: str, **facts: object) -> None:
        super().__init__(message)
        vars(self).update(facts)  # the attributes that its class declares

    def __str__(self) -> str:
        # OSError and LookupError would format their arguments; the message is shown instead. But names
        # in a file may hold escape sequences, which are not for a terminal.
        return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in str(self.args[0]))


class SourceError(H5StreamError, OSError):
    """A file cannot be used.

    Attributes
    ----------
    file : str
        The path as it was given.
    """

    file: str = ""


class SourceNotFoundError(SourceError, FileNotFoundError):
    """No file at the path, or no file that matches the pattern."""


class NotHDF5Error(SourceError):
    """The file exists but libhdf5 does not take it for an HDF5 file."""


class TruncatedFileError(SourceError):
    """The file ends before data that its index promises."""


class SourceChangedError(SourceError):
    """The size, modification time or inode of the file, or the object's ETag, changed after it was opened."""


class FieldError(H5StreamError, LookupError):
    """A field cannot be used.

    Attributes
    ----------
    field : str
        The field as it was asked for.
    file : str
        The file in which it was looked for.
    """

    field: str = ""
    file: str = ""


class FieldNotFoundError(FieldError):
    """There is no dataset or compound member of that name."""


class FieldLengthError(FieldError, ValueError):
    """Fields of one sample differ in length, or have no rows at all."""


class UnsupportedFieldError(FieldError, TypeError):
    """The field exists, but its type cannot become a tensor or a list."""


class ExternalDataError(H5StreamError, PermissionError):
    """The data are outside the opened files, and ``allow_external`` was not given.

    Attributes
    ----------
    file, field : str
        Where the reference stands.
    target : str
        What it points to.
    """

    file: str = ""
    field: str = ""
    target: str = ""


class MissingFilterError(H5StreamError, RuntimeError):
    """A dataset needs a filter that is not available.

    Attributes
    ----------
    filter_id : int
        The registered HDF5 filter number.
    file, field : str
        Where it is needed.
    """

    filter_id: int = 0
    file: str = ""
    field: str = ""


class CorruptChunkError(H5StreamError, OSError):
    """The stored bytes of a chunk do not decode to the size that the dataset declares.

    Attributes
    ----------
    file, field : str
        The file and the dataset.
    chunk : tuple of int
        Coordinates of the chunk's first element.
    byte_offset : int
        Where the chunk starts in the file, in bytes; -1 where that is not known.
    """

    file: str = ""
    field: str = ""
    chunk: tuple[int, ...] = ()
    byte_offset: int = -1


class OptionError(H5StreamError, ValueError):
    """An argument breaks a rule; the message names the rule and the value."""


class BudgetError(OptionError):
    """The memory budget is too small for the request.

    Attributes
    ----------
    needed : int
        Bytes that would do.
    budget : int
        Bytes that were allowed.
    """

    needed: int = 0
    budget: int = 0


class StateError(H5StreamError, ValueError):
    """A saved state does not fit: the data, the fields or the settings that the order depends on differ.

    The settings are `batch_size`, `drop_last`, `shuffle`, `seed`, `draw`, and `window` where it is a number or
    ``"all"``; ``"auto"`` takes the state's, whatever `memory_budget` there is.

    Attributes
    ----------
    changed : tuple of str
        The parts of the fingerprint that differ; empty where it is not about them.
    """

    changed: tuple[str, ...] = ()


class StagingError(H5StreamError, OSError):
    """Files cannot be staged, or a folder of staged files cannot be used.

    Attributes
    ----------
    file : str
        The file that it is about; empty where it is about the folder.
    folder : str
        The folder that files are staged to.
    """

    file: str = ""
    folder: str = ""


class NotEnoughSpaceError(StagingError):
    """The copies do not fit into the folder or into memory, or the folder filled up while copying.

    Attributes
    ----------
    needed : int
        Bytes that the copies take.
    available : int
        Bytes that they may take.
    """

    errno = errno.ENOSPC
    needed: int = 0
    available: int = 0


class StagedFileInUseError(StagingError):
    """A live process holds a lease on the copy, or is making it.

    Attributes
    ----------
    pids : tuple of int
        The processes that use it.
    """

    pids: tuple[int, ...] = ()


class StagedFileDamagedError(StagingError):
    """The bytes read back from the copy differ from those of the source."""


class ManifestError(StagingError):
    """The manifest of a folder of staged files is damaged, or was written by a newer version."""


class UnfollowableReferenceError(StagingError):
    """A file that the file needs cannot come along, because a copy would not be found there.

    Attributes
    ----------
    target : str
        The needed file as the reference names it.
    """

    target: str = ""


class LoaderTimeoutError(H5StreamError, TimeoutError):
    """No batch was ready within ``timeout`` seconds."""

    @classmethod
    def of_batch(cls, batch: int, timeout_s: float, *, is_read: bool = False) -> LoaderTimeoutError:
        """Say that a batch did not come in time.

        Parameters
        ----------
        batch : int
            Its number.
        timeout_s : float
            The limit, in seconds.
        is_read : bool
            Whether its rows were read, and a worker was to apply the user's functions to it.

        Returns
        -------
        LoaderTimeoutError
        """
        why = (
            "it is read, and the worker that was to apply your functions to it was ended: they may hang, or need "
            "longer than that for a batch, or it was still starting: raise it"
            if is_read
            else "the source may hang, or timeout is too short for the first window: raise it"
        )
        return cls(f"no batch within timeout={timeout_s} s (batch {batch}); {why}, or 0 waits for as long as it takes")


class LoaderClosedError(H5StreamError, RuntimeError):
    """The loader or its iterator was used after it had been closed."""

    @classmethod
    def of_iterator(cls) -> LoaderClosedError:
        """Say that an iterator was used after it had been stopped.

        Returns
        -------
        LoaderClosedError
        """
        return cls("the loader was closed; make a new iterator with iter(loader)")


class IsolatedProcessError(H5StreamError, RuntimeError):
    """A helper process ended, or its error cannot be pickled.

    Attributes
    ----------
    exitcode : int or None
        Its exit status, or less than 0 for the signal that ended it; None where neither is known.
    """

    exitcode: int | None = None


class DeviceMemoryError(H5StreamError, MemoryError):
    """The device has no room for the batches held ready on it, or for the samples kept on it."""


class MissingExtraError(H5StreamError, ImportError):
    """An optional dependency is not installed; the message says what installs it."""


class SlowSamplerWarning(UserWarning):
    """A random sampler decides the order row by row, so that each row costs the decoding of a chunk.

    The message says what to write instead. A sampler of torch's own is recognised and costs nothing.
    """


class WeakShuffleWarning(UserWarning):
    """A loader's windows hold few blocks of the file, so that batches of sorted data see few kinds of rows.

    The message has the figures and the ways out. Said once for each loader that shuffles. Where rows lie in random
    order in the file it means nothing: ``warnings.simplefilter("ignore", h5stream.errors.WeakShuffleWarning)``.
    """


class OwnGeneratorWarning(UserWarning):
    """A function for samples reaches a generator of random numbers that is not seeded for each of them.

    The message names it and the ways out. Where it is not drawn from, or is meant to differ:
    ``warnings.simplefilter("ignore", h5stream.errors.OwnGeneratorWarning)``.
    """


class LeakWarning(UserWarning):
    """Parts of a split share data, because samples overlap; the message has the way out.

    Where that is meant: ``warnings.simplefilter("ignore", h5stream.errors.LeakWarning)``.
    """


class LeftOutWarning(UserWarning):
    """Files that a pattern names have none of the datasets that are fields, and were left out.

    Where that is meant: ``samples=Rows(missing="skip")``, or ``missing="skip"`` of `Sequences`.
    """


class MeaningWarning(UserWarning):
    """Datasets that are read as one have attributes that give the same stored number different meanings.

    Such as another ``scale_factor`` or other ``units``; see ``missing=`` of `Field`. If that is meant:
    ``warnings.simplefilter("ignore", h5stream.errors.MeaningWarning)``.
    """
