"""Which checkpoints of a folder may be removed."""

from __future__ import annotations

import math

import pytest

from herringbone_contract.checkpoint.keeping import Candidate, Keep, number_of, removable

LAST_2 = Keep(last=2)
BEST_1 = Keep(best=1, metric="loss", objective_type="Minimize")


def steps(*values: float | None, **marks: bool) -> list[Candidate]:
    """Return checkpoints of these values, in the order of time; `marks` are those of the first one."""
    first, *others = (Candidate(f"s{number}", float(number), value=value) for number, value in enumerate(values))
    return [first._replace(**marks), *others]


@pytest.mark.parametrize(
    ("keep", "candidates", "names"),
    [
        (LAST_2, steps(None), []),
        (LAST_2, steps(None, None, None, None), ["s0", "s1"]),
        # Another job's, one that a link or `newest` names, and one that is torn or still written: neither is removed,
        # and neither counts as one of the last.
        (LAST_2, steps(None, None, None, is_ours=False), []),
        (LAST_2, steps(None, None, None, is_named=True), []),
        (LAST_2, steps(None, None, None, is_whole=False), []),
        (Keep(last=1), [*steps(None, None), Candidate("torn", 9.0, is_whole=False)], ["s0"]),
        (Keep(last=1), [Candidate("torn", 9.0, is_whole=False)], []),
        (Keep(last=1), [], []),
        # The newest one is kept, however bad it is.
        (BEST_1, steps(0.1, 0.3, 0.2), ["s1"]),
        (Keep(best=1, metric="acc", objective_type="Maximize"), steps(0.1, 0.3, 0.2), ["s0"]),
        (Keep(last=2, best=1, metric="loss", objective_type="Minimize"), steps(0.1, 0.3, 0.2), []),
        # Of equal values the earlier one is best.
        (BEST_1, steps(0.1, 0.1, 0.1, 0.5), ["s1", "s2"]),
        (BEST_1, steps(math.nan, 0.5, math.inf, 0.7), ["s0", "s2"]),
        (BEST_1, steps(math.nan, math.nan), ["s0"]),
        (BEST_1, steps(None, 0.5, 0.7), ["s0"]),
        # A metric that nobody has logged: its name may be wrong.
        (BEST_1, steps(None, None, None), []),
    ],
)
def test_removable(keep: Keep, candidates: list[Candidate], names: list[str]) -> None:
    assert removable(reversed(candidates), keep) == names


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("step-4000.pt", "4000"),
        ("model_step_4000.safetensors", "4000"),
        ("optimizer_step_04000.pth", "4000"),
        ("step_40_rank_1.pt", "40"),
        ("epoch=3-step=40-v1.ckpt", "3-40"),
        ("epoch=3-val_loss=0.12.ckpt", "3"),
        ("checkpoint_0005.pth", "5"),
        ("weights.05-0.12.keras", "5"),
        ("05.weights.h5", "5"),
        ("100.pt", "100"),
        # Parts of one model, states of ranks, names without a number, and files of another kind.
        ("model-00001-of-00003.safetensors", None),
        ("checkpoint-00001-of-00003.safetensors", None),
        ("mp_rank_00_model_states.pt", None),
        ("rank0.pt", None),
        ("model_100.pt", None),
        ("last.ckpt", None),
        ("footstep1.pt", None),
        ("step-40.json", None),
        ("step-40", None),
    ],
)
def test_number_of_a_file(name: str, number: str | None) -> None:
    assert number_of(name) == number
