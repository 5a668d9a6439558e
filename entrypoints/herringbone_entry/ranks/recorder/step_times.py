"""Note when this rank's optimizer steps; `entries` reports what the rank does between two steps.

torch calls a global hook after each step of any optimizer, so the script and its calls stay as they are. A call takes
about a microsecond.
"""

from __future__ import annotations

import time
from collections import deque
from types import ModuleType
from typing import Any

from herringbone_contract.events.steps import Owner

# The steps of several looks.
_MAX_STEPS = 1000
_torch: Any = None
_owner = Owner()
_count = 0
# The number and the time of each step's end, in nanoseconds since 1970 as torch's flight recorder has them.
ends: deque[tuple[int, int]] = deque(maxlen=_MAX_STEPS)


def watch(module: ModuleType) -> None:
    """Note the steps from now on; `module` is torch.optim.optimizer. Releases before 2.0 have no such hook."""
    global _torch
    _torch = module.torch
    if register := getattr(module, "register_optimizer_step_post_hook", None):
        register(_note)


def _note(optimizer: Any, *_: Any) -> None:
    global _count
    # A step that is compiled could not have these calls in it.
    if _torch.compiler.is_compiling():
        return
    if _owner.takes(optimizer):
        _count += 1
        ends.append((_count, time.time_ns()))
