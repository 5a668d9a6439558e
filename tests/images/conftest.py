"""Small images, built in moments, and a second engine. Each test removes its own."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests.waiting import wait_until

from herringbone.engine.client import Engine

SMALL_DISK_BYTES = 64 << 20


@pytest.fixture(scope="session")
def tarball() -> Callable[[dict[str, bytes]], bytes]:
    """Packs files, all of them executable."""

    def pack(files: dict[str, bytes]) -> bytes:
        content = io.BytesIO()
        with tarfile.open(fileobj=content, mode="w") as archive:
            for path, data in files.items():
                entry = tarfile.TarInfo(path)
                entry.size, entry.mode = len(data), 0o755
                archive.addfile(entry, io.BytesIO(data))
        return content.getvalue()

    return pack


@pytest.fixture
def import_image(engine: Any, tarball: Callable[[dict[str, bytes]], bytes]) -> Iterator[Callable[..., str]]:
    """Loads files as an image of one layer; returns its name."""
    names = []

    def make(files: dict[str, bytes], architecture: str | None = None) -> str:
        name = f"herringbone-test:{uuid4().hex}"
        layer = tarball(files)
        config = {
            "architecture": architecture or engine.version()["Arch"],
            "os": "linux",
            "config": {},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
        }
        manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
        parts = {"config.json": json.dumps(config).encode(), "manifest.json": json.dumps(manifest).encode()}
        list(engine.load_image(tarball({**parts, "layer.tar": layer})))
        names.append(name)
        return name

    yield make
    for name in names:
        engine.remove_image(name, force=True)


@pytest.fixture
def derive(engine: Any) -> Iterator[Callable[..., str]]:
    """Builds an image from another one and some lines of a Dockerfile; returns its name."""
    names = []

    def make(image: str, *lines: str) -> str:
        text = "\n".join([f"FROM {image}", *lines])
        name = f"herringbone-test:{uuid4().hex}"
        steps = list(engine.build(fileobj=io.BytesIO(text.encode()), tag=name, rm=True, forcerm=True, decode=True))
        assert not [step for step in steps if "error" in step], steps
        names.append(name)
        return name

    yield make
    for name in names:
        engine.remove_image(name, force=True)


@pytest.fixture
def small_engine(tmp_path: Path) -> Iterator[Any]:
    """A second engine, with a disk of 64 MB, as docker-py's client."""
    import docker

    disk = tmp_path / "small"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK_BYTES}", "tmpfs", disk], check=True)
    socket = tmp_path / "engine.sock"
    # In a network namespace of its own: an engine without a bridge would remove the bridge of the other engine.
    command = [
        "unshare",
        "--net",
        "dockerd",
        "--data-root",
        disk,
        "--exec-root",
        tmp_path / "run",
        "--pidfile",
        tmp_path / "pid",
    ]
    command += ["--host", f"unix://{socket}", "--bridge", "none", "--iptables=false", "--log-level", "error"]
    try:
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as daemon:
            wait_until(socket.exists, 30)
            with docker.APIClient(base_url=f"unix://{socket}", version="auto") as client:
                yield client
            daemon.terminate()
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)


@pytest.fixture
def small_own_engine(small_engine: Any, tmp_path: Path) -> Engine:
    """The second engine, as Herringbone's client."""
    return Engine(f"unix://{tmp_path / 'engine.sock'}")
