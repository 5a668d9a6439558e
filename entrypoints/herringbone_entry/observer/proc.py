"""Read what /proc and control groups tell about processes. Pure: texts of files to numbers.

Sources: proc(5), and the kernel's "Control Group v2".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

# /proc/PID/stat counts times in 1/100 s on every architecture that we run on.
TICKS_PER_SECOND = 100


class ProcessStat(NamedTuple):
    """One process: its parent, and the letter of its state; times in seconds.

    `cpu` is its CPU time and that of its children that were reaped; it started at `started` after the machine's start.
    `faults` counts the pages that it, and those children, had to wait for until they were read from a disk.
    """

    parent: int
    state: str
    cpu: float
    started: float
    faults: int = 0


def parse_stat(text: str) -> ProcessStat:
    """Read /proc/PID/stat.

    >>> parse_stat("7 (a b) c) S 1 7 7 0 -1 0 0 0 0 0 150 50 20 10 20 0 1 0 900 0 0")
    ProcessStat(parent=1, state='S', cpu=2.3, started=9.0, faults=0)
    """
    # The command's name, in parentheses, may itself hold spaces and parentheses.
    fields = text.rpartition(")")[2].split()
    ticks = sum(map(int, fields[11:15]))
    started, faults = int(fields[19]) / TICKS_PER_SECOND, int(fields[9]) + int(fields[10])
    return ProcessStat(int(fields[1]), fields[0], ticks / TICKS_PER_SECOND, started, faults)


def parse_statm(text: str, page_bytes: int) -> tuple[int, int]:
    """Read the resident and the shared bytes of /proc/PID/statm.

    >>> parse_statm("900 30 10 1 0 100 0", 4096)
    (122880, 40960)
    """
    fields = text.split()
    return int(fields[1]) * page_bytes, int(fields[2]) * page_bytes


def parse_io(text: str) -> tuple[int, int]:
    """Read the bytes that a process, and its children that were reaped, has read from and written to disks.

    >>> parse_io("rchar: 9\\nwchar: 9\\nread_bytes: 4096\\nwrite_bytes: 8192\\ncancelled_write_bytes: 0\\n")
    (4096, 8192)
    """
    fields = parse_pairs(text.replace(":", ""))
    return fields.get("read_bytes", 0), fields.get("write_bytes", 0)


def parse_io_stat(text: str) -> tuple[int, int]:
    """Read the bytes read and written of a control group's io.stat.

    >>> parse_io_stat("8:0 rbytes=4096 wbytes=1 rios=1 wios=1\\n259:0 rbytes=1 wbytes=2 rios=1 wios=1\\n")
    (4097, 3)
    """
    pairs = [word.partition("=") for word in text.split() if "=" in word]
    return _sum_of(pairs, "rbytes"), _sum_of(pairs, "wbytes")


def _sum_of(pairs: Iterable[tuple[str, str, str]], name: str) -> int:
    return sum(int(value) for key, _, value in pairs if key == name)


def parse_net_dev(text: str) -> tuple[int, int]:
    """Read the bytes received and sent by all network interfaces but the loopback one.

    >>> parse_net_dev("Inter-| ...\\n face | ...\\n    lo: 9 1 0 0 0 0 0 0 9 1\\n  eth0:100 1 0 0 0 0 0 0 200 1\\n")
    (100, 200)
    """
    received = sent = 0
    for line in text.splitlines():
        name, colon, counters = line.partition(":")
        if colon and name.strip() != "lo":
            fields = counters.split()
            received += int(fields[0])
            sent += int(fields[8])
    return received, sent


def parse_schedstat(text: str) -> float:
    """Read the seconds that a process's main thread could have run, and waited for a core, from /proc/PID/schedstat.

    >>> parse_schedstat("291894 2500000000 1")
    2.5
    """
    return int(text.split()[1]) / 1e9


def parse_throttled(text: str) -> float:
    """Read the seconds for which a control group's processes had used up their CPU time, from its cpu.stat.

    >>> parse_throttled("nr_throttled 7\nthrottled_usec 1500000\n"), parse_throttled("throttled_time 2000000000\n")
    (1.5, 2.0)
    """
    pairs = parse_pairs(text)
    return pairs.get("throttled_usec", 0) / 1e6 + pairs.get("throttled_time", 0) / 1e9


def parse_pairs(text: str) -> dict[str, int]:
    """Read lines of a name and a number, such as those of memory.stat and cpu.stat; other lines are left out.

    >>> parse_pairs("usage_usec 12\\nmax -\\n")
    {'usage_usec': 12}
    """
    words = (line.split() for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in words if len(pair) >= 2 and pair[1].isdigit()}


def family(root: int, parents: Mapping[int, int]) -> set[int]:
    """Return the pids at and below `root`.

    >>> sorted(family(1, {2: 1, 3: 2, 9: 8}))
    [1, 2, 3]
    """
    children: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    found, waiting = set[int](), [root]
    while waiting:
        pid = waiting.pop()
        # A pid may have been given again while /proc was read, so a circle is possible.
        if pid not in found:
            found.add(pid)
            waiting += children.get(pid, [])
    return found
