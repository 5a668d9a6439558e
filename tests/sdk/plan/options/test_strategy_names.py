"""Bare names of strategies, and the words that users try first."""

import pytest

from herringbone import PyTorch
from herringbone.backends.registry import backend_for
from herringbone.cli.__main__ import main
from herringbone.plan.names import check_job_name
from herringbone_contract.distribution import parse
from herringbone_contract.errors import DistributionError, JobNameError, UnsupportedError

TORCH = {"torch_distributed": {"enabled": True}}


@pytest.mark.parametrize(
    ("name", "strategy"),
    [
        ("torch_distributed", TORCH),
        ("smdistributed.dataparallel", {"smdistributed": {"dataparallel": {"enabled": True}}}),
        ("pytorchxla", {"pytorchxla": {"enabled": True}}),
    ],
)
def test_a_bare_name_turns_a_strategy_on(name, strategy):
    assert PyTorch("t.py", instance_type="local", distribution=name).distribution == parse(strategy)


def test_the_command_line_takes_a_name_or_a_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HERRINGBONE_HOME", str(tmp_path / "home"))
    (tmp_path / "t.py").touch()
    assert main(["plan", "t.py", "--distribution", "torch_distributed"]) == 0
    assert "launcher:          torch_distributed" in capsys.readouterr().out
    (tmp_path / "mpi").write_text("mpi: {enabled: true, processes_per_host: 2}")
    assert main(["plan", "t.py", "--distribution", "mpi"]) == 0
    assert "host algo-1:       2 ranks" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("torch", "no strategy 'torch'. Did you mean 'torch_distributed'?"),
        ("torch_distributd", "Did you mean 'torch_distributed'?"),
        ("smddp", "Did you mean 'smdistributed.dataparallel'?"),
        ("mpi", "distribution: 'mpi' needs a dict: {'mpi': {'enabled': True, 'processes_per_host': 2}}"),
        ("x", "Names: torch_distributed, pytorchddp"),
    ],
)
def test_another_name_is_refused_with_the_strategy_that_is_meant(name, message):
    with pytest.raises(DistributionError) as caught:
        PyTorch("t.py", instance_type="local", distribution=name)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("distribution", "message"),
    [
        ({"torch": {"enabled": True}}, "Did you mean 'torch_distributed'?"),
        ({"smddp": {"enabled": True}}, "Did you mean 'smdistributed'?"),
        (
            {"torch_distributed": {"enabled": True, "processes_per_host": 2}},
            "for two ranks on a CPU machine write instance_count=2",
        ),
    ],
)
def test_words_that_users_try_first_in_the_dict(distribution, message):
    with pytest.raises(DistributionError) as caught:
        parse(distribution)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("instance_type", "meant"),
    [
        ("docker", "local?"),
        ("Docker", "local?"),
        ("gpu", "local_gpu?"),
        ("m5.large", "ml.m5.large?"),
        ("p4d.24xlarge", "ml.p4d.24xlarge?"),
        ("ssh", "ssh:hosts.yaml"),
        ("slurm", "slurm:PARTITION"),
        ("local_proces", "local_process?"),
    ],
)
def test_words_that_users_try_first_as_instance_types(instance_type, meant):
    with pytest.raises(UnsupportedError, match=f"did you mean {meant}".replace("?", r"\?")):
        backend_for(instance_type)


@pytest.mark.parametrize(("name", "meant"), [("My_Job", "My-Job"), ("a b", "a-b"), ("../x", "x"), ("a" * 80, "a" * 63)])
def test_a_job_name_that_nearly_works_comes_with_a_proposal(name, meant):
    with pytest.raises(JobNameError, match=f"did you mean '{meant}'"):
        check_job_name(name)
    check_job_name(meant)
