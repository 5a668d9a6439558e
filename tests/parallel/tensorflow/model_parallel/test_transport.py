"""The transport between two ranks, over a connection inside one process."""

from __future__ import annotations

import pytest

from tests.parallel.tensorflow.ranks import Ranks

pytestmark = pytest.mark.tensorflow


def test_what_the_kernel_takes_leaves_at_once_and_the_rest_follows_in_order(ranks: Ranks) -> None:
    sent_at_once, arrived = ranks.run("transports.small_and_large", 1)[0]
    # After a message that is too large for the kernel, all later messages wait.
    assert sent_at_once == [True, True, False, False, False]
    assert arrived == [True] * 5


def test_an_object_that_its_sender_has_not_sealed_is_refused(ranks: Ranks) -> None:
    whole, refusal = ranks.run("transports.objects", 1)[0]
    assert whole == b"whole"
    assert b"a message was changed on its way" in refusal
