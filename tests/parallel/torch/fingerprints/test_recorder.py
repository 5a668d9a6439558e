"""Records of loops of many kinds: the training has the same bits with and without them, and nothing is left out."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from torch import nn

from herringbone_contract.rehearsal.records import Step
from tests.parallel.torch.fingerprints import loops
from tests.parallel.torch.processes import PROCESSES

ADAM = {"step", "exp_avg", "exp_avg_sq"}


@pytest.fixture(scope="module")
def records() -> dict[str, list[Step]]:
    """Return the records of all loops, which had equal bits without them."""
    receiver, sender = PROCESSES.Pipe(duplex=False)
    process = PROCESSES.Process(target=loops.record, args=(sender,))
    process.start()
    sender.close()
    received = [receiver.recv() for _ in loops.LOOPS]
    process.join()
    assert [name for name, is_same, _ in received if not is_same] == []
    return {name: msgspec.json.decode(steps, type=list[Step]) for name, _, steps in received}


# Each step's number of samples, of batches of the loader, and of losses.
@pytest.mark.parametrize(
    ("loop", "counts", "state"),
    [
        (loops.workers, [(4, 1, 1)] * 6, {"step", "square_avg"}),
        (loops.fused, [(4, 1, 1)] * 6, ADAM),
        (loops.compiled, [(4, 1, 1)] * 6, {"momentum_buffer"}),
        (loops.accumulated, [(8, 2, 2)] * 3, {"step", "sum"}),
        # The scaler has passed over three steps.
        (loops.scaled, [(16, 4, 4), (4, 1, 1), (4, 1, 1)], ADAM),
        (loops.adversarial, [(12, 1, 1), (0, 0, 1)] * 6, ADAM),
        (loops.closures, [(12, 1, 3)] * 6, {"old_dirs", "H_diag", "prev_loss"}),
        (loops.sparse, [(5, 0, 1)] * 4, ADAM),
        (loops.changed, [(2, 0, 1)] * 3, set()),
        (loops.functional, [(0, 0, 1)] * 3, set()),
        (loops.averaged, [(2, 0, 1)] * 3, set()),
        (loops.restored, [(2, 0, 1)] * 3, ADAM),
    ],
)
def test_every_step_is_recorded_and_changes_nothing(
    records: dict[str, list[Step]], loop: Callable[[], nn.Module], counts: list[tuple[int, int, int]], state: set[str]
) -> None:
    steps = records[loop.__name__]
    assert [(len(step.samples), len(step.batches), len(step.loss)) for step in steps] == counts
    assert [step.number for step in steps] == list(range(1, 1 + len(counts)))
    assert state <= set(steps[-1].state)
    assert all(step.settings and step.random for step in steps)
    missing = {text for step in steps for text in step.missing}
    if loop is loops.functional:
        # It calls no module, and has a parameter without values.
        assert missing == {
            "parameter 0 of group 1: it has no values yet",
            "samples: no module was called since the last step",
        }
        assert steps[0].settings["lr"] == [0.1, 0.5]
    else:
        assert not missing
        assert all(step.outputs for step in steps)


def test_a_step_has_the_state_before_it(records: dict[str, list[Step]]) -> None:
    first, second, third = records["changed"]
    assert list(second.tensors) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert first.tensors["0.bias"] != second.tensors["0.bias"] != third.tensors["0.bias"]
    assert [step.optimizer for step in (first, second, third)] == list(range(first.optimizer, first.optimizer + 3))
    first, second, *_ = records["fused"]
    assert (first.state, set(second.state)) == ({}, ADAM)
    # Of the training alone, although an evaluation counts, too.
    assert [step.tensors["norm.num_batches_tracked"].total for step in (first, second)] == [0, 1]
    assert records["scaled"][0].settings["loss scale"] < records["scaled"][-1].settings["loss scale"] == 2.0**125
    averages = [step.tensors["average 0: module.weight"] for step in records["averaged"]]
    assert averages[0] == records["averaged"][0].tensors["weight"] != averages[1]
    # The model has drawn; the evaluation has not.
    assert first.draws
    assert first.random != second.random
