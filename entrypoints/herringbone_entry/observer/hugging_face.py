"""The progress of Hugging Face's Trainer in a child of a rank: where its `KubeflowCallback` posts, and what it means.

In a rank itself, `herringbone_contract.events.hugging_face` sends every value, and nothing is posted.

    [1] supervisor     binds a port of the loopback interface, and makes a token (`StatusListener`)
    [2] ranks          get the port's address and the token's path (`status_environment`)
    [3] Trainer        adds its callback, because the address is set, and posts from rank 0 at most every 5 seconds
    [4] observer       answers the posts (`status_server`), and `TrainerStatus` turns them into events

A post between [1] and [4] waits in the port's backlog. Source: `KubeflowCallback` of transformers 5.23.
"""

from __future__ import annotations

import json
import math
import os
import socket
from collections import deque
from collections.abc import Callable
from typing import Any

from herringbone_contract.events.format import HUGGING_FACE, MAX_NAME_CHARS, Event, Point
from herringbone_entry.observer.source import Source

# Posts between two polls, of which there is one a second.
_MAX_POSTS = 64
# Different metrics of one job.
_MAX_METRICS = 1000
# The callback adds these to the metrics of the log.
_STEP, _TOTAL, _EPOCH = "current_step", "total_steps", "current_epoch"


class HuggingFace(Source):
    """Answers the posts to a listening socket; both arguments are descriptors.

    >>> HuggingFace(listener, token).poll(now=time.time())              # doctest: +SKIP
    [{'kind': 'progress', ...}, Point(..., name='loss', value=0.5, step=None, ...)]
    """

    def __init__(self, listener: int, token: int) -> None:
        from threading import Thread

        # Filled by the server's threads, emptied by `poll`; both ends of a deque are safe without a lock.
        self._posts: deque[bytes] = deque(maxlen=_MAX_POSTS)
        self._status = TrainerStatus()
        accepting = Thread(
            target=_accept,
            args=(socket.socket(fileno=listener), os.pread(token, 64, 0), self._posts.append),
            daemon=True,
        )
        accepting.start()

    def poll(self, now: float) -> list[Event | Point]:
        items: list[Event | Point] = []
        while self._posts:
            items += self._status.take(self._posts.popleft(), now)
        return items


def _accept(listener: socket.socket, token: bytes, take: Callable[[bytes], None]) -> None:
    import select

    # Most jobs get no post, and load no HTTP server.
    select.select([listener], [], [])
    from herringbone_entry.observer.status_server import serve

    serve(listener, token, take)


class TrainerStatus:
    """Reads the posts of one Trainer. Pure.

    >>> status = TrainerStatus()
    >>> body = {"progressPercentage": 50, "estimatedRemainingSeconds": 9, "metrics": [
    ...     {"name": "loss", "value": "0.5"}, {"name": "current_step", "value": "10"},
    ...     {"name": "total_steps", "value": "20"}]}
    >>> progress, loss = status.take(json.dumps({"trainerStatus": body}).encode(), now=1.0)
    >>> progress["done"], progress["total"], progress["unit"], progress["eta"]
    (10, 20, 'step', 9.0)
    >>> loss
    Point(time=1.0, name='loss', value=0.5, step=None, rank=None, source='huggingface', pace=None)

    Each post has the last values of all metrics, so those that have not changed are left out. The step is that of the
    post and not that of the values, which therefore have none.
    """

    def __init__(self) -> None:
        self._total: int | None = None
        self._values: dict[str, float] = {}

    def take(self, body: bytes, now: float) -> list[Event | Point]:
        """Return the events of a post; none for one that is no status."""
        try:
            status = json.loads(body)["trainerStatus"]
            metrics = {metric["name"]: metric["value"] for metric in status.get("metrics") or ()}
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return []
        percent, eta = _number(status.get("progressPercentage")), _number(status.get("estimatedRemainingSeconds"))
        step = _count(metrics.pop(_STEP, None))
        self._total = _count(metrics.pop(_TOTAL, None)) or self._total
        metrics.pop(_EPOCH, None)
        if step is None and self._total is not None and percent in (0, 100):
            # The first and the last post do not name their step.
            step = self._total if percent else 0
        items: list[Event | Point] = []
        progress = {"kind": "progress", "t": now, "rank": None}
        if step is not None and self._total is not None:
            items.append({**progress, "done": step, "total": self._total, "unit": "step", "eta": eta})
        elif percent is not None:
            items.append({**progress, "done": percent, "total": 100, "unit": "%", "eta": eta})
        for name, text in metrics.items():
            value = _number(text, finite=False)
            if value is not None and self._is_new(str(name)[:MAX_NAME_CHARS], value):
                items.append(Point(now, str(name)[:MAX_NAME_CHARS], value, None, None, HUGGING_FACE))
        return items

    def _is_new(self, name: str, value: float) -> bool:
        known = self._values.get(name)
        if known is None and len(self._values) >= _MAX_METRICS:
            return False
        self._values[name] = value
        # NaN differs from itself.
        return known is None or (known != value and not (math.isnan(known) and math.isnan(value)))


def _number(value: Any, *, finite: bool = True) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return None if finite and not math.isfinite(number) else number


def _count(value: Any) -> int | None:
    number = _number(value)
    return None if number is None or not 0 <= number < 1 << 53 else int(number)
