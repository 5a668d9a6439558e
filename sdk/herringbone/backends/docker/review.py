"""The review of a plan for `local` and `local_gpu`: options that they cannot serve, and options without effect."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from herringbone.backends.docker.image import Image
from herringbone.backends.docker.volumes import volume_mounts
from herringbone.backends.review.checks import NO_MEMORY, check_files, check_hosts, check_served, unused_of
from herringbone.backends.review.frameworks import old_tensorflow, too_old_image
from herringbone.backends.review.settings import unserved_settings
from herringbone.engine.client import Engine
from herringbone.plan.channels import is_piped
from herringbone.plan.plan import JobPlan, refuse, watching
from herringbone_contract.constants import SHARED_MODEL_DIR
from herringbone_contract.errors import UnsupportedError
from herringbone_contract.served import Library

_NAME = "local"
_REFUSED = {
    **NO_MEMORY,
    "encrypt_inter_container_traffic": "containers of one engine talk unencrypted",
}

_NO_GPUS = {"gpus": "containers of instance_type 'local' have no GPUs; use 'local_gpu'"}


def check(plan: JobPlan) -> None:
    """Check everything that needs no engine. Raises `UnsupportedError`, `InputError` or `ArchiveError`."""
    archive = plan.source is not None and plan.source.archive is not None
    if plan.options.bake_requirements and archive:
        reason = "requirements.txt is in an archive, which only the host unpacks; give a folder as source_dir"
        check_served(_NAME, plan, {**_REFUSED, "bake_requirements": reason})
    check_served(_NAME, plan, _REFUSED if _has_gpus(plan) else {**_REFUSED, **_NO_GPUS})
    refuse(_NAME, old_tensorflow(plan) | too_old_image(plan))
    check_hosts(_NAME, plan)
    check_files(_NAME, plan)


def check_image(plan: JobPlan, image: Image, backend: str = _NAME) -> None:
    """Raise `UnsupportedError` for an option that this image cannot serve on that backend."""
    if image.is_ours and plan.source is None and not plan.options.container_entry_point:
        raise UnsupportedError(
            f"image_uri: {image.name} runs a script, and there is none: give entry_point, or container_entry_point for "
            "a program of the image's own"
        )
    if plan.options.bake_requirements and not image.is_ours:
        raise UnsupportedError(
            f"bake_requirements: {image.name} was not built by Herringbone, so it is unknown where its packages go; "
            "leave it out to have requirements.txt installed at the start"
        )
    if not image.is_ours and (names := watching(plan.options)):
        raise UnsupportedError(
            f"{names[0]}: {image.name} was not built by Herringbone, so nothing watches the job there; leave it out"
        )
    if not image.is_ours:
        # Another image may have AWS's library, but never Herringbone's additions to it.
        refuse(
            f"{backend}, with {image.name}, which was not built by Herringbone,", unserved_settings(plan, Library.AWS)
        )

    # The tree does not matter for what is refused.
    volume_mounts(image, plan, Path())


def check_engine(plan: JobPlan, engine: Engine) -> None:
    """Raise `UnsupportedError` for an option that a remote engine cannot serve."""
    again = next((name for name in ("max_retry_attempts", "min_instance_count") if getattr(plan.options, name)), None)
    if again is not None and not engine.is_local:
        raise UnsupportedError(
            f"{again}: the checkpoints of a host are in its container at {engine.address} and are "
            "removed with it; leave it out, or submit on the engine's machine"
        )
    piped = next((channel.name for channel in plan.channels if is_piped(channel, plan)), None)
    if piped is not None and (not engine.is_local or sys.platform != "linux"):
        raise UnsupportedError(
            f"channel {piped!r}: a FIFO of Pipe mode joins processes of one kernel, and containers of the engine at "
            f"{engine.address} have another; use input_mode='File'"
        )
    shared = plan.hyperparameters.get("model_dir") == json.dumps(SHARED_MODEL_DIR)
    if shared and len(plan.hosts) > 1 and not engine.is_local:
        raise UnsupportedError(
            f"model_dir: hosts of the engine at {engine.address} share no folder, so {SHARED_MODEL_DIR} would be "
            "another folder on each; give model_dir='/opt/ml/model', or submit on the engine's machine"
        )


def unused(plan: JobPlan) -> tuple[str, ...]:
    """Return the options of the plan that have no effect here."""
    has_image = bool(plan.arguments.image_uri)
    # `framework_version` chooses among our images, each of which has a single Python version.
    return unused_of(plan, ("framework_version", "py_version") if has_image else ("py_version",))


def _has_gpus(plan: JobPlan) -> bool:
    return any(host.instance_type == "local_gpu" for host in plan.hosts)
