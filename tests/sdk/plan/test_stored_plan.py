"""Plans that an earlier release wrote into the index."""

import pytest

from herringbone import Estimator
from herringbone.plan.plan import parse_plan
from herringbone_contract.distribution import parse
from herringbone_contract.errors import DistributionError


@pytest.mark.parametrize(
    ("stored", "distribution"),
    [
        ({"smdistributed": {}}, None),
        ({"smdistributed": {"dataparallel": {}}}, None),
        ({"pytorchddp": {}, "torch_distributed": {"enabled": True}}, {"torch_distributed": {"enabled": True}}),
    ],
)
def test_a_stored_plan_is_read_where_a_new_one_is_refused(stored, distribution, script):
    """`job.plan` of an earlier release's job ended in an error about a strategy that was never on."""
    script("")
    fields = {
        **Estimator("train.py", instance_type="local_process", distribution=distribution).plan().to_dict(),
        "distribution": stored,
    }
    assert parse_plan(fields).distribution == parse(distribution)
    with pytest.raises(DistributionError):
        parse(stored)
