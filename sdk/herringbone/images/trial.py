"""Run one job in one container, to test an image. Needs an engine, but no backend and no job folder.

The contract's tree is copied into an anonymous volume, so that trials work with an engine on another machine and with a
read-only root filesystem.
"""

from __future__ import annotations

import io
import json
import tarfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from herringbone.engine.client import Engine, EngineRefusal
from herringbone.engine.restrictions import restrictions
from herringbone_contract.constants import Key
from herringbone_contract.hyperparameters import encode_values
from herringbone_contract.resources import HOMOGENEOUS_GROUP, HostGroup, ResourceConfig

BASE = "/opt/ml"
HOST = "algo-1"
# Parents first: the engine would make a missing parent with a mode of its own.
_FOLDERS = ("input", "input/config", "input/data", "code", "model", "output", "output/data", "checkpoints")
_SCRIPTS = Path(__file__).with_name("trials")
_POLL_SECONDS = 0.02
_TAIL_LINES = 8
_NOT_FOUND = 404


@dataclass(frozen=True, slots=True)
class Setting:
    """The settings of a trial's container."""

    user: str
    read_only: bool
    hyperparameters: tuple[tuple[str, object], ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a trial: exit code, output, and files below `/opt/ml`.

    `code` is None for a trial that did not end in time. `refusal` is the reason for a trial that did not even start.
    """

    code: int | None
    output: str
    files: Mapping[str, bytes]
    refusal: str = ""

    @property
    def tail(self) -> str:
        """The last lines of the output, joined to one line."""
        return " | ".join(self.output.strip().splitlines()[-_TAIL_LINES:])


class Trial:
    """A container that runs a script as a job.

    >>> with trial(engine, "herringbone/pytorch:1", "failure", setting) as it:       # doctest: +SKIP
    ...     print(it.outcome(seconds=60).code)
    7
    """

    def __init__(self, engine: Engine, container: str) -> None:
        self._engine, self._container = engine, container

    def printed(self, text: str, *, seconds: float) -> bool:
        """Wait until the job prints a text. Returns False if it ends without, or takes longer than `seconds`."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            # Read the state before the output: a text printed right before the end is then seen.
            running = self._state()["Running"]
            if text in self._output():
                return True
            if not running:
                return False
            time.sleep(_POLL_SECONDS)
        return False

    def signal(self, name: str) -> None:
        self._engine.post(f"/containers/{self._container}/kill", signal=name)

    def outcome(self, *, seconds: float) -> Outcome:
        """Wait up to `seconds` for the end of the job, and return its exit code, output and files."""
        deadline = time.monotonic() + seconds
        code = None
        while code is None and time.monotonic() < deadline:
            state = self._state()
            code = None if state["Running"] else int(state["ExitCode"])
            if code is None:
                time.sleep(_POLL_SECONDS)
        return Outcome(code, self._output(), dict(self._files()))

    def _state(self) -> dict[str, Any]:
        state: dict[str, Any] = self._engine.get(f"/containers/{self._container}/json")["State"]
        return state

    def _output(self) -> str:
        return b"".join(self._engine.logs(self._container)).decode(errors="replace")

    def _files(self) -> Iterator[tuple[str, bytes]]:
        for folder in ("model", "output"):
            try:
                # Read it all: tarfile needs to seek, and the stream is a socket.
                with self._engine.download(self._container, f"{BASE}/{folder}") as stream:
                    content = stream.read()
            except EngineRefusal as error:
                if error.status != _NOT_FOUND:
                    raise
                continue
            with tarfile.open(fileobj=io.BytesIO(content)) as archive:
                for entry in archive:
                    # Not of links: `extractfile` would look for their targets, and some images leave dangling ones.
                    if entry.isreg() and (file := archive.extractfile(entry)) is not None:
                        yield entry.name, file.read()


@contextmanager
def trial(engine: Engine, image: str, script: str, setting: Setting) -> Iterator[Trial]:
    """Start a script of the folder `trials` as a job of one host without a network; the container ends with the block.

    Raises `EngineError` when the engine cannot start the container, for example for an image without `train`.
    """
    description = {
        "Image": image,
        "Cmd": ["train"],
        "User": setting.user,
        "Hostname": HOST,
        "Volumes": {BASE: {}},
        # A foreign uid has neither home nor name in /etc/passwd, and libraries ask for both.
        "Env": ["HOME=/tmp", "USER=trainer"],
        "HostConfig": {
            "ReadonlyRootfs": setting.read_only,
            # Docker mounts a tmpfs with noexec unless told otherwise; real jobs may run programs from /tmp as well.
            "Tmpfs": {"/tmp": "mode=1777,exec"},  # noqa: S108 - a path of the container
            # A trial needs no network, and an image of any origin gets none.
            "NetworkMode": "none",
            # As in a job: an image that needs more than a job gives fails here.
            **restrictions(setting.user),
        },
    }
    container = engine.post("/containers/create", description)["Id"]
    try:
        tree = _tree((_SCRIPTS / f"{script}.py").read_bytes(), dict(setting.hyperparameters))
        engine.upload(container, BASE, lambda feed: feed(tree))
        engine.post(f"/containers/{container}/start")
        yield Trial(engine, container)
    finally:
        engine.delete(f"/containers/{container}", force=True, v=True)


def _tree(script: bytes, hyperparameters: Mapping[str, object]) -> bytes:
    """Return the contract's tree as a tar. Any user may write to its folders, because a trial may run as any uid."""
    steering = {Key.PROGRAM: "trial.py", Key.SUBMIT_DIRECTORY: f"{BASE}/code", Key.JOB_NAME: "herringbone-trial"}
    groups = (HostGroup(HOMOGENEOUS_GROUP, "local", (HOST,)),)
    resources = ResourceConfig(HOST, (HOST,), groups=groups, network_interface="lo").to_json()
    encoded = encode_values({**steering, **hyperparameters})
    files = {
        "code/trial.py": script,
        "input/config/hyperparameters.json": json.dumps(encoded).encode(),
        "input/config/inputdataconfig.json": b"{}",
        "input/config/resourceconfig.json": json.dumps(resources).encode(),
    }
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as archive:
        for name in _FOLDERS:
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o777
            archive.addfile(folder)
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return written.getvalue()
