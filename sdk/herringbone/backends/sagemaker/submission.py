"""From a plan to a job that the service has.

claim the name here -> look at everything (preparation.py) -> make the bucket -> upload what is missing -> create
"""

from __future__ import annotations

import json
import secrets
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from herringbone.aws.session import AwsSession
from herringbone.backends.sagemaker.bucket import make_bucket
from herringbone.backends.sagemaker.create import UnknownOutcomeError, create_job, was_created
from herringbone.backends.sagemaker.preparation import Prepared, prepare
from herringbone.backends.sagemaker.progress import Progress
from herringbone.backends.sagemaker.upload import Uploader
from herringbone.jobs.home import Home
from herringbone.jobs.index import JobIndex
from herringbone.jobs.lifecycle import Claim, claim
from herringbone.planning.plan import JobPlan
from herringbone_contract.errors import AwsError, HerringboneError

_KEY_BYTES = 32


class Submission:
    """Submits one job.

    >>> submission = Submission(plan, session, home=find_home(), progress=Progress())     # doctest: +SKIP
    >>> submission.run("sagemaker", check_request)                                        # doctest: +SKIP

    On an error nothing is left in the index of `home`, unless nobody knows whether the job was created: then the row
    stays, and `describe` settles it (claim.py). What was uploaded stays, under the name of its content, for the
    next time.
    """

    def __init__(self, plan: JobPlan, session: AwsSession, *, home: Home, progress: Progress) -> None:
        self._plan = plan
        self._session = session
        self._home = home
        self._index = JobIndex(home.index)
        self._progress = progress
        self._sent = False

    def run(self, backend: str, check: Callable[[Mapping[str, Any], Any], None]) -> None:
        """Submit it; `check` says what the service's model refuses in a request."""
        name = self._plan.job_name
        with (
            claim(self._plan, backend, self._home, stopped_on_interrupt=False) as job,
            self._keeping_created(job),
            tempfile.TemporaryDirectory(prefix="herringbone-") as scratch,
        ):
            prepared = prepare(
                self._plan,
                self._session,
                Path(scratch),
                check=check,
                but_not=self._home.path,
                say=self._progress.say,
            )
            plan = msgspec.structs.replace(self._plan, request=prepared.request)
            self._index.update(name, plan=json.dumps(plan.to_dict()), service=self._session.place.to_json())
            self._upload(prepared)
            self._sent = True
            create_job(self._session, prepared.request)
        # No longer a claim. Should this fail, the row stays one, and `describe` finds that the job is ours.
        self._index.update(name, client=None)
        self._progress.say(f"job {name} created in {self._session.region}")

    @contextmanager
    def _keeping_created(self, job: Claim) -> Iterator[None]:
        """Keep the claim after an error if the job exists, or nobody knows whether it does."""
        try:
            yield
        except UnknownOutcomeError:
            job.keep()
            raise
        except HerringboneError:
            raise
        except BaseException:  # Ctrl-C, a full disk, a mistake of ours
            if self._may_exist():
                job.keep()
            raise

    def _may_exist(self) -> bool:
        """Ask whether an interrupted submission created the job, and tell the user; True also when nobody knows."""
        name = self._plan.job_name
        created: bool | None = False
        if self._sent:
            self._progress.say(f"asking whether job {name} was created; Ctrl-C again leaves that open")
            try:
                created = was_created(self._session, name)
            except (KeyboardInterrupt, AwsError):
                created = None
        if created is None:
            self._progress.say(f"job {name} may have been created: `herringbone describe {name}` tells")
            return True
        if created:
            self._index.update(name, client=None)
            self._progress.say(
                f"job {name} was created, and runs: `herringbone logs -f {name}`, `herringbone stop {name}`"
            )
            return True
        self._progress.say(f"job {name} was not created")
        return False

    def _upload(self, prepared: Prepared) -> None:
        if prepared.bucket is not None:
            make_bucket(self._session, prepared.bucket)
            self._progress.say(f"bucket {prepared.bucket} created")
        uploader = Uploader(self._session, kms_key=self._plan.options.output_kms_key, progress=self._progress)
        if prepared.code is not None and not uploader.has(prepared.code):
            uploader.send("code", [prepared.code])
        for channel, uploads in prepared.data.items():
            if missing := uploader.missing(uploads):
                uploader.send(f"channel {channel}", missing)
        if prepared.key is not None:
            uploader.put(prepared.key, secrets.token_hex(_KEY_BYTES).encode())
