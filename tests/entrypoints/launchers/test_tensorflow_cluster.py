"""`parameter_server` and `multi_worker_mirrored_strategy`: the roles of ranks, and the lives of servers."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from herringbone_entry.channel.rendezvous import TensorFlowServers
from herringbone_entry.launchers.tensorflow_cluster import rank_config, server_config

STAND_IN = Path(__file__).parents[1] / "stand_in_tensorflow"
MIRRORED = {"sagemaker_multi_worker_mirrored_strategy_enabled": True}
PARAMETER_SERVER = {"sagemaker_parameter_server_enabled": True}
# Every script begins with this: each rank waits for all parameter servers.
WAIT_FOR_SERVERS = """
import json, os, sys, time
config = json.loads(os.environ["TF_CONFIG"])
cluster, task = config["cluster"], config["task"]
while not all(os.path.exists(os.environ["ROOT"] + f"/serves-{number}") for number in range(len(cluster.get("ps", [])))):
    time.sleep(0.01)
print(task["type"], task["index"], {role: len(tasks) for role, tasks in sorted(cluster.items())})
"""
HOSTS = [
    TensorFlowServers("algo-1", 7000, 7001),
    TensorFlowServers("fd00::2", 8000, 8001),
    TensorFlowServers("algo-3", 9000, 9001),
]


def test_every_rank_is_a_worker_of_a_mirrored_strategy() -> None:
    servers = [host._replace(parameters=None) for host in HOSTS]
    cluster = {"worker": ["algo-1:7000", "[fd00::2]:8000", "algo-3:9000"]}
    assert [json.loads(rank_config(servers, rank)) for rank in range(3)] == [
        {"cluster": cluster, "environment": "cloud", "task": {"type": "worker", "index": rank}} for rank in range(3)
    ]


@pytest.mark.parametrize(
    ("hosts", "cluster", "ranks"),
    [
        (1, {"chief": ["algo-1:7000"], "ps": ["algo-1:7001"]}, [("chief", 0)]),
        (
            3,
            {
                "chief": ["algo-1:7000"],
                "worker": ["[fd00::2]:8000", "algo-3:9000"],
                "ps": ["algo-1:7001", "[fd00::2]:8001", "algo-3:9001"],
            },
            [("chief", 0), ("worker", 0), ("worker", 1)],
        ),
    ],
)
def test_rank_0_is_the_chief_and_every_host_has_a_parameter_server(hosts, cluster, ranks) -> None:
    for rank, (role, index) in enumerate(ranks):
        expected = {"cluster": cluster, "environment": "cloud", "task": {"type": role, "index": index}}
        assert json.loads(rank_config(HOSTS[:hosts], rank)) == expected
        expected["task"] = {"type": "ps", "index": rank}
        assert json.loads(server_config(HOSTS[:hosts], rank)) == expected


def stand_in_first() -> str:
    return os.pathsep.join(filter(None, [str(STAND_IN), os.environ.get("PYTHONPATH")]))


def job_with_servers(make_job, script: str, *, hosts: int = 2, over: str = "unix", **settings):
    job = make_job(hosts=hosts, over=over, PYTHONPATH=stand_in_first())
    job.write(WAIT_FOR_SERVERS + script, **settings)
    return job


@pytest.mark.parametrize("over", ["unix", "tcp"])
def test_mirrored_ranks_find_each_other(make_job, over: str) -> None:
    script = "addresses = cluster['worker']; print(len(set(addresses)), *addresses)"
    job = job_with_servers(make_job, script, over=over, **MIRRORED)
    ended = job.run()
    assert [result.code for result in ended.values()] == [0, 0]
    first, second = (result.rank_lines for result in ended.values())
    assert [first[0], second[0]] == ["[algo-1:0] worker 0 {'worker': 2}", "[algo-2:1] worker 1 {'worker': 2}"]
    # Both have the same two addresses, which are of one machine when hosts are its processes.
    assert first[1].partition("] ")[2] == second[1].partition("] ")[2]
    address = r"127\.0\.0\.1" if over == "unix" else r"[\w.:\[\]]+"
    assert re.fullmatch(rf"\[algo-1:0\] 2 {address}:\d+ {address}:\d+", first[1])


@pytest.mark.parametrize("over", ["unix", "tcp"])
def test_workers_and_parameter_servers_end_with_the_chief(make_job, over: str) -> None:
    # The chief ends when both workers have printed their roles.
    script = """
if task["type"] == "worker":
    sys.stdout.flush()
    open(os.environ["ROOT"] + f"/works-{task['index']}", "w").close()
    time.sleep(60)
while not all(os.path.exists(os.environ["ROOT"] + f"/works-{number}") for number in range(2)):
    time.sleep(0.01)
"""
    job = job_with_servers(make_job, script, hosts=3, over=over, **PARAMETER_SERVER)
    ended = job.run(timeout=20.0)
    assert [(result.code, result.success) for result in ended.values()] == [(0, True)] * 3
    roles = {"chief": 1, "ps": 3, "worker": 2}
    assert [result.rank_lines for result in ended.values()] == [
        [f"[algo-1:0] chief 0 {roles}"],
        [f"[algo-2:1] worker 0 {roles}"],
        [f"[algo-3:2] worker 1 {roles}"],
    ]
    for number, (host, result) in enumerate(ended.items()):
        [served] = [line for line in result.lines if "serves" in line]
        assert re.match(rf"\[{host}\] serves ps {number} of \['chief', 'ps', 'worker'\] at .* grpc$", served)
    assert job.survivors() == []


def test_workers_that_end_first_do_not_end_the_job(make_job) -> None:
    script = """
mark = os.environ["ROOT"] + "/worker-ended"
if task["type"] == "worker":
    open(mark, "w").close()
else:
    while not os.path.exists(mark):
        time.sleep(0.01)
    time.sleep(0.3)
    print("chief saw it")
"""
    ended = job_with_servers(make_job, script, **PARAMETER_SERVER).run()
    assert [result.code for result in ended.values()] == [0, 0]
    assert "[algo-1:0] chief saw it" in ended["algo-1"].lines


def test_a_lone_host_is_chief_and_parameter_server(make_job) -> None:
    ended = job_with_servers(make_job, "", hosts=1, **PARAMETER_SERVER).run()["algo-1"]
    assert (ended.code, ended.rank_lines) == (0, ["[algo-1:0] chief 0 {'chief': 1, 'ps': 1}"])


def test_only_hosts_of_the_named_groups_take_part(make_job) -> None:
    job = make_job(hosts=3, PYTHONPATH=stand_in_first())
    job.groups = {"cpu": ["algo-1"], "gpu": ["algo-2", "algo-3"]}
    job.write(WAIT_FOR_SERVERS, **PARAMETER_SERVER, sagemaker_distribution_instance_groups=["gpu"])
    ended = job.run()
    assert [result.code for result in ended.values()] == [0, 0, 0]
    assert [line for result in ended.values() for line in result.lines if "serves" in line] == [
        "[algo-2] serves ps 0 of ['chief', 'ps', 'worker'] at 127.0.0.1 grpc",
        "[algo-3] serves ps 1 of ['chief', 'ps', 'worker'] at 127.0.0.1 grpc",
    ]
    assert ended["algo-2"].rank_lines == ["[algo-2:0] chief 0 {'chief': 1, 'ps': 2, 'worker': 1}"]


@pytest.mark.parametrize(
    ("mood", "text"),
    [
        ("dies", r"the parameter server of this host ended before the ranks did\n.*out of memory, say"),
        ("absent", r"parameter_server needs TensorFlow in .*python.*: No module named 'tensorflow'\. Install it"),
    ],
)
def test_a_parameter_server_that_ends_by_itself_ends_the_job_and_is_named(make_job, mood: str, text: str) -> None:
    ended = job_with_servers(make_job, "time.sleep(60)", **PARAMETER_SERVER).run(timeout=20.0, STAND_IN=mood)
    for result in ended.values():
        assert (result.code, result.success) == (1, False)
        assert re.search(text, result.failure_text, re.DOTALL)


def test_a_worker_that_fails_fails_the_job(make_job) -> None:
    script = "time.sleep(60) if task['type'] == 'chief' else sys.exit(7)"
    ended = job_with_servers(make_job, script, **PARAMETER_SERVER).run(timeout=20.0)
    assert [(result.code, result.failure.rank) for result in ended.values()] == [(7, 1), (7, 1)]
