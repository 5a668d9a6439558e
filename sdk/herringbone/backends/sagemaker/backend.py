"""Implement the backend `sagemaker`: `Submission` submits a job, `SubmittedJobs` has the verbs about submitted ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from herringbone.aws.session import AwsSession
from herringbone.backends.sagemaker.request import AccountNames, example_names, training_job_request
from herringbone.backends.sagemaker.review import image_by_version, review
from herringbone.backends.sagemaker.service_model import check_request
from herringbone.backends.sagemaker.submission import Submission
from herringbone.backends.sagemaker.submitted import SubmittedJobs
from herringbone.plan.frameworks import IMAGES, image_version
from herringbone.records.home import Home, find_home
from herringbone.system.interrupt import OnInterrupt
from herringbone.system.polling import Pace
from herringbone.system.progress import Progress
from herringbone_contract.errors import AwsError, JobNotFoundError, OptionError, UnsupportedError

if TYPE_CHECKING:
    from herringbone.plan.plan import JobPlan
    from herringbone.protocols.backend import Answers
    from herringbone.protocols.host_access import HostAccess
    from herringbone.records.index import JobRecord
    from herringbone_contract.events.requests import Request


def make_backend() -> SageMakerBackend:
    """Return the backend, which needs no account to plan a job."""
    return SageMakerBackend()


# An account may send a limited number of requests per second, so one waiting process sends few. The jitter keeps many
# waiting processes from asking all at once.
_PACE = Pace(shortest=2.0, longest=10.0, slower=1.2, jitter=0.25)


class SageMakerBackend(SubmittedJobs):
    """Runs SageMaker training jobs and records them in the index of `home`, by default the user's home.

    `check` takes a request and a session's loader, and raises for a request that SageMaker's service model does not
    allow. `pace` limits how often SageMaker is asked for a job.
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
        super().__init__(find_home() if home is None else home, Progress() if progress is None else progress, pace=pace)
        self._check = check

    @property
    def home(self) -> Home:
        return self._home

    def completed(self, plan: JobPlan) -> JobPlan:
        """Name AWS's image by its versions, as SDK v2 does."""
        arguments = plan.arguments
        if arguments.image_uri is not None or plan.estimator not in IMAGES or image_version(plan) is None:
            return plan
        region = AwsSession.of(plan.options.sagemaker_session).region
        return msgspec.structs.replace(
            plan, arguments=msgspec.structs.replace(arguments, image_uri=image_by_version(plan, region=region))
        )

    def review(self, plan: JobPlan) -> tuple[str, ...]:
        unused = review(plan)
        session = AwsSession.of(plan.options.sagemaker_session)
        self._check(training_job_request(plan, example_names(plan)), session.loader)
        return unused

    def request(self, plan: JobPlan) -> dict[str, Any]:
        return training_job_request(plan, AccountNames())

    def try_out(self, plan: JobPlan) -> None:  # noqa: ARG002
        raise UnsupportedError("--server: SageMaker cannot try a request; `plan` checks it by the service's own model")

    def submit(self, plan: JobPlan) -> None:
        session = AwsSession.of(plan.options.sagemaker_session)
        Submission(plan, session, home=self._home, progress=self._progress).run(self.name, self._check)
        self._sessions[plan.job_name] = session

    def find(self, name: str, session: object = None) -> None:
        """Look a job up in the index, then in SageMaker; `session` is a value of the option `sagemaker_session`.

        Raises `JobNotFoundError` when there is no such job, or SageMaker cannot be asked.
        """
        if self.knows(name):
            if session is not None:
                self._sessions[name] = AwsSession.of(session)
            return
        try:
            # Reading the region here raises before the message below announces a request that cannot be sent.
            aws_session = AwsSession.of(session)
            region = aws_session.region
        except (UnsupportedError, OptionError) as error:
            # Whoever gives no session may have no account: the remedies are for those who have one.
            why = str(error) if session is not None else str(error).partition(";")[0]
            raise JobNotFoundError(f"SageMaker was not asked: {why}") from None
        self._progress.say(f"job {name} is not known here; asking SageMaker in {region}")
        try:
            self.add(name, aws_session)
        except AwsError as error:
            raise JobNotFoundError(f"SageMaker in {region} could not be asked: {error}") from error

    def ask(self, name: str, request: Request) -> Answers:
        raise UnsupportedError(
            f"job {name} runs on SageMaker, which lets no request from outside reach the programs of a running job, "
            f"so it cannot be asked for {request['kind']!r}; run the same script on hosts of your own "
            "(instance_type='local', ssh: or slurm:), or start the job with enable_remote_debug=True and use AWS "
            "Systems Manager for a shell in its containers"
        )

    def access(self, name: str, host: str) -> HostAccess:
        raise UnsupportedError(
            f"job {name} runs on SageMaker, whose containers only AWS reaches. AWS's own way is a session of Systems "
            "Manager: start the job with enable_remote_debug=True, and then run `aws ssm start-session --target "
            f"sagemaker-training-job:{name}_{host}`"
        )

    def kill(self, name: str) -> None:
        # SageMaker has one way to end a job, with 120 s of its own between SIGTERM and SIGKILL.
        self.stop(name)

    def forget(self, record: JobRecord) -> str:
        if record.service is None or record.started is None:
            return ""
        return "SageMaker keeps its training jobs: the description, the log and the objects in S3 stay in the account"

    def repack(self, name: str, say: Callable[[str], None]) -> Path:  # noqa: ARG002
        raise UnsupportedError(f"job {name}: SageMaker packs the models of its jobs itself")
