"""The addresses in S3 that a job reads from and writes to. Pure."""

from __future__ import annotations

import json

from herringbone.aws.location import is_s3
from herringbone.plan.plan import JobPlan
from herringbone_contract.constants import Key


def uses_s3(plan: JobPlan) -> bool:
    """Report whether the job reads from S3 or writes to it."""
    return reads_s3(plan) or bool(written(plan)) or code_address(plan) is not None


def reads_s3(plan: JobPlan) -> bool:
    """Report whether something of the job is in S3 that is not on this machine yet.

    On the machines of `ssh:`, channels have paths as well: the submitting machine has fetched and sent them.
    """
    return (
        any(channel.path is None and is_s3(channel.input.s3_data) for channel in plan.channels)
        or (plan.source is not None and plan.source.remote)
        or is_s3(plan.options.checkpoint_s3_uri)
    )


def code_address(plan: JobPlan) -> str | None:
    """Return where this machine puts a copy of the job's code in S3; None where it does not."""
    address: str = json.loads(plan.hyperparameters.get(Key.SUBMIT_DIRECTORY, '""'))
    return address if plan.source is not None and not plan.source.remote and is_s3(address) else None


def written(plan: JobPlan) -> dict[str, str]:
    """Return the options with an address in S3 that the job writes to."""
    values = {"output_path": plan.options.output_path, "checkpoint_s3_uri": plan.options.checkpoint_s3_uri}
    return {name: value for name, value in values.items() if value is not None and is_s3(value)}
