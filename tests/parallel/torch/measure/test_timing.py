"""Operations of a measurement are called again and timed."""

import json
import time
import weakref
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace

from herringbone_parallel.core.prediction.measurement import (
    Added,
    Call,
    Measurement,
    Module,
    Operation,
    Parameter,
    Phase,
    PipelineWork,
    parse_timings,
    to_text,
)
from herringbone_parallel.torch.measure import libraries, pipeline_work, timing
from herringbone_parallel.torch.measure.replay import Prepared, Replay

MATRIX = {"tensor": "float32", "shape": [8, 8]}
TRANSPOSED = {**MATRIX, "strides": [1, 8]}
INDICES = {"tensor": "int64", "shape": [4]}


def operation(name: str, *arguments: object, **keywords: object) -> Operation:
    return Operation(name, ((8, 8),), "float32", 0, 512, arguments=json.dumps([arguments, keywords]))


OPERATIONS = (
    operation("aten.mm.default", MATRIX, TRANSPOSED),
    operation("aten.embedding.default", MATRIX, INDICES),
    operation("aten._foreach_add_.List", [MATRIX, MATRIX], [MATRIX, MATRIX], alpha=2),
    operation("aten.masked_fill.Scalar", MATRIX, {"tensor": "bool", "shape": [8, 8]}, {"float": "-inf"}),
    operation("aten.zeros_like.default", MATRIX, dtype={"dtype": "float64"}, device={"device": "cpu"}),
    operation("aten.contiguous.default", TRANSPOSED, memory_format={"memory_format": "contiguous_format"}),
    # These cannot be called: nothing of this name, an illegal argument, no recorded arguments.
    operation("herringbone.missing.default", MATRIX),
    operation("aten.mm.default", MATRIX, INDICES),
    Operation("aten.mm.default", ((8, 8),), "float32", 0, 512),
)
PHASES = (Phase.FORWARD, Phase.FORWARD, Phase.OPTIMIZER, Phase.FORWARD, Phase.BACKWARD, Phase.BACKWARD)
STEP = Measurement(
    framework="torch",
    device="cpu",
    modules=(Module("", "Model"),),
    parameters=(),
    operations=OPERATIONS,
    calls=tuple(Call(i, 0, PHASES[i] if i < len(PHASES) else Phase.FORWARD) for i in range(len(OPERATIONS))),
    tensors=(),
)


def test_each_operation_that_can_be_called_is_timed() -> None:
    noted: list[int] = []
    seconds = Replay(STEP, torch.device("cpu"), skipped=[1], note=noted.append).run(0.2)
    assert set(seconds) == {0, 2, 3, 4, 5}
    assert all(0 < time_s < 0.1 for time_s in seconds.values())
    # Everything is noted before its call, in case that it kills the process, but what must not be called.
    assert set(noted) == set(range(len(OPERATIONS))) - {1}


def test_the_optimizer_and_added_gradients_of_later_microbatches_are_timed() -> None:
    phases = (Phase.FORWARD, Phase.BACKWARD, Phase.BACKWARD, Phase.OPTIMIZER)
    names = ("relu", "sin", "cos", "sqrt")
    calls = ((0, 0), (1, 0), (0, 1), (1, 1), (2, 1), (3, 1))
    step = replace(
        STEP,
        microbatches=2,
        operations=tuple(operation(f"aten.{name}.default", MATRIX) for name in names),
        calls=tuple(Call(index, 0, phases[index], microbatch) for index, microbatch in calls),
    )
    assert set(Replay(step, torch.device("cpu")).run(0.1)) == {0, 1, 2, 3}


def test_layers_that_are_alike_have_weights_of_their_own() -> None:
    called: list[tuple[int, ...]] = []
    activation = {"tensor": "float32", "shape": [2, 8]}
    step = replace(
        STEP,
        parameters=tuple(Parameter(f"{number}.weight", 0, (8, 8), "float32", 256) for number in range(3)),
        operations=(
            operation("aten.mm.default", activation, TRANSPOSED),
            Operation("aten.add_.Tensor", ((8, 8), (8, 8)), "float32", 0, 512, arguments=_sum(MATRIX, MATRIX)),
        ),
        calls=(*[Call(0, 0, Phase.FORWARD)] * 3, *[Call(1, 0, Phase.BACKWARD)] * 3),
    )
    replay = Replay(step, torch.device("cpu"))
    replay.run(0.1)
    for _, ready in sorted(replay._ready.items()):
        called.append(tuple(len({args[place].data_ptr() for args, _ in ready.arguments}) for place in (0, 1)))
    # Each layer has its weight and its gradient. The activation, and the gradient that is added, are in the cache.
    assert called == [(1, 3), (3, 1)]


def test_an_operation_that_fails_in_another_layer_keeps_its_first_time() -> None:
    layers: list[int] = []

    def called(layer: int) -> torch.Tensor:
        layers.append(layer)
        return torch.zeros(2)[[0, 32][layer]]

    step = replace(STEP, operations=(operation("aten.relu.default", MATRIX),), calls=(Call(0, 0, Phase.FORWARD),) * 2)
    replay = Replay(step, torch.device("cpu"))
    replay._prepared = lambda _: Prepared(called, [([0], {}), ([1], {})])  # type: ignore[method-assign]
    seconds = replay.run(0.1)
    assert layers[-1] == 1
    assert set(seconds) == {0}
    assert 0 < seconds[0] < 0.1


def test_waits_of_a_thread_are_not_its_time_and_show_that_the_machine_is_busy() -> None:
    step = replace(STEP, operations=(operation("aten.relu.default", MATRIX),), calls=(Call(0, 0, Phase.FORWARD),))
    replay = Replay(step, torch.device("cpu"))
    replay._prepared = lambda _: Prepared(time.sleep, [([0.02], {})])  # type: ignore[method-assign]
    assert replay.run(0.1)[0] < 0.01
    assert replay.slowdown > 3


def test_threads_that_wait_for_each_other_take_no_longer_than_one_thread_alone() -> None:
    replay = Replay(STEP, torch.device("cpu"), threads=2)
    seconds = replay.run(0.1)
    assert all(time_s < 0.1 for time_s in replay._at_most_alone(dict.fromkeys(seconds, 1.0)).values())
    assert replay.slowdown > 10
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)


def test_one_pass_is_made_even_where_first_calls_have_used_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[int] = []
    replay = Replay(STEP, torch.device("cpu"))
    # On memory that the machine has never used, first calls took many times as long as those of a training.
    monkeypatch.setattr(replay, "_try_each", lambda _: {0: 9.0})
    monkeypatch.setattr(replay, "_enlarge", lambda _: None)
    monkeypatch.setattr(replay, "_pass", passes.append)
    replay.run(0.0)
    assert passes == [1]


@pytest.mark.parametrize(("limit", "alive"), [(0, 1), (300, 3), (1 << 20, 4)])
def test_gradients_are_kept_up_to_the_limit(monkeypatch: pytest.MonkeyPatch, limit: int, alive: int) -> None:
    step = replace(
        STEP,
        parameters=(Parameter("weight", 0, (8, 8), "float32", 256),),
        operations=(operation("aten.relu.default", MATRIX),),
        calls=(Call(0, 0, Phase.BACKWARD),) * 4,
    )
    results: list[weakref.ref[torch.Tensor]] = []
    counts: list[int] = []

    def timed(*_: object) -> tuple[float, torch.Tensor]:
        result = torch.zeros(8, 8)
        results.append(weakref.ref(result))
        counts.append(sum(one() is not None for one in results))
        return 0.0, result

    replay = Replay(step, torch.device("cpu"), held_bytes=limit)
    monkeypatch.setattr(replay, "_try_each", lambda _: replay._ready.update({0: Prepared(timed, [([], {})])}) or {})
    monkeypatch.setattr(replay, "_timed", timed)
    monkeypatch.setattr(replay, "_limit", lambda *_: 4)
    replay.run(0.0)
    # Gradients of 256 bytes are kept while less than the limit is held; the newest one is alive in any case.
    assert max(counts) == alive


def _sum(*arguments: object) -> str:
    return json.dumps([arguments, {}])


def test_what_libraries_add_is_divided_into_units_parameters_and_bytes() -> None:
    def steps(seconds: tuple[float, float], parameters: int, size: int, call: float = 0.0) -> libraries.Steps:
        return libraries.Steps(libraries.Clocks(*seconds), libraries.Clocks(call, call / 2), parameters, size)

    few, many = steps((8.0, 9.0), 4, 4), steps((12.0, 9.0), 8, 8, call=0.5)
    wide, widest = steps((28.0, 8.0), 4, 44), steps((68.0, 8.0), 4, 64)
    assert libraries.solved(few, many, wide, widest, clock=0, units=4) == Added(
        unit_s=1.0, parameter_s=1.0, byte_s=0.5, large_byte_s=1.0, call_s=0.5
    )
    # Noise does not make anything faster than nothing.
    assert libraries.solved(few, many, wide, widest, clock=1, units=4) == Added(unit_s=2.25, call_s=0.25)


def test_two_processes_time_a_measurement_and_their_messages(tmp_path: Path) -> None:
    measurement, output = tmp_path / "step.json", tmp_path / "timings.json"
    measurement.write_bytes(to_text(STEP))
    # Two processes run at once only where the machine has two cores.
    options = ["--output", str(output), "--processes", "2", "--threads", "1", "--budget", "0.1"]
    assert timing.main([str(measurement), *options]) == 0
    timings = parse_timings(output.read_bytes())
    assert timings.threads == 1
    assert timings.slowdown >= 1.0
    assert set(timings.seconds) == {0, 1, 2, 3, 4, 5}
    assert timings.device == "cpu"
    assert timings.dispatch_seconds["forward"] > 0
    assert timings.copied_bytes_per_second is not None
    if timings.processes == 2:
        assert set(timings.collectives) == {"all_reduce", "all_gather", "reduce_scatter", "send"}
        assert set(timings.added) == set(timings.elapsed) == {"shard", "replicate", "update"}
        for added in (timings.added["shard"], timings.added["update"]):
            assert 0 < added.byte_s < 1e-6
            assert 0 < added.large_byte_s < 1e-6
        assert timings.pipeline is not None
        assert timings.pipeline.value_s > timings.pipeline.call_s > 0
        # Some hundred lines of Python and a message; a machine that swaps may take longer.
        assert 0 < timings.pipeline.step_s + timings.pipeline.microbatch_s < 1


def test_a_lone_rank_has_the_threads_that_torch_chooses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "step.json").write_bytes(to_text(STEP))
    output = tmp_path / "timings.json"
    assert timing.main([str(tmp_path / "step.json"), "--output", str(output), "--threads", "0", "--budget", "0.1"]) == 0
    assert parse_timings(output.read_bytes()).threads == 1


def test_the_work_of_a_pipeline_has_four_parts() -> None:
    few, many = 5.0 + (2.0 + 5 * 0.5 + 3.0), 5.0 + 5 * (2.0 + 5 * 0.5 + 3.0)
    called, crossed = 5.0 + 5 * (2.0 + 29 * 0.5 + 3.0), 5.0 + 5 * (2.0 + 5 * 0.5 + 3 * 3.0)
    work = pipeline_work.solved(few, many, called, crossed)
    assert work == PipelineWork(step_s=5.0, microbatch_s=2.0, call_s=0.5, value_s=3.0)


@pytest.mark.parametrize("text", [b"{}", None])
def test_a_wrong_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: bytes | None) -> None:
    path = tmp_path / "step.json"
    if text is not None:
        path.write_bytes(text)
    assert timing.main([str(path), "--output", str(tmp_path / "timings.json")]) == 2
    assert capsys.readouterr().err.startswith("timing: ")


def test_operation_that_kills_a_process_while_another_one_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Instead of Python: process 0 waits for process 1, which notes its operation and crashes.
    program = tmp_path / "python"
    program.write_text(
        f'#!/bin/sh\ncase "$*" in *"--worker 0") exec sleep 60;; esac\necho 7 > {tmp_path}/1.note\nkill -SEGV $$\n'
    )
    program.chmod(0o700)
    monkeypatch.setattr(timing.sys, "executable", str(program))
    begin = time.monotonic()
    assert timing._run(tmp_path, tmp_path, processes=2, threads=1, budget_s=0.1, skipped=[]) == ([], 7)
    assert time.monotonic() - begin < 30


def test_free_memory_of_a_system_that_does_not_tell_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing.os, "sysconf_names", {})
    assert timing._free_bytes() > 1 << 30
