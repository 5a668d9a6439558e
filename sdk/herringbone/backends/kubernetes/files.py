"""The files of a job's Secret: its private line, the contract's files, the code, and channels of this machine."""

from __future__ import annotations

import functools
import io
import json
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from herringbone.backends.kubernetes.objects import CODE, MAX_SECRET_BYTES, PRIVATE
from herringbone.backends.kubernetes.pods import JOB_FOLDER, group_number
from herringbone.code.archive import pack_code
from herringbone.code.reproducible import write_tar, zipped
from herringbone.plan.host_tree import channel_configs, resource_config_of
from herringbone.plan.plan import HostPlan, JobPlan
from herringbone.system.sizes import shown_bytes
from herringbone_contract.errors import InputError
from herringbone_contract.hyperparameters import with_code_at

# The first host of each group stands for all of them; `pods` writes a host's own name in its place.
_HOST = "@HOST@"
_LEVEL = 6
# No data is compressed better.
_MAX_RATIO = 64


def secret_files(plan: JobPlan, key: bytes, *, exclude: Path) -> dict[str, bytes]:
    """Return the files of the Secret by name.

    `key` is the attempt's secret, by which hosts recognize each other; `exclude` is the folder of jobs, which is no
    code. Raises `InputError` for more than a Secret can hold.
    """
    assert plan.source is not None
    hyperparameters = with_code_at(dict(plan.hyperparameters), f"{JOB_FOLDER}/{CODE}")
    private = {"environment": plan.environment, "key": key.hex()}
    files = {PRIVATE: json.dumps(private).encode() + b"\n", "hyperparameters.json": _json(hyperparameters)}
    for host in first_hosts(plan):
        files[f"{group_number(plan, host.group)}.inputdataconfig.json"] = _json(channel_configs(plan, host))
    files |= resource_files(plan)
    with tempfile.TemporaryDirectory() as folder:
        files[CODE] = _code(plan, Path(folder), exclude)
    for channel in plan.channels:
        if channel.path is not None:
            files[f"channel.{channel.name}.tar.gz"] = _packed(Path(channel.path))
    if (size := sum(map(len, files.values()))) > MAX_SECRET_BYTES:
        largest = max(files, key=lambda name: len(files[name]))
        raise InputError(
            f"code and channels of this machine have {shown_bytes(size)} packed, and a Secret holds "
            f"{shown_bytes(MAX_SECRET_BYTES)}; the largest is {largest.removesuffix('.tar.gz')} with "
            f"{shown_bytes(len(files[largest]))}: put data into a claim (pvc://CLAIM/FOLDER)"
        )
    return files


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


def _code(plan: JobPlan, folder: Path, exclude: Path) -> bytes:
    assert plan.source is not None
    if plan.source.archive is not None:
        return Path(plan.source.archive).read_bytes()
    return pack_code(plan.source, folder, exclude=exclude).path.read_bytes()


def _packed(path: Path) -> bytes:
    """Return a file, or all files of a folder, as a tar.gz."""
    folder = path if path.is_dir() else path.parent
    paths = sorted(each for each in (path.rglob("*") if path.is_dir() else [path]) if each.is_file())
    # Before anything is read: what is this large never fits.
    if (size := sum(each.stat().st_size for each in paths)) > _MAX_RATIO * MAX_SECRET_BYTES:
        raise InputError(
            f"{path} has {shown_bytes(size)}, too much for a Secret; put it into a claim: pvc://CLAIM/FOLDER"
        )
    content = io.BytesIO()
    with zipped(content, level=_LEVEL) as packer:
        write_tar({str(each.relative_to(folder)): functools.partial(_opened, each) for each in paths}, packer)
    return content.getvalue()


def _opened(path: Path) -> IO[bytes]:
    return path.open("rb")


def _json(content: object) -> bytes:
    return json.dumps(content).encode()
