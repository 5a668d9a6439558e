"""`Precision`: arithmetic in 16 bits with weights in 32."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from herringbone_contract.errors import ParallelError
from herringbone_parallel.torch.recipes.api import Precision


def train(kind: str) -> tuple[nn.Linear, torch.dtype]:
    torch.manual_seed(0)
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    precision_setting = Precision(kind, "cpu")
    for _ in range(5):
        optimizer.zero_grad()
        with precision_setting.autocast():
            output = model(torch.ones(4, 8))
        precision_setting.backward(output.float().square().mean())
        precision_setting.clip(optimizer, model.parameters(), 1.0)
        precision_setting.step(optimizer)
    return model, output.dtype


def test_arithmetic_is_in_16_bits_and_weights_are_in_32() -> None:
    plain, plain_kind = train("fp32")
    half, half_kind = train("bf16")
    assert (plain_kind, half_kind) == (torch.float32, torch.bfloat16)
    assert half.weight.dtype == torch.float32
    assert torch.allclose(half.weight, plain.weight, atol=0.02)
    # Updates below the precision of bfloat16 are not lost.
    assert not torch.equal(half.weight, half.weight.bfloat16().float())


class OnProcessor(Precision):
    """A precision on a processor with instructions for fp16, or without."""

    def __init__(self, name: str, *, has_fp16: bool) -> None:
        self._has_fp16 = has_fp16
        super().__init__(name, "cpu")

    def _cpu_computes_fp16(self) -> bool:
        return self._has_fp16


def test_fp16_scales_the_loss_and_skips_what_is_not_finite() -> None:
    weight = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    precision_setting = OnProcessor("fp16", has_fp16=True)
    precision_setting.backward((weight * 1e35).sum())
    precision_setting.step(optimizer)
    assert (weight.item(), precision_setting.scaler.get_scale()) == (1, 2**15)
    optimizer.zero_grad()
    precision_setting.backward((weight * 1e-9).sum())
    assert weight.grad.item() == pytest.approx(2**15 * 1e-9)


def test_unsupported_precisions_are_refused() -> None:
    with pytest.raises(ParallelError, match=r"precision 'fp16' on this processor: .* Use 'bf16' or 'fp32' here"):
        OnProcessor("fp16", has_fp16=False)
    with pytest.raises(ParallelError, match="precision 'half': it is one of fp32, bf16, fp16"):
        Precision("half", "cpu")
