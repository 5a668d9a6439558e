"""Requests, a shell and a tunnel into a node of a running Slurm job."""

from __future__ import annotations

import os
import sys

import pytest

from herringbone.access.requests import ask, way_into
from herringbone.backends.registry import backend_of_job
from herringbone.backends.slurm.access import NodeWays, srun_words
from herringbone.backends.slurm.commands import SlurmCommands
from herringbone.system.remote_line import PLAIN_SSH
from tests.slurm.conftest import rank_lines

SCRIPT = """
import os, socket
server = socket.create_server(("127.0.0.1", 23456 + int(os.environ["RANK"])))
print("ready", flush=True)
while True:
    connection, _ = server.accept()
    connection.sendall(connection.recv(100) + os.environ["RANK"].encode())
    connection.close()
"""


@pytest.mark.slurm
def test_a_running_job_can_be_asked_and_entered(submit, cluster, home, capfd):
    job = submit(SCRIPT, instance_count=2)
    cluster.wait(lambda: rank_lines(job) == ["ready", "ready"])
    backend = backend_of_job(job.name)
    answers = ask(backend, job.name, "dance")
    assert sorted(answers) == ["algo-1", "algo-2"]
    assert all("knows no request" in answer["error"] for answer in answers.values())

    _, access = way_into(backend, job.name, "algo-2")
    capfd.readouterr()
    program = "import os; print(os.environ['SM_CURRENT_HOST'], os.environ['SLURMD_NODENAME'], os.getcwd()); exit(5)"
    assert access.run([sys.executable, "-c", program]) == 5
    code = str(home.job(job.name).host("algo-2") / "code")
    assert capfd.readouterr().out.split() == ["algo-2", backend._report(job.name)["nodes"][1], code]
    with access.connect(23457) as connection:
        connection.sendall(b"rank ")
        assert connection.recv(100) == b"rank 1"
    job.stop(1)
    assert job.wait().status == "Stopped"
    # The signal has not killed the controller, and it has refused no request.
    assert "requests" not in home.job(job.name).controller_words()


def test_the_words_are_sruns_own():
    assert srun_words("7", "node-2", "/jobs/a", terminal=False) == [
        *("srun", "--jobid=7", "--overlap", "--nodelist=node-2", "--nodes=1", "--ntasks=1"),
        *("--chdir=/jobs/a", "--mpi=none", "--quiet"),
    ]
    assert srun_words("7", "node-2", "/jobs/a", terminal=True)[-1] == "--pty"


def test_a_login_node_gets_each_word_quoted():
    slurm = SlurmCommands(os.environ, "me@login")
    ways = NodeWays(slurm, "7", "node-2", folder="/jobs/a", base="/jobs/a/ml", python="python3", name="a")
    *ssh, text = ways.enter(["echo", "$HOME; ls"], terminal=True)
    assert ssh == ["ssh", *PLAIN_SSH, "-tt", "--", "me@login"]
    assert text.endswith("python3 -m herringbone_entry.enter echo '$HOME; ls'")
    assert ways.relay(5678)[:8] == ["ssh", *PLAIN_SSH, "-T", "--", "me@login"]
    assert ways.relay(5678)[-1].endswith("python3 -m herringbone_entry.relay 5678")
