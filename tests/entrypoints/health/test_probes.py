"""Probes of a host, and a device that computes wrong."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from herringbone_entry.health import device, examine, links, probes
from herringbone_entry.health.memory import meminfo_bytes

torch = pytest.importorskip("torch")


def test_a_full_disk_is_named_and_a_missing_one_is_not(tmp_path: Path) -> None:
    assert probes.write_error(str(tmp_path)) == ""
    assert probes.write_error(str(tmp_path / "absent")) == ""
    assert list(tmp_path.iterdir()) == []
    if os.geteuid():
        pytest.skip("only root may mount a small disk")
    script = f"mount -t tmpfs -o size=64k none {tmp_path} && {sys.executable} -c '{_WRITE}' {tmp_path}"
    shown = subprocess.run(["unshare", "--mount", "sh", "-c", script], capture_output=True, text=True, check=False)
    assert shown.stdout.strip() == os.strerror(errno.ENOSPC), shown.stderr


_WRITE = "import sys; from herringbone_entry.health.probes import write_error as w; print(w(sys.argv[1]))"


def test_memory_is_that_of_the_machine_within_the_limit_of_the_control_group(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 64000 kB\nMemFree: 100 kB\nMemAvailable: 32000 kB\n")
    assert meminfo_bytes(tmp_path, "MemAvailable") == 32_000 << 10
    assert probes.look([], tmp_path)["memory"] == [32_000 << 10, 64_000 << 10]
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "memory.events").touch()
    (group / "memory.max").write_text("1048576\n")
    assert probes.look([], tmp_path)["memory"] == [1 << 20, 1 << 20]


def test_the_readings_of_a_gpu_and_those_that_it_does_not_have() -> None:
    class Nvml:
        nvmlDeviceGetName = staticmethod(lambda _: b"H200")
        nvmlDeviceGetRemappedRows = staticmethod(lambda _: (1, 2, 1, 0))
        nvmlDeviceGetCurrentClocksThrottleReasons = staticmethod(lambda _: 0x40)
        nvmlDeviceGetTotalEccErrors = staticmethod(lambda _, kind, since: 10 * kind + since)

    shown = {"name": "H200", "slowed": "heat", "uncorrected": 10}
    assert probes.board(Nvml, 3, None) == {
        **shown,
        "number": 3,
        "remapped": "rows of its memory wait for a reset to be replaced",
    }
    nothing = {"name": "", "slowed": "", "uncorrected": 0, "remapped": ""}
    assert probes.board(object(), 0, None) == {**nothing, "number": 0}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_product_that_differs_in_one_element_is_wrong(dtype) -> None:
    assert device.multiply(torch, "cpu:0", dtype, 64)[0] == 0

    def broken(left, right):
        product = left @ right
        product[17, 40] += 1
        return product

    assert device.multiply(torch, "cpu:0", dtype, 64, broken)[0] == 1
    assert max(abs(element) for row in device.table() for element in row) <= 2048


def test_a_device_that_raises_is_reported(monkeypatch) -> None:
    def broken(*_):
        raise RuntimeError("CUDA error: uncorrectable ECC error encountered\nmore lines")

    monkeypatch.setattr(torch, "matmul", broken)
    (shown,) = device.examine(torch)["devices"]
    assert shown["error"] == "CUDA error: uncorrectable ECC error encountered"


@pytest.mark.parametrize("hosts", [2, 3, 4, 7])
def test_each_link_is_measured_once_and_no_host_has_two_at_a_time(hosts: int) -> None:
    pairs = [link for links_ in links.rounds(hosts) for link in links_]
    steps = {1, 2} - {hosts}
    assert sorted(pairs) == sorted({(host, (host + step) % hosts) for host in range(hosts) for step in steps})
    assert all(len({host for link in links_ for host in link}) == 2 * len(links_) for links_ in links.rounds(hosts))


def test_two_programs_examine_their_host_and_sum_with_each_other() -> None:
    ends = []
    for _ in range(2):
        ours, theirs = socket.socketpair()
        with theirs:
            command = examine.command(sys.executable, theirs.fileno())
            process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
            )
        ends.append((process, ours, ours.makefile()))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    meeting = {"hosts": ["a", "b"], "address": "127.0.0.1", "port": port, "backend": "gloo", "limit": 60.0}
    for rank, (_, ours, _) in enumerate(ends):
        for request in ({"ask": "local", "folders": [], "gpus": 0}, {"ask": "links", "rank": rank, **meeting}):
            ours.sendall(json.dumps(request).encode() + b"\n")
    answers = [(json.loads(answer.readline()), json.loads(answer.readline())) for _, _, answer in ends]
    for process, ours, answer in ends:
        answer.close()
        ours.close()
        assert process.wait() == 0
    assert [local["backend"] for local, _ in answers] == ["gloo", "gloo"]
    assert [(network["is_sum"], list(network["speeds"])) for _, network in answers] == [(True, ["b"]), (True, ["a"])]
