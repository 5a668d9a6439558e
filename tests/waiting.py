"""Wait for what another thread or process does."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(
    condition: Callable[[], object], seconds: float = 60.0, why: str = "the condition never became true"
) -> None:
    """Return once the condition holds; fail the test, and say why, if it does not within these seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, why
        time.sleep(0.01)
