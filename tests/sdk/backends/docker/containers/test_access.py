"""`herringbone shell` and `debug` get into a container through the engine alone."""

import fcntl
import os
import pty
import socket
import struct
import subprocess
import sys
import termios
import threading

import pytest
from tests.conftest import run
from tests.waiting import wait_until

from herringbone.access.requests import ask, way_into
from herringbone.access.tunnel import Tunnel
from herringbone.backends.registry import backend_of_job
from herringbone_contract.errors import RequestError

pytestmark = pytest.mark.docker
# The rank has a server on its own loopback, as a debugger would be.
SCRIPT = """
import socket
server = socket.create_server(("127.0.0.1", 5678))
print("ready", flush=True)
while True:
    connection, _ = server.accept()
    connection.sendall(connection.recv(100).upper())
    connection.close()
"""
WORDS = "import os, sys; print(os.getcwd(), os.environ['SM_CURRENT_HOST']); sys.exit(sys.stdin.read())"


def shell(name, *words, **options):
    command = [sys.executable, "-m", "herringbone", "shell", name, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, **options)


def on_terminal(name, typed):
    """Run a shell on a new terminal of 40 x 100, type a line, and return the exit code and all that was shown."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    command = [sys.executable, "-m", "herringbone", "shell", name]
    child = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
    os.close(theirs)
    shown = b""
    while True:
        try:
            piece = os.read(ours, 1000)
        except OSError:
            break
        if not piece:
            break
        shown += piece
        # The prompt of a user, or of root.
        if typed and (b"$ " in shown or b"# " in shown):
            os.write(ours, typed)
            typed = b""
    os.close(ours)
    return child.wait(timeout=30), shown.decode()


def test_a_running_container_can_be_entered(submit, engine):
    job = submit(SCRIPT, instance_count=2)
    wait_until(lambda: [line.text for line in job.logs()].count("ready") == 2)
    try:
        # Both streams, the end of the input and the exit code come through.
        result = shell(job.name, "--host", "algo-2", "--", "python3", "-c", WORDS, input="typed")
        assert (result.returncode, result.stdout, result.stderr) == (1, "/opt/ml/code algo-2\n", "typed\n")
        result = shell(job.name, "--", "$HOME", input="")
        assert (result.returncode, result.stderr) == (127, "herringbone: $HOME: no such program on this host\n")
        code, shown = on_terminal(job.name, b"stty size; exit 4\n")
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
        with Tunnel(access, 5678) as tunnel:
            threading.Thread(target=serve, args=(tunnel,), daemon=True).start()
            with socket.create_connection(("127.0.0.1", tunnel.port), timeout=30) as connection:
                connection.sendall(b"hello")
                assert connection.recv(100) == b"HELLO"
        engine.kill(f"{job.name}-algo-2")
    finally:
        job.stop(0.5)
        job.wait()
    with pytest.raises(RequestError, match="its hosts are gone"):
        way_into(backend, job.name)


def serve(tunnel):
    with tunnel._listener:
        client, _ = tunnel._listener.accept()
        tunnel._relay(client, print)
