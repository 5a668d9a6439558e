"""SMP v1's names for creating a model: each works, gives a warning, or is refused by name."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn

from tests.parallel.torch.model_parallel import models
from tests.parallel.torch.ranks import RankFailedError, Ranks

BY_HAND = {"partitions": 2, "microbatches": 2, "auto_partition": False, "default_partition": 0}
TWO = {"partitions": 2, "microbatches": 2}


def create() -> Any:
    import herringbone_parallel.torch.model_parallel.api as smp
    from herringbone_contract.errors import ParallelError

    assert not smp.is_tracing()
    with smp.partition(0):
        module, inputs, _ = models.build("Chain")
    smp.set_partition(module[4], 1)
    smp.set_partition(module[5], 1)
    model = smp.DistributedModel(module)
    calls: list[str] = []
    model.register_post_partition_hook(lambda partitioned_model: calls.append(f"{partitioned_model is model}"))
    model.register_post_partition_hook(lambda _: calls.append("removed")).remove()
    smp.step(lambda inputs: model(inputs))(inputs)
    model.register_post_partition_hook(lambda _: calls.append("late"))
    with pytest.raises(ParallelError, match="after the model was partitioned"):
        smp.set_partition(module[0], 1)
    with pytest.raises(ParallelError, match="there is no partition 2; there are 2, from 0"):
        smp.set_partition(module[0], 2)
    return calls, [name for name, _ in model.local_named_modules()], len(list(model.local_parameters()))


def test_an_existing_module_can_be_put_on_a_partition(ranks: Ranks) -> None:
    first, second = ranks.run(create, dict(BY_HAND))
    assert first == (["True", "late"], ["0", "1", "2", "3"], 4)
    assert second == (["True", "late"], ["1", "3", "4", "5"], 4)


def buffers() -> Any:
    import herringbone_parallel.torch.model_parallel.api as smp

    module, inputs, _ = models.build("Normed")
    model = smp.DistributedModel(module)
    smp.step(lambda inputs: model(inputs))(inputs)
    assert len(list(model.local_buffers())) == len(list(model.local_named_buffers()))
    assert sum(1 for _ in model.local_modules()) < sum(1 for _ in model.modules())
    own = {name for name, _ in model.local_named_buffers()}
    assert model.cpu() is model
    assert not any(tensor.is_meta for tensor in (*model.module.parameters(), *model.module.buffers()))
    alone = model.module.eval()(inputs)
    with pytest.raises(Exception, match=r"model.cpu\(\) has ended the training"):
        smp.step(lambda inputs: model(inputs))(inputs)
    return own, alone.detach()


def test_a_model_gathered_on_the_cpu_runs_on_each_rank(ranks: Ranks) -> None:
    (first, alone), (second, other) = ranks.run(buffers, {"partitions": 2, "microbatches": 1})
    assert not first & second
    assert first | second == {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}
    module, inputs, _ = models.build("Normed")
    module(inputs)
    torch.testing.assert_close(alone, module.eval()(inputs).detach())
    torch.testing.assert_close(other, alone)


def refused() -> list[str]:
    import herringbone_parallel.torch.model_parallel.api as smp
    from herringbone_contract.errors import ParallelError

    messages = []
    model = smp.DistributedModel(nn.Linear(2, 2))
    # As torch's: it does nothing, so nothing is missing for it.
    with model.join(enable=False):
        pass
    for call in (
        lambda: smp.model_creation(fused_softmacks=True).__enter__(),
        lambda: smp.model_creation(tensor_parallelism=True, use_alibi=True).__enter__(),
        lambda: model.join().__enter__(),
        lambda: model.register_comm_hook(None, print),
        lambda: smp.DistributedOptimizer(torch.optim.SGD([nn.Parameter(torch.zeros(3))], lr=1.0)),
        lambda: smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), init_scale=2.0),
    ):
        with pytest.raises(ParallelError) as caught:
            call()
        messages.append(str(caught.value))
    assert not hasattr(smp, "no_such_name")
    assert not hasattr(smp.nn, "NoSuchLayer")
    return messages


def test_unavailable_names_are_refused_by_name(ranks: Ranks) -> None:
    (messages,) = ranks.run(refused, {"partitions": 1, "microbatches": 1})
    expected = [
        "smp.model_creation has no argument 'fused_softmacks'; there are tensor_parallelism, dtype, zero_init, atten",
        "smp.model_creation(use_alibi=True): modules keep the positions of the script's own model",
        "model.join() is for replicas",
        "model.register_comm_hook() is for replicas",
        "the optimizer has a parameter of shape [3] that the DistributedModel has not",
        "smp.DistributedOptimizer: init_scale without dynamic_loss_scale=True: nothing would use it",
    ]
    for text, start in zip(messages, expected, strict=True):
        assert text.startswith(start)


def accepted() -> tuple[list[str], torch.dtype]:
    import herringbone_parallel.torch.model_parallel.api as smp

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with smp.delay_param_initialization(enabled=False), smp.model_creation(dtype=torch.float64):
            module = nn.Linear(2, 2)
        smp.DistributedModel(module, bucket_cap_mb=50, broadcast_buffers=True)
    assert nn.Linear(1, 1).weight.dtype == torch.float32
    return [str(warning.message).split(" has no effect")[0] for warning in caught], module.weight.dtype


def test_an_argument_without_effect_gives_a_warning(ranks: Ranks) -> None:
    for warned, dtype in ranks.run(accepted, dict(TWO)):
        assert dtype == torch.float64
        assert warned == ["smp.DistributedModel(bucket_cap_mb=50)"]


def misspelled() -> None:
    import herringbone_parallel.torch.model_parallel.api as smp

    smp.DistributedModel(nn.Linear(2, 2), bucket_cap=25)


def test_an_unknown_argument_is_named(ranks: Ranks) -> None:
    with pytest.raises(RankFailedError, match=r"no argument 'bucket_cap'; there are .*bucket_cap_mb"):
        ranks.run(misspelled, {"partitions": 1, "microbatches": 1})
