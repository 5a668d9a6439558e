"""Helper hosts have no ranks and serve the others' ranks: their servers start before the ranks and end after them."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

STAND_IN = Path(__file__).parents[1] / "stand_in"
OVER = pytest.mark.parametrize("over", ["unix", "tcp"])
DATA_PARALLEL = {"sagemaker_distributed_dataparallel_enabled": True}
# Every script begins with this: `ask` sends a word to the first server and returns its answer.
ASK = """
import os, socket, signal, sys, time
def ask(text):
    address, _, port = os.environ["HERRINGBONE_REDUCE_SERVERS"].split(",")[0].partition("=")[2].rpartition(":")
    with socket.create_connection((address, int(port))) as connection:
        connection.sendall(text.encode())
        return connection.recv(1000).decode()
with open(os.environ["HERRINGBONE_REDUCE_TOKEN_FILE"]) as file:
    token = file.read()
# Complete as soon as it can be seen.
root, rank = os.environ["ROOT"], os.environ["RANK"]
open(f"{root}/new-{rank}", "w").write(token)
os.rename(f"{root}/new-{rank}", f"{root}/up-{rank}")
"""


def helped(make_job, script: str, *, helpers=("algo-2",), hosts: int = 2, over: str = "unix", **settings):
    """Make a job with helper hosts."""
    path = os.pathsep.join(filter(None, [str(STAND_IN), os.environ.get("PYTHONPATH")]))
    job = make_job(hosts=hosts, over=over, PYTHONPATH=path)
    job.groups = {"cpu": list(helpers), "gpu": [host for host in job.hosts if host not in helpers]}
    parameters = {"sagemaker_distributed_dataparallel_parameters": {"helpers": "cpu", **settings}}
    groups = {"sagemaker_distribution_instance_groups": ["gpu"]}
    job.write(ASK + script, **DATA_PARALLEL, **parameters, **groups)
    return job


@OVER
@pytest.mark.parametrize("helpers", [("algo-3", "algo-4"), ("algo-1", "algo-3")])
def test_ranks_find_the_servers_of_helper_hosts(make_job, over: str, helpers) -> None:
    job = helped(make_job, "print(ask(token), ask('guess'))", helpers=helpers, hosts=4, over=over)
    ended = job.run()
    assert [(result.code, result.success) for result in ended.values()] == [(0, True)] * 4
    ranks = sorted(line for result in ended.values() for line in result.rank_lines)
    training = [host for host in job.hosts if host not in helpers]
    assert ranks == [f"[{host}:{rank}] welcome refused" for rank, host in enumerate(training)]
    for host in helpers:
        assert f"[{host}] stand-in serves {host} None" in ended[host].lines
        assert f"[{host}] stand-in leaves" in ended[host].lines
    assert job.survivors() == []


@pytest.mark.mpi
@pytest.mark.parametrize("kind", ["openmpi4", "openmpi5", "mpich"])
def test_mpirun_runs_on_a_helper_host_that_is_the_first_host(make_job, mpirun, kind: str) -> None:
    job = helped(make_job, "print(ask(token))", helpers=["algo-1"], hosts=3, over="tcp")
    job.environment["HERRINGBONE_MPIRUN"] = mpirun(kind)
    for host in job.hosts:
        file = job.base(host) / "input" / "config" / "hyperparameters.json"
        settings = {"sagemaker_mpi_enabled": "true", "sagemaker_mpi_num_of_processes_per_host": "2"}
        file.write_text(json.dumps(json.loads(file.read_text()) | settings))
    ended = job.run()
    assert [result.code for result in ended.values()] == [0, 0, 0]
    lines = sorted(line for result in ended.values() for line in result.rank_lines)
    assert lines == [f"[algo-{2 + rank // 2}:{rank}] welcome" for rank in range(4)]


def test_the_dicts_settings_reach_ranks_and_servers(make_job) -> None:
    script = "print(*(f'{name[12:]}={os.environ[name]}' for name in sorted(os.environ) if name.startswith('HERR')))"
    settings = {"aggregation_frequency": 4, "average_aggregated_gradients": False, "wire": "bf16"}
    job = helped(make_job, script, rails=["eth0", "eth1"], **settings)
    ended = job.run()
    assert "[algo-2] stand-in serves algo-2 eth0,eth1" in ended["algo-2"].lines
    (line,) = ended["algo-1"].rank_lines
    variables = dict(word.split("=", 1) for word in line.split()[1:])
    assert json.loads(variables.pop("HOST_NAMES")).keys() == {"algo-1", "algo-2"}
    port = variables["REDUCE_SERVERS"].rpartition(":")[2]
    assert variables | {"REDUCE_MEET": "", "REDUCE_TOKEN_FILE": ""} == {
        "AGGREGATION_FREQUENCY": "4",
        "AVERAGE_AGGREGATED_GRADIENTS": "false",
        "EVENTS": f"{job.run_folder}/events-algo-1",
        "REDUCE_MEET": "",
        "REDUCE_RAILS": "eth0,eth1",
        "REDUCE_SERVERS": f"algo-2=127.0.0.1:{port}",
        "REDUCE_TOKEN_FILE": "",
        "REDUCE_WIRE": "bf16",
    }
    assert variables["REDUCE_MEET"].startswith("127.0.0.1:")
    assert variables["REDUCE_TOKEN_FILE"].startswith("/dev/fd/")


def test_more_helpers_than_are_useful_are_advised_against_in_the_log(make_job) -> None:
    ended = helped(make_job, "").run()
    assert any("advice: one host trains" in line for line in ended["algo-1"].lines)


def test_the_token_is_in_nobody_s_environment_command_line_or_log(make_job) -> None:
    job = helped(make_job, "time.sleep(60)", helpers=["algo-2", "algo-3"], hosts=3)
    job.start()
    job.seen("up-")
    token = (job.root / "up-0").read_bytes()
    pids = job.survivors()
    assert len(token) == 64
    assert len(pids) >= 6
    for pid in pids:
        for file in ("environ", "cmdline"):
            assert token not in Path(f"/proc/{pid}/{file}").read_bytes()
    job.processes["algo-1"].send_signal(signal.SIGTERM)
    assert all(token not in result.output for result in job.wait().values())


def test_a_shell_script_passes_the_token_on(make_job) -> None:
    job = make_job()
    program = "import os; print(len(open(os.environ['HERRINGBONE_REDUCE_TOKEN_FILE']).read()))"
    job.write(f'python -c "{program}"', program="train.sh", sagemaker_torch_distributed_enabled=True)
    (job.base() / "code" / "train.sh").chmod(0o755)
    assert job.run()["algo-1"].rank_lines == ["[algo-1:0] 64"]


@OVER
def test_a_server_that_dies_ends_the_job_and_is_named(make_job, over: str) -> None:
    job = helped(make_job, "print(ask('die')); time.sleep(60)", over=over)
    began = time.monotonic()
    ended = job.run()
    assert time.monotonic() - began < 8.0
    for result in ended.values():
        assert result.code == 137
        assert result.failure_text.startswith(
            "algo-2: exit code 137, killed by SIGKILL: lost a process of algo-2: the server of this helper host"
        )
        assert not result.success
    assert job.survivors() == []


def test_a_dead_server_is_blamed_though_a_rank_s_error_comes_first(make_job) -> None:
    job = helped(make_job, "ask('die'); raise ConnectionError('the server is gone')")
    assert job.run()["algo-1"].failure.host == "algo-2"


@pytest.mark.parametrize(
    ("mood", "code", "text"),
    [
        ("broken", 1, "ended before the ranks did\n"),
        ("odd", 1, "said 'no JSON\\n' where it was to name its port"),
        ("brief", 1, "exit code 1: the server of this helper host"),
    ],
)
def test_a_server_that_does_not_serve_is_named(make_job, mood: str, code: int, text: str) -> None:
    job = helped(make_job, "time.sleep(60)")
    ended = job.run(STAND_IN=mood)
    for result in ended.values():
        assert result.code == code
        assert result.failure.host == "algo-2"
        assert text in result.failure_text
    if mood == "broken":
        assert "ImportError: no numpy here" in ended["algo-1"].failure_text


SLOW_SUPERVISOR = """
import time
from herringbone_entry.event_loop import Loop
watch_signals = Loop.signals
Loop.signals = lambda *arguments: (time.sleep(1), watch_signals(*arguments))
"""


def test_a_server_that_ends_before_the_supervisor_watches_its_children_is_named(make_job, tmp_path) -> None:
    (tmp_path / "sitecustomize.py").write_text(SLOW_SUPERVISOR)
    job = helped(make_job, "time.sleep(60)")
    ended = job.run(STAND_IN="brief", PYTHONPATH=os.pathsep.join([str(tmp_path), str(STAND_IN)]))
    assert [result.code for result in ended.values()] == [1, 1]


def test_a_server_that_ignores_sigterm_is_killed(make_job) -> None:
    job = helped(make_job, "")
    ended = job.run(timeout=10.0, STAND_IN="stubborn")
    assert [result.code for result in ended.values()] == [0, 0]
    assert job.survivors() == []


def test_a_stop_leaves_ranks_their_servers_until_they_have_ended(make_job) -> None:
    script = (
        "signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.3), print(ask(token)), sys.exit(0)))\ntime.sleep(60)"
    )
    job = helped(make_job, script)
    job.start()
    job.seen("up-")
    time.sleep(0.2)
    for process in job.processes.values():
        process.send_signal(signal.SIGTERM)
    ended = job.wait()
    assert ended["algo-1"].rank_lines == ["[algo-1:0] welcome"]
    assert [result.code for result in ended.values()] == [0, 0]


@OVER
def test_a_helper_host_that_is_killed_ends_the_job(make_job, over: str) -> None:
    job = helped(make_job, "time.sleep(60)", over=over)
    job.start()
    job.seen("up-")
    job.processes["algo-2"].send_signal(signal.SIGKILL)
    began = time.monotonic()
    ended = job.wait()["algo-1"]
    assert time.monotonic() - began < 5.0
    assert "lost contact with algo-2" in ended.failure_text
    # Its server was its child, and ends with it.
    assert job.survivors(patience=1.0) == []


def test_p8_a_frozen_helper_host_is_noticed(make_job) -> None:
    job = helped(make_job, "time.sleep(60)")
    job.start(HERRINGBONE_HEARTBEAT="0.3")
    job.seen("up-")
    job.processes["algo-2"].send_signal(signal.SIGSTOP)
    job.processes["algo-1"].wait(timeout=6.0)
    job.processes["algo-2"].send_signal(signal.SIGCONT)
    ended = job.wait()
    assert [result.code for result in ended.values()] == [1, 1]
    assert "lost contact with algo-2" in ended["algo-1"].failure_text
    assert job.survivors() == []


@pytest.mark.parametrize(
    ("group", "message"),
    [
        ("cpu", "all hosts are in the helper group 'cpu'; none is left to train"),
        ("cpus", "has no instance group 'cpu'"),
    ],
)
def test_a_helper_group_with_all_hosts_or_none_is_refused(make_job, group: str, message: str) -> None:
    job = make_job(hosts=2)
    job.groups = {group: job.hosts}
    helpers = {"sagemaker_distributed_dataparallel_parameters": {"helpers": "cpu"}}
    job.write("print('never')", **DATA_PARALLEL, **helpers)
    assert message in job.run()["algo-1"].failure_text
