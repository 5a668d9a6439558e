"""Looking into a running job: requests to its supervisors through a FIFO of their pods, and the way into a pod.

    ask -> exec: printf >FIFO -> supervisor -> the pod's log -> answers

Each asked pod has a thread of its own, so a pod or a node that hangs delays nobody.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
import time
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from threading import Event as Flag
from threading import Thread
from typing import TYPE_CHECKING

from herringbone.backends.kubernetes.api import Api, path_of
from herringbone.backends.kubernetes.logs import without_number
from herringbone.backends.kubernetes.pods import CONTAINER, REQUESTS
from herringbone.backends.kubernetes.states import PodState
from herringbone.events.source import decode_lines
from herringbone.protocols.host_access import enter_words, fault_words, relay_words
from herringbone.records.logs import marked_line
from herringbone.system.attached import attach, joined
from herringbone_contract.errors import KubernetesError, RequestError
from herringbone_contract.events.requests import encode, is_for

if TYPE_CHECKING:
    from herringbone.backends.kubernetes.execution import Execution
    from herringbone_contract.events.format import Event
    from herringbone_contract.events.requests import Request

# Images of ours have Herringbone in the Python of this name.
_PYTHON = "python3"
# $0 is the line. A FIFO without a reader would keep the shell.
_SEND = f'[ -p {REQUESTS} ] || exit 3; printf %s "$0" >{REQUESTS}'
_SEND_SECONDS = 10.0
_NOT_YET_CODE = 3
_KILLED_CODE = 137
_PAUSE_SECONDS = 0.25
# Kubelets count whole seconds, and a line may come from the second before.
_MARGIN_SECONDS = 2
_NEVER = datetime.fromtimestamp(0, timezone.utc)


class PodAnswers:
    """Sends a request to the pods of a job, by host, and reads the events that they log from then on."""

    def __init__(self, api: Api, namespace: str, pods: Mapping[str, PodState | None], request: Request) -> None:
        self._api, self._namespace, self._request = api, namespace, request
        self._events: deque[Event] = deque()
        self._closed = Flag()
        for host, pod in pods.items():
            if is_for(request, host):
                Thread(target=self._ask, args=(host, pod), daemon=True).start()

    def read(self) -> list[Event]:
        return [self._events.popleft() for _ in range(len(self._events))]

    def close(self) -> None:
        self._closed.set()

    def _ask(self, host: str, pod: PodState | None) -> None:
        try:
            begin = time.monotonic()
            self._send(running(host, pod))
            while not self._closed.wait(_PAUSE_SECONDS):
                # By the kubelet's clock. An event may come again, which is no harm: its answer is the same.
                seconds = math.ceil(time.monotonic() - begin) + _MARGIN_SECONDS
                path = path_of("Pod", self._namespace, running(host, pod), "log")
                log = self._api.text(path, container=CONTAINER, sinceSeconds=str(seconds))
                self._events += answers_of(log, host, self._request["id"])
        except (KubernetesError, RequestError) as error:
            event = {"kind": "answer", "t": time.time(), "host": host, "id": self._request["id"], "text": ""}
            self._events.append({**event, "error": str(error)})

    def _send(self, pod: str) -> None:
        line = encode(self._request).decode()
        words = ["/bin/sh", "-c", _SEND, line]
        stream = self._api.stream((self._namespace, pod, CONTAINER), words, seconds=_SEND_SECONDS)
        with contextlib.closing(stream):
            output = stream.read_all(_SEND_SECONDS)
            if code := stream.exit_code:
                why = "its supervisor only starts; try again in a moment" if code == _NOT_YET_CODE else output.decode()
                raise RequestError(f"pod {pod}: {why}")


def answers_of(log: bytes, host: str, identifier: str) -> list[Event]:
    """Return the answers to a request that are in a part of a pod's log. Pure.

    >>> answers_of(b'no event\\n[algo-1] \\x1e{"kind":"answer","t":1.0,"id":"a"}\\n', "algo-1", "a")
    [{'kind': 'answer', 't': 1.0, 'id': 'a', 'host': 'algo-1'}]
    """
    # What has no end of line yet comes again, as a whole.
    parts = [without_number(line) for line in log.split(b"\n")[:-1] if identifier.encode() in line]
    lines = (marked_line(line, host, _NEVER) for line in parts)
    events = decode_lines("\n".join(line.event for line in lines if line.event is not None).encode())
    return [{**event, "host": host} for event in events if event.get("id") == identifier]


def running(host: str, pod: PodState | None) -> str:
    """Return the name of a host's pod. Raises `RequestError` for one that does not run."""
    if pod is None or pod.phase != "running":
        state = "there is none" if pod is None else f"it is {pod.phase}" + (f": {pod.why}" if pod.why else "")
        raise RequestError(f"{host}: its pod does not run: {state}")
    return pod.pod


class PodAccess:
    """The way into one pod, by a program that the API server starts there."""

    is_here = False

    def __init__(self, api: Api, namespace: str, pod: str) -> None:
        self._api, self._place = api, (namespace, pod, CONTAINER)

    def run(self, command: Sequence[str]) -> int:
        terminal = os.isatty(0) and os.isatty(1)
        words = enter_words(_PYTHON, None, "", command)
        if terminal:
            # Programs that draw on a terminal read its kind there.
            words = ["env", f"TERM={os.environ.get('TERM', 'xterm')}", *words]
        with contextlib.closing(self._start(words, terminal=terminal)) as program:
            attach(program, terminal=terminal)
            return program.exit_code

    def connect(self, port: int) -> socket.socket:
        return joined(self._start(relay_words(_PYTHON, port)))

    def strike(self, kind: str, seconds: float = 0.0) -> int:
        words = enter_words(_PYTHON, None, "", fault_words(kind, seconds))
        with contextlib.closing(self._api.stream(self._place, words, seconds=None)) as program:
            try:
                for _ in program.pieces():
                    pass
                code = program.exit_code
            except KubernetesError:
                # A pod that is lost takes the connection along.
                code = _KILLED_CODE if kind == "lost" else 1
            return 0 if kind == "lost" and code == _KILLED_CODE else code

    def _start(self, words: Sequence[str], *, terminal: bool = False) -> Execution:
        # A program may be silent for as long as it likes.
        return self._api.stream(self._place, words, seconds=None, stdin=True, terminal=terminal)
