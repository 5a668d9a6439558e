"""The smallest image that can be a host: this Python without its extras, msgspec, and the programs of the contract."""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

import herringbone_contract
import herringbone_entry

_LEFT_OUT = ("test", "idlelib", "lib2to3", "tkinter", "turtledemo", "ensurepip", "site-packages", "__pycache__")
_PREFIX = "opt/python"
_TRAIN = f"#!/{_PREFIX}/bin/python3\nfrom herringbone_entry.__main__ import main\nmain()\n"


def make_small_image(engine: Any, name: str) -> None:
    """Import the image into an engine, a client of docker-py; takes a second."""
    repository, _, tag = name.partition(":")
    changes = ["LABEL dev.herringbone.contract=1", "ENV PATH=/usr/local/bin:/usr/bin:/bin"]
    # As images of others have them; the job's folders take their places.
    changes.append('VOLUME ["/opt/ml/model", "/opt/ml/output", "/opt/ml/input/data"]')
    engine.import_image_from_data(small_image_tar(), repository=repository, tag=tag, changes=changes)


def small_image_tar(libraries: Iterable[Path] = ()) -> bytes:
    """Return the image's only layer, with further libraries of this machine."""
    stdlib = Path(sysconfig.get_path("stdlib"))
    program = Path(sys.base_prefix, "bin", f"python{sys.version_info[0]}.{sys.version_info[1]}").resolve()
    library = f"{_PREFIX}/lib/{stdlib.name}"
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.add(program, f"{_PREFIX}/bin/python3")
        archive.add(stdlib, library, filter=_without_extras)
        for package in (msgspec, herringbone_contract, herringbone_entry):
            folder = Path(str(package.__file__)).parent
            archive.add(folder, f"{library}/site-packages/{folder.name}", filter=_without_extras)
        parts = (*(stdlib / "lib-dynload").glob("*.so"), *Path(str(msgspec.__file__)).parent.glob("*.so"))
        for path in {*shared_libraries([program, *parts]), *libraries}:
            archive.add(path.resolve(), str(path).lstrip("/"))
        for path_in_image, text, mode in (
            ("usr/local/bin/train", _TRAIN, 0o755),
            ("etc/passwd", "root:x:0:0:root:/root:/bin/sh\n", 0o644),
        ):
            entry = tarfile.TarInfo(path_in_image)
            entry.size, entry.mode = len(text), mode
            archive.addfile(entry, io.BytesIO(text.encode()))
    return buffer.getvalue()


def _without_extras(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    name = Path(entry.name).name
    return None if name in _LEFT_OUT or name.startswith("config-") else entry


def shared_libraries(programs: list[Path]) -> set[Path]:
    assert shutil.which("ldd")
    output = subprocess.run(["ldd", *map(str, programs)], capture_output=True, text=True).stdout
    words = {word for line in output.splitlines() for word in line.split() if word.startswith("/") and word[-1] != ":"}
    return {Path(word) for word in words if ".so" in word and Path(word).exists()}
