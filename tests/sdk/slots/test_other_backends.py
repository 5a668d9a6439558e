"""Backends without a line on this machine: refused by name, or a queue of their own."""

import pytest

from herringbone import Estimator
from herringbone.api.planning import plan_request
from herringbone.backends.registry import backend_for
from herringbone.backends.sagemaker import review as sagemaker
from herringbone.backends.slurm import review as slurm
from herringbone_contract.errors import OptionError, UnsupportedError


def plan_of(monkeypatch, tmp_path, instance_type, *, queue, **options):
    """Return a plan without its backend's review, as `fit` makes it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    (tmp_path / "hosts.yaml").write_text("hosts: [a]\n")
    backend = backend_for(instance_type)
    monkeypatch.setattr(type(backend), "review", lambda *_: ())
    monkeypatch.setattr(type(backend), "request", lambda *_: None)
    request = Estimator("train.py", instance_type=instance_type, **options)._asked(None, queue=queue)
    return plan_request(request, backend, "a")


def test_slurm_queues_by_itself_and_takes_gpus_in_its_own_words(monkeypatch, tmp_path):
    plan = plan_of(monkeypatch, tmp_path, "slurm:gpu", queue=True, priority=3)
    slurm.check(plan)
    assert "priority" in slurm.unused(plan)
    with pytest.raises(UnsupportedError, match="gpus: Slurm gives GPUs"):
        slurm.check(plan_of(monkeypatch, tmp_path, "slurm:gpu", queue=False, gpus=2))


def test_sagemaker_queues_by_itself(monkeypatch, tmp_path):
    arguments = {"image_uri": "1.dkr.ecr.eu-west-1.amazonaws.com/a:1", "role": "arn:aws:iam::1:role/a"}
    plan = plan_of(monkeypatch, tmp_path, "ml.m5.large", queue=True, priority=3, **arguments)
    assert "priority" in sagemaker.review(plan)
    with pytest.raises(UnsupportedError, match="gpus: an instance has the GPUs of its type"):
        sagemaker.review(plan_of(monkeypatch, tmp_path, "ml.m5.large", queue=False, gpus=2, **arguments))
    with pytest.raises(OptionError, match="max_wait: 60 s is less than max_run"):
        sagemaker.review(plan_of(monkeypatch, tmp_path, "ml.m5.large", queue=False, max_wait=60, **arguments))
