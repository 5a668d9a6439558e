"""The arithmetic of models, speeds and ratios."""

from __future__ import annotations

import math

import pytest
from benchmarks.gpu.flops import BERT_LARGE, RESNET50, Encoder, ResNet, encoder_flops, mfu, resnet_flops


def test_an_encoders_step() -> None:
    # Per token: 4 x 2 x 2 + 2 x 2 x 3 weights, 2 x 4 x 2 for scores and values, 2 x 2 + 2 x 5 in the head. Each is used
    # twice (a product and an addition), for 4 tokens, in one forward and a backward of twice its work.
    assert encoder_flops(Encoder(layers=1, width=2, feed_forward=3, words=5), length=4) == (28 + 16 + 14) * 2 * 4 * 3


def test_bert_large_is_near_six_operations_for_each_weight_and_token() -> None:
    # 334 million weights, 31 million of them in the table of words, which the head shares and the input only looks up.
    assert encoder_flops(BERT_LARGE, 512) / 512 == pytest.approx(6 * 334e6, rel=0.08)


@pytest.mark.parametrize(("side", "gigaflop"), [(224, 8.18), (96, 1.505)])
def test_resnet50_has_the_published_forward(side: int, gigaflop: float) -> None:
    assert resnet_flops(RESNET50, side) / 3 / 1e9 == pytest.approx(gigaflop, abs=0.005)


def test_torch_counts_the_same_for_a_resnet() -> None:
    torch = pytest.importorskip("torch")
    counter = pytest.importorskip("torch.utils.flop_counter")
    nn = torch.nn
    with torch.device("meta"), counter.FlopCounterMode(display=False) as counted:
        images = nn.Sequential(nn.Conv2d(3, 16, 7, 2, 3), nn.MaxPool2d(3, 2, 1))(torch.empty(1, 3, 32, 32))
        # One bottleneck, and its shortcut. Their sum has no products.
        nn.Sequential(nn.Conv2d(16, 16, 1), nn.Conv2d(16, 16, 3, 1, 1), nn.Conv2d(16, 64, 1))(images)
        nn.Conv2d(16, 64, 1)(images)
        nn.Linear(64, 1000)(torch.empty(1, 64))
    assert counted.get_total_flops() * 3 == resnet_flops(ResNet(16, (1,)), 32)


def test_mfu() -> None:
    assert math.isclose(mfu(samples_per_second=300.0, flops_per_sample=1.1e12, peak=989e12) or 0, 0.33367, rel_tol=1e-4)
    assert mfu(samples_per_second=300.0, flops_per_sample=1.1e12, peak=None) is None
