"""The command line, with the real supervisor where a job runs."""

import json
import subprocess
import sys

import pytest

from herringbone.cli.__main__ import main
from herringbone.cli.common import exit_code
from herringbone.cli.train.request import parse_script_arguments
from herringbone_contract.errors import OptionError
from herringbone_contract.hyperparameters import arguments, decode_values, encode_values

START = "job a: starting on local_process (follow it elsewhere: herringbone logs -f a)\n"
JOB_FILE = """
framework: pytorch
entry_point: train.py
source_dir: src
instance_type: local_process
instance_count: 2
distribution: {mpi: {enabled: true, processes_per_host: 2}}
hyperparameters: {epochs: 3, lr: 0.1}
environment: {MODE: fast}
inputs:
  training: data
  test: {s3_data: data, distribution: ShardedByS3Key}
max_run: 60
"""


@pytest.fixture
def job_file(script):
    script("print('x')", name="job/src/train.py")
    for part in (1, 2):
        script(str(part), name=f"job/data/part-{part}")
    return script(JOB_FILE, name="job/job.yaml")


@pytest.mark.parametrize(
    ("words", "hyperparameters"),
    [
        ([], {}),
        (["--epochs", "3", "--name=run", "-k", "v"], {"epochs": 3, "name": "run", "k": "v"}),
        (["--shift", "-0.5", "-n=2"], {"shift": -0.5, "n": 2}),
        (["--eq", "a=b", "--path=/a=b", "--empty="], {"eq": "a=b", "path": "/a=b", "empty": ""}),
    ],
)
def test_script_arguments_are_hyperparameters(words, hyperparameters):
    assert parse_script_arguments(words) == hyperparameters


@pytest.mark.parametrize(
    "text",
    [
        *(
            "3",
            "-3",
            "0.1",
            "1.10",
            "1e-3",
            "1E5",
            "007",
            "-0",
            "12345678901234567890",
            "0.1234567890123456789",
            "1e999",
        ),
        *(
            "true",
            "True",
            "null",
            "None",
            "NaN",
            "Infinity",
            "[1,2]",
            '{"a": 1}',
            '"quoted"',
            "1.2.3",
            "a b",
            "",
            "1_000",
        ),
    ],
)
def test_a_script_gets_each_argument_as_it_was_typed(text):
    encoded = encode_values(parse_script_arguments([f"--name={text}"]))
    assert arguments(decode_values(encoded)) == ["--name", text]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--epochs", "3", "data"], "'data': hyperparameters have names; write --name data"),
        (["--fast"], "--fast: has no value, and a hyperparameter always has one"),
        (["--fast", "--epochs", "3"], "--fast: has no value"),
        (["--minus", "-x"], "--minus: has no value"),
        (["--n", "20"], "--n: a name of one letter reaches the script as -n; write -n, and let"),
        (["-name", "run"], "-name: a name of several letters reaches the script as --name; write --name, and"),
        (["--epochs", "3", "--epochs", "5"], "--epochs: stands twice"),
        (["--my name", "3"], "'my name': "),
        (["--my\tname=3"], "a name has no white space"),
    ],
)
def test_script_arguments_that_would_arrive_as_something_else_are_refused(words, message):
    with pytest.raises(OptionError) as caught:
        parse_script_arguments(words)
    assert message in str(caught.value)


def test_plan_of_a_job_file(herringbone, job_file, monkeypatch):
    code, out, _ = herringbone("plan", str(job_file), "--json", "--job-name", "a", "--", "--epochs", "5")
    plan = json.loads(out)
    assert code == 0
    assert (plan["job_name"], plan["estimator"], plan["launcher"]) == ("a", "PyTorch", "mpi")
    assert [host["ranks"] for host in plan["hosts"]] == [2, 2]
    assert (plan["hyperparameters"]["epochs"], plan["hyperparameters"]["lr"]) == ("5", "0.1")
    assert [(channel["name"], channel["path"]) for channel in plan["channels"]] == [
        ("test", str(job_file.parent / "data")),
        ("training", str(job_file.parent / "data")),
    ]
    assert plan["options"] == {"environment": {"MODE": "fast"}, "max_run": 60}


def test_plan_of_a_script_with_flags(herringbone, script, monkeypatch):
    script("")
    script("", name="data/x")
    monkeypatch.setenv("FROM_HERE", "1")
    flags = "--instance-count 2 --processes-per-host 3 --input data --input test=data --env FROM_HERE --env B=2"
    _, out, _ = herringbone("plan", "train.py", *flags.split(), "-o", "max_run=60", "-o", "tags={a: b}", "--json")
    plan = json.loads(out)
    assert plan["estimator"] == "Estimator"
    assert [host["ranks"] for host in plan["hosts"]] == [3, 3]
    assert [channel["name"] for channel in plan["channels"]] == ["test", "training"]
    assert plan["options"] == {"environment": {"FROM_HERE": "1", "B": "2"}, "max_run": 60, "tags": {"a": "b"}}


def test_plan_reads_for_people(herringbone, script):
    script("")
    code, out, _ = herringbone("plan", "train.py", "--", "--epochs", "3")
    assert code == 0
    assert "hyperparameter:    epochs = 3" in out.splitlines()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan", "gone.py"], "entry_point:"),
        (["plan", "gone.yaml"], "gone.yaml: No such file or directory"),
        (["plan", "t.py", "-o", "max_runs=3"], "max_runs: no such option; did you mean max_run?"),
        (["plan", "t.py", "-o", "max_run"], "--option max_run: write NAME=VALUE"),
        (["plan", "t.py", "--env", "NOT_SET_HERE"], "--env NOT_SET_HERE: not set here"),
        (["plan", "t.py", "--distribution", "{mpi: [}"], "--distribution: cannot be read as YAML or JSON"),
        (["plan", "t.py", "--instance-type", "pbs:x"], "this release has no backend for it"),
        (["describe", "gone"], "no job 'gone' in"),
        (["stop", "gone"], "no job 'gone' in"),
        (["logs", "gone"], "no job 'gone' in"),
    ],
)
def test_a_mistake_is_one_clear_message_and_exit_code_2(herringbone, script, arguments, message):
    script("", name="t.py")
    code, out, err = herringbone(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("herringbone: ")
    assert message in err
    assert "Traceback" not in err


def test_debug_shows_the_traceback(herringbone, script, monkeypatch):
    monkeypatch.setenv("HERRINGBONE_DEBUG", "1")
    with pytest.raises(LookupError):
        main(["describe", "gone"])


def test_arguments_after_dashes_belong_to_run_and_plan(herringbone):
    code, _, err = herringbone("ls", "--", "--epochs", "3")
    assert code == 2
    assert err.startswith("Usage: herringbone ls [OPTIONS]\nherringbone: ls takes no arguments after --\n")


def test_ls_without_jobs(herringbone, home):
    none = f"no job has run yet in {home.path}\n"
    assert herringbone("ls", "--json") == (0, "[]\n", none)
    assert herringbone("ls")[1].split() == ["NAME", "STATUS", "CREATED", "SECONDS", "HOSTS"]


def test_ls_of_a_home_that_is_none(herringbone, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    for name, reason in (("file", "Not a directory"), ("x" * 300, "File name too long")):
        monkeypatch.setenv("HERRINGBONE_HOME", str(tmp_path / name))
        code, _, err = herringbone("ls")
        assert (code, err.rpartition(": ")[2]) == (2, f"{reason}; set HERRINGBONE_HOME to a folder\n")


@pytest.mark.e2e
def test_run_ls_logs_and_describe(herringbone, script):
    script("import os, sys; print(sys.argv[1:]); print('rank', os.environ['RANK'])")
    code, out, err = herringbone("run", "train.py", "--job-name", "a", "--", "--epochs", "3")
    assert (code, err) == (0, START)
    lines = out.splitlines()
    assert lines[:2] == ["[algo-1:0] ['--epochs', '3']", "[algo-1:0] rank 0"]
    assert lines[2].startswith("job a: Completed after ")
    assert herringbone("ls")[1].splitlines()[1].split()[:2] == ["a", "Completed"]
    assert [row["TrainingJobStatus"] for row in json.loads(herringbone("ls", "--json")[1])] == ["Completed"]
    assert herringbone("logs", "a", "--rank", "0")[1].splitlines() == lines[:2]
    assert herringbone("logs", "a", "--rank", "1")[1] == ""
    (first, _) = [json.loads(line) for line in herringbone("logs", "a", "--json", "-f")[1].splitlines()]
    assert (first["host"], first["rank"], first["text"]) == ("algo-1", 0, "['--epochs', '3']")
    assert json.loads(herringbone("describe", "a", "--json")[1])["TrainingJobStatus"] == "Completed"
    assert "TrainingJobStatus: Completed" in herringbone("describe", "a")[1].splitlines()
    assert json.loads(herringbone("stop", "a", "--json")[1])["TrainingJobStatus"] == "Completed"


@pytest.mark.e2e
def test_a_failing_job_is_exit_code_1(herringbone, script):
    script("raise ValueError('bad batch')")
    code, _, err = herringbone("run", "train.py", "--job-name", "a")
    assert code == 1
    assert err.startswith(f"{START}herringbone: job a failed: rank 0 on algo-1: ValueError: bad batch (exit code 1)")
    assert herringbone("run", "train.py", "--job-name", "a")[0] == 2  # taken
    followed, _, err = herringbone("logs", "-f", "a")
    assert followed == 1
    assert err.startswith("herringbone: job a failed: rank 0 on algo-1: ValueError: bad batch (exit code 1)")


@pytest.mark.e2e
def test_a_job_that_ran_out_of_time_is_exit_code_4(herringbone, script, home):
    script("import os, time; open(os.environ['SM_CHECKPOINT_DIR'] + '/1', 'w').close(); time.sleep(60)")
    code, _, err = herringbone("run", "train.py", "--job-name", "a", "-o", "max_run=1", "--json")
    assert code == 4
    assert err.splitlines()[-2] == "job a stopped before its end: max_run was over"
    # The script may have written a checkpoint, and left no model.
    checkpoints = home.job("a").host("algo-1") / "checkpoints"
    assert err.splitlines()[-1].startswith("job a: Stopped after ")
    assert err.splitlines()[-1].endswith(f", checkpoints: {checkpoints}")
    assert herringbone("logs", "-f", "a")[0] == 4


@pytest.mark.parametrize(
    ("secondary_status", "code"),
    [
        *(("Completed", 0), ("Failed", 1), ("Stopped", 3), ("Interrupted", 3)),
        *(("MaxRuntimeExceeded", 4), ("MaxWaitTimeExceeded", 4)),
    ],
)
def test_each_end_of_a_job_has_its_exit_code(secondary_status, code):
    assert exit_code(secondary_status) == code


@pytest.mark.e2e
def test_run_as_json_writes_json_alone_to_standard_output(herringbone, script):
    script("print('hello')")
    code, out, err = herringbone("run", "train.py", "--json", "-o", "role=r", "--job-name", "a")
    assert (code, err) == (
        0,
        f"job a: not used by local_process: role\n{START}[algo-1:0] hello\n{err.splitlines()[-1]}\n",
    )
    assert err.splitlines()[-1].startswith("job a: Completed after ")
    assert json.loads(out)["TrainingJobStatus"] == "Completed"
    script("raise SystemExit(3)")
    code, out, _ = herringbone("run", "train.py", "--json")
    assert code == 1
    assert json.loads(out)["FailureReason"].startswith("rank 0 on algo-1: ")


@pytest.mark.e2e
def test_a_detached_job_is_followed_and_stopped(herringbone, script, start_python):
    script("import time; print('ready', flush=True); time.sleep(60)")
    code, out, _ = herringbone("run", "train.py", "--detach", "--job-name", "a")
    assert (code, out) == (0, "a\n")
    follower = start_python(
        "import sys; from herringbone.cli.__main__ import main; sys.exit(main())", "logs", "-f", "a"
    )
    assert follower.stdout.readline() == "[algo-1:0] ready\n"
    assert herringbone("stop", "a", "--grace", "5")[1] == "job a: stopping (its end: herringbone logs -f a)\n"
    assert herringbone("stop", "a", "--wait", "--grace", "5")[1] == "job a: Stopped\n"
    follower.communicate(timeout=10)
    assert follower.returncode == 3
    assert herringbone("logs", "a")[0] == 0  # a printout, which tells nothing about the job


@pytest.mark.e2e
def test_a_closed_pipe_is_no_error(script, herringbone):
    script("for n in range(20000): print('line', n)")
    herringbone("run", "train.py", "--job-name", "a", "--quiet")
    command = f"{sys.executable} -m herringbone.cli logs a | head -1"
    shell = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False)
    assert (shell.returncode, shell.stdout, shell.stderr) == (0, "[algo-1:0] line 0\n", "")
