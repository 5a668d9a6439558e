"""Review a plan for `ssh:`: refuse what cannot be served, and name the options that have no effect."""

from __future__ import annotations

from herringbone.aws.location import is_s3
from herringbone.backends.review.checks import (
    NO_MEMORY,
    check_files,
    check_served,
    checkpoint_folder,
    tensorboard_folder,
    unused_of,
)
from herringbone.backends.review.frameworks import old_tensorflow, too_old_image
from herringbone.backends.review.settings import check_ranks, refuse_of_image
from herringbone.backends.ssh.machines.inventory import Inventory, Machine, Runtime, choose, runtime_of
from herringbone.backends.ssh.start.keepers import who_retries, why_not_alone
from herringbone.backends.ssh.start.line import fitting, wants_on
from herringbone.backends.ssh.start.upload import is_shared
from herringbone.plan.plan import JobPlan, refuse
from herringbone_contract.constants import SHARED_MODEL_DIR
from herringbone_contract.errors import UnsupportedError

_NAME = "ssh"
# Options without an effect on the user's own hosts in general, but with one here.
_USED = ("min_instance_count", "retry_without_client")
_UNUSED: dict[Runtime, tuple[str, ...]] = {
    "process": ("framework_version", "py_version", "shm_size", "bake_requirements"),
    "docker": ("py_version",),
}
_REFUSED = {
    **NO_MEMORY,
    "enable_network_isolation": "hosts share their machine's network",
    "encrypt_inter_container_traffic": "hosts talk to each other unencrypted",
    "container_entry_point": "hosts run a script; give entry_point",
    "container_arguments": "hosts run a script; give hyperparameters",
}
_NOT_BAKED = "machines keep no images of their own; build one with the packages (`herringbone images build`)"


def review(plan: JobPlan, inventory: Inventory) -> tuple[str, ...]:
    """Return the given options that have no effect here. Raises `UsageError` for what cannot be served."""
    inventory = fitting(plan, inventory)
    machines = choose(plan.hosts, inventory).values()
    runtime = runtime_of(machines)
    in_containers = runtime == "docker"
    check_served(_NAME, plan, _REFUSED | ({"bake_requirements": _NOT_BAKED} if in_containers else {}))
    if plan.source is None:
        raise UnsupportedError(f"{_NAME} runs a script on machines, not an image's own program: give entry_point")
    if in_containers:
        refuse(_NAME, old_tensorflow(plan) | too_old_image(plan))
        refuse_of_image(_NAME, plan)
    check_files(_NAME, plan)
    gpus = {_gpus_on(plan, machine) for machine in machines}
    check_ranks(plan, gpus.pop() if len(gpus) == 1 else None)
    _refuse_unshared(plan, inventory)
    if plan.options.retry_without_client and (why := why_not_alone(plan, runtime)):
        refuse(_NAME, {"retry_without_client": f"the machines cannot retry this job by themselves, because {why}"})
    return unused_of(plan, (*_UNUSED[runtime], *([] if in_containers else ["image_uri"])), used=_USED)


def _gpus_on(plan: JobPlan, machine: Machine) -> int | None:
    """Return the number of GPUs that a host sees on a machine; None where only the machine knows it."""
    wants = wants_on(plan, machine)
    return wants.get("gpus") or (0 if "shares" in wants else machine.gpus)


def _refuse_unshared(plan: JobPlan, inventory: Inventory) -> None:
    """Refuse folders that only one machine would see, although all hosts or a later job need them."""
    refusals = {}
    folders = {"checkpoint_s3_uri": checkpoint_folder(plan), "tensorboard_output_config": tensorboard_folder(plan)}
    for name, folder in folders.items():
        if name == "checkpoint_s3_uri" and is_s3(plan.options.checkpoint_s3_uri):
            # Each machine sends its own; see `controller.helpers.S3Process`.
            continue
        if folder is not None and not is_shared(folder, inventory.shared):
            known = ", ".join(inventory.shared) or "none"
            refusals[name] = (
                f"{folder} is not in a folder that all machines see; the inventory's `shared` names those: {known}"
            )
    if len(plan.hosts) > 1 and SHARED_MODEL_DIR in plan.hyperparameters.get("model_dir", ""):
        refusals["model_dir"] = f"machines do not share {SHARED_MODEL_DIR}; give model_dir='/opt/ml/model'"
    refuse(_NAME, refusals)


def planned_machines(plan: JobPlan, inventory: Inventory) -> dict[str, str]:
    """Return the machine of each host if all machines were free, which `herringbone plan` shows."""
    return {host: machine.name for host, machine in choose(plan.hosts, fitting(plan, inventory)).items()}


def retried_by(plan: JobPlan, inventory: Inventory) -> str:
    """Return who starts another attempt of the job, which `herringbone plan` shows."""
    return who_retries(plan, runtime_of(choose(plan.hosts, fitting(plan, inventory)).values()))
