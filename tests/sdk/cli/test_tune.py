"""`herringbone tune`: the section of a job file, the verbs over made searches, and one real search."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import re
import struct
import sys
import termios
import time
from types import SimpleNamespace

import msgspec
import pytest
from tests.page.make_tunings import definition_of, make_tuning
from tests.waiting import wait_until

from herringbone.backends.lifecycle import WATCHER_DIED
from herringbone.backends.removal import remove_jobs
from herringbone.cli.__main__ import main
from herringbone.cli.train.tune import tuner_settings
from herringbone.cli.train.tuning_progress import TuningProgress
from herringbone.cli.train.tuning_section import tuner_arguments
from herringbone.records.index import JobIndex
from herringbone.tuner.look import trial_line
from herringbone.tuner.parameters import CategoricalParameter, ContinuousParameter, IntegerParameter
from herringbone.tuner.store import TuningStore
from herringbone.views.page.tunings import tuning_data
from herringbone.views.tunings.looks import Tunings
from herringbone_contract.errors import OptionError
from herringbone_contract.failure import Failure

SECTION = {"objective_metric_name": "accuracy", "hyperparameter_ranges": {"lr": {"continuous": [0.1, 0.9]}}}
SCRIPT = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--epochs", type=int)
arguments, _ = parser.parse_known_args()
print(f"accuracy={1 - abs(arguments.lr - 0.5):.4f} epochs={arguments.epochs}")
"""
JOB = """
entry_point: train.py
hyperparameters: {epochs: 1}
metric_definitions: [{Name: accuracy, Regex: "accuracy=([0-9.]+)"}]
tuning:
  objective_metric_name: accuracy
  hyperparameter_ranges: {lr: {continuous: [0.1, 0.9]}}
  strategy: Random
  max_jobs: 2
  max_parallel_jobs: 2
"""


@pytest.fixture
def tune(capsys):
    def run(*words):
        code = main(["tune", *words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def digits(home):
    home.make()
    make_tuning(home, definition_of("digits-1", max_jobs=6), time.time() - 500, over=6)
    store = make_tuning(home, definition_of("digits-2", max_jobs=8), time.time(), over=5, running=1)
    # A searcher holds it.
    with store.locked():
        yield store


def test_a_section_becomes_the_arguments_of_the_tuner():
    ranges = {
        "lr": {"continuous": [1e-4, 0.1], "scaling_type": "Logarithmic"},
        "layers": {"integer": [1, 6]},
        "optimizer": ["sgd", "adam"],
        "batch": {"categorical": [32, 64]},
    }
    arguments = tuner_arguments({
        "objective_metric_name": "loss", "objective_type": "Minimize", "hyperparameter_ranges": ranges, "max_jobs": 5,
        "strategy": "Hyperband", "strategy_config": {"max_resource": 9},
        "completion_criteria_config": {"target_objective_metric_value": 0.1},
        "warm_start_config": {"type": "TransferLearning", "parents": ["digits-1"]},
    })  # fmt: skip
    assert arguments["hyperparameter_ranges"] == {
        "lr": ContinuousParameter(1e-4, 0.1, "Logarithmic"),
        "layers": IntegerParameter(1, 6),
        "optimizer": CategoricalParameter(["sgd", "adam"]),
        "batch": CategoricalParameter(["32", "64"]),
    }
    assert arguments["strategy_config"].hyperband_strategy_config.max_resource == 9
    assert arguments["completion_criteria_config"].target_objective_metric_value == 0.1
    assert arguments["warm_start_config"].parents == {"digits-1"}
    assert (arguments["objective_type"], arguments["max_jobs"]) == ("Minimize", 5)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ([], "tuning: expected a mapping"),
        ({"max_job": 3}, "tuning.max_job: no such key; did you mean max_jobs?"),
        ({"resource_name": "epochs"}, "tuning.resource_name: no such key; it belongs into tuning.strategy_config"),
        ({"hyperparameter_ranges": {"lr": 3}}, "ranges.lr: 3 is no range; write {continuous: "),
        ({"hyperparameter_ranges": {"lr": {"min": 1}}}, "names no kinds of range"),
        ({"hyperparameter_ranges": {"lr": {"integer": [1, 2], "continuous": [1, 2]}}}, "names 2 kinds"),
        ({"hyperparameter_ranges": {"lr": {"integer": 3}}}, "lr.integer: 3 is no pair; write integer: [low, high]"),
        ({"hyperparameter_ranges": {"lr": {"continuous": [2, 1]}}}, "lr: ContinuousParameter(2, 1"),
        ({"hyperparameter_ranges": {"lr": {"integer": [1, 2], "scaling": "x"}}}, "did you mean scaling_type?"),
        ({"hyperparameter_ranges": {"lr": {"categorical": [1], "scaling_type": "x"}}}, "lr.scaling_type: no such key"),
        ({"strategy_config": {"max_resources": 3}}, "did you mean max_resource?"),
        ({"hyperparameter_ranges": {"lr": {"integer": [1, 2], "scaling_type": "Logarithm"}}}, "mean 'Logarithmic'?"),
        ({"warm_start_config": {"type": "TransferLearn", "parents": ["a"]}}, "did you mean 'TransferLearning'?"),
        ({"warm_start_config": {"type": "x", "parents": ["a"]}}, "type: 'x' is none of IdenticalDataAndAlgorithm"),
    ],
)
def test_a_wrong_section_says_where_and_what_to_write(section, message):
    with pytest.raises(OptionError) as error:
        tuner_arguments(section)
    assert message in str(error.value)


def test_flags_override_the_section():
    arguments = tuner_settings(None, {**SECTION, "max_jobs": 3}, {"max_jobs": 7, "strategy": None})
    assert (arguments["max_jobs"], "strategy" in arguments) == (7, False)
    assert tuner_settings({"tuning": SECTION}, None, {}) == tuner_settings(SECTION, None, {})


@pytest.mark.parametrize(
    ("section", "from_file", "message"),
    [
        (SECTION, SECTION, "the job file has a section tuning as well"),
        (None, None, "nothing says what to search; add the section tuning"),
        ({"max_jobs": 3}, None, "tuning.objective_metric_name: missing"),
    ],
)
def test_one_place_describes_the_search(section, from_file, message):
    with pytest.raises(OptionError, match=message):
        tuner_settings(section, from_file, {})


def test_ls_shows_searches_with_their_best(tune, digits):
    code, out, _ = tune("ls")
    assert code == 0
    newest, oldest = out.splitlines()[1:]
    assert newest.split()[:2] == ["digits-2", "InProgress"]
    assert "5 of 8" in newest
    assert "test_accuracy 0.9129  digits-2-002" in newest
    assert oldest.split()[:2] == ["digits-1", "Completed"]
    [first, _] = json.loads(tune("ls", "--json")[1])
    assert first["HyperParameterTuningJobName"] == "digits-2"
    assert first["TrainingJobStatusCounters"] == {
        "Completed": 3,
        "InProgress": 1,
        "Stopped": 1,
        "NonRetryableError": 1,
        "RetryableError": 0,
    }
    assert first["BestTrainingJob"]["TrainingJobName"] == "digits-2-002"


def test_show_has_a_row_for_each_trial(tune, digits):
    code, out, _ = tune("show", "digits-2")
    assert code == 0
    assert out.startswith(
        "digits-2: InProgress, Random: 5 of 8 trials, 1 running, 1 stopped, 1 failed, best test_accuracy"
    )
    assert "momentum 0.99 and nesterov" in out
    assert [line.split()[0] for line in out.splitlines()[3:]] == [f"digits-2-00{number}" for number in range(1, 7)]
    assert tune("show", "-", "--by-result")[1].splitlines()[3].split()[0] == "digits-2-002"
    description = json.loads(tune("show", "digits-2", "--json")[1])
    assert description["HyperParameterTuningJobStatus"] == "InProgress"
    assert description["Trials"][2]["status"] == "Failed"


def test_a_search_that_was_killed_says_everywhere_what_goes_on(tune, home):
    home.make()
    make_tuning(home, definition_of("digits", max_jobs=8), time.time(), over=5, running=2)
    # A job that was killed with the search, and one that runs without it.
    JobIndex(home.index).fail("digits-006", Failure(message=f"{WATCHER_DIED}: its log is empty"))
    why = "no process searches any more; `herringbone tune attach digits` goes on"
    _, out, _ = tune("ls")
    assert re.search(r" 5 of 8  -  ", out)
    assert out.endswith(f"digits: {why}\n")
    _, out, _ = tune("show", "digits")
    assert out.splitlines()[0].startswith(
        "digits: InProgress, Random: 5 of 8 trials, 1 running, 1 stopped, 1 failed, 1 p"
    )
    assert out.splitlines()[1] == why
    assert [line.split()[1] for line in out.splitlines()[-2:]] == ["Proposed", "InProgress"]
    [listed] = json.loads(tune("ls", "--json")[1])
    shown = json.loads(tune("show", "digits", "--json")[1])
    assert listed["Herringbone"]["Reason"] == shown["Herringbone"]["Reason"] == why
    assert shown["TrainingJobStatusCounters"]["InProgress"] == 1
    look = Tunings(home).get("digits")
    assert (look.reason, look.summary(now=time.time()).eta) == (why, None)
    row = tuning_data(look, {}, {}, now=time.time())
    assert (row["why"], row["eta"], row["trials"][5]["state"], row["trials"][5]["seconds"]) == (
        why,
        None,
        "Proposed",
        None,
    )


def test_a_first_trial_without_the_objective_is_named_at_once(tune, home):
    home.make()
    store = make_tuning(home, definition_of("digits", metric="lossss", max_jobs=8), time.time(), over=0, running=2)
    store.add_end(msgspec.structs.replace(store.trials()[0], status="Completed", ended=time.time()))
    with store.locked():
        assert "none of 1 training jobs reported the objective metric 'lossss'; let " in tune("show", "digits")[1]
    assert trial_line(store.record().definition, store.trials()[0]).startswith(
        "trial 1: job digits-001: Completed without a value of 'lossss' (lr="
    )


def test_best_shows_job_and_values(tune, digits):
    code, out, _ = tune("best", "digits-2")
    rows = dict(line.split(maxsplit=1) for line in out.splitlines())
    assert (code, rows["job"], rows["test_accuracy"], rows["optimizer"]) == (0, "digits-2-002", "0.9129", "sgd")
    described = json.loads(tune("best", "digits-2", "--json")[1])
    assert described["TrainingJobName"] == "digits-2-002"
    assert described["TunedHyperParameters"]["optimizer"] == "sgd"


def test_rm_removes_searches_with_their_trials(tune, home):
    home.make()
    now = time.time()
    old = make_tuning(home, definition_of("old", max_jobs=3), now - 1000, over=3)
    make_tuning(home, definition_of("running", max_jobs=8), now, over=2, running=1)
    remove_jobs(["old-002"])
    code, out, err = tune("rm", "running")
    assert (code, out) == (2, "")
    assert "running cannot be removed: it is not over: stop it first (`herringbone tune stop running`)" in err
    assert "Nobody can be asked here: add --yes to remove these tuning jobs" in tune("rm", "ol")[2]
    assert tune("rm", "../jobs", "--yes")[0] == 2
    assert tune("rm", "--older-than", "1h")[1] == "freed 0 bytes of 0 tuning jobs\n"
    [planned] = json.loads(tune("rm", "--older-than", "5m", "--dry-run", "--json")[1])
    assert (planned["name"], planned["elsewhere"], planned["size"] > 0) == ("old", "with 2 jobs of trials", True)
    assert old.exists
    code, out, _ = tune("rm", "old")
    assert (code, out.splitlines()[-1].split(" of ")[1]) == (0, "1 tuning job")
    assert [path.name for path in home.tunings.iterdir()] == ["running"]
    assert {name[:7] for name in JobIndex(home.index).names()} == {"running"}


def test_best_says_that_its_job_was_removed(tune, digits):
    remove_jobs(["digits-2-002"])
    code, out, _ = tune("best", "digits-2")
    rows = dict(line.split(maxsplit=1) for line in out.splitlines())
    assert (code, rows["job"]) == (0, "digits-2-002 was removed, with its log and its model")
    assert rows["optimizer"] == "sgd"
    assert json.loads(tune("best", "digits-2", "--json")[1])["Removed"] is True


def test_best_of_a_search_without_results_is_an_error_code(tune, home):
    home.make()
    make_tuning(home, definition_of("digits"), time.time(), over=0, running=1)
    code, out, err = tune("best", "digits")
    assert (code, out) == (1, "")
    assert "no trial with a result yet" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["lss"], "No such command 'lss'. Did you mean 'ls'?"),
        (["ls", "--", "--epochs", "3"], "tune ls takes no arguments after --"),
        (["show", "digits"], "2 tuning jobs have names that begin with 'digits'"),
        (["gone.py"], "nothing says what to search"),
        (["gone.yaml"], "gone.yaml: No such file"),
    ],
)
def test_mistakes_in_the_call(tune, digits, words, message):
    code, _, err = tune(*words)
    assert code == 2
    assert message in err


def test_run_refuses_a_file_that_describes_a_search(home, capsys):
    job_file()
    assert main(["run", "job.yaml"]) == 2
    assert "job.yaml describes a search: herringbone tune job.yaml" in capsys.readouterr().err


def job_file():
    with open("train.py", "w") as script, open("job.yaml", "w") as file:
        script.write(SCRIPT)
        file.write(JOB)


def test_plan_shows_the_search_and_a_trial(tune, home):
    job_file()
    code, out, _ = tune("plan", "job.yaml", "--max-jobs", "7", "--", "--epochs", "4")
    assert code == 0
    rows = dict(line.split("  ", 1) for line in out.splitlines()[1:8])
    assert (rows["objective"].strip(), rows["max_jobs"].strip()) == ("Maximize accuracy", "7")
    assert "lr = 0.5\n" in out
    assert "epochs = 4\n" in out
    assert not home.tunings.exists()
    planned = json.loads(tune("plan", "job.yaml", "--seed", "5", "--json")[1])
    assert (planned["Tuning"]["seed"], planned["Trial"]["hyperparameters"]["epochs"]) == (5, "1")


def test_plan_refuses_a_value_for_what_is_searched(tune, home):
    job_file()
    code, _, err = tune("plan", "job.yaml", "--", "--lr", "0.1")
    assert code == 2
    assert "hyperparameters: 'lr' has a value, and a range in tuning.hyperparameter_ranges; leave one" in err


def test_plan_notes_an_objective_that_no_definition_finds(tune, home):
    job_file()
    assert "the group of Regex 'accuracy=([0-9.]+)' does not take all of 2e-05" in tune("plan", "job.yaml")[1]
    with open("job.yaml", "w") as file:
        file.write(JOB.replace("objective_metric_name: accuracy", "objective_metric_name: acuracy"))
    _, out, _ = tune("plan", "job.yaml")
    assert "'acuracy' is none of the metric_definitions' names (accuracy); unless the script sends it itself" in out
    assert "did you mean 'accuracy'?" in out


def test_a_search_runs_its_trials_and_shows_them(tune, home):
    job_file()
    code, out, err = tune("job.yaml", "--seed", "5", "--job-name", "search")
    assert code == 0
    assert "tuning job search" in err
    lines = sorted(out.splitlines())
    assert [line.split(": Completed")[0] for line in lines] == [
        "trial 1: job search-001", "trial 2: job search-002", "tuning job search",
    ]  # fmt: skip
    trials = TuningStore(home.tuning("search")).trials()
    assert [round(1 - abs(trial.values["lr"] - 0.5), 4) for trial in trials] == [trial.objective for trial in trials]
    code, out, _ = tune("attach", "search", "--json")
    assert (code, json.loads(out)["HyperParameterTuningJobStatus"]) == (0, "Completed")
    assert tune("stop", "search")[1] == "tuning job search: Completed\n"


class Terminal(io.StringIO):
    """A terminal, which has 40 columns; what is written is kept and not shown."""

    def __init__(self, descriptor):
        super().__init__()
        self._descriptor = descriptor
        fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("4H", 20, 40, 0, 0))

    def isatty(self):
        return True

    def fileno(self):
        return self._descriptor


@pytest.fixture
def terminal():
    ends = pty.openpty()
    yield Terminal(ends[1])
    for end in ends:
        os.close(end)


def test_a_terminal_has_the_state_below_the_lines(monkeypatch, digits, terminal):
    monkeypatch.setenv("TERM", "xterm")
    store, stream = digits, terminal
    tuning = SimpleNamespace(definition=lambda: store.record().definition, trials=store.trials)
    with TuningProgress(tuning, stream) as progress:
        wait_until(lambda: "running" in stream.getvalue(), 20)
        progress.say("trial 5 is over")
    shown = stream.getvalue()
    assert "5 of 8 trials, 1 running, 1 stopped, " in shown
    assert "\r\x1b[2Ktrial 5 is over\n5 of 8 trials" in shown
    assert shown.endswith("\r\x1b[2K")
    pipe = io.StringIO()
    with TuningProgress(tuning, pipe) as progress:
        progress.say("a line\x1b[2J")
    assert pipe.getvalue().count("\n") == 1
    assert "\x1b" not in pipe.getvalue()


def test_a_trial_that_diverged_leaves_json_readable(tune, digits):
    with (digits.path / "trials.jsonl").open("ab") as file:
        file.write(b'{"kind":"ended","number":5,"status":"Completed","t":1.0,"objective":"nan","curve":["nan"]}\n')

    def refuse(constant):
        pytest.fail(f"{constant} is no JSON")

    description = json.loads(tune("show", "digits-2", "--json")[1], parse_constant=refuse)
    assert description["Trials"][5]["objective"] is None


def test_a_name_is_found_without_asking_sagemaker(tune, digits, home, monkeypatch):
    # All searches are looked at by this module alone.
    monkeypatch.setitem(sys.modules, "herringbone.views.tunings.looks", None)
    assert tune("show", "digits-1")[0] == 0
    assert tune("show", "-")[1].startswith("digits-2")
