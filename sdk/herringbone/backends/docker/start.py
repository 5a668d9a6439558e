"""Creates a job's containers and their network and starts them; removes all of them when one cannot start."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from threading import Thread, current_thread, main_thread
from typing import TYPE_CHECKING, Any

from herringbone.backends.docker.request import container_name, network_name, network_request
from herringbone.controller.containers.calls import remove_container, remove_network, start_container
from herringbone.engine.client import Engine, EngineRefusal
from herringbone_contract.errors import EngineError, ImageError, JobNameError, LaunchError

if TYPE_CHECKING:
    from herringbone.plan.plan import HostPlan, JobPlan

_CONFLICT = 409


def run_parallel(calls: Sequence[Callable[[], object]]) -> None:
    """Make all calls in parallel; return when all have returned, or raise the first error."""
    errors: list[BaseException] = []

    def run(call: Callable[[], object]) -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - raised in the caller's thread
            errors.append(error)

    threads = [Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    # All of them, also after an error: what a late thread creates must be known when the caller removes everything.
    for thread in threads:
        thread.join()
    # The first error in time is the cause; the others may be its consequences.
    if errors:
        raise errors[0]


@contextmanager
def delay_interrupt() -> Iterator[None]:
    """Delay the first Ctrl-C to the end of the block.

    Otherwise Ctrl-C would leave `run_parallel` while its threads still create objects, which nobody would remove.
    """
    # Python runs signal handlers in the main thread only, so no other thread is interrupted.
    if current_thread() is not main_thread():
        yield
        return
    delayed: list[Any] = []

    def delay(*arguments: Any) -> None:
        # A user who presses Ctrl-C twice does not want to wait for an engine that hangs.
        if delayed:
            raise KeyboardInterrupt
        delayed.append(arguments)

    previous = signal.signal(signal.SIGINT, delay)
    try:
        yield
    finally:
        # In `finally`: an error of the block must not leave Ctrl-C without effect.
        signal.signal(signal.SIGINT, previous)
    # `previous` is a number, not a function, where SIGINT is ignored or has its default action.
    if delayed and callable(previous):
        previous(*delayed[0])


class JobObjects:
    """The network and the containers that a job has created so far, to be removed when the job cannot start.

    `run_parallel` calls the methods from several threads; each sets a key or an attribute of its own.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._network: str | None = None
        self.ids: dict[str, str] = {}

    def create_network(self, plan: JobPlan, labels: Mapping[str, str]) -> None:
        try:
            self._network = self._engine.post("/networks/create", network_request(plan, labels))["Id"]
        except EngineRefusal as error:
            if "address pool" in str(error):
                raise LaunchError(
                    f"the container engine has no addresses left for a network between the hosts ({error}): remove "
                    "networks that no container uses (`docker network prune`), or give the engine more addresses "
                    "(`default-address-pools` in its daemon.json)"
                ) from error
            raise self._name_error(error, str(network_name(plan))) from error

    def create_container(self, plan: JobPlan, host: HostPlan, request: Mapping[str, object]) -> None:
        name = container_name(plan, host)
        try:
            self.ids[host.name] = self._engine.post("/containers/create", request, name=name)["Id"]
        except EngineRefusal as error:
            raise self._name_error(error, name) from error

    def start(self, host: HostPlan, stream: socket.socket, ending: socket.socket, line: bytes) -> None:
        try:
            start_container(self._engine, self.ids[host.name], stream, ending, line)
        except EngineRefusal as error:
            raise _start_error(error, host) from error

    def remove(self) -> None:
        # The next cleanup finds what cannot be removed now. The error that the user needs is why the job did not start.
        with suppress(EngineError):
            # Containers before their network: the engine refuses to remove a network that is in use.
            for container in self.ids.values():
                remove_container(self._engine, container)
            if self._network is not None:
                remove_network(self._engine, self._network)

    @staticmethod
    def _name_error(error: EngineRefusal, name: str) -> LaunchError | EngineRefusal | JobNameError:
        # The engine allows each name once, also among the objects of other users.
        if error.status != _CONFLICT:
            return error
        return JobNameError(
            f"job name: the engine already has {name!r}, of another user or another job's folder; choose another job "
            f"name, or remove it (`docker rm -f {name}`)"
        )


def _start_error(error: EngineRefusal, host: HostPlan) -> Exception:
    text = str(error)
    if "executable file not found" in text or "no such file or directory" in text:
        return ImageError(
            f"{host.name}: the image has no program to start ({text}); an image needs a program `train` on its PATH "
            "(an installed Herringbone puts one there), or name one with container_entry_point"
        )
    if "could not select device driver" in text:
        return LaunchError(
            f"{host.name}: the engine cannot give GPUs to containers ({text}); install the NVIDIA Container Toolkit "
            "and restart the engine"
        )
    return error
