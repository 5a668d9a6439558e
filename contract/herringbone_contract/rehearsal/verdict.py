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


ADVICE = {
    Reason.ORDER: "Sort what comes from a set, a dict or a folder; give shuffles a seed, and set their epoch.",
    Reason.CONTENTS: "Seed what changes samples, in the workers of loaders, too, and save these random numbers.",
    Reason.SAMPLES: "Save the place in the data with each checkpoint; for a DataLoader of torch, Training does.",
    Reason.TARGETS: "Compare how the loss gets its targets: they are the part of a step that is not recorded.",
    Reason.RANDOM: "Seed all random numbers at the begin, and save their state with each checkpoint.",
    Reason.WEIGHTS: "Save and load the state_dict of every module, with its buffers.",
    Reason.OPTIMIZER: "Save the optimizer's state_dict, and load it before the first step.",
    Reason.SETTINGS: "Save the scheduler's state_dict, and load it behind the optimizer's.",
    Reason.KERNEL: "Have the framework use deterministic kernels only, or accept such differences: torch has"
    " torch.use_deterministic_algorithms(True), TensorFlow tf.config.experimental.enable_op_determinism().",
}


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
