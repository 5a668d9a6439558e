"""Both ends of a connection, in one process."""

from __future__ import annotations

import socket
from typing import Any

import numpy as np

from herringbone_parallel.tensorflow.model_parallel.runtime.messages import Key
from herringbone_parallel.tensorflow.model_parallel.runtime.transport import Transport, configure


def small_and_large() -> Any:
    """Send small and large arrays; return, for each, whether it was sent at once, and whether it arrived whole."""
    first, second = socket.socketpair()
    configure(first)
    configure(second)
    # The sizes are in KiB.
    arrays = [np.full(kib << 8, number, np.float32) for number, kib in enumerate((1024, 1, 16384, 1, 1024))]
    sender = Transport({1: ("rank 1", first)})
    sent_at_once = []
    for number, array in enumerate(arrays):
        sender.send_tensor(1, 7, Key(step=1, edge=number), array)
        sent_at_once.append(sender.unsent(1) == 0)
    receiver = Transport({0: ("rank 0", second)})
    arrived = []
    for number, array in enumerate(arrays):
        key = Key(step=1, edge=number)
        receiver.wait(lambda key=key: receiver.has(key), lambda: {0}, seconds=20)
        arrived.append(bool(np.array_equal(receiver.take(key, 7), array)))
    sender.close()
    receiver.close()
    return sent_at_once, arrived
