"""Run the service until Ctrl-C or SIGTERM; jobs run on."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from herringbone.records.home import find_home
from herringbone.serve.actions import answers_of
from herringbone.serve.app import Service, Verifier
from herringbone.serve.buckets import make_buckets
from herringbone.serve.catalog import Catalog
from herringbone.serve.cloudwatch.logs import LogOperations
from herringbone.serve.cloudwatch.statistics import Statistics
from herringbone.serve.identity import Identity
from herringbone.serve.model import service_model
from herringbone.serve.records import Audit
from herringbone.serve.settings import Settings
from herringbone.serve.signing.keys import KeyFile
from herringbone.serve.trainings import Trainings
from herringbone.serve.tuning_jobs import Tunings
from herringbone.system.connections import Room, fitted, open_files
from herringbone.system.web_server import CountingListener, web_config
from herringbone_contract.errors import HerringboneError, InputError

_IDLE_SECONDS = 30
_LOOK_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Listener:
    """The address to listen at, and the files of TLS; port 0 takes a free one.

    `descriptor` is a listener that this process has inherited.
    """

    host: str = "127.0.0.1"
    port: int = 0
    certificate: Path | None = None
    private_key: Path | None = None
    descriptor: int | None = None


def serve(
    settings: Settings,
    keys: KeyFile,
    listener: Listener,
    say: Callable[[str], None],
) -> None:
    """Serve until Ctrl-C or SIGTERM.

    >>> serve(Settings(backend="local_process"), KeyFile(path), Listener(), print)       # doctest: +SKIP
    http://127.0.0.1:40123

    `say` gets the address, as a value of AWS_ENDPOINT_URL. Without a folder of buckets, S3's calls are refused. Raises
    `InputError` for a port that is taken, and while another service has the jobs.
    """
    home = find_home()
    # Both raise for what is missing, before the address is shown to anyone.
    keys.all()
    service_model("sagemaker")
    room = Room(fitted(settings.mapping.connections, open_files()))
    with closing(CountingListener(_listen(listener), room, tls=listener.certificate is not None)) as server_socket:
        trainings = Trainings(home, settings)
        with closing(trainings.records):
            tunings = Tunings(trainings)
            jobs = trainings, tunings, Catalog(trainings, tunings)
            parts = *jobs, LogOperations(trainings, home), Statistics(trainings), Identity(settings)
            audit = Audit(home.path / "service" / "audit.log")
            verifier = Verifier(keys, settings)
            folder = settings.buckets
            buckets = None if folder is None else make_buckets(Path(folder), settings, verifier, audit)
            app = Service(verifier, answers_of(*parts), settings, audit, buckets=buckets)
            scheme = "http" if listener.certificate is None else "https"
            host = f"[{listener.host}]" if ":" in listener.host else listener.host
            say(f"{scheme}://{host}:{server_socket.getsockname()[1]}")
            with _looking(trainings.look_at_running, tunings.look_at_running), suppress(KeyboardInterrupt):
                uvicorn.Server(_config(app, listener, room)).run(sockets=[server_socket])


def _config(app: Service, listener: Listener, room: Room) -> uvicorn.Config:
    return web_config(
        app,
        room,
        lifespan="off",
        timeout_keep_alive=_IDLE_SECONDS,
        timeout_graceful_shutdown=5,
        ssl_certfile=listener.certificate,
        ssl_keyfile=listener.private_key,
    )


@contextmanager
def _looking(*looks: Callable[[], None]) -> Iterator[None]:
    """Look at the running jobs every two seconds, so that ends are settled although nobody asks."""
    ends = threading.Event()

    def run() -> None:
        while not ends.wait(_LOOK_SECONDS):
            for look in looks:
                # A machine that does not answer now is asked again.
                with suppress(HerringboneError, OSError):
                    look()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join(5)


def _listen(listener: Listener) -> socket.socket:
    if listener.descriptor is not None:
        return socket.socket(fileno=listener.descriptor)
    try:
        family, *_ = socket.getaddrinfo(listener.host, listener.port, type=socket.SOCK_STREAM)[0]
        return socket.create_server((listener.host, listener.port), family=family, backlog=1024)
    except socket.gaierror as error:
        raise InputError(f"--host {listener.host}: {error.strerror}; give an address of this machine") from None
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise InputError(f"port {listener.port} of {listener.host}: {reason}; name another one with --port") from None
