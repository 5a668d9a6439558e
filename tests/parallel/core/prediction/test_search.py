"""Searches with models whose memory and time are formulas, so that the best layout is known."""

from __future__ import annotations

import io
import json

import msgspec
import pytest

pytest.importorskip("numpy")

from herringbone_contract.prediction.answer import Answer, Memory, Range, StepTime
from herringbone_contract.prediction.devices import Device
from herringbone_contract.prediction.question import Hosts, Question, Search, Work
from herringbone_parallel.core.prediction.candidates import Candidate, candidates
from herringbone_parallel.core.prediction.layout import Layout
from herringbone_parallel.core.prediction.measurement import Measurement, Module, Parameter, to_text
from herringbone_parallel.core.prediction.memory import Allocator, MemoryModel
from herringbone_parallel.core.prediction.predict import Predictor, held_bytes
from herringbone_parallel.core.prediction.search import search
from herringbone_parallel.core.prediction.step_time import StepModel
from herringbone_parallel.predict import main

GIB = 1 << 30
DEVICE = Device(name="test", memory_bytes=8 * GIB, operations_per_second={"float32": 1e12}, bytes_per_second=1e11)


class Formulas(MemoryModel):
    """Memory and time of a model of 12 GiB: ranks divide it; one layer's exchange costs 0.1 s, microbatches fill."""

    def __init__(self, bytes_needed: int = 12 * GIB) -> None:
        self.bytes_needed = bytes_needed

    def memory(self, layout: Layout, allocator: Allocator = "cpu") -> tuple[Memory, ...]:
        mesh = layout.mesh
        share = self.bytes_needed // (mesh.pipeline * mesh.tensor * mesh.shard)
        return (Memory(parameters=share // (4 if layout.checkpointing else 1)),) * mesh.pipeline

    def step_time(self, layout: Layout) -> StepTime:
        mesh = layout.mesh
        idle = (mesh.pipeline - 1) / layout.microbatches * self.seconds_of_equal_parts(layout)
        exchange = 0.1 * (mesh.tensor > 1) + 0.05 * (mesh.shard > 1)
        expected = self.seconds_of_equal_parts(layout) + idle + exchange
        seconds = Range(low=0.9 * expected, expected=expected, high=1.1 * expected)
        return StepTime(seconds=seconds, compute=expected - idle, communication=exchange, idle=idle, data=0.0)

    def seconds_of_equal_parts(self, layout: Layout) -> float:
        return layout.batch_scale / (layout.mesh.pipeline * layout.mesh.tensor)


class Steps(StepModel):
    """The time of `Formulas`."""

    def __init__(self, formulas: Formulas) -> None:
        self.step_time = self.planned = formulas.step_time  # type: ignore[method-assign]


def measured(wrapper: str, *, split: str = "", checkpoint: bool = False, batch: int = 16) -> Measurement:
    return Measurement(
        framework="torch",
        device="cpu",
        batch=batch,
        wrapper=wrapper,
        modules=(Module("", "Model"), Module("block", "Block", split=split, checkpoint=checkpoint)),
        parameters=(Parameter("block.weight", 1, (4, 4), "float32", 64),),
        operations=(),
        calls=(),
        tensors=(),
    )


def hosts(count: int = 1, ranks: int = 4, **changes: object) -> Hosts:
    return msgspec.structs.replace(
        Hosts(name="test", count=count, ranks_per_host=ranks, device=DEVICE, devices=ranks), **changes
    )


def predictor(measurement: Measurement, formulas: Formulas, on: Hosts | None = None) -> Predictor:
    return Predictor(measurement, on or hosts(), memory=formulas, steps=Steps(formulas))


def asked(on: Hosts, limit: int = 50, **changes: object) -> Question:
    given = {"distribution": {}, "search": Search(limit=limit), **changes}
    return Question(measurement="", hosts=on, **given)  # type: ignore[arg-type]


def meshes(measurement: Measurement, base: dict[str, object], ranks: int = 4) -> set[tuple[int, ...]]:
    found = candidates(measurement, hosts(ranks=ranks), base)
    return {tuple(one.layout.mesh) for one in found if isinstance(one, Candidate)}


V1 = {
    "mpi": {"enabled": True, "processes_per_host": 4},
    "smdistributed": {"modelparallel": {"enabled": True, "parameters": {"partitions": 2, "ddp": True}}},
}
V2 = {
    "torch_distributed": {"enabled": True},
    "smdistributed": {"modelparallel": {"enabled": True, "parameters": {"hybrid_shard_degree": 2}}},
}
SMDDP = {"smdistributed": {"dataparallel": {"enabled": True, "aggregation_frequency": 4}}}


def test_the_script_decides_which_degrees_are_candidates():
    # replicate, shard, context, pipeline, tensor
    assert meshes(measured("DistributedDataParallel"), {}) == {(4, 1, 1, 1, 1)}
    assert meshes(measured("fully_shard"), {}) == {(1, 4, 1, 1, 1)}
    assert meshes(measured("fully_shard"), V2) == {(4, 1, 1, 1, 1), (2, 2, 1, 1, 1), (1, 4, 1, 1, 1)}
    pipelines = {(4, 1, 1, 1, 1), (2, 2, 1, 1, 1), (1, 4, 1, 1, 1), (2, 1, 1, 2, 1), (1, 2, 1, 2, 1), (1, 1, 1, 4, 1)}
    assert meshes(measured("smp"), {}) == meshes(measured("smp"), V1) == pipelines
    shared = {(2, 1, 1, 1, 2), (1, 2, 1, 1, 2), (1, 1, 1, 2, 2), (1, 1, 1, 1, 4)}
    assert meshes(measured("smp", split="column"), V1) == pipelines | shared


def test_aggregation_is_never_more_than_the_job_asks_for():
    found = list(candidates(measured("DistributedDataParallel"), hosts(), SMDDP))
    assert [one.layout.aggregation for one in found if isinstance(one, Candidate)] == [1, 2, 4]


def test_the_best_layout_that_fits_is_first_and_the_others_say_why_not():
    formulas = Formulas()
    question = asked(hosts(), distribution=V1, work=Work(steps=100, start_seconds=5.0))
    predictions, _ = search(predictor(measured("smp"), formulas), question)
    best = predictions[0]
    # The whole model needs more than a device has. Half of it fits, and shards cost less than idle partitions.
    assert best.mesh == {"replicate": 2, "shard": 2, "context": 1, "pipeline": 1, "tensor": 1}
    rates = [one.samples_per_second for one in predictions if one.refusal is None]
    assert rates == sorted(rates, reverse=True)
    assert best.seconds is not None
    assert best.step is not None
    assert best.seconds.expected == pytest.approx(5.0 + 100 * best.step.seconds.expected)
    [whole] = {one.refusal for one in predictions if one.mesh.get("replicate") == 4}
    assert whole == "a rank needs test with 12.0 GiB at the peak, and there are 8.0 GiB"
    assert all(one.step is None for one in predictions if one.refusal)


class Near(Formulas):
    """Layouts that share layers are faster than the others by a part of the time."""

    def __init__(self, part: float) -> None:
        super().__init__(GIB)
        self.part = part

    def step_time(self, layout: Layout) -> StepTime:
        expected = layout.batch_scale * layout.mesh.batches * (1 - self.part * (layout.mesh.tensor > 1))
        seconds = Range(low=expected, expected=expected, high=expected)
        return StepTime(seconds=seconds, compute=expected, communication=0.0, idle=0.0, data=0.0)

    def seconds_of_equal_parts(self, layout: Layout) -> float:
        return 0.0


@pytest.mark.parametrize(("part", "tensor"), [(0.01, 1), (0.03, 2)])
def test_the_plainest_of_layouts_that_are_nearly_as_fast_is_first(part, tensor):
    predictions, _ = search(predictor(measured("smp", split="row"), Near(part)), asked(hosts(), distribution=V1))
    first, second = predictions[0], predictions[1]
    assert first.mesh["tensor"] == tensor
    assert second.mesh["tensor"] > 1
    if tensor == 1:
        parameters = first.distribution["smdistributed"]["modelparallel"]["parameters"]
        assert parameters == {"partitions": 1, "ddp": True}


OWN_SETTINGS = (
    {"ddp": True, "bf16": True, "offload_activations": True, "activation_loading_horizon": 2},
    {"ddp": True, "sharded_data_parallel_degree": 2, "sdp_max_live_parameters": 10_000, "microbatches": 2},
)


@pytest.mark.parametrize("settings", OWN_SETTINGS)
def test_candidates_keep_the_settings_of_the_job(settings):
    base = {**V1, "smdistributed": {"modelparallel": {"enabled": True, "parameters": {"partitions": 2, **settings}}}}
    degrees = {"partitions", "microbatches", "sharded_data_parallel_degree", "optimize", "pipeline"}
    for one in (one for one in candidates(measured("smp"), hosts(), base) if isinstance(one, Candidate)):
        parameters = one.distribution["smdistributed"]["modelparallel"]["parameters"]
        kept = {name for name in settings if not name.startswith("sdp_") or one.layout.mesh.shard > 1}
        assert {name: parameters[name] for name in kept - degrees} == {name: settings[name] for name in kept - degrees}


def test_the_answer_has_the_dict_to_paste():
    predictions, _ = search(predictor(measured("smp"), Formulas(GIB)), asked(hosts(), distribution=V1))
    for prediction in predictions:
        if prediction.refusal is None:
            again = predictor(measured("smp"), Formulas(GIB)).planned(prediction.distribution)
            assert again.mesh == prediction.mesh
            assert again.step == prediction.step


def test_a_layout_that_fits_with_checkpointing_says_so():
    search_of = measured("DistributedDataParallel", checkpoint=True)
    predictions, _ = search(predictor(search_of, Formulas()), asked(hosts()))
    assert predictions[0].refusal is not None
    assert predictions[0].refusal.endswith("which the script can turn on, it fits: 3.0 GiB a rank")


@pytest.mark.parametrize(("needed", "limit"), [(GIB, 6), (40 * GIB, 12), (1000 * GIB, 5)])
def test_the_table_is_that_of_all_layouts(needed, limit):
    """A ranking leaves nothing out: memory that fits for all layouts, for some, and for none."""
    question, measurement = asked(hosts(ranks=16), distribution=V1, limit=limit), measured("smp", split="row")
    every = predictor(measurement, Formulas(needed), hosts(ranks=16))
    found = [one for one in candidates(measurement, hosts(ranks=16), V1) if isinstance(one, Candidate)]
    predictions = [every.of_layout(*one) for one in found]
    fitting = sorted((one for one in predictions if one.refusal is None), key=lambda one: -one.samples_per_second)
    large = sorted((one for one in predictions if one.refusal), key=lambda one: max(part.peak for part in one.memory))
    shown = search(predictor(measurement, Formulas(needed), hosts(ranks=16)), question)[0]
    good = [one for one in shown if one.refusal is None]
    assert good == fitting[: len(good)]
    assert len(good) == min(len(fitting), limit - len(shown[len(good) :]))
    if not fitting:
        assert [one.refusal for one in shown] == [one.refusal for one in large[:limit]]


def test_layouts_that_do_not_fit_are_counted_and_the_nearest_are_shown():
    question = asked(hosts(), distribution=V1, limit=5)
    shown, notes = search(predictor(measured("smp"), Formulas(1000 * GIB)), question)
    peaks = [max(part.peak for part in one.memory) for one in shown]
    assert len(shown) == 5
    assert peaks == sorted(peaks)
    assert peaks[0] == 250 * GIB
    assert "of the layouts that came first by their time need more memory than there is; the 5 that" in notes[-1]


def test_ranks_share_the_memory_of_their_device():
    formulas = Formulas(6 * GIB)
    on = hosts(devices=1, cores=2)
    prediction = predictor(measured("DistributedDataParallel"), formulas, on).planned(
        {"torch_distributed": {"enabled": True}}
    )
    assert prediction.refusal == "4 ranks on test need 24.0 GiB at the peak, and there are 8.0 GiB"
    assert prediction.device_bytes == 2 * GIB
    parts = (Memory(parameters=3), Memory(parameters=1))
    layout = Layout(mesh=Layout().mesh._replace(pipeline=2, replicate=2))
    # "DPT": ranks 0 and 2 hold the first partition, and of two devices the first one has both.
    assert held_bytes(parts, hosts(devices=2), layout) == 6
    assert held_bytes(parts, hosts(devices=1), layout) == 8


def test_a_peak_within_the_error_of_the_prediction_is_a_warning_for_the_planned_dict():
    near = predictor(measured("DistributedDataParallel"), Formulas(int(8.2 * GIB)))
    planned = near.planned({"torch_distributed": {"enabled": True}})
    assert planned.refusal is None
    assert "2% above the device's memory" in planned.reasons[-1]


def test_a_dict_that_no_plan_would_accept_is_refused_with_its_sentence():
    planned = predictor(measured("smp"), Formulas(GIB), hosts(ranks=3)).planned(V1)
    assert planned.refusal is not None
    assert "does not divide 3 ranks" in planned.refusal
    unserved = {"pytorchxla": {"enabled": True}}
    planned = predictor(measured(""), Formulas(GIB)).planned(unserved)
    assert planned.refusal is not None
    assert "PyTorch/XLA" in planned.refusal


def test_the_program_answers_on_standard_output(tmp_path):
    path = tmp_path / "measurement.json"
    path.write_bytes(to_text(measured("DistributedDataParallel")))
    question = msgspec.structs.replace(asked(hosts()), measurement=str(path))
    output = io.BytesIO()
    assert main(io.BytesIO(msgspec.json.encode(question)), output) == 0
    reply = msgspec.json.decode(output.getvalue(), type=Answer)
    assert reply.layouts[0].mesh["replicate"] == 4


@pytest.mark.parametrize(
    "text", [b"", b"{}", b"no", json.dumps({"measurement": "x", "hosts": {}, "distribution": {}}).encode()]
)
def test_the_program_says_in_one_line_what_is_wrong(text, capsys):
    assert main(io.BytesIO(text), io.BytesIO()) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
