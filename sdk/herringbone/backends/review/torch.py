"""Check, as far as a plan can know, that a job will find a torch that is new enough for its `distribution`."""

from __future__ import annotations

import sys
from collections.abc import Callable

from herringbone.backends.review.checks import brings_packages
from herringbone.plan.plan import JobPlan
from herringbone.system.packages import installed_version, is_older
from herringbone_contract.served import RECENT_TORCH, needs_recent_torch

_NEEDED = ".".join(str(number) for number in RECENT_TORCH)


def installed_torch() -> str | None:
    """Return the version of this Python's torch, None without torch."""
    return installed_version("torch")


def too_old_here(plan: JobPlan, installed: Callable[[], str | None]) -> dict[str, str]:
    """Return, as a refusal, a setting for which this Python's torch is too old. Imports no torch.

    A job with a requirements.txt is never refused: its Python is made from that file at the start. Nor is one without
    torch here: its script may be of another framework.
    """
    setting = needs_recent_torch(plan.distribution)
    if setting is None or brings_packages(plan):
        return {}
    version = installed()
    if version is None or not is_older(version, RECENT_TORCH):
        return {}
    return {
        setting: f"needs torch {_NEEDED} or newer, and ranks run in {sys.executable}, which has {version}:"
        f" `pip install 'torch>={_NEEDED}'`, or name torch in the job's requirements.txt"
    }


def too_old_image(plan: JobPlan) -> dict[str, str]:
    """Return, as a refusal, a `framework_version` of our images that is too old for a setting."""
    setting, version = needs_recent_torch(plan.distribution), plan.options.framework_version
    if setting is None or version is None or plan.arguments.get("image_uri") or not is_older(version, RECENT_TORCH):
        return {}
    return {"framework_version": f"{version}: {setting} needs torch {_NEEDED} or newer; leave framework_version out"}
