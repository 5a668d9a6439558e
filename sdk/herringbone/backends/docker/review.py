"""What `local` and `local_gpu` make of a plan: what they cannot serve, and what they have no use for."""

from __future__ import annotations

import json

from herringbone.backends.docker.image import Image
from herringbone.engine.client import Engine
from herringbone.planning.checks import check_files, check_served, unused_of
from herringbone.planning.plan import SHARED_MODEL_DIR, JobPlan, own_data_parallel_keys, refuse
from herringbone.planning.tensorflow import old_tensorflow
from herringbone_contract.errors import UnsupportedError

_NAME = "local"
_REFUSED = {
    "encrypt_inter_container_traffic": "containers of one engine talk unencrypted",
}


def check(plan: JobPlan) -> None:
    """Raise `UnsupportedError`, `InputError` or `ArchiveError` for what can be seen without an engine."""
    archive = plan.source is not None and plan.source.archive is not None
    if plan.options.bake_requirements and archive:
        reason = "requirements.txt is in an archive, which only the host unpacks; give a folder as source_dir"
        check_served(_NAME, plan, {**_REFUSED, "bake_requirements": reason})
    check_served(_NAME, plan, _REFUSED)
    refuse(_NAME, old_tensorflow(plan))
    check_files(_NAME, plan)


def check_image(plan: JobPlan, image: Image) -> None:
    """Raise `UnsupportedError` for a wish that this very image cannot serve."""
    if image.is_ours and plan.source is None and not plan.options.container_entry_point:
        raise UnsupportedError(
            f"image_uri: {image.name} runs a script, and none is given: give entry_point, or container_entry_point for "
            "a program of the image's own"
        )
    if plan.options.bake_requirements and not image.is_ours:
        raise UnsupportedError(
            f"bake_requirements: {image.name} was not made by Herringbone, so nobody knows where its packages go; "
            "leave it out to have requirements.txt installed at the start"
        )
    extensions = own_data_parallel_keys(plan.distribution)
    if extensions and not image.is_ours:
        names = ", ".join(extensions)
        raise UnsupportedError(
            f"distribution.smdistributed.dataparallel: {image.name} was not made by Herringbone, and would ignore"
            f" {names}; leave that out, or make an image with `herringbone images build`"
        )


def check_engine(plan: JobPlan, engine: Engine) -> None:
    """Raise `UnsupportedError` for a wish that an engine elsewhere cannot serve."""
    if plan.options.max_retry_attempts is not None and not engine.is_here:
        raise UnsupportedError(
            f"max_retry_attempts: what a host has saved lies in its container at {engine.address} and goes with it; "
            "leave it out, or run where the engine is"
        )
    shared = plan.hyperparameters.get("model_dir") == json.dumps(SHARED_MODEL_DIR)
    if shared and len(plan.hosts) > 1 and not engine.is_here:
        raise UnsupportedError(
            f"model_dir: hosts of the engine at {engine.address} share no folder, so {SHARED_MODEL_DIR} would be "
            "another on each; give model_dir='/opt/ml/model', or run where the engine is"
        )


def unused(plan: JobPlan) -> tuple[str, ...]:
    """Return the given options that mean nothing here."""
    named = bool(plan.arguments.get("image_uri"))
    # An image that is named needs no choosing. One Python is in each of ours.
    return tuple(sorted(unused_of(plan, ("framework_version", "py_version") if named else ("py_version",))))
