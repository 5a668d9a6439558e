"""The private line from a controller to a supervisor."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from herringbone_contract.errors import ContractError
from herringbone_entry.private import read_private
from herringbone_entry.processes import caught

SCRIPT = """
import os, sys, time
print(os.environ["WANDB_API_KEY"], sorted(name for name in os.environ if name.startswith("HERRINGBONE_P")))
print(repr(sys.stdin.read()))
open(os.environ["ROOT"] + "/up", "w")
if "HOLD" in os.environ:
    time.sleep(60)
"""


def give_line(job, line: bytes) -> int:
    """Give the job a private descriptor; return the controller's end of it."""
    reader, writer = os.pipe()
    os.write(writer, line)
    job.environment["HERRINGBONE_PRIVATE_FD"] = str(reader)
    job.descriptors.append(reader)
    return writer


def line(**fields: object) -> bytes:
    return json.dumps(fields).encode() + b"\n"


def test_the_environment_reaches_the_ranks_and_the_line_does_not(make_job) -> None:
    job = make_job()
    job.write(SCRIPT)
    writer = give_line(job, line(environment={"WANDB_API_KEY": "abc"}))
    ended = job.run()["algo-1"]
    os.close(writer)
    os.close(job.descriptors[0])
    assert ended.lines == ["[algo-1:0] abc []", "[algo-1:0] ''"]
    assert ended.code == 0


def test_the_end_of_the_private_line_stops_the_job(make_job) -> None:
    job = make_job(HOLD="1")
    job.write(SCRIPT)
    writer = give_line(job, line(environment={"WANDB_API_KEY": "abc"}))
    job.start()
    job.seen("up")
    os.close(writer)
    os.close(job.descriptors[0])
    assert job.wait(timeout=10.0)["algo-1"].code == 143


def test_the_line_carries_the_key(make_job) -> None:
    job = make_job(hosts=2, over="tcp")
    job.write("print('together')", sagemaker_torch_distributed_enabled=True)
    writers = []
    for host in job.hosts:
        writers.append(give_line(job, line(key="c0ffee")))
        job.start(host, HERRINGBONE_KEY_FILE="/nowhere")
    ended = job.wait()
    for descriptor in [*writers, *job.descriptors]:
        os.close(descriptor)
    assert [result.code for result in ended.values()] == [0, 0], ended


def test_a_stop_while_the_line_is_awaited(make_job) -> None:
    job = make_job()
    job.write("print('never')")
    writer = give_line(job, b'{"environment"')
    job.start()
    status = Path(f"/proc/{job.processes['algo-1'].pid}/status")
    while not caught(status.read_text(), signal.SIGTERM):
        time.sleep(0.01)
    job.processes["algo-1"].send_signal(signal.SIGTERM)
    ended = job.wait(timeout=10.0)["algo-1"]
    os.close(writer)
    os.close(job.descriptors[0])
    assert (ended.code, ended.failure) == (143, None)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"environ', "it ended before its line did; the program that started this host is gone"),
        (b"secret!\n", "the line there is not the JSON of an object"),
        (b"[1]\n", "the line there is not the JSON of an object"),
        (line(key="xyz"), "the line there is not the JSON of an object"),
        (line(environment={"A": 1}), "a name or a value of the environment is not text"),
    ],
)
def test_a_wrong_line_is_refused_and_never_shown(content: bytes, message: str) -> None:
    reader, writer = os.pipe()
    os.write(writer, content)
    os.close(writer)
    with pytest.raises(ContractError, match=message) as refused:
        read_private({"HERRINGBONE_PRIVATE_FD": str(reader)})
    assert "secret" not in str(refused.value)


def test_without_the_variable_nothing_is_read() -> None:
    assert read_private({}) is None
