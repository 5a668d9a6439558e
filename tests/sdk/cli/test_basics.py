"""Help, version, completion, mistakes in the call, and short names of jobs."""

import json
import subprocess
import sys
import threading
import time

import click
import pytest

from herringbone.cli.__main__ import _VERBS, GROUP, main
from herringbone.cli.jobs.download import parse_words
from herringbone.records.index import JobIndex, JobRecord


@pytest.fixture
def jobs(home):
    """Three finished jobs, the newest last."""
    home.make()
    plan = json.dumps({"hosts": [], "channels": [], "hyperparameters": {}})
    for created, name in enumerate(["digits-1", "digits-2", "train-3"]):
        row = JobRecord(name=name, backend="local_process", plan=plan, created=float(created), status="Completed")
        JobIndex(home.index).add(row)


def commands(command=GROUP, path=()):
    """Yield every command with its words."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from commands(command.get_command(context, name), (*path, name))


@pytest.mark.parametrize("path", [path for path, _ in commands()], ids=" ".join)
def test_every_command_has_help_that_fits(herringbone, path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, err = herringbone(*path, "--help")
    assert [line for line in out.splitlines() if len(line) > 80] == []
    assert (code, err) == (0, "")
    assert out.startswith(f"Usage: {' '.join(('herringbone', *path))}")
    assert herringbone("help", *path) == (code, out, err)


def test_every_command_that_shows_something_takes_json():
    without = {" ".join(path) for path, command in commands() if "as_json" not in {p.name for p in command.params}}
    assert without == {
        "",
        "checkpoint",
        "help",
        "completion",
        "images",
        "hosts",
        "page",
        "partition",
        "serve",
        "serve keys",
        "shell",
        "tune",
    }


def test_herringbone_alone_shows_its_help(herringbone):
    code, out, err = herringbone()
    assert (code, out, err) == herringbone("--help")
    assert (code, err) == (0, "")
    assert [verb for verb in _VERBS if f"\n  {verb} " not in out] == []


def test_the_version(herringbone):
    code, out, _ = herringbone("--version")
    assert code == 0
    assert out.startswith("herringbone 0.")
    module = [sys.executable, "-m", "herringbone", "--version"]
    assert subprocess.run(module, capture_output=True, text=True, check=True).stdout == out


@pytest.mark.parametrize(
    ("words", "usage", "message"),
    [
        (["stpo"], "herringbone [", "No such command 'stpo'. Did you mean 'stop'?"),
        (["images", "biuld"], "herringbone images [", "No such command 'biuld'. Did you mean 'build'?"),
        (["help", "lgos"], "herringbone [", "No such command 'lgos'."),
        (["help", "ls", "x"], "herringbone ls [", "herringbone ls has no verbs of its own."),
        (["logs"], "herringbone logs [", "Missing argument 'NAME': write the job's name, its beginning, or --last"),
        (["logs", "a", "--last"], "herringbone logs [", "NAME and --last are two jobs"),
        (["logs", "a", "b"], "herringbone logs [", "Got unexpected extra argument (b)"),
        (["logs", "a", "--rank", "x"], "herringbone logs [", "Invalid value for '--rank': 'x' is not a valid integer"),
        (["ls", "--jso"], "herringbone ls [", "No such option '--jso'. Did you mean '--json'?"),
        (["ls", "--", "--epochs", "3"], "herringbone ls [", "ls takes no arguments after --"),
        (["run"], "herringbone run [", "Missing argument 'job.yaml|script'."),
        (["run", "t.py", "--instance-cuont", "2"], "herringbone run [", "Did you mean --instance-count?"),
        (
            ["run", "t.py", "--env", "A=b c", "--epochs=3", "-n", "2"],
            "herringbone run [",
            "No such option '--epochs'. What the script takes comes after `--`: "
            "herringbone run t.py --env 'A=b c' -- --epochs=3 -n 2",
        ),
        (["run", "--lanes", "w/train.py", "x"], "herringbone run [", "`--`: herringbone run w/train.py -- --lanes x"),
        (["run", "--epochs", "3"], "herringbone run [", "`--`: herringbone run SCRIPT -- --epochs 3"),
        (["plan", "t.py", "-n", "3"], "herringbone plan [", "`--`: herringbone plan t.py -- -n 3"),
    ],
)
def test_a_mistake_shows_the_usage_of_the_verb(herringbone, jobs, words, usage, message):
    code, out, err = herringbone(*words)
    assert (code, out) == (2, "")
    first, *_, line, last = err.splitlines()
    assert first.startswith(f"Usage: {usage}")
    assert line.startswith("herringbone: ")
    assert message in line
    assert last.startswith("Try 'herringbone ")


def test_a_group_without_an_action_shows_its_help_as_a_mistake(herringbone):
    code, out, err = herringbone("images")
    assert (code, out) == (2, "")
    assert err.startswith("Usage: herringbone images")


@pytest.mark.parametrize("word", ["t", "train-3", "-"])
def test_a_job_has_a_short_name(herringbone, jobs, word):
    assert json.loads(herringbone("describe", word, "--json")[1])["TrainingJobName"] == "train-3"


def test_the_newest_job_has_a_flag(herringbone, jobs):
    assert json.loads(herringbone("describe", "--last", "--json")[1])["TrainingJobName"] == "train-3"


def test_a_short_name_of_two_jobs_is_refused(herringbone, jobs):
    code, out, err = herringbone("stop", "dig")
    assert (code, out) == (2, "")
    assert err == ("herringbone: 2 jobs have names that begin with 'dig': digits-2, digits-1; write more of the name\n")


@pytest.mark.parametrize("verb", ["logs", "describe", "stop", "download", "repack"])
def test_an_empty_name_is_no_job(herringbone, jobs, monkeypatch, verb):
    """A script's unset variable must not be the beginning of every name."""
    monkeypatch.delenv("AWS_REGION", raising=False)
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    code, out, err = herringbone(verb, "")
    assert (code, out) == (2, "")
    assert err.startswith("herringbone: no job '' in ")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_a_script(herringbone, shell):
    code, out, _ = herringbone("completion", shell)
    assert code == 0
    assert f"_HERRINGBONE_COMPLETE={shell}_complete" in out


@pytest.mark.parametrize(
    ("typed", "completions"),
    [
        ("herringbone lo", ["logs"]),
        ("herringbone logs di", ["digits-2", "digits-1"]),
        ("herringbone images pu", ["push"]),
        ("herringbone run --framework py", ["pytorch"]),
        ("herringbone describe x", []),
    ],
)
def test_the_shell_completes_verbs_flags_and_jobs(herringbone, jobs, monkeypatch, typed, completions):
    monkeypatch.setenv("_HERRINGBONE_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", typed)
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split()) - 1))
    assert [line.partition(",")[2] for line in herringbone()[1].split()] == completions


@pytest.mark.parametrize(("typed", "part"), [("modle", "model"), ("outputs", "output"), ("log", "logs")])
def test_a_part_that_is_misspelt_names_no_folder(herringbone, jobs, typed, part):
    code, _, err = herringbone("download", "digits-1", typed)
    assert (code, f"'{typed}': did you mean {part}? Write ./{typed} for a folder" in err) == (2, True)
    assert parse_words((f"./{typed}",)) == ("model", f"./{typed}")


def test_help_loads_no_verb_and_a_pipe_no_library_for_tables(jobs):
    code = (
        "import sys; from herringbone.cli.__main__ import main; main(['--help']); print(*sys.modules);"
        "main(['ls']); print('rich' in sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()
    assert shown[-1] == "False"
    (loaded,) = [line.split() for line in shown if line.startswith("sys ")]
    assert not {"rich", "sqlite3", "yaml", "msgspec", "herringbone.cli.train.run"} & set(loaded)


def test_a_command_waits_for_results_and_says_so_when_that_takes_a_while(capsys):
    """Python's exit would refuse the threads that such a thread needs."""
    done = threading.Event()
    threads = [
        threading.Thread(target=done.wait, name="results of job digits-1"),
        threading.Thread(target=time.sleep, args=(0.1,), name="results of job digits-2"),
    ]
    for thread in threads:
        thread.start()
    command = threading.Thread(target=main, args=(["--version"],))
    command.start()
    while "digits-1" not in (said := capsys.readouterr().err):
        time.sleep(0.05)
    assert (said, command.is_alive()) == ("herringbone: fetching the results of job digits-1\n", True)
    done.set()
    command.join()
    assert not any(thread.is_alive() for thread in threads)


@pytest.mark.parametrize(
    ("verb", "instance_type", "message"),
    [
        *((verb, "local", "no container engine answers") for verb in ("run", "plan")),
        *((verb, "slurm:gpu", "sinfo is not on") for verb in ("run", "plan")),
        # A plan asks no machine.
        ("run", "ssh:hosts.yaml", "no such host"),
    ],
)
def test_a_platform_that_is_not_there_is_a_mistake_in_the_call(
    herringbone, tmp_path, monkeypatch, verb, instance_type, message
):
    """Code 1 says that a job failed, and none was started."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere")
    (tmp_path / "train.py").touch()
    (tmp_path / "hosts.yaml").write_text("hosts: [{name: no-such-host.invalid}]")
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "ssh").symlink_to("/usr/bin/ssh")
    monkeypatch.setenv("PATH", str(programs))
    code, _, err = herringbone(verb, "train.py", "-o", f"instance_type={instance_type}")
    assert (code, message in err) == (2, True), err
