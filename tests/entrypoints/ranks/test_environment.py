"""The environment of a rank: SM_* of its own host, its arguments, its number, and no secrets."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from herringbone_contract.hyperparameters import encode_values
from herringbone_entry.host import read_host
from herringbone_entry.ranks.environment import (
    accelerate_environment,
    arguments,
    contract_environment,
    encode,
    thread_environment,
    with_partitions,
)

DUMP = """
    import json, os, sys
    with open(os.environ["ROOT"] + "/rank-" + os.environ["RANK"], "w") as file:
        json.dump({"env": dict(os.environ), "argv": sys.argv[1:], "cwd": os.getcwd(), "path": sys.path}, file)
"""


def dumps(job) -> dict[int, dict]:
    return {int(path.name[5:]): json.loads(path.read_text()) for path in job.root.glob("rank-*")}


def hetero(job) -> None:
    """Give the last host another instance group."""
    groups = [
        {"instance_group_name": "gpu", "instance_type": "ml.p4d.24xlarge", "hosts": job.hosts[:-1]},
        {"instance_group_name": "cpu", "instance_type": "ml.c5.xlarge", "hosts": job.hosts[-1:]},
    ]
    for host in job.hosts:
        path = job.base(host) / "input" / "config" / "resourceconfig.json"
        config = json.loads(path.read_text())
        group = groups[1] if host == job.hosts[-1] else groups[0]
        config.update(
            instance_groups=groups,
            current_group_name=group["instance_group_name"],
            current_instance_type=group["instance_type"],
        )
        path.write_text(json.dumps(config))


@pytest.mark.parametrize("launcher", ["torch", "openmpi4", "openmpi5", "mpich"])
def test_p16_every_rank_sees_its_own_host(make_job, mpirun, launcher: str) -> None:
    # The peer gave every rank of an mpirun the first host's variables.
    job = make_job(hosts=2)
    if launcher == "torch":
        job.write(DUMP, sagemaker_torch_distributed_enabled=True)
    else:
        job.environment["HERRINGBONE_MPIRUN"] = mpirun(launcher)
        job.write(DUMP, sagemaker_mpi_enabled=True, sagemaker_mpi_num_of_processes_per_host=2)
    hetero(job)
    ended = job.run()
    assert [result.code for result in ended.values()] == [0, 0], ended
    per_host = 1 if launcher == "torch" else 2
    dump_of_rank = dumps(job)
    assert sorted(dump_of_rank) == list(range(2 * per_host))
    for rank, dump in dump_of_rank.items():
        env, host = dump["env"], f"algo-{rank // per_host + 1}"
        assert env["SM_CURRENT_HOST"] == host
        assert env["SM_MODEL_DIR"] == str(job.base(host) / "model")
        assert env["SM_CURRENT_INSTANCE_GROUP"] == ("cpu" if host == "algo-2" else "gpu")
        assert env["SM_CURRENT_INSTANCE_TYPE"] == ("ml.c5.xlarge" if host == "algo-2" else "ml.p4d.24xlarge")
        assert (env["RANK"], env["WORLD_SIZE"]) == (str(rank), str(2 * per_host))
        assert (env["LOCAL_RANK"], env["LOCAL_WORLD_SIZE"]) == (str(rank % per_host), str(per_host))
        assert env["GROUP_RANK"] == str(rank // per_host)
        assert env["MASTER_ADDR"] == "127.0.0.1"
        assert env["GLOO_SOCKET_IFNAME"] == "lo"
        assert dump["cwd"] == str(job.base(host) / "code")
        assert dump["path"][0] == dump["cwd"]
    assert len({dump["env"]["MASTER_PORT"] for dump in dump_of_rank.values()}) == 1


def test_ranks_live_only_in_the_groups_that_the_distribution_names(make_job) -> None:
    job = make_job(hosts=3)
    groups = {"sagemaker_distribution_instance_groups": ["gpu"], "sagemaker_torch_distributed_enabled": True}
    job.write(DUMP, **groups)
    hetero(job)
    ended = job.run()
    assert [result.code for result in ended.values()] == [0, 0, 0]
    assert [dump["env"]["SM_CURRENT_HOST"] for _, dump in sorted(dumps(job).items())] == ["algo-1", "algo-2"]


def test_ranks_that_nobody_watches_record_nothing(make_job) -> None:
    modules = """
    import json, os, sys
    import torch.distributed, torch.optim
    names = [name for name in sys.modules if name.startswith("herringbone_")]
    with open(os.environ["ROOT"] + "/rank-" + os.environ["RANK"], "w") as file:
        json.dump({"names": names, "buffer": os.environ.get("TORCH_FR_BUFFER_SIZE")}, file)
    """
    found = {}
    for observer in ("off", "on"):
        job = make_job(hosts=2)
        job.environment["HERRINGBONE_OBSERVER"] = observer
        job.write(modules, sagemaker_torch_distributed_enabled=True, sagemaker_hang_timeout=0)
        assert [result.code for result in job.run().values()] == [0, 0]
        found[observer] = dumps(job)[1]
    new = set(found["on"]["names"]) - set(found["off"]["names"])
    assert (found["off"]["buffer"], found["on"]["buffer"]) == (None, "2000")
    assert "herringbone_entry.ranks.recorder.step_times" in new
    assert not [name for name in found["off"]["names"] if ".events" in name or ".recorder" in name]


def test_the_channel_of_the_hosts_key_is_hidden_from_the_script(make_job) -> None:
    job = make_job()
    job.write("")
    (job.base() / "input" / "config" / "inputdataconfig.json").write_text('{"train": {}, "herringbone": {}}')
    key_file = {"HERRINGBONE_KEY_FILE": str(job.base() / "input" / "data" / "herringbone" / "key")}
    host = read_host({"SAGEMAKER_BASE_DIR": str(job.base()), **key_file})
    variables = contract_environment(host, num_cpus=1, num_gpus=0)
    assert variables["SM_CHANNELS"] == '["train"]'
    assert "SM_CHANNEL_HERRINGBONE" not in variables


def test_sm_variables_of_a_host(make_job) -> None:
    job = make_job()
    job.write("", **{"batch-size": 3, "note": None, "sagemaker_container_log_level": 10})
    (job.base() / "input" / "config" / "inputdataconfig.json").write_text('{"train": {}, "eval": {}}')
    base = str(job.base())
    variables = contract_environment(read_host({"SAGEMAKER_BASE_DIR": base}), num_cpus=4, num_gpus=2)
    expected = {
        "SM_HOSTS": '["algo-1"]',
        "SM_HP_BATCH-SIZE": "3",
        "SM_HP_BATCH_SIZE": "3",
        "SM_HP_NOTE": "",
        "SM_HPS": '{"batch-size":3,"note":null}',
        "SM_USER_ARGS": '["--batch-size","3","--note",""]',
        "SM_CHANNELS": '["eval","train"]',
        "SM_CHANNEL_TRAIN": f"{base}/input/data/train",
        "SM_FRAMEWORK_PARAMS": '{"sagemaker_container_log_level":10,"sagemaker_program":"train.py"}',
        "SM_USER_ENTRY_POINT": "train.py",
        "SM_MODULE_NAME": "train",
        "SM_LOG_LEVEL": "10",
        "SM_NUM_CPUS": "4",
        "SM_NUM_GPUS": "2",
        "SM_OUTPUT_DATA_DIR": f"{base}/output/data",
        "SM_CHECKPOINT_DIR": f"{base}/checkpoints",
        "SM_IS_HETERO": "false",
        "SM_CURRENT_INSTANCE_GROUP": "homogeneousCluster",
    }
    assert {name: variables.get(name) for name in expected} == expected
    assert json.loads(variables["SM_TRAINING_ENV"])["channel_input_dirs"]["eval"] == f"{base}/input/data/eval"


@pytest.mark.parametrize(
    ("address", "in_a_trial"),
    [("s3://models/digits/model", "s3://models/digits/model/digits-001/model"), ("/opt/ml/model", "/opt/ml/model")],
)
def test_trials_of_a_tuning_job_do_not_share_tensorflows_model_dir(make_job, address: str, in_a_trial: str) -> None:
    job = make_job()
    job.write("")
    path = job.base() / "input" / "config" / "hyperparameters.json"
    environ = {"SAGEMAKER_BASE_DIR": str(job.base()), "TRAINING_JOB_NAME": "digits-001"}
    texts = {"model_dir": json.dumps(address), "lr": "0.1"}
    path.write_text(json.dumps(texts))
    assert read_host(environ).hyperparameters == {"model_dir": address, "lr": 0.1}
    path.write_text(json.dumps({**texts, "_tuning_objective_metric": "accuracy"}))
    assert read_host(environ).hyperparameters == {"model_dir": in_a_trial, "lr": 0.1}


def test_a_pipe_channel_is_the_scripts_to_read(make_job) -> None:
    """Leave a FIFO to the script: the platform writes each epoch once, and another reader would take data."""
    job = make_job()
    job.write(
        """
        import os, threading
        channel = os.environ["SM_CHANNEL_TRAIN"]
        for epoch in range(2):
            path = f"{channel}_{epoch}"
            threading.Thread(target=lambda: open(path, "w").write(f"epoch {epoch}")).start()
            print(open(path).read(), os.path.exists(channel))
        """
    )
    described = {"train": {"TrainingInputMode": "Pipe", "S3DistributionType": "FullyReplicated"}}
    (job.base() / "input" / "config" / "inputdataconfig.json").write_text(json.dumps(described))
    data = job.base() / "input" / "data"
    data.mkdir()
    for epoch in range(2):
        os.mkfifo(data / f"train_{epoch}")
    assert job.run()["algo-1"].lines == ["[algo-1:0] epoch 0 False", "[algo-1:0] epoch 1 False"]


def test_arguments_follow_the_contracts_rules() -> None:
    values = {"b": True, "epochs": 3, "a": "x y", "none": None, "mp_parameters": {"partitions": 2, "ddp": False}}
    assert arguments(values) == [
        *("-a", "x y", "-b", "True", "--epochs", "3", "--mp_parameters", "ddp=False,partitions=2", "--none", "")
    ]


@pytest.mark.parametrize("value", [-3, -0.5, -1e-05, -2.5e20, float("-inf"), "-v", "-", "-l is on", "--least=3 holds"])
def test_argparse_reads_values_that_begin_with_a_dash(value: object) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--least", type=type(value))
    parser.add_argument("-l", type=type(value))
    read = parser.parse_args(arguments({"least": value, "l": value}))
    assert (read.least, read.l) == (value, value)


@given(st.dictionaries(st.text(min_size=1, max_size=10), st.text(max_size=50), max_size=5))
def test_p22_any_text_is_one_argument(values: dict[str, str]) -> None:
    words = iter(arguments(values))
    for name in sorted(values):
        option, equals = (f"-{name}", "") if len(name) == 1 else (f"--{name}", "=")
        word = next(words)
        assert values[name] == (next(words) if word == option else word.removeprefix(option + equals))
    assert next(words, None) is None
    assert all(encode(value) == value for value in values.values())


NASTY = {"q": "it's \"$HOME\"; rm -rf `x` \\ 'end", "newline-s": "a\nb\t c", "uni": "naïve €", "minus": "-x", "e": ""}


def test_p22_nasty_hyperparameters_arrive_intact(make_job) -> None:
    job = make_job()
    job.write(DUMP, **NASTY)
    assert job.run()["algo-1"].code == 0
    dump = dumps(job)[0]
    assert dump["argv"] == [*("-e", "", "--minus=-x", "--newline-s", "a\nb\t c", "-q", NASTY["q"], "--uni", "naïve €")]
    for name, value in NASTY.items():
        assert dump["env"][f"SM_HP_{name.upper()}"] == value
    assert dump["env"]["SM_HP_NEWLINE_S"] == dump["env"]["SM_HP_NEWLINE-S"]


@pytest.mark.parametrize("launcher", ["plain", "openmpi5"])
def test_p22_a_shell_script_gets_the_hyperparameters_too(make_job, mpirun, launcher: str) -> None:
    # dash drops SM_HP_NEWLINE-S on the way to its children; the other spelling is there for it.
    job = make_job(PYTHON=sys.executable)
    job.environment["HERRINGBONE_MPIRUN"] = mpirun("openmpi5")
    values = {**NASTY, **({} if launcher == "plain" else {"sagemaker_mpi_enabled": True})}
    dump = f"import textwrap; exec(textwrap.dedent({DUMP!r}))"
    (job.root / "dump.py").write_text(dump)
    job.write('exec "$PYTHON" "$ROOT/dump.py" "$@"', program="run.sh", **values)
    assert job.run()["algo-1"].code == 0
    dump = dumps(job)[0]
    assert dump["argv"][-4:] == ["-q", NASTY["q"], "--uni", "naïve €"]
    assert dump["env"]["SM_HP_NEWLINE_S"] == "a\nb\t c"


def test_a_shell_scripts_exit_code_and_stop_are_its_own(make_job) -> None:
    job = make_job()
    job.write("echo 'in shell'\nexit 7", program="run.sh")
    ended = job.run()["algo-1"]
    assert ended.code == 7
    assert ended.lines[0] == "[algo-1:0] in shell"


def test_p20_secrets_reach_neither_logs_nor_command_lines(make_job, mpirun) -> None:
    secret = "s3cr3t-f2b1"  # noqa: S105
    job = make_job(hosts=2, AWS_SECRET_ACCESS_KEY=secret, MY_TOKEN=secret, HERRINGBONE_MPIRUN=mpirun("openmpi5"))
    job.write(
        "import os, time; open(os.environ['ROOT'] + '/up-' + os.environ['RANK'], 'w'); time.sleep(1.5)",
        sagemaker_mpi_enabled=True,
        api_key=secret,
    )
    job.start()
    job.seen("up-", 2)
    lines = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in job.survivors()]
    assert len(lines) >= 4
    ended = job.wait()
    assert not any(secret.encode() in line for line in lines)
    assert not any(secret.encode() in result.output for result in ended.values())


def test_p20_a_rank_cannot_read_the_jobs_secret(make_job) -> None:
    job = make_job(hosts=2)
    script = (
        DUMP + '\n    print(sorted(os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd") if n > "2"))'
    )
    script = script.replace("os.readlink(", "(os.path.realpath(")
    script = script.replace('{n}")', '{n}"))')
    job.write(script, sagemaker_torch_distributed_enabled=True)
    ended = job.run()
    assert [result.code for result in ended.values()] == [0, 0], ended
    for dump in dumps(job).values():
        ours = [name for name in dump["env"] if name.startswith("HERRINGBONE_")]
        names = ("EVENTS", "HOST_NAMES", "REDUCE_MEET", "REDUCE_TOKEN_FILE")
        assert sorted(ours) == [f"HERRINGBONE_{name}" for name in names]
    # Apart from the folder being listed there are one socket (the rank's own link) and two pipes: the lifeline, and the
    # ranks' token. It is derived from the hosts' secret and does not reveal it.
    assert all(line.count("pipe") == 2 for result in ended.values() for line in result.rank_lines)


def test_encoded_hyperparameters_of_the_estimator_come_back(make_job) -> None:
    job = make_job()
    job.write(DUMP)
    values = {"lr": 0.1, "layers": [1, 2], "name": "x", "flag": True}
    path = job.base() / "input" / "config" / "hyperparameters.json"
    path.write_text(json.dumps({**encode_values(values), "sagemaker_program": '"train.py"'}))
    assert job.run()["algo-1"].code == 0
    assert json.loads(dumps(job)[0]["env"]["SM_HPS"]) == values


@pytest.mark.parametrize(
    ("inherited", "cpus_and_ranks", "threads"),
    [
        # num_local, num_cpus, num_on_machine, machine_cpus
        ({}, (1, 8, 1, 8), None),
        ({}, (2, 8, 2, 8), "4"),
        # Two hosts of one rank each are processes of one machine, or containers there.
        ({}, (1, 8, 2, 8), "4"),
        # Containers with half of the machine each.
        ({}, (2, 4, 4, 8), "2"),
        ({}, (1, 4, 2, 8), "4"),
        ({}, (3, 2, 3, 2), "1"),
        ({"OMP_NUM_THREADS": "7"}, (2, 8, 2, 8), None),
    ],
)
def test_ranks_of_one_machine_share_its_cores(inherited, cpus_and_ranks, threads: str | None) -> None:
    names = ("num_local", "num_cpus", "num_on_machine", "machine_cpus")
    values = thread_environment(inherited, **dict(zip(names, cpus_and_ranks, strict=True)))
    assert values == ({} if threads is None else {"OMP_NUM_THREADS": threads})


@pytest.mark.parametrize(
    ("inherited", "num_gpus", "values"),
    [
        # Each rank trained alone, on all the data, and nothing said so.
        ({}, 0, {"ACCELERATE_USE_CPU": "true"}),
        ({}, 1, {}),
        ({"ACCELERATE_USE_CPU": "false"}, 0, {}),
    ],
)
def test_accelerate_connects_ranks_without_gpus(inherited, num_gpus: int, values: dict[str, str]) -> None:
    assert accelerate_environment(inherited, num_gpus=num_gpus) == values


@pytest.mark.parametrize(
    ("given", "partitions"),
    [
        ({"partitions": 2, "microbatches": 4}, 2),
        ({"pipeline_parallel_degree": 4}, 4),
        ({"partitions": 2, "pipeline_parallel_degree": 2}, 2),
        ({"sharded_data_parallel_degree": 2}, 1),
    ],
)
def test_transformers_finds_the_partitions_under_their_first_name(given: dict[str, int], partitions: int) -> None:
    assert json.loads(with_partitions(json.dumps(given))) == {**given, "partitions": partitions}


@pytest.mark.parametrize("launcher", ["sagemaker_torch_distributed_enabled", "sagemaker_mpi_enabled"])
def test_hosts_that_are_processes_of_one_machine_share_its_cores(make_job, mpirun, launcher: str) -> None:
    # Each of the ranks took all cores, and nothing said so.
    job = make_job(hosts=2, HERRINGBONE_MPIRUN=mpirun("openmpi5"))
    job.environment.pop("OMP_NUM_THREADS", None)
    job.write("import os; print(os.environ['OMP_NUM_THREADS'])", **{launcher: True})
    ended, cores = job.run(), os.cpu_count()
    share = max(1, cores // 2)
    for rank, result in enumerate(ended.values()):
        assert result.rank_lines == [f"[algo-{rank + 1}:{rank}] {share}"]
    line = f"[algo-1] OMP_NUM_THREADS={share}: 2 ranks share this machine's {cores} cores; set OMP_NUM_THREADS in "
    assert [text for result in ended.values() for text in result.lines if text.startswith(line)] != []


TORCHRUN_ONLY = {"TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_SIGNALS_TO_HANDLE", "TORCH_NCCL_ASYNC_ERROR_HANDLING"}


@pytest.mark.timeout(90)
def test_torch_distributed_ranks_find_what_torchrun_gives(make_job, tmp_path) -> None:
    pytest.importorskip("torch", exc_type=ImportError)
    job = make_job(CUDA_VISIBLE_DEVICES="0,1")
    job.write(DUMP, sagemaker_torch_distributed_enabled=True)
    assert job.run()["algo-1"].code == 0
    ours = dumps(job)[1]["env"]
    script = job.base() / "code" / "train.py"
    environment = {**os.environ, "ROOT": str(tmp_path), "TRAINING_JOB_NAME": job.name}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    subprocess.run(command, env=environment, check=True, capture_output=True)
    theirs = json.loads((tmp_path / "rank-1").read_text())["env"]
    added = {name: value for name, value in theirs.items() if os.environ.get(name) != value}
    missing = {name for name in added if name not in ours} - TORCHRUN_ONLY
    assert missing == set()
    same = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK")
    same += ("ROLE_WORLD_SIZE", "ROLE_NAME", "TORCHELASTIC_RESTART_COUNT")
    same += ("TORCHELASTIC_MAX_RESTARTS",)
    assert {name: ours[name] for name in same} == {name: theirs[name] for name in same}


def test_the_checkpoint_folder_is_that_of_the_platform(make_job) -> None:
    job = make_job()
    job.write("")
    config = job.base() / "input" / "config" / "checkpointconfig.json"
    config.write_text('{"S3Uri": "s3://bucket/run", "LocalPath": "/checkpoints"}')
    host = read_host({"SAGEMAKER_BASE_DIR": str(job.base())})
    assert contract_environment(host, num_cpus=1, num_gpus=0)["SM_CHECKPOINT_DIR"] == "/checkpoints"
