"""Change Hugging Face's transformers in the ranks of every job, after the script has imported it.

    [1] the arguments   `HfArgumentParser` accepts the argument that each job of AWS's model-parallel library has
    [2] the metrics     each `Trainer` sends what it logs, with its own step, and its progress
    [3] the stop        each `Trainer` that saves checkpoints saves one when its job is asked to go, and ends the script

Scripts stay as they are. Read in the sources of transformers 4.57 and 5.23.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from herringbone_contract.constants import Key
from herringbone_contract.events import outbox, stops
from herringbone_contract.events.format import HUGGING_FACE
from herringbone_contract.events.script import log_progress
from herringbone_contract.events.steps import is_heard
from herringbone_contract.library_hooks import Hook, named_in, require

_PARAMETERS = f"--{Key.MODEL_PARALLEL_PARAMETERS}"
_VARIABLE = f"SM_HP_{Key.MODEL_PARALLEL_PARAMETERS.upper()}"
# The files of the tokens for KubeflowCallback: ours is a descriptor of the supervisor.
_TOKEN, _OUR_TOKENS = "KUBEFLOW_TRAINER_SERVER_TOKEN", "/proc/"
_PROGRESS_SECONDS = 1.0
_INTEGRATIONS = "transformers.integrations.integration_utils:"
TRAINER_LOGS = (
    Hook(
        "transformers.trainer:DEFAULT_CALLBACKS", "send what it logs", named_in("transformers.trainer:Trainer.__init__")
    ),
    Hook(
        f"{_INTEGRATIONS}INTEGRATION_TO_CALLBACK",
        "send each value once",
        named_in(f"{_INTEGRATIONS}get_reporting_integration_callbacks"),
    ),
)


class _Ignored(argparse.Action):
    """An option whose value is read from the environment, and not from the command line."""

    def __call__(self, *_: Any) -> None:
        """Do nothing."""


def accept_added_arguments(parser: Any = argparse.ArgumentParser) -> None:
    """Have `HfArgumentParser` accept the arguments that Herringbone adds to the user's; any time before it parses. [1]

    Whoever adds an argument does so here, too. A parser that has an option of that name keeps it. `parser` is the class
    that it inherits from.
    """
    parse = parser.parse_known_args
    if _VARIABLE not in os.environ:
        return

    def parse_known_args(self: Any, *args: Any, **options: Any) -> Any:
        is_theirs = any(base.__name__ == "HfArgumentParser" for base in type(self).__mro__)
        if is_theirs and _PARAMETERS not in self._option_string_actions:
            # Without a default, the parsed options have no entry of that name, which the parser would return, too.
            self.add_argument(_PARAMETERS, action=_Ignored, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
        return parse(self, *args, **options)

    parser.parse_known_args = parse_known_args


def send_logs() -> None:
    """Give each `Trainer` our callback, after the import of `transformers.trainer`. [2]"""
    trainer = sys.modules["transformers.trainer"]
    if not is_heard():
        return
    require(TRAINER_LOGS)
    trainer.DEFAULT_CALLBACKS.append(callback_class(trainer.TrainerCallback))
    if os.environ.get(_TOKEN, "").startswith(_OUR_TOKENS):
        # KubeflowCallback would post the same values, less often and with other steps: an idle one takes its place.
        integrations = sys.modules["transformers.integrations.integration_utils"].INTEGRATION_TO_CALLBACK
        integrations.update({name: trainer.TrainerCallback for name in integrations if name == "kubeflow"})


def _may_save(args: Any) -> bool:
    """Say whether a stop may save: with save_strategy "no" only into the folder that is there for checkpoints."""
    folder = os.environ.get("SM_CHECKPOINT_DIR")
    return args.save_strategy != "no" or (
        folder is not None and Path(args.output_dir).resolve().is_relative_to(Path(folder).resolve())
    )


def callback_class(base: Any, send: Callable[..., None] = outbox.metric) -> Any:
    """Return the subclass of transformers' `TrainerCallback` that sends what a Trainer logs to the job's events."""

    class JobCallback(base):  # type: ignore[misc]  # the base class is known at run time only
        """Sends each value of `Trainer.log`, in order and unchanged, and the progress of the training; stops it. [3]"""

        _shown = 0.0
        _stops = False

        def on_log(self, _args: Any, state: Any, _control: Any, logs: Any = None, **_: Any) -> None:
            for name, value in (logs or {}).items():
                # The log's own entry of that name is the Trainer's step. Texts and lists are no metrics.
                if name != "step" and not isinstance(value, str) and state.is_world_process_zero:
                    send(str(name), value, state.global_step, source=HUGGING_FACE)

        def on_train_begin(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
            self._shown = time.monotonic()
            if state.is_world_process_zero and state.max_steps > 0:
                log_progress(state.global_step, state.max_steps)

        def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.on_train_begin(args, state, control)
            stops.no_more()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if time.monotonic() - self._shown >= _PROGRESS_SECONDS:
                self.on_train_begin(args, state, control)
            if _may_save(args) and stops.asks_for_script() and stops.should_stop():
                self._stops = control.should_save = control.should_training_stop = True

        def on_save(self, _args: Any, _state: Any, _control: Any, **_: Any) -> None:
            # At once: the end of the epoch that follows in Trainer would save a second time over this checkpoint.
            if self._stops:
                raise SystemExit(0)

    return JobCallback
