"""`smp.step`: its arguments, its results, and the mistakes that it refuses."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest
import torch
from torch import nn

from herringbone_contract.errors import ParallelError
from tests.parallel.torch.model_parallel import models
from tests.parallel.torch.ranks import RankFailedError, Ranks

TWO = {"partitions": 2, "microbatches": 4}


def our_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("smp")]


def outputs() -> Any:
    import herringbone_parallel.torch.model_parallel.api as smp

    module, inputs, _ = models.build("Chain")
    model = smp.DistributedModel(module)

    @smp.step(non_split_inputs=["scale"], input_split_axes={"other": 1})
    def evaluate(inputs: torch.Tensor, other: torch.Tensor, scale: torch.Tensor, name: str) -> Any:
        scores = model(inputs) * scale
        return {"scores": scores, "rows": len(scores), "pair": (other, name)}

    with torch.no_grad():
        for _ in range(3):
            result = evaluate(inputs, torch.arange(24).reshape(3, 8), torch.tensor([2.0]), name="n")
    return (
        result["scores"].concat(), result["rows"], result["pair"][0].outputs[1], result["pair"][1],
        result["scores"].outputs[0].requires_grad, result["scores"].stack().shape, our_threads(),
    )  # fmt: skip


def test_tensors_come_back_as_step_outputs_and_the_rest_as_lists(ranks: Ranks) -> None:
    module, inputs, _ = models.build("Chain")
    with torch.no_grad():
        whole = module(inputs) * 2
    for rank, result in enumerate(ranks.run(outputs, dict(TWO))):
        scores, rows, other, names, requires_grad, stacked, threads = result
        torch.testing.assert_close(scores, whole)
        assert rows == [2, 2, 2, 2]
        assert torch.equal(other, torch.arange(24).reshape(3, 8)[:, 2:4])
        assert names == ["n"] * 4
        assert not requires_grad
        assert stacked == (4, 2, models.CLASSES)
        assert threads.count(f"smp-receive-{1 - rank}") == 1
        assert 1 <= threads.count("smp-microbatch") == len(threads) - 1 <= 4, (
            "one thread per live microbatch, and no more"
        )


def bad_batch() -> None:
    import herringbone_parallel.torch.model_parallel.api as smp

    module, inputs, _ = models.build("Chain")
    model = smp.DistributedModel(module)
    smp.step(lambda inputs: model(inputs))(inputs[:7])


def no_data() -> None:
    import herringbone_parallel.torch.model_parallel.api as smp

    module, inputs, _ = models.build("Chain")
    model = smp.DistributedModel(module)
    smp.step(lambda inputs: model(inputs["rows"]))({"rows": inputs.to("meta")})


def outside_step() -> None:
    import herringbone_parallel.torch.model_parallel.api as smp

    module, inputs, _ = models.build("Chain")
    smp.DistributedModel(module)(inputs)


def backward_outside_step() -> None:
    import herringbone_parallel.torch.model_parallel.api as smp

    smp.DistributedModel(models.build("Chain")[0]).backward(torch.zeros(()))


def loss_backward() -> None:
    import herringbone_parallel.torch.model_parallel.api as smp

    module, inputs, _ = models.build("Chain")
    model = smp.DistributedModel(module)
    smp.step(lambda inputs: model(inputs).sum().backward())(inputs)


def backward_under_only_forward() -> None:
    import herringbone_parallel.torch.model_parallel.api as smp

    model = smp.DistributedModel(models.build("Chain")[0])
    train = smp.step(lambda inputs: model.backward(model(inputs).sum()))
    with pytest.raises(ParallelError, match=r"backward\(\) under pipeline '_only_forward'.*leave the call out"):
        train(models.build("Chain")[1])


@pytest.mark.parametrize("partitions", [1, 2])
def test_only_forward_refuses_a_backward_on_every_rank(ranks: Ranks, partitions: int) -> None:
    ranks.run(backward_under_only_forward, {**TWO, "partitions": partitions, "pipeline": "_only_forward"})


@pytest.mark.parametrize("partitions", [1, 2])
def test_only_forward_evaluates(ranks: Ranks, partitions: int) -> None:
    module, inputs, _ = models.build("Chain")
    with torch.no_grad():
        whole = module(inputs) * 2
    for result in ranks.run(outputs, {**TWO, "partitions": partitions, "pipeline": "_only_forward"}):
        torch.testing.assert_close(result[0], whole)


def two_models() -> None:
    import herringbone_parallel.torch.model_parallel.api as smp

    smp.DistributedModel(nn.Linear(2, 2))
    smp.DistributedModel(nn.Linear(2, 2))


def optimizer_first() -> None:
    import herringbone_parallel.torch.model_parallel.api as smp

    smp.DistributedOptimizer(torch.optim.SGD(nn.Linear(2, 2).parameters()))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (bad_batch, "4 microbatches do not divide a batch of 7 (argument 'inputs', axis 0)"),
        (no_data, "argument 'inputs' of the step is on the device 'meta', which has shapes and no data"),
        (outside_step, "runs inside a function decorated with @smp.step"),
        (backward_outside_step, "model.backward() belongs inside a function decorated with @smp.step"),
        (loss_backward, "call model.backward(loss) instead"),
        (two_models, "a script has one DistributedModel"),
        (optimizer_first, "make the smp.DistributedModel before"),
    ],
)
def test_a_mistake_is_named(ranks: Ranks, wrong: Any, message: str) -> None:
    with pytest.raises(RankFailedError) as caught:
        ranks.run(wrong, dict(TWO))
    assert message in str(caught.value)


class Explosive(nn.Linear):
    """Fails in training, but not in the trace, which would notice it on rank 0."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        import herringbone_parallel.torch.model_parallel.api as smp

        if not smp.is_tracing() and self.weight.sum() > -1e9:
            raise ZeroDivisionError("boom in the last layer")
        return super().forward(x)


def explode() -> None:
    import herringbone_parallel.torch.model_parallel.api as smp

    model = smp.DistributedModel(nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6), Explosive(6, 1)))
    smp.step(lambda inputs: model(inputs))(torch.randn(8, 6))


def test_an_exception_on_one_rank_ends_the_step_on_all(ranks: Ranks) -> None:
    with pytest.raises(RankFailedError) as caught:
        ranks.run(explode, dict(TWO))
    assert "ZeroDivisionError: boom in the last layer" in str(caught.value)
    assert (
        "PeerFailedError: pipeline rank 1 failed in this step: ZeroDivisionError: boom in the last layer (in module 2)"
    ) in str(caught.value)


class Deadly(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        import herringbone_parallel.torch.model_parallel.api as smp

        if smp.is_tracing():
            return super().forward(x)
        os._exit(9)


def die() -> None:
    import herringbone_parallel.torch.model_parallel.api as smp

    model = smp.DistributedModel(nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6), Deadly(6, 1)))
    smp.step(lambda inputs: model(inputs))(torch.randn(8, 6))


def test_a_lost_rank_ends_the_step_on_the_others() -> None:
    """Regression, without a launcher, which would end all ranks: the step waited forever for the dead rank."""
    ranks = Ranks()
    with pytest.raises(RankFailedError) as caught:
        ranks.run(die, dict(TWO))
    assert "rank 1:\ndied" in str(caught.value)
    assert "PeerFailedError" in str(caught.value)
    assert "lost contact with pipeline rank 1" in str(caught.value)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"deterministic_server": True}, "not available in this release: deterministic_server"),
        (
            {"auto_partition": False, "default_partition": 0, "partition_file": "p"},
            "keeps an automatic partition, and this job has none",
        ),
        ({"replicas": 2}, "nothing would average their gradients: set 'ddp': True, or start 2 ranks"),
        ({"horovod": True}, "not available in this release: horovod: .* PyTorch averages replicas with 'ddp'"),
        ({"ddp": True, "ddp_dist_backend": "nccl"}, "ddp_dist_backend 'nccl' needs CUDA devices"),
    ],
)
def test_a_setting_that_cannot_be_served_is_named_at_init(ranks: Ranks, setting: dict[str, Any], message: str) -> None:
    with pytest.raises(RankFailedError, match=message):
        ranks.run(outputs, {**TWO, **setting})


class Shrinking(nn.Module):
    """Returns fewer rows from its fifth call on."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.layer(x)[: 1 if self.calls > 4 else 2]


def unforeseen_shapes() -> None:
    import herringbone_parallel.torch.model_parallel.api as smp

    model = smp.DistributedModel(nn.Sequential(Shrinking(), nn.Linear(6, 6)))
    evaluate = smp.step(lambda inputs: model(inputs))
    evaluate(torch.randn(8, 6))
    evaluate(torch.randn(8, 6))


def test_shapes_that_cannot_be_foreseen_are_an_error_and_no_hang(ranks: Ranks) -> None:
    with pytest.raises(RankFailedError, match=r"0 returned other shapes than before .* now \[1, 6\] float32"):
        ranks.run(unforeseen_shapes, dict(TWO))


def inference() -> torch.Tensor:
    import herringbone_parallel.torch.model_parallel.api as smp

    module, inputs, _ = models.build("Residual")
    model = smp.DistributedModel(module)
    evaluate = smp.step(lambda inputs: model(inputs) + inputs[:, : models.CLASSES])
    with torch.inference_mode():
        return evaluate(inputs * 2).concat()


def test_inference_mode_evaluates(ranks: Ranks) -> None:
    module, inputs, _ = models.build("Residual")
    with torch.no_grad():
        whole = module(inputs * 2) + inputs[:, : models.CLASSES] * 2
    for scores in ranks.run(inference, dict(TWO)):
        torch.testing.assert_close(scores, whole)


def autocast() -> tuple[list[torch.dtype], bool]:
    import herringbone_parallel.torch.model_parallel.api as smp

    module, inputs, _ = models.build("Chain")
    model = smp.DistributedModel(module)
    evaluate = smp.step(lambda inputs: model(inputs))
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = evaluate(inputs)
    plain = evaluate(inputs)
    return [mixed.outputs[0].dtype, plain.outputs[0].dtype], evaluate(inputs).outputs[0].requires_grad


def test_grad_mode_and_autocast_of_the_caller_hold_inside(ranks: Ranks) -> None:
    assert ranks.run(autocast, dict(TWO)) == [([torch.bfloat16, torch.float32], False)] * 2
