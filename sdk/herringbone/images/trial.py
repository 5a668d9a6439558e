"""One job in one container, for the sake of seeing how an image takes it. No backend, no home: an engine is enough.

The contract's tree is copied into an anonymous volume, so that it works with an engine far away, and under a root
filesystem that is read-only.
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

from herringbone.engine.docker_py import asking, missing
from herringbone_contract.constants import Key

BASE = "/opt/ml"
HOST = "algo-1"
_FOLDERS = ("input", "input/config", "input/data", "code", "model", "output", "output/data", "checkpoints")
_SCRIPTS = Path(__file__).with_name("trials")
_POLL_SECONDS = 0.02
_TAIL_LINES = 8


@dataclass(frozen=True, slots=True)
class Setting:
    """How a trial's container runs."""

    user: str
    read_only: bool
    hyperparameters: tuple[tuple[str, object], ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a trial ended: exit code, None where it did not end in time, all it printed, its files below `/opt/ml`.

    `refusal` is why it could not even start.
    """

    code: int | None
    output: str
    files: Mapping[str, bytes]
    refusal: str = ""

    @property
    def tail(self) -> str:
        """The last lines of the output, in one."""
        return " | ".join(self.output.strip().splitlines()[-_TAIL_LINES:])


class Trial:
    """A container that runs a script as a job.

    >>> with trial(engine, "herringbone/pytorch:1", "failure", setting) as it:       # doctest: +SKIP
    ...     print(it.outcome(seconds=60).code)
    7
    """

    def __init__(self, engine: Any, container: str) -> None:
        self._engine, self._container = engine, container

    def printed(self, text: str, *, seconds: float) -> bool:
        """Wait until the job prints a text; False when it ends before, or takes longer."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            running = self._engine.inspect_container(self._container)["State"]["Running"]
            if text in self._output():
                return True
            if not running:
                return False
            time.sleep(_POLL_SECONDS)
        return False

    def signal(self, name: str) -> None:
        with asking(f"to send {name}"):
            self._engine.kill(self._container, name)

    def outcome(self, *, seconds: float) -> Outcome:
        """Wait for the end of the job, and gather what is left of it."""
        deadline = time.monotonic() + seconds
        code = None
        while code is None and time.monotonic() < deadline:
            state = self._engine.inspect_container(self._container)["State"]
            code = None if state["Running"] else int(state["ExitCode"])
            if code is None:
                time.sleep(_POLL_SECONDS)
        return Outcome(code, self._output(), dict(self._files()))

    def _output(self) -> str:
        text: bytes = self._engine.logs(self._container)
        return text.decode(errors="replace")

    def _files(self) -> Iterator[tuple[str, bytes]]:
        for folder in ("model", "output"):
            with asking("for a trial's files"), missing():
                pieces, _ = self._engine.get_archive(self._container, f"{BASE}/{folder}")
                with tarfile.open(fileobj=io.BytesIO(b"".join(pieces))) as archive:
                    for entry in archive:
                        if (file := archive.extractfile(entry)) is not None:
                            yield entry.name, file.read()


@contextmanager
def trial(engine: Any, image: str, script: str, setting: Setting) -> Iterator[Trial]:
    """Start a script of the folder `trials` as a job of one host without a network; it is gone behind the block.

    Raises `EngineError` when the engine cannot start it; an image without `train` ends here.
    """
    with asking(f"to run {image}"):
        container = engine.create_container(
            image,
            ["train"],
            user=setting.user,
            hostname=HOST,
            volumes=[BASE],
            environment={"HOME": "/tmp", "USER": "trainer"},  # noqa: S108 - the container's
            host_config=engine.create_host_config(
                read_only=setting.read_only,
                tmpfs={"/tmp": "mode=1777,exec"},  # noqa: S108
                network_mode="none",
            ),
        )["Id"]
    try:
        with asking(f"to run {image}"):
            engine.put_archive(
                container, BASE, _tree((_SCRIPTS / f"{script}.py").read_bytes(), dict(setting.hyperparameters))
            )
            engine.start(container)
        yield Trial(engine, container)
    finally:
        engine.remove_container(container, force=True, v=True)


def _tree(script: bytes, hyperparameters: Mapping[str, object]) -> bytes:
    """Return the contract's tree as a tar; everybody may write to its folders."""
    steering = {Key.PROGRAM: "trial.py", Key.SUBMIT_DIRECTORY: f"{BASE}/code", Key.JOB_NAME: "herringbone-trial"}
    resources = {
        "current_host": HOST,
        "hosts": [HOST],
        "current_instance_type": "local",
        "current_group_name": "homogeneousCluster",
        "instance_groups": [
            {"instance_group_name": "homogeneousCluster", "instance_type": "local", "hosts": [HOST]},
        ],
        "network_interface_name": "lo",
    }
    encoded = {name: json.dumps(value) for name, value in {**steering, **hyperparameters}.items()}
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
