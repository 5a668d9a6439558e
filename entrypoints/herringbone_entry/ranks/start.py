"""The first message of a rank: its start message, perhaps after an order to import modules early."""

from __future__ import annotations

import os

from herringbone_entry.channel import attach
from herringbone_entry.channel.frames import Message, Wire


def start_message(wire: Wire) -> Message:
    """Wait for the start message. Raises `EOFError` when the supervisor has no use for this rank."""
    if attach.RESUMED in os.environ:
        memory, *descriptors = map(int, os.environ.pop(attach.RESUMED).split(":"))
        with os.fdopen(memory, "rb") as file:
            file.seek(0)
            wire.put_back(file.read(), descriptors)
    message = wire.wait()
    if message.get("kind") != "preimport":
        return message
    # Only ranks of a standby host get such an order.
    from herringbone_entry.ranks.ahead import preimport

    return preimport.until_start(wire, message)
