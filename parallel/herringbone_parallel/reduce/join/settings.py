"""What a rank must know to join the others, and where the environment says it."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from herringbone_contract.constants import RankVariable, ReduceVariable
from herringbone_contract.errors import ParallelError
from herringbone_contract.reduce_servers import ReduceServer, decode
from herringbone_parallel.core.sums.credits import Window
from herringbone_parallel.reduce.elements import Element

# "python" or "native"; absent: native where there is a compiled core.
CORE_VARIABLE = "HERRINGBONE_REDUCE"
_WIRES = (Element.FLOAT16, Element.BFLOAT16)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One rank's place in the job; `join(Settings.from_environment())` is the usual use.

    `meet` is where rank 0 listens. `wire`, fp16 or bf16, is how fp32 travels between hosts unless a call says
    otherwise. Without a `window` one is chosen that a switch's queue holds. `rails` are named as `rails.Rails` says.
    `message` is the cost of one more message in elements (`core.shards.shard_map`). After `silence` seconds without a
    sign of life a process counts as lost; one that computes is waited for, for `late` seconds. `called` is the number
    that messages give this rank, if not `rank`.
    """

    rank: int
    size: int
    host: str
    meet: tuple[str, int]
    token: bytes = field(repr=False)
    servers: tuple[ReduceServer, ...] = ()
    wire: Element | None = None
    rails: tuple[str, ...] = ()
    core: str | None = None
    window: Window | None = None
    message: int = 1024
    silence: float = 3.5
    late: float = 1800.0
    join_timeout: float = 120.0
    called: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size:
            raise ParallelError(f"rank {self.rank} of {self.size}: ranks count from 0")
        if self.wire not in (None, *_WIRES):
            raise ParallelError(f"wire {self.wire}: fp16 and bf16 are the 16-bit formats that fp32 can travel in")
        if self.core not in (None, "python", "native"):
            raise ParallelError(f"{CORE_VARIABLE}={self.core}: it is python or native, or left out")
        if not self.token:
            raise ParallelError(f"the job's token is empty: {ReduceVariable.TOKEN_FILE} names a file that holds it")
        if self.window is not None and self.window.chunk_bytes % 512:
            raise ParallelError(f"a chunk of {self.window.chunk_bytes} bytes: it is a multiple of 512")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Settings:
        """Read what the launcher has set (`ReduceVariable`). Raises `ParallelError` for what is missing or malformed.

        The token's file is read once: it may be a pipe.
        """
        wire = environment.get(ReduceVariable.WIRE)
        address, _, port = _need(environment, ReduceVariable.MEET).rpartition(":")
        if not address or not port.isdecimal():
            raise ParallelError(f"{ReduceVariable.MEET}={environment[ReduceVariable.MEET]}: it is ADDRESS:PORT")
        return cls(
            rank=_number(environment, RankVariable.RANK),
            size=_number(environment, RankVariable.WORLD_SIZE),
            host=host_name(environment),
            meet=(address, int(port)),
            token=read_token(environment),
            servers=decode(environment.get(ReduceVariable.SERVERS, "")),
            wire=Element.named(wire) if wire else None,
            rails=rails_of(environment),
            core=environment.get(CORE_VARIABLE) or None,
        )


def host_name(environment: Mapping[str, str]) -> str:
    """Return what this host is called: as the job calls it, else as its system does."""
    return environment.get(ReduceVariable.HOST) or environment.get("SM_CURRENT_HOST") or socket.gethostname()


def rails_of(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the rails that the environment names, none as a rule."""
    return tuple(name for name in environment.get(ReduceVariable.RAILS, "").split(",") if name)


def read_token(environment: Mapping[str, str]) -> bytes:
    """Read the job's token from the file that the environment names."""
    path = _need(environment, ReduceVariable.TOKEN_FILE)
    try:
        return Path(path).read_bytes().strip()
    except OSError as error:
        raise ParallelError(f"{ReduceVariable.TOKEN_FILE}={path} cannot be read: {error}") from None


def _need(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name)
    if not value:
        raise ParallelError(
            f"{name} is not set: ranks of a job that Herringbone launched have it; a program started by hand sets it"
        )
    return value


def _number(environment: Mapping[str, str], name: str) -> int:
    value = _need(environment, name)
    if not value.isdecimal():
        raise ParallelError(f"{name}={value}: it is a number")
    return int(value)
