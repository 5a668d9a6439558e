"""What ranks change in transformers, without transformers; tests/e2e/test_hugging_face.py has jobs with it."""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from herringbone_contract.events import hugging_face


class Parser(argparse.ArgumentParser):
    """Stands for argparse's class."""


class HfArgumentParser(Parser):
    """Stands for transformers' class."""


class TrlParser(HfArgumentParser):
    """Stands for a class of another library below it."""


@pytest.fixture
def accepting(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SM_HP_MP_PARAMETERS", "{}")
    hugging_face.accept_added_arguments(Parser)
    # As for a measurement and its second run.
    hugging_face.accept_added_arguments(Parser)
    yield
    del Parser.parse_known_args


ARGUMENTS = ["--mp_parameters", "hybrid_shard_degree=2", "--lr", "2", "--other", "1"]


@pytest.mark.parametrize("kind", [HfArgumentParser, TrlParser])
@pytest.mark.usefixtures("accepting")
def test_parsers_of_hugging_face_accept_what_herringbone_adds(kind: type[argparse.ArgumentParser]) -> None:
    parser = kind()
    parser.add_argument("--lr")
    for _ in range(2):
        options, rest = parser.parse_known_args(ARGUMENTS)
        assert (vars(options), rest) == ({"lr": "2"}, ["--other", "1"])
    assert "mp_parameters" not in parser.format_help()


@pytest.mark.usefixtures("accepting")
def test_an_option_of_the_script_is_kept_and_other_parsers_too() -> None:
    parser = HfArgumentParser()
    parser.add_argument("--mp_parameters")
    assert parser.parse_known_args(ARGUMENTS)[0].mp_parameters == "hybrid_shard_degree=2"
    assert Parser().parse_known_args(ARGUMENTS)[1] == ARGUMENTS


def test_a_job_without_added_arguments_keeps_its_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SM_HP_MP_PARAMETERS", raising=False)
    before = Parser.parse_known_args
    hugging_face.accept_added_arguments(Parser)
    assert Parser.parse_known_args is before


def test_only_the_first_rank_sends_numbers_with_the_trainers_step() -> None:
    sent: list[Any] = []
    callback = hugging_face.callback_class(object, lambda *args, source: sent.append((*args, source)))()
    logs = {"loss": 0.5, "step": 3, "text": "1", "seen": 7}
    for is_first in (False, True):
        state = SimpleNamespace(is_world_process_zero=is_first, global_step=5, max_steps=9)
        callback.on_log(None, state, None, logs=logs)
        callback.on_log(None, state, None, logs=None)
    assert sent == [("loss", 0.5, 5, "huggingface"), ("seen", 7, 5, "huggingface")]


@pytest.mark.parametrize(
    ("strategy", "folder", "handled", "asked", "stops"),
    [
        ("steps", "model", False, True, True),
        ("steps", "model", False, False, False),
        ("no", "model", False, True, False),
        # The folder is there for checkpoints.
        ("no", "checkpoints", False, True, True),
        ("no", "checkpoints/run", False, True, True),
        ("no", "checkpoints-2", False, True, False),
        ("steps", "model", True, True, False),
    ],
)
def test_a_trainer_that_saves_saves_and_ends_when_its_job_is_asked_to_go(
    monkeypatch: pytest.MonkeyPatch, strategy: str, folder: str, handled: bool, asked: bool, stops: bool
) -> None:
    """Not one that saves nothing and has a folder for other things, nor where the script itself handles SIGTERM, as
    `enable_jit_checkpoint` does.
    """
    monkeypatch.setattr("herringbone_contract.events.stops.should_stop", lambda: asked)
    monkeypatch.setattr("herringbone_contract.events.stops.asks_for_script", lambda: not handled)
    callback = hugging_face.callback_class(object)()
    control = SimpleNamespace(should_save=False, should_training_stop=False)
    state = SimpleNamespace(is_world_process_zero=False)
    monkeypatch.setenv("SM_CHECKPOINT_DIR", "/opt/ml/checkpoints")
    arguments = SimpleNamespace(save_strategy=strategy, output_dir=f"/opt/ml/{folder}")
    callback.on_step_end(arguments, state, control)
    assert (control.should_save, control.should_training_stop) == (stops, stops)
    with pytest.raises(SystemExit) if stops else contextlib.nullcontext():
        callback.on_save(None, None, control)


class _Trainer:
    """Reads the list of callbacks as transformers' own class does."""

    def __init__(self) -> None:
        self.callbacks = DEFAULT_CALLBACKS  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(("token", "replaced"), [("/proc/7/fd/9", True), ("/var/run/token", False)])
def test_a_users_own_kubeflow_is_left_alone(monkeypatch: pytest.MonkeyPatch, token: str, replaced: bool) -> None:
    base, kubeflow = type("TrainerCallback", (), {}), object()
    trainer = SimpleNamespace(DEFAULT_CALLBACKS=[], TrainerCallback=base, Trainer=_Trainer)
    integrations = SimpleNamespace(
        INTEGRATION_TO_CALLBACK={"kubeflow": kubeflow, "wandb": object()},
        get_reporting_integration_callbacks=lambda: INTEGRATION_TO_CALLBACK,  # noqa: F821
    )
    monkeypatch.setitem(sys.modules, "transformers.trainer", trainer)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "transformers.integrations.integration_utils", integrations)  # type: ignore[arg-type]
    monkeypatch.setenv("KUBEFLOW_TRAINER_SERVER_TOKEN", token)
    monkeypatch.delenv("HERRINGBONE_EVENTS", raising=False)
    hugging_face.send_logs()
    assert not trainer.DEFAULT_CALLBACKS
    monkeypatch.setenv("HERRINGBONE_EVENTS", "/a/fifo")
    hugging_face.send_logs()
    [callback] = trainer.DEFAULT_CALLBACKS
    assert issubclass(callback, base)
    assert integrations.INTEGRATION_TO_CALLBACK["kubeflow"] is (base if replaced else kubeflow)


FORKING = """
import os
from herringbone_contract.events import emit, outbox

sent = []
emit.emit = lambda **event: sent.append(event) or len(sent) > 1
emit.descriptor = lambda: 1
outbox.metric("many", [1], 1, source="x")
outbox.metric("loss", 0.5, 1, source="x")
assert outbox._outbox.waiting == 1
if os.fork():
    os.wait()
    outbox.close()
    assert outbox._outbox.waiting == 0
else:
    outbox.close()
    assert len(sent) == 1
    os._exit(0)
"""


def test_a_forked_child_sends_nothing_of_its_parents() -> None:
    done = subprocess.run([sys.executable, "-c", FORKING], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
