"""Hosts that are processes of this machine: each a supervisor, the pipe that it writes to, and its end.

controller                                       supervisor (a session of its own)
   lifeline, write end  --------- pipe --------->  descriptor 3: requests of clients, one a line; end-of-file means
                                                   that the controller is gone
   secret               --------- pipe --------->  descriptor 4, when there are several hosts
   key of a remote      --------- pipe --------->  descriptor 5: the environment of a process stays in its memory, where
   function                                        every process of the job can read it
   output, read end     <-------- pipe ----------  descriptors 1 and 2
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import sys
import time

from herringbone.controller import private_tree
from herringbone.controller.hosts import Host, Restart, Site, next_hosts
from herringbone.controller.log_files import LogFile
from herringbone.controller.spares.standby import Standbys
from herringbone.system.descriptors import KEY_FD, LIFELINE_FD, REMOTE_KEY_FD, RESTORED_SIGNALS
from herringbone.system.processes import descendants
from herringbone_contract.constants import HostVariable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from herringbone.controller.retry import Attempt
    from herringbone.controller.spares.holders import Holders
    from herringbone.protocols.controller_config import ControllerConfig, ProcessesConfig

# The controller's own descriptors are kept above those that a supervisor gets: `posix_spawn` runs its dup2 actions one
# after the other, and an earlier one must not overwrite the source of a later one.
_ABOVE = 10
_PIPE_BYTES = 1 << 20
_SECRET_BYTES = 32
# A killed process is gone in a millisecond, unless it hangs in a disk or a driver.
_KILL_SECONDS = 5.0
# In the job's folder for sockets: those of the holders, which outlive an attempt.
_MEMORY_FOLDER = "memory"


class ProcessHost(Host):
    """A running supervisor and its pid."""

    def start(self, argv: list[str], environment: dict[str, str], *, secret: bytes) -> None:
        """Start the supervisor in a session of its own. Raises `OSError`."""
        # The controller keeps the only write end open. The kernel closes it when the controller dies, however it dies,
        # and the supervisor reads end-of-file.
        lifeline, self.line = _pipe()
        # A supervisor that reads nothing must not stop the controller.
        os.set_blocking(self.line, False)
        read_end, write_end = _pipe()
        _enlarge(read_end)
        actions: list[tuple[int, ...] | tuple[int, int, str, int, int]] = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, write_end, 1),
            (os.POSIX_SPAWN_DUP2, write_end, 2),
            (os.POSIX_SPAWN_DUP2, lifeline, LIFELINE_FD),
        ]
        environment = dict(environment)
        secrets = {KEY_FD: secret, REMOTE_KEY_FD: environment.pop(HostVariable.REMOTE_KEY, "").encode()}
        pipes = {number: _filled_pipe(content) for number, content in secrets.items() if content}
        actions += [(os.POSIX_SPAWN_DUP2, pipe, number) for number, pipe in pipes.items()]
        if REMOTE_KEY_FD in pipes:
            environment[HostVariable.REMOTE_KEY_FD] = str(REMOTE_KEY_FD)
        try:
            # posix_spawn and not subprocess, whose import takes milliseconds that the user waits for.
            self.pid = os.posix_spawnp(
                argv[0],
                argv,
                environment,
                file_actions=actions,
                setsid=True,
                # An empty mask: signals that the client's Python had blocked must reach the ranks.
                setsigmask=[],
                setsigdef=RESTORED_SIGNALS,
            )
        except OSError:
            # Without a process nothing would ever be read from it.
            os.close(read_end)
            raise
        finally:
            # The supervisor alone may hold the write end: end-of-file then means that all of the host has ended.
            os.close(write_end)
            os.close(lifeline)
            for pipe in pipes.values():
                os.close(pipe)
        os.set_blocking(read_end, False)
        self.output = read_end

    def begin_in(self, standby: Host, secret: bytes, remote_key: str | None) -> bool:
        """Begin in a process that waits for its start line; return False if it is gone, or reads nothing."""
        environment = {} if remote_key is None else {HostVariable.REMOTE_KEY: remote_key}
        # The key is hexadecimal text, and the line has the hexadecimal form of its bytes.
        line = json.dumps({"environment": environment, "key": secret.hex()}).encode() + b"\n"
        if not standby.tell(line):
            return False
        self.pid, self.line, self.output = standby.pid, standby.line, standby.output
        return True

    def signal(self, number: int) -> None:
        # A pid stays reserved until `endings` reaps it and sets the exit code, so this signals no other process.
        if self.exit_code is None and self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)
                # A paused supervisor takes no signal before it continues. To a running one this is nothing.
                os.kill(self.pid, signal.SIGCONT)


class Processes(Site):
    """The hosts of one job as children of the controller."""

    hosts: list[ProcessHost]

    def __init__(self, config: ControllerConfig, processes: ProcessesConfig) -> None:
        self._config = processes
        self._host_configs = config["hosts"]
        self._run_folder, self._logs = config["run_folder"], config["logs"]
        self.hosts = [ProcessHost(host, LogFile(f"{config['logs']}/{host['name']}.log")) for host in self._host_configs]
        self._retries = config["retries"]
        is_wanted = bool(self._retries) and processes["environment"].get(HostVariable.STANDBY) != "off"
        # Only Linux shows what a standby needs to know of itself.
        is_wanted = is_wanted and sys.platform == "linux"
        self._standbys = Standbys(self._run_folder, self._start_standby) if is_wanted else None
        # Not in the folder's top, which each attempt has anew.
        self._memory = f"{self._run_folder}/{_MEMORY_FOLDER}"
        self._holders: Holders | None = None
        if processes["holders"]:
            from herringbone.controller.spares.holders import Holders

            names = [host.name for host in self.hosts]
            self._holders = Holders(self._memory, names, self._config["argv"][0], config["logs"])

    def start(self) -> None:
        # Before the first host: an orphan of a supervisor that was killed earlier would belong to init, for good.
        become_reaper()
        if self._holders is not None:
            self._holders.start()
        secret = (self._config["key"] or "").encode()
        # A job that may have one host for a while has it, too.
        if not secret and len(self._host_configs) > 1:
            secret = os.urandom(_SECRET_BYTES).hex().encode()
        environment = self._config["environment"]
        self._private = private_trees_are_wanted(self.hosts, environment, self._config["argv"])
        for host in self.hosts:
            standby = self._standbys.take(host.name) if self._standbys is not None else None
            if standby is None or not host.begin_in(
                standby, secret, self._environment(host).get(HostVariable.REMOTE_KEY)
            ):
                self._start_host(host, self._environment(host), secret)
        # The last attempt needs none.
        if self._standbys is not None and len(self.failed_attempts) < self._retries:
            self._standbys.begin(self.hosts)

    def _start_host(self, host: ProcessHost, environment: dict[str, str], secret: bytes) -> None:
        if self._private:
            # The supervisor inherits the namespace. This process itself never looks below /opt/ml.
            private_tree.enter(host.base)
        host.start(self._config["argv"], environment, secret=secret)

    def _environment(self, host: Host) -> dict[str, str]:
        environment = {**self._config["environment"], **self._config["host_environments"][host.name]}
        if self._standbys is not None:
            environment[HostVariable.STARTS] = self._standbys.starts(host.name)
        if self._holders is not None:
            environment.update(self._holders.environment(host.name))
        return environment

    def _start_standby(self, host: Host) -> ProcessHost:
        """Start a host that waits for its line, next to a host that runs. Raises `OSError`."""
        standby = ProcessHost({"name": host.name, "base": host.base}, host.log)
        environment = self._environment(host)
        # The key comes with the line, which is the lifeline as well.
        for name in (HostVariable.LIFELINE, HostVariable.KEY_FILE, HostVariable.REMOTE_KEY):
            environment.pop(name, None)
        environment |= {HostVariable.PRIVATE: str(LIFELINE_FD), HostVariable.STANDBY: "1"}
        self._start_host(standby, environment, b"")
        return standby

    @property
    def due(self) -> float:
        return self._standbys.due if self._standbys is not None else float("inf")

    def act(self) -> None:
        if self._standbys is not None:
            self._standbys.act()

    def endings(self) -> Iterator[tuple[Host, int]]:
        """Reap every child that has ended; adopted orphans are among them and are not reported."""
        by_pid = {host.pid: host for host in self.hosts}
        # Several children may end for one SIGCHLD, so reap until there is none.
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            host = by_pid.get(pid)
            if self._standbys is not None:
                self._standbys.reaped(pid)
            if host is None and self._holders is not None and self._holders.take_ending(pid):
                # Its copies are on another host, and the next save makes new ones.
                self._holders.start()
            if host is not None:
                code = os.waitstatus_to_exitcode(status)
                yield host, 128 - code if code < 0 else code

    def kill_orphans(self) -> None:
        """Kill what ended hosts left, and the orphans that each kill creates in turn."""
        deadline = time.monotonic() + _KILL_SECONDS
        living = {host.pid for host in self.hosts if host.exit_code is None} | self.spared
        if self._standbys is not None:
            living |= self._standbys.pids
        if self._holders is not None:
            living |= self._holders.pids
        while kill_orphans(living) and time.monotonic() < deadline:
            time.sleep(0.001)

    def on_host_failure(self) -> None:
        """Unpause paused hosts so that they receive the failure notice."""
        for host in self.hosts:
            host.signal(signal.SIGCONT)

    def collect(self) -> None:
        self.kill_orphans()

    def remove(self) -> None:
        if self._standbys is not None:
            self._standbys.end()
            self.kill_orphans()
        if self._holders is not None:
            self._holders.end()

    def abandon(self) -> None:
        if self._standbys is not None:
            self._standbys.end()
        super().abandon()

    def restart(self, failed: Sequence[Attempt]) -> Restart:
        """Create new hosts in the folders of the old ones; their checkpoints stay."""
        import shutil

        self.failed_attempts = failed
        for host in self.hosts:
            host.close_line()
        # The failed attempt left socket files, and bind refuses a path that exists.
        for entry in os.scandir(self._run_folder):
            if entry.name == _MEMORY_FOLDER:
                continue
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                os.unlink(entry.path)  # noqa: PTH108 - no pathlib here
        nexts = next_hosts(self._host_configs, self.hosts, failed, self._logs)
        self.hosts = [ProcessHost(config, log) for config, log in nexts]
        for host in self.hosts:
            host.clear()
            host.log_begins = host.log.begin_attempt()
        return Restart.HERE


def private_trees_are_wanted(hosts: Sequence[Host], environment: Mapping[str, str], argv: Sequence[str]) -> bool:
    """Return whether the hosts get `/opt/ml` as their own tree: the job names it, and the system allows it."""
    if not private_tree.names_opt_ml(hosts[0].base, environment.values()):
        return False
    checkpoints, data = f"{hosts[0].base}/checkpoints", f"{hosts[0].base}/input/data"
    channels = [f"{data}/{name}" for name in os.listdir(data)]  # noqa: PTH208
    paths = [path for name in ("PATH", "PYTHONPATH") for path in environment.get(name, "").split(os.pathsep)]
    return private_tree.is_possible(hosts[0].base, [argv[0], sys.prefix, checkpoints, *channels, *paths])


def become_reaper() -> None:
    """Make this process the parent of the job's orphans, so that none escapes. Only Linux has this call."""
    if sys.platform == "linux":
        import ctypes

        set_child_subreaper = 36
        ctypes.CDLL(None).prctl(set_child_subreaper, 1, 0, 0, 0)


def kill_orphans(living: set[int]) -> bool:
    """Kill every descendant that is not below a living supervisor; return whether there was any."""
    mine = descendants({os.getpid()})
    orphans = mine - living - descendants(living)
    for pid in orphans:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return bool(orphans)


def _pipe() -> tuple[int, int]:
    """Create a pipe whose descriptors cannot collide with those that a supervisor gets."""
    ends = os.pipe()
    # Close-on-exec: no host may inherit a copy of another host's pipe, which would hide its end-of-file.
    moved = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, _ABOVE) for end in ends)
    for end in ends:
        os.close(end)
    return moved[0], moved[1]


def _filled_pipe(content: bytes) -> int:
    """Return the read end of a pipe that contains `content` and then ends."""
    read_end, write_end = _pipe()
    # The content is far smaller than a pipe's buffer, so this write does not block without a reader.
    os.write(write_end, content)
    os.close(write_end)
    return read_end


def _enlarge(pipe: int) -> None:
    """Let a host that writes a lot go on while the controller writes to the disk."""
    size = getattr(fcntl, "F_SETPIPE_SZ", None)
    if size is not None:
        # Users have a limit for all of their pipes together. Beyond it the default size must do.
        with contextlib.suppress(OSError):
            fcntl.fcntl(pipe, size, _PIPE_BYTES)
