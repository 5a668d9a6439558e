"""One host's part in finding stragglers: step times, times of collective operations, and what keeps its ranks waiting.

ranks report steps       steps      to the coordinator, at most once a second
the order `clock`        clock      to the coordinator at once: the time of this host's clock
  with `steps`           times      to the coordinator, one message per rank
"""

from __future__ import annotations

import functools
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from herringbone_entry.host_context import HostContext
from herringbone_entry.supervisor.rank_orders import RankOrder

if TYPE_CHECKING:
    from herringbone_entry.channel.messages import Clock
    from herringbone_entry.supervisor.rank_group import RankGroup

_PERIOD_SECONDS = 1.0
_MAX_STEP_TIMES = 100
# A busy rank's thread gets the GIL late.
_ANSWER_SECONDS = 2.0
# Between two messages: one link's buffer must not fill up, which would look like a lost host.
_PAUSE_SECONDS = 0.01
# What the newest samples of a host say about its ranks.
_SAMPLES = 10
_FACTS = ("cpu", "throttled", "swapped", "disk", "cores")


class HostSteps:
    """Reports the steps of one host's ranks. All methods run in the loop's thread."""

    def __init__(self, context: HostContext, ranks: RankGroup) -> None:
        self._context, self._ranks = context, ranks
        self._steps: dict[int, list[float]] = {}
        self._samples: deque[Mapping[str, Any]] = deque(maxlen=_SAMPLES)
        # The first report comes also from ranks that report no steps: the coordinator then looks at them.
        context.loop.later(_PERIOD_SECONDS, self._report_steps)
        self._is_due = True

    def take_sample(self, event: Mapping[str, Any]) -> None:
        """Take a sample of the observer's."""
        self._samples.append(event)

    def take_steps(self, event: Mapping[str, Any]) -> None:
        """Take the steps that a rank has reported by itself."""
        # Without the waits for other ranks, where the library tells: those make all steps as long as the slowest.
        rank, seconds = event.get("rank"), event.get("own") or event.get("seconds")
        if not isinstance(rank, int) or not isinstance(seconds, list):
            return
        if not self._is_due:
            self._is_due = True
            self._context.loop.later(_PERIOD_SECONDS, self._report_steps)
        times = [float(each) for each in seconds if isinstance(each, (int, float))]
        self._steps[rank] = (self._steps.get(rank, []) + times)[-_MAX_STEP_TIMES:]

    def _report_steps(self) -> None:
        self._context.report(
            {
                "kind": "steps",
                "seconds": {str(rank): times for rank, times in self._steps.items()},
                "facts": {str(rank): self._facts(rank) for rank in self._steps},
            }
        )
        self._steps, self._is_due = {}, False

    def answer(self, order: Clock) -> None:
        """Report this host's time, and then its ranks' last steps if the order asks for some."""
        self._context.report({"kind": "clock", "id": order["id"], "wall": time.time()})
        if not order["steps"]:
            return
        folder = self._ranks.orders
        for rank, pid in self._ranks.pids.items():
            report = functools.partial(self._report, order["id"], rank)
            # A rank without this FIFO has not imported torch.distributed, so it has no record.
            if Path(f"{folder}/wake-{pid}").exists():
                name, members = f"entries-{order['id']}-{rank}", {"steps": order["steps"]}
                RankOrder(self._context.loop, folder, pid, "entries", name, report, members=members).send(
                    _ANSWER_SECONDS
                )
            else:
                report({})

    def _report(self, number: int, rank: int, answer: dict[str, Any]) -> None:
        record = answer if "ends" in answer else None
        event = {"kind": "times", "id": number, "rank": rank, "record": record, "facts": self._facts(rank)}
        pause = sorted(self._ranks.numbers).index(rank) * _PAUSE_SECONDS
        self._context.loop.later(pause, lambda: self._context.report(event))  # type: ignore[arg-type]

    def _facts(self, rank: int) -> dict[str, Any]:
        """Return the means of what samples say about a rank, and why its GPU's clock is lowered; `{}` if nothing."""
        rows = [row for sample in self._samples if isinstance(row := sample.get("ranks", {}).get(str(rank)), dict)]
        if not rows:
            return {}
        facts: dict[str, Any] = {name: sum(row.get(name, 0.0) for row in rows) / len(rows) for name in _FACTS}
        gpus, numbers = self._samples[-1].get("gpus", []), sorted(self._ranks.numbers)
        # With a GPU a rank, the ranks of a host use them in order.
        if len(gpus) == len(numbers):
            facts["slowed"] = gpus[numbers.index(rank)].get("slowed", "")
        return facts
