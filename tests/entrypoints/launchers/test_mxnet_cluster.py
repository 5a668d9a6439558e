"""MXNet's `parameter_server`: the variables of each role, the lives of servers, and the cause of a failure."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from herringbone_entry.channel.rendezvous import Rendezvous
from herringbone_entry.launchers.mxnet_cluster import environment, server_argv

STAND_IN = Path(__file__).parents[1] / "stand_in_mxnet"
MXNET = {"sagemaker_parameter_server_enabled": True, "sagemaker_parameter_server_framework": "mxnet"}
# Every rank waits for the server of each host and for the scheduler, as MXNet's do.
WAIT_FOR_SERVERS = """
import glob, os, sys, time
root, hosts = os.environ["ROOT"], int(os.environ["DMLC_NUM_SERVER"])
while len(glob.glob(f"{root}/server-*")) < hosts or not glob.glob(f"{root}/scheduler-*"):
    time.sleep(0.01)
print(os.environ["DMLC_ROLE"], os.environ["DMLC_NUM_WORKER"], hosts, os.environ["DMLC_PS_ROOT_URI"])
"""
LEAVE = "open(root + '/leave', 'w').close(); time.sleep(0.5)"


def job_with_servers(
    make_job, script: str, *, hosts: int = 2, over: str = "unix", marked: bool = True, **variables: str
):
    first = os.pathsep.join(filter(None, [str(STAND_IN), os.environ.get("PYTHONPATH")]))
    job = make_job(hosts=hosts, over=over, PYTHONPATH=first, **variables)
    job.write(WAIT_FOR_SERVERS + script, **(MXNET if marked else {"sagemaker_parameter_server_enabled": True}))
    return job


def test_processes_of_one_machine_listen_at_the_loopback_address() -> None:
    variables_of_role = environment(
        "server", Rendezvous("127.0.0.1", 7000, 7001), hosts=3, on_one_machine=True, interface="eth0"
    )
    assert variables_of_role == {
        "DMLC_ROLE": "server",
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": "7000",
        "DMLC_NUM_WORKER": "3",
        "DMLC_NUM_SERVER": "3",
        "DMLC_NODE_HOST": "127.0.0.1",
    }


def test_mxnet_chooses_an_unknown_interface_itself() -> None:
    variables_of_role = environment(
        "worker", Rendezvous("10.0.0.1", 7000, 7001), hosts=2, on_one_machine=False, interface=None
    )
    assert variables_of_role.keys() & {"DMLC_NODE_HOST", "DMLC_INTERFACE"} == set()


def test_a_scheduler_resolves_the_name_that_it_listens_at(tmp_path: Path) -> None:
    path = os.pathsep.join([str(STAND_IN), *sys.path])
    variables_of_role = environment(
        "scheduler", Rendezvous("localhost", 7000, 7001), hosts=1, on_one_machine=False, interface="eth0"
    )
    (tmp_path / "leave").touch()
    variables = {**os.environ, **variables_of_role, "PYTHONPATH": path, "ROOT": str(tmp_path)}
    output = subprocess.run(
        server_argv(sys.executable), env=variables, capture_output=True, text=True, check=True
    ).stdout
    assert "DMLC_PS_ROOT_URI=127.0.0.1" in output.split()


@pytest.mark.parametrize("over", ["unix", "tcp"])
def test_every_host_has_a_worker_and_a_server_and_the_first_one_the_scheduler(make_job, over: str) -> None:
    job = job_with_servers(make_job, LEAVE, over=over)
    ended = job.run(timeout=20.0)
    assert [(result.code, result.success) for result in ended.values()] == [(0, True)] * 2
    address = ended["algo-1"].rank_lines[0].rpartition(" ")[2]
    assert re.fullmatch(r"127\.0\.0\.1" if over == "unix" else r"[\d.]+", address), "an address that can be listened at"
    for number, (host, result) in enumerate(ended.items()):
        assert result.rank_lines == [f"[{host}:{number}] worker 2 2 {address}"]
        served = [re.search(r"DMLC_ROLE=(\w+)", line)[1] for line in result.lines if " serves " in line]
        assert sorted(served) == (["scheduler", "server"] if number == 0 else ["server"])
        where = "DMLC_NODE_HOST=127.0.0.1" if over == "unix" else "DMLC_INTERFACE="
        assert all(where in line and f"DMLC_PS_ROOT_URI={address}" in line for line in result.lines if "serves" in line)
    assert job.survivors() == []


def test_servers_that_no_rank_has_ended_end_with_the_job(make_job) -> None:
    job = job_with_servers(make_job, "", hosts=1)
    ended = job.run(timeout=20.0)["algo-1"]
    assert (ended.code, ended.rank_lines) == (0, ["[algo-1:0] worker 1 1 127.0.0.1"])
    assert job.survivors() == []


def test_an_image_names_the_framework_of_the_servers_if_the_job_does_not(make_job) -> None:
    job = job_with_servers(make_job, "", hosts=1, marked=False, HERRINGBONE_FRAMEWORK="mxnet")
    assert job.run(timeout=20.0)["algo-1"].rank_lines == ["[algo-1:0] worker 1 1 127.0.0.1"]


def test_servers_of_an_unknown_framework_are_refused(make_job) -> None:
    ended = job_with_servers(make_job, "", hosts=1, marked=False, HERRINGBONE_FRAMEWORK="jax").run()["algo-1"]
    assert ended.code == 1
    assert "parameter servers of 'jax'" in ended.failure_text
    assert "there are tensorflow's and mxnet's" in ended.failure_text


@pytest.mark.parametrize(
    ("mood", "text"),
    [
        ("server dies", r"the parameter server of this host ended before the ranks did\n.*out of memory, say"),
        ("scheduler dies", r"the scheduler of the parameter servers ended before the ranks did\n.*out of memory, say"),
        ("absent", r"needs MXNet 1\.9 and a numpy older than 1\.24 in .*python.*: No module named 'mxnet'\. Install"),
        (
            "numpy",
            r"needs MXNet 1\.9 and a numpy older than 1\.24 .*: module 'numpy' has no attribute 'bool'",
        ),
        ("without", r"does not serve: it was built without its distributed key-value store"),
    ],
)
def test_a_server_that_fails_ends_the_job_and_is_named(make_job, mood: str, text: str) -> None:
    ended = job_with_servers(make_job, "time.sleep(60)").run(timeout=20.0, STAND_IN=mood)
    for result in ended.values():
        assert (result.code, result.success) == (1, False)
        assert re.search(text, result.failure_text, re.DOTALL)


def test_a_server_that_is_killed_is_named_and_not_the_ranks_that_miss_it(make_job) -> None:
    script = """
import signal
for path in glob.glob(f"{root}/server-*"):
    os.kill(int(path.rpartition("-")[2]), signal.SIGKILL)
sys.exit("lost my server")
"""
    ended = job_with_servers(make_job, script, hosts=1).run(timeout=20.0)["algo-1"]
    assert ended.code == 137
    assert "the parameter server of this host ended before the ranks did" in ended.failure_text
