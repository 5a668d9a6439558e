"""Keep the addresses of a job from leading elsewhere: no links in buckets, and nobody who could make one meanwhile.

A container may write into its folders of checkpoints and of TensorBoard, which are folders of a bucket. If its script
makes a link to a folder of this machine there, the engine and the service follow the link when they open an address
that leads through it. So whoever has a key could read and write the files of the service.

    [1] `check_held`: from its creation to its end, no other job writes to a folder in which a job's addresses are
    [2] `check_links`: no address leads through a link that an earlier job has left

The names of [2] are used later, also hours later, and at each restart. [1] holds until then, so nobody can change what
they lead to in between.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from itertools import product
from pathlib import Path

import msgspec

from herringbone.plan.inputs import Channel, local_path
from herringbone.plan.links import link_on_the_way, results_of_job
from herringbone.plan.request import JobRequest, groups_of
from herringbone.s3.front.keys import NO_PATH, key_of, path_apart, path_of
from herringbone.s3.front.places import keys_apart
from herringbone.serve.errors import ApiError, in_use, invalid
from herringbone.serve.settings import Settings
from herringbone_contract import safe_tree


class Held(msgspec.Struct, frozen=True, omit_defaults=True):
    """The places that a job uses from its creation to its end, each as `bucket/path`.

    `opens` are opened by their names. `writes` are the folders to which its containers write, each with a slash: they
    can change all that is inside of such a folder, and not the folder itself. Of trials, the folders begin so. A place
    in `opens` that ends with a slash is read whole, outside of the containers.
    """

    opens: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()


def held_by(request: JobRequest, job: str, settings: Settings, *, searches: bool = False) -> Held:
    """Return the places of a training job; with `searches`, those of all trials of a tuning job.

    >>> held_by(translate(members, settings), "digits-1", settings).writes           # doctest: +SKIP
    ('mine/checkpoints/',)
    """
    # Trials differ in their numbers alone.
    name = f"{job}-001" if searches else job
    checkpoints, tensorboard = (_place(address, settings) for address in _written(request))
    mounted, hosts = [tensorboard], sum(group.instance_count for group in groups_of(request))
    if tensorboard and hosts > 1:
        mounted = [f"{tensorboard}/algo-{number}" for number in range(1, hosts + 1)]
    writes = [f"{place}/" for place in mounted if place]
    if checkpoints:
        mounted.append(f"{checkpoints}/{name}" if searches else checkpoints)
        writes.append(f"{checkpoints}/{job}-" if searches else f"{checkpoints}/")
    # Nobody writes to the folder itself either: these are listed here.
    whole = [channel.input.s3_data for channel in request.channels if _is_listed(request, channel)]
    read = [
        f"{place}/" + "." * (address not in whole) for address in _read(request) if (place := _place(address, settings))
    ]
    results = [_place(address, settings) for address in _results(request, name)]
    return Held((*read, *filter(None, (*results, *mounted))), tuple(writes))


def check_held(held: Held, others: Iterable[Held]) -> None:
    """Raise `ApiError` where a job's address is in a folder to which the job itself, or one of the others, writes.

    >>> check_held(Held(("mine/a/b",)), [Held(("mine/a",), ("mine/a/",))])     # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    herringbone.serve.errors.ApiError: s3://mine/a/b is in s3://mine/a, to which another job writes until it is over
    """
    _check(held, held, invalid, "to which this job writes; give another folder")
    for other in others:
        _check(held, other, in_use, "to which another job writes until it is over")
        _check(other, held, in_use, "to which this job would write; the job that uses the former is not over")


def check_links(request: JobRequest, job: str, settings: Settings) -> None:
    """Raise `ApiError` (ValidationException) for an address of a job that leads through a link.

    >>> check_links(translate(members, settings), "digits-1", settings)              # doctest: +SKIP

    A bucket itself may be a link: no job can write into the folder of buckets. So does an address with objects that the
    job would not see.
    """
    if settings.buckets is None:
        return
    for address in _read(request):
        _check_apart(address, settings)
    # The results go there, into folders that another job may have made already.
    options = request.options
    for address in (*_read(request), *filter(None, (options.output_path, *_written(request))), *_results(request, job)):
        if (link := link_on_the_way(address, settings.buckets)) is not None:
            shown = link.relative_to(settings.buckets)
            raise invalid(f"s3://{shown} is a link in the folder of the bucket; give the address that it leads to")
    for channel in request.channels:
        path = None if channel.path is None else Path(channel.path)
        # A mounted link leads nowhere; what goes into FIFOs is read here.
        if _is_listed(request, channel) and path is not None and path.is_dir():
            with safe_tree.folder(path) as top:
                inside = next((entry.name for entry in safe_tree.walk(top) if entry.kind == "link"), None)
            if inside is not None:
                raise invalid(f"InputDataConfig: channel {channel.name}: {inside} is a link; remove it")


def _check_apart(address: str, settings: Settings) -> None:
    """Raise `ApiError` where objects at an address have no path by which a job could open them.

    Empty ones whose keys end with a slash stand for folders, and SageMaker shows none of them to a job either.
    """
    if settings.buckets is None or (place := _place(address, settings)) is None:
        return
    bucket, _, path = place.partition("/")
    top, start = Path(settings.buckets, bucket), key_of(path)
    for key in keys_apart(top, start):
        is_there = not start or key == start or key.startswith(f"{start}/")
        if is_there and not (key.endswith("/") and safe_tree.read_file(top, path_apart(key), limit=1) == b""):
            why = f"{NO_PATH}; give the object another key"
            if path_of(key) is not None:
                why = "this one is, or was, a folder of other objects; remove those, and put the object once more"
            raise invalid(f"s3://{bucket}/{ascii(key)[1:-1]}: a job opens files by their paths, and {why}")


def _read(request: JobRequest) -> list[str]:
    """Return the addresses of code and data."""
    values = [request.arguments.source_dir, request.options.model_uri]
    return [*filter(None, values), *(channel.input.s3_data for channel in request.channels)]


def _written(request: JobRequest) -> tuple[str | None, str | None]:
    """Return the addresses to which the job's script writes: of checkpoints, and of TensorBoard."""
    config = request.options.tensorboard_output_config
    return request.options.checkpoint_s3_uri, None if config is None else config.s3_output_path


def _results(request: JobRequest, job: str) -> list[str]:
    output = request.options.output_path
    return [] if output is None else results_of_job(output, job)


def _is_listed(request: JobRequest, channel: Channel) -> bool:
    """Report whether files of a channel are listed, or read, outside of the containers."""
    return (channel.input.input_mode or request.options.input_mode) == "Pipe" or channel.sharded


def _check(opener: Held, writer: Held, error: Callable[[str], ApiError], why: str) -> None:
    for place, start in product(opener.opens, writer.writes):
        # Of trials, whose folders begin so, the folder itself is not inside.
        is_inside = place.startswith(start) and (start.endswith("/") or "/" in place[len(start) :])
        if is_inside or (place.endswith("/") and start.startswith(place)):
            relation = "is in" if is_inside else "has"
            raise error(f"s3://{place.rstrip('./')} {relation} s3://{start.rstrip('/')}, {why}")


def _place(address: str | None, settings: Settings) -> str | None:
    """Return the place of an address, by the real path of its bucket: two buckets may be one folder."""
    folder = settings.buckets
    path = None if address is None or folder is None else local_path(address, base=Path("/"))
    if folder is None or path is None or not path.is_relative_to(folder):
        return None
    bucket, *parts = path.relative_to(folder).parts
    top = os.path.relpath(os.path.realpath(Path(folder, bucket)), os.path.realpath(folder))
    return "/".join((top, *parts))
