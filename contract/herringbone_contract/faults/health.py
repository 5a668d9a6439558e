"""Judge whether hosts can train, by reports of what a look at each of them measured. Pure.

`herringbone_entry.health` makes the reports. A job's coordinator judges them before the first step, and `herringbone
hosts check` judges those of an inventory. A report is JSON; each member may be missing:

    skew, free_bytes            the lead of the clock in seconds, the free bytes of the disk
    memory                      [available, total] bytes
    disks                       folder -> the error of writing a file there, "" for none
    gpus                        those that the job counts on
    answering                   those that torch sees; left out where torch is not for CUDA
    backend                     the backend with which torch sums here; left out without torch
    devices                     of each that torch uses: {name, wrong, seconds, error}; `wrong`: elements of a product
    boards                      of each GPU, by its driver: {number, name, slowed, uncorrected, remapped}
    xids                        [number, age in seconds] of messages of NVIDIA's driver
    seconds, bytes, is_sum      of an all-reduce between the hosts, and whether its result was right
    speeds                      host -> bytes a second that arrived from it
    apart                       why an all-reduce with the other hosts has failed
    trouble                     why something was not examined
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from statistics import median
from typing import Any, NamedTuple

MAX_SKEW_SECONDS = 2.0
MIN_FREE_BYTES = 1 << 30
# Data loaders and NCCL keep what they share there.
SHARED_MEMORY = "/dev/shm"  # noqa: S108 - no file is made there that has a name
_LEAST_MEMORY, _LESS_MEMORY = 0.1, 0.5
# Parts of the median: a link, and the time of a device.
SLOW_LINK, _SLOW_DEVICE = 1 / 5, 1.5
# NVIDIA's list: memory, bus, link. Older ones than a day may have been repaired by a reset.
_XIDS, _XID_SECONDS = (48, 63, 64, 74, 79, 94, 95), 86_400.0
# A device's own errors in a log, or in the message of an exception.
DEVICE_ERROR = (
    r"uncorrectable (ECC|NVLink) error|double[- ]bit ECC|GPU has fallen off the bus"
    rf"|NVRM: Xid \(.*\): ({'|'.join(map(str, _XIDS))}),"
)


class Finding(NamedTuple):
    """Something wrong with a host, or with a link where `host` is None. A host that is `unfit` cannot train."""

    host: str | None
    what: str
    unfit: bool = False

    def __str__(self) -> str:
        return f"{self.host}: {self.what}" if self.host else self.what


def judge(reports: Mapping[str, Mapping[str, Any]]) -> list[Finding]:
    """Return what is wrong, by the hosts' reports.

    >>> [str(one) for one in judge({"algo-1": {"skew": 0.0}, "algo-2": {"skew": 7.25, "disks": {"/m": "No space"}}})]
    ['algo-2: No space: /m', 'algo-2: its clock is +7.2 s off: logs will seem out of order']
    """
    rows = chain.from_iterable(
        (
            *(Finding(host, what, unfit=True) for what in _unfit(report)),
            *(Finding(host, what) for what in _weak(report)),
        )
        for host, report in reports.items()
    )
    return [*rows, *_behind(reports), *_slow_links(reports)]


def links_request(reports: Mapping[str, Mapping[str, Any]], limit: float) -> dict[str, Any] | None:
    """Return the request to the hosts that can sum with each other, without an address; None for less than two hosts.

    >>> links_request({"algo-1": {"backend": "nccl", "port": 7000}, "algo-2": {}, "algo-3": {"backend": "gloo"}}, 10.0)
    {'ask': 'links', 'hosts': ['algo-1', 'algo-3'], 'port': 7000, 'backend': 'gloo', 'limit': 10.0}
    """
    able = [host for host, report in reports.items() if report.get("backend")]
    if len(able) < 2:
        return None
    # A host without a GPU, or whose torch cannot use it, sums as its ranks would: with gloo.
    backend = "nccl" if all(reports[host]["backend"] == "nccl" for host in able) else "gloo"
    return {"ask": "links", "hosts": able, "port": reports[able[0]]["port"], "backend": backend, "limit": limit}


def line(report: Mapping[str, Any]) -> str:
    """Return what was measured of a host, in a line.

    >>> line({"memory": [20e9, 24e9], "devices": [{"wrong": 0, "error": ""}], "seconds": 0.25, "bytes": 25 << 20})
    '20.0 of 24.0 GB of memory are free; 1 of 1 devices compute right; all-reduce of 25 MiB in 0.25 s'
    """
    devices, parts = report.get("devices", ()), []
    if "memory" in report:
        parts.append(_free(*report["memory"]))
    if devices:
        right = sum(not device["wrong"] and not device["error"] for device in devices)
        parts.append(f"{right} of {len(devices)} devices compute right")
    if "seconds" in report:
        parts.append(f"all-reduce of {report['bytes'] / 2**20:.3g} MiB in {report['seconds']:.2g} s")
    return "; ".join([*parts, *([f"not examined: {report['trouble']}"] if report.get("trouble") else [])])


def _unfit(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield what keeps a host from training."""
    yield from (f"{error}: {folder}" for folder, error in report.get("disks", {}).items() if error)
    devices = report.get("devices", ())
    for number, device in enumerate(devices):
        name = f"device {number} ({device['name']})"
        if device["wrong"]:
            yield f"{name} computes wrong: {device['wrong']} elements of a product of matrices differ from their table"
        elif re.search(DEVICE_ERROR, device["error"]):
            yield f"{name} fails: {device['error']}"
    if report.get("gpus") and report.get("answering") == 0:
        yield f"no device answers: torch sees none of its {report['gpus']} GPUs"
    if report.get("is_sum") is False:
        yield "its result of an all-reduce is wrong"


def _weak(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield what makes a host slow, or may end its ranks later."""
    if abs(report.get("skew", 0.0)) > MAX_SKEW_SECONDS:
        yield f"its clock is {report['skew']:+.1f} s off: logs will seem out of order"
    if report.get("free_bytes", MIN_FREE_BYTES) < MIN_FREE_BYTES:
        yield f"{report['free_bytes'] / 1e6:.0f} MB are free on its disk, which may run full"
    if "memory" in report and report["memory"][0] < _LEAST_MEMORY * report["memory"][1]:
        yield f"{_free(*report['memory'])}: other processes use it"
    if report.get("apart"):
        yield f"it cannot sum with other hosts, as a script will: {report['apart']}; is a firewall in between?"
    devices = report.get("devices", ())
    if 0 < report.get("answering", 0) < report.get("gpus", 0):
        yield f"torch sees {report['answering']} of its {report['gpus']} GPUs"
    for number, device in enumerate(devices):
        if device["error"] and not re.search(DEVICE_ERROR, device["error"]):
            yield f"device {number} ({device['name']}) was not examined: {device['error']}"
    for board in report.get("boards", ()):
        name = f"GPU {board['number']} ({board['name']})"
        if board["slowed"]:
            yield f"{name} has lowered its clock because of {board['slowed']}"
        if board["uncorrected"]:
            yield f"{name} counts {board['uncorrected']} uncorrected errors of memory (ECC) since the machine's start"
        if board["remapped"]:
            yield f"{name}: {board['remapped']}"
    for number, age in report.get("xids", ()):
        if number in _XIDS and age < _XID_SECONDS:
            yield f"NVIDIA's driver reported Xid {number}, {age / 60:.0f} min ago"


def _behind(reports: Mapping[str, Mapping[str, Any]]) -> Iterator[Finding]:
    """Yield hosts that have less memory, or slower devices, than the others of their kind."""
    memory = {host: report["memory"] for host, report in reports.items() if "memory" in report}
    for host, (available, total) in memory.items():
        # Of another size is of another kind.
        others = [other[0] for name, other in memory.items() if name != host and abs(other[1] - total) < total / 10]
        if others and _LEAST_MEMORY * total <= available < _LESS_MEMORY * median(others):
            elsewhere = f"on other hosts {median(others) / 1e9:.1f}"
            yield Finding(host, f"{_free(available, total)}, {elsewhere}: other processes use it")
    times: dict[str, list[tuple[str, int, float]]] = {}
    for host, report in reports.items():
        for number, device in enumerate(report.get("devices", ())):
            if device["seconds"]:
                times.setdefault(device["name"], []).append((host, number, device["seconds"]))
    for name, rows in times.items():
        usual = median(seconds for *_, seconds in rows)
        for host, number, seconds in rows:
            if seconds > _SLOW_DEVICE * usual:
                yield Finding(host, f"device {number} ({name}) takes {seconds / usual:.1f} times as long as others")


def _slow_links(reports: Mapping[str, Mapping[str, Any]]) -> Iterator[Finding]:
    """Yield hosts that send or receive slowly, and slow links that no such host explains."""
    speeds = {
        (source, host): speed for host, report in reports.items() for source, speed in report.get("speeds", {}).items()
    }
    hosts = dict.fromkeys(chain.from_iterable(speeds))
    if not speeds:
        return
    # The best link of each host: one slow host of three slows four links of six.
    usual = median(max(speed for link, speed in speeds.items() if host in link) for host in hosts)
    slow = {link for link, speed in speeds.items() if speed < SLOW_LINK * usual}
    explained = set[tuple[str, str]]()
    for host in hosts:
        for verb, end in (("sends", 0), ("receives", 1)):
            links = [link for link in speeds if link[end] == host]
            if len(links) > 1 and slow.issuperset(links):
                explained.update(links)
                yield Finding(host, f"it {verb} {_mbit(speeds, links)} Mbit/s, others {usual * 8 / 1e6:.0f}")
    for link in sorted(slow - explained):
        what = f"{link[0]} to {link[1]}: {_mbit(speeds, [link])} Mbit/s, other links {usual * 8 / 1e6:.0f}"
        yield Finding(None, what)


def _free(available: float, total: float) -> str:
    return f"{available / 1e9:.1f} of {total / 1e9:.1f} GB of memory are free"


def _mbit(speeds: Mapping[tuple[str, str], float], links: Sequence[tuple[str, str]]) -> str:
    return f"{max(speeds[link] for link in links) * 8 / 1e6:.3g}"
