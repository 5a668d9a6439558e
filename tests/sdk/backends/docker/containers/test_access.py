"""`herringbone shell` and `debug` get into a container through the engine alone."""

import sys

import pytest
from tests.conftest import run
from tests.shells import SCRIPT, WORDS, on_terminal, shell, through
from tests.waiting import wait_until

from herringbone.access.requests import ask, way_into
from herringbone.backends.registry import backend_of_job
from herringbone_contract.errors import RequestError

pytestmark = pytest.mark.docker


def test_a_running_container_can_be_entered(submit, engine):
    job = submit(SCRIPT, instance_count=2)
    wait_until(lambda: [line.text for line in job.logs()].count("ready") == 2)
    try:
        # Both streams, the end of the input and the exit code come through.
        result = shell(job.name, "--host", "algo-2", "--", "python3", "-c", WORDS, input="typed")
        assert (result.returncode, result.stdout, result.stderr) == (1, "/opt/ml/code algo-2\n", "typed\n")
        result = shell(job.name, "--", "$HOME", input="")
        assert (result.returncode, result.stderr) == (127, "herringbone: $HOME: no such program on this host\n")
        code, shown = on_terminal(job.name, [("$ ", b"stty size; exit 4\n")])
        assert code == 4
        assert "40 100" in shown

        backend = backend_of_job(job.name)
        answers = ask(backend, job.name, "dance")
        assert sorted(answers) == ["algo-1", "algo-2"]
        assert all("knows no request" in answer["error"] for answer in answers.values())
        # The image has no debugpy, and the message says what to do.
        result = run(sys.executable, "-m", "herringbone", "debug", job.name, "--rank", "1")
        assert result.returncode == 1
        assert "algo-2: rank 1: debugpy cannot be imported there" in result.stderr
        assert "add the line `debugpy` to the requirements.txt" in result.stderr

        _, access = way_into(backend, job.name, "algo-2")
        assert through(access, 5678, b"hello") == b"HELLO"
        engine.kill(f"{job.name}-algo-2")
    finally:
        job.stop(0.5)
        job.wait()
    with pytest.raises(RequestError, match="its hosts are gone"):
        way_into(backend, job.name)
