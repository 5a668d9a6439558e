"""Measure what a host's processes use, in counters since their start and in states of this moment.

In a container, where the supervisor is the first process, the control group counts; elsewhere the sum of the processes
below the supervisor. Shared pages count once on a host, and in each of the ranks that have them.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from herringbone_entry.observer import proc

# A look at all processes of the machine finds those of this job, and may take this share of a core. In between only
# those are read.
_LOOK_SHARE = 0.001
# Version 1 writes a number near 2^63 where there is no limit.
_NO_LIMIT = 1 << 60


class Waits(NamedTuple):
    """The time for which a rank and its children have not computed since the start, by reason.

    In seconds: `throttled` by the CPU limit of its control group, `disk` in the kernel's uninterruptible wait as far as
    readings have met it, `cores` while other processes had the cores. `swapped` counts pages read back from swap.
    """

    throttled: float = 0.0
    swapped: float = 0.0
    disk: float = 0.0
    cores: float = 0.0


class RankUsage(NamedTuple):
    """CPU seconds since the start and resident bytes of a rank and its children, the rank's state, and its waits."""

    cpu: float
    memory: int
    state: str
    waits: Waits = Waits()


class Usage(NamedTuple):
    """The use of a host: CPU seconds and bytes since its start, and bytes of memory now; None if unknown."""

    cpu: float
    memory: int
    disk: tuple[int, int] | None
    net: tuple[int, int] | None
    ranks: Mapping[int, RankUsage]


def missed_cpu(stat: proc.ProcessStat, now: float, last: float) -> float:
    """Return the CPU time of a process found at `now` that it used before `last`, the time of the reading before.

    Counted as used since then it would show as cores that the host does not have.

    >>> old = proc.ProcessStat(parent=1, state="R", cpu=10.0, started=100.0)
    >>> missed_cpu(old, now=120.0, last=110.0), missed_cpu(old, now=120.0, last=90.0)
    (5.0, 0.0)
    """
    if not last > stat.started:
        return 0.0
    return stat.cpu * (last - stat.started) / max(now - stat.started, 0.01)


class HostUsage:
    """Reads the usage of the processes at and below `supervisor`; `root` is the root of the host's file system."""

    def __init__(self, supervisor: int, root: Path = Path("/")) -> None:
        self._supervisor, self._root = supervisor, root
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._pids: set[int] = set()
        # Those at and below the supervisor.
        self._tree: set[int] = set()
        self._look_at = self._read_at = float("-inf")
        # CPU time that processes had used before they were found, of the host (None) and of each rank.
        self._missed: defaultdict[int | None, float] = defaultdict(float)
        # Of each rank: its waits so far, its major faults at the last reading, and the files of its control groups.
        self._waits: dict[int, Waits] = {}
        self._faults: dict[int, int] = {}
        self._cpu_files: dict[int, list[Path]] = {}
        self.has_own_group = supervisor == 1 and self._group_cpu() is not None

    def read(self, ranks: Mapping[int, int], now: float) -> Usage:
        """Return the usage now, in seconds since the machine's start. Raises `OSError` without /proc."""
        new = self._find(now, ranks.values())
        stats, memory = self._read_processes()
        missed = {pid: missed_cpu(stats[pid], now, self._read_at) for pid in new & stats.keys()}
        # The first reading has none before it.
        seconds_since = now - self._read_at if self._read_at > 0 else 0.0
        self._read_at = now
        parents = {pid: stat.parent for pid, stat in stats.items()}
        usages = {}
        for rank, pid in ranks.items():
            if pid in stats:
                members = proc.family(pid, parents) & stats.keys()
                self._missed[rank] += sum(missed[member] for member in members & missed.keys())
                seconds = sum(stats[member].cpu for member in members) - self._missed[rank]
                waits = self._wait(rank, pid, {member: stats[member] for member in members}, seconds_since)
                resident = sum(memory[member][0] for member in members)
                usages[rank] = RankUsage(seconds, resident, stats[pid].state, waits)
        stats = {pid: stat for pid, stat in stats.items() if pid in self._tree}
        self._missed[None] += sum(missed[pid] for pid in missed.keys() & self._tree)
        group_cpu = self._group_cpu() if self.has_own_group else None
        group_memory = self._group_memory() if self.has_own_group else None
        tree_cpu = sum(stat.cpu for stat in stats.values()) - self._missed[None]
        private = sum(memory[pid][0] - memory[pid][1] for pid in stats)
        tree_memory = private + max((memory[pid][1] for pid in stats), default=0)
        return Usage(
            cpu=tree_cpu if group_cpu is None else group_cpu,
            memory=tree_memory if group_memory is None else group_memory,
            disk=self._disk(stats),
            net=self._net(),
            ranks=usages,
        )

    def _wait(self, rank: int, pid: int, members: Mapping[int, proc.ProcessStat], seconds: float) -> Waits:
        """Return the waits of a rank and its processes, of which the last reading was `seconds` ago."""
        if rank not in self._cpu_files:
            from herringbone_entry.preparation.devices import cpu_files

            self._cpu_files[rank] = cpu_files(pid, self._root)
        before = self._waits.get(rank, Waits())
        faults = sum(stat.faults for stat in members.values())
        new = faults - self._faults.get(rank, faults)
        self._faults[rank] = faults
        schedules = (self._text(f"proc/{member}/schedstat") for member in members)
        groups = (self._text(str(file.relative_to(self._root))) for file in self._cpu_files[rank])
        self._waits[rank] = Waits(
            sum(proc.parse_throttled(text) for text in groups if text),
            # A page of a file is a fault, too.
            before.swapped + (max(new, 0) if new and self._is_swapped(members) else 0),
            before.disk + (seconds if any(stat.state == "D" for stat in members.values()) else 0.0),
            sum(proc.parse_schedstat(text) for text in schedules if text),
        )
        return self._waits[rank]

    def _is_swapped(self, pids: Iterable[int]) -> bool:
        texts = (self._text(f"proc/{pid}/status") or "" for pid in pids)
        return any(proc.parse_pairs(text.replace(":", "")).get("VmSwap") for text in texts)

    def _find(self, now: float, ranks: Iterable[int]) -> set[int]:
        """Look for processes of this host if it is time to; return those that are new."""
        if now < self._look_at:
            return set()
        self._cpu_files = {}
        began = time.thread_time()
        parents = {}
        for name in os.listdir(self._root / "proc"):  # noqa: PTH208 - of a machine with a thousand processes
            if name.isdigit() and (text := self._text(f"proc/{name}/stat")) is not None:
                parents[int(name)] = proc.parse_stat(text).parent
        found = self._tree = proc.family(self._supervisor, parents)
        # On one machine mpirun starts the ranks of all hosts below the first one's supervisor: they count for its host.
        found = found.union(*(proc.family(pid, parents) for pid in ranks))
        new, self._pids = found - self._pids, found
        self._look_at = now + (time.thread_time() - began) / _LOOK_SHARE
        return new

    def _read_processes(self) -> tuple[dict[int, proc.ProcessStat], dict[int, tuple[int, int]]]:
        """Return the state and the memory of each process; of one that has ended its parent has the times."""
        stats, memory = {}, {}
        for pid in sorted(self._pids):
            stat, pages = self._text(f"proc/{pid}/stat"), self._text(f"proc/{pid}/statm")
            if stat is None or pages is None:
                self._pids.discard(pid)
                continue
            stats[pid] = proc.parse_stat(stat)
            memory[pid] = proc.parse_statm(pages, self._page_bytes)
        return stats, memory

    def memory_total(self) -> int | None:
        """Return the bytes that this host may use: the smallest limit of its control groups, or the machine's."""
        # Here, because it reads much and is needed once.
        from herringbone_entry.preparation.devices import memory_groups

        limits = []
        for folder in memory_groups(self._root):
            for name in ("memory.max", "memory.limit_in_bytes"):
                limit = self._number(folder / name)
                if limit is not None and limit < _NO_LIMIT:
                    limits.append(limit)
        machine = self._machine_memory()
        return min(limits if machine is None else [*limits, machine], default=None)

    def machine(self) -> str:
        """Return the machine whose memory `memory_total` is; "" for a host with a limit of its own.

        The kernel makes this number at its start. Containers share their machine's kernel.
        """
        boot = self._text("proc/sys/kernel/random/boot_id")
        return boot.strip() if boot and self.memory_total() == self._machine_memory() else ""

    def _machine_memory(self) -> int | None:
        text = self._text("proc/meminfo")
        total = None if text is None else proc.parse_pairs(text.replace(":", "")).get("MemTotal")
        return total * 1024 if total else None

    def _disk(self, stats: Mapping[int, object]) -> tuple[int, int] | None:
        if self.has_own_group and (text := self._text("sys/fs/cgroup/io.stat")) is not None:
            return proc.parse_io_stat(text)
        counters = [proc.parse_io(text) for pid in stats if (text := self._text(f"proc/{pid}/io")) is not None]
        # None of them can be read by another user than theirs.
        return (sum(read for read, _ in counters), sum(written for _, written in counters)) if counters else None

    def _net(self) -> tuple[int, int] | None:
        text = self._text("proc/self/net/dev")
        return None if text is None else proc.parse_net_dev(text)

    def _group_cpu(self) -> float | None:
        text = self._text("sys/fs/cgroup/cpu.stat")
        usage = None if text is None else proc.parse_pairs(text).get("usage_usec")
        if usage is not None:
            return usage / 1e6
        nanoseconds = self._number(self._root / "sys/fs/cgroup/cpuacct/cpuacct.usage")
        return None if nanoseconds is None else nanoseconds / 1e9

    def _group_memory(self) -> int | None:
        """Return the memory of the container without the files that the kernel can drop, as `docker stats` does."""
        for folder, used, dropped in (
            ("sys/fs/cgroup", "memory.current", "inactive_file"),
            ("sys/fs/cgroup/memory", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            number = self._number(self._root / folder / used)
            if number is not None:
                text = self._text(f"{folder}/memory.stat")
                return max(0, number - (0 if text is None else proc.parse_pairs(text).get(dropped, 0)))
        return None

    def _number(self, path: Path) -> int | None:
        try:
            return int(path.read_text())
        except (OSError, ValueError):
            return None

    def _text(self, path: str) -> str | None:
        try:
            # Unbuffered bytes: a text file of Python's costs twice as much, and these are read by the thousand.
            with open(f"{self._root}/{path}", "rb", buffering=0) as file:  # noqa: PTH123
                return file.read().decode("utf-8", "replace")
        except OSError:
            return None
