"""Compare what two runs of one job recorded. Pure.

undisturbed = [read(job.events()) for job in jobs]
repeatable(*undisturbed)                              # do two undisturbed runs give equal bits?
compare(undisturbed, read(disturbed.events()))        # does a run with a fault?
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from herringbone_contract.rehearsal.alignment import effective, redone, visits
from herringbone_contract.rehearsal.differences import Context, Difference, differences
from herringbone_contract.rehearsal.layouts import merged
from herringbone_contract.rehearsal.records import Process, Run, Step
from herringbone_contract.rehearsal.verdict import ADVICE, Finding, Outcome, Reason, Verdict

# The part of the weights' norm by which sums in another order may move them within a rehearsal.
TOLERANCE = 1e-3
# Reasons that cannot be told where two undisturbed runs differ by another one.
_HIDDEN = {
    Reason.ORDER: (Reason.SAMPLES,),
    Reason.CONTENTS: (Reason.SAMPLES,),
    Reason.RANDOM: (Reason.KERNEL,),
}
_MAX_NOTES = 8


def repeatable(first: Run, second: Run) -> Verdict:
    """Compare two undisturbed runs: EQUAL, or DIFFERENT with the first difference of each reason."""
    return compare([first], second)


def compare(undisturbed: Sequence[Run], disturbed: Run, *, layout: Literal["same", "other"] = "same") -> Verdict:
    """Compare a disturbed run with one or two undisturbed ones.

    With two, what they do not share is not blamed on the disturbance: it is a note, and without other findings the
    outcome is UNKNOWN. On the `other` layout weights are equal within TOLERANCE, and samples are sets.
    """
    noise = repeatable(*undisturbed[:2]).findings if len(undisturbed) > 1 else ()
    base = undisturbed[0]
    notes: list[str] = []
    if layout == "other":
        ranks = {
            0: _Compared(merged(base, notes), merged(disturbed, notes), len({*base.processes, *disturbed.processes}))
        }
    else:
        ranks = {
            rank: _Compared(one, disturbed.processes.get(rank, [])) for rank, one in sorted(base.processes.items())
        }
    hidden = {reason for finding in noise for reason in (finding.reason, *_HIDDEN.get(finding.reason, ()))}
    found = _findings(ranks)
    findings = tuple(finding for finding in found if finding.reason not in hidden)
    notes += [
        f"not repeatable without a disturbance either: step {one.step}: {one.text}"
        for one in found
        if one.reason in hidden
    ]
    notes += [note for compared in ranks.values() for note in compared.notes]
    notes += [f"not recorded: {text}" for run in (base, disturbed) for text in _missing(run)]
    steps = min((compared.steps for compared in ranks.values()), default=0)
    is_whole = steps and all(steps == len(compared.base) for compared in ranks.values())
    outcome = Outcome.EQUAL if is_whole and not noise else Outcome.UNKNOWN
    return Verdict(
        Outcome.DIFFERENT if findings else outcome,
        findings,
        steps,
        max((compared.redone for compared in ranks.values()), default=0),
        tuple(dict.fromkeys(notes))[:_MAX_NOTES],
    )


class _Compared:
    """The comparison of one rank; or of all `ranks` in one, on another layout."""

    def __init__(self, base: Sequence[Process], disturbed: Sequence[Process], ranks: int = 0) -> None:
        self.base = effective(visits(base, {}))
        self.visits = visits(disturbed, self.base)
        self.redone = redone(self.visits)
        last = effective(self.visits)
        self.steps = len([place for place in self.base if place <= max(last, default=-1)])
        self.notes: list[str] = []
        if lost := sum(process.lost for process in (*base, *disturbed)):
            self.notes.append(f"{lost} records of steps are lost")
        if self.steps < len(self.base):
            self.notes.append(f"the disturbed run ended after {self.steps} of {len(self.base)} steps")
        if self.visits and self.visits[0].start:
            self.notes.append(
                f"the records before step {self.visits[0].start + 1} are lost, with the host that had them"
            )
        if any(visit.start == 0 for visit in self.visits[1:]):
            self.notes.append("a restarted process began at the first step again: nothing was restored")
        mine, known = _samples(last.values()), _samples(self.base.values())
        begin, end = min(last, default=0), max(last, default=-1)
        theirs = _samples(step for place, step in self.base.items() if begin <= place <= end)
        # A sampler repeats less than one sample a rank to fill the last round of an epoch.
        padding = ranks * max(known.values(), default=0)
        surplus, lack = (max(0, one.total() - padding) for one in (mine - theirs, theirs - mine))
        self._context = Context(known, surplus=surplus, lack=lack, tolerance=TOLERANCE * bool(ranks))
        self.found = self._differences()

    def _differences(self) -> list[Difference]:
        found: list[Difference] = []
        tensors: dict[int, str] = {}
        for number, visit in enumerate(self.visits):
            # Earlier processes know better what was to be restored than a run that has diverged.
            is_known, is_restart = visit.start in visit.earlier, number > 0 or visit.start > 0
            context = self._context._replace(restarted=is_restart, restores=is_restart)
            own, changed = differences(visit.steps, visit.earlier, context)
            context = context._replace(restores=is_restart and not is_known and not tensors)
            other, unequal = differences(visit.steps, self.base, context)
            found += [*own, *other]
            tensors = {**unequal, **changed, **tensors}
        if tensors and not found and not self._context.tolerance:
            place = min(tensors)
            found = [Difference(Reason.KERNEL, place, tensors[place], f"{tensors[place]} differs, and no cause of it")]
        # A difference of data or settings shows in the weights that follow.
        later = [(one, min((place for place in tensors if place >= one.place), default=None)) for one in found]
        return [one if one.tensor or place is None else one._replace(tensor=tensors[place]) for one, place in later]


def _findings(ranks: Mapping[int, _Compared]) -> list[Finding]:
    first: dict[Reason, tuple[int, Difference]] = {}
    found = [(rank, one) for rank, compared in ranks.items() for one in compared.found]
    starts = {tuple(visit.start for visit in compared.visits) for compared in ranks.values()}
    if len({len(one) for one in starts}) == 1 < len(starts):
        places = next(column for column in zip(*starts, strict=True) if len(set(column)) > 1)
        detail = f"ranks went on from different steps: {', '.join(str(place + 1) for place in sorted(set(places)))}"
        found.append((0, Difference(Reason.WEIGHTS, min(places), "", detail)))
    for rank, one in sorted(found, key=lambda two: two[1].place):
        first.setdefault(one.reason, (rank, one))
    return [
        Finding(reason, one.place + 1, rank, one.tensor, one.detail, ADVICE[reason])
        for reason, (rank, one) in first.items()
    ]


def _missing(run: Run) -> Iterable[str]:
    """Return what was not recorded; a stage of a pipeline has no values of the tensors of others."""
    steps = [step for processes in run.processes.values() for process in processes for step in process.steps]
    known = {name for step in steps for name in step.tensors}
    return dict.fromkeys(text for step in steps for text in step.missing if text.partition(": ")[0] not in known)


def _samples(steps: Iterable[Step]) -> Counter[str]:
    return Counter(sample for step in steps for sample in step.samples)
