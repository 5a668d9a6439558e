"""`python3 -m herringbone.backends.kubernetes.data.pod_s3 fetch|keep ORDER HOST`: move what a job has in S3, in a pod.

    fetch   before the ranks   channels -> input/data/NAME, whole checkpoints -> checkpoints
    keep    next to them       checkpoints -> checkpoint_s3_uri; when ENDED exists, model, output and log -> output_path

Credentials are those of the job's `environment`, which the private line in the Secret has, or those that boto finds in
the pod, such as the web identity of its service account. No client's credentials come here.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import msgspec

from herringbone.aws.location import S3Location
from herringbone.aws.session import AwsSession
from herringbone.backends.kubernetes.pods import LOGS
from herringbone.plan.inputs import Channel, share
from herringbone.s3.bucket import Buckets
from herringbone.s3.cache import Count, fetch_all
from herringbone.s3.names import StoredObject, split
from herringbone.s3.staging import channel_files, fetch_whole_checkpoints
from herringbone.s3.sync import CheckpointSync, try_often
from herringbone_contract import safe_tree
from herringbone_contract.errors import HerringboneError, InputError
from herringbone_contract.failure import Failure
from herringbone_contract.masking import printable
from herringbone_contract.paths import Paths
from herringbone_contract.resources import ResourceConfig, parse_resource_config

# Made by the pod's program when the host's supervisor is over.
ENDED = Path("/herringbone/run/ended")
_LOOK_SECONDS, _SCAN_SECONDS = 0.5, 5.0
# The folders of a host that go to output_path.
SENT = ("model", "output/data", LOGS)


class S3Order(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The part that S3 has in a job, for the hosts of one group. `checkpoints` and `output` are addresses."""

    job: str
    channels: tuple[Channel, ...] = ()
    checkpoints: str | None = None
    output: str | None = None
    several: bool = False


def host_location(output: str, job: str, host: str) -> S3Location:
    """Return where a host's files are below output_path. Pure.

    >>> str(host_location("s3://mine/jobs/", "digits", "algo-1"))
    's3://mine/jobs/digits/hosts/algo-1/ml/'
    """
    location = split(output, "output_path")
    return S3Location(location.bucket, "/".join(filter(None, (location.key.strip("/"), job))) + f"/hosts/{host}/ml/")


def fetch(order: S3Order, host: str, base: Path, buckets: Buckets, session: AwsSession) -> None:
    """Fetch what the host reads. Raises `HerringboneError` or `OSError`."""
    paths = Paths(base)
    for channel in order.channels:
        files = channel_files(channel, buckets)
        if channel.sharded:
            # Of this attempt, which may have fewer hosts than the one before.
            resources = parse_resource_config(Path(paths.resource_config).read_bytes())
            files = share_of(channel, files, host, resources)
        fetch_files(files, Path(paths.channel(channel.name)), buckets, lambda _: None)
    if order.checkpoints is not None:
        # It is still empty, and the fetch makes it.
        Path(paths.checkpoints).rmdir()
        fetch_whole_checkpoints(order.checkpoints, Path(paths.checkpoints), session)


def share_of(
    channel: Channel, files: Mapping[str, StoredObject], host: str, resources: ResourceConfig
) -> dict[str, StoredObject]:
    """Return a host's files of a channel with `ShardedByS3Key`. Pure. Raises `InputError` for a host without any."""
    wanted = channel.input.instance_groups
    hosts = resources.hosts
    if wanted is not None:
        hosts = tuple(name for group in resources.groups if group.name in wanted for name in group.hosts)
    names = share(sorted(files), host=hosts.index(host), hosts=len(hosts))
    if not names:
        raise InputError(
            f"channel {channel.name!r}: ShardedByS3Key divides {len(files)} files of {channel.input.s3_data} among "
            f"{len(hosts)} hosts, so {host} would train on nothing: take fewer hosts, or split the data into more files"
        )
    return {name: files[name] for name in names}


def fetch_files(files: Mapping[str, StoredObject], into: Path, buckets: Buckets, count: Count) -> None:
    """Fetch objects into new files of a folder, each under its name."""

    def fetch_one(name: str, count: Count) -> None:
        target = into / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("x+b") as file:
            buckets.download(files[name], file, count)

    fetch_all(fetch_one, files, count)


def keep(order: S3Order, host: str, base: Path, buckets: Buckets, is_over: Callable[[], bool]) -> None:
    """Send checkpoints until the host is over, and then its results. Raises `HerringboneError` or `OSError`."""
    sync = None
    if order.checkpoints is not None:
        sync = CheckpointSync(base / "checkpoints", order.checkpoints, buckets, several=order.several, job=order.job)
    scan_at = time.monotonic()
    while not is_over():
        time.sleep(_LOOK_SECONDS)
        if sync is not None and time.monotonic() >= scan_at:
            try:
                sync.step(over=False)
            except (HerringboneError, OSError) as error:
                # The next scan tries again: servers come back, and credentials are renewed.
                _say(f"checkpoints: {printable(str(error))}")
            scan_at = time.monotonic() + _SCAN_SECONDS
    if sync is not None:
        try_often(lambda: sync.step(over=True))
    if order.output is not None:
        for part in SENT:
            _send(base / part, host_location(order.output, order.job, host), part, buckets)


def _send(folder: Path, target: S3Location, part: str, buckets: Buckets) -> None:
    """Send a folder's files, and remove what an earlier attempt has sent of it; logs of all attempts stay."""
    prefix, sent = S3Location(target.bucket, f"{target.key}{part}/"), set[str]()
    if folder.is_dir():
        with safe_tree.folder(folder) as top:
            for entry in safe_tree.walk(top):
                location = S3Location(prefix.bucket, prefix.key + entry.name)
                if entry.kind == "file":
                    try_often(partial(_send_file, top, entry.name, location, buckets))
                    sent.add(location.key)
                elif entry.kind != "folder":
                    words = (
                        f"{printable(entry.name)} in {part} is left out: it is a {entry.kind}, and S3 has files alone"
                    )
                    print(f"herringbone: {words}", file=sys.stderr, flush=True)
    if part != LOGS:
        for stored in buckets.objects(prefix):
            if stored.key not in sent:
                buckets.delete(S3Location(stored.bucket, stored.key))


def _send_file(top: int, name: str, location: S3Location, buckets: Buckets) -> None:
    with safe_tree.open_file(top, name) as file:
        buckets.write(file, location)


def _say(text: str) -> None:
    print(f"herringbone: {text}", file=sys.stderr, flush=True)


def main(words: list[str], base: Path, ended: Path = ENDED) -> int:
    """Follow an order, and return the exit code; a failure is written where the host's supervisor writes its own."""
    verb, path, host = words
    order = msgspec.json.decode(Path(path).read_bytes(), type=S3Order)
    private = json.loads(Path(path).with_name("private.json").read_bytes())["environment"]
    os.environ.update({name: value for name, value in private.items() if name.startswith("AWS_")})
    # An image may get boto3 from a claim.
    sys.path += filter(None, private.get("PYTHONPATH", "").split(":"))
    session = AwsSession()
    buckets = Buckets(session)
    try:
        if verb == "fetch":
            fetch(order, host, base, buckets, session)
        else:
            keep(order, host, base, buckets, ended.exists)
    except (HerringboneError, OSError) as error:
        text = printable(str(error))
        _say(text)
        failure = Failure(host=host, exit_code=1, exception=type(error).__name__, message=text)
        record = Path(Paths(base).failure_record)
        if not record.exists():
            record.parent.mkdir(parents=True, exist_ok=True)
            record.write_text(failure.to_json())
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], Path("/opt/ml")))
