"""`smp.state`: the job's settings under AWS's names, for scripts and libraries that look them up."""

from __future__ import annotations

from typing import Any

import msgspec

from herringbone_parallel.torch.model_parallel import state

# The fields of the resolved settings whose parameters have other names.
_RENAMED = ("tensor", "sharded", "precision", "placement")


class Settings:
    """The parameters of the job's `smdistributed.modelparallel`, each under its name in the `distribution` dict.

    smp.state.cfg.fp16, smp.state.cfg.prescaled_batch, smp.state.cfg.pipeline_parallel_degree

    A parameter that the job leaves out has its default.
    """

    def __getattr__(self, name: str) -> Any:
        settings = state.get().settings
        values = {key: value for key, value in msgspec.structs.asdict(settings).items() if key not in _RENAMED} | {
            "pipeline_parallel_degree": settings.partitions,
            "tensor_parallel_degree": settings.tensor,
            "sharded_data_parallel_degree": settings.sharded,
            "placement_strategy": settings.placement,
            "fp16": settings.precision == "fp16",
            "bf16": settings.precision == "bf16",
        }
        try:
            return values[name]
        except KeyError:
            raise AttributeError(
                f"smp.state.cfg has no {name!r}; it has the parameters of smdistributed.modelparallel:"
                f" {', '.join(sorted(values))}"
            ) from None


class ModuleManager:
    """The part of AWS's module manager that Hugging Face's transformers reads.

    `translate_functions` has pairs of functions that turn state dicts of AWS's own layers into those of Hugging Face,
    and back. Parameters have the names of the user's own model here, so there are none.
    """

    translate_functions: tuple[Any, ...] = ()


class PublicState:
    """The state that scripts see as `smp.state`."""

    cfg = Settings()
    module_manager = ModuleManager()

    @property
    def initialized(self) -> bool:
        """Say whether `smp.init` has run."""
        return state.is_initialized()

    @property
    def model(self) -> Any:
        """The script's `DistributedModel`, None before there is one."""
        return state.get().model

    @property
    def optimizer(self) -> Any:
        """The script's newest `DistributedOptimizer`, None before there is one."""
        optimizers = state.get().optimizers
        return optimizers[-1] if optimizers else None

    def __repr__(self) -> str:
        return f"<smp.state of rank {state.ranks.rank()}>" if self.initialized else "<smp.state before smp.init()>"
