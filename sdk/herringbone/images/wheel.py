"""Pack the running Herringbone, an installed distribution or a checkout, as a wheel.

Equal sources give equal bytes on every machine: entries are sorted, have the same date and are not compressed, because
the output of a compressor depends on its version. Packing compiles nothing and needs no build tool. The wheel holds the
native core of `herringbone_parallel.reduce` as compiled on this machine, if it was, and its sources.
"""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from collections.abc import Iterator, Mapping
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

from herringbone_contract.errors import ImageError

PACKAGES = ("herringbone_contract", "herringbone", "herringbone_entry", "herringbone_parallel")
# The earliest date that a zip archive can hold.
_DATE = (1980, 1, 1, 0, 0, 0)
# A regular file that its owner may write; zip keeps the Unix mode in the upper 16 bits.
_FILE_MODE = 0o100644 << 16
_TAG = "py3-none-any"
# Folders that a checkout keeps elsewhere than a wheel: folder in the wheel -> (a package, path from that package).
_ELSEWHERE = {
    "herringbone_parallel/_shim": ("herringbone_parallel", "../shim"),
    "herringbone_parallel/_shim_horovod": ("herringbone_parallel", "../shim_horovod"),
    "herringbone_parallel/_shim_sagemaker": ("herringbone_parallel", "../shim_sagemaker"),
    "herringbone/_containers": ("herringbone", "../../containers"),
}


def pack_herringbone() -> tuple[str, bytes]:
    """Return the wheel's file name and content.

    >>> pack_herringbone()[0]
    'herringbone-0.1.0-py3-none-any.whl'

    Raises `ImageError` if Herringbone is not installed, because its version is unknown then.
    """
    try:
        installed = distribution("herringbone")
    except PackageNotFoundError:
        raise ImageError("Herringbone is not installed here: run `pip install .` in a checkout") from None
    stem = f"herringbone-{installed.version}"
    files = dict(_sources()) | {f"{stem}.dist-info/{name}": data for name, data in _metadata(installed)}
    return f"{stem}-{_TAG}.whl", pack(files, f"{stem}.dist-info/RECORD")


def find_containers() -> Path:
    """Return the folder with the Dockerfiles, of the checkout or of the installed wheel."""
    _, path = next(pair for pair in _roots() if pair[0] == "herringbone/_containers")
    return path


def pack(files: Mapping[str, bytes], record: str) -> bytes:
    """Return a wheel of these files and of `record`, the list of their hashes. Pure.

    >>> zipfile.ZipFile(io.BytesIO(pack({"a/b.py": b"1"}, "a.dist-info/RECORD"))).namelist()
    ['a/b.py', 'a.dist-info/RECORD']
    """
    lines = []
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_STORED) as wheel:
        for name in sorted(files):
            wheel.writestr(_entry(name), files[name])
            # The wheel format asks for the URL-safe alphabet without padding.
            digest = base64.urlsafe_b64encode(hashlib.sha256(files[name]).digest()).rstrip(b"=").decode()
            lines.append(f"{name},sha256={digest},{len(files[name])}\n")
        # The list cannot hold its own hash, so the format leaves both fields of its line empty.
        wheel.writestr(_entry(record), "".join([*lines, f"{record},,\n"]))
    return written.getvalue()


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, _DATE)
    entry.external_attr = _FILE_MODE
    return entry


def _sources() -> Iterator[tuple[str, bytes]]:
    for name, root in _roots():
        for path in root.rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                yield f"{name}/{path.relative_to(root).as_posix()}", path.read_bytes()


def _roots() -> Iterator[tuple[str, Path]]:
    """Yield (folder in the wheel, folder on this machine)."""
    for package in PACKAGES:
        yield package, _folder(package)
    for name, (package, path) in _ELSEWHERE.items():
        # An installed wheel has the folder inside of the package, a checkout next to it.
        inside = _folder(package) / name.partition("/")[2]
        yield name, inside if inside.is_dir() else (_folder(package) / path).resolve()


def _folder(package: str) -> Path:
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ImageError(f"the package {package} is missing here: install Herringbone again")
    return Path(next(iter(spec.submodule_search_locations)))


def _metadata(installed: Distribution) -> Iterator[tuple[str, bytes]]:
    for name in ("METADATA", "entry_points.txt"):
        yield name, (installed.read_text(name) or "").encode()
    yield "WHEEL", f"Wheel-Version: 1.0\nGenerator: herringbone\nRoot-Is-Purelib: true\nTag: {_TAG}\n".encode()
    for name in installed.metadata.get_all("License-File") or ():
        text = installed.read_text(f"licenses/{name}")
        if text:
            yield f"licenses/{name}", text.encode()
