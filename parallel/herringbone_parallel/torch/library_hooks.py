"""The hooks into torch, with a probe of each (`herringbone_contract.library_hooks`).

Each list is of one of our libraries for torch, which requires it when it starts. All its probes take milliseconds.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
import torch.distributed as dist
import torch.utils.checkpoint
from torch import nn

from herringbone_contract.library_hooks import Hook, exists, named_in, reached, resolved, takes
from herringbone_parallel.torch.step_hook import not_counting


class _Same(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, value: torch.Tensor) -> torch.Tensor:
        return value.clone()

    @staticmethod
    def backward(_: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


def _one() -> torch.Tensor:
    return torch.ones(1, device="cpu", requires_grad=True)


def _applied() -> object:
    return _Same.apply(_one())  # type: ignore[no-untyped-call]


def _functional() -> object:
    return torch.func.functional_call(nn.Identity(), {}, (_one(),))


def _transformed() -> object:
    return torch.func.grad(torch.sum)(_one())


def _zeroed() -> None:
    torch.optim.SGD.__new__(torch.optim.SGD).zero_grad()


def _scripted() -> object:
    return torch.jit.CompilationUnit("def same(x: int):\n    return x\n").same(1)


def _assigned() -> None:
    nn.Module().weight = nn.Parameter(torch.ones(1, device="cpu"))


def _backward() -> None:
    # A rehearsal records the losses of the script alone.
    with not_counting():
        _one().backward()  # type: ignore[no-untyped-call]


# Since torch 2.14 `checkpoint` has an inner function, which calls another generator.
_INNER = hasattr(torch.utils.checkpoint, "_checkpoint_impl")
GENERATOR = "_checkpoint_without_reentrant_generator" + ("_impl" if _INNER else "")
_CHECKPOINT = "torch.utils.checkpoint:" + ("_checkpoint_impl" if _INNER else "checkpoint")
_GRADIENTS = "keep the gradients of a call between partitions"
_TRANSFORMS = "refuse torch.func of a placed tensor"
_MEASURED = "measure a model"
_PARTS = "checkpoint each part of a split module on its rank"
_KEPT = "see what the code of a step keeps"
_ALL = "give code of every rank the parameters of all ranks"
_AROUND = "run microbatches in the modes that surround a step"
_NAMES = "run operations on placed tensors"

_CALL = Hook("torch.nn:Module.__call__", "run a module on its rank, or measure it", reached(lambda: nn.Identity()(1)))
_REGISTER = Hook("torch.nn:Module.register_parameter", "see a parameter before it has values", reached(_assigned))
_READ = (
    Hook("torch._C:_current_autograd_node", _MEASURED, exists),
    Hook("torch.autograd:_get_sequence_nr", _MEASURED, exists),
)
# `plan --measure`.
MEASURE = (
    _CALL,
    _REGISTER,
    *_READ,
    Hook("torch.optim:Optimizer.__init__", "see the script's optimizers", takes("params", "defaults")),
    Hook("torch.utils._python_dispatch:_disable_current_modes", _MEASURED, exists),
    Hook("torch.utils.data.dataloader:_BaseDataLoaderIter.__next__", "see the script's batches", exists),
    Hook("torch._C:_disabled_torch_dispatch_impl", _MEASURED, exists),
)
_STEPS = "record the steps of a rehearsal"
_DATA = "torch.utils.data.dataloader:_BaseDataLoaderIter."
_NEXT = named_in("torch.utils.data.dataloader:_SingleProcessDataLoaderIter._next_data")
# `rehearse`.
FINGERPRINTS = (
    _CALL,
    Hook("torch.autograd:backward", _STEPS, reached(_backward)),
    Hook(f"{_DATA}_next_index", _STEPS, _NEXT),
    Hook(f"{_DATA}__next__", _STEPS, exists),
    Hook("torch.amp:GradScaler.step", _STEPS, takes("optimizer")),
    Hook("torch.optim.swa_utils:AveragedModel.__init__", _STEPS, takes("model")),
    Hook("torch._C:_current_graph_task_id", _STEPS, exists),
    Hook("torch._C:_functorch.is_functorch_wrapped_tensor", _STEPS, exists),
)
# Version 1 of smdistributed.modelparallel.
MODEL_PARALLEL = (
    Hook("torch.autograd.function:Function.apply", _GRADIENTS, reached(_applied)),
    Hook("torch.jit:ScriptFunction.__call__", _GRADIENTS, reached(_scripted)),
    Hook(
        "torch._functorch.eager_transforms:_wrap_for_grad",
        _TRANSFORMS,
        reached(_transformed),
    ),
    Hook("torch._functorch.vmap:_add_batch_dim", _TRANSFORMS, reached(lambda: torch.vmap(torch.neg)(_one()))),
    Hook("torch.nn.utils.stateless:_reparametrize_module", _TRANSFORMS, reached(_functional)),
    Hook("torch.autograd:_make_grads", _GRADIENTS, reached(_backward)),
    _CALL,
    _REGISTER,
    *_READ,
    Hook("torch.nn:Module.__setattr__", _KEPT, reached(lambda: setattr(nn.Identity(), "kept", 1))),
    Hook("torch.nn:Module.register_buffer", _KEPT, reached(lambda: nn.Identity().register_buffer("kept", None))),
    Hook("torch.nn:Module.named_parameters", _ALL, reached(lambda: list(nn.Identity().parameters()))),
    Hook("torch.nn:Module._save_to_state_dict", _ALL, reached(lambda: nn.Identity().state_dict())),
    Hook("torch.nn:Module.__delattr__", _KEPT, reached(lambda: delattr(nn.Identity(), "training"))),
    Hook("torch.overrides:_get_current_function_mode_stack", _AROUND, exists),
    Hook("torch.overrides:_push_mode", _AROUND, exists),
    Hook("torch.overrides:_pop_mode", _AROUND, exists),
    Hook("torch.autograd.graph:disable_saved_tensors_hooks", _MEASURED, reached(_transformed)),
    Hook("torch.nn:Module.__init__", "put modules on partitions by hand", reached(nn.Identity)),
    Hook("torch.nn:Module.zero_grad", "refuse it inside a step", reached(lambda: nn.Identity().zero_grad())),
    # Without `__init__`, which imports torch's compiler: that takes seconds.
    Hook("torch.optim:Optimizer.zero_grad", "refuse it inside a step", reached(_zeroed)),
    Hook("torch.optim.optimizer:register_optimizer_step_pre_hook", "refuse a step inside a step", exists),
    Hook(f"torch.utils.checkpoint:{GENERATOR}", _PARTS, named_in(_CHECKPOINT)),
    Hook("torch.utils.checkpoint:CheckpointFunction", _PARTS, named_in(_CHECKPOINT)),
    Hook("torch._C:DisableTorchFunctionSubclass", _NAMES, exists),
    Hook("torch._C:_are_functorch_transforms_active", _NAMES, exists),
)


def _clips(place: str) -> bool:
    # Our function is behind torch's decorator. It asks this function of ours first.
    owner, name = resolved(place)
    ours = "herringbone_parallel.torch.model_parallel.clipping:_is_spread"
    return reached(lambda: getattr(owner, name)([], 1.0))(ours)


_NORM = "clip by the norm over all ranks"
# Once it has replaced them.
CLIPPING = (
    Hook("torch.nn.utils:clip_grad_norm_", _NORM, _clips),
    Hook("torch.nn.utils:get_total_norm", _NORM, _clips),
)
# While the compiler is loaded: it must not compile the library's own functions.
COMPILER = (Hook("torch._dynamo.trace_rules:add", "keep torch.compile out of its own functions", exists),)


class _Mesh:
    """A mesh that notes that torch has looked at it."""

    seen = False

    def __getattr__(self, name: str) -> Any:
        self.seen = True
        raise AttributeError(name)


def _default_counts(place: str) -> bool:
    owner, name = resolved(place)
    defaults, mesh = inspect.unwrap(getattr(owner, name)).__kwdefaults__, _Mesh()
    before, defaults["mesh"] = defaults["mesh"], mesh
    try:
        # A module without parameters: initial values would be drawn from the script's generator.
        getattr(owner, name)(nn.Identity())
    except AttributeError:
        return mesh.seen
    finally:
        defaults["mesh"] = before
    return False


_WRAPPER = "torch.distributed.algorithms._checkpoint.checkpoint_wrapper"


def _wrapped() -> object:
    owner, name = resolved(f"{_WRAPPER}:OffloadWrapper")
    return getattr(owner, name)(nn.Identity())(1)


def _is_decorated(place: str) -> bool:
    owner, name = resolved(place)
    return any(callable(cell.cell_contents) for cell in getattr(owner, name).__closure__ or ())


_ORDER = "compare the order of the ranks' calls"
_STRATEGY = ("module", "process_group", "sharding_strategy", "device_id", "device_mesh")
_FSDP = "torch.distributed.fsdp:FullyShardedDataParallel.__init__"
# Version 2 of smdistributed.modelparallel: for a job that names degrees, and for one that offloads activations.
SHARDING = (
    Hook("torch.distributed.fsdp:fully_shard", "give the script's model the job's mesh", _default_counts),
    Hook(_FSDP, "give the script's model the job's mesh", takes(*_STRATEGY)),
    Hook("torch.nn.utils.clip_grad:_get_total_norm", "join the norm of shards", _is_decorated),
)
_FSDP2 = "torch.distributed.fsdp._fully_shard._fsdp_collectives:"
# torch before 2.9 has no classes of its collectives, and the ranks' calls are not compared there.
HAS_COLLECTIVES = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 9)
_SECOND = "keep gathered parameters for second derivatives"
# `shard`.
PARAMETERS = (
    Hook("torch.distributed.tensor._utils:compute_local_shape_and_global_offset", "write into shards", exists),
    Hook("torch.autograd:_engine_run_backward", _SECOND, reached(lambda: torch.autograd.backward(_one()))),
    Hook("torch.distributed.fsdp._fully_shard._fsdp_param:FSDPParam.free_unsharded_param", _SECOND, exists),
    Hook("torch.distributed.fsdp._fully_shard._fsdp_param_group:FSDPParamGroup.post_backward", _SECOND, exists),
    Hook(
        "torch.distributed.fsdp._fully_shard._fsdp_state:FSDPState._root_post_backward_final_callback", _SECOND, exists
    ),
    *(
        (
            Hook(
                f"{_FSDP2}DefaultAllGather.__call__",
                _ORDER,
                takes("output_tensor", "input_tensor", "group", "async_op"),
            ),
            Hook(f"{_FSDP2}DefaultReduceScatter.allocate", _ORDER, exists),
        )
        if HAS_COLLECTIVES
        else ()
    ),
)
OFFLOADING = (
    Hook(f"{_WRAPPER}:OffloadWrapper.forward", "load activations back ahead of their use", reached(_wrapped)),
)


def _asked(place: str) -> bool:
    owner, name = resolved(place)
    asked: list[str] = []

    def method(_: Any, *__: Any) -> Any:
        asked.append(name)
        done: Any = torch.futures.Future()
        done.set_result([])
        return torch._C._distributed_c10d._create_work_from_future(done)  # type: ignore[attr-defined]

    group = type("_Asked", (owner,), {name: method})(0, 1)
    # Code in C++, which asks the group for its own `broadcast`.
    dist._broadcast_coalesced(group, [torch.ones(1, device="cpu")], 1, 0)  # type: ignore[attr-defined]
    return bool(asked)


_DDP = "torch.nn.parallel:DistributedDataParallel.__init__"
_ARGUMENTS = ("module", "device_ids", "output_device", "process_group", "bucket_cap_mb")
_C10D = "torch._C._distributed_c10d:"
# smdistributed.dataparallel.
DATA_PARALLEL = (
    Hook(_DDP, "choose buckets and compare the ranks' models", takes(*_ARGUMENTS)),
    Hook(f"{_C10D}ProcessGroup.broadcast", "sum gradients by its own engine", _asked),
    Hook(f"{_C10D}ProcessGroup._register_backend", "leave other collectives to gloo and NCCL", exists),
    Hook(f"{_C10D}ProcessGroup._set_default_backend", "leave other collectives to gloo and NCCL", exists),
    Hook("torch.distributed.algorithms.join:Join.notify_join_context", "train uneven batches", takes("joinable")),
    Hook("torch._C._dynamo.eval_frame:set_eval_frame", "keep torch.compile out of its own functions", exists),
)
