"""The checkpoints of a job of own hosts, from the user's folder or from the hosts' own ones."""

from __future__ import annotations

import sys
from pathlib import Path

from herringbone.aws.location import is_s3
from herringbone.controller.artifacts import HostFolder, pack
from herringbone.records.description import checkpoint_folders, own_folder
from herringbone.records.home import JobFolder
from herringbone.records.index import JobRecord
from herringbone.show.console import Console
from herringbone_contract.errors import InputError
from herringbone_contract.paths import INSIDE


def fetch_checkpoints(record: JobRecord, folder: JobFolder, into: Path) -> Path:
    """Return the folder of `checkpoint_s3_uri`, or a copy of what the hosts wrote: of several hosts, a folder of each.

    Raises `InputError` without checkpoints on this machine; `OSError` for a full disk.
    """
    plan = record.plan_dict
    shared = own_folder(plan, "checkpoint_s3_uri")
    uri = plan.get("options", {}).get("checkpoint_s3_uri")
    if is_s3(uri):
        shared = folder.s3_checkpoints
        if record.backend == "ssh":
            # Machines send to the bucket, and the folder here has what the job started with.
            from herringbone.aws.session import AwsSession
            from herringbone.s3.staging import fetch_whole_checkpoints

            fetch_whole_checkpoints(uri, into / "checkpoints", AwsSession.of(None))
            return into / "checkpoints"
    if shared is not None and shared.is_dir():
        return shared
    hosts = [HostFolder(host, folder.host(host), str(INSIDE.checkpoints)) for host in checkpoint_folders(plan, folder)]
    written = [host for host in hosts if host.base.is_dir() and not host.is_empty]
    if shared is not None or not written:
        raise InputError(
            f"job {record.name} is {record.status}, and its script has written no checkpoint into SM_CHECKPOINT_DIR "
            "on this machine"
        )
    for host in written:
        target = into / "checkpoints" / (host.host if len(hosts) > 1 else "")
        pack([host], target, compress=False, say=Console(sys.stderr).say)
    return into / "checkpoints"
