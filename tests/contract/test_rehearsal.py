"""Verdicts about two runs, from records that are written by hand: each reason, and no reason where there is none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from herringbone_contract.rehearsal.comparison import compare, repeatable
from herringbone_contract.rehearsal.records import KIND, SHARD, Process, Run, Step, Tensor, pieces, read
from herringbone_contract.rehearsal.verdict import ADVICE, Outcome, Reason

STEPS = 12
BATCH = 2
SAMPLES = 8


def step(place: int, **changes: Any) -> Step:
    """Return the healthy step at a place of the run: four steps an epoch."""
    samples = [f"s{(place * BATCH + number) % SAMPLES}" for number in range(BATCH)]
    fields: dict[str, Any] = {
        "tensors": {
            "w": Tensor(f"w{place}", 4.0 + place, 1.0 + place, 4),
            "b": Tensor(f"b{place}", 1.0 + place, 1.0, 1),
        },
        "state": {"step": f"{place}", "exp_avg": f"m{place}"} if place else {},
        "settings": {"lr": 0.5 ** (place // 4), "foreach": None},
        "random": {"python": "p", "torch": f"r{place}"},
        "draws": True,
        "samples": samples,
        "batches": [[f"i{place % 4}", *samples, f"y{place % 4}"]],
        "outputs": f"o{place}",
        "loss": [1.0 / (place + 1)],
    }
    return Step(place + 1, **{**fields, **changes})


def process(first: int = 0, end: int = STEPS, change: Callable[[int], dict[str, Any]] = lambda _: {}) -> Process:
    """Return the process that makes the steps from `first` to `end`, and counts them from 1."""
    steps = [step(place, **change(place)) for place in range(first, end)]
    return Process([msgspec.structs.replace(one, number=number) for number, one in enumerate(steps, 1)], began=first)


def run(*processes: Process) -> Run:
    return Run({0: list(processes)})


def others(place: int, first: int, name: str = "x") -> dict[str, Any]:
    """Return all that follows from other weights, which a difference at step `first` has caused."""
    if place < first:
        return {}
    follows = {"outputs": f"o{name}{place}", "loss": [9.0]}
    if place == first:
        return follows
    tensors = {"w": Tensor(f"{name}{place}", 4.5 + place, 1.0, 4), "b": Tensor(f"b{place}", 1.0 + place, 1.0, 1)}
    return {**follows, "tensors": tensors, "state": {"step": f"{place}", "exp_avg": f"{name}{place}"}}


UNDISTURBED = run(process())


def restart(change: Callable[[int], dict[str, Any]] = lambda _: {}, first: int = 4, killed: int = 7) -> Run:
    """Return a run that is killed, and whose second process has the changes."""
    return run(process(0, killed), process(first, STEPS, change))


def reasons(verdict: Any) -> list[tuple[Reason, int, str]]:
    return [(one.reason, one.step, one.tensor) for one in verdict.findings]


def test_equal_runs() -> None:
    verdict = repeatable(UNDISTURBED, run(process()))
    assert (verdict.outcome, verdict.steps, verdict.redone, verdict.notes) == (Outcome.EQUAL, STEPS, 0, ())


@pytest.mark.parametrize(("first", "killed"), [(4, 7), (4, 4), (0, 3), (3, 9)])
def test_an_equal_restart_counts_the_steps_that_are_made_again(first: int, killed: int) -> None:
    verdict = compare([UNDISTURBED, UNDISTURBED], restart(first=first, killed=killed))
    assert (verdict.outcome, verdict.steps, verdict.redone) == (Outcome.EQUAL, STEPS, killed - first)
    assert ("nothing was restored" in " ".join(verdict.notes)) == (first == 0)


def test_three_processes() -> None:
    verdict = compare([UNDISTURBED], run(process(0, 7), process(4, 6), process(4)))
    assert (verdict.outcome, verdict.redone) == (Outcome.EQUAL, 5)


def lost_place(place: int) -> dict[str, Any]:
    """The second process begins the epoch again: sample by sample, it is two steps late."""
    late = step(place - 2)
    return {**others(place, 6), "samples": late.samples, "batches": late.batches}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        # The weights of one tensor; all else follows.
        (
            lambda place: {**others(place, 3), "tensors": {**step(place).tensors, "b": Tensor(f"n{place}", 3.0, 1.0)}},
            [(Reason.WEIGHTS, 5, "b"), (Reason.OPTIMIZER, 5, "b")],
        ),
        (
            lambda place: {**others(place, 4), **({"state": {}} if place == 4 else {})},
            [(Reason.OPTIMIZER, 5, "w")],
        ),
        (lambda place: {**others(place, 6), "settings": {"lr": 1.0, "foreach": None}}, [(Reason.SETTINGS, 5, "w")]),
        # A scheduler that counts from the begin shows late.
        (
            lambda place: {**others(place, 8), **({"settings": {"lr": 0.5, "foreach": None}} if place > 7 else {})},
            [(Reason.SETTINGS, 9, "w")],
        ),
        (lambda place: {**others(place, 4), "random": {"python": "p", "torch": "again"}}, [(Reason.RANDOM, 5, "w")]),
        # Samples with other contents, whose labels come in the same order.
        (
            lambda place: {
                **others(place, 4),
                "samples": [f"n{place}", f"m{place}"],
                "batches": [[f"i{place % 4}", f"n{place}", f"m{place}", f"y{place % 4}"]],
            },
            [(Reason.CONTENTS, 5, "w")],
        ),
        # The reverse order within each epoch.
        (
            lambda place: {
                **others(place, 4),
                "samples": step(3 - place % 4).samples[::-1],
                "batches": [["other", "", "", ""]],
            },
            [(Reason.ORDER, 5, "w")],
        ),
        (lambda place: {**others(place, 4), "outputs": f"o{place}"}, [(Reason.TARGETS, 5, "w")]),
        (lambda place: others(place, 4), [(Reason.KERNEL, 5, "w")]),
    ],
)
def test_the_reason_of_a_difference_after_a_restart(
    change: Callable[[int], dict[str, Any]], expected: list[tuple[Reason, int, str]]
) -> None:
    verdict = compare([UNDISTURBED, UNDISTURBED], restart(change))
    assert reasons(verdict) == expected
    assert verdict.outcome is Outcome.DIFFERENT
    assert verdict.first is not None
    assert verdict.first.advice == ADVICE[expected[0][0]]
    # The row of the table has the number of the step.
    assert not verdict.first.text.startswith("step ")


def test_samples_that_are_used_again_after_a_restart() -> None:
    disturbed = run(process(0, 7), process(6, STEPS, lost_place))
    verdict = compare([UNDISTURBED], disturbed)
    assert reasons(verdict) == [(Reason.SAMPLES, 7, "w")]
    assert "4 samples were used once more, and 4 once less" in verdict.findings[0].text


def test_weights_that_differ_without_a_recorded_cause() -> None:
    other = Tensor("n", 9.0, 1.0, 4)

    def change(place: int) -> dict[str, Any]:
        return {"state": {"exp_avg": "n"} if place else {}, **({"tensors": {"w": other}} if place > 5 else {})}

    assert reasons(repeatable(UNDISTURBED, run(process(change=change)))) == [(Reason.KERNEL, 7, "w")]
    # Weights and state change by the same step.
    both = run(process(change=lambda place: {"tensors": {"w": other}, "state": {"exp_avg": "n"}} if place > 5 else {}))
    assert reasons(repeatable(UNDISTURBED, both)) == [(Reason.KERNEL, 7, "w")]


def test_numbers_that_nothing_draws_from_change_nothing() -> None:
    quiet = run(process(change=lambda _: {"draws": False}))
    disturbed = restart(lambda _: {"draws": False, "random": {"python": "q"}})
    disturbed.processes[0][0] = process(0, 7, lambda _: {"draws": False})
    assert compare([quiet], disturbed).outcome is Outcome.EQUAL


def test_weights_of_the_beginning_with_a_state_of_later() -> None:
    first = {"tensors": step(0).tensors}
    verdict = compare([UNDISTURBED], restart(lambda place: first if place == 4 else others(place, 4)))
    assert reasons(verdict) == [(Reason.WEIGHTS, 5, "w")]


def test_a_restart_is_not_blamed_for_kernels_that_differ_anyway() -> None:
    second = run(process(change=lambda place: others(place, 1, "y")))
    assert reasons(repeatable(UNDISTURBED, second)) == [(Reason.KERNEL, 2, "w")]

    def noise(place: int) -> dict[str, Any]:
        return others(place, 1, "z")

    healthy = run(process(0, 7, noise), process(4, STEPS, noise))
    verdict = compare([UNDISTURBED, second], healthy)
    assert (verdict.outcome, verdict.findings) == (Outcome.UNKNOWN, ())
    assert "not repeatable without a disturbance either" in verdict.notes[0]

    # Its own earlier process shows what was not restored.
    def forgets(place: int) -> dict[str, Any]:
        return {**noise(place), "state": {}} if place == 4 else others(place, 1, "q")

    faulty = run(process(0, 7, noise), process(4, STEPS, forgets))
    assert reasons(compare([UNDISTURBED, second], faulty)) == [(Reason.OPTIMIZER, 5, "w")]
    # The newest checkpoint is of the last step, whose successor the killed process has not begun.
    unseen = run(process(0, 7, noise), process(7, STEPS, noise))
    assert compare([UNDISTURBED, second], unseen).findings == ()


def test_ranks_that_go_on_from_different_steps() -> None:
    base = Run({rank: [process()] for rank in range(2)})
    torn = Run({0: [process(0, 7), process(4)], 1: [process(0, 7), process(2)]})
    [finding] = compare([base], torn).findings
    assert (finding.reason, finding.step) == (Reason.WEIGHTS, 3)
    assert "ranks went on from different steps: 3, 5" in finding.text


def test_a_run_that_ends_early_is_not_equal() -> None:
    verdict = compare([UNDISTURBED], run(process(0, 9)))
    assert (verdict.outcome, verdict.steps) == (Outcome.UNKNOWN, 9)
    assert verdict.notes == ("the disturbed run ended after 9 of 12 steps",)
    assert compare([UNDISTURBED], run()).outcome is Outcome.UNKNOWN
    assert compare([run()], run()).outcome is Outcome.UNKNOWN


def test_a_process_whose_records_are_all_lost_is_noted() -> None:
    verdict = compare([run(process()), run(process())], run(process(5)))
    assert verdict.outcome is not Outcome.DIFFERENT, verdict
    assert any(note.startswith("the records before step 6 are lost") for note in verdict.notes)
    forgotten = run(process(5, change=lambda place: {"settings": {"lr": 1.0, "foreach": None}}))
    assert Reason.SETTINGS in {one.reason for one in compare([run(process())], forgotten).findings}


def test_lost_records_between_equal_ones_are_noted() -> None:
    whole = process()
    verdict = compare([UNDISTURBED], run(Process([one for one in whole.steps if one.number not in (3, 4)], lost=2)))
    assert (verdict.outcome, verdict.notes) == (Outcome.EQUAL, ("2 records of steps are lost",))


def spread(ranks: int, first: int = 0, end: int = STEPS, change: Callable[[int], dict[str, Any]] = lambda _: {}) -> Run:
    """Return a run whose ranks share the samples and the tensor `w`."""

    def part(place: int, rank: int) -> dict[str, Any]:
        whole = step(place, **change(place))
        shard = msgspec.structs.replace(
            whole.tensors["w"],
            digest=f"{ranks}{rank}{place}",
            squares=(whole.tensors["w"].squares or 0.0) / ranks,
            total=(whole.tensors["w"].total or 0.0) / ranks,
            place=SHARD,
        )
        tensors = {**whole.tensors, "w": shard}
        return {
            **change(place),
            "tensors": tensors,
            "samples": whole.samples[rank::ranks],
            "ranks": ranks,
            "draws": False,
        }

    return Run({rank: [process(first, end, lambda place: part(place, rank))] for rank in range(ranks)})  # noqa: B023


def continued(before: Run, after: Run) -> Run:
    ranks = sorted({*before.processes, *after.processes})
    return Run({rank: [*before.processes.get(rank, []), *after.processes.get(rank, [])] for rank in ranks})


def late(runs: Run) -> Run:
    for processes in runs.processes.values():
        processes[0].began = 100.0
    return runs


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)])
def test_another_layout_is_equal_within_the_error_of_sums(before: int, after: int) -> None:
    def noise(place: int) -> dict[str, Any]:
        tensors = {"w": Tensor("", 4.0 + place + 1e-6 * (place > 4), 1.0 + place, 4), "b": step(place).tensors["b"]}
        return {"tensors": tensors, "random": {"torch": "other"}, "outputs": "other"}

    base = spread(before)
    disturbed = continued(spread(before, 0, 7), late(spread(after, 4, STEPS, noise)))
    verdict = compare([base], disturbed, layout="other")
    assert (verdict.outcome, verdict.redone, verdict.findings) == (Outcome.EQUAL, 3, ())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda _: {"state": {}}, Reason.OPTIMIZER),
        (lambda _: {"settings": {"lr": 7.0}}, Reason.SETTINGS),
        (lambda place: {"tensors": {"w": Tensor("", 5.0 + place, 1.0, 4)}}, Reason.WEIGHTS),
        (lambda _: {"samples": step(0).samples}, Reason.SAMPLES),
    ],
)
def test_faults_on_another_layout(change: Callable[[int], dict[str, Any]], reason: Reason) -> None:
    disturbed = continued(spread(2, 0, 7), late(spread(1, 4, STEPS, change)))
    verdict = compare([spread(2)], disturbed, layout="other")
    assert reason in [finding.reason for finding in verdict.findings]


def test_another_global_batch_on_another_layout_is_told() -> None:
    twice = [f"s{number}" for number in range(2 * BATCH)]
    disturbed = continued(spread(2, 0, 7), late(spread(1, 4, STEPS, lambda _: {"samples": twice})))
    findings = compare([spread(2)], disturbed, layout="other").findings
    assert any(
        "a step has 4 samples instead of 2: this layout has another global batch" in one.text for one in findings
    )


def test_the_last_batch_of_an_epoch_may_have_other_samples_on_another_layout() -> None:
    def filled(place: int) -> dict[str, Any]:
        return {"samples": [*step(place).samples, *(["s0", "s1"] if place % 6 == 5 else [])]}

    disturbed = continued(spread(2, 0, 7), late(spread(4, 4, STEPS, filled)))
    assert compare([spread(2)], disturbed, layout="other").findings == ()
    # Also where nothing else is left to do.
    only = continued(spread(2, 0, 11), late(spread(4, 11, STEPS, filled)))
    assert compare([spread(2)], only, layout="other").findings == ()


def test_what_no_rank_has_recorded_is_noted() -> None:
    missing = {"missing": ["w: it has no values yet", "x: it has no values yet"]}
    half = process(change=lambda _: {**missing, "tensors": {"b": Tensor("b")}})
    verdict = repeatable(Run({0: [half], 1: [process()]}), Run({0: [half], 1: [process()]}))
    assert (verdict.outcome, verdict.notes) == (Outcome.EQUAL, ("not recorded: x: it has no values yet",))


def events(process: str, steps: Sequence[Step], rank: int = 0) -> list[dict[str, Any]]:
    return [{"kind": KIND, "t": 5.0, "rank": rank, **piece} for one in steps for piece in pieces(process, one)]


def test_records_travel_in_pieces_of_any_order() -> None:
    large = step(1, tensors={f"name {number}": Tensor(f"{number * 7919:x}", 0.1 * number) for number in range(2000)})
    sent = events("a", [step(0), large])
    assert len(sent) > 5
    assert all(len(event["text"]) <= 3800 for event in sent)
    assert read(reversed(sent)).processes == {0: [Process([step(0), large], 0, 5.0)]}
    # A piece that is missing costs its step; one at the end is of a process that was killed.
    assert read(event for event in sent if event["part"] != 1).processes[0][0].lost == 0
    more = [*sent, *events("a", [step(2)])]
    assert read(event for event in more if event["part"] != 1).processes[0][0].lost == 1


@pytest.mark.parametrize(
    "change",
    [{"text": "*"}, {"text": "eJw="}, {"number": "1"}, {"parts": 2}, {"part": -1}, {"process": None}, {"text": 1}],
)
def test_damaged_records_are_passed_over(change: dict[str, Any]) -> None:
    [event] = events("a", [step(0)])
    assert read([{**event, **change}]).steps == 0
