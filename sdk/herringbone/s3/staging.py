"""Bring what a job reads from S3 to the submitting machine, from where every backend takes files that are there.

    plan with s3:// addresses --stage--> <job>/s3/inputs/CHANNEL/...    hard links into the cache of this machine
                                         <job>/s3/code/sourcedir.tar.gz
                                         <job>/s3/checkpoints/...       own copies: the script may change them
                              --local_plan--> the same plan, with these paths

The submitting process downloads, because it has the user's credentials. Containers mount the folders, machines get them
by rsync, and no credentials leave this process for that.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from herringbone.aws.location import S3Location, is_s3
from herringbone.aws.session import AwsSession
from herringbone.plan.channels import check_shares, is_augmented, is_streamed
from herringbone.plan.inputs import Channel
from herringbone.plan.plan import JobPlan
from herringbone.plan.s3 import reads_s3
from herringbone.records.home import Home, JobFolder
from herringbone.s3.bucket import Buckets
from herringbone.s3.cache import ObjectCache, cache_limit, fetch_all
from herringbone.s3.names import StoredObject, files_of, name_below, parse_manifest, split, whole_checkpoints
from herringbone.s3.pipes.content import write_listing
from herringbone.s3.review import MANIFEST_BYTES, buckets_of
from herringbone.system.progress import Progress
from herringbone_contract.errors import InputError
from herringbone_contract.hyperparameters import with_code_at

_CODE = "sourcedir.tar.gz"
# The name of an AugmentedManifestFile in the folder of its channel.
MANIFEST = "manifest"
_THREADS = 8


def local_plan(plan: JobPlan, folder: JobFolder) -> JobPlan:
    """Return the plan with the paths that `stage` fills, for all addresses in S3 that the job reads. Pure.

    The addresses stay: `describe` and the next job show where the data came from.
    """
    channels = tuple(
        msgspec.structs.replace(channel, path=str(_staged_path(channel, plan, folder)))
        if channel.path is None and is_s3(channel.input.s3_data)
        else channel
        for channel in plan.channels
    )
    source, hyperparameters = plan.source, plan.hyperparameters
    if source is not None and source.remote:
        source = msgspec.structs.replace(source, archive=str(folder.s3 / "code" / _CODE))
        hyperparameters = with_code_at(hyperparameters, str(source.archive))
    return msgspec.structs.replace(plan, channels=channels, source=source, hyperparameters=hyperparameters)


def _staged_path(channel: Channel, plan: JobPlan, folder: JobFolder) -> Path:
    if is_streamed(channel, plan):
        # A list of the objects: the process that fills the FIFOs reads them from the bucket.
        return folder.s3 / "pipes" / f"{channel.name}.json"
    inputs = folder.s3 / "inputs" / channel.name
    return inputs / MANIFEST if is_augmented(channel) else inputs


def stage(
    plan: JobPlan,
    home: Home,
    *,
    connect: Callable[[JobPlan], Buckets] = buckets_of,
    progress: Progress | None = None,
    environ: dict[str, str] | None = None,
) -> JobPlan:
    """Fetch what the job reads from S3 into its folder, and return the plan that names the files there.

    >>> plan = stage(plan, find_home())                                    # doctest: +SKIP

    A plan without such addresses is returned as it is. Raises `InputError`, `ArchiveError`, `AwsError` or `OSError`;
    what was downloaded stays in the cache.
    """
    if not reads_s3(plan):
        return plan
    folder = home.job(plan.job_name)
    buckets = connect(plan)
    progress = progress or Progress()
    cache = ObjectCache(home.cache / "s3", limit=cache_limit(dict(os.environ) if environ is None else environ))
    parts: dict[Path, dict[str, StoredObject]] = {}
    for channel in plan.channels:
        if channel.path is None and is_s3(channel.input.s3_data):
            files = channel_files(channel, buckets)
            if is_streamed(channel, plan):
                write_listing(_staged_path(channel, plan, folder), list(files.values()))
            else:
                parts[folder.s3 / "inputs" / channel.name] = files
            if not is_augmented(channel):
                # Again, because the bucket may have changed since the plan.
                check_shares(channel, plan, files)
    if plan.source is not None and plan.source.archive is not None and plan.source.remote:
        archive = buckets.head(split(plan.source.archive, "source_dir"), "source_dir")
        parts[folder.s3 / "code"] = {_CODE: archive}
    stored = [each for files in parts.values() for each in files.values()]
    if missing := cache.make_room(stored, buckets):
        with progress.downloading(f"{len(stored)} object{'s' * (len(stored) != 1)} of S3", missing) as count:
            _link_all(cache, parts, buckets, count)
    else:
        _link_all(cache, parts, buckets, lambda _: None)
    if is_s3(uri := plan.options.checkpoint_s3_uri):
        _restore(str(uri), folder.s3_checkpoints, buckets, progress)
    cache.evict()
    return local_plan(plan, folder)


def channel_files(channel: Channel, buckets: Buckets) -> dict[str, StoredObject]:
    """Return the objects of a channel by the names of their files in the channel's folder. Raises `InputError`."""
    option, address = f"channel {channel.name!r}", channel.input.s3_data
    location = split(address, option)
    if is_augmented(channel):
        return {MANIFEST: buckets.head(location, option)}
    if channel.input.s3_data_type == "ManifestFile":
        prefix, names = parse_manifest(buckets.read(location, limit=MANIFEST_BYTES, option=option), address)

        def look(name: str) -> tuple[str, StoredObject]:
            return name, buckets.head(S3Location(prefix.bucket, prefix.key + name), option)

        with ThreadPoolExecutor(_THREADS) as pool:
            return files_of(pool.map(look, dict.fromkeys(names)), address)
    files = files_of(
        ((name_below(location.key, stored.key), stored) for stored in buckets.objects(location, option)), address
    )
    if not files:
        raise InputError(f"{option}: {address}: no object has a key that begins so; is the address right?")
    return files


def checkpoint_prefix(uri: str) -> S3Location:
    """Return the location whose key, with a slash at its end, begins the keys of all checkpoints. Pure.

    >>> checkpoint_prefix("s3://mine/digits/checkpoints")
    S3Location(bucket='mine', key='digits/checkpoints/')
    """
    location = split(uri, "checkpoint_s3_uri")
    return S3Location(location.bucket, f"{location.key.rstrip('/')}/")


def fetch_whole_checkpoints(uri: str, into: Path, session: AwsSession) -> None:
    """Fetch the checkpoints below an address into a new folder."""
    _restore(uri, into, Buckets(session), Progress())


def _link_all(
    cache: ObjectCache, parts: dict[Path, dict[str, StoredObject]], buckets: Buckets, count: Callable[[int], None]
) -> None:
    for into, files in parts.items():
        cache.link(files, into, buckets, count)


def _restore(uri: str, into: Path, buckets: Buckets, progress: Progress) -> None:
    """Fetch the whole checkpoints below an address, as files that the job may change."""
    into.mkdir(parents=True)
    prefix = checkpoint_prefix(uri)
    files = files_of(
        ((stored.key.removeprefix(prefix.key), stored) for stored in buckets.objects(prefix, "checkpoint_s3_uri")), uri
    )
    whole = {name: files[name] for name in whole_checkpoints(list(files))}
    if not whole:
        return

    def fetch(name: str, count: Callable[[int], None]) -> None:
        stored, target = whole[name], into / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("x+b") as file:
            buckets.download(stored, file, count)
        # The sync of checkpoints takes a file of the object's size and time for one that is in the bucket already.
        os.utime(target, (stored.modified, stored.modified))

    with progress.downloading(f"checkpoints from {uri}", sum(each.size for each in whole.values())) as count:
        fetch_all(fetch, whole, count)
