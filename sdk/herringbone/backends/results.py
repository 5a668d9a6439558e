"""Results of a job that is over: its checkpoints fetched, its model packed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from filecmp import cmp
from pathlib import Path, PurePath

from herringbone.aws.location import is_s3
from herringbone.backends.review.checks import output_folder
from herringbone.controller.artifacts import HostFolder, has_model, pack, pack_model, pack_output
from herringbone.plan.plan import parse_plan
from herringbone.records.checkpoints import on_machines
from herringbone.records.description import checkpoint_folders, own_folder
from herringbone.records.home import JobFolder
from herringbone.records.index import JobRecord
from herringbone.show.console import Console
from herringbone_contract.errors import InputError
from herringbone_contract.paths import INSIDE, Paths


def fetch_checkpoints(record: JobRecord, folder: JobFolder, into: Path) -> Path:
    """Return the folder of `checkpoint_s3_uri`, or a copy of what the hosts wrote.

    Where several hosts have files of one name and other content, a folder of each.

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
    kept = checkpoint_folders(plan, folder)
    own = [host for host, path in kept.items() if path == folder.checkpoints(host)]
    hosts = [HostFolder(host, folder.host(host), str(INSIDE.checkpoints)) for host in own]
    written = [host for host in hosts if host.base.is_dir() and not host.is_empty]
    if shared is not None or not written:
        raise InputError(
            f"job {record.name} is {record.status}, and its script has written no checkpoint into SM_CHECKPOINT_DIR "
            f"on this machine{on_machines(record)}"
        )
    for host in written:
        target = into / "checkpoints" / (host.host if len(written) > 1 else "")
        pack([host], target, compress=False, say=Console(sys.stderr).say)
    return into / "checkpoints" if len(written) == 1 else _together(into / "checkpoints")


def _together(hosts: Path) -> Path:
    """Return one folder with the files of all hosts; theirs where two of one name differ."""
    files: dict[PurePath, Path] = {}
    for host in sorted(hosts.iterdir()):
        for path in host.rglob("*"):
            other = files.setdefault(path.relative_to(host), path)
            if path.is_dir() and not path.is_symlink():
                if not other.is_dir():
                    return hosts
            elif other is not path and (
                path.is_symlink() or not other.is_file() or not cmp(path, other, shallow=False)
            ):
                return hosts
    merged = hosts.with_name("together")
    for name, path in files.items():
        if path.is_dir() and not path.is_symlink():
            (merged / name).mkdir(parents=True, exist_ok=True)
        else:
            (merged / name).parent.mkdir(parents=True, exist_ok=True)
            path.rename(merged / name)
    return merged


def repack(record: JobRecord, folder: JobFolder, say: Callable[[str], None]) -> Path:
    """Pack the model and the output of a job into the place where its controller would have packed them.

    >>> repack(index.get("digits-1"), home.job("digits-1"), print)       # doctest: +SKIP
    PosixPath('/home/me/.herringbone/jobs/digits-1/output/model.tar.gz')

    Raises `InputError` for a job that runs, has its archive, or left no model; `OSError` for a full disk.
    """
    if not record.done:
        raise InputError(f"job {record.name} is {record.status}: it packs its model itself at its end")
    plan = parse_plan(record.plan_dict)
    in_s3 = is_s3(plan.options.output_path)
    if record.model is not None and (is_s3(record.model) or (Path(record.model).exists() and not in_s3)):
        raise InputError(f"job {record.name} has its model already: {record.model}")
    if in_s3 and record.model is not None and Path(record.model).exists():
        # It was packed, and could not be sent.
        return Path(record.model)
    bases = [(host.name, folder.host(host.name)) for host in plan.hosts]
    output, compress = output_folder(plan, folder), not plan.options.disable_output_compression
    pack_output(bases, output, compress=compress, say=say)
    if not has_model(bases):
        looked = ", ".join(str(Paths(base).model) for _, base in bases)
        raise InputError(f"job {record.name} left no model: there are no files in {looked}")
    model = pack_model(bases, output, compress=compress, say=say)
    assert model is not None
    return model
