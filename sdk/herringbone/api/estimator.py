"""`Estimator`: checks its arguments, makes the plan, and hands the plan to a backend."""

from __future__ import annotations

import os
from collections.abc import Mapping
from copy import copy
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import msgspec

from herringbone.backends.registry import backend_for
from herringbone.code.git import Checkout, check_inside, checked_out
from herringbone.plan.inputs import Inputs, parse_inputs
from herringbone.plan.links import result_folders
from herringbone.plan.names import check_job_name, default_job_name
from herringbone.plan.options.signature import ExplicitSignature
from herringbone.plan.options.strategy_names import AUTO, named_strategy
from herringbone.plan.options.typed import Options, changed_options, parse_options
from herringbone.plan.plan import JobPlan, JobRequest, instance_groups, make_plan, steering
from herringbone.plan.secrets import masked_options
from herringbone.plan.source import find_source
from herringbone.plan.texts import check_name, check_texts, mapping_of, path_text
from herringbone.system.interrupt import OnInterrupt, check_choice
from herringbone.system.user_paths import current_folder
from herringbone_contract.distribution import Distribution, Framework, parse
from herringbone_contract.errors import DistributionError, HyperparameterError, OptionError, UnsupportedError
from herringbone_contract.hyperparameters import encode, encode_values
from herringbone_contract.masking import masked_hyperparameters, masked_texts

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from herringbone.api.job import TrainingJob
    from herringbone.plan.options.declared import OptionsDict
    from herringbone.prediction.options import Measure
    from herringbone.protocols.backend import Backend


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
        instance_type: The type of the hosts: local_process, local, local_gpu, ssh:INVENTORY, slurm:PARTITION or ml.*.
        instance_count: The number of hosts.
        hyperparameters: Settings of the script, which reads each as `--name value`.
        distribution: The strategy that starts the ranks: a dict, a name such as "torch_distributed", or "auto".
    """

    __signature__ = ExplicitSignature()
    _framework: ClassVar[Framework | None] = None

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
        self.entry_point = path_text("entry_point", entry_point)
        self.source_dir = path_text("source_dir", source_dir)
        self.image_uri = path_text("image_uri", image_uri)
        if self.image_uri is not None:
            check_name("image_uri", self.image_uri)
        self.instance_type = instance_type
        self.instance_count = instance_count
        self.options: Options = parse_options(options)
        check_texts("distribution", distribution, error=DistributionError)
        # With "auto", `plan` and `fit` measure the script and choose the strategy.
        self._auto = distribution == AUTO
        self._queue = False
        self.distribution: Distribution = self._parsed(None if self._auto else distribution)
        # Groups and hyperparameters are checked here and not at `plan`: the error then points at the wrong argument.
        self._groups = instance_groups(self.options, instance_type, instance_count)
        for group in self._groups:
            check_texts("instance_type", group.instance_type)
        self._hyperparameters: dict[str, Any] = {}
        self.set_hyperparameters(**mapping_of("hyperparameters", hyperparameters))
        self.jobs: list[TrainingJob] = []
        # Of the earlier job, for an estimator that `like` made.
        self._inputs: Inputs = None
        self._copied_checkpoints: dict[str, Path] = {}
        if self.entry_point is None and self.image_uri is None:
            raise OptionError(
                "entry_point: missing; give the script to run, or image_uri for an image that has its own"
            )
        if self.source_dir is not None and self.entry_point is None:
            raise OptionError("source_dir: given without entry_point; name the script in it to run")
        if self.options.git_config is not None and self.entry_point is None:
            raise OptionError("git_config: given without entry_point; name the script of the repository to run")
        if self.options.include_secrets and self.entry_point is None:
            raise OptionError("include_secrets: given without entry_point, so there is no code to include them in")

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
        values = {**self._arguments(), **changed_options(masked_options(self.options))}
        values["hyperparameters"] = masked_hyperparameters(self._hyperparameters)
        return {name: value for name, value in masked_texts(values).items() if value not in (None, {})}

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
        # Encode before the assignment, so that a refused value leaves the old ones in place.
        merged = {**self._hyperparameters, **hyperparameters}
        check_texts("hyperparameters, name", list(hyperparameters), error=HyperparameterError)
        encode_values(merged)
        self._hyperparameters = merged

    def hyperparameters(self) -> dict[str, str]:
        """Return the encoded hyperparameters: the user's, the distribution's, and those that script mode adds.

        >>> Estimator("train.py", instance_type="local_process", hyperparameters={"lr": 0.1}).hyperparameters()["lr"]
        '0.1'

        The job's name is among them after the first `fit`.
        """
        request = self._request(current_folder())
        job = self.latest_training_job
        training = [group for group in self._groups if group.instance_group_name != self.distribution.helpers]
        return {
            **encode_values(request.hyperparameters),
            **encode(self.distribution, instance_type=(training or self._groups)[0].instance_type),
            **encode_values(steering(request, job_name=None if job is None else job.name)),
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
        with checked_out(self.options.git_config) as code:
            plan = self._plan(self._backend(), inputs, job_name, code, measure)
        return msgspec.structs.replace(plan, made_name=job_name is None)

    def _plan(
        self, backend: Backend, inputs: Inputs, name: str | None, code: Checkout | None = None, measure: Any = False
    ) -> JobPlan:
        """Return the plan with what is known, or measured, about memory and time."""
        from herringbone.records.home import find_home

        if not (self._auto or measure or find_home().has_measurements):
            return self._made(backend, inputs, name, code)
        # Imported here: most jobs have no prediction, and their users wait for the first line.
        from herringbone.prediction.estimating import chosen, predicted
        from herringbone.prediction.options import parse_measure

        settings = parse_measure(measure)
        if self._auto:
            plan = chosen(lambda found: self._with(found)._made(backend, inputs, name, code), settings)
        else:
            plan = predicted(self._made(backend, inputs, name, code), settings)
        # A job with a prediction has one variable more.
        return plan if plan.request is None else msgspec.structs.replace(plan, request=backend.request(plan))

    def _with(self, distribution: Mapping[str, Any] | str | None) -> Self:
        """Return a copy with another distribution; None keeps this one, "auto" lets a plan choose one like it."""
        estimator = copy(self)
        estimator._auto = distribution == AUTO
        if distribution not in (None, AUTO):
            estimator.distribution = self._parsed(distribution)
        return estimator

    def _parsed(self, distribution: Mapping[str, Any] | str | None) -> Distribution:
        return parse(named_strategy(distribution), framework=self._framework)

    def _made(self, backend: Backend, inputs: Inputs, job_name: str | None, code: Checkout | None) -> JobPlan:
        folder = current_folder()
        # UTC, so that names sort by time on machines of different time zones.
        name = default_job_name(self._base_job_name(), datetime.now(timezone.utc)) if job_name is None else job_name
        plan = make_plan(
            self._request(folder, code),
            channels=parse_inputs(self._inputs if inputs is None else inputs, base=folder),
            job_name=check_job_name(name),
            backend=backend.name,
            folder=str(folder),
            queue=self._queue,
        )
        # Imported here, as below: who only makes an estimator needs none of it.
        from herringbone.backends.review.checks import reviewed

        return reviewed(plan, backend)

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
        from herringbone.api.ends import say_before, say_of
        from herringbone.api.job import TrainingJob
        from herringbone.records.checkpoints import copy_checkpoints
        from herringbone.views.notebook.choice import console_of

        check_choice(on_interrupt)
        show_log = logs not in (False, None, "None")
        if experiment_config is not None:
            raise UnsupportedError("experiment_config: there is no experiment service here; leave it out")
        backend = self._backend()
        if distribution not in (None, AUTO):
            raise OptionError('distribution: fit takes "auto" alone; give any other one to the estimator')
        estimator = copy(self) if distribution is None else self._with(distribution)
        estimator._queue = self._queue if queue is None else queue
        with checked_out(self.options.git_config) as code:
            plan = estimator._plan(backend, inputs, job_name, code)
            say_before(plan, show_start=show_log)
            if self._copied_checkpoints:
                copy_checkpoints(self._copied_checkpoints, Path(str(self.options.checkpoint_s3_uri)), say_of(plan))
                self._copied_checkpoints = {}  # another `fit` goes on in the same folder
            # Within the block, because the end of the block deletes the code that `submit` copies or packs.
            job = TrainingJob.submit(plan, backend)
        # Before `follow`, which raises when the job fails: `latest_training_job` is then the failed job.
        self.jobs.append(job)
        if wait:
            job.follow(console_of(job.name, backend, logs) if show_log else None, on_interrupt=on_interrupt)
        return job

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
        from herringbone.records import again

        job = TrainingJob.attach(training_job_name)
        plan = job.plan
        settings = again.settings_of(plan, cls._arguments_of(plan))
        settings, copied = again.earlier_settings(plan, settings, changes, job.ended, resume=resume, code=code_of_job)
        estimator = cls(**settings)
        estimator._inputs, estimator._copied_checkpoints = again.inputs_of(plan), copied
        estimator._queue = plan.queue
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
        plan = job.plan
        estimator = cls(**cls._arguments_of(plan), **changed_options(plan.options))
        estimator.jobs.append(job)
        return estimator

    def _request(self, folder: Path, code: Checkout | None = None) -> JobRequest:
        source = None
        arguments = self._arguments()
        options = self.options
        if self.entry_point is not None:
            source = find_source(
                self.entry_point,
                self.source_dir,
                options.dependencies,
                base=folder if code is None else code.folder,
                secrets=options.include_secrets,
            )
            source = msgspec.structs.replace(source, results=result_folders(options, source, base=folder))
            if code is not None:
                check_inside(source, code.folder)
                source = msgspec.structs.replace(source, revision=code.revision)
            elif options.git_config is None:
                # Absolute, so that `attach` finds them from any folder.
                options = msgspec.structs.replace(options, dependencies=source.dependencies)
                arguments |= source.arguments
        return JobRequest(
            estimator=type(self).__name__,
            arguments={name: value for name, value in arguments.items() if value is not None},
            source=source,
            image_uri=self.image_uri,
            groups=self._groups,
            hyperparameters={**self._hyperparameters, **self._added_hyperparameters()},
            distribution=self.distribution,
            options=options,
        )

    def _arguments(self) -> dict[str, Any]:
        """Return the arguments of the constructor's own signature, as plain values."""
        return {
            "entry_point": self.entry_point,
            "source_dir": self.source_dir,
            "image_uri": self.image_uri,
            "instance_type": self.instance_type,
            "instance_count": self.instance_count,
            "hyperparameters": self._hyperparameters or None,
            "distribution": AUTO if self._auto else msgspec.to_builtins(self.distribution) or None,
        }

    @classmethod
    def _arguments_of(cls, plan: JobPlan) -> dict[str, Any]:
        """Return the arguments with which `attach` calls the constructor of this class."""
        return plan.arguments

    def _added_hyperparameters(self) -> dict[str, Any]:
        """Return the hyperparameters that a framework's class adds to every job."""
        return {}

    def _base_job_name(self) -> str:
        if self.options.base_job_name is not None:
            return self.options.base_job_name
        return Path(self.entry_point or (self.image_uri or "job").rpartition("/")[2].partition(":")[0]).stem

    def _backend(self) -> Backend:
        return backend_for(*(group.instance_type for group in self._groups))
