"""A strategy is on or off because its dict says so."""

import pytest

from herringbone_contract.distribution import parse
from herringbone_contract.errors import DistributionError


def message(raw, framework=None):
    with pytest.raises(DistributionError) as caught:
        parse(raw, framework=framework)
    return str(caught.value)


# Every strategy, each by its path in the dict.
STRATEGIES = [
    *("mpi", "parameter_server", "multi_worker_mirrored_strategy", "pytorchddp", "torch_distributed", "pytorchxla"),
    *("smdistributed.dataparallel", "smdistributed.modelparallel"),
]


@pytest.mark.parametrize("framework", [None, "pytorch", "tensorflow", "huggingface", "mxnet"])
@pytest.mark.parametrize("path", STRATEGIES)
def test_a_strategy_without_enabled_is_refused_and_not_off(path, framework):
    raw = {}
    for key in reversed(path.split(".")):
        raw = {key: raw}
    assert message(raw, framework).startswith(f"distribution.{path}: 'enabled' is missing, and without it the strategy")


@pytest.mark.parametrize("others", [{}, {"mpi": {"enabled": True}}, {"torch_distributed": {"enabled": True}}])
def test_smdistributed_without_a_library_is_refused(others):
    assert message({"smdistributed": {}, **others}) == (
        "distribution.smdistributed: names no library, so it would do nothing. Write"
        " {'dataparallel': {'enabled': True}} or {'modelparallel': {'enabled': True, 'parameters': {...}}} in it, or"
        " leave smdistributed out."
    )
