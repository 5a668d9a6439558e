"""Every text that a user gives: control characters, options and traversal are refused at `plan`, or encoded."""

import contextlib
import os
import socket
import threading
import typing

import msgspec
import pytest

from herringbone import Estimator
from herringbone.backends.ssh.machines.inventory import parse_inventory
from herringbone.cli.__main__ import main
from herringbone.engine.client import Engine, send_file
from herringbone.plan.git import GitConfig
from herringbone.plan.inputs import FileSystemInput, TrainingInput
from herringbone.plan.options.slurm import SlurmSettings
from herringbone.plan.options.typed import _FREE_TEXTS, Options
from herringbone.records.home import Home
from herringbone_contract.errors import EngineError, JobNameError, UsageError

CONTROL = ["a\nb", "a\r\nX: y", "a\0b", "\x1b[2Ja", "a\x7f", "a\x9bb", "a\u2028b", "\ud800"]
ELSEWHERE = ["..", ".", "../../x", "/etc/passwd", "a/../../b", "a/b"]
AN_OPTION = "-oProxyCommand=touch /tmp/x"


def estimator(**options):
    return Estimator(**{"entry_point": "train.py", "instance_type": "local_process", **options})


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a script, and a home next to it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HERRINGBONE_HOME", str(tmp_path / "home"))
    (tmp_path / "train.py").touch()
    (tmp_path / "data").mkdir()
    return tmp_path


def text_options():
    """Yield each option that can hold a text, with a function that puts a text into it."""
    for field in msgspec.structs.fields(Options):
        if field.name in _FREE_TEXTS or field.name == "sagemaker_session":
            continue
        # An option that CreateTrainingJob has, too, names its member next to its type.
        kind = typing.get_args(field.type)[0] if hasattr(field.type, "__metadata__") else field.type
        if kind is str or "str" in [getattr(part, "__name__", "") for part in typing.get_args(kind)]:
            yield field.name, lambda text: text
        elif "tuple[str" in str(kind):
            yield field.name, lambda text: [text]
        elif "dict" in str(kind):
            yield field.name, lambda text: {"Name": text}


SINGLE = [(name, put) for name, put in text_options()]


def test_the_list_of_options_is_no_short_one():
    assert len(SINGLE) >= 20
    assert {"output_path", "role", "tags", "dependencies", "shm_size", "base_job_name"} <= {name for name, _ in SINGLE}


@pytest.mark.parametrize("text", CONTROL)
@pytest.mark.parametrize(("name", "put"), SINGLE, ids=[name for name, _ in SINGLE])
def test_no_option_takes_a_control_character(name, put, text):
    with pytest.raises(UsageError) as caught:
        estimator(**{name: put(text)})
    assert name in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("text", CONTROL)
@pytest.mark.parametrize(
    "given",
    [
        lambda text: estimator(entry_point=text),
        lambda text: estimator(source_dir=text),
        lambda text: estimator(image_uri=text),
        lambda text: estimator(instance_type=f"slurm:{text}"),
        lambda text: estimator(instance_type=f"ssh:{text}"),
        lambda text: estimator(hyperparameters={text: 1}).plan(),
        lambda text: estimator(distribution={"mpi": {"enabled": True, "custom_mpi_options": text}}),
        lambda text: estimator(distribution={text: {"enabled": True}}),
        lambda text: estimator(git_config=GitConfig("https://h/r", branch=text)),
        lambda text: estimator(slurm={"account": text}),
        lambda text: estimator(container_arguments=["a\0b", text]),
        lambda text: estimator(
            instance_type=None,
            instance_groups=[{"instance_group_name": text, "instance_type": "local", "instance_count": 1}],
        ),
        lambda text: estimator().plan({text: "data"}),
        lambda text: estimator().plan(text),
        lambda text: estimator().plan(TrainingInput("data", content_type=text)),
        lambda text: estimator().plan(FileSystemInput("fs-1", "EFS", text)),
        lambda text: estimator().plan(job_name=text),
    ],
)
def test_no_other_argument_takes_one_either(folder, given, text):
    with pytest.raises(UsageError) as caught:
        given(text)
    assert str(caught.value).isprintable()


def test_a_secret_with_a_line_break_is_not_quoted():
    with pytest.raises(UsageError, match=r"git_config.token: the text has a control character") as caught:
        estimator(git_config={"repo": "https://h/r", "token": "hunter2\n"})
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "given",
    [
        lambda: estimator(image_uri=AN_OPTION),
        lambda: estimator(image_uri="-v"),
        lambda: estimator(git_config={"repo": AN_OPTION}),
        lambda: estimator(git_config={"repo": "https://h/r", "branch": "--upload-pack=x"}),
        lambda: estimator().plan(job_name="-v"),
        *(lambda name=name: estimator(slurm={name: "--wrap=x"}) for name in ("account", "qos", "gres", "login")),
        lambda: SlurmSettings() and estimator(slurm={"constraint": "-x"}),
        *(
            lambda key=key: parse_inventory({"hosts": [{"name": "a", key: "-oProxyCommand=x"}]}, "hosts.yaml")
            for key in ("name", "host", "user", "work_folder", "python", "address", "interface")
        ),
    ],
)
def test_no_value_can_be_read_as_an_option(given):
    with pytest.raises(UsageError):
        given()


@pytest.mark.parametrize("name", ELSEWHERE)
def test_names_lead_to_no_other_folder(folder, name):
    home = Home(folder / "home")
    with pytest.raises(JobNameError):
        home.job(name)
    with pytest.raises(JobNameError):
        home.job("a").host(name)
    with pytest.raises(JobNameError):
        home.job("a").log(name)
    with pytest.raises(UsageError):
        estimator().plan(job_name=name)
    if name not in (".", ".."):
        with pytest.raises(UsageError):
            estimator().plan({name: "data"})


class EngineStandIn:
    """A server that keeps the requests that it gets, and refuses them."""

    def __init__(self, path):
        self.requests = []
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(path)
        self._server.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._server.accept()
                with connection:
                    connection.settimeout(5)
                    request = b""
                    while b"\r\n\r\n" not in request and (piece := connection.recv(65536)):
                        request += piece
                    self.requests.append(request)
                    connection.sendall(b"HTTP/1.0 404 Not Found\r\n\r\n{}")

    def close(self):
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join()


INJECTION = " HTTP/1.1\r\nHost: x\r\n\r\nDELETE /containers/precious?force=1"


@pytest.mark.parametrize("name", [*CONTROL, *ELSEWHERE, INJECTION, "a b", "a?b=c", "a#b", "a%2e%2e", "\udcff", "ü"])
def test_a_name_is_one_part_of_one_request(tmp_path, monkeypatch, name):
    """An image's name with line breaks was a request of its own, and removed a container during `plan`."""
    monkeypatch.chdir(tmp_path)
    stand_in = EngineStandIn("e.sock")
    engine = Engine("unix://e.sock")
    for call in (
        lambda: engine.get(f"/images/{name}/json"),
        lambda: engine.post(f"/containers/{name}/start", signal=name),
        lambda: list(engine.save(name)),
        lambda: list(engine.stream("POST", f"/images/{name}/push", {"tag": name})),
        lambda: engine.upload(name, name, lambda feed: None),
        lambda: list(engine.logs(name)),
        lambda: engine.download(name, name).__enter__(),
    ):
        with pytest.raises(EngineError):
            call()
    stand_in.close()
    # A refused name may leave a connection without a request.
    for request in filter(None, stand_in.requests):
        head = request.partition(b"\r\n\r\n")[0].decode("ascii")
        line, *fields = head.split("\r\n")
        method, target, version = line.split(" ")
        assert (method, version[:7]) in {(known, "HTTP/1.") for known in ("GET", "POST", "PUT")}
        assert not {".", ".."} & set(target.partition("?")[0].split("/"))
        assert [field for field in fields if field.startswith("Host:")] == ["Host: engine"]
        assert "precious" not in "".join(fields)


def test_a_header_has_one_line():
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(EngineError, match=r"X-Registry-Auth .* has a control character"):
        send_file(ours, "POST /x", {}, None, {"X-Registry-Auth": "a\r\nDELETE /y"})


VERBS = [["logs"], ["stop"], ["describe"], ["download"], ["images", "test"], ["images", "push"], ["hosts", "check"]]


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
@pytest.mark.parametrize("name", ["\x1b[2J", "a\nb", "../../x", "/etc/passwd", "a'; DROP TABLE jobs; --"])
def test_a_name_on_the_command_line_is_shown_as_text(folder, monkeypatch, capsys, verb, name):
    # No engine and no service: an address where nobody answers.
    monkeypatch.setenv("DOCKER_HOST", f"unix://{folder}/none.sock")
    words = [*verb, name, *(["r.example/x"] if verb == ["images", "push"] else [])]
    with contextlib.suppress(SystemExit):
        assert main(words) != 0
    errors = capsys.readouterr().err
    assert "Traceback" not in errors
    assert all(line.isprintable() for line in errors.split("\n"))
    assert not [path for path in folder.rglob("*") if path.name == "x"]


def test_no_message_of_ours_reaches_a_terminal_raw(folder, capsys, monkeypatch):
    monkeypatch.setenv("HERRINGBONE_HOME", f"{folder}/a\x1b[2Jb\nc")
    assert os.environ.get("HERRINGBONE_DEBUG") is None
    main(["describe", "x"])
    assert capsys.readouterr().err.startswith(f"herringbone: no job 'x' in {folder}/a\\x1b[2Jb\nc; ")
