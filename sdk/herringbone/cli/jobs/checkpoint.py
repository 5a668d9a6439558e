"""`herringbone checkpoint`: list, verify and convert the checkpoints of a folder or a job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click

from herringbone.cli.commands import json_option
from herringbone.cli.common import JOB_FAILED, OK
from herringbone.show.tables import show_table
from herringbone.system.sizes import shown_bytes
from herringbone.system.times import shown_ago
from herringbone_contract.checkpoint.manifest import MANIFEST
from herringbone_contract.checkpoint.verification import Listed, Problem, listing, verify
from herringbone_contract.errors import InputError, ParallelError

_CONVERT = "herringbone_parallel.torch.checkpoint.convert"
_HEAD = ("TAG", "SAVED", "SIZE", "RANKS", "MESH", "STATE")


@click.group()
def command() -> None:
    """List, verify and convert checkpoints."""


@command.command("ls", short_help="list the checkpoints of a folder or a job")
@click.argument("where", metavar="FOLDER|NAME")
@json_option("one JSON array, the newest checkpoint last")
def list_checkpoints(where: str, as_json: bool) -> int:
    """List the checkpoints of a folder, or of the job NAME on this machine, the newest last.

    Reads manifests and the sizes of files; `verify` reads the files. Nothing is unpickled. A job of several hosts may
    have a folder on each. Write ./NAME for a folder that is called like a job.
    """
    entries = [entry for folder in _folders(where) for entry in _listing(folder)]
    if as_json:
        print(json.dumps([_summary(entry) for entry in entries]))
    elif not entries:
        print(f"{where} has no checkpoints")
    else:
        show_table([_HEAD, *map(_row, entries)], shorten=0, cut=len(_HEAD) - 1)
    return OK


@command.command("verify", short_help="read checkpoints, and name what is missing, torn, damaged or foreign")
@click.argument("where", metavar="FOLDER|NAME")
@click.argument("tag", required=False, metavar="[TAG]")
@json_option("one JSON array, an object for each checkpoint")
def verify_checkpoints(where: str, tag: str | None, as_json: bool) -> int:
    """Read the checkpoints of a folder or a job, or the one with this TAG, and compare them with their checksums.

    Names each file that is missing, torn (another size), damaged (another checksum) or foreign (of another save). The
    exit code is 1 if there is one. A save that was not finished counts only with its TAG.
    """
    results: list[tuple[Listed, list[Problem]]] = []
    for folder in _folders(where):
        for entry in _listing(folder):
            # Folders of other libraries may be there as well.
            if (entry.tag == tag) if tag is not None else (entry.path / MANIFEST).exists():
                results.append((entry, _problems(entry)))
    if not results:
        raise InputError(
            f"{where} has no checkpoint{'' if tag is None else f' {tag!r}'}: herringbone checkpoint ls {where}"
        )
    if as_json:
        print(json.dumps([{**_summary(entry), "problems": [p._asdict() for p in found]} for entry, found in results]))
    else:
        for entry, found in results:
            for line in [problem.text for problem in found] or [f"{entry.path}: complete, all checksums are right"]:
                show_table([(line,)])
    return JOB_FAILED if any(found for _, found in results) else OK


@command.command("convert", short_help="write a checkpoint as safetensors or a state dict, or read one of those")
@click.argument("where", metavar="SOURCE|NAME")
@click.argument("target", type=click.Path(path_type=Path))
@click.option("--optimizer", is_flag=True, help="also the optimizer's state; only to and from a folder, and to .pt")
@click.option(
    "--python", metavar="PATH", default=sys.executable, help="the Python that has torch and herringbone (default: this)"
)
@json_option("what was written as JSON")
def convert_checkpoint(where: str, target: Path, optimizer: bool, python: str, as_json: bool) -> int:
    """Convert a checkpoint. The endings of SOURCE and TARGET say what they are.

    \b
    NAME.safetensors   the model's tensors by name
    NAME.pt            the model's state dict, or with --optimizer
                       {"model": ..., "optimizer": ...}
    a folder           a checkpoint of Herringbone, or as SOURCE of torch's DCP
    a job's NAME       as SOURCE its newest checkpoint

    TARGET must not exist. In a folder that has checkpoints, a job still resumes from the newest of those, until a
    script names TARGET's tag. Of pickles only tensors are read (torch's weights_only).
    """
    source = _source(where)
    if os.path.lexists(target):
        raise InputError(f"{target} exists; name another one")
    result = _run_conversion(python, source, target, optimizer)
    if as_json:
        print(json.dumps(result))
        return OK
    print(f"{target}: {result['tensors']} tensors, {shown_bytes(result['bytes'])}")
    if skipped := result["skipped"]:
        more = f" and {len(skipped) - 3} more" if len(skipped) > 3 else ""
        print(f"left out of {source}: {', '.join(skipped[:3])}{more}", file=sys.stderr)
    return OK


def _run_conversion(python: str, source: Path, target: Path, optimizer: bool) -> dict[str, Any]:
    # Absolute, so that no path begins with a dash.
    argv = [python, "-m", _CONVERT, str(source.absolute()), str(target.absolute()), *["--optimizer"] * optimizer]
    try:
        # PYTHONSAFEPATH: a module in the current folder must not take the place of torch.
        environment = {**os.environ, "PYTHONSAFEPATH": "1"}
        done = subprocess.run(argv, capture_output=True, text=True, env=environment, check=False)
    except OSError as error:
        raise InputError(f"{python} cannot be started: {error.strerror}. Name another Python with --python") from error
    result: Any = None
    if lines := done.stdout.splitlines():
        try:
            result = json.loads(lines[-1])
        except ValueError:
            result = None
    if isinstance(result, dict) and "error" in result:
        raise ParallelError(str(result["error"]))
    if done.returncode != 0 or not isinstance(result, dict):
        reason = (done.stderr.strip().splitlines() or [f"it ended with the exit code {done.returncode}"])[-1]
        remedy = (
            f" Install it there ({python} -m pip install torch numpy), or name a Python that has torch and"
            " herringbone with --python"
            if "No module named" in reason
            else ""
        )
        raise InputError(f"{python} cannot convert {source}: {reason}.{remedy}")
    return result


def _folders(where: str) -> list[Path]:
    path = Path(where)
    if path.is_dir() or "/" in where:
        return [path]
    # Imported here, so that folders are listed without sqlite.
    from herringbone.cli.names import JobName
    from herringbone.records.description import checkpoint_folders
    from herringbone.records.home import find_home
    from herringbone.records.index import JobIndex

    name = JobName().convert(where, None, None)
    home = find_home()
    record = JobIndex(home.index).get(name)
    folders = dict.fromkeys(checkpoint_folders(record.plan_dict, home.job(name)).values())
    present = [folder for folder in folders if folder.is_dir()]
    if not present:
        raise InputError(
            f"job {name} has no checkpoints on this machine; bring them with: herringbone download {name} checkpoints"
        )
    return present


def _source(where: str) -> Path:
    """Return the file or folder to convert, of a job its newest checkpoint. Raises `InputError` for none or several."""
    path = Path(where)
    if os.path.lexists(path) or "/" in where or path.suffix:
        if not path.exists():
            raise InputError(f"{where} does not exist")
        return path
    folders = _folders(where)
    if len(folders) > 1:
        raise InputError(
            f"job {where} has checkpoints in {len(folders)} folders, one of each host; name one checkpoint"
        )
    for entry in _listing(folders[0]):
        if entry.newest:
            return entry.path
    raise InputError(f"job {where} has no complete checkpoint in {folders[0]}: herringbone checkpoint ls {where}")


def _listing(folder: Path) -> list[Listed]:
    if (folder / MANIFEST).exists():
        # One checkpoint, not a folder of them.
        return [entry for entry in listing(folder.absolute().parent) if entry.path.name == folder.absolute().name]
    try:
        return listing(folder)
    except ParallelError as error:
        raise InputError(str(error)) from error


def _problems(entry: Listed) -> list[Problem]:
    if entry.manifest is None:
        return [Problem(MANIFEST, "missing", entry.problem or "")]
    return verify(entry.path, entry.manifest)


def _summary(entry: Listed) -> dict[str, Any]:
    manifest = entry.manifest
    return {
        "tag": entry.tag,
        "path": str(entry.path),
        "newest": entry.newest,
        "problem": entry.problem,
        "saved": None if manifest is None else manifest.time,
        "bytes": None if manifest is None else manifest.bytes,
        "ranks": None if manifest is None else manifest.world_size,
        "mesh": None if manifest is None else manifest.mesh,
        "torch": None if manifest is None else manifest.torch,
        "tensors": None if manifest is None else len(manifest.tensors),
    }


def _row(entry: Listed) -> tuple[str, ...]:
    import time

    state = entry.problem or ("newest" if entry.newest else "complete")
    manifest = entry.manifest
    if manifest is None:
        return (entry.tag, "-", "-", "-", "-", state)
    mesh = " x ".join(f"{axis} {degree}" for axis, degree in manifest.mesh.items() if degree > 1) or "-"
    saved = shown_ago(time.time() - manifest.time)
    return (entry.tag, saved, shown_bytes(manifest.bytes), str(manifest.world_size), mesh, state)
