"""The estimators: the checks of the constructor, and the result of `hyperparameters()`."""

from pathlib import Path

import pytest

from herringbone import (
    DistributionError,
    Estimator,
    HyperparameterError,
    InstanceGroup,
    OptionError,
    PyTorch,
    TensorFlow,
    UnsupportedError,
)

MPI = {"mpi": {"enabled": True, "processes_per_host": 2}}


def test_hyperparameters_are_encoded():
    estimator = PyTorch(
        "src/train.py",
        instance_type="local_process",
        hyperparameters={"epochs": 3, "name": "run", "on": True, "layers": [1, 2]},
        distribution=MPI,
    )
    encoded = estimator.hyperparameters()
    assert encoded.pop("sagemaker_submit_directory").startswith('"file:///')
    assert encoded == {
        "epochs": "3",
        "name": '"run"',
        "on": "true",
        "layers": "[1, 2]",
        "sagemaker_mpi_enabled": "true",
        "sagemaker_mpi_num_of_processes_per_host": "2",
        "sagemaker_mpi_custom_mpi_options": '""',
        "sagemaker_program": '"train.py"',
        "sagemaker_container_log_level": "20",
    }


def test_numbers_of_numpy_that_are_pythons_own_are_stored_as_those(tmp_path, monkeypatch):
    class Float64(float):
        """As NumPy's: a float of a subclass."""

    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    plan = Estimator("train.py", instance_type="local_process", hyperparameters={"lr": Float64(0.5)}).plan()
    for stored in (plan.to_dict(), plan.to_send()):
        assert stored["hyperparameters"]["lr"] == "0.5"
        assert type(stored["arguments"]["hyperparameters"]["lr"]) is float


def test_hyperparameters_can_be_set_later():
    estimator = Estimator("train.py", instance_type="local_process", hyperparameters={"epochs": 3, "lr": 0.1})
    estimator.set_hyperparameters(epochs=5, name="x")
    assert {key: text for key, text in estimator.hyperparameters().items() if not key.startswith("sagemaker")} == {
        "epochs": "5",
        "lr": "0.1",
        "name": '"x"',
    }
    with pytest.raises(HyperparameterError, match="'bad' cannot be encoded"):
        estimator.set_hyperparameters(bad=object())
    assert "bad" not in estimator.hyperparameters()


def test_a_script_as_the_first_argument_of_tensorflow_is_named():
    with pytest.raises(OptionError, match=r"py_version: 'train.py' is a script, .* write entry_point='train.py'"):
        TensorFlow("train.py", instance_type="local_process")


def test_positional_arguments_have_sagemakers_order():
    torch = PyTorch("t.py", "2.3", "py311", "src", {"a": 1}, "image", MPI, instance_type="local_process")
    assert (torch.entry_point, torch.source_dir, torch.image_uri) == ("t.py", "src", "image")
    assert (torch.options.framework_version, torch.options.py_version) == ("2.3", "py311")
    assert torch.distribution.processes_per_host == 2
    tensorflow = TensorFlow("py311", "2.16", "/m", "image", MPI, entry_point="t.py", instance_type="local_process")
    assert (tensorflow.entry_point, tensorflow.model_dir, tensorflow.options.py_version) == ("t.py", "/m", "py311")


@pytest.mark.parametrize(
    ("arguments", "distribution", "model_dir"),
    [
        ({}, None, '"/opt/ml/shared/model"'),
        ({}, MPI, '"/opt/ml/model"'),
        ({"model_dir": "s3://b/m"}, MPI, '"s3://b/m"'),
        ({"model_dir": False}, None, None),
    ],
)
def test_tensorflows_model_dir(arguments, distribution, model_dir):
    estimator = TensorFlow(entry_point="t.py", instance_type="local_process", distribution=distribution, **arguments)
    assert estimator.hyperparameters().get("model_dir") == model_dir


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({}, OptionError, "entry_point: missing; give the script to run"),
        ({"image_uri": "i", "source_dir": "src"}, OptionError, "source_dir: given without entry_point"),
        ({"entry_point": 3}, OptionError, "entry_point: expected a path or name, got 3"),
        ({"entry_point": "t.py", "hyperparameters": [1]}, HyperparameterError, "hyperparameters: expected a dict"),
        ({"entry_point": "t.py", "hyperparameters": {1: 2}}, HyperparameterError, "with names as keys"),
        ({"entry_point": "t.py", "distribution": {"mpii": {}}}, DistributionError, "mpi"),
        ({"entry_point": "t.py", "max_runs": 3}, OptionError, "did you mean max_run?"),
    ],
)
def test_the_constructor_finds_mistakes(arguments, error, message):
    with pytest.raises(error) as caught:
        Estimator(instance_type="local_process", **arguments)
    assert message in str(caught.value)


@pytest.mark.parametrize("model_dir", [True, 3])
def test_a_model_dir_of_a_wrong_type_is_refused(model_dir):
    with pytest.raises(OptionError, match="model_dir: expected a path, an address or False"):
        TensorFlow(entry_point="t.py", model_dir=model_dir, instance_type="local_process")


def test_the_constructor_reads_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Estimator("gone.py", source_dir="gone", instance_type="ml.p4d.24xlarge", dependencies=["gone"])


def test_an_instance_type_without_backend_is_refused_at_plan():
    with pytest.raises(
        UnsupportedError,
        match=r"'pbs:gpu': this release has no backend .*, slurm:PARTITION, ssh:INVENTORY, k8s:NAMESPACE, ml\.\*$",
    ):
        Estimator("t.py", instance_type="pbs:gpu").plan()
    with pytest.raises(UnsupportedError, match=r"did you mean local_process\?"):
        Estimator("t.py", instance_type="local_proces").plan()


def test_groups_of_different_types_are_refused_at_plan():
    groups = [
        {"instance_group_name": "a", "instance_type": "local_process", "instance_count": 1},
        {"instance_group_name": "b", "instance_type": "local", "instance_count": 1},
    ]
    with pytest.raises(UnsupportedError, match="no backend serves local, local_process in one job"):
        Estimator("t.py", instance_groups=groups).plan()
    with pytest.raises(OptionError, match="excludes instance_type and instance_count"):
        Estimator("t.py", instance_groups=groups, instance_type="local_process")


def test_an_estimator_without_jobs():
    estimator = Estimator("t.py", instance_type="local_process")
    assert (estimator.latest_training_job, estimator.model_data, estimator.jobs) == (None, None, [])
    with pytest.raises(OptionError, match=r"this estimator has no job yet; call fit\(\) first"):
        estimator.logs()


def test_experiments_are_refused():
    with pytest.raises(UnsupportedError, match="experiment_config: there is no experiment service"):
        Estimator("t.py", instance_type="local_process").fit(experiment_config={"ExperimentName": "x"})


def test_hyperparameters_name_the_instance_type_of_the_training_hosts():
    groups = [InstanceGroup("cpu", "ml.c5n.18xlarge", 2), InstanceGroup("gpu", "ml.p4d.24xlarge", 2)]
    helped = {"smdistributed": {"dataparallel": {"enabled": True, "helpers": "cpu"}}}
    estimator = Estimator("train.py", instance_groups=groups, distribution=helped)
    assert estimator.hyperparameters()["sagemaker_instance_type"] == '"ml.p4d.24xlarge"'


NONE = (
    "job a: hyperparameter hub_token is None: the script gets an empty text, as on SageMaker; leave it out for the "
    "default of the script\n"
)
START = "job a: starting on local_process (follow it elsewhere: herringbone logs -f a)\n"


@pytest.mark.parametrize(
    ("options", "logs", "message"),
    [
        ({}, False, ""),
        ({"role": "r"}, False, "job a: not used by local_process: role\n"),
        ({"role": "r"}, True, f"job a: not used by local_process: role\n{START}"),
        ({"hyperparameters": {"hub_token": None}}, False, NONE),
    ],
)
def test_fit_names_the_job_and_the_options_without_effect(options, logs, message, capsys, script):
    script("")
    estimator = Estimator("train.py", instance_type="local_process", **options)
    job = estimator.fit(wait=False, logs=logs, job_name="a")
    assert capsys.readouterr() == ("", message)
    assert (job.name, job.wait().status) == ("a", "Completed")


def test_a_mistyped_number_of_hosts_does_not_fill_the_memory():
    with pytest.raises(OptionError, match="instance_count: expected int <= 100000"):
        Estimator(entry_point="train.py", instance_type="local_process", instance_count=10**10)


@pytest.mark.parametrize("seconds", [10**9, 10**11, "4000d"])
def test_a_limit_of_more_than_ten_years_is_refused(seconds):
    """The controller failed such jobs: no calendar and no timer has room for it."""
    with pytest.raises(OptionError, match="max_run: expected int <= 315360000"):
        Estimator(entry_point="train.py", instance_type="local_process", max_run=seconds)
    assert Estimator(entry_point="train.py", instance_type="local_process", max_run="28d").options.max_run == 2_419_200


@pytest.mark.parametrize(
    ("hyperparameters", "message"),
    [
        ({"my name": 1}, "hyperparameter 'my name': a name has no white space"),
        ({"a=b": 1}, "hyperparameter 'a=b': a name has no white space"),
        ({"-x": 1}, "hyperparameter '-x': a name has no white space"),
        ({"x\0": 1}, "has a control character or a line break"),
        ({"x": ["a\\\\\0"]}, "hyperparameter 'x': a NUL character, which no command line can pass"),
    ],
)
def test_hyperparameters_that_a_script_would_not_get_are_refused(hyperparameters, message):
    with pytest.raises(HyperparameterError) as caught:
        Estimator("train.py", instance_type="local_process", hyperparameters=hyperparameters).plan()
    assert message in str(caught.value)
