"""Which engine is asked, and what a user without one is told."""

import json
import socket

import pytest

from herringbone.engine.docker_py import Place, connect, explain, places
from herringbone_contract.errors import EngineError, UnsupportedError


def addresses(environ, home):
    return [place.address for place in places(environ, home)]


def test_what_the_user_names_is_the_only_engine(tmp_path):
    wish = {"DOCKER_HOST": "tcp://gpu:2376", "DOCKER_CONTEXT": "desktop", "XDG_RUNTIME_DIR": "/run/user/7"}
    assert list(places(wish, tmp_path)) == [Place("DOCKER_HOST", "tcp://gpu:2376")]


def test_without_a_wish_the_usual_sockets_are_tried(tmp_path):
    assert addresses({"XDG_RUNTIME_DIR": "/run/user/7"}, tmp_path) == [
        "unix:///var/run/docker.sock",
        "unix:///run/user/7/docker.sock",
        f"unix://{tmp_path}/.docker/run/docker.sock",
    ]


def test_the_default_context_is_no_context(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"currentContext": "default"}))
    assert len(addresses({"DOCKER_CONFIG": str(tmp_path)}, tmp_path)) == 2


def test_a_context_that_is_not_there_is_named(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"currentContext": "desktop-of-old"}))
    with pytest.raises(EngineError, match="context 'desktop-of-old' does not exist"):
        addresses({"DOCKER_CONFIG": str(tmp_path)}, tmp_path)


def test_no_engine_says_what_was_tried_and_what_to_start(tmp_path):
    with pytest.raises(EngineError) as raised:
        connect({"DOCKER_HOST": f"unix://{tmp_path}/none.sock"})
    assert str(raised.value).splitlines()[:2] == [
        "no container engine answers. Tried:",
        f"  DOCKER_HOST: unix://{tmp_path}/none.sock: not there",
    ]
    assert "systemctl start docker" in str(raised.value)


def test_nobody_at_a_port(unused_port):
    with pytest.raises(EngineError, match=f"tcp://127.0.0.1:{unused_port}: connection refused"):
        connect({"DOCKER_HOST": f"tcp://127.0.0.1:{unused_port}"})


def test_a_socket_that_one_may_not_use():
    said = explain([("the system's socket: unix:///var/run/docker.sock", PermissionError(13, "Permission denied"))])
    assert "docker.sock: permission denied\nThe engine runs, but you may not use it: `sudo usermod -aG docker" in said


def test_a_server_that_is_no_engine_does_not_pass_for_one(tmp_path):
    path = tmp_path / "docker.sock"
    with socket.socket(socket.AF_UNIX) as engine:
        engine.bind(str(path))
        with pytest.raises(EngineError, match="connection refused"):
            connect({"DOCKER_HOST": f"unix://{path}"})


def test_ssh_without_its_library_says_what_to_install():
    try:
        import paramiko  # noqa: F401
    except ImportError:
        with pytest.raises(UnsupportedError, match=r"pip install 'docker\[ssh\]'"):
            connect({"DOCKER_HOST": "ssh://user@host"})


@pytest.fixture
def unused_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@pytest.mark.docker
def test_the_engine_here(engine):
    assert engine.version()["ApiVersion"]
