"""Arithmetic in 16 bits, with weights and updates in 32: torch's autocast, and its gradient scaler for fp16."""

from __future__ import annotations

from typing import Any

import torch

from herringbone_contract.errors import ParallelError

KINDS: dict[str, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """The precision in which a script computes, by a name such as a hyperparameter has.

        precision = Precision("bf16", device)
        with precision.autocast():
            loss = criterion(model(images), labels)
        precision.backward(loss)
        precision.step(optimizer)

    Parameters stay in fp32: they are the master weights, and autocast makes 16-bit copies for the computation. The
    format between hosts has a setting of its own, `wire` of the `distribution` dict. With fp16 the loss is scaled, and
    a step in which a gradient is not finite is skipped. All ranks skip the same steps, because they have the same
    gradients after DDP's sums. Needs torch 2.3. Raises `ParallelError` for an unknown name, and for a precision that
    the device does not support.
    """

    def __init__(self, name: str, device: torch.device | str) -> None:
        if name not in KINDS:
            raise ParallelError(f"precision {name!r}: it is one of {', '.join(KINDS)}")
        self._device = torch.device(device).type
        self._kind = KINDS[name]
        if name == "fp16" and self._device == "cpu" and not self._cpu_computes_fp16():
            raise ParallelError(
                "precision 'fp16' on this processor: it has no instructions for fp16 (AVX512-FP16, AMX-FP16 or Arm's),"
                " and torch would emulate them or refuse. Use 'bf16' or 'fp32' here, or a CUDA device"
            )
        # bf16 has the range of fp32 and needs no scaling; a disabled scaler passes everything through.
        self.scaler = torch.amp.GradScaler(self._device, enabled=name == "fp16")

    def autocast(self) -> Any:
        """Return a context in which torch computes in 16 bits where that is safe."""
        return torch.autocast(self._device, self._kind, enabled=self._kind is not torch.float32)

    def backward(self, loss: torch.Tensor) -> None:
        """Add up the gradients of a loss, scaled with fp16."""
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]

    def clip(self, optimizer: torch.optim.Optimizer, parameters: Any, max_norm: float) -> torch.Tensor:
        """Scale the gradients to a norm of at most `max_norm`, between `backward` and `step`; return the old norm."""
        # The norm is that of the unscaled gradients.
        self.scaler.unscale_(optimizer)
        return torch.nn.utils.clip_grad_norm_(parameters, max_norm)

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Update the parameters, unless a gradient is not finite."""
        self.scaler.step(optimizer)
        self.scaler.update()

    def _cpu_computes_fp16(self) -> bool:
        return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
