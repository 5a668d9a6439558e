"""Memory of layouts, of a step that is written by hand: every byte can be counted."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from tests.parallel.core.prediction.steps import two_layers

from herringbone_contract.errors import ParallelError
from herringbone_contract.model_parallel.mesh import Mesh
from herringbone_contract.prediction.answer import Memory
from herringbone_parallel.core.prediction.layout import Layout, Library, ShardLimits
from herringbone_parallel.core.prediction.memory import MemoryModel, slack
from herringbone_parallel.core.prediction.sharing import divided_calls
from herringbone_parallel.core.prediction.stages import Message, Stages

DDP = Layout(mesh=Mesh(replicate=2), library=Library.DDP)
PIPELINE = Layout(mesh=Mesh(pipeline=2), library=Library.VERSION1, microbatches=1, active=4)


def test_one_rank_has_its_peak_in_the_update() -> None:
    # 40 of inputs and 3,000 of the update's temporary.
    assert MemoryModel(two_layers()).memory(Layout()) == (
        Memory(parameters=4000, states=8000, gradients=4000, activations=3040),
    )


def test_buckets_of_replicas_are_as_large_as_the_gradients() -> None:
    (one,), (two,) = MemoryModel(two_layers()).memory(Layout()), MemoryModel(two_layers()).memory(DDP)
    assert two.communication == 4000
    assert two.peak == one.peak + 4000


def test_a_larger_batch_has_larger_activations_alone() -> None:
    model = MemoryModel(two_layers())
    # At 100 times the batch the peak is in the backward of `second`, when its gradient is there.
    (large,) = model.memory(Layout(batch_scale=100.0))
    assert (large.parameters, large.states) == (4000, 8000)
    assert (large.gradients, large.activations) == (3000, 100 * (40 + 100 + 200))


def test_shards_have_parts_and_gather_units() -> None:
    sharded = Layout(mesh=Mesh(shard=2), library=Library.FULLY_SHARD)
    (held,) = MemoryModel(two_layers("fully_shard")).memory(sharded)
    assert (held.parameters, held.states) == (2000, 4000)
    # After the backward of `second`: the whole gradient and this rank's part of it, the buffer that is reduced, and the
    # one in which `first` is gathered. gloo reduces a copy, while a variable still holds the gradient of 3,000 bytes.
    assert (held.gradients, held.communication) == (3000 + 1500, 3000 + 1000 + 3000)
    (on_gpu,) = MemoryModel(two_layers("fully_shard")).memory(sharded, "cuda")
    assert on_gpu.communication == 3000 + 1000


def test_padded_parts_count() -> None:
    # 10 and 30 rows over 4 ranks are 3 and 8 rows.
    (held,) = MemoryModel(two_layers("fully_shard")).memory(Layout(mesh=Mesh(shard=4), library=Library.FULLY_SHARD))
    assert held.parameters == 300 + 800


def test_a_pipeline_divides_layers_and_keeps_live_microbatches() -> None:
    step = two_layers("smp")
    first, second = MemoryModel(step).memory(PIPELINE)
    assert (first.parameters, first.states, second.parameters, second.states) == (1000, 2000, 3000, 6000)
    partition = Stages(step).of(PIPELINE)
    assert partition.messages == (Message(0, 1, 100, 100),)
    assert [visit.partition for visit in partition.visits] == [0, 1]
    # The loss belongs to the call before it, and the backward of each layer to its partition.
    assert partition.calls.tolist()[:5] == [0, 1, 1, 1, 0]


def test_gradients_of_earlier_microbatches_are_there_when_others_are_live() -> None:
    model = MemoryModel(two_layers("smp"))
    layout = replace(PIPELINE, microbatches=8, batch_scale=80.0)
    # 4 of 8 microbatches are live on the first partition, each of 10 times the measured size.
    first, _ = model.memory(layout)
    assert first.gradients == 1000
    # The gradient of the running microbatch, before it is added to the sum of the earlier ones.
    assert first.activations == 80 * 40 + 4 * 10 * 100 + 1000


def test_a_second_backward_holds_its_gradient_and_the_sum_but_one_microbatch_less() -> None:
    model = MemoryModel(two_layers("smp"))
    large, _ = model.memory(replace(PIPELINE, microbatches=2, batch_scale=200.0))
    # In the first backward both microbatches keep 100 bytes, each 100 times the measured size.
    assert (large.gradients, large.activations) == (1000, 200 * 40 + 2 * 100 * 100)
    small, _ = model.memory(replace(PIPELINE, microbatches=2, batch_scale=2.0))
    # In the second one 1,000 bytes are there twice, which is more than a microbatch.
    assert (small.gradients, small.activations) == (1000, 2 * 40 + 100 + 1000)


def test_messages_on_a_cpu_lie_in_buffers() -> None:
    model, layout = MemoryModel(two_layers("smp")), replace(PIPELINE, microbatches=2)
    buffer, kept = (1 << 19) + 192, {}
    for size in (1 << 16, 100, 1 << 20):
        stages = Stages(two_layers("smp"))
        partition = replace(stages.of(layout), messages=(Message(0, 1, size, size),))
        stages.of = lambda _, partition=partition: partition  # type: ignore[method-assign, misc]
        model = MemoryModel(two_layers("smp"), stages)
        kept[size] = [[part.communication for part in model.memory(layout, device)] for device in ("cpu", "cuda")]
    # A receive buffer, and two live values: in such a buffer each, but for tiny ones and those that are too large.
    assert kept == {
        1 << 16: [[buffer, 3 * buffer], [0, 2 << 16]],
        100: [[buffer, buffer + 200], [0, 200]],
        1 << 20: [[buffer, buffer + (2 << 20)], [0, 2 << 20]],
    }


def test_a_model_without_costs_has_no_pipeline() -> None:
    step = msgspec.structs.replace(two_layers("smp"), tree=None)
    with pytest.raises(ParallelError, match=r"needs smp\.DistributedModel"):
        MemoryModel(step).memory(PIPELINE)


def test_slack_is_a_part_of_a_segment_for_each_kind() -> None:
    assert slack([20 << 20, 1]) == (20 << 20) - 1
    assert MemoryModel(two_layers()).memory(Layout(), "cuda")[0].slack > 0


def test_divided_states_leave_whole_parameters() -> None:
    layout = Layout(mesh=Mesh(replicate=2), library=Library.VERSION1, active=3, shard_optimizer_state=True)
    (held,) = MemoryModel(two_layers("smp")).memory(layout)
    assert (held.parameters, held.states) == (4000, 4000)


def test_version_1_divides_the_training_state_and_gathers_it_for_a_step() -> None:
    limits = ShardLimits(whole=300)
    layout = Layout(mesh=Mesh(shard=2), library=Library.VERSION1, active=3, limits=limits)
    (held,) = MemoryModel(two_layers("smp")).memory(layout)
    # `first` has fewer elements than the limit, and stays whole.
    assert (held.parameters, held.states) == (1000 + 1500, 2000 + 3000)
    # When the passes have ended: a bucket of the whole one, the gathered one, and what reduces its gradients.
    assert held.communication == 1000 + 3000 + 4500
    assert held.gradients == 4000


def test_kept_gradients_of_an_aggregation_are_always_there() -> None:
    model = MemoryModel(two_layers())
    (held,) = model.memory(replace(DDP, library=Library.DATA_PARALLEL, aggregation=4, batch_scale=100.0))
    assert (held.gradients, held.activations) == (4000, 100 * (40 + 100 + 200) + 3000)


def test_a_unit_whose_inputs_need_no_gradient_is_whole_until_the_backward_ends() -> None:
    modules = tuple(msgspec.structs.replace(module, late=module.path == "second") for module in two_layers().modules)
    layout = Layout(mesh=Mesh(shard=2), library=Library.FULLY_SHARD)
    (soon,), (late,) = (MemoryModel(step).memory(layout) for step in (two_layers(), two_layers(modules=modules)))
    # The first layer is reduced while the second one has 3,000 bytes of parameters and of gradients. Before, only the
    # second one was there when it was reduced.
    assert (soon.gradients, late.gradients) == (4500, 6000)
    assert soon.peak < late.peak


def test_recomputed_activations_are_not_kept() -> None:
    modules = tuple(msgspec.structs.replace(module, checkpoint=module.path != "") for module in two_layers().modules)
    model = MemoryModel(two_layers(modules=modules))
    (kept,), (again,) = (model.memory(Layout(batch_scale=100.0, checkpointing=asked)) for asked in (False, True))
    assert kept.activations == 100 * (40 + 100 + 200)
    # Those of one layer at a time.
    assert again.activations == 100 * (40 + 200)


def test_ranks_that_share_layers_have_parts_of_what_is_between_them() -> None:
    names = {"first": "column", "second": "row"}
    modules = tuple(
        msgspec.structs.replace(module, split=names.get(module.path, "")) for module in two_layers().modules
    )
    step = two_layers("fully_shard", modules=modules)
    assert divided_calls(step).tolist() == [True, False, False, True, False, False, False]
    (held,) = MemoryModel(step).memory(Layout(mesh=Mesh(tensor=2), library=Library.VERSION2, batch_scale=100.0))
    assert (held.parameters, held.states) == (2000, 4000)
    assert held.activations == 100 * (40 + 50 + 200)
