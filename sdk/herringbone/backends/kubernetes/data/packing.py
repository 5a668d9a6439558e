"""The results of a job that is over: fetched where they lie, merged or packed on this machine.

Pods pack nothing, because each sees its own files alone. Until `repack` has made an archive here, a job's model and its
output are the folders of its hosts.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from herringbone.aws.location import is_s3
from herringbone.backends.kubernetes.data.claim_results import INSIDE, ClaimResults
from herringbone.backends.kubernetes.pods import HAS_MODEL
from herringbone.backends.lifecycle import model_of
from herringbone.controller.artifacts import Say, pack_model, pack_output
from herringbone.records.index import COMPLETED, STOPPED
from herringbone.show.console import Console
from herringbone_contract.constants import DEFAULT_BASE
from herringbone_contract.errors import InputError

if TYPE_CHECKING:
    from herringbone.backends.kubernetes.api import Api
    from herringbone.backends.kubernetes.data.claim_results import Results, RunningLogs
    from herringbone.plan.plan import JobPlan
    from herringbone.records.download import Part
    from herringbone.records.home import JobFolder
    from herringbone.records.index import JobRecord


def results_address(plan: Mapping[str, Any]) -> str:
    """Return the folder with the files of a job's hosts; `plan` is the one of its row.

    >>> results_address({"job_name": "digits", "options": {"output_path": "pvc://results/jobs/"}})
    'pvc://results/jobs/digits/hosts'
    """
    return f"{plan['options']['output_path'].rstrip('/')}/{plan['job_name']}/hosts"


def model_column(pods: Sequence[Mapping[str, Any]], columns: Mapping[str, Any], record: JobRecord) -> dict[str, str]:
    """Return the column of the model of a job that is over, as its pods report it; nothing without a model."""
    if columns.get("status") not in (COMPLETED, STOPPED) or record.model is not None:
        return {}
    ends = [each.get("state", {}).get("terminated", {}) for pod in pods for each in _containers(pod)]
    saved = any(end.get("message") == HAS_MODEL for end in ends)
    return {"model": results_address(record.plan_dict)} if saved else {}


def open_results(api: Api, plan: JobPlan, running: RunningLogs) -> Results:
    """Return the results of a job, where its `output_path` is."""
    if not is_s3(plan.options.output_path):
        return ClaimResults(api, plan, running)
    # Imported here: only such jobs need boto.
    from herringbone.backends.kubernetes.data.s3_results import S3Results

    return S3Results(plan, running)


def fetch_part(results: Results, record: JobRecord, folder: JobFolder, part: Part, into: Path) -> Path:
    """Return a part of a job: an archive that was packed here, or a folder below `into`.

    Raises `InputError` while there is nothing of the part.
    """
    say = Console(sys.stderr).say
    if part == "checkpoints":
        if record.plan_dict["options"].get("checkpoint_s3_uri") is None:
            raise InputError(
                f"job {record.name} has no checkpoint_s3_uri, so its checkpoints are gone with its pods; give the next "
                "job a folder of a claim: pvc://CLAIM/FOLDER"
            )
        (checkpoints := into / "checkpoints").mkdir()
        results.bring_checkpoints(checkpoints, say)
        if not any(checkpoints.iterdir()):
            raise InputError(f"job {record.name} is {record.status}, and has no checkpoint yet")
        return checkpoints
    if (packed := packed_here(folder, part)) is not None:
        return packed
    if part == "model" and record.status not in (COMPLETED, STOPPED):
        # It explains why there is none.
        model_of(record)
    elif not record.done:
        raise InputError(f"job {record.name} is {record.status} and has no output: it is complete at the job's end")
    bases = _bring(results, record, part, into, say)
    pack = pack_model if part == "model" else pack_output
    pack(bases, into / "merged", compress=False, say=say)
    return into / "merged" / part


def repack_results(results: Results, record: JobRecord, folder: JobFolder, say: Say) -> Path:
    """Pack the model and the output of a job that is over into its folder here; return the model's archive, or folder.

    Raises `InputError` for a job that runs, or is packed already.
    """
    compress = not record.plan_dict["options"].get("disable_output_compression")
    if not record.done:
        raise InputError(f"job {record.name} is {record.status}: its files are complete at its end")
    if (known := packed_here(folder, "model")) is not None:
        raise InputError(f"job {record.name} has its model already: {known}")
    folder.path.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=folder.path, prefix=".repack-") as scratch:
        bases = _bring(results, record, "model", Path(scratch, "model"), say)
        if results.hosts_with("output"):
            outputs = _bring(results, record, "output", Path(scratch, "output"), say)
            pack_output(outputs, folder.output, compress=compress, say=say)
        model = pack_model(bases, folder.output, compress=compress, say=say)
    assert model is not None
    return model


def packed_here(folder: JobFolder, part: Part) -> Path | None:
    """Return the archive, or the folder, that `repack_results` has made of a part here."""
    made = folder.output / f"{part}.tar.gz", folder.output / part
    return next((path for path in made if path.exists()), None)


def _bring(results: Results, record: JobRecord, part: Part, into: Path, say: Say) -> list[tuple[str, Path]]:
    """Bring a part of all hosts into folders below `into`, and return those as `pack_model` takes them."""
    bases = [(host, into / "hosts" / host / "ml") for host in results.hosts_with(part)]
    if not bases:
        place = f"{DEFAULT_BASE}/{INSIDE[part]}"
        raise InputError(f"job {record.name} left no {part}: no host has files in {place}")
    for host, base in bases:
        base.mkdir(parents=True)
        results.bring(part, host, base, say)
    return bases


def _containers(pod: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    statuses: Sequence[Mapping[str, Any]] = pod.get("status", {}).get("containerStatuses", ())
    return statuses
