"""Failures of other ranks: the error that a rank raises for them, and the text in which ranks report a failure."""

from __future__ import annotations

from herringbone_contract.errors import ParallelError

# The attribute of an exception that holds the module in whose code it was raised.
MODULE_ATTRIBUTE = "_smp_module"

# The other ranks wait for so long before they raise, so that the failed rank's own error comes first, also for the
# launcher.
REPORT_SECONDS = 0.5


class PeerFailedError(ParallelError):
    """Another rank of the pipeline, or of a replica of it, failed; its own traceback has the cause.

    To fix: Read the traceback of the rank that the message names; this rank is not the cause.
    """


def note_module(failure: BaseException, path: str) -> None:
    """Note on an exception that it was raised in this module. The first note, by the innermost module, is kept."""
    if not hasattr(failure, MODULE_ATTRIBUTE):
        setattr(failure, MODULE_ATTRIBUTE, path)


def described(failure: BaseException) -> str:
    """Describe an exception in one line for the other ranks, with the module that it was raised in if that is known."""
    module = getattr(failure, MODULE_ATTRIBUTE, None)
    return f"{type(failure).__name__}: {failure}" + (f" (in module {module})" if module else "")
