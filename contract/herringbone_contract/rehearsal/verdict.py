"""The result of comparing two runs: equal, or the steps and tensors that differ, each with its likely reason. Pure."""

from __future__ import annotations

import enum

import msgspec


class Reason(enum.Enum):
    """The likely reason of a difference. The values are for tables and JSON."""

    ORDER = "order of data"
    CONTENTS = "contents of samples"
    SAMPLES = "samples lost or repeated"
    TARGETS = "targets or loss"
    RANDOM = "random numbers"
    WEIGHTS = "weights not restored"
    OPTIMIZER = "optimizer state not restored"
    SETTINGS = "learning rate or scheduler not restored"
    KERNEL = "kernel"
    RECORDS = "records missing"


class Outcome(enum.Enum):
    """The answer to "equal to the undisturbed run?"."""

    EQUAL = "yes"
    DIFFERENT = "no"
    # Records are missing, or two undisturbed runs differ already, and the restart adds nothing to that.
    UNKNOWN = "unknown"


class Finding(msgspec.Struct, frozen=True):
    """One difference. `step` counts the undisturbed run's steps from 1; `tensor` is "" where none is concerned.

    `text` is a sentence that says what differs; `advice` is one that says what to do next.
    """

    reason: Reason
    step: int
    rank: int
    tensor: str
    text: str
    advice: str


class Verdict(msgspec.Struct, frozen=True):
    """The comparison of two runs. `findings` are in the order of steps: at most one for each reason.

    `steps` is the number of steps that were compared, `redone` that of steps made more than once. `notes` are sentences
    about what was not recorded, and about differences that change nothing.
    """

    outcome: Outcome
    findings: tuple[Finding, ...] = ()
    steps: int = 0
    redone: int = 0
    notes: tuple[str, ...] = ()

    @property
    def first(self) -> Finding | None:
        """The first difference."""
        return self.findings[0] if self.findings else None
