"""`ml.*`: SageMaker runs the hosts. A job can be planned, offline, and submitted; following it is not there yet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from herringbone.backends.review import all_channels
from herringbone.backends.sagemaker_model import check_request
from herringbone.backends.sagemaker_progress import Progress
from herringbone.backends.sagemaker_request import AccountNames, training_job_request
from herringbone.backends.sagemaker_review import review
from herringbone.backends.sagemaker_session import AwsSession
from herringbone.backends.sagemaker_submission import Submission
from herringbone.home import Home, find_home
from herringbone.interrupt import OnInterrupt
from herringbone.pace import Pace
from herringbone_spec.errors import UnsupportedError

if TYPE_CHECKING:
    from herringbone.backends.base import LogSource
    from herringbone.jobs import JobRecord
    from herringbone.plan import JobPlan


def make_backend() -> SageMakerBackend:
    """Return the backend; it needs no account to plan."""
    return SageMakerBackend()


class SageMakerBackend:
    """Plans and submits SageMaker training jobs, which it files in the index of `home` (the user's, unless given).

    `check` says whether the service's model, which a session's loader reads, allows a request.
    """

    name = "sagemaker"
    # Of the requests that an account may send, one who waits takes few; and many who wait do not ask all at once.
    pace = Pace(shortest=2.0, longest=10.0, slower=1.2, jitter=0.25)
    on_interrupt: OnInterrupt = "ask"

    def __init__(
        self,
        *,
        home: Home | None = None,
        check: Callable[[Mapping[str, Any], Any], None] = check_request,
        progress: Progress | None = None,
    ) -> None:
        self._home = find_home() if home is None else home
        self._check = check
        self._progress = Progress() if progress is None else progress
        # Of the jobs that were submitted here: the user's own session may hold credentials that nobody finds again.
        self._sessions: dict[str, AwsSession] = {}

    def review(self, plan: JobPlan) -> tuple[str, ...]:
        unused = review(plan)
        session = AwsSession.of(plan.options.sagemaker_session)
        # With plausible names in place of the stand-ins: their lengths and patterns are checked as well.
        channels = {channel.name: "0" * 64 for channel in all_channels(plan)}
        example = AccountNames(
            region="us-east-1",
            bucket="sagemaker-us-east-1-123456789012",
            role_arn="arn:aws:iam::123456789012:role/example",
            code_hash="0" * 64,
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

    def describe(self, name: str) -> JobRecord:
        self._refuse(f"job {name}")

    def logs(self, name: str) -> LogSource:
        self._refuse(f"job {name}")

    def stop(self, name: str, grace: float | None = None) -> None:  # noqa: ARG002
        self._refuse(f"job {name}")

    def kill(self, name: str) -> None:
        self._refuse(f"job {name}")

    def bill(self, name: str) -> str | None:
        self._refuse(f"job {name}")

    def fetch_model(self, name: str, into: Path) -> Path:  # noqa: ARG002
        self._refuse(f"job {name}")

    def _refuse(self, what: str) -> NoReturn:
        raise UnsupportedError(
            f"{what}: this release submits jobs for ml.* and does not follow them yet; look at it with "
            f"`aws sagemaker describe-training-job`"
        )
