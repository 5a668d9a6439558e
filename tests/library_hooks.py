"""Let hooks into a library of others bite, and then let the library do without the place of each of them.

A probe runs in the script's process, so it must not draw from the script's generators of random numbers.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable

from herringbone_contract.errors import HookError
from herringbone_contract.library_hooks import Hook, exists, require, resolved


def problems(hooks: Iterable[Hook]) -> list[str]:
    """Return the hooks that do not bite, and those that are not refused once their library does without their place."""
    found = []
    for hook in hooks:
        before = generators()
        require([hook])
        if generators() != before:
            found.append(f"the probe of {hook.place} draws random numbers")
        owner, name = resolved(hook.place)
        if hook.probe is not exists:
            # The library has kept the place under this name, and takes another way itself.
            setattr(owner, f"{name}_moved", lambda: None)
        try:
            require([hook._replace(place=f"{hook.place}_moved")])
            found.append(f"{hook.place} is not refused")
        except HookError as error:
            if f"has changed {hook.place}_moved" not in str(error) or "Tested are" not in str(error):
                found.append(str(error))
        finally:
            if hook.probe is not exists:
                delattr(owner, f"{name}_moved")
    return found


def generators() -> tuple[object, ...]:
    """Return the states of the process's generators, of the libraries that are imported."""
    numpy, torch, tensorflow = (sys.modules.get(name) for name in ("numpy", "torch", "tensorflow"))
    return (
        random.getstate(),
        numpy and str(numpy.random.get_state()),
        torch and torch.get_rng_state().numpy().tobytes(),
        tensorflow and tensorflow.random.get_global_generator().state.numpy().tobytes(),
    )
