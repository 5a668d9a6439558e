"""The protocol of a tracker, and the table of trackers; each is imported when it is first used."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from herringbone.backends.review.trackers import check_installed
from herringbone.plan.destinations import Destination
from herringbone_contract.errors import TrackerError
from herringbone_contract.masking import masked_text, printable

if TYPE_CHECKING:
    from herringbone.plan.notify import Notify
    from herringbone.trackers.facts import JobFacts

# Module -> its class.
_CLASSES = {
    "mlflow": "MLflowTracker",
    "tensorboard": "TensorBoardTracker",
    "wandb": "WandbTracker",
    "trackio": "TrackioTracker",
    "notifier": "Notifier",
}
_ERROR_CHARS = 500


class Tracker(Protocol):
    """Stores the metrics of one job as one run.

    Every method raises `TrackerError`. After a transient one, the same call can be repeated.
    `state` is what a later process needs to go on with the run, as plain JSON values. It holds the run's `address`, for
    people, where there is one.
    """

    @property
    def state(self) -> dict[str, Any]: ...

    def begin(self, facts: JobFacts, state: Mapping[str, Any]) -> None:
        """Open the run that `state` names, or make one, with the job's hyperparameters and tags."""

    def log(self, points: Sequence[Any]) -> None:
        """Store points, or send notices; return when that is done."""

    def end(self, facts: JobFacts) -> None:
        """Store the job's end and its last tags."""

    def close(self) -> None:
        """Close files and connections; the run stays open for a later process unless it was ended."""


@contextmanager
def calls_of(name: str, is_transient: Callable[[Exception], bool]) -> Iterator[None]:
    """Turn every error of a tracker's package into a `TrackerError`; `name` is the tracker's in messages.

    >>> with calls_of("MLflow", lambda error: isinstance(error, OSError)):
    ...     raise OSError("no route")
    Traceback (most recent call last):
    herringbone_contract.errors.TrackerError: MLflow: no route
    """
    try:
        yield
    except TrackerError:
        raise
    # Packages raise more than they document: W&B's client has errors that none of its classes covers.
    except Exception as error:
        # On one line, as everything in the state of an export.
        text = printable(masked_text(" ".join(str(error).split()) or type(error).__name__))
        raise TrackerError(f"{name}: {text[:_ERROR_CHARS]}", transient=is_transient(error)) from error


# A destination and a folder for files in, a tracker out: `open_tracker`.
OpenTracker = Callable[[Any, Path], Tracker]


def open_tracker(destination: Destination | Notify, folder: Path) -> Tracker:
    """Return the tracker of a destination, or what sends its notices; it has its files in `folder`, or runs there.

    Raises `OptionError` if its package is not installed.
    """
    name = destination.tracker if isinstance(destination, Destination) else "notifier"
    if isinstance(destination, Destination):
        check_installed([destination])
    # A package may be installed and broken, such as by another release of what it requires.
    with calls_of(name, lambda _: False):
        module = importlib.import_module(f"herringbone.trackers.{name}")
        tracker: Tracker = getattr(module, _CLASSES[name])(destination, folder)
    return tracker
