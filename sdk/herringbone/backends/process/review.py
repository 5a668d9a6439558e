"""The review of a plan for `local_process`: options that it cannot serve, and options without effect."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path

from herringbone.backends.process.gpus import wants_of
from herringbone.backends.review.checks import check_files, check_hosts, check_served, unused_of
from herringbone.backends.review.frameworks import (
    Installed,
    installed_mxnet,
    installed_tensorflow,
    installed_torch,
    missing_mxnet,
    missing_package,
    missing_tensorflow,
    too_old_here,
)
from herringbone.backends.review.settings import check_ranks
from herringbone.plan.plan import JobPlan, refuse
from herringbone.plan.source import SourceCode
from herringbone.slots.devices import VISIBLE_VARIABLE, find_gpus
from herringbone.slots.line import too_much
from herringbone.slots.probe import NvidiaSmi, Probe
from herringbone.system.packages import installed_version
from herringbone_contract.errors import InputError, UnsupportedError
from herringbone_contract.resources import num_gpus

_NAME = "local_process"
_UNUSED = ("framework_version", "py_version", "shm_size", "bake_requirements")
_REFUSED = {
    "enable_network_isolation": "processes of this machine share its network",
    "encrypt_inter_container_traffic": "hosts here are processes of one machine, which talk unencrypted",
    "container_entry_point": "there is no container; give entry_point",
    "container_arguments": "there is no container; give hyperparameters",
}


def review(
    plan: JobPlan,
    tensorflow: Callable[[], str | None] = installed_tensorflow,
    mxnet: Callable[[], Installed] = installed_mxnet,
    torch: Callable[[], str | None] = installed_torch,
    *,
    package: Callable[..., str | None] = installed_version,
    probe: Probe | None = None,
) -> tuple[str, ...]:
    """Return the options of the plan that have no effect; `tensorflow`, `mxnet`, `torch` and `package` look up what
    this Python has.

    Raises `UnsupportedError`, `InputError` or `ArchiveError`.
    """
    check_served(_NAME, plan, _REFUSED)
    if plan.source is None:
        raise UnsupportedError(f"{_NAME} runs a script with this Python, not an image: give entry_point")
    check_hosts(_NAME, plan)
    check_files(_NAME, plan)
    check_ranks(plan, _gpus_of_host(plan, probe))
    _check_syntax(plan.source)
    refuse(_NAME, missing_tensorflow(plan, tensorflow) | missing_mxnet(plan, mxnet) | too_old_here(plan, torch))
    refuse(_NAME, missing_package(plan, package))
    return unused_of(plan, (*_UNUSED, "image_uri"))


def _gpus_of_host(plan: JobPlan, probe: Probe | None) -> int:
    """Return the number of GPUs that each host sees. Raises `UnsupportedError` where the machine has too few."""
    if plan.options.gpus is None:
        return num_gpus({**os.environ, **plan.environment})
    probe = probe or NvidiaSmi()
    wants, gpus = wants_of(plan, probe), len(find_gpus(probe.listing(), {}))
    if wants.gpus > (len(wants.among) if VISIBLE_VARIABLE in {**os.environ, **plan.environment} else gpus):
        raise UnsupportedError(too_much(wants, gpus, 0))
    return plan.options.gpus


def _check_syntax(source: SourceCode) -> None:
    """Refuse a script with a syntax error: this Python will run it. Other backends run a Python that may know more."""
    if source.folder is None or not source.entry_point.endswith(".py"):
        return
    script = Path(source.folder, source.entry_point)
    with warnings.catch_warnings():
        # The rank compiles the script once more, and shows them in the log.
        warnings.simplefilter("ignore")
        try:
            compile(script.read_bytes(), source.entry_point, "exec", dont_inherit=True)
        except SyntaxError as error:
            line = f": {error.text.strip()}" if error.text else ""
            raise InputError(f"entry_point: {script}, line {error.lineno}: SyntaxError: {error.msg}{line}") from None
        except (ValueError, MemoryError, RecursionError):
            return  # what the compiler cannot judge fails in the rank, with a traceback
