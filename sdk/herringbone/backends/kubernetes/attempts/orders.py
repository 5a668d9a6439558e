"""Orders to a job's hosts: to stop within a grace, or at once, by exec in their pods; what is deleted at its end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

from herringbone.backends.kubernetes.api import Api
from herringbone.backends.kubernetes.ledger import delete, list_pods, of_hosts
from herringbone.backends.kubernetes.names import Label, ObjectNames, PodKind
from herringbone.backends.kubernetes.pods import CONTAINER, RUN_FOLDER
from herringbone.backends.kubernetes.states import pod_state
from herringbone_contract.errors import KubernetesError

# $0 are the seconds of grace. The first process of a pod cannot be killed from inside; it ends when all others have. It
# ends with the code of a stop where it finds `told`. Results that are being sent to S3 are not killed.
_STOP = f"""\
cd {RUN_FOLDER}
[ -e told ] || {{ touch told; kill -TERM 1; }}
[ -e "told.$0" ] || {{ touch "told.$0"; (sleep "$0"; [ -e ended ] || kill -KILL -1) >/dev/null 2>&1 & }}
"""
_ENDING_SECONDS, _PAUSE_SECONDS = 10.0, 0.5
_KILL = f"touch {RUN_FOLDER}/told; kill -KILL -1"


def stop_command(grace: float) -> list[str]:
    """Return the command that stops a host; with a grace of 0 it is killed.

    >>> stop_command(2.5)[-1], stop_command(0)[-1][-13:]
    ('2.5', 'kill -KILL -1')
    """
    return ["/bin/sh", "-c", _STOP, f"{grace:.3f}".rstrip("0").rstrip(".")] if grace else ["/bin/sh", "-c", _KILL]


def stop_hosts(
    api: Api, namespace: str, names: ObjectNames, grace: float, *, is_set: bool, seconds: float = _ENDING_SECONDS
) -> None:
    """Stop the hosts of pods that run, and delete those that do not run yet; `is_set` for the hosts of a JobSet.

    Raises the first `KubernetesError` of a pod that could not be told and does not end in so many seconds, after all
    others were told.
    """
    refusals: dict[str, KubernetesError] = {}
    for pod in of_hosts(list_pods(api, namespace, names)):
        state, attempt = pod_state(pod), int(pod["metadata"]["labels"][Label.ATTEMPT])
        try:
            if state.phase == "running":
                api.run(namespace, state.pod, CONTAINER, stop_command(grace))
            elif state.phase != "over":
                _delete_host(api, namespace, names._replace(attempt=attempt), state.host, is_set=is_set)
        except KubernetesError as error:
            # The kubelet of one node is away, or the host ends with another one.
            refusals[state.pod] = error
    deadline = time.monotonic() + seconds
    while refusals:
        states = {state.pod: state for state in map(pod_state, of_hosts(list_pods(api, namespace, names)))}
        # A state comes later than the end.
        refusals = {pod: error for pod, error in refusals.items() if pod in states and states[pod].phase != "over"}
        if refusals and time.monotonic() >= deadline:
            raise next(iter(refusals.values()))
        if refusals:
            time.sleep(_PAUSE_SECONDS)


def clean_up(api: Api, namespace: str, names: ObjectNames, pods: Sequence[Mapping[str, Any]], *, is_set: bool) -> None:
    """Delete what nobody needs after a job's end; its pods stay for their logs."""
    with contextlib.suppress(KubernetesError):
        labels = names.labels(PodKind.HOST)
        for state in (pod_state(pod) for pod in pods if labels.items() <= pod["metadata"]["labels"].items()):
            if state.phase != "over":
                _delete_host(api, namespace, names, state.host, is_set=is_set)
        for kind in ("Secret", "Service"):
            delete(api, kind, namespace, names.hosts)


def _delete_host(api: Api, namespace: str, names: ObjectNames, host: str, *, is_set: bool) -> None:
    """Delete a host that does not run. A JobSet would make it again, so it goes as a whole."""
    if is_set:
        delete(api, "JobSet", namespace, names.hosts)
    else:
        delete(api, "Job", namespace, names.host(host))
