"""`DistributedOptimizer`: a torch optimizer that updates the parameters of this rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.groups import CommGroup
from herringbone_parallel.torch.model_parallel import optimizer_state, state
from herringbone_parallel.torch.model_parallel.between_steps import check_between_steps
from herringbone_parallel.torch.model_parallel.clipping import clip_for, serve_torch_clipping
from herringbone_parallel.torch.model_parallel.model import DistributedModel
from herringbone_parallel.torch.model_parallel.optimizer_state import LOSS_SCALE_KEY, MASTER_KEY, PARTIAL_KEY
from herringbone_parallel.torch.model_parallel.placement.delayed import with_values
from herringbone_parallel.torch.model_parallel.precision import loss_scale
from herringbone_parallel.torch.model_parallel.precision.half import half_type, widened
from herringbone_parallel.torch.model_parallel.precision.masters import MasterWeights
from herringbone_parallel.torch.model_parallel.precision.update import PreciseUpdate
from herringbone_parallel.torch.model_parallel.shards.divide import divided_updates
from herringbone_parallel.torch.model_parallel.shards.layout import Range
from herringbone_parallel.torch.model_parallel.shards.states import DividedStates
from herringbone_parallel.torch.model_parallel.shards.updates import divide_states
from herringbone_parallel.torch.model_parallel.tensor.whole import parts_of_entries, whole_entries


class DistributedOptimizer(torch.optim.Optimizer):
    """Wrap any torch optimizer. Learning-rate schedulers accept the wrapper in place of the optimizer.

        optimizer = smp.DistributedOptimizer(torch.optim.AdamW(model.parameters(), lr=1e-3))

    The optimizer may be made before or after `DistributedModel`, over parameters of that model. Each rank updates the
    parameters it owns. Optimizers that take one number from all parameters are refused by the names of their classes.

    With `static_loss_scale` or `dynamic_loss_scale`, `model.backward` multiplies the loss by a scale, and `step`
    divides the gradients by it. If a gradient of any rank is then infinite or undefined, no rank updates anything, and
    `overflow` is true. `dynamic_loss_args` are the fields of `DynamicScale`. In the job's `fp16` and `bf16` the wrapped
    optimizer updates float32 copies of the parameters, which its `param_groups` have; `bf16` scales no loss.

    With `sharded_data_parallel_degree`, `shard_optimizer_state` or `tensor_parallel_degree` the optimizer's step sees a
    part of each parameter. Optimizers of torch that update each element by itself are known. For another one that does
    so, pass `elementwise=True`; without it, the optimizer is refused.
    Raises `ParallelError` for arguments that contradict each other. Source: SMP v1, `smp.DistributedOptimizer`.
    """

    # A fused optimizer reads the scaler's result from itself, but the scaler stores it on this wrapper.
    _step_supports_amp_scaling = False

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        static_loss_scale: float | None = 1.0,
        dynamic_loss_scale: bool = False,
        dynamic_loss_args: Mapping[str, Any] | None = None,
        *,
        elementwise: bool = False,
        **others: Any,
    ) -> None:
        # The base class is not initialised: param groups and state are those of the wrapped optimizer.
        self.optimizer = optimizer
        library = state.get()
        if library.model is None:
            raise ParallelError("make the smp.DistributedModel before the smp.DistributedOptimizer")
        assert isinstance(library.model, DistributedModel)
        self._model = library.model
        # SMP v1's documentation gives the fields as arguments of their own; its examples give a dict of them.
        fields = {**(dynamic_loss_args or {}), **others}
        precision = library.settings.precision
        scale = loss_scale.parse(precision, static_loss_scale, dynamic_loss_scale, fields)
        library.scale_loss(scale)
        masters = MasterWeights() if scale is not None or half_type(precision) is not None else None
        self._update = PreciseUpdate(optimizer, masters, scale, _on_any_rank)
        if self._update.active:
            serve_torch_clipping()
        # Whether the last `step` was skipped on all ranks, because a gradient of one was infinite or undefined.
        self.overflow = False
        # The names of each group in the whole model. Parameters of other ranks leave the groups, but not this list.
        self._groups = [self._names_of(group) for group in optimizer.param_groups]
        # The state that was loaded before the partition; kept until the parameters of this rank are known.
        self._pending: Mapping[str, Any] | None = None
        # Divides the updates over replicas whose parameters are whole; None where each replica makes all of them.
        self._division = divided_updates(library, optimizer, elementwise=elementwise)
        library.optimizers.append(self)
        self._model.register_post_partition_hook(lambda _: self._keep_local())

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Update this rank's parameters. Raises `ParallelError` inside a step, as `zero_grad` does."""
        check_between_steps("optimizer.step()")
        if closure is not None:
            raise ParallelError("optimizer.step(closure) is not supported: the closure would have to run on every rank")
        self._model.check_reduced()
        self._divide_updates()
        # Where replicas divide the updates, each makes its part and hands the results to the others.
        update = self._step if self._division is None else partial(self._division.run, self._step)
        if not self._update.active:
            self._clip()
            return update()
        self.overflow = not self.unscale()
        result = None
        if not self.overflow:
            self._clip()
            result = self._update.run(update)
        self._update.end(state.get().backwards, overflow=self.overflow)
        return result

    def _step(self) -> Any:
        result = self.optimizer.step()
        if self._divided_states() is not None:
            # An update without elements makes a state without any, whose count of steps a checkpoint must not take.
            for parameter in [parameter for parameter in self.optimizer.state if not parameter.numel()]:
                del self.optimizer.state[parameter]
        return result

    def _clip(self) -> None:
        """Clip the gradients by their global norm, as `sdp_gradient_clipping` asks where parameters are sharded."""
        most = state.get().settings.sdp_gradient_clipping
        if self._model.shards is not None and most > 0:
            parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
            # Of this optimizer alone: the gradients of another one may go on to add up, and must stay scaled.
            clip_for([self], parameters, most)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients of this rank's parameters."""
        check_between_steps("optimizer.zero_grad()")
        self.optimizer.zero_grad(set_to_none)
        self._update.forget(state.get().backwards)
        if self._update.masters is not None:
            self._update.masters.drop_gradients(set_to_none=set_to_none)

    @property
    def loss_scale(self) -> float:
        """The number by which `model.backward` multiplies the loss."""
        return 1.0 if self._update.scale is None else self._update.scale.value

    @property
    def scales(self) -> bool:
        """Say whether this optimizer scales the loss, or updates copies of the parameters in float32."""
        return self._update.active

    def unscale(self) -> bool:
        """Divide the gradients by the scale, once; return whether those of all ranks are finite.

        `step` and clipping call it. Every rank must call it, too.
        """
        return self._update.unscale(state.get().backwards)

    def trained(self, parameter: torch.Tensor) -> torch.Tensor:
        """Return the tensor that the wrapped optimizer updates for a parameter: a float32 copy, or the parameter."""
        masters = self._update.masters
        return parameter if masters is None else masters.trained(parameter)

    def parameter_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the model's parameter for a float32 copy that `trained` returns; any other tensor as it is."""
        masters = self._update.masters
        return tensor if masters is None else masters.parameter_of(tensor)

    def clip_master_grads(self, max_norm: float, norm_type: float = 2.0) -> float:
        """Scale the unscaled gradients down to a global norm of at most `max_norm`, and return the norm before that.

            norm = optimizer.clip_master_grads(1.0)
            optimizer.step()

        Every rank calls it. It returns -1 when a gradient of a rank is infinite or undefined: `step` is then skipped.
        Source: the scripts of AWS's later examples, with the result that Apex documents.
        """
        check_between_steps("optimizer.clip_master_grads()")
        if not self.unscale():
            return -1.0
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        return clip_for([self], parameters, max_norm, norm_type).item()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of all parameters, on the CPU, gathered from the pipeline; every rank of it must call.

        A plain torch optimizer over the whole model's parameters, in the same groups and order, loads it. Where a
        float32 copy has digits that its 16-bit parameter lacks, the parameter's entry has `master_weight`.
        """
        library = state.get()
        named = self._whole("optimizer.state_dict()")
        if self._model.shared is not None:
            named = {**named, "state": whole_entries(named["state"], self._model.shared)}
        if self._model.partitioned and library.settings.partitions > 1:
            parts: list[Any] = [None] * library.settings.partitions
            dist.all_gather_object(parts, optimizer_state.on_cpu(named), group=library.groups[CommGroup.PP_GROUP])
            named = optimizer_state.join(parts)
        return {**optimizer_state.to_numbered(named, self._groups), **self._scale_entry()}

    def local_state_dict(self, gather_if_shard: bool = True) -> dict[str, Any]:  # noqa: ARG002  always gathered
        """Return the state of this rank's parameters, by their names in the model.

        With sharded states, whole ones on the CPU; every rank that shares them must call.
        """
        is_partial = state.get().settings.partitions > 1 or self._model.shared is not None
        named = self._whole("optimizer.local_state_dict()")
        return {**named, **self._scale_entry(), PARTIAL_KEY: is_partial}

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
        if LOSS_SCALE_KEY in state_dict:
            self._update.load_scale(state_dict[LOSS_SCALE_KEY], state.get().backwards)
        self._pending = named["state"]
        if self._model.partitioned:
            self._load_pending()

    def own_state(self) -> tuple[dict[str, Any], Callable[[str], Range | None]]:
        """Return the named form of what this rank has, and a function: which elements of a parameter's states it has.

        The function returns None for a parameter whose states are whole, or cut by a tensor group only.
        """
        states = self._divided_states()
        return {**self._named(), **self._scale_entry()}, lambda name: None if states is None else states.range_of(name)

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
        masters, shards, shared = self._update.masters, self._model.shards, self._model.shared
        states = self.optimizer.state
        if shared is not None:
            # The optimizer may have got its states before the tensor group shared the parameters.
            for name, parameter in self._model.local_named_parameters():
                if parameter in states:
                    states[parameter] = parts_of_entries({name: states[parameter]}, shared)[name]
        if masters is not None and shards is not None:
            # Before the copies are made, which are then of this rank's elements alone.
            shards.split()
            # Another optimizer may have split them when this one was no part of the library yet.
            divide_states(shards.states, list(self._model.local_named_parameters()), self.optimizer)
        local = dict(self._model.local_named_parameters())
        # Copies of this optimizer's parameters alone: another one has its own copies of the others.
        names_of_all = {name for names in self._groups for name in names}
        trained = {
            name: parameter if masters is None or name not in names_of_all else masters.keep(parameter)
            for name, parameter in local.items()
        }
        if shards is not None:
            for name, copy in trained.items():
                shards.adopt(copy, local[name])
        for group, names in zip(self.optimizer.param_groups, self._groups, strict=True):
            group["params"] = [trained[name] for name in names if name in local]
            # torch's record of names must have as many entries as there are parameters. `_groups` has all names.
            group.pop("param_names", None)
        kept = {id(parameter) for parameter in trained.values()}
        for name, parameter in local.items():
            if id(parameter) not in kept and parameter in states:
                states[trained[name]] = widened(states[parameter], parameter.dtype)
        for dropped in [tensor for tensor in states if id(tensor) not in kept]:
            del states[dropped]
        self._load_pending()

    def _local_names(self) -> list[str]:
        """Return the names of the wrapped optimizer's parameters, in its order."""
        name_of = {id(self.trained(parameter)): name for name, parameter in self._model.module.named_parameters()}
        return [name_of[id(parameter)] for group in self.optimizer.param_groups for parameter in group["params"]]

    def _named(self) -> dict[str, Any]:
        numbered = self.optimizer.state_dict()
        for group in numbered["param_groups"]:
            group.pop("param_names", None)
        named = optimizer_state.to_named(numbered, dict(enumerate(self._local_names())), self._groups)
        if self._pending is not None:
            return {**named, "state": dict(self._pending)}
        if self._update.masters is not None and self._model.partitioned:
            self._update.masters.refresh()
            for name, parameter in self._model.local_named_parameters():
                # Ranks that share a parameter must have the same entries, whatever the digits of their elements.
                shared = self._model.shared is not None or self._divided_states() is not None
                digits = self._update.masters.digits(parameter, always=shared)
                if digits is not None:
                    named["state"][name] = {**named["state"].get(name, {}), MASTER_KEY: digits}
        return named

    def _scale_entry(self) -> dict[str, Any]:
        scale = self._update.scale_state()
        return {} if scale is None else {LOSS_SCALE_KEY: scale}

    def _whole(self, call: str) -> dict[str, Any]:
        """Return the named form with whole states."""
        named, states = self._named(), self._divided_states()
        # What was loaded before the partition is whole.
        if states is None or self._pending is not None:
            return named
        return {**named, "state": states.join(named["state"], call)}

    def _divided_states(self) -> DividedStates | None:
        """Return what divides this optimizer's states over ranks; None where they are whole."""
        if self._division is not None:
            return self._division.states
        return None if self._model.shards is None else self._model.shards.states

    def _divide_updates(self) -> None:
        """Divide the updates of parameters that this optimizer has got since the last call."""
        if self._division is not None:
            parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
            self._division.add(list(zip(self._local_names(), parameters, strict=True)), self.optimizer)

    def _load_pending(self) -> None:
        entries, self._pending = self._pending, None
        if entries is None:
            return
        if self._model.shared is not None:
            entries = parts_of_entries(entries, self._model.shared)
        self._divide_updates()
        if (states := self._divided_states()) is not None:
            # Replicas that divide updates have whole copies of 16-bit parameters.
            whole = (MASTER_KEY,) if self._model.shards is None else ()
            entries = states.parts_of(entries, whole)
        masters, local = self._update.masters, dict(self._model.local_named_parameters())
        numbered = self.optimizer.state_dict()
        numbered["state"] = {}
        for number, name in enumerate(self._local_names()):
            # Without the copy: torch's optimizers take any entry for the state that they have made at a first step.
            entry = {key: value for key, value in entries.get(name, {}).items() if key != MASTER_KEY}
            if entry:
                numbered["state"][number] = optimizer_state.copied(entry)
            if masters is not None and MASTER_KEY in entries.get(name, {}):
                masters.load(local[name], entries[name][MASTER_KEY])
        self.optimizer.load_state_dict(numbered)


def _on_any_rank(flag: bool) -> bool:
    """Say whether the flag holds on any rank of the job; every rank must call it."""
    library = state.get()
    found = torch.tensor(float(flag), device=library.device)
    dist.all_reduce(found, dist.ReduceOp.MAX, group=library.groups[CommGroup.WORLD])
    return bool(found)
