"""Tests of `herringbone hosts check`: the measured pairs, and the reported problems."""

import subprocess

import pytest

from herringbone.backends.ssh.agent.bandwidth import measure
from herringbone.backends.ssh.inspection.check import (
    LinkReport,
    MachineReport,
    check,
    measure_link,
    measure_links,
    problems,
    rounds,
)
from herringbone.backends.ssh.machines.inventory import parse_inventory
from herringbone.cli.machines.hosts import table


def test_every_pair_is_measured_once_and_no_machine_twice_in_a_round():
    names = [f"h-{number}" for number in range(7)]
    schedule = rounds(names)
    assert sorted(pair for pairs in schedule for pair in pairs) == [(a, b) for a in names for b in names if a < b]
    assert all(len({name for pair in pairs for name in pair}) == 2 * len(pairs) for pairs in schedule)
    assert rounds(["a"]) == [[]]


def machine(name: str, **facts) -> MachineReport:
    return MachineReport(name=name, free_bytes=1 << 40, **facts)


def test_everything_that_prevents_or_slows_a_job_is_reported():
    a, b = {"name": "a", "gpus": 2, "runtime": "docker"}, {"name": "b", "runtime": "docker"}
    inventory = parse_inventory({"hosts": [a, b, "c"]}, "h")
    reports = [
        machine("a", gpus=1, driver="550.54", libraries={"torch": "2.2"}, docker="24.0"),
        # Another torch, which containers do not see.
        machine("b", driver="535.10", libraries={"torch": "2.3"}, skew=-3.0),
        MachineReport(name="c", trouble="c: no such host"),
    ]
    pairs = [
        LinkReport(sender="a", receiver="b", trouble="Connection refused"),
        *(
            LinkReport(sender="a", receiver=name, bytes_per_second=speed)
            for name, speed in (("c", 1e9), ("d", 9e8), ("e", 1e8))
        ),
    ]
    assert problems(inventory, reports, pairs) == [
        "c: no such host",
        "a: the inventory says 2 GPUs, the machine has 1",
        "b: no container engine answers there, and its runtime is docker",
        "b: its clock is -3.0 s off: logs will seem out of order",
        "NVIDIA driver differs: 550.54 on a; 535.10 on b",
        "a does not reach b: Connection refused",
        "a to e: 800 Mbit/s, others are faster",
    ]


def test_a_link_that_seems_slow_is_measured_again_alone_and_its_best_speed_counts():
    # A program on b takes its processors during the first two measurements; the link to c is a slow one.
    speeds = {("a", "b"): iter([1e6, 2e6, 9e8]), ("a", "c"): iter([1e7, 3e7, 2e7])}
    measured = []

    def measure(pairs):
        measured.append(list(pairs))
        for sender, receiver in pairs:
            speed = next(speeds.get((sender, receiver), iter([1e9])))
            yield LinkReport(sender=sender, receiver=receiver, bytes_per_second=speed)

    links = measure_links(["a", "b", "c", "d", "e"], measure)
    found = {(link.sender, link.receiver): link.bytes_per_second for link in links}
    assert (len(found), found.pop(("a", "b")), found.pop(("a", "c")), set(found.values())) == (10, 9e8, 3e7, {1e9})
    assert sorted(measured[5:]) == [[("a", "b")], [("a", "b")], [("a", "c")], [("a", "c")]]
    inventory = parse_inventory({"hosts": list("abcde")}, "h")
    assert problems(inventory, [machine(name) for name in "abcde"], links) == ["a to c: 240 Mbit/s, others are faster"]


def test_a_receiver_that_wakes_up_late_makes_no_link_faster():
    """Its own time would be too short: the bytes that came before it looked are in its buffers."""

    class Agent:
        def __init__(self, **answer):
            self.answer = answer

        def send(self, _message):
            return 1

        def ask(self, _message):
            return self.answer

        def wait_for(self, key, _number):
            return {"port": 7} if key == "listening" else self.answer

    sender, receiver = Agent(moved=9e7, seconds=1.0), Agent(moved=9e7, seconds=0.5)
    link = measure_link(machine("a"), sender, machine("b"), receiver, 1.0)
    assert link == LinkReport(sender="a", receiver="b", bytes_per_second=9e7)


def test_another_program_on_the_listening_port_is_not_measured():
    def connect(port: int) -> None:
        subprocess.Popen(["bash", "-c", f"exec 3<>/dev/tcp/127.0.0.1/{port}; echo {'0' * 64} >&3"]).wait()

    assert measure({"role": "listen", "token": "f" * 32}, connect) == {
        "trouble": "another program connected instead of the sender"
    }


@pytest.mark.ssh
def test_machines_are_reached_and_the_links_between_them_measured(machines, transport):
    result = check(parse_inventory(machines.inventory(), "hosts.yaml"), transport, seconds=0.2)
    assert result.problems == []
    assert [(report.name, report.address, report.interface) for report in result.machines] == [
        (name, machines.address(name), "eth0") for name in machines.names
    ]
    # The links carry 1 Gbit/s; a busy machine may reach much less.
    assert all(1e6 < link.bytes_per_second < 1.5e8 for link in result.pairs)
    assert len(result.pairs) == 3
    assert [line.split()[0] for line in table(result)[:4]] == ["HOST", "h-1", "h-2", "h-3"]


@pytest.mark.ssh
def test_machines_that_cannot_be_used_say_why(machines, transport):
    unknown = {"name": "h-9", "host": "no-such-host.invalid"}
    closed = {"name": "h-8", "host": "h-3", "port": 23}
    wrong_user = {"name": "h-7", "host": "h-3", "user": "nobody"}
    no_python = {"name": "h-6", "host": "h-3", "python": "python-of-nobody"}
    inventory = parse_inventory(
        {**machines.inventory(), "hosts": [unknown, closed, wrong_user, no_python]}, "hosts.yaml"
    )
    problems_text = "\n".join(check(inventory, transport, seconds=0.1).problems)
    assert "h-9: no such host: no-such-host.invalid has no address" in problems_text
    assert "h-8: no program listens at h-3, port 23" in problems_text
    assert "h-7: it refuses the login of nobody" in problems_text
    assert "h-6: it has no python-of-nobody; install Python 3.10" in problems_text


@pytest.mark.ssh
def test_nothing_is_sent_to_a_machine_with_another_host_key(machines, transport, home):
    machines.new_host_key("h-3")
    try:
        inventory = parse_inventory(machines.inventory(), "hosts.yaml")
        report = check(inventory, transport, seconds=0.1)
    finally:
        machines.know_host_keys()
    (problem,) = report.problems
    assert problem.startswith("h-3: its host key is not the known one, so nothing was sent")
