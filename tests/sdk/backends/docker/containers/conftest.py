"""Fixtures for jobs in containers of a real engine; each test checks that nothing is left in the engine."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from herringbone import PyTorch, TrainingJob
from herringbone.records.home import Home


@pytest.fixture
def of_home(engine: Any, home: Home) -> Callable[[], list[str]]:
    """Returns the names of the containers and networks of this test's jobs."""
    filters = {"label": f"dev.herringbone.home={home.path}"}

    def names() -> list[str]:
        containers = [container["Names"][0].lstrip("/") for container in engine.containers(all=True, filters=filters)]
        return sorted(containers + [network["Name"] for network in engine.networks(filters=filters)])

    return names


@pytest.fixture(autouse=True)
def nothing_left(of_home: Callable[[], list[str]], engine: Any) -> Iterator[None]:
    yield
    left = of_home()
    for name in left:
        if name.endswith("-hosts"):
            engine.remove_network(name)
        else:
            engine.remove_container(name, force=True)
    assert left == []


@pytest.fixture
def submit(script: Callable[..., Path], image: str) -> Callable[..., TrainingJob]:
    """Submits a job of the given script, as `fit(wait=False)` does."""

    def start(text: str, **options: Any) -> TrainingJob:
        script(text)
        inputs, job_name = options.pop("inputs", None), options.pop("job_name", None)
        estimator = PyTorch("train.py", **{"instance_type": "local", "image_uri": image, **options})
        return estimator.fit(inputs, wait=False, job_name=job_name)

    return start


@pytest.fixture
def derived(engine: Any, image: str, home: Home) -> Iterator[Callable[..., str]]:
    """Builds an image from the test's image by some lines of a Dockerfile, and files that they copy."""
    names = []

    def build(lines: str, **files: str) -> str:
        folder = Path.cwd() / f"image-{len(names)}"
        folder.mkdir()
        for file, text in {"Dockerfile": f"FROM {image}\n{lines}\n", **files}.items():
            (folder / file).write_text(text)
        name = f"hb-test-{home.path.parent.name.lower()}:{len(names)}"
        output = list(engine.build(path=str(folder), tag=name, decode=True, rm=True))
        assert not [event for event in output if "error" in event], output
        names.append(name)
        return name

    yield build
    for name in reversed(names):
        engine.remove_image(name)


class Wire:
    """A TCP address that leads to an engine's socket, until it is cut."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._ends: list[socket.socket] = []
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._forward, daemon=True).start()

    def cut(self) -> None:
        """Close it, and every connection through it."""
        for end in [self._listener, *self._ends]:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _forward(self) -> None:
        while True:
            try:
                theirs, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._join, args=(theirs,), daemon=True).start()

    def _join(self, theirs: socket.socket) -> None:
        with theirs, socket.socket(socket.AF_UNIX) as engine:
            self._ends += [theirs, engine]
            engine.connect(self._path)
            back = threading.Thread(target=_pump, args=(engine, theirs), daemon=True)
            back.start()
            _pump(theirs, engine)
            back.join()


def _pump(one: socket.socket, other: socket.socket) -> None:
    with suppress(OSError):
        while piece := one.recv(1 << 16):
            other.sendall(piece)
        other.shutdown(socket.SHUT_WR)


@pytest.fixture
def by_tcp(engine: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Wire]:
    """The same engine at a TCP address, which counts as remote: nothing is mounted, and everything is copied."""
    wire = Wire("/var/run/docker.sock")
    monkeypatch.setenv("DOCKER_HOST", wire.address)
    monkeypatch.delenv("DOCKER_TLS_VERIFY", raising=False)
    yield wire
    wire.cut()


# Replaces ssh, and `docker system dial-stdio` on the other machine.
_DIAL = """\
#!{python}
import os, socket, sys, threading
engine = socket.socket(socket.AF_UNIX)
engine.connect("/var/run/docker.sock")
def back():
    while piece := engine.recv(1 << 16):
        sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
    os._exit(0)
threading.Thread(target=back).start()
while piece := sys.stdin.buffer.read1():
    engine.sendall(piece)
engine.shutdown(socket.SHUT_WR)
"""


@pytest.fixture
def by_ssh(engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same engine behind a program named ssh, as if it were on another machine."""
    program = tmp_path / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(_DIAL.format(python=sys.executable))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("DOCKER_HOST", "ssh://me@gpu-box")
