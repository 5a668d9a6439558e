"""A logger for Lightning's `Trainer` that sends metrics to the job's events.

Lightning calls its loggers by these names and looks at no base class, so this module does without Lightning.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from herringbone_contract.constants import HostVariable
from herringbone_contract.events import emit, outbox
from herringbone_contract.events.format import LIGHTNING


class JobLogger:
    """Sends what a `LightningModule` logs with `self.log`.

        trainer = Trainer(logger=JobLogger())
        trainer = Trainer(logger=[JobLogger(), TensorBoardLogger(folder)])

    Metrics have the names of `self.log`, and Lightning's step. Rank 0 sends them. How often, `log_every_n_steps` of the
    `Trainer` says. Outside a job nothing happens. Source: `lightning.pytorch.loggers.logger.Logger` of Lightning 2.6.
    """

    # Lightning puts checkpoints below `save_dir/name/version`, by default in `default_root_dir`.
    save_dir = None
    root_dir = None
    log_dir = None
    name = "herringbone"
    group_separator = "/"
    experiment = None

    def __init__(self) -> None:
        self.version = os.environ.get(HostVariable.JOB_NAME) or "job"
        self._is_first = emit.rank() in (None, 0)

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Send values of metrics."""
        if self._is_first:
            for name, value in metrics.items():
                outbox.metric(name, value, step, source=LIGHTNING)

    def log_hyperparams(self, *_: Any, **__: Any) -> None:
        """Do nothing: the job's plan has its hyperparameters."""

    def log_graph(self, *_: Any, **__: Any) -> None:
        """Do nothing: events have no graphs."""

    def after_save_checkpoint(self, *_: Any) -> None:
        """Do nothing: the host's observer sees new checkpoints."""

    def save(self) -> None:
        """Do nothing: events are sent at once."""

    def finalize(self, status: str) -> None:
        """Do nothing: events are sent at once."""
