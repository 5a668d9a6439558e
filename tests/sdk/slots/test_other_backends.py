"""Backends without a line on this machine: refused by name, or a queue of their own."""

import pytest
from tests.plans import plan_of

from herringbone import Estimator
from herringbone.backends.registry import backend_for
from herringbone.backends.sagemaker import review as sagemaker
from herringbone.backends.slurm import review as slurm
from herringbone_contract.errors import OptionError, UnsupportedError


def asked(folder, instance_type, *, queue, **options):
    """Return the plan of what `fit` is asked for."""
    (folder / "train.py").touch()
    request = Estimator("train.py", instance_type=instance_type, **options)._asked(None, queue=queue)
    return plan_of(request, folder, name="a", backend=backend_for(instance_type).name)


def test_slurm_queues_by_itself_and_takes_gpus_in_its_own_words(tmp_path):
    plan = asked(tmp_path, "slurm:gpu", queue=True, priority=3)
    slurm.check(plan)
    assert "priority" in slurm.unused(plan)
    with pytest.raises(UnsupportedError, match="gpus: Slurm gives GPUs"):
        slurm.check(asked(tmp_path, "slurm:gpu", queue=False, gpus=2))


def test_sagemaker_queues_by_itself(tmp_path):
    arguments = {"image_uri": "1.dkr.ecr.eu-west-1.amazonaws.com/a:1", "role": "arn:aws:iam::1:role/a"}
    plan = asked(tmp_path, "ml.m5.large", queue=True, priority=3, **arguments)
    assert "priority" in sagemaker.review(plan)
    with pytest.raises(UnsupportedError, match="gpus: an instance has the GPUs of its type"):
        sagemaker.review(asked(tmp_path, "ml.m5.large", queue=False, gpus=2, **arguments))
    with pytest.raises(OptionError, match="max_wait: 60 s is less than max_run"):
        sagemaker.review(asked(tmp_path, "ml.m5.large", queue=False, max_wait=60, **arguments))
