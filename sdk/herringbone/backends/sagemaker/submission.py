"""Submit a plan: from the claim on the job's name to a job that SageMaker has.

claim the name in the index
-> prepare, which changes nothing: credentials, region -> role -> name -> image -> buckets -> code packed, data
   read -> request checked
-> create the default bucket if it is missing -> upload what is missing -> create the job
"""

from __future__ import annotations

import dataclasses
import json
import secrets
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from herringbone.aws.location import S3Location, parse_s3_uri
from herringbone.aws.session import AwsSession
from herringbone.backends.channel_files import ChannelData, read_data, read_file
from herringbone.backends.lifecycle import Claim, claim
from herringbone.backends.sagemaker.account import bucket_exists, check_image, create_bucket, default_bucket, find_role
from herringbone.backends.sagemaker.creation import (
    TRAINING_JOB,
    JobKind,
    UnknownOutcomeError,
    create_job,
    look_up,
    name_taken_error,
    was_created,
)
from herringbone.backends.sagemaker.rendezvous import KEY_NAME, needs_key
from herringbone.backends.sagemaker.request import AccountNames, code_uri, data_uri, key_folder, training_job_request
from herringbone.backends.sagemaker.transfer import Upload, Uploader
from herringbone.code.archive import pack_code
from herringbone.plan.plan import JobPlan
from herringbone.records.home import Home
from herringbone.records.index import JobIndex
from herringbone.system.progress import Progress
from herringbone_contract.errors import AwsError, HerringboneError, OptionError

_KEY_BYTES = 32


class Submission:
    """Submits one job.

    >>> submission = Submission(plan, session, home=find_home(), progress=Progress())     # doctest: +SKIP
    >>> submission.run("sagemaker", check_request)                                        # doctest: +SKIP

    An error leaves no row in the index of `home`, with one exception: where nobody knows whether the job was created,
    the row stays, and `describe` settles its state (`description.submission_state`). Uploaded objects stay, so the next
    submission of the same content reuses them.
    """

    def __init__(self, plan: JobPlan, session: AwsSession, *, home: Home, progress: Progress) -> None:
        self._plan = plan
        self._session = session
        self._home = home
        self._index = JobIndex(home.index)
        self._progress = progress
        self._request_sent = False

    def run(self, backend: str, check: Callable[[Mapping[str, Any], Any], None]) -> None:
        """Submit the job; `check` raises for a request that SageMaker's service model does not allow."""
        name = self._plan.job_name
        # The claim comes first, so that an error while the temporary folder is created releases the name, too.
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
                exclude=self._home.path,
                say=self._progress.say,
            )
            # If this process dies, `describe` finds the location and the request in the row, and can ask SageMaker.
            # `to_dict` masks secrets before they reach the disk.
            plan = msgspec.structs.replace(self._plan, request=prepared.request)
            self._index.update(name, plan=json.dumps(plan.to_dict()), service=self._session.location.to_json())
            upload(prepared, self._plan, self._session, self._progress)
            # Set before the call, because an interruption during the call leaves the outcome open.
            self._request_sent = True
            create_job(self._session, prepared.request)
        # This update ends the claim. If it fails, the claim stays, and `describe` finds that the job is ours.
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
        except BaseException:
            # Ctrl-C, a full disk, or a defect in this program: the request may have been sent.
            if self._may_exist():
                job.keep()
            raise

    def _may_exist(self) -> bool:
        """Ask whether an interrupted submission created the job, and report it; True also when nobody knows."""
        name = self._plan.job_name
        created: bool | None = False
        if self._request_sent:
            self._progress.say(f"asking whether job {name} was created; a second Ctrl-C leaves that open")
            try:
                created = was_created(self._session, name)
            except (KeyboardInterrupt, AwsError):
                created = None
        if created is None:
            self._progress.say(f"job {name} may have been created: run `herringbone describe {name}` to find out")
            return True
        if created:
            self._index.update(name, client=None)
            self._progress.say(
                f"job {name} was created, and runs: `herringbone logs -f {name}`, `herringbone stop {name}`"
            )
            return True
        self._progress.say(f"job {name} was not created")
        return False


class Preparation(msgspec.Struct, frozen=True, kw_only=True):
    """The request of a job, and the objects that must exist before the request is sent.

    `missing_bucket` is a bucket to create first, `key` the location of the hosts' key. `data` is by channel.
    """

    request: dict[str, Any]
    missing_bucket: str | None
    code: Upload | None
    data: dict[str, tuple[Upload, ...]]
    key: S3Location | None


def upload(prepared: Preparation, plan: JobPlan, session: AwsSession, progress: Progress) -> None:
    """Create the default bucket if it is missing, and upload what S3 does not have yet.

    >>> upload(prepared, plan, session, Progress())          # doctest: +SKIP
    """
    if prepared.missing_bucket is not None:
        create_bucket(session, prepared.missing_bucket)
        progress.say(f"bucket {prepared.missing_bucket} created")
    uploader = Uploader(session, kms_key=plan.options.output_kms_key, progress=progress)
    if prepared.code is not None and not uploader.has(prepared.code):
        uploader.send("code", [prepared.code])
    for channel, uploads in prepared.data.items():
        if missing := uploader.missing(uploads):
            uploader.send(f"channel {channel}", missing)
    # The key comes last, so that a failed upload of code or data leaves no key behind.
    if prepared.key is not None:
        uploader.put(prepared.key, secrets.token_hex(_KEY_BYTES).encode())


class _Code(NamedTuple):
    """An archive of code, the hash that names it, and the archive's own hash where the user may still change it."""

    path: Path
    content_hash: str
    sha256: str | None


def prepare(
    plan: JobPlan,
    session: AwsSession,
    scratch: Path,
    *,
    check: Callable[[Mapping[str, Any], Any], None],
    exclude: Path,
    say: Callable[[str], None],
    kind: JobKind = TRAINING_JOB,
) -> Preparation:
    """Find out everything that a job needs, and change nothing but the folder `scratch`.

    >>> prepare(plan, session, scratch, check=check_request, exclude=home.path, say=print).request   # doctest: +SKIP

    `check` raises for a request that SageMaker's service model does not allow; `exclude` is a folder that does not
    belong to the code. `kind` is the kind of job that must not have the plan's name yet. Raises a `UsageError` for what
    the user can fix in the call, an `AwsError` for what they can fix in the account.
    """
    with ThreadPoolExecutor(1) as pool:
        # Code is packed in a second thread while this one waits for AWS's answers.
        packing = pool.submit(_pack, plan, scratch, exclude)
        role = find_role(session, plan.options.role, say=say)
        # CreateTrainingJob would refuse the name, too, but only after the upload.
        if look_up(session, plan.job_name, kind) is not None:
            raise name_taken_error(session, plan.job_name, [], kind)
        if image := plan.arguments.image_uri:
            check_image(session, image)
        names = AccountNames(region=session.region, bucket=default_bucket(session), role_arn=role)
        missing_bucket = _missing_bucket(plan, session, names)
        code = packing.result()
    data = {channel: read_data(path, channel) for channel, path in _local_channels(plan).items()}
    names = dataclasses.replace(
        names,
        code_hash=names.code_hash if code is None else code.content_hash,
        data_hashes={channel: content.digest for channel, content in data.items()},
        # A new folder for each job, so that no job overwrites the key of a running one.
        key_id=secrets.token_hex(16),
    )
    request = training_job_request(plan, names)
    check(request, session.loader)
    return Preparation(
        request=request,
        missing_bucket=missing_bucket,
        code=None if code is None else _code_upload(code, parse_s3_uri(code_uri(plan, names))),
        data={channel: _data_uploads(content, data_uri(plan, names, channel)) for channel, content in data.items()},
        key=parse_s3_uri(f"{key_folder(plan, names)}/{KEY_NAME}") if needs_key(plan) else None,
    )


def _local_channels(plan: JobPlan) -> dict[str, Path]:
    """Return the path of each channel whose data is on this machine."""
    return {channel.name: Path(channel.path) for channel in plan.channels if channel.path is not None}


def _missing_bucket(plan: JobPlan, session: AwsSession, names: AccountNames) -> str | None:
    """Return the default bucket if it must be created; raise for any other bucket that does not exist."""
    options = plan.options
    # The user's session may add a prefix to the default bucket: "bucket/prefix".
    default = names.bucket.partition("/")[0]
    # Without an output path, SageMaker writes the model to the default bucket.
    buckets = set() if options.output_path else {default}
    if _uploads_code(plan) or _local_channels(plan) or needs_key(plan):
        buckets.add(parse_s3_uri(options.code_location).bucket if options.code_location else default)
    missing = [bucket for bucket in sorted(buckets) if not bucket_exists(session, bucket)]
    for bucket in missing:
        if bucket != default:
            raise OptionError(f"code_location: there is no bucket {bucket}; create it, or name another")
    return missing[0] if missing else None


def _uploads_code(plan: JobPlan) -> bool:
    return plan.source is not None and not plan.source.remote


def _pack(plan: JobPlan, scratch: Path, exclude: Path) -> _Code | None:
    source = plan.source
    if source is None or source.remote:
        return None
    if source.archive is not None:
        # This is the user's own file, which may change before the upload reads it. So its hash travels along, and the
        # upload compares. The archive that `pack_code` writes lies in `scratch`, where nobody changes it.
        path = Path(source.archive)
        sha256 = read_file(path.name, path).sha256
        return _Code(path, sha256, sha256)
    packed = pack_code(source, scratch, exclude=exclude)
    return _Code(packed.path, packed.digest, None)


def _code_upload(code: _Code, location: S3Location) -> Upload:
    return Upload(path=code.path, location=location, num_bytes=code.path.stat().st_size, sha256=code.sha256)


def _data_uploads(content: ChannelData, uri: str) -> tuple[Upload, ...]:
    bucket, prefix = parse_s3_uri(uri)
    return tuple(
        Upload(
            path=file.path,
            location=S3Location(bucket, f"{prefix}/{file.name}"),
            num_bytes=file.num_bytes,
            sha256=file.sha256,
        )
        for file in content.files
    )
