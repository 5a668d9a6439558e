"""The part that S3 has in a job of own hosts: fetched before the start, written by the job's controller.

Only jobs with an address in S3 import the modules that do it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec

from herringbone.aws.location import is_s3
from herringbone.plan.channels import is_piped
from herringbone.plan.s3 import code_address, reads_s3, written
from herringbone.records.index import DOWNLOADING, STARTING, JobIndex
from herringbone.records.job_events import JobEvents

if TYPE_CHECKING:
    from herringbone.plan.plan import HostPlan, JobPlan
    from herringbone.protocols.controller_config import PipesConfig, S3Config
    from herringbone.records.home import Home


def staged(plan: JobPlan, home: Home, index: JobIndex) -> JobPlan:
    """Fetch what the job reads from S3 into its folder, and return the plan with the paths; see `s3.staging.stage`.

    The job is Downloading meanwhile. First a copy of the job's code goes to its `code_location`. Raises the errors of
    `stage`.
    """
    if (address := code_address(plan)) is not None:
        _copy_code(plan, address, home)
    if not reads_s3(plan):
        return plan
    from herringbone.s3.staging import stage

    index.update(plan.job_name, secondary_status=DOWNLOADING)
    JobEvents(home.job(plan.job_name).job_events).state(DOWNLOADING)
    plan = stage(plan, home)
    index.update(plan.job_name, secondary_status=STARTING)
    return plan


def _copy_code(plan: JobPlan, address: str, home: Home) -> None:
    from herringbone.code.archive import pack_code
    from herringbone.s3.names import split
    from herringbone.s3.review import buckets_of

    assert plan.source is not None
    with tempfile.TemporaryDirectory(prefix="herringbone-") as scratch:
        archive = plan.source.archive or pack_code(plan.source, Path(scratch), exclude=home.path).path
        buckets_of(plan).upload(Path(archive), split(address, "code_location"))


def s3_config(plan: JobPlan, home: Home, *, with_credentials: bool = True) -> S3Config | None:
    """Return what the job's controller writes to S3; None for nothing.

    Without credentials, the controller finds them by itself: its config is a file.
    """
    addresses = written(plan)
    if not addresses:
        return None
    from herringbone.s3.review import session_of

    session = session_of(plan)
    checkpoints = addresses.get("checkpoint_s3_uri")
    access = msgspec.to_builtins(session.access) if with_credentials else {}
    if not with_credentials and session.access_region is not None:
        access = {"region": session.access_region}
    return {
        "job": plan.job_name,
        "checkpoints": None if checkpoints is None else (str(home.job(plan.job_name).s3_checkpoints), checkpoints),
        "output": addresses.get("output_path"),
        "access": access,
        "several": False,
    }


def machine_s3(plan: JobPlan, *, several: bool) -> dict[str, Any] | None:
    """Return what machines need to send a job's checkpoints to S3; None where its checkpoints go elsewhere.

    `several` machines write below the address. The credentials travel in the config of a host, through a pipe.
    """
    if not is_s3(plan.options.checkpoint_s3_uri):
        return None
    from herringbone.s3.review import session_of

    access = msgspec.to_builtins(session_of(plan).portable_access)
    return {"uri": plan.options.checkpoint_s3_uri, "access": access, "several": several}


def pipes_config(plan: JobPlan, home: Home, hosts: Sequence[HostPlan]) -> PipesConfig | None:
    """Return the FIFOs of the channels in Pipe mode that these hosts read, with credentials where they come from S3."""
    if not any(is_piped(channel, plan) for channel in plan.channels):
        return None
    from herringbone.s3.pipes.order import feed_order, reads_while_running

    access = {}
    if reads_while_running(plan):
        from herringbone.s3.review import session_of

        access = msgspec.to_builtins(session_of(plan).access)
    folder = home.job(plan.job_name)
    return cast("PipesConfig | None", feed_order(plan, [(host, folder.host(host.name)) for host in hosts], access))


def send_packed(plan: JobPlan, model: Path) -> str:
    """Send the results next to a packed model to S3 where the job's `output_path` is there; return its address or path.

    For processes that pack without a controller. Raises `AwsError`.
    """
    output = plan.options.output_path
    if output is None or not is_s3(output):
        return str(model)
    from herringbone.s3.review import buckets_of
    from herringbone.s3.sync import result_address, send_results

    send_results(model.parent, output, plan.job_name, buckets_of(plan))
    return str(result_address(output, plan.job_name, model.name))
