"""The files that a job gets from here: those of its Secret, and code and channels that are too large for one."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, NamedTuple

import msgspec

from herringbone.aws.location import is_s3
from herringbone.backends.channel_files import list_files
from herringbone.backends.kubernetes.claims import is_claim
from herringbone.backends.kubernetes.data.pod_s3 import S3Order
from herringbone.backends.kubernetes.objects import CODE, MAX_SECRET_BYTES, PRIVATE
from herringbone.backends.kubernetes.pods import JOB_FOLDER, PARTS, group_number
from herringbone.code.archive import pack_code
from herringbone.code.reproducible import write_tar, zipped
from herringbone.plan.host_tree import channel_configs, channels_of, resource_config_of
from herringbone.plan.plan import HostPlan, JobPlan
from herringbone.plan.s3 import written
from herringbone.system.sizes import shown_bytes
from herringbone_contract.errors import InputError
from herringbone_contract.hyperparameters import with_code_at

# The first host of each group stands for all of them; `pods` writes a host's own name in its place.
_HOST = "@HOST@"
_LEVEL = 6
# Everybody's API server carries it.
MAX_SENT_BYTES = 4 << 30


class JobFiles(NamedTuple):
    """The files of a job's first attempt, for the plan that says where they are.

    `secret` are those of the Secret. `parts` are files here with code and channels, where a Secret cannot hold them:
    they go to the claim.
    """

    plan: JobPlan
    secret: dict[str, bytes]
    parts: dict[str, Path]


@contextmanager
def job_files(plan: JobPlan, key: bytes, *, exclude: Path) -> Iterator[JobFiles]:
    """Pack the files of a job; `parts` exist while the body runs.

    `key` is the attempt's secret, by which hosts recognize each other; `exclude` is the folder of jobs, which is no
    code. Raises `InputError` for more than is sent from here.
    """
    assert plan.source is not None
    check_size(plan)
    private = {"environment": plan.environment, "key": key.hex()}
    files = {PRIVATE: json.dumps(private).encode() + b"\n", **resource_files(plan)}
    for host in first_hosts(plan):
        group = group_number(plan, host.group)
        files[f"{group}.inputdataconfig.json"] = _json(channel_configs(plan, host))
        if (order := s3_order(plan, host)) is not None:
            files[f"{group}.s3.json"] = msgspec.json.encode(order)
    with tempfile.TemporaryDirectory(prefix="herringbone-") as folder:
        parts = {} if plan.source.remote else {CODE: _code(plan, Path(folder), exclude)}
        for channel in plan.channels:
            if channel.path is not None:
                name = f"channel.{channel.name}.tar.gz"
                parts[name] = _packed(list_files(Path(channel.path), channel.name), Path(folder, name))
        files["hyperparameters.json"] = _json(with_code_in(plan, JOB_FOLDER).hyperparameters)
        size = sum(map(len, files.values())) + sum(path.stat().st_size for path in parts.values())
        if size <= MAX_SECRET_BYTES:
            files |= {name: path.read_bytes() for name, path in parts.items()}
            parts = {}
        elif not is_claim(plan.options.output_path):
            raise InputError(
                f"code and channels of this machine have {shown_bytes(size)} packed, and a Secret holds "
                f"{shown_bytes(MAX_SECRET_BYTES)}: give an output_path in a claim (pvc://CLAIM/FOLDER), through which "
                "more travels, or put them into S3 (source_dir='s3://BUCKET/sourcedir.tar.gz')"
            )
        else:
            plan = with_code_in(plan, PARTS)
            files["hyperparameters.json"] = _json(plan.hyperparameters)
        yield JobFiles(plan, files, parts)


def check_size(plan: JobPlan) -> None:
    """Raise `InputError` for channels that are too large to be sent from here."""
    sizes = {
        channel.name: sum(path.stat().st_size for path in list_files(Path(channel.path), channel.name).values())
        for channel in plan.channels
        if channel.path is not None
    }
    if (total := sum(sizes.values())) > MAX_SENT_BYTES:
        largest = max(sizes, key=lambda name: sizes[name])
        raise InputError(
            f"channels of this machine have {shown_bytes(total)}, and at most {shown_bytes(MAX_SENT_BYTES)} travel "
            f"through the API server; the largest is {largest!r} with {shown_bytes(sizes[largest])}: put it into a "
            "claim (pvc://CLAIM/FOLDER)"
        )


def resource_files(plan: JobPlan) -> dict[str, bytes]:
    """Return the files that name a job's hosts: those of a group differ in the host's own name alone."""
    interface = "lo" if len(plan.hosts) == 1 else "eth0"
    return {
        f"{group_number(plan, host.group)}.resourceconfig.json": _json(
            {**resource_config_of(plan, host, interface), "current_host": _HOST}
        )
        for host in first_hosts(plan)
    }


def first_hosts(plan: JobPlan) -> Iterable[HostPlan]:
    """Return the first host of each group."""
    return {host.group: host for host in reversed(plan.hosts)}.values()


def s3_order(plan: JobPlan, host: HostPlan) -> S3Order | None:
    """Return what S3 has in a job for the hosts of a group; None for nothing."""
    channels = tuple(each for each in channels_of(plan, host) if each.path is None and is_s3(each.input.s3_data))
    addresses = written(plan)
    if not channels and not addresses:
        return None
    return S3Order(
        job=plan.job_name,
        channels=channels,
        checkpoints=addresses.get("checkpoint_s3_uri"),
        output=addresses.get("output_path"),
        several=len(plan.hosts) > 1,
    )


def with_code_in(plan: JobPlan, folder: str) -> JobPlan:
    """Return the plan whose hosts find the code in a folder of their pods; code in S3 stays there."""
    if plan.source is not None and plan.source.remote:
        return plan
    hyperparameters = with_code_at(dict(plan.hyperparameters), f"{folder}/{CODE}")
    return msgspec.structs.replace(plan, hyperparameters=hyperparameters)


def _code(plan: JobPlan, folder: Path, exclude: Path) -> Path:
    assert plan.source is not None
    if plan.source.archive is not None:
        return Path(plan.source.archive)
    return pack_code(plan.source, folder, exclude=exclude).path


def _packed(files: Mapping[str, Path], target: Path) -> Path:
    """Pack files, by their names, as a tar.gz."""
    with target.open("wb") as content, zipped(content, level=_LEVEL) as packer:
        write_tar({name: partial(_opened, path) for name, path in files.items()}, packer)
    return target


def _opened(path: Path) -> IO[bytes]:
    return path.open("rb")


def _json(content: object) -> bytes:
    return json.dumps(content).encode()
