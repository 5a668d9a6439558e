"""Requests, a shell and a tunnel into a machine of a running ssh job."""

import socket

import pytest

from herringbone.access.requests import ask, way_into
from herringbone.backends.ssh.follow.access import MachineWays
from herringbone.backends.ssh.machines.inventory import Machine
from herringbone.backends.ssh.transport.openssh import OpenSSHTransport

from .conftest import expect

# Each machine has a loopback interface of its own, where the rank's server listens.
SCRIPT = """
import os, socket
server = socket.create_server(("127.0.0.1", 5678))
print("ready", os.environ["RANK"], flush=True)
while True:
    connection, _ = server.accept()
    connection.sendall(connection.recv(100) + os.environ["RANK"].encode())
    connection.close()
"""


@pytest.mark.ssh
def test_a_running_job_can_be_asked_and_entered(submit, backend, capfd):
    job = submit(SCRIPT, hosts=2)
    expect(job, "ready 0", "ready 1")
    answers = ask(backend, job.name, "dance")
    assert sorted(answers) == ["algo-1", "algo-2"]
    assert all("knows no request" in answer["error"] for answer in answers.values())

    _, access = way_into(backend, job.name, "algo-2")
    capfd.readouterr()
    program = "import os; print(os.environ['SM_CURRENT_HOST'], os.path.exists('train.py')); raise SystemExit(5)"
    assert access.run(["python3", "-c", program]) == 5
    assert capfd.readouterr().out.split() == ["algo-2", "True"]
    for _ in range(2):
        with access.connect(5678) as connection:
            connection.sendall(b"rank ")
            assert connection.recv(100) == b"rank 1"
            connection.shutdown(socket.SHUT_WR)
    job.stop(1)
    assert job.wait().status == "Stopped"


def test_the_words_are_sshs_own():
    transport = OpenSSHTransport()
    machine = Machine(name="gpu-2", user="me", port=2222)
    place = {"python": "/w/environments/1/bin/python", "work": "/my work"}
    ways = MachineWays(transport, machine, "digits-1", "algo-2", place)
    words = ways.enter(["echo", "$HOME; ls"], terminal=True)
    assert words[:2] == ["ssh", "-tt"]
    assert words[-7:-1] == ["-p", "2222", "-l", "me", "--", "gpu-2"]
    assert words[-1] == (
        "/w/environments/1/bin/python -I -m herringbone.backends.ssh.agent.enter '/my work' digits-1 algo-2 "
        "echo '$HOME; ls'"
    )
    assert ways.enter([], terminal=False)[1] == "-T"
    assert ways.relay(5678)[-4:] == ["-W", "127.0.0.1:5678", "--", "gpu-2"]
