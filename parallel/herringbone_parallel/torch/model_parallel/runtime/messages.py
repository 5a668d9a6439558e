"""The kinds and identities of the messages between the ranks of one pipeline."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import torch


class Purpose(IntEnum):
    """The purpose of a message, which is part of its key."""

    VALUE = 0
    GRADIENT = 1
    SHAPES = 2
    OUTPUT = 3
    RESULTS = 4
    FAILURE = 5
    # The next three begin a step, see arguments.py.
    DIGEST = 6
    WANTED = 7
    ARGUMENTS = 8
    # At the end of the first step, see kept.py.
    TURNS = 12
    # The last three belong to a blocked step, see stall.py.
    PROBE = 9
    ENDED = 10
    DIVERGED = 11


# Messages that end the step, whatever else was to come.
VERDICTS = (Purpose.FAILURE, Purpose.DIVERGED)


class Key(NamedTuple):
    """The identity of a message among those of its sender: the `serial`-th value of a microbatch of a step."""

    step: int
    microbatch: int
    serial: int
    purpose: int


class MessageId(NamedTuple):
    """The identity of a message among those of all peers; `source` is the sender's pipeline rank."""

    source: int
    key: Key


class Kind(IntEnum):
    """The kind of a message. Both goodbyes carry no content."""

    TENSOR = 0
    OBJECT = 1
    CUDA = 2
    # The sender asks for nothing more, but still answers.
    GOODBYE = 3
    # The sender does not answer any more either.
    LAST_WORD = 4
    # No message, but the count of received ones in its header.
    RECEIVED = 5


WITH_CONTENT = (Kind.TENSOR, Kind.OBJECT, Kind.CUDA)

# A message names its dtype by the index in this list.
DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool, torch.complex64, torch.complex128,
]  # fmt: skip
CODES = {dtype: code for code, dtype in enumerate(DTYPES)}
