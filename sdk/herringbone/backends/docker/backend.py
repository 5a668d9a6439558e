"""`local` and `local_gpu`: hosts are containers of one engine, which the client starts and the job's controller keeps.

client   image -> network, containers -> streams -> private line -> start -> order to the controller -> sweep
controller   log, max_run, stop, verdict, model, removal
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from herringbone.backends.detached import CONTROLLER, PATIENCE_SECONDS, KeptBackend
from herringbone.backends.docker import review
from herringbone.backends.docker.cleanup import labels_of, sweep
from herringbone.backends.docker.gpus import find_gpus, list_gpus, split_gpus
from herringbone.backends.docker.image import Image, choose_image, with_requirements
from herringbone.backends.docker.request import Meeting, Surroundings, container_request, meeting_here
from herringbone.backends.docker.start import Made, at_once, interrupt_later
from herringbone.backends.docker.tree import CACHE, Mount, fetched_of, fill_host, mounts_of
from herringbone.engine.client import ANSWER_SECONDS, Engine
from herringbone.engine.locate import find_engine
from herringbone.jobs.home import Home, JobFolder, find_home
from herringbone_contract.constants import HostVariable
from herringbone_contract.errors import HerringboneError, UnsupportedError
from herringbone_contract.paths import Paths

if TYPE_CHECKING:
    import subprocess

    from herringbone.controller.config import Order
    from herringbone.jobs.index import JobRecord
    from herringbone.planning.plan import HostPlan, JobPlan

_SECRET_BYTES = 32
_ID_CHARS = 16
# The user's session with AWS, for scripts that read and write S3.
_AWS = (
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
    *("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"),
)
# Settings of the supervisor's that a user may have in his own environment.
_PASSED_ON = (HostVariable.HEARTBEAT, HostVariable.JOIN_TIMEOUT)


def make_backend() -> DockerBackend:
    """Return the backend for this user's jobs."""
    if os.name != "posix":
        raise UnsupportedError(
            "instance_type 'local' needs a POSIX system (Linux, macOS); on Windows, run it inside WSL"
        )
    return DockerBackend(find_home(), lambda: find_engine(os.environ, Path.home()))


class DockerBackend(KeptBackend):
    """Runs jobs below `home` in the containers of an engine; `gpus` says what GPUs there are, as `nvidia-smi -L` does.

    Containers run as `user`, a uid and a gid, by default the caller's. The engine is looked for when it is first
    needed: a job that is over is known without one.
    """

    name = "local"

    def __init__(
        self,
        home: Home,
        find: Callable[[], Engine],
        *,
        gpus: Callable[[], str] = list_gpus,
        environ: Mapping[str, str] = os.environ,
        user: tuple[int, int] | None = None,
        controller: tuple[str, ...] = CONTROLLER,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        super().__init__(home, controller=controller, patience=patience)
        self._find = find
        self._gpus = gpus
        self._environ = environ
        self._user, self._group = (os.getuid(), os.getgid()) if user is None else user
        self._found: Engine | None = None
        self._images: dict[str, Image] = {}

    @property
    def _engine(self) -> Engine:
        if self._found is None:
            self._found = self._find()
        return self._found

    def review(self, plan: JobPlan) -> tuple[str, ...]:
        review.check(plan)
        self._split_gpus(plan)
        review.check_engine(plan, self._engine)
        image = self._images[plan.job_name] = choose_image(self._engine, plan)
        review.check_image(plan, image)
        return review.unused(plan)

    def _add_files(self, folder: JobFolder) -> None:
        """Add to the hosts' trees what else they find."""

    def _lend(self, plan: JobPlan) -> list[int]:
        return [self._engine.open().detach() for _ in range(2 * len(self._hosts(plan)))]

    def _start(self, plan: JobPlan, order: Order, lent: Sequence[int], controller: str) -> None:
        folder, hosts, meeting = self._home.job(plan.job_name), self._hosts(plan), self._meeting(plan)
        for host in hosts:
            fill_host(plan, host, folder, interface=meeting.interface, but_not=self._home.path)
        self._add_files(folder)
        image = self._image(plan)
        if plan.options.bake_requirements:
            codes = [Path(Paths(folder.host(host.name)).code) for host in hosts]
            image = with_requirements(image, codes, self._environ)
        labels = labels_of(plan.job_name, self._home, controller)
        gpus = self._split_gpus(plan)
        made = Made(self._engine)
        try:
            around = self._surroundings(image, meeting, labels, order["stop_grace"])
            makings = [
                partial(self._make_container, plan, host, made, around, gpus.get(host.name, ())) for host in hosts
            ]
            if meeting.network is not None:
                makings.append(partial(made.network, plan, labels))
            with interrupt_later():
                at_once(makings)
            if not self._engine.is_here:
                at_once([partial(self._copy_files, plan, host, made) for host in hosts])
            line = self._private_line(plan) if image.is_ours else ""
            with interrupt_later():
                self._start_hosts(hosts, made, lent, line.encode())
        except BaseException:
            made.undo()
            raise
        order["containers"] = {
            "engine": self._engine.address,
            "network": meeting.network,
            "line": line,
            "containers": {
                host.name: {
                    "id": made.ids[host.name],
                    "stream": lent[2 * place],
                    "ending": lent[2 * place + 1],
                    "fetched": {} if self._engine.is_here else fetched_of(plan, host, folder),
                }
                for place, host in enumerate(hosts)
            },
        }

    def _hosts(self, plan: JobPlan) -> Sequence[HostPlan]:
        """Return the hosts that this engine runs."""
        return plan.hosts

    def _meeting(self, plan: JobPlan) -> Meeting:
        return meeting_here(plan)

    def _image(self, plan: JobPlan) -> Image:
        return self._images.pop(plan.job_name, None) or choose_image(self._engine, plan)

    def _make_container(
        self, plan: JobPlan, host: HostPlan, made: Made, around: Surroundings, gpus: Sequence[str]
    ) -> None:
        """Make a container that sees the host's files, where the engine can see them too."""
        folder = self._home.job(plan.job_name)
        mounts = []
        if self._engine.is_here:
            cache = self._home.cache / "images" / around.image.id.rpartition(":")[2][:_ID_CHARS]
            cache.mkdir(parents=True, exist_ok=True)
            mounts = [*mounts_of(plan, host, folder), Mount(str(cache), CACHE)]
        made.container(plan, host, container_request(plan, host, around, mounts=mounts, gpus=gpus))

    def _copy_files(self, plan: JobPlan, host: HostPlan, made: Made) -> None:
        """Give a container, made by an engine that cannot see them, the files that it would see mounted."""
        from herringbone.backends.docker.tree_archive import write_tar

        mounts = mounts_of(plan, host, self._home.job(plan.job_name))
        fill = partial(write_tar, mounts, user=self._user, group=self._group)
        self._engine.upload(made.ids[host.name], "/", fill)

    def _start_hosts(self, hosts: Sequence[HostPlan], made: Made, lent: Sequence[int], line: bytes) -> None:
        """Start all at once: each takes the engine longer than all else together."""
        with ExitStack() as stack:
            streams = [stack.enter_context(socket.socket(fileno=os.dup(each))) for each in lent]
            for stream in streams:
                stream.settimeout(ANSWER_SECONDS)
            calls = [
                partial(made.start, host, streams[2 * place], streams[2 * place + 1], line)
                for place, host in enumerate(hosts)
            ]
            at_once(calls)

    def _hand_over(self, controller: subprocess.Popen[bytes], order: Order) -> None:
        super()._hand_over(controller, order)
        # While the hosts come up there is time to look for what others left.
        self._sweep()

    def _surroundings(
        self, image: Image, meeting: Meeting, labels: Mapping[str, str], stop_grace: float
    ) -> Surroundings:
        import pwd

        try:
            name = pwd.getpwuid(self._user).pw_name
        except KeyError:
            name = str(self._user)
        return Surroundings(
            image=image,
            meeting=meeting,
            user=f"{self._user}:{self._group}",
            user_name=name,
            labels=labels,
            # The kernel's own default for a machine's /dev/shm; what is not used costs nothing.
            shm_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2,
            stop_grace=stop_grace,
            passed_on={name: self._environ[name] for name in _PASSED_ON if name in self._environ},
        )

    def _private_line(self, plan: JobPlan) -> str:
        """Return what each supervisor is told in private."""
        return json.dumps(self._secrets(plan)) + "\n"

    def _secrets(self, plan: JobPlan) -> dict[str, object]:
        """Return the user's environment and the job's key."""
        aws = {name: self._environ[name] for name in _AWS if name in self._environ}
        return {"environment": {**aws, **plan.environment}, "key": os.urandom(_SECRET_BYTES).hex()}

    def _split_gpus(self, plan: JobPlan) -> dict[str, tuple[str, ...]]:
        hosts = [host.name for host in plan.hosts if host.instance_type == "local_gpu" and not host.helper]
        return split_gpus(find_gpus(self._gpus(), self._environ), hosts) if hosts else {}

    def _bury(self, record: JobRecord) -> None:
        super()._bury(record)
        self._sweep(record.name)

    def _sweep(self, job: str | None = None) -> None:
        # What nobody looks after stops by itself, and the next sweep finds what this one cannot remove.
        with suppress(HerringboneError):
            sweep(self._engine, self._home, job=job)
