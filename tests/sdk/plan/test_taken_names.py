"""Names that Herringbone, or another setting, has too: refused or noted at plan, never lost."""

from __future__ import annotations

import pytest

from herringbone import Estimator, PyTorch
from herringbone_contract.errors import HyperparameterError, OptionError

TORCH = {"torch_distributed": {"enabled": True}}
MPI = {"mpi": {"enabled": True, "processes_per_host": 1}}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HERRINGBONE_HOME", str(tmp_path / "home"))
    (tmp_path / "train.py").touch()
    (tmp_path / "data").mkdir()


def plan(inputs=None, *, instance_type="local_process", **options):
    return PyTorch("train.py", instance_type=instance_type, instance_count=1, **options).plan(inputs)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("SM_MODEL_DIR", {}),
        ("SM_CHECKPOINT_DIR", {}),
        ("SM_HPS", {}),
        ("SM_HP_BATCH_SIZE", {"hyperparameters": {"batch-size": 3}}),
        ("SM_CHANNEL_TRAINING", {"inputs": "data"}),
        ("RANK", {}),
        ("MASTER_PORT", {}),
        ("SAGEMAKER_BASE_DIR", {}),
        ("HERRINGBONE_LIFELINE_FD", {}),
        ("HERRINGBONE_EVENTS", {}),
        ("TORCHELASTIC_RUN_ID", {"distribution": TORCH}),
        ("OMPI_COMM_WORLD_RANK", {"distribution": MPI}),
    ],
)
def test_variables_of_every_rank_are_refused_by_name(name, options):
    with pytest.raises(OptionError, match=f"environment: {name}: Herringbone sets this in every rank"):
        plan(environment={name: "mine", "OTHER": "1"}, **options)


def test_variables_that_users_set_are_theirs():
    names = ["SM_HP_BATCH_SIZE", "SM_CHANNEL_TRAINING", "SM_MINE", "TORCHELASTIC_RUN_ID", "OMPI_MCA_btl", "TF_CONFIG"]
    names += ["OMP_NUM_THREADS", "PYTHONPATH", "NCCL_SOCKET_IFNAME", "HERRINGBONE_MPIRUN", "HERRINGBONE_COMPARE"]
    names += ["ACCELERATE_USE_CPU", "FSDP_VERSION", "HERRINGBONE_REDUCE", "PYTHONUNBUFFERED"]
    environment = dict.fromkeys(names, "1")
    assert plan(environment=environment).environment == environment
    # The own program of an image has no ranks of ours.
    pytest.importorskip("boto3")
    role = "arn:aws:iam::123456789012:role/r"
    image = Estimator(image_uri="i", instance_type="ml.c5.xlarge", role=role, environment={"SM_MODEL_DIR": "/x"})
    assert image.plan().environment == {"SM_MODEL_DIR": "/x"}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("sagemaker_program", {}),
        ("sagemaker_mpi_enabled", {"distribution": MPI}),
        ("sagemaker_parameter_server_enabled", {}),
        ("mp_parameters", {}),
        ("sagemaker_lr", {}),
        ("_tuning_objective_metric", {}),
    ],
)
def test_steering_hyperparameters_are_refused_by_name(name, options):
    with pytest.raises(HyperparameterError, match=f"hyperparameter '{name}': it steers the container, "):
        plan(hyperparameters={name: "x"}, **options)


def test_steering_hyperparameters_that_the_host_reads_are_used():
    assert plan(hyperparameters={"sagemaker_region": "eu-west-1"}).hyperparameters["sagemaker_region"] == '"eu-west-1"'


@pytest.mark.parametrize(
    ("inputs", "values", "message"),
    [
        (
            "data",
            {"lr": 0.1, "LR": 0.2},
            "hyperparameters 'lr' and 'LR' share the variable SM_HP_LR, which can have one",
        ),
        ("data", {"a-b": 1, "a_b": 2}, "hyperparameters 'a-b' and 'a_b' share the variable SM_HP_A_B"),
        ({"train": "data", "Train": "data"}, {}, "channels 'Train' and 'train' share the variable SM_CHANNEL_TRAIN"),
    ],
)
def test_names_that_share_a_variable_are_refused(inputs, values, message):
    with pytest.raises(OptionError, match=message):
        plan(inputs, hyperparameters=values)
    assert plan("data", hyperparameters={"lr": 0.1, "batch-size": 2}).notes == ()
