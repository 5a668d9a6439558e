"""`DistributedOptimizer`: a torch optimizer that updates the parameters of this rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.groups import CommGroup
from herringbone_parallel.torch.model_parallel import optimizer_state, state
from herringbone_parallel.torch.model_parallel.between_steps import check_between_steps
from herringbone_parallel.torch.model_parallel.clipping import clip_grad_norm_
from herringbone_parallel.torch.model_parallel.model import DistributedModel
from herringbone_parallel.torch.model_parallel.optimizer_state import PARTIAL_KEY
from herringbone_parallel.torch.model_parallel.placement.delayed import with_values
from herringbone_parallel.torch.model_parallel.shards.divide import divided_updates
from herringbone_parallel.torch.model_parallel.shards.states import DividedStates
from herringbone_parallel.torch.model_parallel.tensor.whole import parts_of_entries, whole_entries


class DistributedOptimizer(torch.optim.Optimizer):
    """Wrap any torch optimizer. Learning-rate schedulers accept the wrapper in place of the optimizer.

        optimizer = smp.DistributedOptimizer(torch.optim.AdamW(model.parameters(), lr=1e-3))

    The optimizer may be made before or after `DistributedModel`, over parameters of that model. Each rank updates the
    parameters it owns. Optimizers that look at all parameters at once (a global norm) see those of this rank only.
    Use `smp.amp.GradScaler` to scale the loss: a `static_loss_scale` other than 1, `dynamic_loss_scale` and its
    arguments raise `ParallelError`. Source: SMP v1, `smp.DistributedOptimizer`.
    """

    # A fused optimizer reads the scaler's result from itself, but the scaler stores it on this wrapper.
    _step_supports_amp_scaling = False

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        static_loss_scale: float = 1.0,
        dynamic_loss_scale: bool = False,
        **dynamic_loss_args: Any,
    ) -> None:
        if static_loss_scale != 1.0 or dynamic_loss_scale or dynamic_loss_args:
            raise ParallelError(
                "DistributedOptimizer does not scale the loss: scale it with smp.amp.GradScaler, or train in bfloat16"
            )
        # The base class is not initialised: param groups and state are those of the wrapped optimizer.
        self.optimizer = optimizer
        library = state.get()
        if library.model is None:
            raise ParallelError("make the smp.DistributedModel before the smp.DistributedOptimizer")
        assert isinstance(library.model, DistributedModel)
        self._model = library.model
        # The names of each group in the whole model. Parameters of other ranks leave the groups, but not this list.
        self._groups = [self._names_of(group) for group in optimizer.param_groups]
        # The state that was loaded before the partition; kept until the parameters of this rank are known.
        self._pending: Mapping[str, Any] | None = None
        # Divides the updates over replicas whose parameters are whole; None where each replica makes all of them.
        self._updates = divided_updates(library)
        library.optimizers.append(self)
        self._model.register_post_partition_hook(lambda _: self._keep_local())

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Update this rank's parameters. Raises `ParallelError` inside a step, as `zero_grad` does."""
        check_between_steps("optimizer.step()")
        if closure is not None:
            raise ParallelError("optimizer.step(closure) is not supported: the closure would have to run on every rank")
        self._clip()
        if self._updates is None:
            return self.optimizer.step()
        self._divide_updates()
        return self._updates.run(self.optimizer.step)

    def _clip(self) -> None:
        """Clip the gradients by their global norm, as `sdp_gradient_clipping` asks where parameters are sharded."""
        most = state.get().settings.sdp_gradient_clipping
        if self._model.shards is not None and most > 0:
            clip_grad_norm_([p for group in self.optimizer.param_groups for p in group["params"]], most)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients of this rank's parameters."""
        check_between_steps("optimizer.zero_grad()")
        self.optimizer.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of all parameters, on the CPU, gathered from the pipeline; every rank of it must call.

        A plain torch optimizer over the whole model's parameters, in the same groups and order, loads it.
        """
        library = state.get()
        named = self._whole("optimizer.state_dict()")
        if self._model.shared is not None:
            named = {**named, "state": whole_entries(named["state"], self._model.shared)}
        if self._model.partitioned and library.settings.partitions > 1:
            parts: list[Any] = [None] * library.settings.partitions
            dist.all_gather_object(parts, optimizer_state.on_cpu(named), group=library.groups[CommGroup.PP_GROUP])
            named = optimizer_state.join(parts)
        return optimizer_state.to_numbered(named, self._groups)

    def local_state_dict(self) -> dict[str, Any]:
        """Return the state of this rank's parameters, by their names in the model.

        With sharded states, whole ones on the CPU; every rank that shares them must call.
        """
        is_partial = state.get().settings.partitions > 1 or self._model.shared is not None
        return {**self._whole("optimizer.local_state_dict()"), PARTIAL_KEY: is_partial}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load a state that `state_dict`, `local_state_dict` or a plain optimizer over the same parameters returned.

        Each rank takes the entries of its parameters. Options such as the learning rate change at once; before the
        partition, the entries are loaded as soon as the parameters of this rank are known. Raises `ParallelError` for
        a state of other parameters.
        """
        named = optimizer_state.read(state_dict, self._groups)
        for group, saved in zip(self.optimizer.param_groups, named["param_groups"], strict=True):
            options = {key: value for key, value in saved.items() if key not in ("params", "param_names")}
            group.update(optimizer_state.copied(options))
        self._pending = named["state"]
        if self._model.partitioned:
            self._load_pending()

    def check(self, state_dict: Mapping[str, Any]) -> None:
        """Raise the `ParallelError` that `load_state_dict` would raise; change nothing."""
        optimizer_state.read(state_dict, self._groups)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters of the distributed model."""
        parameters = param_group["params"]
        added = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        names = self._names_of({"params": added})
        self.optimizer.add_param_group({**param_group, "params": added})
        self._groups.append(names)
        if self._model.partitioned:
            self._keep_local()

    def __getattr__(self, name: str) -> Any:
        # Asked for before `__init__` has set it, as when an instance is unpickled: the lookup below would never end.
        if name == "optimizer":
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    def __repr__(self) -> str:
        return f"DistributedOptimizer({self.optimizer!r})"

    def _names_of(self, group: Mapping[str, Any]) -> list[str]:
        name_of = {id(parameter): name for name, parameter in self._model.module.named_parameters()}
        parameters = [with_values(parameter) for parameter in group["params"]]
        unknown = [parameter for parameter in parameters if id(parameter) not in name_of]
        if unknown:
            raise ParallelError(
                f"the optimizer has a parameter of shape {list(unknown[0].shape)} that the DistributedModel has not."
                " Make the module that it belongs to a part of the model; and make the DistributedOptimizer before the"
                " first step, or the inner optimizer over the distributed model's parameters()"
            )
        return [name_of[id(parameter)] for parameter in parameters]

    def _keep_local(self) -> None:
        """Drop the parameters of other ranks and their state, which frees their memory."""
        local = dict(self._model.local_named_parameters())
        for group, names in zip(self.optimizer.param_groups, self._groups, strict=True):
            group["params"] = [local[name] for name in names if name in local]
            # torch's record of names must have as many entries as there are parameters. `_groups` has all names.
            group.pop("param_names", None)
        kept = {id(parameter) for parameter in local.values()}
        for parameter in [parameter for parameter in self.optimizer.state if id(parameter) not in kept]:
            del self.optimizer.state[parameter]
        self._load_pending()

    def _local_names(self) -> list[str]:
        """Return the names of the wrapped optimizer's parameters, in its order."""
        name_of = {id(parameter): name for name, parameter in self._model.module.named_parameters()}
        return [name_of[id(parameter)] for group in self.optimizer.param_groups for parameter in group["params"]]

    def _named(self) -> dict[str, Any]:
        numbered = self.optimizer.state_dict()
        for group in numbered["param_groups"]:
            group.pop("param_names", None)
        named = optimizer_state.to_named(numbered, dict(enumerate(self._local_names())), self._groups)
        return named if self._pending is None else {**named, "state": dict(self._pending)}

    def _whole(self, call: str) -> dict[str, Any]:
        """Return the named form with whole states."""
        named, states = self._named(), self._divided_states()
        # What was loaded before the partition is whole.
        if states is None or self._pending is not None:
            return named
        return {**named, "state": states.join(named["state"], call)}

    def _divided_states(self) -> DividedStates | None:
        """Return what divides this optimizer's states over ranks; None where they are whole."""
        if self._updates is not None:
            return self._updates.states
        return None if self._model.shards is None else self._model.shards.states

    def _divide_updates(self) -> None:
        """Divide the updates of parameters that this optimizer has got since the last call."""
        if self._updates is not None:
            parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
            self._updates.add(list(zip(self._local_names(), parameters, strict=True)), self.optimizer)

    def _load_pending(self) -> None:
        entries, self._pending = self._pending, None
        if entries is None:
            return
        if self._model.shared is not None:
            entries = parts_of_entries(entries, self._model.shared)
        self._divide_updates()
        if (states := self._divided_states()) is not None:
            entries = states.parts_of(entries)
        numbered = self.optimizer.state_dict()
        numbered["state"] = {
            number: optimizer_state.copied(entries[name])
            for number, name in enumerate(self._local_names())
            if name in entries
        }
        self.optimizer.load_state_dict(numbered)
