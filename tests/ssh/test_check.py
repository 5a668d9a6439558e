"""What a check of machines says."""

import json
import subprocess
from pathlib import Path

import pytest
import yaml

from herringbone.backends.ssh.agent.bandwidth import take_part
from herringbone.backends.ssh.check import MachineReport, Pair, check, problems, rounds
from herringbone.backends.ssh.inventory import parse_inventory
from herringbone.cli.hosts import table


def test_every_pair_meets_once_and_nobody_twice_in_a_round():
    names = [f"h-{number}" for number in range(7)]
    met = rounds(names)
    assert sorted(pair for each in met for pair in each) == [(a, b) for a in names for b in names if a < b]
    assert all(len({name for pair in each for name in pair}) == 2 * len(each) for each in met)
    assert rounds(["a"]) == [[]]


def machine(name: str, **given) -> MachineReport:
    return MachineReport(name=name, free_bytes=1 << 40, **given)


def test_what_keeps_a_job_from_running_is_named():
    a, b = {"name": "a", "gpus": 2, "runtime": "docker"}, {"name": "b", "runtime": "docker"}
    inventory = parse_inventory({"hosts": [a, b, "c"]}, "h")
    reports = [
        machine("a", gpus=1, driver="550.54", libraries={"torch": "2.2"}, docker="24.0"),
        # Another torch, but none that a container sees.
        machine("b", driver="535.10", libraries={"torch": "2.3"}, skew=-3.0),
        MachineReport(name="c", trouble="c: no such host"),
    ]
    pairs = [
        Pair(sender="a", receiver="b", trouble="Connection refused"),
        *(
            Pair(sender="a", receiver=name, bytes_per_second=speed)
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


def test_a_stranger_is_not_measured():
    def come(port: int) -> None:
        subprocess.Popen(["bash", "-c", f"exec 3<>/dev/tcp/127.0.0.1/{port}; echo {'0' * 64} >&3"]).wait()

    assert take_part({"role": "listen", "token": "f" * 32}, come) == {"trouble": "a stranger came instead"}


@pytest.mark.ssh
def test_machines_are_reached_and_the_links_between_them_measured(machines, road):
    report = check(parse_inventory(machines.inventory(), "hosts.yaml"), road, seconds=0.2)
    assert report.problems == []
    assert [(each.name, each.address, each.interface) for each in report.machines] == [
        (name, machines.address(name), "eth0") for name in machines.names
    ]
    # The links carry 1 Gbit/s; what a busy machine reaches of it is another matter.
    assert all(1e6 < pair.bytes_per_second < 1.5e8 for pair in report.pairs)
    assert len(report.pairs) == 3
    assert [line.split()[0] for line in table(report)[:4]] == ["HOST", "h-1", "h-2", "h-3"]


@pytest.mark.ssh
def test_machines_that_cannot_be_used_say_why(machines, road):
    unknown = {"name": "h-9", "host": "no-such-host.invalid"}
    closed = {"name": "h-8", "host": "h-3", "port": 23}
    wrong_user = {"name": "h-7", "host": "h-3", "user": "nobody"}
    no_python = {"name": "h-6", "host": "h-3", "python": "python-of-nobody"}
    inventory = parse_inventory(
        {**machines.inventory(), "hosts": [unknown, closed, wrong_user, no_python]}, "hosts.yaml"
    )
    said = "\n".join(check(inventory, road, seconds=0.1).problems)
    assert "h-9: no such host: no-such-host.invalid has no address" in said
    assert "h-8: nobody listens at h-3, port 23" in said
    assert "h-7: it does not let nobody in" in said
    assert "h-6: it has no python-of-nobody; install Python 3.10" in said


@pytest.mark.ssh
def test_a_machine_with_another_host_key_is_not_visited(machines, road, home):
    machines.new_host_key("h-3")
    try:
        inventory = parse_inventory(machines.inventory(), "hosts.yaml")
        report = check(inventory, road, seconds=0.1)
    finally:
        machines.know_host_keys()
    (problem,) = report.problems
    assert problem.startswith("h-3: its host key is another than the one that is known, so nothing was sent")


@pytest.mark.ssh
def test_the_command_prints_a_table_or_json(machines, home, tmp_path):
    Path("hosts.yaml").write_text(yaml.safe_dump(machines.inventory()))
    # The user's own configuration decides how ssh gets there.
    command = ["herringbone", "hosts", "check", "hosts.yaml", "--json"]
    wrapper = tmp_path / "bin" / "ssh"
    wrapper.parent.mkdir()
    wrapper.write_text(
        f'#!/bin/sh\nexec /usr/bin/ssh -F {machines.config} -o ControlMaster=no -o ControlPath=none "$@"\n'
    )
    wrapper.chmod(0o755)
    import os

    environment = {**os.environ, "PATH": f"{wrapper.parent}:{os.environ['PATH']}"}
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, stdin=subprocess.DEVNULL)
    assert ended.returncode == 0, ended
    assert [each["name"] for each in json.loads(ended.stdout)["machines"]] == machines.names
