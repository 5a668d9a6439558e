"""The settings of a host's observer, which its supervisor sends as the first line of its orders."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple


class Settings(NamedTuple):
    """The facts about a host that its sources of events need.

    `events` is the descriptor of the FIFO of this host's ranks, None if there is none. `supervisor` is the supervisor's
    pid, and `ranks` maps a rank to its pid. `checkpoints`, `output_data` and `tensorboard` are folders, and `started`
    is the time at which the ranks were started, in seconds since 1970. `status_listener` and `status_token` are the
    descriptors of a `StatusListener`. `output_interval` is the time in seconds between two flushes, and
    `sample_interval` the least time between two samples. `keep` is what the job's `keep_checkpoints` says, and the host
    that `leads` decides which checkpoints are removed. `drain` is what the job's `drain_notice` says.
    """

    host: str
    supervisor: int
    events: int | None = None
    ranks: Mapping[int, int] = {}
    num_cpus: int = 1
    checkpoints: str = ""
    output_data: str = ""
    tensorboard: str = ""
    started: float = 0.0
    status_listener: int | None = None
    status_token: int | None = None
    output_interval: float = 1.0
    sample_interval: float = 1.0
    job: str = ""
    keep: Mapping[str, Any] | None = None
    leads: bool = False
    drain: str | list[str] | None = None

    def encode(self) -> bytes:
        """Return the settings as one line.

        >>> Settings.decode(Settings("algo-1", 7, ranks={0: 8}).encode()).ranks
        {0: 8}
        """
        return json.dumps(self._asdict()).encode() + b"\n"

    @classmethod
    def decode(cls, line: bytes) -> Settings:
        """Return the settings of a line."""
        members = json.loads(line)
        # JSON's keys are text.
        return cls(**{**members, "ranks": {int(rank): pid for rank, pid in members["ranks"].items()}})
