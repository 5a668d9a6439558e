"""`ml.*`: SageMaker runs the hosts. The way there is `Submission`'s, what comes then `SubmittedJobs`'."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from herringbone.aws.session import AwsSession
from herringbone.backends.sagemaker.progress import Progress
from herringbone.backends.sagemaker.request import AccountNames, training_job_request
from herringbone.backends.sagemaker.review import review
from herringbone.backends.sagemaker.service_model import check_request
from herringbone.backends.sagemaker.submission import Submission
from herringbone.backends.sagemaker.submitted import SubmittedJobs
from herringbone.jobs.home import Home, find_home
from herringbone.jobs.interrupt import OnInterrupt
from herringbone.jobs.polling import Pace
from herringbone_contract.errors import AwsError, JobNotFoundError, OptionError, UnsupportedError

if TYPE_CHECKING:
    from herringbone.backends.base import LogSource
    from herringbone.jobs.index import JobRecord
    from herringbone.planning.plan import JobPlan


def make_backend() -> SageMakerBackend:
    """Return the backend; it needs no account to plan."""
    return SageMakerBackend()


# Of the requests that an account may send, one who waits takes few; and many who wait do not ask all at once.
_PACE = Pace(shortest=2.0, longest=10.0, slower=1.2, jitter=0.25)


class SageMakerBackend:
    """Runs SageMaker training jobs, which it files in the index of `home` (the user's, unless given).

    `check` says whether the service's model, which a session's loader reads, allows a request; `pace` is how often the
    service is asked for a job.
    """

    name = "sagemaker"
    on_interrupt: OnInterrupt = "ask"

    def __init__(
        self,
        *,
        home: Home | None = None,
        check: Callable[[Mapping[str, Any], Any], None] = check_request,
        progress: Progress | None = None,
        pace: Pace = _PACE,
    ) -> None:
        self._home = find_home() if home is None else home
        self._check = check
        self._progress = Progress() if progress is None else progress
        # Of the jobs that were submitted here: the user's own session may hold credentials that nobody finds again.
        self._sessions: dict[str, AwsSession] = {}
        self.pace = pace
        self._submitted = SubmittedJobs(self._home, self._sessions, pace=pace)

    def review(self, plan: JobPlan) -> tuple[str, ...]:
        unused = review(plan)
        session = AwsSession.of(plan.options.sagemaker_session)
        # With plausible names in place of the stand-ins: their lengths and patterns are checked as well.
        channels = {channel.name: "0" * 64 for channel in plan.channels}
        example = AccountNames(
            region="us-east-1",
            bucket="sagemaker-us-east-1-123456789012",
            role_arn="arn:aws:iam::123456789012:role/example",
            code_hash="0" * 64,
            key_id="0" * 32,
            data_hashes=channels,
        )
        self._check(training_job_request(plan, example), session.loader)
        return unused

    def request(self, plan: JobPlan) -> dict[str, Any]:
        return training_job_request(plan, AccountNames())

    def submit(self, plan: JobPlan) -> None:
        session = AwsSession.of(plan.options.sagemaker_session)
        Submission(plan, session, home=self._home, progress=self._progress).run(self.name, self._check)
        self._sessions[plan.job_name] = session

    def find(self, name: str, session: object = None) -> None:
        """Look for a job that this machine never saw; `session` is the user's, as `sagemaker_session` takes it.

        Raises `JobNotFoundError` when there is none, or nobody can be asked.
        """
        try:
            aws = AwsSession.of(session)
            where = aws.region
        except (UnsupportedError, OptionError) as error:
            raise JobNotFoundError(f"SageMaker was not asked: {error}") from None
        self._progress.say(f"job {name} is not known here; asking SageMaker in {where}")
        try:
            self._submitted.find(name, aws)
        except AwsError as error:
            raise JobNotFoundError(f"SageMaker in {where} could not be asked: {error}") from error

    def use(self, name: str, session: object) -> None:
        """Ask for a job with the user's own session from now on."""
        self._sessions[name] = AwsSession.of(session)

    def describe(self, name: str) -> JobRecord:
        return self._submitted.describe(name)

    def logs(self, name: str) -> LogSource:
        return self._submitted.logs(name)

    def stop(self, name: str, grace: float | None = None) -> None:
        self._submitted.stop(name, grace)

    def kill(self, name: str) -> None:
        # The service has one way to end a job, and its own 120 s between SIGTERM and SIGKILL.
        self._submitted.stop(name)

    def bill(self, name: str) -> str | None:
        return self._submitted.bill(name)

    def fetch_model(self, name: str, into: Path) -> Path:
        return self._submitted.fetch_model(name, into, progress=self._progress)
