"""Check the `s3://` addresses of a job on own hosts, before anything starts: buckets, objects and permissions."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from herringbone.aws.location import S3Location, is_s3
from herringbone.aws.session import AwsSession
from herringbone.plan.channels import check_shares, input_mode, is_augmented
from herringbone.plan.inputs import Channel
from herringbone.plan.plan import JobPlan
from herringbone.plan.s3 import code_address, uses_s3, written
from herringbone.s3.bucket import Buckets
from herringbone.s3.cache import cache_limit
from herringbone.s3.names import files_of, is_folder, name_below, parse_manifest, split
from herringbone.s3.pipes.order import reads_while_running
from herringbone.s3.pipes.records import parse_lines
from herringbone_contract.errors import OptionError, UnsupportedError

MANIFEST_BYTES = 64 << 20


def buckets_of(plan: JobPlan) -> Buckets:
    """Return the buckets that the job's session reaches."""
    return Buckets(session_of(plan))


def session_of(plan: JobPlan) -> AwsSession:
    """Return the session of the option `sagemaker_session`, or the one that boto finds."""
    session = plan.options.sagemaker_session
    # The session of AWS's local mode names S3 with a boto session as well, and no service is asked here.
    if getattr(session, "local_mode", False):
        session = getattr(session, "boto_session", None)
    return AwsSession.of(session)


def check_addresses(
    plan: JobPlan, environ: dict[str, str], connect: Callable[[JobPlan], Buckets] = buckets_of
) -> tuple[str, ...]:
    """Check that what the job reads exists and may be read, and that the buckets exist that it writes to.

    Returns notes for the user. Raises `UsageError` or `AwsError`. No object is fetched.
    """
    if not uses_s3(plan):
        return ()
    cache_limit(environ)
    buckets = connect(plan)
    notes = []
    for channel in plan.channels:
        if is_s3(channel.input.s3_data):
            check_shares(channel, plan, _check_channel(channel, buckets))
            if input_mode(channel, plan) == "FastFile":
                notes.append(
                    f"channel {channel.name!r}: FastFile reads as File here: the whole channel is downloaded first"
                )
    source = plan.source
    if source is not None and source.archive is not None and source.remote:
        buckets.head(split(source.archive, "source_dir"), "source_dir")
    copied = code_address(plan)
    for option, address in {**written(plan), **({} if copied is None else {"code_location": copied})}.items():
        location = split(address, option)
        if address.rstrip("/") == f"s3://{location.bucket}" and option == "checkpoint_s3_uri":
            raise OptionError(f"{option}: {address} is a whole bucket, all of which would be fetched; add a prefix")
        buckets.check_bucket(location.bucket, option)
    if plan.queue and plan.options.sagemaker_session is not None and (written(plan) or reads_while_running(plan)):
        raise UnsupportedError(
            "sagemaker_session: a job that waits in line uses S3 with credentials that it finds itself; "
            "set AWS_PROFILE or AWS_ACCESS_KEY_ID in place of the session"
        )
    return tuple(notes)


def _check_channel(channel: Channel, buckets: Buckets) -> Iterable[object]:
    """Check that a channel can be read, and return what its hosts would share."""
    option, address = f"channel {channel.name!r}", channel.input.s3_data
    location = split(address, option)
    if is_augmented(channel):
        text = buckets.read(location, limit=MANIFEST_BYTES, option=option)
        lines = parse_lines(text, channel.input.attribute_names or (), address)
        for name, value in lines[0].items():
            if name.endswith("-ref"):
                buckets.head(split(value, option), option)
        return lines
    if channel.input.s3_data_type == "ManifestFile":
        prefix, names = parse_manifest(buckets.read(location, limit=MANIFEST_BYTES, option=option), address)
        # One of them: a manifest may have a million, and the download finds each that is missing.
        first = buckets.head(S3Location(prefix.bucket, prefix.key + names[0]), option)
        files_of([(names[0], first)], address)
        return dict.fromkeys(names)
    first = buckets.first(location, option)
    files_of([(name_below(location.key, first.key), first)], address)
    # Lazy: they are listed where hosts share them.
    return (stored for stored in buckets.objects(location, option) if not is_folder(stored))
