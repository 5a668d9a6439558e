"""One host's part in watching the job: it reports how long its ranks have not moved, and shows where they are.

`hang_timeout` is set    moved    to the coordinator, several times per `hang_timeout`
a loss is wrong          loss     to the coordinator
replicas are checked     checksum to the coordinator
`idle_timeout` is set    unused   to the coordinator, with each sample
the order `stacks`       stacks   to the coordinator, one message per rank
"""

from __future__ import annotations

import functools
import linecache
import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from herringbone_contract.events.format import parse
from herringbone_contract.masking import printable
from herringbone_entry.host_context import HostContext
from herringbone_entry.supervisor.rank_orders import RankOrder
from herringbone_entry.supervisor.watching.host_steps import HostSteps
from herringbone_entry.watch import activity, collect
from herringbone_entry.watch.fold import place_of
from herringbone_entry.watch.idleness import HostIdleness
from herringbone_entry.watch.losses import Losses

if TYPE_CHECKING:
    from herringbone_entry.supervisor.rank_group import RankGroup

# Reports per `hang_timeout`, and the longest time between two.
_REPORTS, _MAX_PERIOD_SECONDS = 8, 15.0
# Between two messages: one link's buffer must not fill up, which would look like a lost host.
_PAUSE_SECONDS = 0.01
_MAX_SOURCE_CHARS = 120
# Kinds of events that ranks send. The observer's own, such as samples, say nothing about progress.
_SIGNS_OF_LIFE = ("metric", "metrics", "progress", "steps", "timeline")
# A rank whose other thread holds the GIL gives no record.
_RECORD_SECONDS = 0.6


class HostWatch:
    """Watches the ranks of one host. All methods run in the loop's thread."""

    def __init__(
        self, context: HostContext, ranks: RankGroup, idle_timeout: float = 0.0, loss_factor: float | None = None
    ) -> None:
        self._context, self._ranks, self._idle_timeout = context, ranks, idle_timeout
        self._moved_at = time.monotonic()
        self.steps = HostSteps(context, ranks)
        # The last reading of what the ranks have done, and when each was last seen at work.
        self._work: tuple[float, dict[int, activity.Work]] | None = None
        self._worked_at: dict[int, float] = {}
        self._starved_at = float("-inf")
        self._idleness = HostIdleness()
        self._losses = Losses(loss_factor)

    def watch(self, hang_timeout: float, *, is_chosen: bool) -> None:
        """Report from now on how long no rank has moved; `hang_timeout` 0 is for never."""
        if not hang_timeout:
            return
        now, moved_at = time.monotonic(), max(self._moved_at, self._ranks.moved_at)
        if now - moved_at < hang_timeout / 2:
            self._work = None
        else:
            self._see_work(now)
        idle = {str(rank): now - self._worked_at.get(rank, moved_at) for rank in self._ranks.pids}
        self._context.report(
            {
                "kind": "moved",
                "quiet": now - moved_at,
                "limit": hang_timeout,
                "idle": idle,
                "is_starved": now - self._starved_at < hang_timeout,
                "is_chosen": is_chosen,
            }
        )
        period = min(hang_timeout / _REPORTS, _MAX_PERIOD_SECONDS)
        self._context.loop.later(period, lambda: self.watch(hang_timeout, is_chosen=is_chosen))

    def _see_work(self, now: float) -> None:
        """Compare what the ranks have done with the last look."""
        found = activity.read(self._ranks.pids)
        if self._work is not None:
            then, before = self._work
            for rank in found.keys() & before.keys():
                if activity.is_work(before[rank], found[rank], now - then):
                    self._worked_at[rank] = now
                if activity.is_starved(before[rank], found[rank], now - then):
                    self._starved_at = now
        self._work = now, found

    def look(self, number: str) -> None:
        """Look at all ranks, their records first and then their stacks, and report where they are under `number`."""
        folder = self._ranks.orders
        records: dict[int, Any] = {}
        # A rank without this FIFO has not imported torch.distributed, so it has no record.
        pids = {rank: pid for rank, pid in self._ranks.pids.items() if Path(f"{folder}/wake-{pid}").exists()}
        if not pids:
            self._look(number, records)

        def note(rank: int, answer: dict[str, Any]) -> None:
            records[rank] = answer if "entries" in answer else None
            if len(records) == len(pids):
                self._look(number, records)

        for rank, pid in pids.items():
            on_answer = functools.partial(note, rank)
            name = f"{number}-{rank}"
            RankOrder(self._context.loop, folder, pid, "flight_record", name, on_answer).send(_RECORD_SECONDS)

    def _look(self, number: str, records: Mapping[int, Any]) -> None:
        folder = self._ranks.orders
        targets = {rank: collect.Target(pid, f"{folder}/stacks-{pid}") for rank, pid in self._ranks.pids.items()}
        code = str(Path(self._context.host.paths.code).resolve())
        ranks = self._ranks.numbers
        ours, theirs = socket.socketpair()
        results: list[dict[str, Any]] = []

        def work() -> None:
            # In a thread, because it waits. The end of the socket wakes the loop, which reads `results` only then.
            with theirs:
                found = collect.look(targets)
                for rank in ranks:
                    results.append(_report(number, rank, found.get(rank), code) | {"record": records.get(rank)})

        def done() -> None:
            self._context.loop.forget(ours.fileno())
            ours.close()
            self._send(results)

        self._context.loop.read(ours.fileno(), done)
        # A daemon thread: a job that ends does not wait for it.
        threading.Thread(target=work, daemon=True).start()

    def _send(self, results: list[dict[str, Any]]) -> None:
        if results:
            self._context.report(results.pop(0))  # type: ignore[arg-type]
            self._context.loop.later(_PAUSE_SECONDS, lambda: self._send(results))

    def take_events(self, lines: bytes) -> None:
        """Take events of the observer: ranks have moved, have taken steps, or have waited for something."""
        for event in filter(None, map(parse, lines.splitlines())):
            if event["kind"] in _SIGNS_OF_LIFE:
                self._moved_at = time.monotonic()
            if event["kind"] == "metrics" and (wrong := self._losses.take(event)) is not None:
                self._context.report(
                    {"kind": "loss", "fault": wrong.fault, "rank": wrong.rank, "text": wrong.text, "bad": wrong.bad}
                )
            if event["kind"] == "checksum" and isinstance(event.get("rank"), int):
                step, value = int(event["step"]), str(event["value"])
                self._context.report({"kind": "checksum", "rank": event["rank"], "step": step, "value": value})
            if event["kind"] == "sample" and self._idle_timeout:
                seconds, covers, what = self._idleness.take(event)
                limit = self._idle_timeout
                self._context.report(
                    {"kind": "unused", "limit": limit, "seconds": seconds, "covers": covers, "what": what}
                )
            if event["kind"] == "steps":
                self.steps.take_steps(event)
            elif event["kind"] == "sample":
                self.steps.take_sample(event)


def _report(number: str, rank: int, found: dict[str, Any] | None, code: str) -> dict[str, Any]:
    """Return the message about one rank; `found` is None when its process has ended."""
    processes = [] if found is None else found["processes"]
    for process in processes:
        for thread in process["threads"]:
            thread["frames"] = [[*frame, _source(frame, code)] for frame in thread["frames"]]
    place = place_of(processes, code)
    return {
        "kind": "stacks",
        "id": number,
        "rank": rank,
        "place": list(place),
        "connections": [] if found is None else found["connections"],
    }


def _source(frame: list[Any], code: str) -> str:
    """Return the line of the user's code at which a frame is; an empty text for other code."""
    file, line = Path(code, frame[0]), frame[1]
    if not file.is_relative_to(code):
        return ""
    return printable(linecache.getline(str(file), line).strip()[:_MAX_SOURCE_CHARS])
