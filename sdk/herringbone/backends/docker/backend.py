"""`local` and `local_gpu`: hosts are containers of one engine; the client starts them, the job's controller runs them.

client      image -> network, containers -> connections -> private line -> start -> config to the controller -> cleanup
controller  log, max_run, stop, verdict, model, removal
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from herringbone.backends.detached import CONTROLLER, PATIENCE_SECONDS, DetachedBackend
from herringbone.backends.docker import review
from herringbone.backends.docker.cleanup import collect_garbage, labels_of
from herringbone.backends.docker.gpus import are_free, check_free, split_gpus
from herringbone.backends.docker.image import Image, choose_image, with_requirements
from herringbone.backends.docker.layers import (
    can_overlay,
    disks_of_this_machine,
    make_layers,
    maps_no_users,
    with_layers,
)
from herringbone.backends.docker.request import HostNetwork, RequestContext, container_request, engine_network
from herringbone.backends.docker.start import JobObjects, delay_interrupt, run_parallel
from herringbone.backends.docker.tree import CACHE, Mount, fetched_of, fill_host, mounts_of
from herringbone.backends.docker.volumes import refuse_links, volume_mounts
from herringbone.backends.facts import add_facts
from herringbone.backends.review.settings import check_ranks
from herringbone.engine.client import ANSWER_SECONDS, Engine
from herringbone.engine.docker_settings import docker_folder, proxy_variables
from herringbone.engine.links import link_target
from herringbone.engine.locate import find_engine
from herringbone.images.pip_settings import CERTIFICATE, WHEELS, pip_files, start_variables
from herringbone.records.home import Home, find_home
from herringbone.slots.devices import VISIBLE_VARIABLE, find_gpus, is_share
from herringbone.slots.folder import cpu_shares
from herringbone.slots.line import too_much
from herringbone.slots.probe import ListedGpus
from herringbone.slots.ticket import Wants
from herringbone.system.user_paths import home_folder
from herringbone_contract.constants import HostVariable
from herringbone_contract.errors import HerringboneError, UnsupportedError
from herringbone_contract.paths import Paths

if TYPE_CHECKING:
    import subprocess

    from herringbone.plan.plan import HostPlan, JobPlan
    from herringbone.protocols.controller_config import ControllerConfig
    from herringbone.protocols.host_access import HostAccess
    from herringbone.records.index import JobRecord

_SECRET_BYTES = 32
_ID_CHARS = 16
# The user's AWS session, for scripts that read and write S3.
_AWS = (
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
    *("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"),
)
# Settings of the supervisor that a user may have in the environment of the client.
_PASSED_ON = (HostVariable.HEARTBEAT, HostVariable.JOIN_TIMEOUT)


def make_backend() -> DockerBackend:
    """Return the backend for this user's jobs."""
    if os.name != "posix":
        raise UnsupportedError(
            "instance_type 'local' needs a POSIX system (Linux, macOS); on Windows, run it inside WSL"
        )
    return DockerBackend(find_home(), lambda: find_engine(os.environ, home_folder()))


class DockerBackend(DetachedBackend):
    """Runs jobs below `home` in the containers of an engine; `gpus` lists the GPUs, as `nvidia-smi -L` does.

    Containers run as `user`, a uid and a gid, by default the caller's. `find` is called when an engine is first needed:
    jobs that are over can be read without one.
    """

    name = "local"

    def __init__(
        self,
        home: Home,
        find: Callable[[], Engine],
        *,
        gpus: Callable[[], str] | None = None,
        environ: Mapping[str, str] = os.environ,
        user: tuple[int, int] | None = None,
        controller: tuple[str, ...] = CONTROLLER,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        super().__init__(home, controller=controller, patience=patience)
        self._find_engine = find
        if gpus is not None:
            self._probe = ListedGpus(gpus)
        self._environ = environ
        self._user, self._group = (os.getuid(), os.getgid()) if user is None else user
        # Root reads everything, and another user's groups are not known.
        self._groups = [] if user is not None or not self._user else sorted(set(os.getgroups()) - {self._group})
        self._known_engine: Engine | None = None
        # By job: `review` looks the image up, and `submit` must run the same one.
        self._images: dict[str, Image] = {}

    @property
    def _engine(self) -> Engine:
        if self._known_engine is None:
            self._known_engine = self._find_engine()
        return self._known_engine

    def review(self, plan: JobPlan) -> tuple[str, ...]:
        review.check(plan)
        # Raises when there are too few GPUs, before anything is created.
        gpus = self._split_gpus(plan)
        check_ranks(plan, len(next(iter(gpus.values()), ())))
        review.check_engine(plan, self._engine)
        image = self._images[plan.job_name] = choose_image(self._engine, plan)
        review.check_image(plan, image)
        return review.unused(plan)

    def access(self, name: str, host: str) -> HostAccess:
        # Imported here: only a shell and a debugger need it.
        from herringbone.backends.docker.access import container_access

        return container_access(self._engine, self._home, name, host)

    def _open_inherited(self, plan: JobPlan) -> list[int]:
        """Open two connections per host, for its stream and its ending; see `controller.containers.site`."""
        # Opened before the controller starts: a running process cannot be given further descriptors.
        return [self._engine.open().detach() for _ in range(2 * len(self._hosts(plan)))]

    def _start(self, plan: JobPlan, config: ControllerConfig, inherited: Sequence[int], controller: str) -> None:
        folder, hosts, network = self._home.job(plan.job_name), self._hosts(plan), self._network(plan)
        granted = None if config["claim"] is None else config["claim"]["devices"]
        image = self._image(plan)
        if plan.options.bake_requirements:
            codes = [Path(Paths(folder.host(host.name)).code) for host in hosts]
            image = with_requirements(image, codes, self._environ)
        labels = labels_of(plan.job_name, self._home, controller)
        objects = JobObjects(self._engine)
        try:
            context = self._context(image, network, labels, config["stop_grace"])
            self._create(plan, hosts, objects, context, self._split_gpus(plan, granted))
            # A foreign image would take the line for input of its own program.
            line = self._private_line(plan) if image.is_ours else ""
            with delay_interrupt():
                self._start_hosts(hosts, objects, inherited, line.encode())
            self._note_image(plan, image)
        except BaseException:
            # The containers have no controller yet that would remove them.
            objects.remove()
            raise
        config["containers"] = {
            "engine": self._engine.address,
            "network": network.network,
            "line": line,
            "containers": {
                host.name: {
                    "id": objects.ids[host.name],
                    "stream": inherited[2 * position],
                    "ending": inherited[2 * position + 1],
                    "fetched": {} if self._engine.is_local else fetched_of(plan, host, folder),
                }
                for position, host in enumerate(hosts)
            },
        }

    def _note_image(self, plan: JobPlan, image: Image) -> None:
        """Record the image for `describe`: a name may belong to another image tomorrow."""
        add_facts(self._index, plan.job_name, {"Image": image.digest or image.name, "ImageId": image.id})

    def _network(self, plan: JobPlan) -> HostNetwork:
        return engine_network(plan)

    def _image(self, plan: JobPlan) -> Image:
        # Without a review in this process, the image is chosen now.
        return self._images.pop(plan.job_name, None) or choose_image(self._engine, plan)

    def _create(
        self,
        plan: JobPlan,
        hosts: Sequence[HostPlan],
        objects: JobObjects,
        context: RequestContext,
        gpus: Mapping[str, Sequence[str]],
    ) -> None:
        """Create the network and the containers, and send the files to an engine that cannot see them."""
        creations = [
            partial(self._create_container, plan, host, objects, context, gpus.get(host.name, ())) for host in hosts
        ]
        if context.network.network is not None:
            creations.append(partial(objects.create_network, plan, context.labels))
        with delay_interrupt():
            run_parallel(creations)
        if gpus:
            check_free(self._engine, [objects.ids[name] for name, ids in gpus.items() if ids])
        # A remote engine cannot mount folders of this machine.
        if not self._engine.is_local:
            run_parallel([partial(self._copy_files, plan, host, objects) for host in hosts])

    def _create_container(
        self, plan: JobPlan, host: HostPlan, objects: JobObjects, context: RequestContext, gpus: Sequence[str]
    ) -> None:
        """Create a container with the host's files mounted, if the engine can see them."""
        folder = self._home.job(plan.job_name)
        mounts = []
        if self._engine.is_local:
            cache = self._home.cache / "images" / context.image.id.rpartition(":")[2][:_ID_CHARS]
            # By image, because installed packages depend on its Python. The engine would create the folder as root.
            cache.mkdir(parents=True, exist_ok=True)
            mounts = [*mounts_of(plan, host, folder), *self._pip_mounts(plan, host), Mount(str(cache), CACHE)]
            taken = {mount.target for mount in mounts}
            over_volumes = volume_mounts(context.image, plan, folder.host(host.name))
            mounts += [mount for mount in over_volumes if mount.target not in taken]
            if any(mount.layer is not None for mount in mounts):
                overlays = can_overlay(self._engine.get("/info"), os.uname().release)
                mounts = with_layers(mounts, disks_of_this_machine() if overlays else ())
                make_layers(mounts)
        objects.create_container(plan, host, container_request(plan, host, context, mounts=mounts, gpus=gpus))
        if self._engine.is_local:
            refuse_links(context.image, partial(link_target, self._engine, objects.ids[host.name]))

    def _copy_files(self, plan: JobPlan, host: HostPlan, objects: JobObjects) -> None:
        """Send a container of a remote engine the files that a local engine would mount."""
        from herringbone.backends.docker.tree_archive import write_tar

        mounts = [*mounts_of(plan, host, self._home.job(plan.job_name)), *self._pip_mounts(plan, host)]
        fill = partial(write_tar, mounts, user=self._user, group=self._group)
        self._engine.upload(objects.ids[host.name], "/", fill)

    def _start_hosts(
        self, hosts: Sequence[HostPlan], objects: JobObjects, inherited: Sequence[int], line: bytes
    ) -> None:
        """Start all hosts in parallel: the engine needs longer for one start than the client for everything else."""
        with ExitStack() as stack:
            # Sockets over duplicates: their close must leave the descriptors open that the controller inherited.
            streams = [stack.enter_context(socket.socket(fileno=os.dup(descriptor))) for descriptor in inherited]
            for stream in streams:
                # An engine that hangs must not hang the submission.
                stream.settimeout(ANSWER_SECONDS)
            starts = [
                partial(objects.start, host, streams[2 * position], streams[2 * position + 1], line)
                for position, host in enumerate(hosts)
            ]
            run_parallel(starts)

    def _hand_over(self, controller: subprocess.Popen[bytes], config: ControllerConfig) -> None:
        super()._hand_over(controller, config)
        # The cleanup of other jobs' objects costs no time here: the hosts are starting anyway.
        self._collect_garbage()

    def _context(
        self, image: Image, network: HostNetwork, labels: Mapping[str, str], stop_grace: float
    ) -> RequestContext:
        import pwd

        try:
            name = pwd.getpwuid(self._user).pw_name
        except KeyError:
            # The uid has no entry in this machine's user database, which is no problem for the container.
            name = str(self._user)
        return RequestContext(
            image=image,
            network=network,
            user=f"{self._user}:{self._group}",
            user_name=name,
            labels=labels,
            # Half of the memory is the kernel's default for a machine's /dev/shm; unused pages cost nothing.
            shm_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2,
            stop_grace=stop_grace,
            passed_on={name: self._environ[name] for name in _PASSED_ON if name in self._environ},
            groups=self._shared_groups(),
        )

    def _shared_groups(self) -> list[int]:
        """Return the user's other groups, where a group of this machine is the same one in a container."""
        if not self._groups or not self._engine.is_local or not maps_no_users(self._engine.get("/info")):
            return []
        return self._groups

    def _private_line(self, plan: JobPlan) -> str:
        """Return the first line of each supervisor's standard input; nothing else carries secrets to a container."""
        secrets = self._secrets(plan)
        proxies = proxy_variables(docker_folder(self._environ, home_folder()))
        # An address of an index or a proxy may contain a password, so it travels like one.
        pip = {HostVariable.PIP: json.dumps(start_variables(self._environ, proxies, pip_files(self._environ)))}
        return json.dumps({**secrets, "environment": {**pip, **secrets["environment"]}}) + "\n"

    def _pip_mounts(self, plan: JobPlan, host: HostPlan) -> list[Mount]:
        """Return the mounts of pip's certificate and wheels, for a host that will install requirements."""
        code = Path(Paths(self._home.job(plan.job_name).host(host.name)).code)
        # An archive may have requirements, too, and only the container unpacks it.
        is_archive = plan.source is not None and plan.source.archive is not None
        if not is_archive and not (code / "requirements.txt").is_file():
            return []
        files = pip_files(self._environ)
        mounts = ((files.certificate, CERTIFICATE), (files.wheels, WHEELS))
        return [Mount(str(path), target, read_only=True) for path, target in mounts if path is not None]

    def _secrets(self, plan: JobPlan) -> dict[str, Any]:
        """Return the user's environment and the job's key."""
        aws = {name: self._environ[name] for name in _AWS if name in self._environ}
        return {"environment": {**aws, **plan.environment}, "key": os.urandom(_SECRET_BYTES).hex()}

    def _split_gpus(self, plan: JobPlan, granted: Sequence[str] | None = None) -> dict[str, tuple[str, ...]]:
        """Return the GPUs of each host: those that the job was granted, or before it, as many as it will be."""
        hosts, count = _hosts_with_gpus(plan), plan.options.gpus
        if not hosts:
            return {}
        visible = find_gpus(self._probe.listing(), self._environ)
        if granted is not None:
            visible = tuple(device for device in granted if not is_share(device))
        elif count is not None:
            if len(visible) < count * len(hosts):
                raise UnsupportedError(too_much(Wants(gpus=count * len(hosts)), len(visible), 0))
            visible = visible[: count * len(hosts)]
        return split_gpus(visible, hosts)

    def are_free(self, devices: Sequence[str]) -> bool:
        gpus = [device for device in devices if not is_share(device)]
        return not gpus or are_free(self._engine, gpus)

    def _wants(self, plan: JobPlan) -> Wants:
        if not _hosts_with_gpus(plan):
            return Wants(shares=len(plan.hosts) if cpu_shares(self._environ) else 0)
        gpus = self._split_gpus(plan)
        # A job without `gpus` takes all that are visible, as many to each host.
        is_limited = VISIBLE_VARIABLE in self._environ
        among = find_gpus(self._probe.listing(), self._environ) if is_limited else ()
        count, beside = sum(map(len, gpus.values())), plan.options.gpus is None and not plan.queue
        return Wants(gpus=count, among=among, beside_foreign=beside)

    def _fill(self, plan: JobPlan) -> None:
        folder, network = self._home.job(plan.job_name), self._network(plan)
        for host in self._hosts(plan):
            fill_host(plan, host, folder, interface=network.interface, exclude=self._home.path)

    def _mark_as_lost(self, record: JobRecord) -> JobRecord:
        lost = super()._mark_as_lost(record)
        self._collect_garbage(record.name)
        return lost

    def _collect_garbage(self, job: str | None = None) -> None:
        # Containers without a controller stop by themselves, and a later cleanup finds what this one cannot remove.
        with suppress(HerringboneError):
            collect_garbage(self._engine, self._home, job=job)


def _hosts_with_gpus(plan: JobPlan) -> list[str]:
    return [host.name for host in plan.hosts if host.instance_type == "local_gpu" and not host.helper]
