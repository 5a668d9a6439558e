"""The service of one user's own processes: it starts with the first that joins, and ends with the last and its jobs.

    os.environ.update(join(find_home(), "local_process"))      # AWS's SDKs in this process now talk to the service

    HOME/buckets                    a folder for each bucket
    HOME/service/keys.json          has the key of these processes, as the user `notebooks`
    HOME/service/aws.ini            AWS's settings of these processes
    HOME/service/personal.json      the address of the service that runs
    HOME/service/personal.start     locked while a process joins, and while the service decides to end
    HOME/service/personal.members   shared by the processes that have joined; the service can lock it once they end

A process binds the port and the service inherits it, so calls wait until it answers. Each process that has joined
starts the service again where it was killed: its clients of AWS keep the address.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from herringbone.records.home import HOME_VARIABLE, Home, find_home
from herringbone.records.index import JobIndex
from herringbone.s3.front.keys import path_of
from herringbone.serve.settings import DEFAULT_REGION, Settings
from herringbone.serve.signing.keys import AccessKey, KeyFile
from herringbone.system.processes import identity, is_alive, pid_of
from herringbone_contract.errors import HerringboneError, InputError, UnsupportedError
from herringbone_contract.files import locked, try_locked, write_whole

if TYPE_CHECKING:
    import io
    from collections.abc import Mapping

_USER = "notebooks"
_LOOK_SECONDS = 2.0
_LONGEST_PAUSE_SECONDS = 60.0
# What the service has of the notebook that starts it: jobs that another notebook creates must not get its tokens.
_KEPT = re.compile(
    "PATH|HOME|USER|LOGNAME|SHELL|TMPDIR|LANG|LC_.*|TZ|LD_LIBRARY_PATH|PYTHON.*|VIRTUAL_ENV|CONDA_PREFIX|XDG_.*_HOME"
    "|TORCH_HOME|HF_HOME|OMP_NUM_THREADS|CUDA_.*|NVIDIA_.*|DOCKER_.*|PIP_.*|SSL_CERT_.*|REQUESTS_CA_BUNDLE"
    "|(?i:(https?|no|all)_proxy)|AWS_.*|HERRINGBONE_.*"
)
# Programs name the default profile, which must then be there; a presigned address is signed as every other call.
_SETTINGS = "[default]\ns3 =\n    signature_version = s3v4\n"
# What names an account or an endpoint of the user's own, and would count beside the variables of `join`.
_OF_AN_ACCOUNT = (
    "AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_SESSION_TOKEN", "AWS_SECURITY_TOKEN",
    "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS",
)  # fmt: skip
_members: list[io.FileIO] = []


def without_account(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables without those that would send calls elsewhere than to the service.

    >>> without_account({"AWS_PROFILE": "team", "AWS_ENDPOINT_URL_S3": "http://other", "HOME": "/home/ada"})
    {'HOME': '/home/ada'}
    """
    ours = {name: value for name, value in environ.items() if not name.startswith("AWS_ENDPOINT_URL_")}
    return {name: value for name, value in ours.items() if name not in _OF_AN_ACCOUNT}


def join(home: Home, backend: str) -> dict[str, str]:
    """Start the service unless it runs, and return the variables by which AWS's SDKs find it, for this process.

    `backend` is the instance type of jobs that are created through the service that this call starts. Raises
    `InputError` while `herringbone serve` has the home, `UnsupportedError` where a package is missing.
    """
    missing = [name for name in ("starlette", "uvicorn", "boto3", "cbor2") if find_spec(name) is None]
    if missing:
        raise UnsupportedError(f"it needs {', '.join(missing)}: pip install '.[serve]' in your clone of Herringbone")
    home.make()
    folder = home.path / "service"
    folder.mkdir(mode=0o700, exist_ok=True)
    with locked(folder / "personal.start"):
        write_whole(folder / "aws.ini", _SETTINGS.encode())
        (folder / "personal.members").touch(mode=0o600)
        # Kept until this process ends.
        _members.append(locked(folder / "personal.members", shared=True))
        key = _key(KeyFile(folder / "keys.json"))
        running = _running(home, folder, backend, key)
    if sys.platform == "linux":
        threading.Thread(target=_keep_running, args=(home, folder, backend, key, running), daemon=True).start()
    return _variables(home, running["port"], key)


def _running(home: Home, folder: Path, backend: str, key: AccessKey) -> dict[str, Any]:
    """Return what is known of the service, and start it unless it runs. Called with `personal.start` locked."""
    running = _read(folder / "personal.json")
    if not running or not is_alive(running["process"]):
        running = _start(home, folder, backend, running.get("port", 0), key)
    return running


def _keep_running(home: Home, folder: Path, backend: str, key: AccessKey, running: dict[str, Any]) -> None:
    """Start the service again each time it ends, which it does not do by itself while this process lives."""
    pause = 0.0
    while True:
        # One that ends at once would most likely end again.
        time.sleep(pause)
        begun = time.monotonic()
        with suppress(ProcessLookupError):
            descriptor = os.pidfd_open(pid_of(running["process"]))
            # Another process may have its number by now.
            if is_alive(running["process"]):
                select.select([descriptor], [], [])
            os.close(descriptor)
        pause = 0.0 if time.monotonic() - begun > _LOOK_SECONDS else min(2 * pause + 0.5, _LONGEST_PAUSE_SECONDS)
        try:
            with locked(folder / "personal.start"):
                running = _running(home, folder, backend, key)
        except (HerringboneError, OSError) as error:
            print(f"herringbone: the stand-in for AWS has ended: {error}", file=sys.stderr)
            return


def _variables(home: Home, port: int, key: AccessKey) -> dict[str, str]:
    # The process may change its folder, and the service has another one.
    path = home.path.absolute()
    return {
        HOME_VARIABLE: str(path),
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": key.key_id,
        "AWS_SECRET_ACCESS_KEY": key.secret,
        "AWS_DEFAULT_REGION": os.environ.get("AWS_DEFAULT_REGION") or DEFAULT_REGION,
        "AWS_CONFIG_FILE": str(path / "service" / "aws.ini"),
    }


def folder_of(address: str, environ: Mapping[str, str]) -> str | None:
    """Return the folder of an s3:// address while S3, for this environment, is the service; else None."""
    home = find_home()
    port = _read(home.path / "service" / "personal.json").get("port")
    if not address.startswith("s3://") or environ.get("AWS_ENDPOINT_URL") != f"http://127.0.0.1:{port}":
        return None
    bucket, _, key = address.removeprefix("s3://").partition("/")
    path = path_of(key.rstrip("/")) if key else ""
    return None if path is None else str(home.path / "buckets" / bucket / path)


def _start(home: Home, folder: Path, backend: str, port: int, key: AccessKey) -> dict[str, Any]:
    # A process that ends frees its locks one after the other: the service of before may still have this one.
    free = try_locked(folder / "lock", seconds=0.5)
    if free is None:
        raise InputError(
            f"herringbone serve runs for {home.path}: set AWS_ENDPOINT_URL to the address that it has printed, and the"
            " variables of a key that `herringbone serve keys add` makes"
        )
    free.close()
    (home.path / "buckets").mkdir(mode=0o700, exist_ok=True)
    with _bound(port) as listener, (folder / "personal.log").open("ab") as log:
        port = listener.getsockname()[1]
        # Jobs that are created by a call inherit these: no account.
        kept = {name: value for name, value in os.environ.items() if _KEPT.fullmatch(name)}
        environ = {**without_account(kept), **_variables(home, port, key)}
        process = subprocess.Popen(
            [sys.executable, "-m", "herringbone.serve.personal", str(listener.fileno()), backend],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[listener.fileno()],
            start_new_session=True,
            cwd="/",
            env=environ,
        )
        # It belongs to all processes that join, and outlives this one.
        process.returncode = 0
        running = {"process": identity(process.pid), "port": port}
    write_whole(folder / "personal.json", json.dumps(running).encode())
    return running


def _bound(port: int) -> socket.socket:
    """Return a listener on the port of before, which notebooks may have kept, or on a free one."""
    for number in (port, 0):
        listener = socket.socket()
        with suppress(OSError):
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", number))
            listener.listen(1024)
            return listener
        listener.close()
    raise InputError("no port of 127.0.0.1 is free")


def _key(keys: KeyFile) -> AccessKey:
    return next((key for key in keys.all() if key.name == _USER), None) or keys.add(_USER, sees_all=True)


def _read(path: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
        found = json.loads(path.read_bytes())
        if pid_of(found["process"]) > 0 and found["port"] in range(1, 65536):
            return dict(found)
    return {}


def main(descriptor: int, backend: str) -> None:
    """Serve at an inherited listener until nobody needs the service."""
    from herringbone.serve.run import Listener, serve

    home = find_home()
    folder = home.path / "service"
    threading.Thread(target=_end_with_the_last, args=(home, folder), daemon=True).start()
    settings = Settings(
        backend=backend,
        buckets=str(home.path / "buckets"),
        adopter=_USER,
        any_region=True,
        new_buckets=True,
        s3_calls_per_second=10_000.0,
    )
    serve(settings, KeyFile(folder / "keys.json"), Listener(descriptor=descriptor), print)


def _end_with_the_last(home: Home, folder: Path) -> None:
    while True:
        time.sleep(_LOOK_SECONDS)
        # Whoever joins meanwhile waits for the end of this process, which frees the locks, and then finds no service.
        with locked(folder / "personal.start"):
            alone = try_locked(folder / "personal.members")
            if alone is None:
                continue
            with alone:
                if not JobIndex(home.index).running():
                    (folder / "personal.json").unlink(missing_ok=True)
                    os.kill(os.getpid(), signal.SIGTERM)
                    threading.Event().wait()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
