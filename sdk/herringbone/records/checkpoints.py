"""Find the checkpoints and the code that a job left on this machine, for a job that begins from them."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from herringbone.records.home import Home, JobFolder
from herringbone.records.index import JobIndex, JobRecord
from herringbone.records.links import listing_of, packed_target
from herringbone_contract import safe_tree
from herringbone_contract.constants import DEFAULT_BASE
from herringbone_contract.errors import InputError, LaunchError
from herringbone_contract.masking import printable
from herringbone_contract.paths import INSIDE

if TYPE_CHECKING:
    from herringbone.plan.plan import JobPlan


def newest_files(folders: Iterable[Path]) -> dict[str, Path]:
    """Return the files and links of several folders by their names; of each name the newest.

    Files below a name that is a link in another folder are left out: whoever writes them would follow the link.
    """
    newest: dict[str, tuple[int, Path, str]] = {}
    for folder in folders:
        with safe_tree.folder(folder) as descriptor:
            for entry in safe_tree.walk(descriptor):
                # Links stay links: nobody follows them here.
                if entry.kind not in ("file", "link"):
                    continue
                if entry.name not in newest or entry.state.st_mtime_ns > newest[entry.name][0]:
                    newest[entry.name] = (entry.state.st_mtime_ns, folder / entry.name, entry.kind)
    links = {name for name, (_, _, kind) in newest.items() if kind == "link"}
    return {
        name: path for name, (_, path, _) in newest.items() if links.isdisjoint(map(str, PurePosixPath(name).parents))
    }


def left_checkpoints(home: Home, job_name: str, hosts: Iterable[str]) -> dict[str, Path]:
    """Return the checkpoint files in the folders of a job's hosts, by their names; none where it has no folder here."""
    folders = [home.job(job_name).checkpoints(host) for host in hosts]
    # A link leads to the folder of checkpoint_s3_uri, which the job's options name.
    return newest_files(folder for folder in folders if folder.is_dir() and not folder.is_symlink())


def resumed(home: Home, plan: JobPlan, uri: str | None, *, over: bool) -> tuple[str, dict[str, Path]]:
    """Return the folder of a job that begins from another's checkpoints, and the files to copy there before it starts.

    `uri` is the other job's `checkpoint_s3_uri`. Raises `InputError` for a job that is not over, or has no checkpoints
    here.
    """
    name = plan.job_name
    if not over:
        raise InputError(f"job {name} is not over, and still writes its checkpoints: herringbone stop {name}")
    if uri is not None:
        if "://" not in uri and not (Path(uri).is_dir() and any(Path(uri).iterdir())):
            raise InputError(f"job {name} has no checkpoints: its checkpoint_s3_uri, {uri}, has no file")
        return uri, {}
    files = left_checkpoints(home, name, [host.name for host in plan.hosts])
    if not files:
        where = on_machines(JobIndex(home.index).get(name)) or (
            ". A script writes them to the folder SM_CHECKPOINT_DIR; jobs of local_process, local and slurm leave them "
            "in the job's folder, others where checkpoint_s3_uri says"
        )
        raise InputError(f"job {name} left no checkpoints on this machine{where}")
    return str(free_folder(home, name)), files


def on_machines(record: JobRecord) -> str:
    """Return the end of a sentence: where the machines of a job have its checkpoints; "" for jobs of this machine.

    >>> from dataclasses import replace
    >>> row = JobRecord(name="a", backend="ssh", plan="{}", created=0.0)
    >>> service = '{"name": "a.2", "machines": {"algo-1": {"name": "gpu-1", "work_folder": "/scratch"}}}'
    >>> on_machines(replace(row, service=service)).partition(";")[0]
    '. Those that its script wrote are on its machines, in gpu-1:/scratch/jobs/a.2/hosts/algo-1/ml/checkpoints'
    """
    if record.backend != "ssh" or record.service is None:
        return ""
    attempt = json.loads(record.service)
    folders = [
        f"{machine['name']}:{JobFolder(Path(machine['work_folder'], 'jobs', attempt['name'])).host(host)}/checkpoints"
        for host, machine in attempt["machines"].items()
    ]
    more = f" and {len(folders) - 4} more" if len(folders) > 4 else ""
    return (
        f". Those that its script wrote are on its machines, in {', '.join(folders[:4])}{more}; copy them from there, "
        "and start jobs with checkpoint_s3_uri to have them in one folder"
    )


def job_code(home: Home, plan: JobPlan) -> tuple[str, str]:
    """Return the folder with the code that a job ran, and the script in it. Raises `InputError` without that folder."""
    if plan.source is None:
        raise InputError(f"job {plan.job_name} ran an image's own program, so it has no code")
    folder = home.job(plan.job_name).host(plan.hosts[0].name) / "code"
    if not (folder / plan.source.entry_point).is_file():
        raise InputError(f"job {plan.job_name}: its copy of the code is not on this machine: {folder}")
    return str(folder), plan.source.entry_point


def free_folder(home: Home, job_name: str) -> Path:
    """Return a folder that does not exist, for checkpoints that a new job begins from."""
    folder = home.checkpoints / home.job(job_name).path.name
    number = 2
    while folder.exists():
        folder = folder.with_name(f"{job_name}-{number}")
        number += 1
    return folder


def settle_links(folder: Path, roots: Sequence[str], refuse: Callable[[str, str], None] | None = None) -> None:
    """Make links of a folder relative if they are absolute and stay in it, so that they also work in a copy of it.

    `roots` are the absolute paths by which the script knew the folder. With `refuse`, which gets the name and the
    reason, links that leave the folder, FIFOs and sockets are removed; without it, they stay.
    """
    with safe_tree.folder(folder) as top:
        # Most have no link, and may have a hundred thousand files.
        if safe_tree.has_only_files(top):
            return
        entries = list(safe_tree.walk(top))
        listing = listing_of(entries)
        for entry in entries:
            if entry.kind in ("file", "folder"):
                continue
            path = PurePosixPath(entry.name)
            with safe_tree.folder(top, str(path.parent)) as parent:
                try:
                    if entry.kind != "link":
                        raise ValueError(f"it is a {entry.kind}")
                    target = packed_target(entry.name, listing, roots)
                except ValueError as error:
                    if refuse is not None:
                        safe_tree.remove(parent, path.name)
                        refuse(printable(entry.name), printable(str(error)))
                    continue
                if entry.target.startswith("/"):
                    # A rename, because another job that goes on in the folder always finds the link.
                    partial = f".link-{os.getpid()}"
                    os.symlink(target, partial, dir_fd=parent)
                    os.rename(partial, path.name, src_dir_fd=parent, dst_dir_fd=parent)


def copy_checkpoints(files: Mapping[str, Path], into: Path, say: Callable[[str], None]) -> None:
    """Copy files into a new folder, which appears complete or not at all. Raises `LaunchError`, for a full disk.

    Links lead to the copies. A link that leads elsewhere would have the new job write into files of another one, so it
    is left out; `say` gets a line for each.
    """
    into.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    partial = into.with_name(f".{into.name}.partial")
    # Of a copy that was interrupted.
    shutil.rmtree(partial, ignore_errors=True)
    folders = {_top(name, path) for name, path in files.items()}
    roots = [f"{DEFAULT_BASE}/{INSIDE.checkpoints}"]
    roots += sorted({str(path) for folder in folders for path in (folder, folder.resolve())})
    try:
        for name, path in files.items():
            target = partial / name
            target.parent.mkdir(parents=True, exist_ok=True)
            # Not a hard link: the new job may write into a file, and the earlier job's must stay as it is.
            # Nor by its path: whoever writes there could replace a folder by a link since the listing.
            safe_tree.copy(_top(name, path), name, target)
        settle_links(partial, roots, lambda name, reason: say(f"checkpoints: {name} is left out: {reason}"))
        os.rename(partial, into)  # noqa: PTH104 - unlike Path.replace, it says that nothing is replaced
    except OSError as error:
        raise LaunchError(f"the checkpoints cannot be copied to {into}: {error.strerror}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _top(name: str, path: Path) -> Path:
    """Return the folder of checkpoints in which a file has this name."""
    return path.parents[len(PurePosixPath(name).parts) - 1]
