"""The controller's loop: one thread that waits for hosts' output, their ends, signals and deadlines.

            +------------------- restart ----------------------------+
            v                                                        |
config -> start hosts -> [1] training ---- all hosts over ----> [4] judge, pack, write the end into the index
                             |   |                                  ^
     SIGTERM, a limit -------+   +--- a host failed                 |
                             |         | `patience` seconds         |   SIGINT, or a second SIGTERM, ends the packing
                             v         v                            |
                         [2] SIGTERM to every supervisor -----------+
                             | grace                                |
                             v                                      |
     SIGINT ------------ [3] SIGINT, then SIGKILL ------------------+

No lock is needed: signal handlers only write a byte into a pipe, and everything else happens in the loop's thread.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import time

from herringbone.controller.helpers import MetricsProcess, PipeProcess, S3Process
from herringbone.controller.hosts import Conclusion, Host
from herringbone.controller.log_files import requests_folder
from herringbone.controller.permit import Permit
from herringbone.controller.silence import Step
from herringbone.controller.standstills import Standstills
from herringbone.system.descriptors import CONTROLLER_SIGNALS, REQUEST_SIGNAL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from herringbone.controller.hosts import Site
    from herringbone.protocols.controller_config import ControllerConfig

# Supervisors kill their ranks at the end of the grace, and are killed themselves this much later.
_MARGIN_SECONDS = 5.0
# Time between SIGINT, at which a supervisor ends at once, and SIGKILL.
_LAST_CHANCE_SECONDS = 2.0
# The modules for the end of the job are loaded this long after the start of the hosts, whose Pythons start meanwhile.
_LOAD_SECONDS = 0.5
# Time to wait for the end of the output after the host's end: an unrelated process may hold the pipe open.
_PIPE_SECONDS = 2.0
_NEVER = float("inf")
_LONGEST_PAUSE = 86_400.0
# Systems remove files of /tmp that nothing has touched for ten days. The ticket of the job's devices may be there.
_TOUCH_SECONDS = 24 * 3600.0


class Controller:
    """Runs one job on the hosts of one site until its end: `Controller(config, site).run()`."""

    def __init__(self, config: ControllerConfig, site: Site) -> None:
        self._config = config
        self._site = site
        self._hosts = site.hosts
        self._metrics = MetricsProcess(config)
        self._s3 = S3Process(config)
        self._pipes = PipeProcess(config)
        # The host that ends because a channel of Pipe mode cannot be filled, and the reason.
        self._without_data: tuple[Host, str] | None = None
        self._selector = selectors.DefaultSelector()
        # Deadlines of `time.monotonic()`; each is `_NEVER` until it is set.
        self._limit_at = _NEVER
        self._stop_at = _NEVER
        self._kill_at = _NEVER
        self._close_output_at = _NEVER
        self._load_at = _NEVER
        self._standstills = Standstills(config["logs"])
        self._touch_at = time.monotonic() + _TOUCH_SECONDS if config["claim"] else _NEVER
        self._permit = Permit(config["permit"])
        self._stopped = False
        # The option that sets the limit in time, with its words; and the one whose limit has stopped the job, or "".
        self._time_limit, self._limit = ["", ""], ""
        # Set by `run`: the descriptor on which the numbers of signals arrive.
        self._wakeup = -1
        self._killed = False
        self._grace = config["stop_grace"] + _MARGIN_SECONDS
        # Hosts that this controller signalled: their exit codes say nothing about the job.
        self._ordered: set[str] = set()

    def run(self) -> bool:
        """Run the job until its end is recorded; return whether the job failed."""
        wakeup = self._wakeup = self._watch_signals()
        seconds, *self._time_limit = self._site.time_limit(self._config)
        self._limit_at = time.monotonic() + seconds
        first = True
        while True:
            self._start_hosts()
            # Imported after the start of the hosts: sqlite loads while their Python loads.
            from herringbone.controller import record

            record.training(self._config, first=first)
            if self._metrics.is_wanted:
                self._find_metrics()
            self._s3.start()
            self._start_pipes()
            self._spare_helpers()
            if first:
                self._load_at = time.monotonic() + _LOAD_SECONDS
            first = False
            while not all(host.over for host in self._hosts):
                self._wait_once(wakeup)
            self._end_pipes()
            self._look_for_standstill(at_once=True)
            self._site.collect()
            self._permit.leave_if_ended()
            conclusion = self._conclude()
            if conclusion is not Conclusion.RESTART:
                self._pipes.remove()
                return conclusion is Conclusion.FAILED
            self._forget_attempt()

    def _conclude(self) -> Conclusion:
        from herringbone.controller.attempt_end import end_attempt
        from herringbone.controller.completion import ControllerHosts

        ends = [
            (host, host.name in self._ordered or host.cancelled)
            for host in sorted(self._hosts, key=lambda host: host.ended_at)
        ]
        stopped = self._stopped or any(host.cancelled for host in self._hosts)
        return end_attempt(
            ControllerHosts(
                self._config,
                ends,
                self._site,
                stopped=stopped,
                limit=self._limit,
                packing_is_ended=self._packing_is_ended,
                finish_metrics=self._metrics.finish,
                s3=self._s3,
            )
        )

    def _packing_is_ended(self) -> bool:
        """Read the signals that arrived during the packing; return whether the user asked to end it.

        The first request to stop leaves the packing alone, as on SageMaker: training is over, and results are saved.
        """
        try:
            numbers = os.read(self._wakeup, 4096)
        except BlockingIOError:
            return False
        if signal.SIGINT in numbers or (signal.SIGTERM in numbers and self._stopped):
            return True
        if signal.SIGTERM in numbers:
            from herringbone.controller import record

            self._stopped = True
            record.stopping_while_packing(self._config)
        return False

    def _forget_attempt(self) -> None:
        """Reset deadlines and signals of the last attempt; the next attempt has hosts of its own."""
        self._hosts = self._site.hosts
        self._stop_at = self._kill_at = self._close_output_at = _NEVER
        self._killed = False
        self._without_data = None
        self._ordered.clear()

    def _wait_once(self, wakeup: int) -> None:
        """Wait for the next event or deadline, and handle it."""
        for key, _ in self._selector.select(self._pause()):
            if key.fileobj == wakeup:
                self._take_signals(os.read(wakeup, 4096))
            elif key.fd == self._pipes.answer:
                self._take_pipe_failure()
            elif key.fd not in self._selector.get_map():
                # An event handled earlier in this batch ended the host, and its output was read to the end then.
                continue
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
        """Make signals wake the loop; return the descriptor on which their numbers arrive."""
        read_end, write_end = os.pipe()
        os.set_blocking(read_end, False)
        # Python's C handler writes to this end. A blocking write into a full pipe would hang the whole process.
        os.set_blocking(write_end, False)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        for number in (*CONTROLLER_SIGNALS, REQUEST_SIGNAL, signal.SIGCHLD):
            # A Python handler must exist: with the default action, SIGTERM kills and SIGCHLD writes no byte.
            signal.signal(number, lambda *_: None)
        # The client blocked CONTROLLER_SIGNALS before the start, and its program perhaps others, such as SIGCHLD.
        # A signal that arrived meanwhile is delivered now.
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        # Clients may send that signal from now on, which this folder tells them.
        with contextlib.suppress(OSError):
            os.mkdir(requests_folder(self._config["logs"]), 0o700)  # noqa: PTH102 - controllers start without pathlib
        self._selector.register(read_end, selectors.EVENT_READ)
        return read_end

    def _start_hosts(self) -> None:
        self._site.start()
        for host in self._hosts:
            for descriptor in (host.output, host.ending):
                if descriptor is not None:
                    self._selector.register(descriptor, selectors.EVENT_READ, host)

    def _find_metrics(self) -> None:
        """Start the process that finds metrics in the log, once."""
        self._metrics.start(self._hosts)
        self._spare_helpers()

    def _spare_helpers(self) -> None:
        """Tell the site which children of this process are no orphans of a host."""
        self._site.spared = self._metrics.pids | self._s3.pids | self._pipes.pids

    def _start_pipes(self) -> None:
        self._pipes.start()
        if self._pipes.answer >= 0:
            self._selector.register(self._pipes.answer, selectors.EVENT_READ)

    def _end_pipes(self) -> None:
        if self._pipes.answer >= 0:
            with contextlib.suppress(KeyError):
                self._selector.unregister(self._pipes.answer)
        self._pipes.finish()

    def _take_pipe_failure(self) -> None:
        """Fail the job: its scripts wait for data that will not come, and may not take that for an epoch's end."""
        reason = self._pipes.failure()
        self._selector.unregister(self._pipes.answer)
        if self._living:
            host = self._living[0]
            host.log.say(f"[{host.name}] {reason}", time.time())
            self._without_data = (host, reason)
            self._stop(self._grace)
            # This host fails the job, whatever its script makes of SIGTERM.
            self._ordered.discard(host.name)

    def _take_signals(self, numbers: bytes) -> None:
        # Ends come first: a host that failed before the stop request counts as failed, not as stopped.
        self._take_endings()
        if REQUEST_SIGNAL in numbers:
            from herringbone.controller.resize import take_requests

            ending = bool(self._ordered) or self._stop_at != _NEVER
            if take_requests(requests_folder(self._config["logs"]), self._config, self._site, is_ending=ending):
                self._stop(self._grace)
        if signal.SIGINT in numbers:
            self._site.planned = None
            self._kill()
        elif signal.SIGTERM in numbers:
            from herringbone.controller import record

            self._stopped = not self._limit
            requested = record.stopping(self._config)
            self._stop(self._grace if requested is None else requested)

    def _take_endings(self) -> None:
        for host, code in self._site.endings():
            self._host_ended(host, code)

    def _host_ended(self, host: Host, code: int) -> None:
        if self._without_data is not None and host is self._without_data[0]:
            code, host.cause = code or 1, self._without_data[1]
        host.exit_code = code
        host.ended_at = time.time()
        # As in a container whose first process ends, the other processes of the host end too. After that, no process
        # of the host holds its pipe open.
        self._site.kill_orphans()
        self._drain(host)
        if host.output is not None:
            self._close_output_at = min(self._close_output_at, time.monotonic() + _PIPE_SECONDS)
        if host.exit_code != 0 and host.name not in self._ordered and not host.cancelled:
            self._stop_at = min(self._stop_at, time.monotonic() + self._config["patience"])
            self._site.on_host_failure()

    def _drain(self, host: Host) -> None:
        pipe, had_mllog = host.output, host.has_mllog
        host.drain()
        self._look_for_standstill()
        if host.has_mllog and not had_mllog:
            self._find_metrics()
        if host.log.states:
            self._metrics.show(host.log.states)
            host.log.states = []
        if pipe is not None and host.output is None:
            # epoll has dropped the closed descriptor already, but the selector's own map has not, and the number is
            # given out again.
            self._selector.unregister(pipe)

    def _pause(self) -> float | None:
        """Return the seconds until the next deadline, None when there is none."""
        nearest = min(
            *(self._limit_at, self._stop_at, self._kill_at, self._close_output_at, self._load_at, self._touch_at),
            *(self._permit.due, self._site.due),
            *(host.silence.due for host in self._living),
            self._standstills.due if any(host.pid for host in self._living) else _NEVER,
        )
        # epoll takes 2^31 milliseconds at most.
        return None if nearest == _NEVER else min(max(0.0, nearest - time.monotonic()), _LONGEST_PAUSE)

    def _act_on_deadlines(self) -> None:
        now = time.monotonic()
        if now >= self._limit_at:
            self._limit_at = _NEVER
            self._stop_at_limit(*self._time_limit)
        if now >= self._stop_at:
            self._stop(self._grace)
        if now >= self._kill_at or self._permit.ends():
            self._kill()
        for host in self._living:
            if now >= host.silence.due:
                self._act_on_silence(host)
        if now >= self._standstills.due:
            self._look_for_standstill()
        if now >= self._load_at:
            self._load_at = _NEVER
            load_modules()
            self._site.load()
        if now >= self._touch_at:
            from herringbone.slots.release import touch

            self._touch_at = now + _TOUCH_SECONDS
            touch(self._config["claim"])
        if now >= self._site.due:
            self._site.act()
        if now >= self._close_output_at:
            self._close_output_at = _NEVER
            for host in self._hosts:
                if host.exit_code is not None and host.output is not None:
                    # Before the close: afterwards the number may already belong to another file.
                    self._selector.unregister(host.output)
                    host.close_output()

    def _look_for_standstill(self, *, at_once: bool = False) -> None:
        self._standstills.look(self._living, (self._metrics, self._s3, self._pipes), at_once=at_once)

    def _act_on_silence(self, host: Host) -> None:
        """Name a host that stands still, wake it, or give it up."""
        step, now = host.silence.take(time.monotonic()), time.time()
        quiet = f"nothing has come from its supervisor for {host.silence.seconds:g} s"
        if step is Step.NOTICE:
            host.log.say(f"[{host.name}] stands still: {quiet}; is it stopped, or its container paused?", now)
        elif step is Step.WAKE:
            host.log.say(f"[{host.name}] still stands still: {quiet}; trying to wake it", now)
            self._site.on_host_failure()
        elif step is Step.GIVE_UP:
            host.cause, host.lost = f"stood still: {quiet}, and it could not be woken", True
            host.signal(signal.SIGKILL)
        self._look_for_standstill(at_once=True)

    def _stop_at_limit(self, option: str, why: str) -> None:
        # A job that is stopping already, or has ended, keeps that as its reason.
        if not self._stopped and self._living:
            self._limit = self._limit or option
        for host in self._living:
            host.log.say(f"[{host.name}] {why}: stopping", time.time())
        self._stop(self._grace)

    def _stop(self, grace: float) -> None:
        """[2] Send SIGTERM to every living host, and set the deadline for [3]."""
        self._stop_at = _NEVER
        self._ordered.update(host.name for host in self._living)
        for host in self._living:
            host.signal(signal.SIGTERM)
        # A later stop with a longer grace must not postpone a kill that is due earlier.
        self._kill_at = min(self._kill_at, time.monotonic() + grace)

    def _kill(self) -> None:
        """[3] Send SIGINT the first time, so that a supervisor kills its ranks before it ends; then SIGKILL."""
        first, self._killed = not self._killed, True
        self._stopped = self._stopped or not (self._limit or self._site.planned)
        self._ordered.update(host.name for host in self._living)
        for host in self._living:
            host.signal(signal.SIGINT if first else signal.SIGKILL)
        self._kill_at = time.monotonic() + _LAST_CHANCE_SECONDS


def load_modules() -> None:
    """Import what the end of a job needs: the package may be upgraded or removed while the job runs."""
    import filecmp
    import shutil

    from herringbone.controller import completion, report, resize
    from herringbone_contract.events import format as events_format

    _ = filecmp, shutil, completion, resize, report, events_format
