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
    +-- RemoteError                a remote function has no result, or one that may not be trusted
    +-- TuningFailedError          a search ended without a result; carries the reason
    +-- LaunchError                the ranks could not be started (no MPI, a host never came)
    +-- RequestError               a running job that cannot be asked, or does not answer
    +-- HostError                  a machine that cannot be reached, or refuses a request
    +-- EngineError                no container engine answers, or it refuses a request
    +-- ImageError                 an image that is missing, cannot be built, or cannot run a job
    +-- ServiceError               a service does not answer, or refuses a request
    |   +-- IndexBusyError         the index of jobs is locked, or its disk is full or read-only, at this moment
    |   +-- KubernetesError        a cluster's API server does not answer, or refuses a request
    |   +-- SlurmError             Slurm does not answer, or refuses a request
    |   +-- TrackerError           a tracker does not answer, or refuses the metrics of a job
    |   +-- AwsError               AWS refuses a request; `code` is its own error code
    |       +-- AwsCredentialsError    no credentials, or they are expired or wrong
    |       +-- AwsAccessError         the credentials are good, and may not do this
    |       +-- AwsUnavailableError    no answer, or an answer to retry later; AWS may have carried the request out
    +-- MeasurementError           a script whose first step cannot be measured
    +-- ParallelError              a model- or data-parallel library call that cannot be served
        +-- HookError              a release of torch, TensorFlow or transformers in which a hook of ours does not bite

Catch `HerringboneError` to catch all of them, `UsageError` for mistakes that the caller can fix in the call itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from herringbone_contract.failure import Failure

# Of a word that a message says more about.
_MAX_CHARS = 80


class HerringboneError(Exception):
    """The root of every error that Herringbone raises on purpose.

    To fix: Read the message: it says what happened, where, why, and what to do next.
    """

    def __str__(self) -> str:
        # A message quotes the user's values, and half of a character (a lone surrogate) could not be printed.
        return super().__str__().encode("utf-8", "backslashreplace").decode()


class UsageError(HerringboneError, ValueError):
    """A mistake in the call itself; nothing was started, nothing was changed.

    To fix: Change the call as the message says, and run it again.
    """

    @property
    def argument(self) -> str:
        """The argument that the message is about, with which it begins; "" for a message that begins otherwise."""
        head, separator, _ = str(self).partition(": ")
        return head if separator else ""

    @property
    def reason(self) -> str:
        """The message without its argument."""
        return str(self).removeprefix(f"{self.argument}: ")


class DistributionError(UsageError):
    """A `distribution` dict with an unknown key, a wrong type or values that exclude each other.

    To fix: Correct the key that the message names; docs/look-up/distribution.md lists all keys.
    """


class HyperparameterError(UsageError):
    """A hyperparameter that cannot be encoded, or is longer than the service allows.

    To fix: Pass text, numbers, lists or dicts of them; put larger values into a file of a channel.
    """


class OptionError(UsageError):
    """An estimator option that is unknown, of the wrong type or out of range.

    To fix: Correct the option that the message names; docs/look-up/options.md lists all options.
    """


class InputError(UsageError):
    """A channel, entry point or code folder that is missing or cannot be read.

    To fix: Correct the path in the message. `entry_point` is relative to `source_dir`, all others to the current
    folder.
    """


class JobNameError(UsageError):
    """A job name that is malformed or already taken.

    To fix: Use letters, digits and hyphens, at most 63, and a name that no other job has; or give no name.
    """


class UnsupportedError(UsageError):
    """A legal setting that the chosen backend, or this release, cannot serve.

    To fix: Leave the setting out, or choose a backend that serves it; the message names one where there is one.
    """


class ContractError(HerringboneError):
    """A file of the container contract that is missing, damaged or contradicts another one.

    To fix: Do not write into `input/config` of a job. Otherwise the platform or the image wrote a wrong file there.
    """


class ArchiveError(HerringboneError):
    """An archive that is damaged, or has members that would land outside its folder.

    To fix: Fetch or create the archive again; do not unpack it by other means, because its members may overwrite your
    files.
    """


class JobNotFoundError(HerringboneError, LookupError):
    """No job of that name is known here.

    To fix: Look the name up with `herringbone ls`; the jobs of another `HERRINGBONE_HOME` are not in the list.
    """


class JobFailedError(HerringboneError):
    """The job ran and failed; `failure` says on which host and rank, and how.

    The message has the traceback and the last lines of the log, unless the log was shown. `advice` says what to do.

    To fix: Read `failure`, then the lines above it in `herringbone logs NAME`.
    """

    def __init__(self, job_name: str, failure: Failure, *, advice: str = "", log_shown: bool = False) -> None:
        lines = [failure.brief if log_shown else failure.render(), failure.advice or advice]
        if not log_shown:
            lines.append(f"the whole log: herringbone logs {job_name}")
        elif failure.frames or failure.log_tail:
            lines.append("the log above has more")
        super().__init__(f"job {job_name} failed: " + "\n".join(filter(None, lines)))
        self.job_name = job_name
        self.failure = failure


class RemoteError(HerringboneError):
    """The job of a remote function left no result, or one that is not signed with the job's key.

    To fix: Read the job's log with `herringbone logs NAME`, and call the function again.
    """


class TuningFailedError(HerringboneError):
    """A tuning job that ended without any result; `reason` says why.

    To fix: Read the reason, and the log of the training job that it names; correct the script or the metric, and search
    again.
    """

    def __init__(self, tuning_job_name: str, reason: str) -> None:
        super().__init__(f"tuning job {tuning_job_name} failed: {reason}")
        self.tuning_job_name = tuning_job_name
        self.reason = reason


class LaunchError(HerringboneError):
    """The ranks could not be started.

    To fix: Install what the message names, such as an MPI, and check that all hosts reach each other.
    """


class ServiceError(HerringboneError):
    """A service that runs jobs does not answer, or refuses a request.

    `service` is its name in messages. `transient`: the error goes away by itself, or when the user logs in again.
    `denied`: the caller may not do this, which also happens for minutes after a permission was granted.

    To fix: Try again if `transient` is true; otherwise ask the service's owner for what the message names.
    """

    service = "the service"
    transient = False
    denied = False


class IndexBusyError(ServiceError):
    """The index of jobs is locked, or its disk is full or read-only, at this moment; jobs go on without it.

    To fix: Try again, or free space on the disk of `HERRINGBONE_HOME`. Running jobs are not affected.
    """

    service = "the index of jobs"
    transient = True


class KubernetesError(ServiceError):
    """A cluster's API server does not answer, or refuses a request; `status` is HTTP's, None without an answer.

    To fix: Ask with kubectl and the same context: `kubectl auth can-i --list` shows what you may do there.
    """

    service = "Kubernetes"

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.transient = status is None or status == 429 or status >= 500
        self.denied = status in (401, 403)


class SlurmError(ServiceError):
    """Slurm's commands are missing, its controller does not answer, or it refuses a request.

    To fix: Run the command of the message in a shell on the login node; `sinfo` shows whether Slurm answers.
    """

    service = "Slurm"


class RequestError(HerringboneError):
    """A running job that cannot be asked something: it is over, its controller takes no requests, or no host answers.

    To fix: Act on the reason in the message; `herringbone logs NAME` shows whether the hosts still run.
    """


class TrackerError(ServiceError):
    """A tracker that a job's metrics are exported to does not answer, or refuses them; the job itself goes on.

    To fix: Check the address, and the tracker's own variables for credentials; then `herringbone export NAME` sends
    what is missing (docs/do/trackers.md).
    """

    service = "the tracker"

    def __init__(self, message: str, *, transient: bool = False) -> None:
        super().__init__(message)
        self.transient = transient


class HostError(HerringboneError):
    """A machine that cannot be reached, lacks what a host needs, or refuses a request.

    To fix: Run `herringbone hosts check INVENTORY`, which names the missing part of each machine.
    """


class EngineError(HerringboneError):
    """No container engine answers, or it refuses a request.

    To fix: Start the engine, or join its group (`docker info` must work for your user), or set `DOCKER_HOST`.
    """


class ImageError(HerringboneError):
    """A container image that is missing, cannot be built, or cannot run a job.

    To fix: Build the image with `herringbone images build`, or name another one in `image_uri`.
    """


class AwsError(ServiceError):
    """AWS refuses a request; `code` is the service's own error code, None when it gave none.

    To fix: Look `code` up in AWS's documentation of the operation in the message.
    """

    service = "AWS"

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code


class AwsCredentialsError(AwsError):
    """No credentials were found, or they are expired or wrong.

    To fix: Log in again (`aws sso login`, or new keys), or name a profile by `AWS_PROFILE`.
    """

    transient = True


class AwsAccessError(AwsError):
    """The credentials are good, and their owner may not do this.

    To fix: Ask the account's owner for the permission in the message; docs/do/aws-account.md has a policy with all of
    them.
    """

    denied = True


class AwsUnavailableError(AwsError):
    """AWS did not answer, or asks for a retry later; it may have carried the request out all the same.

    To fix: Wait, then look with `herringbone describe NAME` before you submit the job again.
    """

    transient = True


class MeasurementError(HerringboneError):
    """A script of which no step can be measured: it fails, ends before a step, or is too slow; or no prediction of it.

    To fix: Read the end of the script's output in the message. docs/do/predict.md says what a script needs.
    """


class ParallelError(HerringboneError):
    """A call of the parallel libraries that cannot be served; the message says why and what to do.

    To fix: Change the call in the script as the message says.
    """


class HookError(ParallelError):
    """A release of a library in which Herringbone's hook into it does not bite; results would be wrong without it.

    To fix: Install a release that docs/look-up/library-hooks.md names as tested.
    """


def near_words(word: str, known: Iterable[str], *, number: int = 1, cutoff: float = 0.6) -> list[str]:
    """Return the known words that a user may have meant by a word that is none of them, the nearest first.

    >>> near_words("epoch", ["epochs", "rate"])
    ['epochs']
    """
    # Imported here: most processes raise no such error.
    import difflib

    # The comparison takes a minute for a word of a million characters, and no known word is long.
    return difflib.get_close_matches(word[:_MAX_CHARS], list(known), n=number, cutoff=cutoff)
