"""Job files and flags that are wrong: exit code 2 and one line, whatever is wrong with them."""

import json

import pytest

from herringbone.cli.__main__ import main


@pytest.fixture
def plan(capsys, script):
    """Plans with the given words; returns the exit code, and standard output and error."""
    script("", name="t.py")
    script("", name="x=1/file")

    def run(*words):
        code = main(["plan", *words, "--json"])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def is_mistake(result, message):
    code, out, err = result
    assert (code, out) == (2, ""), err
    assert err.startswith("herringbone: ")
    assert message in err
    # One line: the second one is empty.
    assert err.count("\n") == 1


ENTRY = "entry_point: t.py\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("framework: torch\n" + ENTRY, "; did you mean pytorch?"),
        ("framework: pytorsh\n" + ENTRY, "; did you mean pytorch?"),
        ("framework: [pytorch]\n" + ENTRY, "framework: ['pytorch'] is none of"),
        ("- a\n- b", "job.yaml: expected a mapping"),
        ("", "job.yaml: expected a mapping"),
        ("1: a", "job.yaml: expected a mapping"),
        ("a: [", "job.yaml: cannot be read as YAML or JSON"),
        (ENTRY + "entry_point: u.py", "the key 'entry_point' stands twice"),
        ('{"entry_point": "t.py", "max_run": 60, "max_run": 90}', "the key 'max_run' stands twice"),
        ('{"entry_point": "t.py", "hyperparameters": {"lr": NaN}}', "NaN is no number of JSON"),
        (ENTRY + "hyperparameters: {lr: 1e999}", "the number 1e999 is too large"),
        (ENTRY + "hyperparameters: [1]", "hyperparameters: expected a mapping"),
        (ENTRY + "hyperparameters: {1: 2}", "hyperparameters: expected a dict with names as keys"),
        (ENTRY + "output_path: " + "x" * 300, "has a name of more than 255 bytes"),
        (ENTRY + "dependencies: [/tmp" + "/x" * 2_000 + "]", "dependencies: '/tmp/x/x"),
        (ENTRY + "inputs: file://" + "\u00e9" * 200, "channel 'training': "),
        (ENTRY + "environment: x", "environment: expected a mapping"),
        (ENTRY + "environment: {A: 1}", "environment"),
        (ENTRY + "environment: {A: !!timestamp 2026-13-45}", "is not read here"),
        (ENTRY + "inputs: 5", "channel 'training': expected a path"),
        (ENTRY + "inputs: {1: data, a: data}", "channel 1: a name has"),
        (ENTRY + "inputs: {a: null}", "channel 'a': expected a path"),
        (ENTRY + "inputs: {a: {s3: x}}", "inputs: a: "),
        (ENTRY + "inputs: {a: {s3_data: 5}}", "inputs: a: "),
        (ENTRY + 'inputs: {a: "x\\0y"}', "channel 'a'"),
        (ENTRY + "distribution: 5", "distribution: "),
        (ENTRY + "distribution: {mpi: 5}", "distribution.mpi: "),
        (ENTRY + "instance_count: two", "instance_count: expected int, got str"),
        (ENTRY + "instance_count: 010", "instance_count: expected int, got str"),
        (ENTRY + "instance_count: 1.5", "instance_count: expected int, got float"),
        (ENTRY + "instance_type: 5", "instance_type: "),
        (ENTRY + "instance_type: [ml.m5.large]", "instance_type: "),
        ("entry_point: 5", "entry_point: expected a path or name"),
        ('entry_point: "t\\0.py"', "entry_point: "),
        ("entry_point: " + "x" * 300, "has a name of more than 255 bytes"),
        (ENTRY + "source_dir: [src]", "source_dir: expected a path or name"),
        (ENTRY + "max_run: 1:30", "max_run: '1:30' is no time"),
        (ENTRY + "use_spot_instances: yes", "use_spot_instances: expected bool, got str"),
        (ENTRY + "framework_version: 2.10", "framework_version: expected str"),
        (ENTRY + "tags: 5", "tags: "),
        (ENTRY + "metric_definitions: {a: b}", "metric_definitions: "),
        (ENTRY + "self: 1", "self: no such option"),
        (ENTRY + "options: {max_run: 1}", "options: no such option"),
        (ENTRY + "inputs: ''", "channel 'training': the path is empty"),
        (ENTRY + "extra_request: &x {a: *x}", "found unconstructable recursive node"),
        ("[" * 100_000, "nested deeper"),
    ],
)
def test_a_wrong_job_file_is_a_mistake(plan, script, text, message):
    script(text, name="job.yaml")
    is_mistake(plan("job.yaml"), message)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-o", "tags=["], "--option tags: cannot be read"),
        (["-o", "max_run=1", "-o", "max_run=2"], "--option max_run: stands twice"),
        (["-o", "max-run=1", "-o", "max_run=2"], "--option max_run: stands twice"),
        (["-o", "inputs=x"], "--option inputs: use --input"),
        (["-o", "environment={A: b}"], "--option environment: use --env"),
        (["-o", "hyperparameters={a: 1}"], "--option hyperparameters: write them after --"),
        (["-o", "processes_per_host=2"], "--option processes_per_host: use --processes-per-host"),
        (["-o", "entry_point=u.py"], "--option entry_point: "),
        (["-o", "instance_type=local", "--instance-type", "local_process"], "--option instance_type: there is a flag"),
        (["-o", "self=1"], "self: no such option"),
        (["-o", "=1"], "no such option"),
        (["-o", "distribution=5", "--processes-per-host", "2"], "distribution: expected a mapping"),
        (["--distribution", "{mpi: 5}", "--processes-per-host", "2"], "distribution.mpi: expected a mapping"),
        (
            ["--distribution", "torch_distributed", "--processes-per-host", "2"],
            "a host without GPUs; for 2 ranks without GPUs give --instance-count 2",
        ),
        (["--distribution", "{mpi: {enabled: true}, mpi: {}}"], "the key 'mpi' stands twice"),
        (["--distribution", "gone.json"], "gone.json: No such file"),
        (["--distribution", "."], ".: Is a directory"),
        (["--input", "a=x=1", "--input", "a=x=1"], "--input: the channel 'a' stands twice"),
        (["--input", "/y=1"], "channel 'training': /y=1: no such file"),
        (["--input", ""], "--input : write [CHANNEL=]PATH"),
        (["--input", "a="], "--input a=: write [CHANNEL=]PATH"),
        (["--env", "A=1", "--env", "A=2"], "--env A: stands twice"),
        (["--env", "A B=1"], "'A B' is no variable name"),
        (["--env", "=1"], "environment"),
        (["--job-name", ""], "job name"),
        (["--job-name", "a b"], "job name"),
        (["--instance-count", "0"], "instance_count: "),
        (["--processes-per-host", "0"], "processes_per_host"),
        (["--instance-type", ""], "instance_type"),
        (["--source-dir", ""], "source_dir"),
    ],
)
def test_a_wrong_flag_is_a_mistake(plan, words, message):
    is_mistake(plan("t.py", *words), message)


@pytest.mark.parametrize(
    ("word", "name", "path"),
    [
        ("a=x=1", "a", "x=1"),
        ("./x=1", "training", "x=1"),
        ("a=/tmp", "a", "/tmp"),
        ("x=1/file", "x", "1/file"),
        ("./x=1/file", "training", "x=1/file"),
    ],
)
def test_the_channel_of_an_input_ends_at_the_first_equals_sign(script, plan, capsys, word, name, path):
    script("", name="1/file")
    _, out, err = plan("t.py", "--input", word)
    assert err == ""
    (channel,) = json.loads(out)["channels"]
    assert channel["name"] == name
    assert channel["path"].endswith(path)


def test_options_of_text_are_taken_as_they_were_typed(plan):
    _, out, _ = plan("t.py", "-o", "framework_version=2.10", "-o", "role=007", "-o", "max_run=60")
    assert json.loads(out)["options"] == {"framework_version": "2.10", "role": "007", "max_run": 60}


def test_values_of_a_job_file_mean_what_they_say(plan, script):
    script(ENTRY + "hyperparameters: {lr: 1e-3, country: no, since: 2026-01-31, time: 1:30, id: 010}", name="job.yaml")
    _, out, _ = plan("job.yaml")
    values = json.loads(out)["arguments"]["hyperparameters"]
    assert values == {"lr": 0.001, "country": "no", "since": "2026-01-31", "time": "1:30", "id": "010"}


def test_a_job_file_that_is_not_there_is_answered_with_the_nearest_name(plan, script):
    script("", name="job.yaml")
    is_mistake(plan("job.yml"), "job.yml: No such file or directory; did you mean ")
    assert "/job.yaml?" in plan("job.yml")[2]
