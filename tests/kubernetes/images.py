"""Images for the cluster's nodes, without a registry and without a container engine."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Sequence
from pathlib import Path

from tests.kubernetes.node_files import PAUSE
from tests.ssh.small_image import shared_libraries, small_image_tar

BUSYBOX = PAUSE
# A host: this Python without its extras, the programs of the contract, and busybox. A controller: what it imports, too.
SMALL = "docker.io/herringbone-tests/small:1"
_BUSYBOX = Path("/bin/busybox")
# Prints the files that a controller imports, with their compiled forms.
_IMPORTS = """
import sys
import herringbone.backends.kubernetes.attempts.keeper, urllib3, websocket
skip = {"herringbone_contract", "msgspec", "kubernetes_validate", "_distutils_hack"}
for name, module in list(sys.modules.items()):
    for file in {getattr(module, "__file__", None), getattr(module, "__cached__", None)} - {None}:
        if name.partition(".")[0] not in skip and ("/site-packages/" in file or "/sdk/" in file):
            print(file)
"""
# The tests' Python; of busybox, `env` and others are at the usual places, too.
_PATH = "PATH=/usr/local/bin:/usr/bin:/bin:/opt/python/bin"


def write_images(folder: Path) -> Path:
    """Write both images in the form of `docker save`, as one file."""
    layers = [_busybox_layer(), small_image_tar(_torch_libraries()), _controller_layer()]
    archive = folder / "images.tar"
    manifest = []
    with tarfile.open(archive, "w") as tar:
        for number, layer in enumerate(layers):
            _add(tar, f"layer{number}.tar", layer)
        for name, count in ((BUSYBOX, 1), (SMALL, 3)):
            config = f"{count}.json"
            _add(tar, config, json.dumps(_config(layers[:count])).encode())
            files = [f"layer{number}.tar" for number in range(count)]
            manifest.append({"Config": config, "RepoTags": [name], "Layers": files})
        _add(tar, "manifest.json", json.dumps(manifest).encode())
    return archive


def _controller_layer() -> bytes:
    """Return what a controller imports, with the compiled files: pods could not keep those that they make."""
    layer, place = io.BytesIO(), f"opt/python/lib/{Path(sysconfig.get_path('stdlib')).name}/site-packages"
    with tarfile.open(fileobj=layer, mode="w") as tar:
        printed = subprocess.run((sys.executable, "-c", _IMPORTS), check=True, capture_output=True, text=True).stdout
        for file in filter(os.path.exists, printed.split()):
            tar.add(file, f"{place}/{re.split('/site-packages/|/sdk/', file)[-1]}")
    return layer.getvalue()


def _torch_libraries() -> list[Path]:
    """Return the system's libraries that torch needs. Jobs mount torch itself, whose import would take minutes."""
    packages = Path(sysconfig.get_path("purelib"))
    found = shared_libraries([*(packages / "torch" / "lib").glob("libtorch_*.so")])
    return [path for path in found if not path.is_relative_to(packages)]


def _config(layers: Sequence[bytes]) -> dict[str, object]:
    return {
        "architecture": "amd64",
        "os": "linux",
        # The program of the pods' own container, which waits for ever.
        "config": {"Cmd": ["/bin/sleep", "infinity"], "Env": [_PATH]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in layers]},
    }


def _busybox_layer() -> bytes:
    layer = io.BytesIO()
    programs = subprocess.run((_BUSYBOX, "--list"), check=True, capture_output=True, text=True).stdout.split()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        tar.add(_BUSYBOX, "bin/busybox")
        for name in programs:
            if name != "busybox":
                link = tarfile.TarInfo(f"bin/{name}")
                link.type, link.linkname = tarfile.SYMTYPE, "busybox"
                tar.addfile(link)
        for name, mode in (("tmp", 0o1777), ("etc", 0o755)):
            place = tarfile.TarInfo(name)
            place.type, place.mode = tarfile.DIRTYPE, mode
            tar.addfile(place)
    return layer.getvalue()


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))
