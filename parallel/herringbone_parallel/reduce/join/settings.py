"""The settings with which a rank joins the others, and the environment variables that hold them."""

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

# "python" or "native". By default: native, if there is a compiled core.
CORE_VARIABLE = "HERRINGBONE_REDUCE"
_WIRES = (Element.FLOAT16, Element.BFLOAT16)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One rank's settings; `join(Settings.from_environment())` is the usual use.

    - `rendezvous`: the address and port at which rank 0 listens.
    - `wire`: fp16 or bf16, the format in which fp32 travels between hosts unless a call says otherwise.
    - `rails`: names as `rails.Rails` reads them.
    - `window`: by default, one that fits into a switch's queue.
    - `message`: the cost of one more message, in elements (`core.sums.shards.shard_map`).
    - `silence`: seconds without any message after which a process counts as lost.
    - `late`: seconds for which the others wait for a rank that answers but does not submit its buffer.
    - `job_rank`: the number that messages use for this rank, if it is not `rank`.
    """

    rank: int
    size: int
    host: str
    rendezvous: tuple[str, int]
    token: bytes = field(repr=False)  # a secret: it must not appear in a log
    servers: tuple[ReduceServer, ...] = ()
    wire: Element | None = None
    rails: tuple[str, ...] = ()
    core: str | None = None
    window: Window | None = None
    message: int = 1024
    silence: float = 3.5  # cores send a sign of life every half second
    late: float = 1800.0
    join_timeout: float = 120.0
    job_rank: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size:
            raise ParallelError(f"rank {self.rank} of {self.size}: ranks count from 0")
        if self.wire not in (None, *_WIRES):
            raise ParallelError(f"wire {self.wire}: fp16 and bf16 are the 16-bit formats that fp32 can travel in")
        if self.core not in (None, "python", "native"):
            raise ParallelError(f"{CORE_VARIABLE}={self.core}: it is python or native, or left out")
        if not self.token:
            raise ParallelError(f"the job's token is empty: {ReduceVariable.TOKEN_FILE} names a file that holds it")
        # Chunks hold whole multiples of 64 elements (`cores.cut.ALIGN`), and an element has up to 8 bytes.
        if self.window is not None and self.window.chunk_bytes % 512:
            raise ParallelError(f"a chunk of {self.window.chunk_bytes} bytes: it is a multiple of 512")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Settings:
        """Read the launcher's variables (`ReduceVariable`). Raises `ParallelError` for a missing or malformed one.

        Reads the token's file once: it may be a pipe.
        """
        wire = environment.get(ReduceVariable.WIRE)
        # An IPv6 address has colons, so the port is behind the last one.
        address, _, port = _require(environment, ReduceVariable.MEET).rpartition(":")
        if not address or not port.isdecimal():
            raise ParallelError(f"{ReduceVariable.MEET}={environment[ReduceVariable.MEET]}: it is ADDRESS:PORT")
        return cls(
            rank=_number(environment, RankVariable.RANK),
            size=_number(environment, RankVariable.WORLD_SIZE),
            host=host_name(environment),
            rendezvous=(address, int(port)),
            token=read_token(environment),
            servers=decode(environment.get(ReduceVariable.SERVERS, "")),
            wire=Element.named(wire) if wire else None,
            rails=rails_of(environment),
            # An empty variable counts as unset.
            core=environment.get(CORE_VARIABLE) or None,
        )


def host_name(environment: Mapping[str, str]) -> str:
    """Return this host's name: its name in the job, else its name in its system."""
    # The name in the job comes first, because several hosts of a job may run on one machine.
    return environment.get(ReduceVariable.HOST) or environment.get("SM_CURRENT_HOST") or socket.gethostname()


def rails_of(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the rails in the environment; usually there are none."""
    return tuple(name for name in environment.get(ReduceVariable.RAILS, "").split(",") if name)


def read_token(environment: Mapping[str, str]) -> bytes:
    """Read the job's token from the file that the environment names."""
    path = _require(environment, ReduceVariable.TOKEN_FILE)
    try:
        # A file that was written with an editor ends in a newline.
        return Path(path).read_bytes().strip()
    except OSError as error:
        raise ParallelError(f"{ReduceVariable.TOKEN_FILE}={path} cannot be read: {error}") from None


def _require(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name)
    if not value:
        raise ParallelError(
            "the job's distribution has no smdistributed.dataparallel: add distribution={'smdistributed':"
            " {'dataparallel': {'enabled': True}}}, torch_distributed or mpi to the estimator. A program that you"
            f" start by hand sets the variables itself ({name} is not set)"
        )
    return value


def _number(environment: Mapping[str, str], name: str) -> int:
    value = _require(environment, name)
    if not value.isdecimal():
        raise ParallelError(f"{name}={value}: it is a number")
    return int(value)
