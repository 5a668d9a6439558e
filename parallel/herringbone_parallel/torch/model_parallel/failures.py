"""What a rank raises when another one has failed, and what ranks tell each other of a failure."""

from __future__ import annotations

from herringbone_contract.errors import ParallelError

# On an exception: the module in whose code it was raised.
MODULE_ATTRIBUTE = "_smp_module"

# The rank that failed should be the first to be heard, also by the launcher: the others wait for so long.
FIRST_WORD_SECONDS = 0.5


class PeerFailedError(ParallelError):
    """Another rank of the pipeline, or of a replica of it, failed; its own traceback says where."""


def note_module(failure: BaseException, path: str) -> None:
    """Say on an exception that it left this module; the first to say so, the innermost, is believed."""
    if not hasattr(failure, MODULE_ATTRIBUTE):
        setattr(failure, MODULE_ATTRIBUTE, path)


def described(failure: BaseException) -> str:
    """Return an exception in one line for the other ranks, with the module that it was raised in, if one was noted."""
    module = getattr(failure, MODULE_ATTRIBUTE, None)
    return f"{type(failure).__name__}: {failure}" + (f" (in module {module})" if module else "")
