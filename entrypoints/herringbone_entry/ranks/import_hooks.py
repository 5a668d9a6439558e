"""Act when the script imports a module of torch: limit its rendezvous store, and listen for orders in a thread.

Only ranks of jobs with several of them load this module.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import Any

from herringbone_entry.channel import attach


def install(listen: str, orders: str) -> None:
    """Have the store listen at the address `listen`, and orders come through the folder `orders`; "" for neither."""
    if orders and sys.platform == "linux":
        sys.meta_path.insert(0, ListenerStart(orders))
    if listen:
        sys.meta_path.insert(0, StoreFinder(listen))
    if "HERRINGBONE_ACCELERATE" in os.environ:
        from herringbone_entry.ranks import completions

        completions.install(os.environ)


class ListenerStart:
    """Starts the thread that listens for orders when the script imports torch.distributed.

    A rank that waits in a collective runs no signal handler of Python's, so an order needs a thread there. Other
    scripts get none: Python warns of a fork in a process with threads. Torch itself starts threads in any case.
    """

    def __init__(self, orders: str) -> None:
        self._orders = orders

    def find_spec(self, name: str, *_: object) -> Any:
        """Return None, so that Python asks the next finder."""
        if name == "torch.distributed":
            # Once is enough.
            sys.meta_path.remove(self)
            from herringbone_entry.ranks import orders

            orders.listen(self._orders)
            _rename_recorder()


class StoreFinder:
    """Changes one module when the script imports it: torch's rendezvous, whose store is to listen at one address."""

    def __init__(self, listen: str) -> None:
        self._listen = listen
        # The script may change these variables later, for a store of its own.
        self._host, self._port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])

    def find_spec(self, name: str, *_: object) -> Any:
        """Return None, so that Python asks the next finder; for that one module, its specification."""
        if name != "torch.distributed.rendezvous":
            return None
        from importlib.util import find_spec

        from herringbone_entry.ranks.torch_store import limit

        # Once is enough, and the next line asks all finders.
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            loader, execute = spec.loader, spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                limit(module, self._listen, self._host, self._port)

            loader.__dict__["exec_module"] = exec_module
        return spec


def _rename_recorder() -> None:
    """Give the flight recorder of an older torch its variable under the name that it reads."""
    [name] = attach.RECORDER
    version = str(getattr(sys.modules.get("torch.version"), "__version__", "")).split(".")
    numbers = tuple(int(part) for part in version[:2] if part.isdigit())
    if name in os.environ and numbers < (2, 8):
        os.environ.setdefault(attach.OLD_RECORDER, os.environ[name])
