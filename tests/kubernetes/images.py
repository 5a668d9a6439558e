"""Images for the cluster's nodes, without a registry and without a container engine."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import tarfile
from pathlib import Path

from tests.kubernetes.node_files import PAUSE

BUSYBOX = PAUSE
_BUSYBOX = Path("/bin/busybox")


def busybox(folder: Path) -> Path:
    """Write an image of Debian's static busybox, in the form of `docker save`; its program waits for ever."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        tar.add(_BUSYBOX, "bin/busybox")
        for name in subprocess.run((_BUSYBOX, "--list"), check=True, capture_output=True, text=True).stdout.split():
            if name != "busybox":
                link = tarfile.TarInfo(f"bin/{name}")
                link.type, link.linkname = tarfile.SYMTYPE, "busybox"
                tar.addfile(link)
        for name, mode in (("tmp", 0o1777), ("etc", 0o755)):
            place = tarfile.TarInfo(name)
            place.type, place.mode = tarfile.DIRTYPE, mode
            tar.addfile(place)
    content = layer.getvalue()
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Cmd": ["/bin/sleep", "infinity"], "Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(content).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [PAUSE], "Layers": ["layer.tar"]}]
    archive = folder / "busybox.tar"
    with tarfile.open(archive, "w") as tar:
        for name, text in (
            ("layer.tar", content),
            ("config.json", json.dumps(config).encode()),
            ("manifest.json", json.dumps(manifest).encode()),
        ):
            member = tarfile.TarInfo(name)
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text))
    return archive
