"""Samples of a host's resources, from literal files of /proc and of control groups."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.waiting import wait_until

from herringbone_entry.observer.gpus import Gpu, GpuReader, read_gpus, visible_handles
from herringbone_entry.observer.sampler import Sampler, interval, mean_gpus
from herringbone_entry.observer.usage import HostUsage

PAGE = os.sysconf("SC_PAGE_SIZE")


class Machine:
    """A file system with processes, each (parent, CPU seconds, private pages, shared pages)."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("proc/meminfo", "MemTotal:       1000 kB\nMemFree: 9 kB\n")
        self.write("proc/sys/kernel/random/boot_id", "1a2b\n")
        self.write("proc/self/cgroup", "0::/\n")
        self.net(0, 0)

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def process(self, pid: int, parent: int, cpu: float, pages: tuple[int, int] = (10, 5), started: float = 0) -> None:
        ticks = int(cpu * 100)
        stat = f"{pid} (a) b) R {parent} 0 0 0 -1 0 0 0 0 0 {ticks} 0 0 0 20 0 1 0 {int(started * 100)} 0 0"
        self.write(f"proc/{pid}/stat", stat)
        self.write(f"proc/{pid}/statm", f"999 {sum(pages)} {pages[1]} 1 0 9 0")
        self.write(f"proc/{pid}/io", f"rchar: 1\nread_bytes: {pid}\nwrite_bytes: {ticks}\n")

    def waits(self, pid: int, *, waited: float = 0.0, state: str = "R", faults: int = 0, swap: int = 0) -> None:
        stat = self.root / f"proc/{pid}/stat"
        head, _, rest = stat.read_text().rpartition(")")
        fields = rest.split()
        fields[0], fields[9] = state, str(faults)
        stat.write_text(f"{head}) {' '.join(fields)}")
        self.write(f"proc/{pid}/schedstat", f"9 {int(waited * 1e9)} 1\n")
        self.write(f"proc/{pid}/status", f"Name: a\nVmSwap: {swap} kB\n")

    def net(self, received: int, sent: int) -> None:
        counters = "\n".join(f"{name}:{received} 0 0 0 0 0 0 0 {sent} 0" for name in ("    lo", "  eth0"))
        self.write("proc/self/net/dev", f"Inter-|\n face |\n{counters}\n")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    machine = Machine(tmp_path)
    machine.process(50, 1, 9.0)
    machine.process(60, 50, 1.0)
    # Rank 0, a worker of it, and a process of somebody else.
    machine.process(70, 50, 2.0)
    machine.process(71, 70, 3.0, (20, 7))
    machine.process(99, 1, 500.0)
    return machine


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_rank_that_another_hosts_mpirun_has_started_counts_for_itself_alone(machine: Machine) -> None:
    machine.process(80, 60, 4.0, (30, 5))
    usages = [HostUsage(supervisor, machine.root).read({1: 80}, now=100.0) for supervisor in (50, 99)]
    assert [usage.ranks[1].memory for usage in usages] == [35 * PAGE, 35 * PAGE]
    # The supervisor, its child, rank 0 with a worker, and rank 1; and the other supervisor alone.
    assert [usage.memory // PAGE for usage in usages] == [10 + 10 + 10 + 20 + 30 + 7, 10 + 5]
    assert [usage.cpu for usage in usages] == [19.0, 500.0]


def test_a_sample_says_what_kept_a_rank_from_computing(machine: Machine) -> None:
    clock = Clock()
    machine.write("proc/70/cgroup", "1:cpu:/mine\n0::/\n")
    machine.write("sys/fs/cgroup/cpu/mine/cpu.stat", "nr_throttled 1\nthrottled_time 1000000000\n")
    sampler = Sampler(HostUsage(50, machine.root), {0: 70}, clock=clock, cost=lambda: 0.0)
    clock.now = 102.0
    machine.write("sys/fs/cgroup/cpu/mine/cpu.stat", "nr_throttled 2\nthrottled_time 1500000000\n")
    machine.waits(71, waited=0.5, state="D", faults=80)
    [event] = sampler.poll(1e9)
    # Its pages were read from files: nothing of it is swapped.
    assert {"throttled": 0.25, "disk": 1.0, "cores": 0.25}.items() <= event["ranks"]["0"].items()
    assert "swapped" not in event["ranks"]["0"]
    clock.now = 104.0
    machine.waits(71, waited=0.5, faults=100, swap=64)
    [event] = sampler.poll(1e9)
    assert event["ranks"]["0"] == {"cpu": 0.0, "memory": 42 * PAGE, "state": "R", "swapped": 10.0}


def test_a_sample_has_rates_of_the_hosts_own_processes(machine: Machine) -> None:
    clock = Clock()
    sampler = Sampler(HostUsage(50, machine.root), {0: 70, 1: 444}, clock=clock, cost=lambda: 0.0)
    clock.now = 102.0
    machine.process(71, 70, 4.0, (20, 7))
    machine.process(60, 50, 1.5)
    machine.process(99, 1, 600.0)
    machine.net(200, 100)
    [event] = sampler.poll(1e9)
    assert event == {
        "kind": "sample",
        "t": 1e9,
        "seconds": 2.0,
        "cpu": 0.75,
        # Shared pages once.
        "memory": (10 + 10 + 10 + 20 + 7) * PAGE,
        "memory_total": 1000 * 1024,
        "machine": "1a2b",
        "disk_read": 0,
        "disk_write": 75,
        "net_in": 100,
        "net_out": 50,
        "ranks": {"0": {"cpu": 0.5, "memory": (15 + 27) * PAGE, "state": "R"}},
    }


def test_processes_that_end_or_begin_are_no_leaps(machine: Machine) -> None:
    clock = Clock()
    sampler = Sampler(HostUsage(50, machine.root), {0: 70}, clock=clock, cost=lambda: 0.0)
    clock.now = 110.0
    # The worker has ended and rank 0 has reaped it; another one, found now, has run at 1 core for 60 s.
    (machine.root / "proc/71/stat").unlink()
    machine.process(70, 50, 5.0)
    machine.process(72, 70, 60.0, started=50.0)
    [event] = sampler.poll(1e9)
    assert event["cpu"] == event["ranks"]["0"]["cpu"] == pytest.approx(1.0)


def test_a_container_is_its_control_group(machine: Machine) -> None:
    machine.process(1, 0, 0.0)
    group = "sys/fs/cgroup"
    machine.write(f"{group}/cpu.stat", "usage_usec 1000000\nuser_usec 5\n")
    machine.write(f"{group}/memory.current", "5000\n")
    machine.write(f"{group}/memory.stat", "anon 1\ninactive_file 2000\n")
    machine.write(f"{group}/memory.max", "8000\n")
    machine.write(f"{group}/memory.events", "oom_kill 0\n")
    machine.write(f"{group}/io.stat", "8:0 rbytes=100 wbytes=200\n")
    clock = Clock()
    sampler = Sampler(HostUsage(1, machine.root), {}, clock=clock, cost=lambda: 0.0)
    machine.write(f"{group}/cpu.stat", "usage_usec 4000000\n")
    machine.write(f"{group}/io.stat", "8:0 rbytes=300 wbytes=200\n")
    clock.now += 2
    [event] = sampler.poll(1e9)
    members = ("cpu", "memory", "memory_total", "disk_read", "disk_write")
    assert [event[name] for name in members] == [1.5, 3000, 8000, 100, 0]
    # Its limit is its own: two such containers of a machine have twice as much.
    assert "machine" not in event


def test_a_container_of_version_1_is_its_control_group(machine: Machine) -> None:
    machine.process(1, 0, 0.0)
    machine.write("sys/fs/cgroup/cpuacct/cpuacct.usage", "1000000000\n")
    machine.write("sys/fs/cgroup/memory/memory.usage_in_bytes", "5000\n")
    machine.write("sys/fs/cgroup/memory/memory.limit_in_bytes", str(1 << 62))
    machine.write("sys/fs/cgroup/memory/memory.oom_control", "oom_kill 0\n")
    clock = Clock()
    sampler = Sampler(HostUsage(1, machine.root), {}, clock=clock, cost=lambda: 0.0)
    machine.write("sys/fs/cgroup/cpuacct/cpuacct.usage", "3000000000\n")
    clock.now += 2
    [event] = sampler.poll(1e9)
    # The limit near 2^63 is none, so the machine's memory counts.
    assert (event["cpu"], event["memory"], event["memory_total"]) == (1.0, 5000, 1000 * 1024)


def test_the_interval_grows_with_the_job() -> None:
    assert (interval(10.0), interval(36_000.0), interval(36_000.0, 60.0)) == (1.0, 10.0, 60.0)
    seconds, samples = 0.0, 0
    while seconds < 30 * 86_400:
        seconds += interval(seconds)
        samples += 1
    assert samples < 28_000


def test_samples_are_means_over_the_interval(machine: Machine) -> None:
    clock = Clock()
    reads = iter([[Gpu(0, "H", "G", 1.0, 10, 90, 100.0, 50.0)], [Gpu(0, "H", "G", 0.0, 20, 90, None, 60.0)]])
    gpus = SimpleNamespace(read=lambda: next(reads))
    sampler = Sampler(HostUsage(50, machine.root), {}, gpus, least=10.0, clock=clock, cost=lambda: 0.0)
    clock.now += 5
    assert sampler.poll(1e9) == []
    machine.process(60, 50, 11.0, (110, 5))
    clock.now += 5
    [event] = sampler.poll(1e9)
    assert (event["seconds"], event["cpu"], event["memory"]) == (10.0, 1.0, (57 + 157) * PAGE // 2)
    assert event["gpus"] == [
        {
            "index": 0,
            "uuid": "G",
            "name": "H",
            "use": 0.5,
            "memory": 15,
            "memory_total": 90,
            "watts": 100.0,
            "celsius": 55.0,
        }
    ]


def test_measuring_that_costs_much_happens_less_often(machine: Machine) -> None:
    clock = Clock()
    # Each look at the cost is 15 ms later: a measurement costs 15 ms, which is 0.3 % of 5 s.
    costs = iter(0.015 * number for number in range(100))
    sampler = Sampler(HostUsage(50, machine.root), {}, clock=clock, cost=lambda: next(costs))
    written = 0
    for _ in range(60):
        clock.now += 1
        written += len(sampler.poll(1e9))
    assert written == 10 + 2


class FakeNvml:
    NVML_TEMPERATURE_GPU = 0

    def __init__(self, count: int = 2) -> None:
        self._count = count

    def nvmlDeviceGetCount(self) -> int:
        return self._count

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}abc"

    def nvmlDeviceGetName(self, handle: int) -> bytes:
        return b"H200 %d" % handle

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> SimpleNamespace:
        return SimpleNamespace(gpu=50, memory=1)

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:
        return SimpleNamespace(used=10, total=100)

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        raise RuntimeError("not supported")

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:
        return 40 + handle

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: int) -> int:
        return 0x41 if handle else 0x1


def test_a_reading_that_a_gpu_lacks_is_none() -> None:
    nvml = FakeNvml()
    assert read_gpus(nvml, visible_handles(nvml, None))[1] == Gpu(
        1, "H200 1", "GPU-1abc", 0.5, 10, 100, None, 41, "heat"
    )
    assert mean_gpus([read_gpus(nvml, {0: 0})])[0]["watts"] is None


def test_a_gpu_whose_clock_is_lowered_in_most_moments_says_why() -> None:
    slow, idle = (read_gpus(FakeNvml(), {number: number}) for number in (1, 0))
    assert mean_gpus([slow, idle, slow * 1])[1]["slowed"] == "heat"
    assert "slowed" not in mean_gpus([slow, [idle[0]._replace(number=1)]])[0]


@pytest.mark.parametrize(
    ("visible", "numbers"),
    [(None, [0, 1]), ("1", [1]), ("1,0", [1, 0]), ("GPU-1ab", [1]), ("", []), ("-1", []), ("0,7,1", [0])],
)
def test_only_visible_gpus_count(visible: str | None, numbers: list[int]) -> None:
    assert list(visible_handles(FakeNvml(), visible)) == numbers


def test_a_driver_that_hangs_costs_nobody_time() -> None:
    reader = GpuReader(None, find=lambda: time.sleep(3600))
    assert reader.read() == []
    quick = GpuReader(None, find=FakeNvml)
    wait_until(quick.read, 5)
    assert [gpu.number for gpu in quick.read()] == [0, 1]
