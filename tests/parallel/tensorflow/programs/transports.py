"""Both ends of a connection, in one process."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from herringbone_contract.errors import ParallelError
from herringbone_parallel.reduce.join import handshake
from herringbone_parallel.reduce.join.handshake import AuthenticatedConnection
from herringbone_parallel.tensorflow.model_parallel.runtime.messages import Key, Kind, Message, parts
from herringbone_parallel.tensorflow.model_parallel.runtime.transport import Transport, configure


def _connected() -> tuple[AuthenticatedConnection, AuthenticatedConnection]:
    accepting, connecting = socket.socketpair()
    until = time.monotonic() + 5
    with ThreadPoolExecutor(1) as pool:
        accepted = pool.submit(handshake.accept, accepting, b"token", until)
        connected = handshake.connect(connecting, b"token", until)
    configure(accepting)
    configure(connecting)
    return accepted.result(), connected


def objects() -> Any:
    """Send an object; return it, and the error of another one that was not sealed by the sender."""
    first, second = _connected()
    sender, receiver = Transport({1: ("rank 1", first)}), Transport({0: ("rank 0", second)})
    sender.send_object(1, b"whole")
    received = [receiver.receive_object(0, 20)]
    sender._peers[1].send(parts(Message(Kind.OBJECT, 0, Key(), bytes(32) + b"foreign")))
    try:
        received.append(receiver.receive_object(0, 20))
    except ParallelError as error:
        received.append(str(error).encode())
    sender.close()
    receiver.close()
    return received


def small_and_large() -> Any:
    """Send small and large arrays; return, for each, whether it was sent at once, and whether it arrived whole."""
    first, second = _connected()
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
