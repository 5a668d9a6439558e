"""`remote`: the decorator that runs a function as a job."""

from __future__ import annotations

import functools
import inspect
import secrets
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar, overload

from herringbone.api.estimator import Estimator
from herringbone.api.remote_function import script
from herringbone.api.remote_function.bundle import find_cloudpickle, name_of, requirements_of, write_bundle
from herringbone.api.remote_function.call import RemoteCall
from herringbone.plan.inputs import Inputs
from herringbone.system.interrupt import OnInterrupt, check_choice
from herringbone.views.notebook.choice import console_of
from herringbone_contract.errors import OptionError

Result = TypeVar("Result")

# Arguments of an estimator that the decorator sets itself -> what to write instead.
_OWN = {
    "entry_point": "the function is the script",
    "source_dir": "write include_local_workdir=True, or list folders in dependencies",
    "hyperparameters": "give them to the function as arguments",
    "git_config": "the function comes from this Python",
    "container_entry_point": "the function is the program",
    "container_arguments": "the function is the program",
    "disable_output_compression": "the result travels in the job's packed output",
}
# Parameters of AWS's decorator -> ours.
_RENAMED = {
    "environment_variables": "environment",
    "job_name_prefix": "base_job_name",
    "max_runtime_in_seconds": "max_run",
    "max_wait_time_in_seconds": "max_wait",
    "use_torchrun": 'distribution="torch_distributed"',
    "use_mpirun": 'distribution={"mpi": {"enabled": True, "processes_per_host": N}}',
    "nproc_per_node": 'distribution={"mpi": {"enabled": True, "processes_per_host": N}}',
    "s3_root_uri": "code_location and output_path",
    "pre_execution_commands": "an image with what they install (image_uri), or dependencies",
    "pre_execution_script": "an image with what it installs (image_uri), or dependencies",
    "custom_file_filter": ".herringboneignore",
}


class RemoteFunction(Generic[Result]):
    """A function that runs as a job each time it is called; `remote` makes it."""

    def __init__(
        self,
        function: Callable[..., Result],
        settings: Mapping[str, Any],
        *,
        estimator: type[Estimator],
        dependencies: str | Path | Sequence[str | Path] | None,
        include_local_workdir: bool,
        inputs: Inputs,
        on_interrupt: OnInterrupt,
    ) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._settings = dict(settings)
        self._estimator = estimator
        self._dependencies = dependencies
        self._include_local_workdir = include_local_workdir
        self._inputs = inputs
        self._on_interrupt: OnInterrupt = on_interrupt
        # Here for their checks alone: a wrong setting is reported where it is written, not at the first call.
        requirements_of(dependencies)
        self._make(script.SCRIPT, None, [], b"")

    def __call__(self, *arguments: Any, **keywords: Any) -> Result:
        """Run the function as a job, show its log, and return what it returns on rank 0. Ctrl-C stops the job.

        Raises what the function raises, and the errors of `RemoteCall.result`.
        """
        from herringbone_contract.errors import JobFailedError

        call = self._submitted(arguments, keywords, show_start=True)
        job = call.job
        try:
            job.follow(console_of(job.name, job._backend, True), on_interrupt=self._on_interrupt)
        except JobFailedError:
            call.outcome(log_shown=True)
        result: Result = call.outcome(log_shown=True)
        return result

    def submit(self, *arguments: Any, **keywords: Any) -> RemoteCall:
        """Start the job of a call and return at once; the call's `result()` waits.

        >>> calls = [train.submit(lr) for lr in (0.1, 0.01)]              # doctest: +SKIP
        >>> [call.result() for call in calls]                            # doctest: +SKIP
        """
        return self._submitted(arguments, keywords, show_start=False)

    def _submitted(self, arguments: tuple[Any, ...], keywords: Mapping[str, Any], *, show_start: bool) -> RemoteCall:
        # Before any work: a call with a missing argument is the caller's mistake.
        inspect.signature(self._function).bind(*arguments, **keywords)
        key = secrets.token_bytes(32)
        requirements = requirements_of(self._dependencies)
        with tempfile.TemporaryDirectory(prefix="herringbone-remote-") as folder:
            extra = write_bundle(
                Path(folder),
                self._function,
                arguments,
                keywords,
                include_local_workdir=self._include_local_workdir,
                requirements=requirements,
            )
            # `fit` copies the code before it returns.
            estimator = self._make(script.SCRIPT, folder, extra, key)
            job = estimator.fit(self._inputs, wait=False, logs=show_start)
        return RemoteCall(job, key)

    def _make(self, entry_point: str, folder: str | None, extra: Sequence[Path], key: bytes) -> Estimator:
        named = [] if isinstance(self._dependencies, (str, Path)) else list(self._dependencies or ())
        settings = {"base_job_name": name_of(self._function).rpartition(".")[2].strip("<>_"), **self._settings}
        environment = {**(settings.pop("environment", None) or {}), script.KEY_VARIABLE: key.hex()}
        return self._estimator(
            entry_point,
            source_dir=folder,
            # Named ones last: of two files of one name, the last one is taken.
            dependencies=[*map(str, extra), *map(str, named)],
            environment=environment,
            **settings,
        )


@overload
def remote(function: Callable[..., Result], /) -> RemoteFunction[Result]: ...
@overload
def remote(
    *,
    estimator: type[Estimator] = ...,
    dependencies: str | Path | Sequence[str | Path] | None = ...,
    include_local_workdir: bool = ...,
    inputs: Inputs = ...,
    on_interrupt: OnInterrupt = ...,
    **settings: Any,
) -> Callable[[Callable[..., Result]], RemoteFunction[Result]]: ...
def remote(
    function: Callable[..., Any] | None = None,
    /,
    *,
    estimator: type[Estimator] = Estimator,
    dependencies: str | Path | Sequence[str | Path] | None = None,
    include_local_workdir: bool = False,
    inputs: Inputs = None,
    on_interrupt: OnInterrupt = "stop",
    **settings: Any,
) -> Any:
    """Make a function run as a job, on any backend and with any `distribution`.

    >>> @remote(instance_type="local_process", instance_count=2, distribution="torch_distributed")   # doctest: +SKIP
    ... def train(lr):
    ...     return run_epochs(lr)
    >>> train(0.1)                       # starts a job, shows its log, and returns rank 0's value   # doctest: +SKIP
    >>> train.submit(0.1).result()       # the same in the background                                # doctest: +SKIP

    `settings` are those of the estimator, apart from script and hyperparameters; `instance_type` is local_process
    unless given. Every rank calls the function. Needs the extra `remote`. Raises `OptionError` where it is applied.

    - `estimator`: the class that knows the framework, such as `PyTorch`, which chooses among Herringbone's images.
    - `dependencies`: the path of a requirements.txt, or a list of files and folders to take along.
    - `include_local_workdir`: take the current folder along, not only the modules in it that are imported by now.
    - `inputs`: channels, as those of `fit`. `on_interrupt`: what Ctrl-C does to the job, as in `fit`.
    """
    for name in settings:
        if name in _OWN:
            raise OptionError(f"remote: {name}: {_OWN[name]}")
        if name in _RENAMED:
            raise OptionError(f"remote: {name}: a name of AWS's decorator; write {_RENAMED[name]}")
    check_choice(on_interrupt)
    find_cloudpickle()
    settings.setdefault("instance_type", None if "instance_groups" in settings else "local_process")

    def decorate(target: Callable[..., Any]) -> RemoteFunction[Any]:
        if not callable(target):
            raise OptionError(f"remote: {target!r} is no function")
        if inspect.iscoroutinefunction(target) or inspect.isgeneratorfunction(target):
            raise OptionError(f"remote: {name_of(target)} is a generator or async; wrap it in a function that returns")
        return RemoteFunction(
            target,
            settings,
            estimator=estimator,
            dependencies=dependencies,
            include_local_workdir=include_local_workdir,
            inputs=inputs,
            on_interrupt=on_interrupt,
        )

    return decorate if function is None else decorate(function)
