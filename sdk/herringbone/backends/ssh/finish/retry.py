"""Retry a job whose attempt failed; the process that looks at the job does it, because machines log in to nobody.

`controller.attempt_end` has decided that there is another attempt, and which machines it must avoid
  -> fetch the checkpoints         from the machines that can still be reached
  -> Submission                    lock the machines that are free now, send the checkpoints, start the hosts
  -> the index                     names the machines of the new attempt
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from herringbone.aws.location import is_s3
from herringbone.backends.lifecycle import change_state
from herringbone.backends.review.checks import checkpoint_folder
from herringbone.backends.ssh.attempts.current import attempt_name
from herringbone.backends.ssh.finish.completion import MachineHosts
from herringbone.backends.ssh.start.submission import NextAttempt
from herringbone.backends.ssh.start.upload import PackedCode
from herringbone.backends.ssh.transport.protocol import ask_each
from herringbone.controller.attempts import newest_file
from herringbone.controller.hosts import Restart
from herringbone.controller.retry import (
    Attempt,
    announced,
    describe_attempts,
    excluded_machines,
    num_replanned,
    with_layout,
    with_progress,
)
from herringbone.plan.replans import replanned, replans
from herringbone.records.checkpoints import newest_files, settle_links
from herringbone.records.index import RESTARTING, STOPPING, TRAINING
from herringbone.records.job_events import JobEvents
from herringbone_contract.constants import DEFAULT_BASE, MASK
from herringbone_contract.errors import HostError
from herringbone_contract.paths import INSIDE

if TYPE_CHECKING:
    from herringbone.backends.ssh.attempts.job_state import HostState
    from herringbone.backends.ssh.machines.inventory import Machine
    from herringbone.plan.plan import JobPlan


class RestartableHosts(MachineHosts):
    """Hosts on machines, and the start of the attempt after theirs.

    `looks_again_at`: others decide what follows, and have not yet; None where the end has been reached.
    """

    looks_again_at: float | None = None

    @property
    def has_others(self) -> bool:
        return True

    def restart(self, failed: Attempt) -> Restart:
        self._check_startable()
        change_state(self._index, self.job, {"secondary_status": RESTARTING})
        # Before the machines are locked: fetching may take minutes, and nobody else could use them meanwhile.
        checkpoints = self._fetch_all_checkpoints()
        source = checkpoints or checkpoint_folder(self._plan)
        failed = with_layout(failed, self.earlier, [change.text for change in replans(self._plan)])
        newest = None if source is None else newest_file(source)
        if self._has_begun:
            failed = with_progress(failed, newest, self.earlier)
        elif newest is not None:
            # It took no steps, so that nothing follows from a checkpoint that is as old as before.
            failed = replace(failed, checkpoint=newest.name)
        self._start_attempt(failed, checkpoints)
        return Restart.HERE

    @property
    def _has_begun(self) -> bool:
        """Report whether a host of this attempt ran: machines may agree on an attempt, and be cut off then."""
        return any(state.done for state in self._states)

    def _start_attempt(self, failed: Attempt, checkpoints: Path | None) -> None:
        """Start the attempt after `failed`, with these checkpoints, and record it."""
        self._record_attempt(failed, self._start_hosts(failed, checkpoints))

    def _start_hosts(
        self, failed: Attempt, checkpoints: Path | None, agree: Callable[[Mapping[str, Machine]], None] = lambda _: None
    ) -> dict[str, Machine]:
        """Start the hosts of the attempt after `failed`, and return their machines, with which `agree` is called."""
        started = self._submission(
            self._next_plan(failed),
            next_attempt=NextAttempt(
                name=attempt_name(self.job, failed.number + 1),
                code=self._code(),
                checkpoints=checkpoints,
                unavailable=self._unavailable(failed),
                spent=self._spent,
                agree=agree,
            ),
        ).run()
        # Whoever follows the new attempt finds its machines in the index and opens connections of its own.
        for _, connection in started.values():
            connection.close()
        return {host: machine for host, (machine, _) in started.items()}

    def _next_plan(self, failed: Attempt) -> JobPlan:
        """Return the plan with its next layout."""
        if self._seconds_left < 1:
            raise HostError(f"the time of all attempts together, {self._plan.time_limit} s, is over")
        return replanned(self._plan, num_replanned([*self.earlier, failed]))

    def _check_startable(self) -> None:
        """Raise `HostError` when this Python lacks something that the submitting one had."""
        # The index stores the plan with a mask in the place of each secret.
        masked = [name for name, value in self._plan.environment.items() if value == MASK]
        masked += [name for name, value in self._plan.hyperparameters.items() if MASK in value]
        # Texts of options may have been masked in part, such as an address among container_arguments.
        shown = msgspec.structs.replace(self._plan.options, environment={}, sagemaker_session=None)
        masked += [name for name, value in msgspec.to_builtins(shown).items() if MASK in repr(value)]
        if masked:
            raise HostError(
                f"only the Python that submitted it knows {', '.join(masked)}, and it is gone; submit the job again, "
                "and it continues from its checkpoints if checkpoint_s3_uri names a folder for them"
            )
        if self._attempt.code_path is None:
            raise HostError("it was submitted from another machine, which has its code; look at the job from there")

    def _code(self) -> PackedCode:
        assert self._attempt.code_path is not None
        assert self._attempt.code_digest is not None
        return PackedCode(digest=self._attempt.code_digest, path=Path(self._attempt.code_path))

    def _unavailable(self, failed: Attempt) -> dict[str, str]:
        """Return the machines that the next attempt must avoid: those silent now, and those excluded by a policy."""
        silent = {state.machine: f"cannot be reached: {state.lost}" for state in self._states if state.lost}
        return {**silent, **excluded_machines([*self.earlier, failed])}

    def _fetch_all_checkpoints(self) -> Path | None:
        """Fetch the checkpoints of all hosts into one folder; None when the hosts share one, or there are none.

        Of two files with one name the newer counts, as in a bucket to which all hosts write.
        """
        in_bucket = is_s3(self._plan.options.checkpoint_s3_uri)
        if checkpoint_folder(self._plan) is not None and not in_bucket:
            return None
        folder = self._folder.path / "checkpoints"
        self._for_each_host(lambda state: self._fetch_checkpoints(state, folder / state.host))
        merged = merge_checkpoints(folder)
        if merged is None and in_bucket and any(self._folder.s3_checkpoints.iterdir()):
            # No machine answers: those with which the job started.
            return self._folder.s3_checkpoints
        return merged

    def _fetch_checkpoints(self, state: HostState, target: Path) -> None:
        remote = self._base(state) / INSIDE.checkpoints
        # Under another name first: half of a fetched folder must not replace what an earlier attempt brought here.
        fetched = target.with_name(f".{target.name}")
        # For a machine that has gone away meanwhile, the files of an earlier attempt have to do.
        with contextlib.suppress(HostError):
            self._fetch(state, remote, fetched, every_kind=True)
            settle_links(
                fetched,
                [str(remote), f"{DEFAULT_BASE}/{INSIDE.checkpoints}"],
                lambda name, reason: self.say(f"checkpoints: {name} of {state.host} is left out: {reason}"),
            )
            shutil.rmtree(target, ignore_errors=True)
            fetched.replace(target)

    def _record_attempt(self, failed: Attempt, machines: dict[str, Machine]) -> None:
        """Write the attempt after `failed` into the log and the index."""
        name = attempt_name(self.job, failed.number + 1)
        machine_names = {host: machine.name for host, machine in machines.items()}
        failed = announced(failed, self.retries, machine_names)
        # In the first host's log only: the merged log of the job would repeat it otherwise.
        self.say(failed.announced)
        hosts = [host.name for host in self._plan.hosts]
        logs = {host: self._folder.log(host) for host in hosts}
        # After the announcement: the log of the new attempt follows it.
        log_begins = {host: log.stat().st_size if log.exists() else 0 for host, log in logs.items()}
        files = [path for path in self._folder.all_events(hosts)[1:] if path.exists()]
        attempts = (*self.earlier, failed)
        attempt = msgspec.structs.replace(
            self._attempt,
            machines=machines,
            name=name,
            failed=attempts,
            log_begins=log_begins,
            event_begins={path.name: path.stat().st_size for path in files},
        )
        JobEvents(self._folder.job_events).restart(failed.number + 1, failed.why, failed.excluded)
        change_state(
            self._index,
            self.job,
            {
                "service": attempt.to_json(),
                "secondary_status": STOPPING if self.is_asked_to_stop else TRAINING,
                "description": describe_attempts(attempts),
            },
        )
        # Where time is over instead, each machine's own clock says so.
        if self.is_asked_to_stop:
            # The request to stop went to the machines of the last attempt, because the index named those.
            ask_each(self._transport, machines.values(), {"ask": "stop", "job": name, "grace": None})


def merge_checkpoints(folder: Path) -> Path | None:
    """Return a folder with the files of all hosts' folders in `folder`, of each name the newest; None without files.

    The folder is sent with links followed, so a link that leads out of it would send a file of this machine: callers
    have settled the links that were fetched.
    """
    merged = folder / ".all"
    # Of an earlier retry.
    shutil.rmtree(merged, ignore_errors=True)
    # A dot marks folders that were not fetched completely.
    hosts = [path for path in sorted(folder.iterdir()) if not path.name.startswith(".")] if folder.is_dir() else []
    # Links stay links: `settle_links` has kept only those that stay in the folder.
    newest = newest_files(hosts)
    for name, file in newest.items():
        target = merged / name
        target.parent.mkdir(parents=True, exist_ok=True)
        # A hard link: checkpoints may be large, and both names are on one disk.
        os.link(file, target, follow_symlinks=False)
    return merged if newest else None
