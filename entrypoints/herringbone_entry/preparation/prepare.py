"""Prepare a host before it reports `ready`: its code, its packages, its program, and the way to start that."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from herringbone_contract.constants import HostVariable, Key
from herringbone_contract.errors import ContractError, UnsupportedError
from herringbone_contract.hyperparameters import arguments, carries_distribution, decode
from herringbone_contract.launcher import Launcher
from herringbone_contract.layout import hosts_of_groups, ranks_on_host
from herringbone_contract.resources import num_gpus as count_gpus
from herringbone_entry.host import Host
from herringbone_entry.preparation import devices
from herringbone_entry.preparation.code import Program, code_of, fill, find_program, is_package
from herringbone_entry.preparation.shims import find_shim, shims
from herringbone_entry.ranks.environment import contract_environment

if TYPE_CHECKING:
    from herringbone_contract.distribution import Distribution
    from herringbone_contract.model_parallel.version2 import ModelParallelV2Parameters
    from herringbone_entry.launchers.mpi import MPI

# The number of TensorFlow's servers on a host, by launcher; each needs a port.
_NUM_TENSORFLOW_SERVERS = {Launcher.MULTI_WORKER_MIRRORED: 1, Launcher.PARAMETER_SERVER: 2}
# The distribution, as its folder of metadata is called -> the name that `describe` shows.
_SHOWN_PACKAGES = {
    **{name: name for name in ("torch", "tensorflow", "keras", "mxnet", "herringbone")},
    **dict.fromkeys(("tensorflow_cpu", "tf_nightly"), "tensorflow"),
}


class Prepared(NamedTuple):
    """The program of this host's ranks and all that starting it needs.

    `num_processes` is 0 when the job has no rank on this host; a host that `helps` then serves the others' ranks.
    `environment` are the variables that the ranks do not inherit. `mpi_options` are the user's words for mpirun, None
    when each host starts its own ranks; `mpi` is the first host's mpirun. `sharding` are the parameters of version 2 of
    `modelparallel`.
    """

    launcher: Launcher
    program: Program
    arguments: tuple[str, ...]
    python: str
    environment: dict[str, str]
    shims: tuple[str, ...]
    num_processes: int
    helps: bool = False
    mpi: MPI | None = None
    mpi_options: str | None = None
    sharding: ModelParallelV2Parameters | None = None

    @property
    def under_mpi(self) -> bool:
        """True if mpirun starts the ranks."""
        return self.mpi_options is not None

    @property
    def has_parameter_servers(self) -> bool:
        """True if each host with a rank also has a parameter server."""
        return self.launcher in (Launcher.PARAMETER_SERVER, Launcher.MXNET_PARAMETER_SERVER)

    @property
    def num_tensorflow_servers(self) -> int:
        """The number of servers by which TensorFlow connects this host; each needs a port."""
        return _NUM_TENSORFLOW_SERVERS.get(self.launcher, 0)


def prepare(host: Host, log: Callable[[str], None]) -> Prepared:
    """Read the job's files and make this host ready for them; `log` takes lines for the job's log.

    Raises a `HerringboneError` that names the mistake in the job, or the fault of the host.
    """
    launcher, processes_per_host, mpi_options, helps = Launcher.PLAIN, None, None, False
    library: dict[str, str] = {}
    sharding: ModelParallelV2Parameters | None = None
    if carries_distribution(host.raw_hyperparameters):
        distribution = decode(host.raw_hyperparameters)
        launcher, processes_per_host = _launcher(host, distribution.launcher), distribution.processes_per_host
        mpi_options, helps = distribution.mpi_options, _helps(host, distribution.helpers)
        sharding = distribution.model_parallel_v2
        if distribution.data_parallel is not None:
            from herringbone_entry.launchers.data_parallel import settings

            library = settings(distribution.data_parallel)
    if launcher is Launcher.PYTORCH_XLA:
        raise UnsupportedError(
            f"distribution {launcher.value!r} is not supported by this release; mpi, torch_distributed, smdistributed, "
            "parameter_server, multi_worker_mirrored_strategy and a plain script are"
        )
    if len(host.resources.hosts) > 1 and host.control is None:
        raise UnsupportedError(
            f"{len(host.resources.hosts)} hosts need a control channel, and a secret that proves who they are; this "
            f"platform gives neither. Set {HostVariable.CONTROL}=tcp::7590 in the job's environment, and "
            f"{HostVariable.KEY_FILE} to a file that only this job's hosts can read, one of an input channel say"
        )
    # Early: a missing mpirun should be reported before minutes of installing packages.
    launcher_program = None
    if mpi_options is not None and host.is_first:
        from herringbone_entry.launchers.mpi import find

        launcher_program = find(host.environ)
    code = Path(host.paths.code)
    fill(code, code_of(host.steering), environ=host.environ, region=host.steering.get(Key.REGION))
    program = find_program(code, host.steering)
    num_gpus = count_gpus(host.environ)
    environment = contract_environment(host, num_cpus=devices.num_cpus(), num_gpus=num_gpus)
    training = () if helps else _training_hosts(host)
    num_processes = ranks_on_host(launcher, processes_per_host, num_gpus=num_gpus) if host.name in training else 0
    if sharding is not None and num_processes:
        _check_degrees(distribution, len(training), num_processes)
    # A helper host runs no code of the user's and needs no packages. mpirun on it still starts ranks by this path.
    python = sys.executable if helps and launcher_program is None else find_python(host, code, program, log)
    shim_folders = shims(launcher, code, python, version2=sharding is not None)
    if host.is_first and find_shim("horovod") in shim_folders:
        log("Horovod is not installed here: Herringbone's own answers to `import horovod`")
    # At the end of a job nobody could give this user the folder any more.
    for folder in (host.paths.model, host.paths.output_data):
        _make_writable(Path(folder))
    return Prepared(
        launcher=launcher,
        program=program,
        arguments=(*program.leading, *arguments(host.hyperparameters)),
        python=python,
        environment={**environment, **library, **_path_of(python, host)},
        shims=shim_folders,
        num_processes=num_processes,
        helps=helps,
        mpi=launcher_program,
        mpi_options=mpi_options,
        sharding=sharding,
    )


def find_versions(python: str, path: Sequence[str]) -> dict[str, str]:
    """Return the versions of Python, Herringbone and the frameworks that the ranks have, as a user names them.

    >>> find_versions(sys.executable, sys.path)                      # doctest: +SKIP
    {'Python': '3.11.7', 'torch': '2.13.0+cpu', 'herringbone': '0.1.0'}

    `python` is the ranks' Python and `path` the search path of this one. Only names of folders are read, because
    `importlib.metadata` takes longer to import than the supervisor has.
    """
    versions = {"Python": ".".join(map(str, sys.version_info[:3]))}
    # Packages of an overlay come first.
    library = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    for folder in (str(Path(python).parent.parent / library), *path):
        try:
            names = os.listdir(folder or ".")  # noqa: PTH208 - the names are enough
        except OSError:
            continue
        for name in names:
            package, _, rest = name.partition("-")
            if rest.endswith((".dist-info", ".egg-info")) and package in _SHOWN_PACKAGES:
                version = rest.removesuffix(".dist-info").removesuffix(".egg-info").partition("-py")[0]
                versions.setdefault(_SHOWN_PACKAGES[package], version)
    return versions


def _launcher(host: Host, launcher: Launcher) -> Launcher:
    """Return the launcher; for parameter servers it depends on the framework. Raises `ContractError`."""
    if launcher is not Launcher.PARAMETER_SERVER:
        return launcher
    framework = host.steering.get(Key.PARAMETER_SERVER_FRAMEWORK) or host.environ.get(HostVariable.FRAMEWORK)
    if framework == "mxnet":
        return Launcher.MXNET_PARAMETER_SERVER
    if framework not in (None, "", "tensorflow"):
        raise ContractError(
            f"parameter servers of {framework!r}, as {Key.PARAMETER_SERVER_FRAMEWORK} or {HostVariable.FRAMEWORK} says:"
            " there are tensorflow's and mxnet's"
        )
    return launcher


def _make_writable(folder: Path) -> None:
    """Make a folder for the job's results, or fail now, hours before the job would fail to write them."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise ContractError(
            f"{folder} cannot be written by user {os.getuid()} ({error.strerror}): results would be lost; give that "
            "user the folder, or run as its owner"
        ) from error


def _training_hosts(host: Host) -> tuple[str, ...]:
    """Return the hosts of the instance groups that the distribution names; all hosts where it names none."""
    groups = host.steering.get(Key.DISTRIBUTION_INSTANCE_GROUPS)
    if not groups:
        return host.resources.hosts
    members = {group.name: group.hosts for group in host.resources.groups}
    unknown = [group for group in groups if group not in members]
    if unknown:
        raise ContractError(f"{Key.DISTRIBUTION_INSTANCE_GROUPS} names {unknown}; the job has {sorted(members)}")
    return hosts_of_groups(groups, members)


def _check_degrees(distribution: Distribution, hosts: int, num_processes: int) -> None:
    """Raise `DistributionError` for degrees of parallelism that the ranks, one per GPU, do not fit."""
    # Imported here: only jobs that shard their model need it.
    from herringbone_contract.distribution import check_layout

    check_layout(distribution, hosts=hosts, processes_per_host=num_processes)


def _helps(host: Host, helpers: str | None) -> bool:
    """Say whether this host is a helper. Raises `ContractError` when no host is left to train."""
    if helpers is None:
        return False
    members = host.resources.group(helpers).hosts
    if set(members) >= set(host.resources.hosts):
        raise ContractError(
            f"resourceconfig.json: all hosts are in the helper group {helpers!r}; none is left to train"
        )
    return host.name in members


def _path_of(python: str, host: Host) -> dict[str, str]:
    """Return a PATH on which a shell script finds the ranks' Python and its programs first, if it does not already.

    A notebook's Python may be that of an environment which no shell has activated.
    """
    path, here = host.environ.get("PATH"), Path(python).with_name("python")
    # As `shutil.which` does, which every job would import.
    folders = (path or os.defpath).split(os.pathsep)
    found = next((folder for folder in folders if os.access(f"{folder}/python", os.X_OK)), None)
    if found == str(here.parent) or not here.exists():
        return {}
    return {"PATH": os.pathsep.join(filter(None, [str(here.parent), path]))}


def find_python(host: Host, code: Path, program: Program, log: Callable[[str], None]) -> str:
    """Return the Python for the ranks: this one, or an overlay with the job's own packages."""
    path = code / "requirements.txt"
    # An empty file is common in templates, and needs no overlay.
    requirements = path if path.is_file() and path.read_bytes().strip() else None
    # A script finds its modules in the code folder, so only a module's package must be installed.
    package = code if program.entry == "module" and is_package(code) else None
    if requirements is None and package is None:
        return sys.executable
    from herringbone_entry.preparation.requirements import overlay

    folder = host.environ.get(HostVariable.CACHE)
    cache = Path(folder) if folder else Path.home() / ".herringbone" / "cache"
    outside = host.environ.get(HostVariable.CACHE_OUTSIDE)
    return str(overlay(requirements, package, cache=cache, log=log, shown=Path(outside) if outside else cache))
