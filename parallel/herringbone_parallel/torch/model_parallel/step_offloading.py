"""The offloading of a step's activations to host memory, in jobs that ask for it."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from herringbone_parallel.torch.model_parallel import state

if TYPE_CHECKING:
    from herringbone_parallel.torch.offloading.tasks import TaskOffloading


def of(library: state.State) -> TaskOffloading | None:
    """Return what keeps this step's activations in host memory; None if the job does not offload them."""
    settings = library.settings
    if not settings.offload_activations:
        return None
    # Only jobs that ask for it load these modules.
    from herringbone_parallel.torch.offloading import tasks

    return tasks.of_step(
        rank=library.pp_rank,
        partitions=settings.partitions,
        microbatches=settings.microbatches,
        pipeline=settings.pipeline,
        active=settings.active_microbatches,
        horizon=settings.activation_loading_horizon,
        device=library.device,
    )


def check(library: state.State) -> None:
    """Warn after the first backward if the job offloads activations, and this rank has none that can move."""
    # A step without gradients saves nothing.
    if library.offloading is None or library.offloading_checked or not library.backwards:
        return
    library.offloading_checked = True
    if not library.offloading.saved_bytes:
        warnings.warn(
            "offload_activations moves the inputs of checkpointed modules, and this rank has none: call"
            " smp.set_activation_checkpointing(module)",
            stacklevel=5,
        )
