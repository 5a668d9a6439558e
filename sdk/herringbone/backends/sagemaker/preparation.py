"""All that is looked at before anything is made, and the request that it makes.

credentials, region -> role -> name at the service -> image -> buckets -> code packed, data read -> the request, checked
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from herringbone.aws.session import AwsSession
from herringbone.backends.sagemaker.bucket import Place, default_bucket, is_there, parse_place
from herringbone.backends.sagemaker.channel_files import ChannelData, read_data, read_file
from herringbone.backends.sagemaker.create import taken
from herringbone.backends.sagemaker.image import check_image
from herringbone.backends.sagemaker.lookup import look_up
from herringbone.backends.sagemaker.rendezvous import KEY_NAME, needs_key
from herringbone.backends.sagemaker.request import AccountNames, code_uri, data_uri, key_folder, training_job_request
from herringbone.backends.sagemaker.role import find_role
from herringbone.backends.sagemaker.upload import Upload
from herringbone.code.archive import pack_code
from herringbone.planning.plan import JobPlan
from herringbone_contract.errors import OptionError


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """A job of which everything is known and nothing made: the request, and what has to be there when it is sent.

    `bucket` is one to make first, `key` the place of a key for the hosts to make; `data` is by channel.
    """

    request: dict[str, Any]
    bucket: str | None
    code: Upload | None
    data: dict[str, tuple[Upload, ...]]
    key: Place | None


class _Code(NamedTuple):
    """A packed code folder: the archive, the hash by which it is known, and the archive's own where it may change."""

    path: Path
    content_hash: str
    sha256: str | None


def prepare(
    plan: JobPlan,
    session: AwsSession,
    scratch: Path,
    *,
    check: Callable[[Mapping[str, Any], Any], None],
    but_not: Path,
    say: Callable[[str], None],
) -> Prepared:
    """Find out all that a job needs, and change nothing but the folder `scratch`.

    >>> prepare(plan, session, scratch, check=check_request, but_not=home.path, say=print).request   # doctest: +SKIP

    `check` says what the service's model refuses in a request, `but_not` is a folder to leave out of the code. Raises
    a `UsageError` for what the user can mend in the call, an `AwsError` for what he can mend in the account.
    """
    with ThreadPoolExecutor(1) as pool:
        # The account answers from far away: code is packed meanwhile.
        packing = pool.submit(_code, plan, scratch, but_not)
        role = find_role(session, plan.options.role, say=say)
        if look_up(session, plan.job_name) is not None:
            raise taken(session, plan.job_name, [])
        if image := plan.arguments.get("image_uri"):
            check_image(session, image)
        names = AccountNames(region=session.region, bucket=default_bucket(session), role_arn=role)
        bucket = _missing_bucket(plan, session, names)
        code = packing.result()
    data = {channel: read_data(path, channel) for channel, path in _local(plan).items()}
    names = dataclasses.replace(
        names,
        code_hash=names.code_hash if code is None else code.content_hash,
        data_hashes={channel: content.digest for channel, content in data.items()},
        key_id=secrets.token_hex(16),
    )
    request = training_job_request(plan, names)
    check(request, session.loader)
    return Prepared(
        request=request,
        bucket=bucket,
        code=None if code is None else _upload_of(code, parse_place(code_uri(plan, names))),
        data={channel: _uploads_of(content, data_uri(plan, names, channel)) for channel, content in data.items()},
        key=parse_place(f"{key_folder(plan, names)}/{KEY_NAME}") if needs_key(plan) else None,
    )


def _local(plan: JobPlan) -> dict[str, Path]:
    """Return where the data of each channel of this machine is."""
    return {channel.name: Path(channel.path) for channel in plan.channels if channel.path is not None}


def _missing_bucket(plan: JobPlan, session: AwsSession, names: AccountNames) -> str | None:
    """Return the default bucket if it has to be made; raise for any other that is not there."""
    options = plan.options
    default = names.bucket.partition("/")[0]
    used = set() if options.output_path else {default}
    if _travels(plan) or _local(plan) or needs_key(plan):
        used.add(parse_place(options.code_location).bucket if options.code_location else default)
    missing = [bucket for bucket in sorted(used) if not is_there(session, bucket)]
    for bucket in missing:
        if bucket != default:
            raise OptionError(f"code_location: there is no bucket {bucket}; create it, or name another")
    return missing[0] if missing else None


def _travels(plan: JobPlan) -> bool:
    """Say whether there is code, and it is not in a bucket already."""
    return plan.source is not None and not plan.source.remote


def _code(plan: JobPlan, scratch: Path, but_not: Path) -> _Code | None:
    source = plan.source
    if source is None or source.remote:
        return None
    if source.archive is not None:
        path = Path(source.archive)
        sha256 = read_file(path.name, path).sha256
        return _Code(path, sha256, sha256)
    packed = pack_code(source, scratch, but_not=but_not)
    return _Code(packed.path, packed.digest, None)


def _upload_of(code: _Code, place: Place) -> Upload:
    return Upload(path=code.path, place=place, num_bytes=code.path.stat().st_size, sha256=code.sha256)


def _uploads_of(content: ChannelData, address: str) -> tuple[Upload, ...]:
    bucket, prefix = parse_place(address)
    return tuple(
        Upload(
            path=file.path,
            place=Place(bucket, f"{prefix}/{file.name}"),
            num_bytes=file.num_bytes,
            sha256=file.sha256,
        )
        for file in content.files
    )
