"""`herringbone debug` and `herringbone shell` on a real job of this machine."""

import contextlib
import json
import socket
import sys
import threading

import pytest
from tests.conftest import run

from herringbone import Estimator
from herringbone.access.debugger import Debuggee, instructions, launch_configuration, parse_answer, source_folder
from herringbone.access.requests import ask
from herringbone.access.tunnel import Tunnel
from herringbone.backends.registry import backend_of_job
from herringbone.protocols import host_access as host_module
from herringbone.protocols.host_access import CommandAccess, LocalAccess
from herringbone_contract.errors import RequestError

DEBUGGEE = Debuggee("digits-1", 1, "algo-2", 43125, 77, "/opt/ml/code", "3.11.7", "1.8.22")

# Forked children, such as a data loader's workers, pass the line of the breakpoint, too, and must not stop there.
# Python 3.12 and newer warn of such a fork, because the debugger has threads.
SCRIPT = """
import os, time, warnings
warnings.simplefilter("ignore", DeprecationWarning)
def work():
    return os.getpid()
print("ready", flush=True)
rank = os.getpid()
while rank:
    time.sleep(0.1)
    child = os.fork()
    if not child:
        work()
        os._exit(0)
    os.waitpid(child, 0)
    work()
"""
WORK_LINE = 5


class Editor:
    """The part of the debug adapter protocol that an editor needs for one breakpoint."""

    def __init__(self, port):
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self._file = self._socket.makefile("rb")
        self._number = 0
        self.messages = []

    def send(self, command, **arguments):
        self._number += 1
        message = {"seq": self._number, "type": "request", "command": command, "arguments": arguments}
        content = json.dumps(message).encode()
        self._socket.sendall(b"Content-Length: %d\r\n\r\n%b" % (len(content), content))
        return self._number

    def wait(self, kind, name):
        """Return the first event, or response to a command, of this name."""
        while True:
            for message in self.messages:
                if message["type"] == kind and message.get("event", message.get("command")) == name:
                    self.messages.remove(message)
                    return message
            size = int(self._file.readline().split()[1])
            self._file.readline()
            self.messages.append(json.loads(self._file.read(size)))

    def ask(self, command, **arguments):
        self.send(command, **arguments)
        answer = self.wait("response", command)
        assert answer["success"], str(answer)
        return answer.get("body")

    def close(self):
        self._file.close()
        self._socket.close()


def stop_at_breakpoint(configuration):
    """Attach as an editor does, stop in the user's loop, and return the values of two expressions there."""
    (mapping,) = configuration["pathMappings"]
    with contextlib.closing(Editor(configuration["connect"]["port"])) as editor:
        editor.ask("initialize", adapterID="test", clientID="test")
        editor.send("attach", **configuration)
        editor.wait("event", "initialized")
        source = {"path": f"{mapping['localRoot']}/train.py"}
        (point,) = editor.ask("setBreakpoints", source=source, breakpoints=[{"line": WORK_LINE}])["breakpoints"]
        assert point["verified"]
        editor.ask("configurationDone")
        thread = editor.wait("event", "stopped")["body"]["threadId"]
        frame = editor.ask("stackTrace", threadId=thread)["stackFrames"][0]
        values = [
            editor.ask("evaluate", expression=expression, frameId=frame["id"])["result"]
            for expression in ("os.getpid() == rank", "os.environ['RANK']")
        ]
        editor.send("disconnect")
        editor.wait("response", "disconnect")
    return frame["source"]["path"], frame["line"], values


@pytest.fixture
def job(home, script):
    script(SCRIPT)
    estimator = Estimator(entry_point="train.py", source_dir=".", instance_type="local_process", instance_count=2)
    estimator.fit(wait=False, job_name="looked-at")
    job = estimator.latest_training_job
    try:
        lines = job.logs(follow=True, pattern="ready")
        for _ in range(2):
            next(lines)
        yield job
    finally:
        job.stop(0.5)
        job.wait()


def test_a_running_job_can_be_debugged_and_entered(job, herringbone, home):
    pytest.importorskip("debugpy")
    backend = backend_of_job(job.name)
    # A request that no supervisor knows gets an answer from each, and does no harm.
    answers = ask(backend, job.name, "dance")
    assert sorted(answers) == ["algo-1", "algo-2"]
    assert all("knows no request 'dance'" in answer["error"] for answer in answers.values())

    code, output, errors = herringbone("debug", job.name, "--rank", "1", "--json")
    assert (code, errors) == (0, "")
    configuration = json.loads(output)
    assert configuration["pathMappings"] == [
        {"localRoot": str(home.path.parent / "work"), "remoteRoot": str(home.job(job.name).host("algo-2") / "code")}
    ]
    path, line, values = stop_at_breakpoint(configuration)
    assert (path, line) == (f"{configuration['pathMappings'][0]['localRoot']}/train.py", WORK_LINE)
    assert values == ["True", "'1'"]
    # The rank listens once; a second debugger comes to the same port.
    assert json.loads(herringbone("debug", job.name, "--rank", "1", "--json")[1])["connect"] == configuration["connect"]
    code, _, errors = herringbone("debug", job.name, "--rank", "2")
    assert (code, errors) == (
        1,
        "herringbone: job looked-at: no host runs a rank 2; ranks count from 0, and one that has ended is gone\n",
    )

    program = "import os; print(os.getcwd(), os.environ['SM_CURRENT_HOST'], 'RANK' in os.environ); raise SystemExit(7)"
    shell = run(
        sys.executable, "-m", "herringbone", "shell", job.name, "--host", "algo-2", "--", sys.executable, "-c", program
    )
    folder = home.job(job.name).host("algo-2") / "code"
    assert (shell.returncode, shell.stdout) == (7, f"{folder} algo-2 False\n")
    shell = run(sys.executable, "-m", "herringbone", "shell", job.name, "--", "no such program", ";", "$HOME")
    assert shell.returncode == 127
    assert shell.stderr == "herringbone: no such program: no such program on this host\n"
    assert job.status == "InProgress"
    # No word of the conversations is in the log, which has the two lines of the script.
    assert [line.text for line in job.logs() if line.rank is not None] == ["ready", "ready"]


def test_the_configuration_is_that_of_vs_code():
    assert launch_configuration(DEBUGGEE, port=5678, source="/home/me/digits") == {
        "name": "digits-1, rank 1",
        "type": "debugpy",
        "request": "attach",
        "connect": {"host": "127.0.0.1", "port": 5678},
        "pathMappings": [{"localRoot": "/home/me/digits", "remoteRoot": "/opt/ml/code"}],
        "justMyCode": False,
    }
    text = instructions(DEBUGGEE, port=5678, source=None)
    assert "rank 1 of job digits-1 waits for a debugger: debugpy 1.8.22, Python 3.11.7, process 77 of algo-2" in text
    assert '"localRoot": "${workspaceFolder}"' in text
    assert "connect to debugpy at 127.0.0.1:5678, and map the folder of the script to /opt/ml/code" in text
    assert source_folder({"source": None}) is None


@pytest.mark.parametrize("value", [{}, {"port": 0, "pid": 1}, {"port": "22; rm", "pid": 1}, {"port": True, "pid": 1}])
def test_an_answer_that_names_no_port_is_refused(value):
    with pytest.raises(RequestError, match="names no port"):
        parse_answer("a", 0, {"host": "algo-1", "value": value})


class Echo:
    """A way to a host on which a program answers each line with itself."""

    is_here = False

    def connect(self, port):
        ours, theirs = socket.socketpair()

        def answer():
            with theirs:
                while line := theirs.recv(100):
                    theirs.sendall(b"%d %b" % (port, line))

        threading.Thread(target=answer, daemon=True).start()
        return ours


def test_a_tunnel_relays_connections_and_listens_on_the_loopback_alone():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        with pytest.raises(RequestError, match=f"port {number} of this machine: .*; name another with --port"):
            Tunnel(Echo(), 1, wanted=number)
        tunnel = Tunnel(Echo(), number)
    assert tunnel.port != number
    assert tunnel._listener.getsockname()[0] == "127.0.0.1"

    def serve():
        # The end of the listener is the end of the test.
        with contextlib.suppress(OSError):
            tunnel.serve(print)

    threading.Thread(target=serve, daemon=True).start()
    for _ in range(2):
        with socket.create_connection(("127.0.0.1", tunnel.port), timeout=10) as connection:
            connection.sendall(b"hello")
            assert connection.recv(100) == b"%d hello" % number
    tunnel._listener.shutdown(socket.SHUT_RDWR)
    tunnel._listener.close()


def test_a_relay_joins_its_input_with_a_port():
    """As `docker exec`, `srun` and others run it."""

    class Ways:
        def relay(self, port):
            return host_module.relay_words(sys.executable, port)

    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        CommandAccess(Ways()).connect(server.getsockname()[1]) as connection,
    ):
        connection.sendall(b"question")
        there, _ = server.accept()
        with there:
            assert there.recv(100) == b"question"
            there.sendall(b"answer")
        assert connection.recv(100) == b"answer"
        assert connection.recv(100) == b""


def test_words_of_a_command_stay_words(tmp_path):
    words = host_module.enter_words("/usr/bin/python3", "/jobs/a/hosts/algo-1/ml", "a", ["sh", "-c", "echo $HOME; ls"])
    assert words == [
        "env", "SAGEMAKER_BASE_DIR=/jobs/a/hosts/algo-1/ml", "TRAINING_JOB_NAME=a",
        "/usr/bin/python3", "-m", "herringbone_entry.enter", "sh", "-c", "echo $HOME; ls",
    ]  # fmt: skip
    assert LocalAccess("python", tmp_path, "a", tmp_path).is_here
    assert host_module.call([sys.executable, "-c", "import os; os.kill(os.getpid(), 15)"]) == 143
    with pytest.raises(RequestError, match="no-such-program is not on this machine"):
        host_module.call(["no-such-program"])
