"""Makes a job's containers and their network, and starts them; undoes it all when one of them cannot start."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from threading import Thread, current_thread, main_thread
from typing import TYPE_CHECKING, Any

from herringbone.backends.docker.request import container_name, network_name, network_request
from herringbone.controller.containers import remove_container, remove_network, start_container
from herringbone.engine.client import Engine, EngineRefusal
from herringbone_contract.errors import EngineError, ImageError, JobNameError, LaunchError

if TYPE_CHECKING:
    from herringbone.planning.plan import HostPlan, JobPlan

_CONFLICT = 409


def at_once(calls: Sequence[Callable[[], object]]) -> None:
    """Make all calls at the same time; return when all have returned, or raise the first one's error."""
    errors: list[BaseException] = []

    def make(call: Callable[[], object]) -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - raised in the caller's thread
            errors.append(error)

    threads = [Thread(target=make, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@contextmanager
def interrupt_later() -> Iterator[None]:
    """Let Ctrl-C wait for the end of the block: what is half made could not be undone. A second one does not wait."""
    if current_thread() is not main_thread():
        yield  # Ctrl-C is never heard here
        return
    came: list[Any] = []

    def note(*arguments: Any) -> None:
        if came:
            raise KeyboardInterrupt
        came.append(arguments)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came and callable(before):
        before(*came[0])


class Made:
    """What a job has made in the engine so far, to be undone when it cannot start."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._network: str | None = None
        self.ids: dict[str, str] = {}

    def network(self, plan: JobPlan, labels: Mapping[str, str]) -> None:
        try:
            self._network = self._engine.post("/networks/create", network_request(plan, labels))["Id"]
        except EngineRefusal as error:
            raise self._taken(error, str(network_name(plan))) from error

    def container(self, plan: JobPlan, host: HostPlan, request: Mapping[str, object]) -> None:
        name = container_name(plan, host)
        try:
            self.ids[host.name] = self._engine.post("/containers/create", request, name=name)["Id"]
        except EngineRefusal as error:
            raise self._taken(error, name) from error

    def start(self, host: HostPlan, stream: socket.socket, ending: socket.socket, line: bytes) -> None:
        try:
            start_container(self._engine, self.ids[host.name], stream, ending, line)
        except EngineRefusal as error:
            raise _not_started(error, host) from error

    def undo(self) -> None:
        # What cannot be removed now, the next sweep finds; why the job could not start is the error to raise.
        with suppress(EngineError):
            for container in self.ids.values():
                remove_container(self._engine, container)
            if self._network is not None:
                remove_network(self._engine, self._network)

    @staticmethod
    def _taken(error: EngineRefusal, name: str) -> LaunchError | EngineRefusal | JobNameError:
        if error.status != _CONFLICT:
            return error
        return JobNameError(
            f"job name: the engine already has {name!r}, of another user or another job's folder; choose another job "
            f"name, or remove it (`docker rm -f {name}`)"
        )


def _not_started(error: EngineRefusal, host: HostPlan) -> Exception:
    text = str(error)
    if "executable file not found" in text or "no such file or directory" in text:
        return ImageError(
            f"{host.name}: the image has no program to start ({text}); an image needs a program `train` on its PATH "
            "(`pip install herringbone` puts one there), or name one with container_entry_point"
        )
    if "could not select device driver" in text:
        return LaunchError(
            f"{host.name}: the engine cannot give GPUs to containers ({text}); install the NVIDIA Container Toolkit "
            "and restart the engine"
        )
    return error
