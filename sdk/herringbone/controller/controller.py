"""The controller's loop: one thread that waits for hosts' output, their ends, signals and deadlines.

           +---------------- the job begins anew ------------------+
           v                                                       |
order -> start hosts -> [1] training ---- all hosts over ----> [4] judge, pack, write the end into the index
                            |   |                                  ^
    SIGTERM, max_run -------+   +--- a host failed                 |
                            |         | `patience` seconds         |
                            v         v                            |
                        [2] SIGTERM to every supervisor -----------+
                            | grace                                |
                            v                                      |
    SIGINT ------------ [3] SIGINT, then SIGKILL ------------------+
"""

from __future__ import annotations

import os
import selectors
import signal
import time

from herringbone.controller.descriptors import CONTROLLER_SIGNALS
from herringbone.controller.hosts import Host

TYPE_CHECKING = False
if TYPE_CHECKING:
    from herringbone.controller.completion import Conclusion
    from herringbone.controller.config import Order
    from herringbone.controller.hosts import Site

# Supervisors kill their ranks when the grace is over; this much later they are killed themselves.
_MARGIN_SECONDS = 5.0
# From SIGINT, at which a supervisor ends at once, to SIGKILL.
_LAST_CHANCE_SECONDS = 2.0
# How long output is awaited from a pipe that a stranger holds open after the host's end.
_PIPE_SECONDS = 2.0
_FAR = float("inf")


class Controller:
    """Runs one job, on the hosts of one site, from its order to its end: `Controller(order, site).run()`."""

    def __init__(self, order: Order, site: Site) -> None:
        self._order = order
        self._site = site
        self._hosts = site.hosts
        self._selector = selectors.DefaultSelector()
        # Deadlines of `time.monotonic()`; each is `_FAR` until it is set.
        self._max_run_at = _FAR
        self._stop_at = _FAR
        self._kill_at = _FAR
        self._end_at = _FAR
        self._stopped = False
        self._max_run_over = False
        self._killed = False
        self._grace = order["stop_grace"] + _MARGIN_SECONDS
        # Hosts that ended after they were told to: their exit codes say nothing.
        self._ordered: set[str] = set()

    def run(self) -> bool:
        """Keep the job until its end is written down; return whether it failed."""
        wakeup = self._watch_signals()
        # Of all attempts together.
        self._max_run_at = time.monotonic() + self._order["max_run"] - self._order["warning"]
        first = True
        while True:
            self._start_hosts()
            from herringbone.controller import record

            record.training(self._order, first=first)
            first = False
            while not all(host.over for host in self._hosts):
                self._turn(wakeup)
            self._site.collect()
            conclusion = self._conclude()
            if conclusion != "anew":
                return conclusion == "failed"
            self._forget_attempt()

    def _conclude(self) -> Conclusion:
        from herringbone.controller.completion import conclude

        ends = [
            (host, host.name in self._ordered or host.called_off)
            for host in sorted(self._hosts, key=lambda host: host.ended_at)
        ]
        stopped = self._stopped or any(host.called_off for host in self._hosts)
        return conclude(self._order, ends, self._site, stopped=stopped, max_run_over=self._max_run_over)

    def _forget_attempt(self) -> None:
        """What was told to the hosts of one attempt is nothing to those of the next."""
        self._hosts = self._site.hosts
        self._stop_at = self._kill_at = self._end_at = _FAR
        self._killed = False
        self._ordered.clear()

    def _turn(self, wakeup: int) -> None:
        """Wait for what comes next, and take it in."""
        for key, _ in self._selector.select(self._pause()):
            if key.fileobj == wakeup:
                self._take_signals(os.read(wakeup, 4096))
            elif key.fd not in self._selector.get_map():
                continue  # it was read to its end in this turn, when its host had ended
            elif key.fd == key.data.output:
                self._drain(key.data)
            else:
                self._take_endings()
                if key.data.ending is None:
                    self._selector.unregister(key.fd)
        self._act_on_deadlines()

    @property
    def _living(self) -> list[Host]:
        return [host for host in self._hosts if host.exit_code is None]

    def _watch_signals(self) -> int:
        """Have signals wake the loop; return the descriptor on which their numbers come."""
        read_end, write_end = os.pipe()
        os.set_blocking(read_end, False)
        os.set_blocking(write_end, False)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        for number in (*CONTROLLER_SIGNALS, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        # The client had them wait until now: one that came while we started must not be lost, or kill us.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, CONTROLLER_SIGNALS)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        self._selector.register(read_end, selectors.EVENT_READ)
        return read_end

    def _start_hosts(self) -> None:
        self._site.start()
        for host in self._hosts:
            for descriptor in (host.output, host.ending):
                if descriptor is not None:
                    self._selector.register(descriptor, selectors.EVENT_READ, host)

    def _take_signals(self, numbers: bytes) -> None:
        # First the ends: a host that failed before the stop has failed.
        self._take_endings()
        if signal.SIGINT in numbers:
            self._kill()
        elif signal.SIGTERM in numbers:
            from herringbone.controller import record

            self._stopped = not self._max_run_over
            wished = record.stopping(self._order)
            self._stop(self._grace if wished is None else wished)

    def _take_endings(self) -> None:
        for host, code in self._site.endings():
            self._host_ended(host, code)

    def _host_ended(self, host: Host, code: int) -> None:
        host.exit_code = code
        host.ended_at = time.time()
        # Its ranks go with it, as in a container whose first process ends; then nobody holds its pipe.
        self._site.sweep()
        self._drain(host)
        if host.output is not None:
            self._end_at = min(self._end_at, time.monotonic() + _PIPE_SECONDS)
        if host.exit_code != 0 and host.name not in self._ordered and not host.called_off:
            self._stop_at = min(self._stop_at, time.monotonic() + self._order["patience"])
            self._site.rouse()

    def _drain(self, host: Host) -> None:
        pipe = host.output
        host.drain()
        if pipe is not None and host.output is None:
            self._selector.unregister(pipe)

    def _pause(self) -> float | None:
        """Return the seconds until the next deadline, None when there is none."""
        nearest = min(self._max_run_at, self._stop_at, self._kill_at, self._end_at)
        return None if nearest == _FAR else max(0.0, nearest - time.monotonic())

    def _act_on_deadlines(self) -> None:
        now = time.monotonic()
        if now >= self._max_run_at:
            self._max_run_at = _FAR
            self._max_run_over = not self._stopped and bool(self._living)
            soon = f" in {self._order['warning']:g} s" if self._order["warning"] else ""
            over = f"max_run of {self._order['max_run']:g} s is over{soon}"
            for host in self._living:
                host.log.say(f"[{host.name}] {over}: stopping", time.time())
            self._stop(self._grace)
        if now >= self._stop_at:
            self._stop(self._grace)
        if now >= self._kill_at:
            self._kill()
        if now >= self._end_at:
            self._end_at = _FAR
            for host in self._hosts:
                if host.exit_code is not None and host.output is not None:
                    self._selector.unregister(host.output)
                    host.hang_up()

    def _stop(self, grace: float) -> None:
        """[2]"""
        self._stop_at = _FAR
        self._ordered.update(host.name for host in self._living)
        for host in self._living:
            host.signal(signal.SIGTERM)
        self._kill_at = min(self._kill_at, time.monotonic() + grace)

    def _kill(self) -> None:
        """[3] The first time politely, so that a supervisor takes its ranks with it; then for good."""
        first = not self._killed
        self._killed = True
        self._stopped = self._stopped or not self._max_run_over
        self._ordered.update(host.name for host in self._living)
        for host in self._living:
            host.signal(signal.SIGINT if first else signal.SIGKILL)
        self._kill_at = time.monotonic() + _LAST_CHANCE_SECONDS
