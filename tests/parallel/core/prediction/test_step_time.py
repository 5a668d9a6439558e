"""The seconds of a step, from literal measurements."""

import pytest

pytest.importorskip("numpy")

from dataclasses import replace as replace_layout

from msgspec.structs import replace

from herringbone_contract.model_parallel.mesh import Mesh
from herringbone_contract.prediction.devices import Device, Link
from herringbone_contract.prediction.question import Hosts
from herringbone_parallel.core.partition.costs import CostNode, CostTree, Value
from herringbone_parallel.core.partition.costs import Link as CostLink
from herringbone_parallel.core.pipeline.simulate import Segment, simulate
from herringbone_parallel.core.prediction import step_time
from herringbone_parallel.core.prediction.layout import Layout, Library, ShardLimits
from herringbone_parallel.core.prediction.measurement import (
    Call,
    Job,
    Measurement,
    Module,
    Operation,
    Parameter,
    Phase,
    Timings,
)
from herringbone_parallel.core.prediction.step_time import StepModel

# Two layers of 1 s forward, 2 s backward and 0.5 s optimizer each, on a device of 1 FLOP/s.
FORWARD, BACKWARD, UPDATE = (
    Operation("aten.mm.default", ((8, 4), (4, 4)), "float32", 100, 0),
    Operation("aten.mm.default", ((4, 8), (8, 4)), "float32", 200, 0),
    Operation("aten.addcdiv_.default", ((4, 4), (4, 4)), "float32", 0, 50),
)
TREE = CostTree(
    root=CostNode(
        path="",
        children=(
            CostNode(path="a", parameters={1: 64}, seconds=3.0),
            CostNode(path="b", parameters={2: 64}, seconds=3.0),
        ),
    ),
    link=CostLink(bytes_per_second=1e9),
)
STEP = Measurement(
    framework="torch 2.13.0",
    device="cpu",
    wrapper="smp",
    tree=TREE,
    modules=(Module("", "Model"), Module("a", "Linear", "column", True, True), Module("b", "Linear", "row", True)),
    parameters=(
        Parameter("a.weight", 1, (4, 4), "float32", 64),
        Parameter("b.weight", 2, (4, 4), "float32", 64),
    ),
    operations=(FORWARD, BACKWARD, UPDATE),
    calls=(
        Call(0, 1, Phase.FORWARD),
        Call(0, 2, Phase.FORWARD),
        Call(1, 2, Phase.BACKWARD),
        Call(1, 1, Phase.BACKWARD),
        Call(2, 1, Phase.OPTIMIZER),
        Call(2, 2, Phase.OPTIMIZER),
    ),
    tensors=(),
)
DEVICE = Device(
    name="cpu",
    memory_bytes=1 << 30,
    operations_per_second={"float32": 100},
    bytes_per_second=100,
    fraction=1.0,
    call_seconds=0.0,
    link=Link(bytes_per_second=1e12),
)
GPU = replace(DEVICE, name="gpu", link=Link(bytes_per_second=128.0))


def on_cores(ranks: int, cores: int) -> Hosts:
    return Hosts(name="local_process", count=1, ranks_per_host=ranks, device=DEVICE, cores=cores)


def on_gpus(ranks: int, device: Device = GPU) -> Hosts:
    return Hosts(name="gpus", count=1, ranks_per_host=ranks, device=device, devices=ranks)


def seconds(layout: Layout, hosts: Hosts, timings: Timings | None = None) -> float:
    step = StepModel(STEP, hosts, timings).step_time(layout)
    assert step.seconds.low < step.seconds.expected < step.seconds.high
    assert step.reasons
    parts = step.compute + step.communication + step.idle + step.data
    assert parts == pytest.approx(step.seconds.expected)
    return step.seconds.expected


def test_one_rank_computes_all() -> None:
    assert seconds(Layout(), on_gpus(1)) == pytest.approx(7.0)
    assert StepModel(STEP, on_gpus(1)).step_time(Layout()).compute == pytest.approx(7.0)


def test_twice_the_batch_is_twice_the_work_but_of_the_optimizer() -> None:
    assert seconds(Layout(batch_scale=2.0), on_gpus(1)) == pytest.approx(13.0)


def test_checkpointed_modules_run_forward_twice() -> None:
    assert seconds(Layout(checkpointing=True), on_gpus(1)) == pytest.approx(8.0)


def test_ranks_take_turns_on_shared_cores() -> None:
    layout = Layout(mesh=Mesh(replicate=4), library=Library.DDP)
    timings = replace(TIMED, collectives={})
    assert seconds(layout, on_cores(4, 4), timings) == pytest.approx(7.0, rel=1e-3)
    assert seconds(layout, on_cores(4, 2), timings) == pytest.approx(14.0, rel=1e-3)


def test_the_figures_of_a_processor_are_those_of_all_its_cores() -> None:
    layout = Layout(mesh=Mesh(replicate=4), library=Library.DDP)
    # One rank of 7 s has all cores; four ranks have a core each, or take turns on two.
    assert seconds(Layout(), on_cores(1, 4)) == pytest.approx(7.0)
    for cores in (4, 2):
        assert seconds(layout, on_cores(4, cores)) == pytest.approx(28.0, rel=1e-3)


def test_gradients_of_the_first_layer_are_summed_after_the_backward() -> None:
    # One bucket of 128 bytes: a ring of two ranks sends it once, in a second.
    layout = Layout(mesh=Mesh(replicate=2), library=Library.DDP)
    assert seconds(layout, on_gpus(2)) == pytest.approx(8.0)


def test_sums_of_accumulated_gradients_happen_once_in_so_many_steps() -> None:
    layout = Layout(mesh=Mesh(replicate=2), library=Library.DDP, aggregation=4)
    assert seconds(layout, on_gpus(2)) == pytest.approx(7.25)


def test_sharded_states_are_gathered_twice_and_their_update_is_shared() -> None:
    # Units of 64 bytes, a quarter of a second each; all but the first gathers and the last scatter are hidden.
    layout = Layout(mesh=Mesh(shard=2), library=Library.VERSION2)
    assert seconds(layout, on_gpus(2)) == pytest.approx(6.5 + 3 * 0.25)


# Forward 1 s, backward 2 s and optimizer 0.5 s for each of two layers, as above, and a link of 128 bytes a second.
TIMED = Timings(
    device="cpu",
    processes=2,
    forward_s=2.0,
    backward_s=4.0,
    optimizer_s=1.0,
    copied_bytes_per_second=1e12,
    collectives={"all_reduce": Link(latency_s=0.0, bytes_per_second=128.0)},
)


def test_more_ranks_than_measured_exchange_more_messages() -> None:
    two, four = (Layout(mesh=Mesh(shard=ranks), library=Library.VERSION2) for ranks in (2, 4))
    # A rank has a quarter of the optimizer instead of a half. Three messages pass a quarter of the bytes more.
    more = seconds(four, on_cores(4, 4), TIMED) - seconds(two, on_cores(2, 2), TIMED)
    assert more == pytest.approx(-0.25 + 3 * 128 / 4 / 128)


@pytest.mark.parametrize(
    ("limits", "cores", "expected"),
    [
        # Half of the optimizer is left. 128 bytes are gathered, and summed: 0.5 + 1 s.
        (ShardLimits(whole=16), True, 6.5 + 1.5),
        # Small parameters stay whole, and their sum is that of replicas.
        (ShardLimits(whole=17), True, 7.0 + 1.0),
        # Only GPUs reduce a part alone.
        (ShardLimits(whole=16), False, 6.5 + 1.0),
        # Each forward and backward of two microbatches gathers.
        (ShardLimits(whole=16, live=31), True, 6.5 + 4 * 0.5 + 1.0),
    ],
)
def test_version_1_divides_large_parameters_and_gathers_them_once(
    limits: ShardLimits, cores: bool, expected: float
) -> None:
    layout = Layout(mesh=Mesh(shard=2), library=Library.VERSION1, microbatches=2, limits=limits)
    hosts, timings = (on_cores(2, 2), TIMED) if cores else (on_gpus(2), None)
    measured = replace(STEP, microbatches=2)
    # The ranks agree by a gather and a sum of 8 bytes.
    agreed = 8 / 2 / 128 + 2 * 8 / 2 / 128
    seconds_of_step = StepModel(measured, hosts, timings).step_time(layout).seconds.expected
    assert seconds_of_step == pytest.approx(expected + agreed, rel=1e-3)


def shared_update_s(replicas: int, timings: Timings | None) -> float:
    """Return the seconds that sharing the update adds to a step."""
    whole = Layout(mesh=Mesh(replicate=replicas), library=Library.VERSION1)
    shared = replace_layout(whole, shard_optimizer_state=True)
    hosts = on_cores(replicas, replicas)
    return seconds(shared, hosts, timings) - seconds(whole, hosts, timings)


def test_replicas_that_share_the_update_gather_it() -> None:
    # Half of the optimizer is left. Half of 128 bytes are gathered, and copied six times.
    slow = replace(TIMED, copied_bytes_per_second=128.0)
    assert shared_update_s(2, slow) == pytest.approx(-0.5 + 0.5 + 6.0, rel=1e-3)


def test_tensor_parallel_ranks_share_layers_and_sum_activations() -> None:
    layout = Layout(mesh=Mesh(tensor=2), library=Library.VERSION1)
    fast = Device(**{**{f: getattr(GPU, f) for f in GPU.__struct_fields__}, "link": Link(bytes_per_second=1e15)})
    assert seconds(layout, on_gpus(2, fast)) == pytest.approx(3.5)
    # A second for the 128 bytes of the column's input gradient, and one for those of the row's result.
    assert seconds(layout, on_gpus(2)) == pytest.approx(3.5 + 2.0)


@pytest.mark.parametrize(("prescaled", "expected"), [(False, 9.5), (True, 10.5)])
def test_a_tensor_group_computes_on_all_of_its_batches_in_its_layers_alone(prescaled: bool, expected: float) -> None:
    # Of two batches: half of the layers' 6 s for each, and half of the optimizer. The norm is in the layers' unit, and
    # takes a second for each; what is outside of units takes a second for each batch that the rank reads.
    modules = (
        *(Module("", "Model"), Module("unit.a", "Linear", "column"), Module("unit.b", "Linear", "row")),
        *(Module("unit", "Layer", unit=True), Module("unit.norm", "LayerNorm"), Module("loss", "Loss")),
    )
    calls = (*STEP.calls, Call(0, 4, Phase.FORWARD), Call(0, 5, Phase.FORWARD))
    measured = replace(STEP, modules=modules, calls=calls)
    layout = Layout(mesh=Mesh(tensor=2), library=Library.VERSION1, batch_scale=2.0, prescaled_batch=prescaled)
    fast = replace(GPU, link=Link(bytes_per_second=1e15))
    assert StepModel(measured, on_gpus(2, fast)).step_time(layout).seconds.expected == pytest.approx(expected)


@pytest.mark.parametrize(("prescaled", "expected"), [(False, 3.0), (True, 6.0)])
def test_each_rank_of_a_tensor_group_waits_for_its_own_batch(prescaled: bool, expected: float) -> None:
    measured = replace(STEP, data_seconds=3.0)
    layout = Layout(mesh=Mesh(tensor=2), library=Library.VERSION1, batch_scale=2.0, prescaled_batch=prescaled)
    assert StepModel(measured, on_gpus(2)).step_time(layout).data == pytest.approx(expected)


@pytest.mark.parametrize(("split", "expected"), [("column", 1.0), ("row", 4.0), ("", 0.0)])
def test_a_column_sums_the_gradient_of_its_input_and_a_row_its_result(split: str, expected: float) -> None:
    # 8 rows of 4 numbers become 8 rows of 16.
    operations = (replace(FORWARD, shapes=((8, 4), (4, 16))), BACKWARD, UPDATE)
    measured = replace(STEP, operations=operations, modules=(*STEP.modules[:2], Module("b", "Linear", split)))
    layout = Layout(mesh=Mesh(tensor=2), library=Library.VERSION1)
    links = (Link(bytes_per_second=128.0), Link(bytes_per_second=1e15))
    slow, fast = (
        StepModel(measured, on_gpus(2, replace(GPU, link=link))).step_time(layout).seconds.expected for link in links
    )
    # The first layer is a column in each case.
    assert slow - fast == pytest.approx(1.0 + expected)


def test_a_pipeline_waits_as_the_simulator_says() -> None:
    layout = Layout(mesh=Mesh(pipeline=2), library=Library.VERSION1, microbatches=2, active=4)
    device = Device(**{**{f: getattr(GPU, f) for f in GPU.__struct_fields__}, "link": Link(bytes_per_second=1e15)})
    # Stages of 0.5 s and 1 s: (2 microbatches + 1) x 1.5 s, and half of the optimizer.
    assert seconds(layout, on_gpus(2, device)) == pytest.approx(5.0)


def test_a_pipeline_on_fewer_cores_takes_the_time_of_its_work() -> None:
    layout = Layout(mesh=Mesh(pipeline=2), library=Library.VERSION1, microbatches=2, active=4)
    assert seconds(layout, on_cores(2, 1)) == pytest.approx(7.0, rel=1e-3)


@pytest.mark.parametrize(
    ("cores", "expected"),
    [
        # A pass of a stage takes half a second longer, each way: 3 x 2.5 s, 1 s of the step, half of the optimizer.
        (2, 9.0),
        # The ranks take turns with all of their work: 3.5 s of operations, 1 s of the step, 2 s of microbatches.
        (1, 13.0),
    ],
)
def test_a_pipeline_takes_the_time_of_its_runtime(monkeypatch: pytest.MonkeyPatch, cores: int, expected: float) -> None:
    layout = Layout(mesh=Mesh(pipeline=2), library=Library.VERSION1, microbatches=2, active=4)
    # 1 s for a microbatch: 0.1 s, 0.2 s for each of two modules, and 0.5 s for the value that passes.
    for name, time_s in {"_STEP_S": 1.0, "_MICROBATCH_S": 0.1, "_CALL_S": 0.2, "_VALUE_S": 0.5}.items():
        monkeypatch.setattr(step_time, name, time_s)
    value = Value(source="a", users=("b",), forward_bytes=0, backward_bytes=0)
    measured = replace(STEP, tree=replace(TREE, values=(value,)))
    step = StepModel(measured, on_cores(2, cores), TIMED).step_time(layout)
    assert step.seconds.expected == pytest.approx(expected, rel=1e-3)


def test_timed_steps_replace_the_figures_of_the_device() -> None:
    timings = Timings(device="cpu", forward_s=0.2, backward_s=0.4, optimizer_s=0.1)
    assert seconds(Layout(), on_cores(1, 1), timings) == pytest.approx(0.7)
    # The timed device is another one.
    assert seconds(Layout(), on_gpus(1), timings) == pytest.approx(7.0)


@pytest.mark.parametrize(
    ("modules", "expected"),
    [
        # Four fifths of forward and backward are in the second layer: 2 x 2.4 s and 0.6 s, and 0.5 s of the update.
        ({"a": (0.4, 0.8), "b": (1.6, 3.2)}, 2 * 2.4 + 0.6 + 0.5),
        # Of a module that was not timed, the estimate serves; time of modules without calls is divided over all.
        ({"b": (1.0, 2.0), "other": (9.0, 9.0)}, None),
    ],
)
def test_timed_modules_divide_a_step(modules: dict[str, tuple[float, float]], expected: float | None) -> None:
    timings = replace(TIMED, modules=modules, collectives={})
    # In all the modules take what the step took.
    assert StepModel(STEP, on_cores(2, 2), timings).step_time(Layout()).compute == pytest.approx(7.0)
    if expected is not None:
        layout = Layout(mesh=Mesh(pipeline=2), library=Library.VERSION1, microbatches=2, active=4)
        step = StepModel(STEP, on_cores(2, 2), timings).step_time(layout)
        assert step.seconds.expected == pytest.approx(expected, rel=1e-2)


@pytest.mark.parametrize(("scale", "expected"), [(1.0, 10.0), (2.0, 10.0 * 13.0 / 7.0)])
def test_the_layout_of_the_job_takes_the_time_that_its_ranks_took(scale: float, expected: float) -> None:
    measured = replace(STEP, wrapper="DistributedDataParallel")
    job = Job(distribution={"mpi": {"enabled": True, "processes_per_host": 2}}, ranks=2, seconds=10.0)
    fast = {"all_reduce": Link(latency_s=0.0, bytes_per_second=1e15)}
    model = StepModel(measured, on_cores(2, 2), replace(TIMED, job=job, collectives=fast))
    layout = Layout(mesh=Mesh(replicate=2), library=Library.DDP, batch_scale=scale)
    step = model.planned(layout)
    assert step.seconds.expected == pytest.approx(expected, rel=1e-3)
    assert step.seconds.low < step.seconds.expected < step.seconds.high
    assert step.compute + step.communication + step.idle + step.data == pytest.approx(step.seconds.expected)
    # A search compares estimates, and other layouts did not run.
    assert model.step_time(layout).seconds.expected == pytest.approx(expected * 0.7, rel=1e-2)
    other = replace_layout(layout, aggregation=2)
    assert model.planned(other) == model.step_time(other)


def test_ranks_that_share_cores_prepare_their_batches_in_turn() -> None:
    measured = replace(STEP, data_seconds=3.0)
    layout = Layout(mesh=Mesh(replicate=4), library=Library.DDP)
    step = StepModel(measured, on_cores(4, 2), TIMED).step_time(layout)
    assert step.data == pytest.approx(6.0)


@pytest.mark.parametrize(("workers", "expected"), [(0, 10.0), (1, 7.0)])
def test_batches_are_waited_for_unless_workers_prepare_them(workers: int, expected: float) -> None:
    measured = replace(STEP, data_seconds=3.0, data_workers=workers)
    assert StepModel(measured, on_gpus(1)).step_time(Layout()).seconds.expected == pytest.approx(expected)


def test_a_gpu_that_computes_faster_than_operations_start_waits_for_the_processor() -> None:
    slow = replace(GPU, call_seconds=10.0)
    assert seconds(Layout(), on_gpus(1, slow)) == pytest.approx(60.0)


def test_a_network_that_nobody_knows_is_supposed_and_named() -> None:
    hosts = Hosts(name="pair", count=2, ranks_per_host=1, device=GPU)
    step = StepModel(STEP, hosts).step_time(Layout(mesh=Mesh(replicate=2), library=Library.DDP))
    assert any("10 Gbit/s" in reason for reason in step.reasons)


@pytest.mark.parametrize("calls", [1, 10])
def test_a_visit_has_the_work_of_its_calls_whatever_their_number(calls: int) -> None:
    # An embedding and a head share a weight: a third of the first rank's work is before the second one's.
    small = Operation("aten.embedding.default", ((8, 4),), "float32", 0, 50)
    parts = tuple(Operation(small.name, small.shapes, small.dtype, 0, 50 // calls) for _ in range(calls))
    step = replace(
        STEP,
        operations=(FORWARD, BACKWARD, UPDATE, *parts),
        calls=(
            *(Call(3 + part, 1, Phase.FORWARD) for part in range(calls)),
            Call(0, 2, Phase.FORWARD),
            Call(0, 1, Phase.FORWARD),
            *STEP.calls[2:],
        ),
    )
    layout = Layout(mesh=Mesh(pipeline=2), library=Library.VERSION1, microbatches=2, active=4)
    device = replace(GPU, link=Link(bytes_per_second=1e15))
    way = [Segment(0, 0.25, 1 / 3), Segment(1, 0.5, 1.0), Segment(0, 0.5, 2 / 3)]
    expected = simulate([way] * 2, pipeline="interleaved", active=4).step_s + 0.5
    assert StepModel(step, on_gpus(2, device)).step_time(layout).seconds.expected == pytest.approx(expected)


@pytest.mark.parametrize(
    ("slowdown", "threads", "factors"), [(1.1, 2, (0.9, 1.1)), (8.0, 1, (0.45, 8.8)), (8.0, 4, (0.225, 8.8))]
)
def test_bounds_of_a_busy_machine_reach_from_a_quiet_one_to_one_as_busy(
    slowdown: float, threads: int, factors: tuple[float, float]
) -> None:
    timings = replace(TIMED, threads=threads, slowdown=slowdown)
    step = StepModel(STEP, on_cores(1, threads), timings).step_time(Layout())
    assert (step.seconds.low, step.seconds.high) == pytest.approx(tuple(step.seconds.expected * one for one in factors))
    assert [reason for reason in step.reasons if "8 times as long" in reason] == list(step.reasons[1:])
