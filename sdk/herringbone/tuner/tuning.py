"""The handle of a tuning job, the same for own hosts and for SageMaker, and how to find one by its name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from herringbone.records.home import Home, find_home
from herringbone.tuner.definition import check_tuning_name
from herringbone.tuner.store import TuningStore
from herringbone_contract.errors import JobNotFoundError, near_words

if TYPE_CHECKING:
    from herringbone.tuner.definition import TuningDefinition
    from herringbone.tuner.look import TuningLook
    from herringbone.tuner.store import TrialRecord


class Tuning(Protocol):
    """One tuning job, by its name."""

    name: str

    def describe(self) -> dict[str, Any]:
        """Return the job under the key names of DescribeHyperParameterTuningJob, as plain JSON values."""

    def definition(self) -> TuningDefinition:
        """Return what was asked for."""

    def trials(self) -> list[TrialRecord]:
        """Return the trials so far, in the order of their numbers."""

    def look(self) -> TuningLook:
        """Return the search at this moment, of which views draw the summary."""

    def stop(self) -> None:
        """Ask the search to stop, and return; running trials are stopped as well."""

    def wait(self, say: Callable[[str], None] | None = None, timeout: float | None = None) -> None:
        """Return when the search is over; `say` gets a line for each trial that is over.

        Raises `TuningFailedError` when the search failed, `TimeoutError` after `timeout` seconds.
        """


def find_tuning(name: str, sagemaker_session: object = None, *, home: Home | None = None) -> Tuning:
    """Return the tuning job of a name: of this machine, or of SageMaker if a region is set.

    >>> find_tuning("digits").describe()["HyperParameterTuningJobStatus"]      # doctest: +SKIP
    'Completed'

    Raises `JobNotFoundError` with the nearest names.
    """
    home = find_home() if home is None else home
    # A wrong name is found nowhere, and the error says why.
    store = TuningStore(home.tuning(check_tuning_name(name)))
    if store.exists:
        from herringbone.tuner.own import OwnTuning

        return OwnTuning(store, home)
    from herringbone.tuner.service import attach_tuning

    try:
        return attach_tuning(name, sagemaker_session, folder=store.path if store.path.is_dir() else None)
    except JobNotFoundError as error:
        near = near_words(name, tuning_names(home), number=3)
        hint = f"did you mean {' or '.join(near)}?" if near else "`herringbone tune ls` shows the tuning jobs"
        raise JobNotFoundError(f"no tuning job {name!r} in {home.tunings}; {hint}; {error}") from None


def newest_names(home: Home) -> list[str]:
    """Return the names of `tuning_names`, the newest tuning job first."""

    def created(name: str) -> float:
        # Both files are written once.
        for file in ("tuning.json", "service.json"):
            try:
                return (home.tuning(name) / file).stat().st_mtime
            except OSError:
                continue
        return 0.0

    return sorted(tuning_names(home), key=lambda name: (-created(name), name))


def tuning_names(home: Home | None = None) -> list[str]:
    """Return the names of this machine's tuning jobs, those of SageMaker that it submitted included, sorted."""
    home = find_home() if home is None else home
    try:
        # A folder whose name begins with a dot is of a creation that was interrupted.
        return sorted(path.name for path in home.tunings.iterdir() if not path.name.startswith("."))
    except OSError:
        return []
