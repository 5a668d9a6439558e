"""Judging whether hosts can train: literals of measurements in, sentences out."""

import pytest

from herringbone_contract.faults.health import judge, line

GB = 10**9
DEVICE = {"name": "H200", "wrong": 0, "seconds": 0.5, "error": ""}
BOARD = {"number": 0, "name": "H200", "slowed": "", "uncorrected": 0, "remapped": ""}
GOOD = {
    "skew": 0.01,
    "free_bytes": 1 << 40,
    "memory": [50 * GB, 64 * GB],
    "disks": {"/opt/ml/model": "", "/dev/shm": ""},
    "gpus": 1,
    "answering": 1,
    "backend": "nccl",
    "devices": [DEVICE],
    "boards": [BOARD],
    "xids": [],
    "seconds": 0.2,
    "bytes": 25 << 20,
    "is_sum": True,
}


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        ({"disks": {"/dev/shm": "No space left on device"}}, "No space left on device: /dev/shm"),
        (
            {"devices": [DEVICE, {**DEVICE, "wrong": 3}], "gpus": 2, "answering": 2},
            "device 1 (H200) computes wrong: 3 elements of a product of matrices differ from their table",
        ),
        (
            {"devices": [{**DEVICE, "error": "CUDA error: uncorrectable ECC error encountered"}]},
            "device 0 (H200) fails: CUDA error: uncorrectable ECC error encountered",
        ),
        ({"devices": [], "answering": 0, "gpus": 8}, "no device answers: torch sees none of its 8 GPUs"),
        ({"is_sum": False}, "its result of an all-reduce is wrong"),
    ],
    ids=["disk", "product", "device", "no-device", "sum"],
)
def test_a_host_that_cannot_train_is_unfit(bad, sentence: str):
    found = judge({"algo-1": GOOD, "algo-2": {**GOOD, **bad}})
    assert [(one.host, one.what, one.unfit) for one in found] == [("algo-2", sentence, True)]


@pytest.mark.parametrize(
    ("weak", "sentence"),
    [
        ({"skew": -7.25}, "its clock is -7.2 s off: logs will seem out of order"),
        ({"free_bytes": 12e6}, "12 MB are free on its disk, which may run full"),
        ({"memory": [2 * GB, 64 * GB]}, "2.0 of 64.0 GB of memory are free: other processes use it"),
        (
            {"memory": [20 * GB, 64 * GB]},
            "20.0 of 64.0 GB of memory are free, on other hosts 50.0: other processes use it",
        ),
        ({"gpus": 8, "answering": 7}, "torch sees 7 of its 8 GPUs"),
        (
            {"devices": [{**DEVICE, "error": "CUDA out of memory. Tried to allocate 2 GiB"}]},
            "device 0 (H200) was not examined: CUDA out of memory. Tried to allocate 2 GiB",
        ),
        ({"boards": [{**BOARD, "slowed": "heat"}]}, "GPU 0 (H200) has lowered its clock because of heat"),
        (
            {"boards": [{**BOARD, "uncorrected": 2}]},
            "GPU 0 (H200) counts 2 uncorrected errors of memory (ECC) since the machine's start",
        ),
        ({"xids": [[79, 120.0], [13, 1.0], [48, 90_000.0]]}, "NVIDIA's driver reported Xid 79, 2 min ago"),
        ({"devices": [{**DEVICE, "seconds": 1.0}]}, "device 0 (H200) takes 2.0 times as long as others"),
    ],
)
def test_a_slow_host_or_one_that_may_fail_later_is_only_named(weak, sentence: str):
    found = judge({"algo-1": GOOD, "algo-2": {**GOOD, **weak}, "algo-3": GOOD})
    assert [(one.host, one.what, one.unfit) for one in found] == [("algo-2", sentence, False)]


def test_healthy_hosts_of_other_kinds_are_no_findings():
    small = {**GOOD, "memory": [6 * GB, 8 * GB], "devices": [{**DEVICE, "name": "L4", "seconds": 5.0}]}
    assert judge({"algo-1": GOOD, "algo-2": small, "algo-3": {"trouble": "no answer"}, "algo-4": {}}) == []


FAST, SLOW = 1.2e8, 1e6


def measured(hosts: int, *slow: tuple[int, int]) -> dict:
    """Return reports of links to the next two hosts; the given ones (from, to) are slow."""
    reports: dict = {f"algo-{number}": {"speeds": {}} for number in range(hosts)}
    for target in range(hosts):
        for source in {(target - 1) % hosts, (target - 2) % hosts} - {target}:
            speed = SLOW if (source, target) in slow else FAST * (1 + 0.1 * target)
            reports[f"algo-{target}"]["speeds"][f"algo-{source}"] = speed
    return reports


@pytest.mark.parametrize(
    ("hosts", "slow", "sentences"),
    [
        (3, [], []),
        (3, [(1, 0), (1, 2)], ["algo-1: it sends 8 Mbit/s, others 1152"]),
        (5, [(0, 2), (1, 2)], ["algo-2: it receives 8 Mbit/s, others 1344"]),
        # Both ways: four links of six are slow.
        (
            3,
            [(1, 0), (1, 2), (0, 1), (2, 1)],
            ["algo-1: it sends 8 Mbit/s, others 1152", "algo-1: it receives 8 Mbit/s, others 1152"],
        ),
        (4, [(0, 1)], ["algo-0 to algo-1: 8 Mbit/s, other links 1248"]),
        (2, [(0, 1)], ["algo-0 to algo-1: 8 Mbit/s, other links 960"]),
        # Nobody knows a better one.
        (2, [(0, 1), (1, 0)], []),
    ],
)
def test_the_host_with_the_slow_link_is_named(hosts, slow, sentences):
    found = judge(measured(hosts, *slow))
    assert ([str(one) for one in found], any(one.unfit for one in found)) == (sentences, False)


def test_what_was_measured_stands_in_one_line():
    assert line(GOOD) == (
        "50.0 of 64.0 GB of memory are free; 1 of 1 devices compute right; all-reduce of 25 MiB in 0.2 s"
    )
    assert line({"trouble": "no answer within 20 s"}) == "not examined: no answer within 20 s"
