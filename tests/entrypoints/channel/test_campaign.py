"""The short form of the campaign against the control channel; `tests/campaigns/channel.py` is the long one."""

from __future__ import annotations

import pytest
from tests.campaigns.channel import campaign


@pytest.mark.parametrize("seed", [1, 2])
def test_the_control_channel_survives_a_campaign(seed: int) -> None:
    # Other tests run at the same time; the long form measures on a quiet machine.
    counts = campaign(before_count=3_000, after_count=3_000, connections=500, seed=seed, answer_seconds=10.0)
    assert counts["failures"] == []
    # Both kinds of frames were among them.
    assert 0 < counts["after_genuine"] < counts["after"]
