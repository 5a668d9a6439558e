"""Plans with predictions: measured once, asked with what the user wants to know."""

import io
import json
import os
import time
from pathlib import Path

import msgspec
import pytest

from herringbone import Estimator, MeasurementError, PyTorch, TensorFlow
from herringbone.api.planning import plan_request
from herringbone.plan import request as requests
from herringbone.prediction.estimating import chosen, predicted
from herringbone.prediction.hosts import MachineFigures
from herringbone.prediction.options import Measure, WhatIf
from herringbone.prediction.questions import changed
from herringbone.system.progress import Progress
from herringbone_contract.errors import InputError, OptionError, UnsupportedError
from herringbone_contract.prediction.devices import device_named

QUIET = Progress(io.StringIO())


@pytest.fixture
def plan(script):
    script("print(1)")
    return PyTorch("train.py", instance_type="local_process", hyperparameters={"epochs": 3}).plan


def measured(forecaster, plan, **settings):
    return forecaster.measured(plan, Measure(**settings), progress=QUIET).prediction


def test_a_plan_is_measured_once(forecaster, plan, notes):
    first = measured(forecaster, plan())
    assert measured(forecaster, plan()) == first
    assert (len(notes("measured")), len(notes("timed")), len(notes("asked"))) == (1, 1, 1)
    assert first.planned.step.seconds.expected == 1.0
    # The script may have written them.
    assert first.notes == (r"from a\x9b2J stand-in", r"one\x1b[2J note")


def test_steps_timed_on_a_busy_machine_are_timed_again_on_a_quiet_one(forecaster, plan, notes, folder):
    (folder / "behaviour").write_text("busy")
    (folder / "load").write_text("4")
    # A machine that is still as busy gives no better times.
    assert [measured(forecaster, plan()) and len(notes("timed")) for _ in range(2)] == [1, 1]
    (folder / "load").write_text("3.9")
    assert forecaster.known(plan()).prediction is not None
    assert len(notes("timed")) == 1
    (folder / "behaviour").unlink()
    assert [measured(forecaster, plan()) and len(notes("timed")) for _ in range(2)] == [2, 2]
    # Other times are another answer, and the same ones the same.
    assert len(notes("asked")) == 2


@pytest.mark.parametrize(
    ("ranks", "settings", "threads"),
    [
        (1, {}, "0"),
        (2, {}, "2"),
        (8, {}, "1"),
        (2, {"OMP_NUM_THREADS": "3"}, "3"),
        (1, {"OMP_NUM_THREADS": "3,2"}, "3"),
    ],
)
def test_steps_are_timed_with_the_threads_of_the_jobs_ranks(
    forecaster, script, notes, monkeypatch, ranks, settings, threads
):
    # Tests of torch's ranks set it for the whole process.
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    script("print(1)")
    distribution = {"mpi": {"enabled": True, "processes_per_host": ranks}} if ranks > 1 else None
    estimator = PyTorch("train.py", instance_type="local_process", distribution=distribution, environment=settings)
    measured(forecaster, estimator.plan())
    [timed] = notes("timed")
    assert timed["words"][:4] == ["--ranks", str(ranks), "--local-ranks", str(ranks)]
    assert timed["words"][timed["words"].index("--threads") + 1] == threads
    # The ranks of a job with several run together, too.
    assert ("--job" in timed["words"]) == (ranks > 1)


def test_a_relative_search_path_leads_to_the_same_folders(forecaster, plan, notes, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "lib")
    measured(forecaster, plan())
    assert notes("measured")[0]["path"] == str(Path("lib").absolute())


def test_a_change_of_code_hyperparameters_or_data_is_measured_again(forecaster, script, notes):
    script("print(1)")
    Path("data").mkdir()
    Path("data", "a").write_text("1")

    def look(hyperparameters):
        estimator = PyTorch("train.py", instance_type="local_process", hyperparameters=hyperparameters)
        measured(forecaster, estimator.plan("data"))
        return len(notes("measured"))

    assert [look({"epochs": 3}), look({"epochs": 3}), look({"epochs": 4})] == [1, 1, 2]
    Path("data", "b").write_text("22")
    assert look({"epochs": 4}) == 3
    script("print(2)")
    assert look({"epochs": 4}) == 4


def test_the_placement_of_ranks_needs_no_new_measurement(forecaster, script, notes):
    script("print(1)")
    for parameters in ({"partitions": 2}, {"partitions": 4, "microbatches": 8}, {"partitions": 2, "bf16": True}):
        distribution = {
            "smdistributed": {"modelparallel": {"enabled": True, "parameters": {"ddp": True, **parameters}}},
            "mpi": {"enabled": True, "processes_per_host": 8},
        }
        measured(forecaster, PyTorch("train.py", instance_type="local_process", distribution=distribution).plan())
    assert len(notes("measured")) == 2


def test_the_script_sees_the_tree_of_a_host_with_the_data_in_place(forecaster, script, notes, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "planted")
    script("print(1)", "src/train.py")
    Path("data").mkdir()
    Path("saved").mkdir()
    Path("saved", "last.pt").write_text("x")
    estimator = PyTorch(
        "train.py",
        source_dir="src",
        instance_type="local_process",
        instance_count=2,
        checkpoint_s3_uri="saved",
        environment={"MINE": "7"},
    )
    measured(forecaster, estimator.plan("data"), timeout=5)
    [seen] = notes("measured")
    assert (seen["code"], seen["checkpoints"], seen["variable"]) == (["train.py"], [], "7")
    assert seen["secret"] is None
    assert seen["channels"] == {"training": str(Path("data").resolve())}
    assert seen["words"][:-2] == ["--ranks", "2", "--device", "cpu"]
    assert not Path(seen["base"]).exists()
    assert os.listdir("saved") == ["last.pt"]


@pytest.mark.parametrize(
    ("behaviour", "error"),
    [
        ("writes nothing", r"the script ended the process that measures it, which has no result"),
        ("writes nonsense", r"cannot be read: .*; remove its folder and measure again"),
        ("fails", r"exit code 1:\nTraceback(.|\n)*ValueError: no such column"),
        ("never steps", r"the script ended before an optimizer step, at train.py:7"),
        ("hangs", r"took no optimizer step within 1 s; give it more time \(--measure-timeout\), or look where it is: "),
    ],
)
def test_a_script_that_cannot_be_measured_says_why(forecaster, plan, folder, behaviour, error):
    (folder / "behaviour").write_text(behaviour)
    begin = time.monotonic()
    with pytest.raises(MeasurementError, match=error):
        measured(forecaster, plan(), timeout=1)
    assert time.monotonic() - begin < 30
    assert forecaster.known(plan()).prediction is None


def test_the_predictors_own_error_is_shown(forecaster, plan, folder):
    (folder / "behaviour").write_text("no prediction")
    with pytest.raises(MeasurementError, match="no prediction: the model has 1 module, and 2 partitions need 2"):
        measured(forecaster, plan())


def test_other_frameworks_images_and_no_torch_are_named(forecaster, script, home):
    script("print(1)")
    other = TensorFlow(entry_point="train.py", instance_type="local_process").plan()
    with pytest.raises(UnsupportedError, match="a script of TensorFlow is not measured, only PyTorch's"):
        measured(forecaster, other)
    script("echo hello", "run.sh")
    with pytest.raises(UnsupportedError, match=r"entry_point: run.sh is no Python script"):
        measured(forecaster, Estimator("run.sh", instance_type="local_process").plan())
    local = PyTorch("train.py", instance_type="local_process").plan()
    with pytest.raises(UnsupportedError, match="allow that with --instance-type local_process"):
        measured(forecaster, msgspec.structs.replace(local, backend="local"))
    forecaster._has_torch = lambda: False
    with pytest.raises(UnsupportedError, match=r"has no PyTorch, .* pip install '.\[torch\]'"):
        measured(forecaster, Estimator("train.py", instance_type="local_process").plan())


def test_data_elsewhere_needs_a_local_sample(forecaster, plan, notes):
    from herringbone.plan.inputs import parse_inputs

    remote = msgspec.structs.replace(plan(), channels=parse_inputs("s3://bucket/data", base=Path()))
    with pytest.raises(InputError, match=r"s3://bucket/data is not on this machine, .* --measure-data training=FOLDER"):
        measured(forecaster, remote)
    with pytest.raises(InputError, match="the job has no channel 'train'; it has: training"):
        measured(forecaster, remote, data={"train": "."})
    Path("sample").mkdir()
    assert measured(forecaster, remote, data={"training": "sample"}).planned.refusal is None
    # Known from now on, also to `fit` and `distribution="auto"`, which take no sample.
    assert forecaster.known(remote).prediction is not None
    assert measured(forecaster, remote).planned.refusal is None
    assert len(notes("measured")) == 1
    Path("sample", "more").write_text("x")
    measured(forecaster, remote, data={"training": "sample"})
    assert len(notes("measured")) == 2


def test_the_length_of_the_job_comes_from_steps_or_hyperparameters(forecaster, plan, notes):
    assert measured(forecaster, plan()).planned.seconds.expected == 3 * 3200 / 32 + 1
    assert measured(forecaster, plan(), steps=50).planned.seconds.expected == 51
    assert notes("asked")[0]["work"]["samples"] == 9600


def test_hosts_that_nobody_has_are_refused_before_they_are_listed(plan):
    with pytest.raises(OptionError, match="instance_count: 1000000000 hosts; a prediction is of 100000 at most"):
        changed(plan(), WhatIf(instance_count=10**9))


def test_what_if(forecaster, plan, notes):
    answer = measured(
        forecaster,
        plan(),
        steps=3600,
        what_if=WhatIf(
            batch=64,
            instance_type="ml.p4d.24xlarge",
            instance_count=2,
            distribution={"torch_distributed": {"enabled": True}},
        ),
    )
    asked = notes("asked")[-1]
    assert (asked["scale"], asked["hosts"]["ranks_per_host"], asked["hosts"]["count"]) == (2.0, 8, 2)
    assert answer.planned.device_bytes == device_named("A100-40GB").memory_bytes
    assert answer.planned.dollars.expected == pytest.approx(2 * 2 * 32, rel=0.01)
    assert "the step was measured as on cpu; a script may choose other operations elsewhere" in answer.notes


def test_choose_compares_layouts_over_instance_types(forecaster, plan, notes):
    answer = measured(forecaster, plan(), choose=True, over=("ml.p4d.24xlarge",), limit=7)
    planned, *searches = notes("asked")
    assert planned["search"] is None
    assert [(one["search"]["limit"], one["hosts"]["name"], one["hosts"]["ranks_per_host"]) for one in searches] == [
        (7, "local_process", 1),
        (7, "local_process", 4),
        (7, "ml.p4d.24xlarge", 8),
    ]
    # A host without GPUs has one rank under torch_distributed, and more under MPI alone.
    assert [one["distribution"] for one in searches] == [{}, {"mpi": {"enabled": True, "processes_per_host": 4}}, {}]
    assert [layout.hosts for layout in answer.layouts][:3] == ["ml.p4d.24xlarge", "local_process", "local_process"]
    assert [layout.refusal for layout in answer.layouts] == [None] * 3 + ["one rank is too few"] * 2
    [seen] = notes("measured")
    assert seen["words"][:2] == ["--ranks", "4"]


def test_the_figures_of_the_jobs_hosts_are_not_those_of_other_types(forecaster, plan):
    device, price = device_named("T4"), 7.0
    compared = measured(
        forecaster, plan(), steps=3600, choose=True, over=("ml.p4d.24xlarge",), device=device, dollars_per_hour=price
    )
    memory = {layout.hosts: layout.device_bytes for layout in compared.layouts}
    a100 = device_named("A100-40GB").memory_bytes
    assert memory == {"local_process": device.memory_bytes, "ml.p4d.24xlarge": a100}
    other = measured(
        forecaster,
        plan(),
        steps=3599,
        what_if=WhatIf(instance_type="ml.p4d.24xlarge"),
        device=device,
        dollars_per_hour=price,
    ).planned
    assert (other.device_bytes, other.dollars.expected) == (a100, 32.0)


def test_an_inventory_to_compare_is_asked_for_its_own_machines(make_forecaster, plan):
    asked = []
    forecaster = make_forecaster(
        known=lambda other: asked.append(other.hosts[0].instance_type) or MachineFigures(device_named("T4"))
    )
    answer = measured(forecaster, plan(), choose=True, over=("ssh:lab.yaml",))
    assert set(asked) == {"ssh:lab.yaml"}
    assert {layout.hosts for layout in answer.layouts} == {"local_process", "ssh:lab.yaml"}


def test_a_job_of_which_nothing_was_measured_reads_neither_data_nor_devices(
    forecaster, make_forecaster, plan, script, monkeypatch
):
    measured(forecaster, plan())
    script("print(2)")
    forecaster = make_forecaster(machine=lambda: pytest.fail("asked for this machine's GPUs"))
    monkeypatch.setattr("herringbone.prediction.cache._data_sizes", lambda _: pytest.fail("read the data"))
    assert forecaster.known(plan()).prediction is None


def test_an_unknown_device_asks_for_its_figures(forecaster, plan, notes):
    with pytest.raises(OptionError, match=r"'ml.p9.48xlarge': its device is not known .*--device memory="):
        measured(forecaster, plan(), what_if=WhatIf(instance_type="ml.p9.48xlarge"))
    with pytest.raises(OptionError, match="'banana': its device is not known"):
        measured(forecaster, plan(), choose=True, over=("ml.p4d.24xlarge", "banana"))
    # It is not worth the time of a measurement.
    assert notes("measured") == []
    device = device_named("T4")
    answer = measured(forecaster, plan(), what_if=WhatIf(instance_type="ml.p9.48xlarge"), device=device)
    assert answer.planned.device_bytes == device.memory_bytes


def test_the_fewest_hosts_within_a_time(forecaster, plan):
    answer = measured(forecaster, plan(), steps=100, within=40.0)
    assert answer.planned.count == 3
    assert answer.notes[0].startswith("3 hosts train this in 40.0 s: 34.3 s")
    with pytest.raises(OptionError, match="length of the job is not known"):
        measured(forecaster, PyTorch("train.py", instance_type="local_process").plan(), within=40.0)


def test_a_job_that_is_known_not_to_fit_is_refused(forecaster, plan, monkeypatch):
    monkeypatch.setenv("GIB", "20")
    with pytest.raises(UnsupportedError, match=r"needs 20.0 GiB \(states 10.0 GiB, .* has 16.0 GiB: 25% too little"):
        predicted(plan(), Measure(), forecaster)
    # Known from now on, without `measure`.
    with pytest.raises(UnsupportedError, match="check_memory=False"):
        predicted(plan(), None, forecaster)
    assert (
        predicted(plan(), Measure(what_if=WhatIf(batch=16)), forecaster).prediction.planned.memory[0].peak == 10 << 30
    )
    allowed = PyTorch("train.py", instance_type="local_process", hyperparameters={"epochs": 3}, check_memory=False)
    [warning] = predicted(allowed.plan(), None, forecaster).warnings
    assert warning.startswith("predicted peak memory of a rank is 20.0 GiB")


def test_a_job_that_takes_longer_than_its_limit_is_refused(forecaster, script):
    script("print('x')")

    def made(**options):
        steps = {"max_steps": 100}
        return PyTorch("train.py", instance_type="local_process", hyperparameters=steps, **options).plan()

    with pytest.raises(UnsupportedError, match=r"max_run: the job takes .* and is stopped after 10.0 s"):
        predicted(made(max_run=10), Measure(steps=100), forecaster)
    with pytest.raises(UnsupportedError, match="max_cost: the job takes"):
        predicted(made(max_cost=1, dollars_per_hour=60), Measure(steps=1000), forecaster)
    # Somebody who looks for a faster layout sees it.
    predicted(made(max_run=10), Measure(steps=100, what_if=WhatIf(batch=16)), forecaster)
    [warning] = predicted(made(max_run=10, check_time=False), Measure(steps=100), forecaster).warnings
    assert "is stopped after 10.0 s" in warning


def test_a_peak_within_five_percent_is_a_warning(forecaster, plan, monkeypatch):
    monkeypatch.setenv("GIB", "16.5")
    assert "more than the 16.0 GiB" in predicted(plan(), Measure(), forecaster).warnings[-1]
    assert predicted(plan(), Measure(), forecaster).to_dict()["prediction"]["planned"]["hosts"] == "local_process"


def test_auto_takes_the_best_and_says_so(forecaster, script):
    script("print(1)")
    estimator = PyTorch("train.py", instance_type="local_process", distribution="auto")

    def make(distribution):
        asked = requests.changed(estimator._asked(None), {"distribution": distribution})
        return plan_request(asked, estimator._backend, "mine")

    plan = chosen(make, None, forecaster)
    assert plan.to_dict()["arguments"]["distribution"] == {"torch_distributed": {"enabled": True}}
    assert plan.prediction.layouts == ()
    assert plan.warnings[-1] == (
        "distribution: auto took replicate 4, 128 samples a second, the best of 2 layouts that fit:"
        """ --distribution '{"torch_distributed": {"enabled": true}}'"""
    )


def test_a_prediction_survives_the_index(forecaster, plan):
    from herringbone.plan.plan import parse_plan

    stored = json.loads(json.dumps(forecaster.measured(plan(), Measure(), progress=QUIET).to_dict()))
    assert parse_plan(stored).prediction.planned.memory[0].peak == 1 << 30
    assert "memory:            1.0 GiB of 16.0 GiB" in str(parse_plan(stored))
