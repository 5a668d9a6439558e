"""Nothing passes `plan` that a rank refuses: `smp.init` accepts the settings of every plan that was accepted."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from herringbone import PyTorch
from herringbone.backends.process.review import review
from herringbone_contract.constants import Key
from herringbone_contract.errors import DistributionError, UnsupportedError
from herringbone_contract.model_parallel.version1 import ModelParallelParameters
from herringbone_parallel.core import launch
from herringbone_parallel.core.grid import Grid
from herringbone_parallel.torch.model_parallel import state
from tests.plans import plan_of

WORDS = {
    "pipeline": ["interleaved", "simple", "zero_bubble", "_only_forward"],
    "optimize": ["memory", "speed"],
    "placement_strategy": ["cluster", "spread", "DTP", "PTD"],
    "ddp_dist_backend": ["auto", "gloo", "nccl"],
    "partition_file": ["p.json"],
    "memory_weight": [0.0, 0.5],
    "sdp_gradient_clipping": [0.0, 1.0],
    "ddp_port": [29_500],
    "default_partition": [0, 1],
}


def values(field: msgspec.structs.FieldInfo) -> st.SearchStrategy[Any]:
    if field.name in WORDS:
        return st.sampled_from(WORDS[field.name])
    return st.booleans() if "bool" in str(field.type) else st.sampled_from([1, 2, 4])


FIELDS = {
    field.name: field
    for field in msgspec.structs.fields(ModelParallelParameters)
    if field.name not in ("partitions", "ddp", "contiguous", "horovod", "deterministic_server")
}
# Few keys at a time: most dicts of many keys are refused.
OTHERS = st.lists(st.sampled_from(sorted(FIELDS)), max_size=3, unique=True)


@st.composite
def parameters(draw: st.DrawFn, key: str) -> dict[str, Any]:
    chosen = {name: draw(values(FIELDS[name])) for name in [key, *draw(OTHERS)]}
    if any(name.startswith("sdp_") for name in chosen):
        chosen.setdefault("sharded_data_parallel_degree", 2)
    if "default_partition" in chosen:
        chosen.setdefault("auto_partition", False)
    return {"partitions": draw(st.sampled_from([1, 2])), "ddp": draw(st.booleans()), **chosen}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("code")
    (path / "train.py").touch()
    return path


accepted: set[str] = set()


@pytest.mark.parametrize("key", sorted(FIELDS))
@given(data=st.data())
@settings(max_examples=12, deadline=None, derandomize=True)
def test_a_rank_accepts_what_plan_accepts(folder: Any, key: str, data: st.DataObject) -> None:
    chosen, ranks = data.draw(parameters(key)), data.draw(st.sampled_from([1, 2, 4, 8]))
    distribution = {
        "smdistributed": {"modelparallel": {"enabled": True, "parameters": chosen}},
        "mpi": {"enabled": True, "processes_per_host": ranks},
    }
    try:
        estimator = PyTorch("train.py", instance_type="local_process", instance_count=1, distribution=distribution)
        plan = plan_of(estimator._request, folder)
        review(plan)
    except (DistributionError, UnsupportedError):
        return
    accepted.update(chosen)
    environ = {"SM_HP_MP_PARAMETERS": plan.hyperparameters[Key.MODEL_PARALLEL_PARAMETERS]}
    resolved = launch.model_parallel(environ, "pytorch")
    state.refuse(resolved, Grid(resolved.mesh(ranks), resolved.placement))


def test_plan_accepts_enough_to_compare() -> None:
    """Without it, the test above would pass if every dict were refused."""
    assert accepted >= FIELDS.keys() - {"pipeline_parallel_degree"}
