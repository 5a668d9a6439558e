"""The names of SMP v1's tensor parallelism: marks, registered classes, state dicts, checkpoints, queries."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.pipeline.schedule import Ready, make_lockstep
from herringbone_parallel.torch.model_parallel.tensor import marks
from herringbone_parallel.torch.model_parallel.tensor.huggingface import gpt2
from herringbone_parallel.torch.model_parallel.tensor.transformer import DistributedTransformerLMHead
from tests.parallel.torch.model_parallel.tensor.test_equality import Encoder, batch_of, loss_of
from tests.parallel.torch.ranks import RankFailedError, Ranks

TWO = {"partitions": 1, "tensor_parallel_degree": 2, "ddp": True}


def model_of(seed: int) -> Any:
    """Return a distributed model and its optimizer after one step."""
    import herringbone_parallel.torch.model_parallel.api as smp

    torch.manual_seed(seed)
    with smp.model_creation(tensor_parallelism=True, dtype=torch.float64, fused_softmax=True):
        module = Encoder()
    model = smp.DistributedModel(module)
    optimizer = smp.DistributedOptimizer(torch.optim.AdamW(model.parameters(), lr=0.01))
    return model, optimizer


def step(model: Any, optimizer: Any) -> float:
    import herringbone_parallel.torch.model_parallel.api as smp

    @smp.step
    def train_step(ids: torch.Tensor) -> torch.Tensor:
        loss = loss_of(model(ids), ids)
        model.backward(loss)
        return loss

    optimizer.zero_grad()
    loss = train_step(batch_of(smp.dp_rank())).reduce_mean()
    optimizer.step()
    return float(loss)


def state_dicts() -> Any:
    """Return the state after a step, the shapes of this rank's parts, and what a model gives that loads the state."""
    from herringbone_parallel.torch.model_parallel import state

    model, optimizer = model_of(1)
    step(model, optimizer)
    # Copies: as torch's, a state dict has the parameters themselves.
    saved, local = copy.deepcopy(((model.state_dict(), optimizer.state_dict()), model.local_state_dict()))
    shapes = {name: list(value.shape) for name, value in local.items() if torch.is_tensor(value)}
    loss = step(model, optimizer)
    library = state.get()
    losses = []
    for part in (saved[0], local):
        library.model, library.optimizers = None, []
        other, others_optimizer = model_of(7)
        other.load_state_dict(part)
        others_optimizer.load_state_dict(saved[1])
        losses.append(step(other, others_optimizer))
    return saved, shapes, losses == [loss, loss]


def test_state_dicts_have_whole_tensors_and_load_into_parts(ranks: Ranks) -> None:
    for saved, shapes, equal in ranks.run(state_dicts, dict(TWO)):
        assert shapes["layers.0.linear1.weight"] == [8, 8]
        assert shapes["layers.0.linear2.weight"] == [8, 8]
        assert equal
        weights, states = saved
        plain = Encoder().double()
        plain.load_state_dict(weights)
        optimizer = torch.optim.AdamW(plain.parameters(), lr=0.01)
        optimizer.load_state_dict(states)
        for parameter, entry in optimizer.state.items():
            assert entry["exp_avg"].shape == parameter.shape


def step_of(how: str) -> Any:
    """Return the losses of two steps of a model that is made, or computes, in another way."""
    import herringbone_parallel.torch.model_parallel.api as smp

    torch.manual_seed(1)
    with smp.model_creation(tensor_parallelism=True, dtype=torch.float64):
        module = Encoder()
    if how == "bf16":
        module.float()
    for index, layer in enumerate(module.layers):
        smp.set_partition(layer, index % smp.pp_size())
        if how == "checkpointed":
            smp.set_activation_checkpointing(layer)
    model = smp.DistributedModel(module)
    optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    return [step(model, optimizer) for _ in range(2)]


@pytest.mark.parametrize(
    ("how", "parameters", "tolerance"),
    [
        ("checkpointed", {}, 1e-12),
        ("checkpointed", {"partitions": 2, "auto_partition": False, "default_partition": 0, "microbatches": 2}, 1e-12),
        ("automatic", {"partitions": 2, "microbatches": 2}, 1e-12),
        ("zero bubble", {"partitions": 2, "microbatches": 4, "pipeline": "zero_bubble"}, 1e-12),
        ("sharded", {"replicas": 2, "sharded_data_parallel_degree": 2, "sdp_param_persistence_threshold": 8}, 1e-12),
        ("bf16", {"bf16": True}, 0.05),
    ],
)
def test_features_of_the_library_work_with_tensor_parallelism(
    ranks: Ranks, how: str, parameters: dict[str, Any], tolerance: float
) -> None:
    plain = ranks.run(step_of, {**TWO, "replicas": parameters.get("replicas", 1)}, "plain")
    shared = ranks.run(step_of, {**TWO, **parameters}, how)
    # Ranks of a pipeline have one loss, that of their tensor rank's batch.
    for rank, losses in enumerate(shared):
        assert losses == pytest.approx(plain[rank % len(plain)], abs=tolerance)


def delayed() -> Any:
    import herringbone_parallel.torch.model_parallel.api as smp

    model, optimizer = model_of(1)
    loss = step(model, optimizer)
    return loss, sum(parameter.numel() for parameter in model.local_parameters()), smp.tp_rank()


def test_delayed_parameters_are_shared_once_they_have_values(ranks: Ranks) -> None:
    parameters = {**TWO, "partitions": 2, "microbatches": 2, "delayed_parameter_initialization": True}
    answers = ranks.run(delayed, parameters)
    whole = sum(parameter.numel() for parameter in Encoder().parameters())
    assert sum(count for _, count, _ in answers) < 1.2 * whole
    assert all(loss < 4 for loss, _, _ in answers)


def queries() -> Any:
    import herringbone_parallel.torch.model_parallel.api as smp

    model, optimizer = model_of(1)
    step(model, optimizer)
    parameters = dict(model.local_named_parameters())
    walk, walks = model.local_named_parameters, []
    model.local_named_parameters = lambda: walks.append(None) or walk()
    torch.nn.utils.clip_grad_norm_(list(model.parameters()), 1.0)
    del model.local_named_parameters
    return {
        "walks of a clip": len(walks),
        "modules": [type(module).__name__ for module in model.distributed_modules],
        "shared": model.is_distributed_parameter(parameters["layers.0.linear1.weight"]),
        "normalisation": model.is_distributed_parameter(parameters["layers.0.norm1.weight"]),
        "scaled": [name for name, parameter in parameters.items() if not model.is_scaled_batch_parameter(parameter)],
        "default": "layers.0.norm1.weight" in dict(model.default_reducer_named_parameters()),
        "by replicas": "layers.0.linear1.weight" in dict(model.scaled_batch_reducer_named_parameters()),
        "sizes": (smp.tp_size(), smp.dp_size(), smp.rdp_size(), smp.pp_size()),
    }


def test_a_model_answers_which_parameters_are_shared(ranks: Ranks) -> None:
    answers = ranks.run(queries, dict(TWO))[0]
    assert answers == {
        # The embedding and the head are shared one by one, so the batches come together there as well.
        "modules": ["Linear", "TransformerEncoderLayer", "TransformerEncoderLayer", "Embedding"],
        "shared": True, "normalisation": False, "scaled": ["norm.weight", "norm.bias"],
        "default": True, "by replicas": True, "sizes": (2, 2, 1, 1),
        # One to find out whose the parameters are, and one for those that are shared, however many there are.
        "walks of a clip": 2,
    }  # fmt: skip


class Mine(nn.Module):
    def __init__(self, width: int, bias: bool = True) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width, bias=bias)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"out": self.layer(x)}


def test_a_registered_class_takes_the_place_of_marked_modules() -> None:
    from herringbone_parallel.torch.model_parallel.tensor.layers import DistributedLinear

    def init_hook(width: int, bias: bool = True) -> Any:
        return (width, width), {"bias": bias}

    marks.tp_register_with_module(
        Mine, DistributedLinear, init_hook, lambda x: ((x * 2,), {}), lambda result: {"out": result}
    )
    with marks.tensor_parallelism(bias=False):
        marked = Mine(4)
        with marks.tensor_parallelism(enabled=False):
            unmarked = Mine(4)
    model = nn.Sequential(marked, unmarked)
    assert marks.replace_registered(model) is model
    assert isinstance(model[0], marks.Replacement)
    assert model[1] is unmarked
    # The keyword of `tensor_parallelism` comes before what the hook returns.
    assert model[0].dist_module.bias is None
    x = torch.ones(1, 4)
    torch.testing.assert_close(model[0](x), {"out": 2 * model[0].dist_module(x)})
    # The whole model may be an instance, such as a language model that `DistributedTransformerLMHead` replaces.
    assert isinstance(marks.replace_registered(marked), marks.Replacement)


def test_a_hook_that_does_not_fit_is_named() -> None:
    from herringbone_parallel.torch.model_parallel.tensor.layers import DistributedLinear

    class Other(nn.Module):
        def __init__(self, config: dict[str, int]) -> None:
            super().__init__()

    marks.tp_register(DistributedLinear)(Other)
    with marks.tensor_parallelism():
        model = nn.Sequential(Other({}))
    with pytest.raises(ParallelError, match=r"DistributedLinear does not take the arguments of Other: .* init_hook"):
        marks.replace_registered(model)


def test_a_gpt2_s_state_dict_is_translated_and_back() -> None:
    model = DistributedTransformerLMHead(
        num_layers=2, num_attention_heads=2, attention_head_size=4, hidden_size=8, intermediate_size=16, vocab_size=10,
        num_positions=6, causal_mask_size=6, pre_layernorm=True,
    )  # fmt: skip
    ours = model.state_dict()
    theirs = gpt2.translate_state_dict_to_hf_gpt2(ours, max_seq_len=5)
    assert theirs["transformer.wpe.weight"].shape == (5, 8)
    assert theirs["transformer.h.1.attn.c_attn.weight"].shape == (8, 24)
    assert theirs["transformer.h.1.mlp.c_fc.weight"].shape == (8, 16)
    assert "transformer.ln_f.bias" in theirs
    back = gpt2.translate_hf_state_dict_to_smdistributed_gpt2(gpt2.translate_state_dict_to_hf_gpt2(ours))
    torch.testing.assert_close(back, dict(ours), rtol=0, atol=0)


def test_the_lockstep_schedule_waits_for_the_microbatch_whose_turn_it_is() -> None:
    choose = make_lockstep("interleaved", active=2, count=3)
    # Microbatch 1 waits for a message in its forward, so neither a fresh one nor a backward may start.
    assert choose(Ready(forward=(), backward=(0,), fresh=(2,), live=2, forwards_left=2)) is None
    assert choose(Ready(forward=(1,), backward=(0,), fresh=(2,), live=2, forwards_left=2)) == 1
    # Two are live: the oldest's backward is next, and no other.
    assert choose(Ready(forward=(), backward=(0, 1), fresh=(2,), live=2, forwards_left=1)) == 0
    assert choose(Ready(forward=(), backward=(1,), fresh=(2,), live=2, forwards_left=1)) is None
    assert choose(Ready(forward=(), backward=(1,), fresh=(2,), live=1, forwards_left=1)) == 2


def test_alibi_is_refused() -> None:
    with (
        pytest.raises(ParallelError, match=r"use_alibi=True\) is not available"),
        marks.tensor_parallelism(use_alibi=True),
    ):
        pass


def call_after_export() -> tuple[list[int], list[int]]:
    import herringbone_parallel.torch.model_parallel.api as smp

    torch.manual_seed(1)
    module = nn.Sequential(nn.Linear(4, 6))
    smp.set_tensor_parallelism(module)
    model = smp.DistributedModel(module)
    local = list(module[0].weight.shape)
    model.cpu()
    with pytest.raises(ParallelError, match=r"^model\.cpu\(\) of layers that a tensor group shares: .*load"):
        module(torch.ones(2, 4))
    return local, list(module.state_dict()["0.weight"].shape)


def test_an_exported_module_says_that_its_layers_were_shared(ranks: Ranks) -> None:
    """Its layers had whole weights, and still put together the outputs of all ranks, so the output was too wide."""
    for shapes in ranks.run(call_after_export, dict(TWO)):
        assert shapes == ([3, 4], [6, 4])


def different_batches(call: str) -> None:
    import herringbone_parallel.torch.model_parallel.api as smp

    module = nn.Sequential(nn.Linear(4, 6))
    smp.set_tensor_parallelism(module)
    model = smp.DistributedModel(module)
    if call == "join":
        model.join().__enter__()
    smp.step(lambda inputs: model.backward(model(inputs).sum()))(torch.ones(2, 3 + 2 * smp.tp_rank(), 4))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("join", r"model\.join\(\) with tensor_parallel_degree: .*prescaled_batch"),
        ("lengths", r"shapes \[\[2, [35], 4\]\] here.* pad these to one length .*prescaled_batch"),
    ],
)
def test_what_different_batches_of_a_tensor_group_exclude_is_named(ranks: Ranks, call: str, message: str) -> None:
    with pytest.raises(RankFailedError, match=message):
        ranks.run(different_batches, dict(TWO), call)
