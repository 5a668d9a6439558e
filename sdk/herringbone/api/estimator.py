"""`Estimator`: makes a request of its arguments, plans it, and starts its job."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import msgspec

from herringbone.api.planning import backend_of, located, plan_request, start_request
from herringbone.code.git import checked_out
from herringbone.plan.arguments import names_of
from herringbone.plan.inputs import Inputs, parse_inputs
from herringbone.plan.options.signature import ExplicitSignature
from herringbone.plan.options.strategy_names import AUTO
from herringbone.plan.options.typed import Options
from herringbone.plan.plan import JobPlan, steering
from herringbone.plan.request import (
    JobRequest,
    added_hyperparameters,
    base_job_name,
    changed,
    distribution_of,
    for_class,
    groups_of,
    keywords,
    make_request,
    refuse_masked,
    request_of,
    with_code,
    with_hyperparameters,
    with_options,
)
from herringbone.system.interrupt import OnInterrupt, check_choice
from herringbone.system.user_paths import current_folder
from herringbone_contract.distribution import Distribution
from herringbone_contract.errors import OptionError, UnsupportedError
from herringbone_contract.hyperparameters import encode, encode_values

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from herringbone.api.job import TrainingJob
    from herringbone.api.rehearsal import Settings
    from herringbone.plan.options.declared import OptionsDict
    from herringbone.prediction.options import Measure
    from herringbone.protocols.backend import Backend
    from herringbone.rehearsal.rows import Rehearsal


class Estimator:
    """Train with a script, or with an image that has its own program, on any hosts.

    >>> estimator = Estimator("train.py", source_dir="src", instance_type="local_process", instance_count=2,
    ...                       hyperparameters={"epochs": 3})
    >>> job = estimator.fit({"training": "file://data"})     # doctest: +SKIP
    >>> job.model_data                                       # doctest: +SKIP
    'file:///home/me/.herringbone/jobs/train-2026-11-21-09-05-07-042/output/model.tar.gz'

    `options` are SageMaker's flat keyword arguments. `help(Estimator)` lists them, and editors complete them and show
    the text of each (`herringbone.plan.options.declared`). The constructor uses no network and reads no file, except
    modelparallel `parameters` given as a path. Raises `OptionError`, `DistributionError` or `HyperparameterError`.

    Args:
        entry_point: The script to run: a path inside `source_dir`, or a path of its own without `source_dir`.
        image_uri: The image of the job's containers.
        source_dir: The folder of the code, or a tar.gz of it. Its requirements.txt is installed at the start.
        instance_type: One of local_process, local, local_gpu, ssh:INVENTORY, slurm:PARTITION, k8s:NAMESPACE, ml.*.
        instance_count: The number of hosts.
        hyperparameters: Settings of the script, which reads each as `--name value`.
        distribution: The strategy that starts the ranks: a dict, a name such as "torch_distributed", or "auto".
    """

    __signature__ = ExplicitSignature()
    entry_point: str | None
    source_dir: str | None
    image_uri: str | None
    instance_type: str | None
    instance_count: int | None
    # The name of the class; of one that a user writes, the name of the class that it is made of.
    _kind: ClassVar[str] = "Estimator"

    def __init__(
        self,
        entry_point: str | os.PathLike[str] | None = None,
        *,
        image_uri: str | None = None,
        source_dir: str | os.PathLike[str] | None = None,
        instance_type: str | None = None,
        instance_count: int | None = None,
        hyperparameters: Mapping[str, Any] | None = None,
        distribution: Mapping[str, Any] | str | None = None,
        **options: Unpack[OptionsDict],
    ) -> None:
        self._begin(
            {
                "entry_point": entry_point,
                "image_uri": image_uri,
                "source_dir": source_dir,
                "instance_type": instance_type,
                "instance_count": instance_count,
                "hyperparameters": hyperparameters,
                "distribution": distribution,
                **options,
            }
        )

    def _begin(self, arguments: Mapping[str, Any]) -> None:
        request = make_request(self._kind, arguments)
        # What a user's constructor has set before this one counts no more than in Python: it is set again.
        for name in names_of(self._kind) - {"hyperparameters"}:
            self.__dict__.pop(name, None)
        self._request: JobRequest = request
        self.jobs: list[TrainingJob] = []
        # Of the earlier job, for an estimator that `like` made.
        self._copied_checkpoints: dict[str, Path] = {}

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            request = self.__dict__.get("_request")
            if request is not None and name in names_of(self._kind):
                return getattr(request.arguments if hasattr(request.arguments, name) else request.options, name)
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; an argument or option makes another request, which is checked as the constructor's."""
        if "_request" in self.__dict__ and name in names_of(self._kind) and name != "hyperparameters":
            self._request = changed(self._request, {name: value})
        else:
            super().__setattr__(name, value)

    @property
    def options(self) -> Options:
        """The further keyword arguments, converted."""
        return self._request.options

    @options.setter
    def options(self, _: object) -> None:
        if "_request" in self.__dict__:
            raise OptionError("options: set each option by its own name: estimator.max_run = 60")

    @property
    def distribution(self) -> Distribution:
        """The strategy, converted; with "auto", that of one process on each host until `plan` or `fit` choose."""
        return distribution_of(self._request)

    @distribution.setter
    def distribution(self, value: Mapping[str, Any] | str | None) -> None:
        """See `__setattr__`; nothing is set before the constructor, which gives the value."""

    def __repr__(self) -> str:
        words = [f"{name}={value!r}" for name, value in self._shown().items() if name != "entry_point"]
        return f"{type(self).__name__}({', '.join([repr(self.entry_point), *words])})"

    def _repr_html_(self) -> str:
        """Show the estimator in a notebook."""
        job = self.latest_training_job
        rows = [(name, str(value)) for name, value in self._shown().items()]
        from herringbone.show.html import html_table

        return html_table(type(self).__name__, [*rows, ("job", "none yet" if job is None else job.name)])

    def _shown(self) -> dict[str, Any]:
        """Return the arguments that are set, without secrets."""
        shown = self._request.to_dict()
        return {**shown.get("arguments", {}), **shown.get("options", {})}

    @property
    def latest_training_job(self) -> TrainingJob | None:
        """The job of the last `fit` (or `attach`); None before the first."""
        return self.jobs[-1] if self.jobs else None

    @property
    def model_data(self) -> str | None:
        """The address of the last job's model; None while there is none."""
        job = self.latest_training_job
        return None if job is None else job.model_data

    def set_hyperparameters(self, **hyperparameters: Any) -> None:
        """Add or replace hyperparameters. Raises `HyperparameterError` for a value that JSON cannot hold."""
        values = {**self._request.arguments.hyperparameters, **hyperparameters}
        self._request = with_hyperparameters(self._request, values)

    def hyperparameters(self) -> dict[str, str]:
        """Return the encoded hyperparameters: the user's, the distribution's, and those that script mode adds.

        >>> Estimator("train.py", instance_type="local_process", hyperparameters={"lr": 0.1}).hyperparameters()["lr"]
        '0.1'

        The job's name is among them after the first `fit`.
        """
        job, distribution = self.latest_training_job, self.distribution
        request, source = located(self._asked(None))
        groups = groups_of(request)
        training = [group for group in groups if group.instance_group_name != distribution.helpers]
        values = {**request.arguments.hyperparameters, **added_hyperparameters(request, distribution.launcher)}
        return {
            **encode_values(values),
            **encode(distribution, instance_type=(training or groups)[0].instance_type),
            **encode_values(steering(request.options, source, job_name=None if job is None else job.name)),
        }

    def plan(self, inputs: Inputs = None, job_name: str | None = None, *, measure: bool | Measure = False) -> JobPlan:
        """Return the plan of the job that `fit` would start, without starting it.

        >>> print(estimator.plan({"training": "data"}))                                     # doctest: +SKIP
        >>> estimator.plan("data", measure=True).prediction.planned.step.seconds.expected   # doctest: +SKIP
        0.213

        With `measure`, a step of the script runs here without data, and the plan predicts memory, time and cost; raises
        `MeasurementError` for a script that cannot be measured. Only this measurement stays. Raises the `UsageError`
        that `fit` would raise: for a missing file, a broken rule, or an option that the backend does not serve.
        """
        if job_name is not None:
            from herringbone.records.home import find_home
            from herringbone.records.index import JobIndex

            JobIndex(find_home().index).check_free(job_name)  # before a measurement
        with checked_out(self.options.git_config) as code:
            plan = plan_request(self._asked(inputs), self._backend, job_name, code, measure=measure)
        return msgspec.structs.replace(plan, made_name=job_name is None)

    def _asked(self, inputs: Inputs, *, queue: bool | None = None) -> JobRequest:
        """Return the request as it is now: of this folder, with these inputs, or with those of an earlier job."""
        folder, request = current_folder(), self._request
        return msgspec.structs.replace(
            request,
            folder=str(folder),
            channels=request.channels if inputs is None else parse_inputs(inputs, base=folder),
            queue=request.queue if queue is None else queue,
        )

    def fit(
        self,
        inputs: Inputs = None,
        wait: bool = True,
        logs: bool | str = True,
        job_name: str | None = None,
        experiment_config: Mapping[str, str] | None = None,
        *,
        on_interrupt: OnInterrupt | None = None,
        distribution: Literal["auto"] | None = None,
        queue: bool | None = None,
    ) -> TrainingJob:
        """Start the job and return it. With `wait`, show its log to the end, unless `logs` is False (or AWS's "None").

        The first line has the job's name, the last one says how the job ended; `logs=False` leaves out both. In a
        notebook, one line with progress and loss takes the log's place, unless `logs` is "All".

        >>> estimator.fit("file://data", wait=False).status  # doctest: +SKIP
        'InProgress'

        `on_interrupt` decides what happens to the job on Ctrl-C, before KeyboardInterrupt is raised:

        - "stop": stop the job; a second Ctrl-C kills it. The default for jobs on your own machines.
        - "detach": let the job run on.
        - "ask": ask on a terminal, detach on a pipe. The default on `ml.*`.

        With `distribution="auto"`, the script is measured, and the job takes the strategy that trains fastest.
        With `queue`, a job whose GPUs are taken waits in line, and is Pending meanwhile; without, it is refused. `like`
        keeps the earlier job's choice.
        Options that the backend does not use are named on standard error. Raises `UsageError` before anything starts.
        With `wait`, raises `JobFailedError` when the job failed.
        """
        from herringbone.views.notebook.choice import console_of

        check_choice(on_interrupt)
        show_log = logs not in (False, None, "None")
        if experiment_config is not None:
            raise UnsupportedError("experiment_config: there is no experiment service here; leave it out")
        if distribution not in (None, AUTO):
            raise OptionError('distribution: fit takes "auto" alone; give any other one to the estimator')
        request = self._asked(inputs, queue=queue)
        # Of an estimator that was attached to a job.
        refuse_masked(job_name or base_job_name(request), request)
        choose = distribution is not None
        job = start_request(request, job_name, choose=choose, show_start=show_log, before=self._copy_checkpoints)
        # Before `follow`, which raises when the job fails: `latest_training_job` is then the failed job.
        self.jobs.append(job)
        if wait:
            job.follow(console_of(job.name, job._backend, logs) if show_log else None, on_interrupt=on_interrupt)
        return job

    def rehearse(self, inputs: Inputs = None, faults: Sequence[str] = (), **settings: Unpack[Settings]) -> Rehearsal:
        """Run the job undisturbed, twice, and once for each fault; compare each run with the undisturbed ones.

        >>> estimator.rehearse("data", faults=("rank-killed", "save-torn")).summary      # doctest: +SKIP
        '2 of 2 equal'

        `faults` are all by default. See `herringbone.api.rehearsal` for the `settings`. Raises `UsageError`.
        """
        from herringbone.api.rehearsal import rehearse_request

        if self._copied_checkpoints:
            raise OptionError("resume: a rehearsal begins without checkpoints; make the estimator with like(NAME)")
        return rehearse_request(self._asked(inputs), faults, **settings)

    def _copy_checkpoints(self, plan: JobPlan) -> None:
        if self._copied_checkpoints:
            from herringbone.api.ends import say_of
            from herringbone.records.checkpoints import copy_checkpoints
            from herringbone.records.home import find_home
            from herringbone.records.index import JobIndex

            JobIndex(find_home().index).check_free(plan.job_name)  # before work that no job would need
            copy_checkpoints(self._copied_checkpoints, Path(str(plan.options.checkpoint_s3_uri)), say_of(plan))
            self._copied_checkpoints = {}  # another `fit` goes on in the same folder

    def logs(self) -> None:
        """Show the last job's log until the job is over, as SageMaker's method of the same name does."""
        job = self.latest_training_job
        if job is None:
            raise OptionError("logs: this estimator has no job yet; call fit() first")
        job.wait(logs=True)

    @classmethod
    def like(cls, training_job_name: str, *, resume: bool = False, code_of_job: bool = False, **changes: Any) -> Self:
        """Return a new estimator with the settings and the inputs of an earlier job, apart from `changes`.

        >>> PyTorch.like("digits-1", hyperparameters={"lr": 1e-3}).fit()                  # doctest: +SKIP

        - `changes` are arguments of the estimator. Hyperparameters and variables are added, all else is replaced.
        - `fit` and `plan` without inputs take those of the earlier job.
        - The code is your own, as it is now; with `code_of_job`, it is the copy that the earlier job ran.
        - With `resume`, the new job begins from the earlier job's checkpoints: in the folder of its
          `checkpoint_s3_uri`, or in a new folder with a copy of the files that its hosts left on this machine.

        Secrets are stored masked: the error that names them asks for them in `changes`. Raises `InputError`.
        """
        from herringbone.api.job import TrainingJob
        from herringbone.records.checkpoints import job_code, resumed
        from herringbone.records.home import find_home

        job = TrainingJob.attach(training_job_name)
        plan = job.plan
        request, copied = cls._request_of(plan), dict[str, Path]()
        if code_of_job:
            request = with_code(request, *job_code(find_home(), plan))
        if resume:
            if changes.get("checkpoint_s3_uri") is not None:
                raise OptionError("checkpoint_s3_uri: resume takes the folder of the earlier job; leave this out")
            folder, copied = resumed(find_home(), plan, request.options.checkpoint_s3_uri, over=job.ended is not None)
            request = with_options(request, checkpoint_s3_uri=folder)
        request = changed(request, changes)
        refuse_masked(plan.job_name, request)
        estimator = cls.of(request)
        estimator._copied_checkpoints = copied
        return estimator

    @classmethod
    def attach(cls, training_job_name: str, sagemaker_session: object = None) -> Self:
        """Return the estimator that submitted a job, without waiting for the job.

        >>> Estimator.attach("digits-1").model_data          # doctest: +SKIP

        If this machine does not know the job and a region is set, the estimator is rebuilt from SageMaker's description
        of the job; call `attach` of the class that submitted it. Values of `environment` and of hyperparameters that
        look like secrets are stored masked, and stay masked. Raises `JobNotFoundError`.
        """
        from herringbone.api.job import TrainingJob

        job = TrainingJob.attach(training_job_name, sagemaker_session)
        estimator = cls.of(msgspec.structs.replace(cls._request_of(job.plan), channels=(), queue=False))
        estimator.jobs.append(job)
        return estimator

    @classmethod
    def of(cls, request: JobRequest) -> Self:
        """Return the estimator of a request, by its constructor, which may be a user's.

        >>> Estimator.of(Estimator("train.py", instance_type="local_process")._request).entry_point
        'train.py'

        Raises `OptionError` where the constructor does not take the arguments.
        """
        given = keywords(request)
        try:
            estimator = cls(**given)
        except TypeError as error:
            raise OptionError(
                f"{cls.__name__}: its constructor does not take the arguments {', '.join(given)} ({error}); use "
                f"{cls._kind}, or let the constructor pass further arguments on"
            ) from error
        parts = {name: getattr(request, name) for name in ("channels", "folder", "queue")}
        estimator._request = msgspec.structs.replace(estimator._request, **parts)
        return estimator

    @classmethod
    def _request_of(cls, plan: JobPlan) -> JobRequest:
        request = request_of(plan)
        # A plan of an earlier release may have the name of the user's class.
        return request if plan.estimator == cls.__name__ else for_class(request, cls._kind)

    @property
    def _backend(self) -> Backend:
        """The backend that runs the job. Raises `UsageError` for instance types of two backends."""
        return backend_of(self._request)
