"""Run the function of `herringbone.remote` in a job, and leave its result or its error, signed.

    python herringbone_remote.py          # in a job's code folder, next to call.json, call.pkl and cloudpickle

This file travels to the job alone, under that name, so it imports the standard library, and cloudpickle from the folder
next to it. The client imports the same `seal` and `opened`.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import linecache
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

# The secret that signs results: hexadecimal, or the path of a descriptor that gives it once. The word KEY in its name
# has it masked wherever it is shown.
KEY_VARIABLE = "HERRINGBONE_REMOTE_KEY"
SCRIPT, HEADER, CALL = "herringbone_remote.py", "call.json", "call.pkl"
# Below SM_OUTPUT_DATA_DIR.
RESULTS = "herringbone-remote"
_SIGNATURE_BYTES = hashlib.sha256().digest_size


def seal(key: bytes, name: str, content: bytes) -> bytes:
    """Return the content with its signature in front. `name` is signed as well: a result cannot pose as an error.

    >>> opened(b"k", "result", seal(b"k", "result", b"42"))
    b'42'
    """
    return _sealed(_signer(key), name, content)


def opened(key: bytes, name: str, sealed: bytes) -> bytes | None:
    """Return the content of sealed bytes; None where the signature is not that of this key and name.

    >>> print(opened(b"k", "error-0", seal(b"k", "result", b"42")))
    None
    """
    content = sealed[_SIGNATURE_BYTES:]
    return content if hmac.compare_digest(sealed, seal(key, name, content)) else None


def rank_of(environ: dict[str, str]) -> int:
    """Return the number of this rank in the job. AWS's images set no RANK where one process runs on each host.

    >>> rank_of({"RANK": "3"}), rank_of({"SM_HOSTS": '["algo-1","algo-2"]', "SM_CURRENT_HOST": "algo-2"})
    (3, 1)
    """
    for name in ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"):
        if name in environ:
            return int(environ[name])
    hosts: list[str] = json.loads(environ.get("SM_HOSTS", "[]"))
    host = environ.get("SM_CURRENT_HOST")
    return hosts.index(host) if host in hosts else 0


def _signer(key: bytes) -> hmac.HMAC:
    return hmac.new(key, digestmod="sha256")


def _sealed(signer: hmac.HMAC, name: str, content: bytes) -> bytes:
    signature = signer.copy()
    signature.update(name.encode() + b"\0" + content)
    return signature.digest() + content


def _check_python(header: dict[str, Any]) -> None:
    # Before anything is unpickled: byte code of another Python crashes, or does something else.
    python, written_by = [*sys.version_info[:2]], header["python"]
    if python != written_by:
        here, there = (".".join(map(str, version)) for version in (python, written_by))
        raise RuntimeError(
            f"this job has Python {here}, and Python {there} wrote the function {header['name']}, whose byte code no"
            f" other version can run: call it from Python {here}, or choose an image with Python {there}"
        )


def _show_sources(sources: dict[str, str]) -> None:
    """Let tracebacks show the lines of files that this host does not have: the user's script, a notebook's cells."""
    for name, text in sources.items():
        if not Path(name).is_file():
            # Without a time, linecache never looks for the file.
            linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)


def _results() -> Callable[[str, bytes], None]:
    """Return what leaves a signed result, whatever the user's function does to variables and descriptors meanwhile."""
    key = os.environ.pop(KEY_VARIABLE)
    # A descriptor gives the key once, and nothing to processes that the function starts.
    signer = _signer(bytes.fromhex(Path(key).read_text("ascii") if key.startswith("/") else key))
    if key.startswith("/dev/fd/"):
        os.close(int(key.removeprefix("/dev/fd/")))
    folder = Path(os.environ["SM_OUTPUT_DATA_DIR"], RESULTS)

    def leave(name: str, content: bytes) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(_sealed(signer, name, content))

    return leave


def _pickled_error(pickle: Any, error: BaseException) -> bytes:
    # Without the frame of this script.
    frames = error.__traceback__.tb_next if error.__traceback__ is not None else None
    text = "".join(traceback.format_exception(type(error), error, frames))
    try:
        content: bytes = pickle.dumps((error, text))
        # Many exceptions can be written and not be read again, for example those with two arguments.
        pickle.loads(content)
    except Exception:  # noqa: BLE001 - any error in the user's class
        content = pickle.dumps((None, text))
    return content


def main(folder: Path = Path(__file__).parent) -> None:
    """Call the function, and leave what it returns on rank 0, or what it raises on any rank."""
    header = json.loads((folder / HEADER).read_text("utf-8"))
    _check_python(header)
    leave = _results()
    sys.path[:0] = [str(folder / name) for name in header["paths"]]
    _show_sources(header["sources"])
    import cloudpickle as pickle

    rank = rank_of(dict(os.environ))
    try:
        function, arguments, keywords = pickle.loads((folder / CALL).read_bytes())
        value = function(*arguments, **keywords)
        if rank == 0:
            leave("result", pickle.dumps(value))
    except Exception as error:
        leave(f"error-{rank}", _pickled_error(pickle, error))
        raise


if __name__ == "__main__":
    main()
