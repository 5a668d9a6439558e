"""All errors that Herringbone raises on purpose, as one tree.

    HerringboneError
    +-- UsageError                 the caller's mistake, found before anything starts   (also a ValueError)
    |   +-- DistributionError      a `distribution` dict that means nothing
    |   +-- HyperparameterError    a hyperparameter that cannot travel
    |   +-- OptionError            an estimator option that is unknown, mistyped or out of range
    |   +-- InputError             a channel, script or code folder that is missing or unreadable
    |   +-- JobNameError           a job name that is malformed or taken
    |   +-- UnsupportedError       a legal setting that this backend or this release cannot serve
    +-- ContractError              a file of the container contract that is missing or damaged
    +-- ArchiveError               an archive that is damaged or reaches outside its folder
    +-- JobNotFoundError           no job of that name is known here                     (also a LookupError)
    +-- JobFailedError             the job ran and failed; carries the `Failure`
    +-- LaunchError                the ranks could not be started (no MPI, a host never came)
    +-- HostError                  a machine that cannot be reached, or refuses a request
    +-- EngineError                no container engine answers, or it refuses a request
    +-- ImageError                 an image that is missing, cannot be built, or cannot run a job
    +-- ServiceError               a service that runs jobs does not answer, or refuses a request
    |   +-- IndexBusyError         the index of jobs is locked, or its disk is full or read-only, at this moment
    |   +-- SlurmError             Slurm does not answer, or refuses a request
    |   +-- AwsError               AWS refuses a request; `code` is its own error code
    |       +-- AwsCredentialsError    no credentials, or they are expired or wrong
    |       +-- AwsAccessError         the credentials are good, and may not do this
    |       +-- AwsUnavailableError    no answer, or an answer to retry later; AWS may have carried the request out
    +-- ParallelError              a model- or data-parallel library call that cannot be served

Catch `HerringboneError` to catch all of them, `UsageError` for mistakes that the caller can fix in the call itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from herringbone_contract.failure import Failure


class HerringboneError(Exception):
    """The root of every error that Herringbone raises on purpose."""

    def __str__(self) -> str:
        # A message quotes the user's values, and half of a character (a lone surrogate) could not be printed.
        return super().__str__().encode("utf-8", "backslashreplace").decode()


class UsageError(HerringboneError, ValueError):
    """A mistake in the call itself; nothing was started, nothing was changed."""


class DistributionError(UsageError):
    """A `distribution` dict with an unknown key, a wrong type or values that exclude each other."""


class HyperparameterError(UsageError):
    """A hyperparameter that cannot be encoded, or is longer than the service allows."""


class OptionError(UsageError):
    """An estimator option that is unknown, of the wrong type or out of range."""


class InputError(UsageError):
    """A channel, entry point or code folder that is missing or cannot be read."""


class JobNameError(UsageError):
    """A job name that is malformed or already taken."""


class UnsupportedError(UsageError):
    """A legal setting that the chosen backend, or this release, cannot serve."""


class ContractError(HerringboneError):
    """A file of the container contract that is missing, damaged or contradicts another one."""


class ArchiveError(HerringboneError):
    """An archive that is damaged, or has members that would land outside its folder."""


class JobNotFoundError(HerringboneError, LookupError):
    """No job of that name is known here."""


class JobFailedError(HerringboneError):
    """The job ran and failed; `failure` says on which host and rank, and how.

    The message has the traceback and the last lines of the log, unless the log was shown. `advice` says what to do.
    """

    def __init__(self, job_name: str, failure: Failure, *, advice: str = "", log_shown: bool = False) -> None:
        lines = [failure.brief if log_shown else failure.render(), failure.advice or advice]
        lines.append("the log above has more" if log_shown else f"the whole log: herringbone logs {job_name}")
        super().__init__(f"job {job_name} failed: " + "\n".join(filter(None, lines)))
        self.job_name = job_name
        self.failure = failure


class LaunchError(HerringboneError):
    """The ranks could not be started."""


class ServiceError(HerringboneError):
    """A service that runs jobs does not answer, or refuses a request.

    `service` is its name in messages. `transient`: the error goes away by itself, or when the user logs in again.
    `denied`: the caller may not do this, which also happens for minutes after a permission was granted.
    """

    service = "the service"
    transient = False
    denied = False


class IndexBusyError(ServiceError):
    """The index of jobs is locked, or its disk is full or read-only, at this moment; jobs go on without it."""

    service = "the index of jobs"
    transient = True


class SlurmError(ServiceError):
    """Slurm's commands are missing, its controller does not answer, or it refuses a request."""

    service = "Slurm"


class HostError(HerringboneError):
    """A machine that cannot be reached, lacks what a host needs, or refuses a request."""


class EngineError(HerringboneError):
    """No container engine answers, or it refuses a request."""


class ImageError(HerringboneError):
    """A container image that is missing, cannot be built, or cannot run a job."""


class AwsError(ServiceError):
    """AWS refuses a request; `code` is the service's own error code, None when it gave none."""

    service = "AWS"

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code


class AwsCredentialsError(AwsError):
    """No credentials were found, or they are expired or wrong."""

    transient = True


class AwsAccessError(AwsError):
    """The credentials are good, and their owner may not do this."""

    denied = True


class AwsUnavailableError(AwsError):
    """AWS did not answer, or asks for a retry later; it may have carried the request out all the same."""

    transient = True


class ParallelError(HerringboneError):
    """A call of the parallel libraries that cannot be served; the message says why and what to do."""
