"""Code and channels that a Secret cannot hold: in the job's results while it runs, sent there by the reader pod.

client --exec, bytes--> reader pod: claim  FOLDER/JOB/input/sourcedir.tar.gz  --mounted--> /herringbone/parts of hosts
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path

from herringbone.backends.kubernetes.api import Api
from herringbone.backends.kubernetes.data.reader import RESULTS, Reader
from herringbone.backends.kubernetes.execution import Execution
from herringbone.backends.kubernetes.pods import PARTS_FOLDER, has_parts
from herringbone.plan.plan import JobPlan
from herringbone.show.console import Console
from herringbone.system.progress import Progress
from herringbone_contract.errors import HerringboneError, KubernetesError, RequestError

_FOLDER = f"{RESULTS}/{PARTS_FOLDER}"
# $0 is the folder. A client that was killed has left another one.
_PREPARE = 'umask 077 && rm -rf -- "$0" && mkdir -- "$0"'
# $0 is the file. Complete or not there: a pod never sees half of it. A program that starts behind a client's interrupt
# must not make the folder again.
_WRITE = 'umask 077 && cat >"$0.partial" && mv "$0.partial" "$0"'
# Such a program may have opened its file meanwhile, once.
_REMOVE = 'rm -rf -- "$0" 2>/dev/null || { sleep 1; exec rm -rf -- "$0"; }'
_REFUSED = "the claim of output_path takes nothing"
_PIECE_BYTES = 1 << 20
# A caller that waits for a job's end waits for this, too.
_CLEAN_SECONDS = 30.0


def send_parts(reader: Reader, parts: Mapping[str, Path], progress: Progress) -> None:
    """Send files to the job's results. Raises `KubernetesError` or `RequestError`."""
    if parts:
        _run(reader, _REFUSED, _PREPARE)
    for name, path in parts.items():
        shown = name.removesuffix(".tar.gz").replace("sourcedir", "code").replace("channel.", "channel ")
        with (
            path.open("rb") as file,
            progress.uploading(shown, path.stat().st_size) as count,
            closing(reader.execution("/bin/sh", "-c", _WRITE, f"{_FOLDER}/{name}", stdin=True)) as execution,
        ):
            while piece := file.read(_PIECE_BYTES):
                execution.write(piece)
                count(len(piece))
            execution.end_input()
            _check(execution, f"{shown} cannot be written into the claim of output_path")


def remove_parts(reader: Reader) -> None:
    """Remove the files, also those of a submission that was interrupted. Raises as `send_parts`."""
    _run(reader, "they cannot be removed", _REMOVE)


def take_back_parts(api: Api, plan: JobPlan) -> None:
    """Remove what an interrupted submission has sent, and say what stays."""
    try:
        # Without a reader that runs, nothing was sent.
        with suppress(RequestError):
            remove_parts(Reader(api, plan, start_seconds=0.0))
    except KubernetesError as error:
        Console(sys.stderr).say(f"{_stays(plan, error)}; a job of the same name removes it")


def clear_parts(api: Api, plan: JobPlan) -> str:
    """Remove a job's code and channels from its results, and return what stays there, in words."""
    if not has_parts(plan):
        return ""
    try:
        remove_parts(Reader(api, plan, start_seconds=_CLEAN_SECONDS))
    except HerringboneError as error:
        return _stays(plan, error)
    return ""


def _stays(plan: JobPlan, error: HerringboneError) -> str:
    return f"the job's code stays in {plan.options.output_path}/{plan.job_name}/{PARTS_FOLDER}: {error}"


def _run(reader: Reader, refused: str, program: str) -> None:
    with closing(reader.execution("/bin/sh", "-c", program, _FOLDER)) as execution:
        _check(execution, refused)


def _check(execution: Execution, refused: str) -> None:
    words = b"".join(data for _, data in execution.pieces()).decode("utf-8", "replace").strip()
    if code := execution.exit_code:
        raise KubernetesError(f"{refused}: exit code {code}: {words}")
