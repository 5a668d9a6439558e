"""Have torch's rendezvous store listen at one address of this host; torch itself listens at all of them.

The store asks nobody for a proof: who reaches its port can read and write keys, and so end the job. Torch lets its
caller pass a socket that listens already (`master_listen_fd`), so rank 0 passes one that is bound to the address at
which the other ranks call. This module is imported when the script imports torch's rendezvous, and only by rank 0.
"""

from __future__ import annotations

import socket
from types import ModuleType
from typing import Any

_BACKLOG = 4_096


def limit(module: ModuleType, listen: str, host: str, port: int) -> None:
    """Have the store that `module` (torch.distributed.rendezvous) makes for `host` and `port` listen at `listen`.

    Stores for other addresses, which the script chose, stay as they are. A torch without this option stays as it is.
    """
    original = getattr(module, "TCPStore", None)
    if original is None:
        return

    def store(*arguments: Any, **options: Any) -> Any:
        ours = options.get("host_name") == host and options.get("port") == port
        if ours and options.get("is_master") and options.get("master_listen_fd") is None:
            listener = _listen(listen, port)
            if listener is not None:
                # This rank's own name may lead to another address here (127.0.1.1), so it calls where it listens.
                options |= {"master_listen_fd": listener, "host_name": listen}
        return original(*arguments, **options)

    module.__dict__["TCPStore"] = store


def _listen(address: str, port: int) -> int | None:
    """Return the descriptor of a socket that listens there; None when torch's own attempt must say what is wrong.

    A second group of the same process shares the first one's store, which has the port.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        # Torch closes it.
        return socket.create_server((address, port), family=family, backlog=_BACKLOG).detach()
    except OSError:
        return None
