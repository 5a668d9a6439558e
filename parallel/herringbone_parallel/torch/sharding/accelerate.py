"""Complete accelerate for a job whose keys shard the model: what accelerate itself does on some devices only.

The launcher sets accelerate's variables ([torch_distributed]). accelerate 1.15 then shards a model by torch's
`fully_shard` on GPUs and other accelerators. On CPUs it refuses, although all of its steps work there, because one
list of device types does not name them. A rank calls `complete` after its script has imported accelerate.
"""

from __future__ import annotations

from typing import Any


def complete() -> None:
    """Let accelerate shard models on CPUs.

    Called once, after the import of `accelerate.accelerator`.
    """
    from accelerate import state

    initialise = state.AcceleratorState.__init__

    def initialised(self: Any, *args: Any, fsdp_plugin: Any = None, **kwargs: Any) -> None:
        initialise(self, *args, fsdp_plugin=fsdp_plugin, **kwargs)
        if fsdp_plugin is not None and self.distributed_type == state.DistributedType.MULTI_CPU:
            # As accelerate does for the devices in its list.
            self.distributed_type = state.DistributedType.FSDP
            if self.mixed_precision != "no":
                fsdp_plugin.set_mixed_precision(self.mixed_precision)
            self.fsdp_plugin = fsdp_plugin
            state.PartialState._shared_state["distributed_type"] = self.distributed_type

    state.AcceleratorState.__init__ = initialised
