"""Predict a plan: find or measure its step, ask the predictor, and put the answer into the plan.

Forecaster(home).measured(plan, Measure())      measures where no measurement of this job is kept
Forecaster(home).known(plan)                    never measures: what `fit` and `plan` know already
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from herringbone.plan.plan import JobPlan
from herringbone.prediction.answers import PREDICT, Predictor
from herringbone.prediction.cache import MOST_STEPS, Measurements, digest, link, prune, used
from herringbone.prediction.choosing import base_of, best_first, rank_choices
from herringbone.prediction.hosts import MachineFigures, hosts_of, with_ranks
from herringbone.prediction.machine import Machine, this_machine
from herringbone.prediction.machines import known_figures
from herringbone.prediction.measuring import (
    MEASURE,
    Program,
    Step,
    Timing,
    check_measurable,
    measure,
    with_local_data,
)
from herringbone.prediction.options import Measure, WhatIf
from herringbone.prediction.prices import price_of
from herringbone.prediction.questions import Summary, changed, fewest, samples_of, scale_of, work_of
from herringbone.records.home import Home
from herringbone.records.index import JobIndex
from herringbone.show.predictions import shown_range
from herringbone.system.progress import Progress
from herringbone.system.times import shown_span
from herringbone_contract.errors import DistributionError, HerringboneError, InputError, MeasurementError, OptionError
from herringbone_contract.masking import printable
from herringbone_contract.prediction.answer import Answer
from herringbone_contract.prediction.question import QUIET_SLOWDOWN, Hosts, Question, Search
from herringbone_contract.resources import threads_of_rank
from herringbone_contract.rules import mesh_of
from herringbone_contract.variables import of_the_shell

# Of timed steps.
_TIMING_SECONDS = 5.0
_TIMING_TIMEOUT_SECONDS = 300.0
# Until the first line of a job, where no earlier job tells: measured here for all but Slurm, and on SageMaker the
# usual three to four minutes from the request to a running container.
_START_SECONDS = {"local_process": 1.0, "local": 3.0, "ssh": 4.0, "slurm": 10.0, "kubernetes": 6.0, "sagemaker": 210.0}
_EARLIER_JOBS = 20


class Programs(NamedTuple):
    """The programs that a prediction starts."""

    measure: Program = MEASURE
    timing: Program = MEASURE
    predict: Sequence[str] = PREDICT


class Forecaster:
    """Predicts plans below one home.

    >>> Forecaster(find_home()).measured(plan, Measure()).prediction.planned.samples_per_second    # doctest: +SKIP

    `machine` gives the facts of this machine, `known` those of other machines, `price` the dollars of an instance type
    and hour; `has_torch` tells whether scripts can be measured here. `timing_seconds` is the time of timed steps.
    """

    def __init__(
        self,
        home: Home,
        programs: Programs = Programs(),  # noqa: B008 - frozen
        *,
        machine: Callable[[], Machine] = this_machine,
        known: Callable[[JobPlan], MachineFigures | None] = known_figures,
        price: Callable[[str, Path], float | None] = price_of,
        has_torch: Callable[[], bool] | None = None,
        timing_seconds: float = _TIMING_SECONDS,
    ) -> None:
        self._home = home
        self._programs = programs
        self._machine, self._known, self._price = machine, known, price
        self._has_torch, self._timing_seconds = has_torch, timing_seconds
        self._measurements = Measurements(home)

    def measured(self, plan: JobPlan, options: Measure, *, progress: Progress | None = None) -> JobPlan:
        """Return the plan with its prediction, from one step of its script that is measured now or was before.

        Raises `UsageError` for a plan that cannot be measured, `MeasurementError` for a script that cannot.
        """
        check_measurable(plan, self._has_torch)
        # The script sees as many ranks as the prediction is about: many wrap their model for several ranks only.
        target = changed(plan, options.what_if)
        hosts = self._hosts(target, options)
        for name in options.over:
            # Unknown ones are refused before time is spent.
            self._hosts(target, options, name)
        step = _step(target, with_ranks(hosts) if options.choose else hosts)
        path = self._folder(plan, step) / "measurement.json"
        progress = progress or Progress()
        if options.data or not path.exists():
            path = self._measured_with(with_local_data(plan, options.data), plan, step, options, progress)
        return self._predicted(plan, path, options, progress)

    def _measured_with(self, local: JobPlan, plan: JobPlan, step: Step, options: Measure, progress: Progress) -> Path:
        """Return the measurement of a plan with local samples of its data; the plan itself is known from now on."""
        folder = self._folder(local, step)
        path = folder / "measurement.json"
        if not path.exists():
            assert plan.source is not None
            with progress.working(f"measuring one step of {plan.source.entry_point}") as show:
                measure(
                    local,
                    step,
                    path,
                    home=self._home,
                    timeout=options.timeout,
                    show=show,
                    program=self._programs.measure,
                )
        own = self._folder(plan, step)
        if own != folder:
            link(own, folder)
        prune(self._measurements.folder, "*", MOST_STEPS)
        return path

    def known(self, plan: JobPlan) -> JobPlan:
        """Return the plan with the prediction of a step that was measured before; the same plan without one.

        Never raises: a job runs just as well without a prediction.
        """
        if not self._home.has_measurements or plan.source is None or plan.source.remote:
            return plan
        options = Measure()
        with contextlib.suppress(HerringboneError, OSError):
            if not self._measurements.may_have(plan):
                return plan
            path = self._folder(plan, _step(plan, self._hosts(plan, options))) / "measurement.json"
            if path.exists():
                return self._predicted(plan, path, options, None)
        return plan

    def _predicted(self, plan: JobPlan, path: Path, options: Measure, progress: Progress | None) -> JobPlan:
        """Return the plan with the answer to the user's question; times steps here if there is `progress`."""
        target, summary = changed(plan, options.what_if), read_summary(path)
        used(path.parent)
        hosts = self._priced(target, options)
        question = Question(
            measurement=str(path),
            hosts=hosts,
            distribution=msgspec.to_builtins(target.distribution),
            work=work_of(plan, summary, steps=options.steps, start_seconds=self._start_seconds(plan.backend)),
            scale=scale_of(summary, options.what_if.batch),
        )
        timings, untimed = self._timings(plan, question, options, progress)
        question = msgspec.structs.replace(question, timings=timings)
        answer = self._ask(question) if options.within is None else self._within(question, options.within)
        notes = [*answer.notes, *map(printable, summary.notes), *filter(None, [untimed])]
        if options.choose:
            others = [self._priced(target, options, name) for name in options.over]
            answers = self._search(plan, question, [hosts, *others], options, progress)
            layouts = best_first([layout for found in answers for layout in found.layouts], [hosts, *others])
            answer = msgspec.structs.replace(answer, layouts=tuple(layouts[: options.limit]))
            notes += [note for found in answers for note in found.notes]
        if (hosts.cores is None) != (summary.device != "cpu"):
            notes.append(
                f"the step was measured as on {summary.device}; a script may choose other operations elsewhere"
            )
        answer = msgspec.structs.replace(answer, notes=tuple(dict.fromkeys(notes)))
        return msgspec.structs.replace(plan, prediction=answer)

    def _search(
        self, plan: JobPlan, question: Question, hosts: list[Hosts], options: Measure, progress: Progress | None
    ) -> list[Answer]:
        """Return the layouts of all hosts; a host without GPUs may have one rank, or one for each core."""
        answers = []
        for one in (ranks for host in hosts for ranks in rank_choices(host)):
            asked = msgspec.structs.replace(
                question,
                hosts=one,
                distribution=base_of(question.distribution, one),
                search=Search(limit=options.limit),
                timings=None,
            )
            timings, _ = self._timings(plan, asked, options, progress)
            answers.append(self._ask(msgspec.structs.replace(asked, timings=timings)))
        return answers

    def _within(self, question: Question, limit: float) -> Answer:
        """Return the answer for the fewest hosts that train the job in `limit` seconds."""
        work = question.work
        if work.steps is not None:
            samples = samples_of(self._ask(question).planned, work.steps)
            work = msgspec.structs.replace(work, samples=samples, steps=None if samples else work.steps)
        if work.samples is None and work.steps is None:
            raise OptionError("within: the length of the job is not known; say how many steps it takes (--steps N)")
        answers: dict[int, Answer] = {}

        def seconds_of(count: int) -> float | None:
            hosts = msgspec.structs.replace(question.hosts, count=count)
            answers[count] = self._ask(msgspec.structs.replace(question, hosts=hosts, work=work))
            planned = answers[count].planned
            return None if planned.seconds is None or planned.refusal is not None else planned.seconds.expected

        count, best = fewest(seconds_of, limit)
        answer = answers[best]
        span, seconds = shown_span(limit), answer.planned.seconds
        time = "nobody knows how long" if seconds is None else shown_range(seconds)
        note = (
            f"no number of these hosts trains this in {span}; the fastest tried is {best}, in {time}"
            if count is None
            else f"{count} host{'s' * (count != 1)} train{'s' * (count == 1)} this in {span}: {time}"
        )
        return msgspec.structs.replace(answer, notes=(note, *answer.notes))

    def _ask(self, question: Question) -> Answer:
        return Predictor(self._programs.predict).ask(question)

    def _hosts(self, plan: JobPlan, options: Measure, name: str | None = None) -> Hosts:
        """Return the hosts of a plan, or as many of the instance type `name`.

        The user's device is that of the job's own hosts, and stands for others only where no table knows them.
        """
        return hosts_of(
            plan if name is None else changed(plan, WhatIf(instance_type=name)),
            machine=self._machine,
            known=self._known,
            device=options.device,
            tables_first=_of_others(options, name),
        )

    def _priced(self, plan: JobPlan, options: Measure, name: str | None = None) -> Hosts:
        """Return hosts with their price, to which the same holds."""
        hosts = self._hosts(plan, options, name)
        price = None if _of_others(options, name) else options.dollars_per_hour or plan.options.dollars_per_hour
        if price is None:
            price = hosts.dollars_per_hour
        if price is None:
            price = self._price(hosts.name, self._home.cache / "prices")
        return msgspec.structs.replace(hosts, dollars_per_hour=options.dollars_per_hour if price is None else price)

    def _folder(self, plan: JobPlan, step: Step) -> Path:
        return self._measurements.folder_of(plan, device=step.device, alone=step.ranks == 1)

    def _timings(
        self, plan: JobPlan, question: Question, options: Measure, progress: Progress | None
    ) -> tuple[str | None, str]:
        """Return the file with the seconds of the script's steps on this machine's processor, and a note.

        There is no file where the job computes elsewhere, where nothing was timed yet and no `progress` can be shown,
        and where the script cannot be timed, as the note then says.
        """
        hosts = question.hosts
        if hosts.cores is None or hosts.name not in ("local_process", "local"):
            return None, ""
        processes, cores = hosts.ranks_per_host * hosts.count, hosts.cores * hosts.count
        # As the supervisor does, unless the user sets their number; a lone rank has as many as torch chooses.
        inherited = {} if hosts.name == "local" else of_the_shell(os.environ)
        own = {**inherited, **plan.environment}.get("OMP_NUM_THREADS", "").partition(",")[0]
        threads = threads_of_rank(
            num_local=hosts.ranks_per_host, num_cpus=cores, num_on_machine=processes, machine_cpus=cores
        )
        threads = int(own) if own.isdigit() else threads or 0
        # The job's own ranks run together. Its settings do not say how another layout's ranks would.
        what_if = options.what_if
        job = question.search is None and what_if.distribution is None and what_if.instance_count is None
        layout = f"-{digest(question.distribution)}" if job and processes > 1 else ""
        timings = Path(question.measurement).with_name(f"steps-{processes}x{threads or 'all'}{layout}.json")
        slowdown, machine = _slowdown(timings), self._machine()
        kept = None if slowdown is None else str(timings)
        # Those of a busy machine serve until it has a free core.
        if progress is None or (slowdown is not None and (slowdown <= QUIET_SLOWDOWN or machine.load >= machine.cores)):
            return kept, ""
        with progress.working(f"timing steps in {processes} process{'es' * (processes != 1)}") as show:
            try:
                # Another plan may time the same steps now.
                measure(
                    with_local_data(plan, options.data),
                    _step(plan, hosts),
                    timings,
                    home=self._home,
                    timeout=_TIMING_TIMEOUT_SECONDS,
                    show=show,
                    program=self._programs.timing,
                    timing=Timing(question, threads, self._timing_seconds, bool(layout)),
                )
            except (MeasurementError, InputError) as error:
                last = str(error).rstrip().rpartition("\n")[2]
                return kept, f"steps could not be timed on this machine, so times are rough: {last}"
        return str(timings), ""

    def _start_seconds(self, backend: str) -> float:
        """Return the usual time from the request of a job to its start: the median of earlier jobs of this backend."""
        with contextlib.suppress(HerringboneError):
            rows = JobIndex(self._home.index).recent(_EARLIER_JOBS)
            waits = [
                row.started - row.created for row in rows if row.backend == backend and row.started and row.created
            ]
            if waits:
                return max(0.0, round(statistics.median(waits), 1))
        return _START_SECONDS.get(backend, 0.0)


def read_summary(path: Path) -> Summary:
    """Return what the SDK needs of a measurement. Raises `MeasurementError` for a file that is none."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Summary)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MeasurementError(
            f"the measurement {path} cannot be read: {error}; remove its folder and measure again"
        ) from None


def _slowdown(timings: Path) -> float | None:
    """Return by how much other programs slowed the steps of a file of timings; None without such a file."""
    try:
        return float(json.loads(timings.read_bytes()).get("slowdown", 1.0))
    except (OSError, ValueError):
        return None


def _of_others(options: Measure, name: str | None) -> bool:
    """Say whether hosts are of another type than the job's own."""
    return (name or options.what_if.instance_type) is not None


def _step(plan: JobPlan, hosts: Hosts) -> Step:
    """Return the job that the script sees: as many ranks as read different batches, with the whole model on each."""
    ranks = hosts.ranks_per_host * hosts.count
    # Degrees that do not divide the ranks are the predictor's to refuse.
    with contextlib.suppress(DistributionError):
        mesh = mesh_of(plan.distribution, ranks)
        ranks = ranks if mesh is None else mesh.batches
    gpus = hosts.devices if hosts.cores is None else 0
    return Step(ranks, min(ranks, hosts.ranks_per_host), gpus, "cuda" if gpus else "cpu")
