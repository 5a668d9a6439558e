"""Answer as a machine with GPUs would, without one: tensors of GPUs are ordinary tensors with a mark.

    with gpus(recorder, count=8):
        model.cuda()                # `device` of its parameters is cuda:0

The recorder marks allocations: what a script puts on a device, and what is computed from that. torch's automatic casts
follow the rules of GPUs, where some functions compute in float32.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch.amp.autocast_mode import autocast
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from herringbone_parallel.torch.measure.recorder import Recorder
from herringbone_parallel.torch.measure.replacing import nothing, replaced

_DEVICE = torch.device("cuda", 0)
_CPU = torch.device("cpu")
# Typed `Any`, because torch's stubs do not declare that these attributes have `__get__`.
_attribute: Any = torch.Tensor
# Functions that automatic casts on GPUs compute in float32. Source: torch's documentation of torch.amp.
_IN_FLOAT32 = {
    functional.layer_norm, functional.group_norm, functional.softmax, functional.log_softmax, functional.cross_entropy,
    functional.nll_loss, functional.mse_loss, functional.l1_loss, functional.smooth_l1_loss, functional.kl_div,
    functional.cosine_similarity, functional.softplus, torch.softmax, torch.log_softmax, torch.Tensor.softmax,
    torch.Tensor.log_softmax, torch.exp, torch.log, torch.pow, torch.sum, torch.Tensor.exp, torch.Tensor.log,
    torch.Tensor.pow, torch.Tensor.sum, torch.cumsum, torch.norm, torch.Tensor.norm, torch.rsqrt, torch.Tensor.rsqrt,
    torch.layer_norm, torch.cdist, torch.prod,
}  # fmt: skip


@contextmanager
def gpus(recorder: Recorder, count: int) -> Iterator[None]:
    """Let the script find `count` GPUs in the `with` block."""
    # Optimizers import it, and it would take the stand-ins for torch's own functions.
    importlib.import_module("torch._dynamo")
    create = autocast.__init__

    def created(self: Any, device_type: str, dtype: Any = None, *args: Any, **kwargs: Any) -> None:
        if device_type == "cuda":
            # Operations have CPU tensors, so the casts are those of the CPU.
            device_type, dtype = "cpu", dtype or torch.float16
        create(self, device_type, dtype, *args, **kwargs)

    class Generator(torch.Generator):
        def __new__(cls, device: Any = None) -> Any:  # noqa: ARG004  torch's argument
            return super().__new__(cls)

    attention = functional.scaled_dot_product_attention

    def without_dropout(*args: Any, dropout_p: float = 0.0, **kwargs: Any) -> torch.Tensor:  # noqa: ARG001
        # With dropout, a CPU would keep the scores of all pairs of positions, which kernels of GPUs do not.
        return attention(*args[:4], **kwargs)

    with ExitStack() as stack:
        stack.enter_context(replaced(functional, scaled_dot_product_attention=without_dropout))
        stack.enter_context(replaced(autocast, __init__=created))
        stack.enter_context(replaced(torch, Generator=Generator))
        # It would warn that this torch has no cuDNN.
        stack.enter_context(replaced(torch.backends.cudnn, is_acceptable=lambda _: False))
        stack.enter_context(replaced(torch.cuda, **_functions(count)))
        stack.enter_context(replaced(torch.accelerator, **_accelerator(count)))
        recorder.companions.append(_Devices(recorder))
        stack.enter_context(recorder.companions[-1])
        yield


class _Devices(TorchFunctionMode):
    """Takes the devices out of calls of torch, and tells the recorder about them."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        recorder.has_devices = True
        self._recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        answer = _ANSWERS.get(func)
        if answer is not None:
            return answer(self._on_device(args[0]))
        if func in _MOVES:
            return self._move(func, args, kwargs)
        if func in _NOTHING:
            return args[0]
        if func in _IN_FLOAT32 and torch.is_autocast_enabled("cpu"):
            args = tuple(_widened(value) for value in args)
        device = kwargs.get("device")
        if device is None:
            return func(*args, **kwargs)
        kwargs["device"] = _CPU if _is_gpu(device) else device
        with self._placing(_is_gpu(device)):
            return func(*args, **kwargs)

    def _move(self, func: Any, args: Any, kwargs: Any) -> Any:
        tensor, rest = args[0], list(args[1:])
        target: Any = {torch.Tensor.cuda: _DEVICE, torch.Tensor.cpu: _CPU}.get(func)
        if target is None:
            places = [value for value in (*rest, kwargs.pop("device", None)) if _is_device(value)]
            like = next((value for value in rest if isinstance(value, torch.Tensor)), None)
            rest = [value for value in rest if not _is_device(value)]
            if like is not None:
                places, rest = [_DEVICE if self._on_device(like) else _CPU], [like.dtype, *rest[1:]]
            target = places[0] if places else None
        else:
            rest, kwargs = [], {}
        on_device = self._on_device(tensor)
        wanted = on_device if target is None else _is_gpu(target)
        with self._placing(wanted):
            kwargs.pop("non_blocking", None)
            moved = wanted != on_device
            rest = [value for value in rest if not isinstance(value, bool)]
            if not rest and not kwargs:
                return tensor.clone() if moved else tensor
            if moved:
                kwargs["copy"] = True
            return torch.Tensor.to(tensor, *rest, **kwargs)

    def _on_device(self, tensor: Any) -> bool:
        allocation = self._recorder.allocation(tensor)
        return allocation is not None and allocation.on_device

    @contextmanager
    def _placing(self, on_device: bool) -> Iterator[None]:
        before, self._recorder.placing = self._recorder.placing, on_device
        try:
            yield
        finally:
            self._recorder.placing = before


_ANSWERS: dict[Any, Any] = {
    _attribute.device.__get__: lambda on_device: _DEVICE if on_device else _CPU,
    _attribute.is_cuda.__get__: lambda on_device: on_device,
    torch.Tensor.get_device: lambda on_device: 0 if on_device else -1,
    torch.Tensor.is_pinned: lambda _: False,
}
_MOVES = {torch.Tensor.to, torch.Tensor.cuda, torch.Tensor.cpu}
_NOTHING = {torch.Tensor.pin_memory, torch.Tensor.record_stream}


def _is_device(value: Any) -> bool:
    return isinstance(value, (str, torch.device)) or (isinstance(value, int) and not isinstance(value, bool))


def _is_gpu(device: Any) -> bool:
    return isinstance(device, int) or torch.device(device).type == "cuda"


def _widened(value: Any) -> Any:
    narrow = isinstance(value, torch.Tensor) and value.dtype in (torch.float16, torch.bfloat16)
    return value.float() if narrow else value


class _Idle:
    """A stream or an event: nothing runs on it."""

    cuda_stream = device_index = 0
    device = _DEVICE

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        pass

    def __enter__(self) -> _Idle:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def query(self) -> bool:
        """Say that all is done."""
        return True

    def is_capturing(self) -> bool:
        """Say that no graph is recorded."""
        return False

    def elapsed_time(self, _end: Any) -> float:
        """Return a time that can be divided by."""
        return 1.0

    record = synchronize = wait = wait_stream = wait_event = nothing

    def record_event(self, event: Any = None) -> Any:
        """Return an event."""
        return event or _Idle()


def _functions(count: int) -> dict[str, Any]:
    properties = SimpleNamespace(
        name="measured", major=8, minor=0, total_memory=1 << 40, multi_processor_count=108, warp_size=32,
        gcnArchName="",
    )  # fmt: skip
    silent = (
        "_lazy_init", "init", "set_device", "synchronize", "empty_cache", "manual_seed", "manual_seed_all", "seed",
        "seed_all", "set_rng_state", "set_rng_state_all", "reset_peak_memory_stats", "reset_max_memory_allocated",
        "set_per_process_memory_fraction", "ipc_collect", "set_stream", "reset_accumulated_memory_stats",
    )  # fmt: skip
    zero = (
        "current_device", "memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved",
        "utilization", "memory_usage",
    )  # fmt: skip
    return {
        **dict.fromkeys(silent, nothing),
        **dict.fromkeys(zero, lambda *_args, **_kwargs: 0),
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "is_current_stream_capturing": lambda: False,
        "device_count": lambda: count,
        "get_device_name": lambda *_: properties.name,
        "get_device_properties": lambda *_: properties,
        "get_device_capability": lambda *_: (8, 0),
        "get_arch_list": lambda: ["sm_80"],
        "is_bf16_supported": lambda *_args, **_kwargs: True,
        "mem_get_info": lambda *_: (properties.total_memory, properties.total_memory),
        "memory_stats": lambda *_: {},
        "memory_summary": lambda *_args, **_kwargs: "",
        "get_rng_state": lambda *_: torch.get_rng_state(),
        "get_rng_state_all": lambda: [torch.get_rng_state()],
        "initial_seed": torch.initial_seed,
        "current_stream": _Idle,
        "default_stream": _Idle,
        "Stream": _Idle,
        "Event": _Idle,
        "stream": lambda *_: contextlib.nullcontext(),
        "device": _Idle,
        "device_of": _Idle,
    }


def _accelerator(count: int) -> dict[str, Any]:
    return {
        "is_available": lambda: True,
        "device_count": lambda: count,
        "current_accelerator": lambda *_args, **_kwargs: torch.device("cuda"),
        "current_device_index": lambda: 0,
        "current_stream": _Idle,
        "set_stream": nothing,
        "set_device_index": nothing,
        "synchronize": nothing,
    }
