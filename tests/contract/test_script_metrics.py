"""`herringbone.log_metrics` and `log_progress`: what a script sends, what is refused, and nothing outside a job."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import herringbone
from herringbone_contract.errors import InputError
from herringbone_contract.events import emit
from herringbone_contract.events.script import Pace


class Tensor:
    """Stands for a tensor of one element."""

    def __float__(self) -> float:
        return 0.25


class Tensors:
    """Stands for a tensor of several elements."""

    def __float__(self) -> float:
        raise RuntimeError("a Tensor with 2 elements cannot be converted to Scalar")


def test_metrics_and_progress_are_sent(heard) -> None:
    herringbone.log_metrics({"loss": 0.5, "accuracy": Tensor(), "gap": float("nan")}, step=10)
    herringbone.log_metrics({"seconds": 2})
    events = heard()
    assert [(event["kind"], event["name"], event["value"], event["step"]) for event in events] == [
        ("metric", "loss", 0.5, 10),
        ("metric", "accuracy", 0.25, 10),
        ("metric", "gap", "nan", 10),
        ("metric", "seconds", 2.0, None),
    ]
    assert {(event["rank"], event["source"]) for event in events} == {(1, "script")}
    herringbone.log_progress(3, unit="epoch")
    herringbone.log_progress(3.5, 10.0, eta=60)
    assert [[event[name] for name in ("done", "total", "unit", "eta")] for event in heard()] == [
        [3, None, "epoch", None],
        [3.5, 10, "step", 60],
    ]


def test_the_end_is_estimated_from_the_calls_so_far() -> None:
    pace = Pace()
    estimates = [pace.estimate(done, 100.0, now) for done, now in ((0.0, 5.0), (10.0, 15.0), (50.0, 25.0))]
    assert estimates == [None, 90.0, 20.0]
    # A new epoch begins again; more than all cannot be done.
    assert [pace.estimate(done, 10.0, now) for done, now in ((0.0, 30.0), (12.0, 31.0))] == [None, 0.0]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: herringbone.log_metrics(0.5), "metrics is a float; give names and values"),
        (lambda: herringbone.log_metrics({"loss": "low"}), "metrics['loss'] is no number but a str"),
        (lambda: herringbone.log_metrics({"loss": Tensors()}), "metrics['loss'] is no number but a Tensors"),
        (lambda: herringbone.log_metrics({"loss": None}), "metrics['loss'] is no number but a NoneType"),
        (lambda: herringbone.log_metrics({"loss": 0.5}, step=1.5), "step is 1.5, and no integer"),
        (lambda: herringbone.log_metrics({"loss": 0.5}, step=float("nan")), "step is nan, and no integer"),
        (lambda: herringbone.log_progress("half"), "done is no number but a str"),
        (lambda: herringbone.log_progress(1, float("inf")), "total is inf, and no finite number"),
    ],
)
def test_mistakes_are_named(call, words: str) -> None:
    with pytest.raises(InputError) as raised:
        call()
    assert words in str(raised.value)


def test_outside_a_job_nothing_happens_and_nothing_is_loaded() -> None:
    code = (
        "import sys, herringbone\n"
        "herringbone.log_metrics({'loss': 0.5}, step=1); herringbone.log_progress(1, 2)\n"
        "print(*sorted(name for name in sys.modules if name.startswith(('herringbone', 'msgspec', 'json'))))"
    )
    environment = {name: value for name, value in os.environ.items() if name != emit.VARIABLE}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.split() == [
        "herringbone",
        "herringbone_contract",
        "herringbone_contract.constants",
        "herringbone_contract.events",
        "herringbone_contract.events.emit",
        "herringbone_contract.events.script",
    ]
