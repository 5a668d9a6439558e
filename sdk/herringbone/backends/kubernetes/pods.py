"""The pod of one host: its volumes, its container, and the program that starts the supervisor in it. Pure.

    Secret   /herringbone/job      the private line, the contract's files, code and small channels
    memory   /herringbone/run      the FIFO of the private line, through which requests of clients come, too
    claims   /opt/ml/input/data/.. channels
             /herringbone/claims   whole volumes, with links from /opt/ml to the checkpoints and the host's results

The container has no capabilities and runs as a user without a name. No secret is in its variables or arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from herringbone.backends.kubernetes.claims import HOST_MARK, Place, is_claim, literal, parse_place
from herringbone.backends.kubernetes.names import ObjectNames, PodKind, settings_of
from herringbone.plan.budget import spent_text
from herringbone.plan.options.typed import size_in_bytes
from herringbone.plan.plan import HostPlan, JobPlan
from herringbone_contract.constants import HostVariable, Key
from herringbone_contract.failure import STOPPED_CODE

CONTROL_PORT = 7590
CONTAINER = "host"
# The exit code of a host whose `max_run` is over: that of the program `timeout`.
TIME_IS_OVER = 124
# Where the files of the Secret are in a pod.
JOB_FOLDER = "/herringbone/job"
# Where code and channels are that a Secret cannot hold, and their folder in a job's results.
PARTS, PARTS_FOLDER = "/herringbone/parts", "input"
RUN_FOLDER, _CLAIMS = "/herringbone/run", "/herringbone/claims"
# The FIFO of the private line, named so when the line is in it: a request that came before would be taken for it.
REQUESTS = f"{RUN_FOLDER}/line"
# The folder of a host's logs below the base folder. In it, a folder of each job by the uid of its ConfigMap, since an
# earlier one of the same name may have written there, has a file for each pod.
LOGS = "output/log"
# The message of a container that ended well, and whose script has saved a model.
HAS_MODEL = "model"
_LAST_SECONDS = 5
# The kubelet keeps 4 KiB of a container's message, and half a record is none: the lines of the log go first, which the
# log has, too. No single quotes: a shell has it in such.
_SHORTENED = """\
import json, sys
record = json.load(open(sys.argv[1]))
excess = lambda: len(json.dumps(record)) - 4000
for name in ("log_tail", "frames"):
    while record[name] and excess() > 0:
        del record[name][0]
record["message"] = record["message"][: -excess() if excess() > 0 else None]
print(json.dumps(record))
"""
TELL = f"python3 -c '{_SHORTENED}' /opt/ml/output/failure.json >/dev/termination-log || :"
# The kubelet would make folders of claims as root, for root alone; a container that makes them first takes a second.
# $1 is the limit in seconds, $2 its words, $3 the files of the host's group, $4 the host's name, or nothing in an
# indexed Job; then `read` or `write`, a folder in a claim, with @HOST@ for the host's name, and the path at which it
# appears, for each folder. The FIFO stays open for writing, so it never ends: the kubelet is the lifeline of a pod.
# `out` has the supervisor's output, which images of older releases cannot number. The supervisor's failure is the
# container's message, which its status keeps; a claim has what an earlier attempt left. A process that a script
# left may keep `out` open, so its end is awaited for some seconds only. Where S3 has a part in the job, `keeper` sends
# the results once `ended` exists.
_PROGRAM = f"""\
umask 077
limit=$1 words=$2 group=$3 host=${{4:-algo-$((JOB_COMPLETION_INDEX + 1))}}
shift 4
while [ $# -gt 0 ]; do
    folder=$(printf '%s\\n' "$2" | sed "s/@HOST@/$host/")
    if [ "$1" = read ] && [ ! -e "$folder" ]; then
        echo "$3: its claim has no ${{folder#{_CLAIMS}/*/}}" >/dev/termination-log
    elif (mkdir -p -- "$folder" "${{3%/*}}" && ln -s -- "$folder" "$3") 2>/dev/termination-log; then
        shift 3
        continue
    fi
    cat /dev/termination-log >&2
    exit 1
done
rm -rf output/failure output/failure.json output/success output/data model/* model/.[!.]*
mkdir -p input/config input/data code model output/data checkpoints
cp {JOB_FOLDER}/hyperparameters.json input/config/
cp {JOB_FOLDER}/$group.inputdataconfig.json input/config/inputdataconfig.json
sed "s/@HOST@/$host/" {JOB_FOLDER}/$group.resourceconfig.json >input/config/resourceconfig.json
for archive in {JOB_FOLDER}/channel.*.tar.gz {PARTS}/channel.*.tar.gz; do
    [ -e "$archive" ] || continue
    name=${{archive##*/channel.}}
    mkdir -p "input/data/${{name%.tar.gz}}"
    tar -xzf "$archive" -C "input/data/${{name%.tar.gz}}"
done
s3={JOB_FOLDER}/$group.s3.json
if [ -e $s3 ]; then
    python3 -m herringbone.backends.kubernetes.data.pod_s3 fetch $s3 "$host" || {{ {TELL}; exit 1; }}
    python3 -m herringbone.backends.kubernetes.data.pod_s3 keep $s3 "$host" &
    keeper=$!
fi
mkfifo {RUN_FOLDER}/private {RUN_FOLDER}/out
log="{LOGS}/$JOB_UID/$POD_NAME.log"
(python3 -m herringbone_entry.numbered "$log" <{RUN_FOLDER}/out || exec cat <{RUN_FOLDER}/out) &
output=$!
exec 3<>{RUN_FOLDER}/private
(cat {JOB_FOLDER}/private.json >&3 && mv {RUN_FOLDER}/private {REQUESTS}) &
cd code
trap 'kill -TERM $supervisor' TERM
train </dev/null >{RUN_FOLDER}/out 2>&1 &
supervisor=$!
(sleep "$limit" && touch {RUN_FOLDER}/over && echo "[$host] $words" && kill -TERM $supervisor) &
code=0
wait $supervisor || code=$?
while kill -0 $supervisor 2>/dev/null; do code=0; wait $supervisor || code=$?; done
[ ! -e {RUN_FOLDER}/told ] || [ $code -lt 128 ] || code={STOPPED_CODE}
[ ! -e {RUN_FOLDER}/over ] || code={TIME_IS_OVER}
(sleep {_LAST_SECONDS} && kill -KILL $output) &
wait $output || :
if [ -e $s3 ]; then
    touch {RUN_FOLDER}/ended
    wait $keeper || [ $code != 0 ] || code=1
fi
if [ -e /opt/ml/output/failure.json ]; then {TELL}
elif [ -n "$(ls -A /opt/ml/model)" ]; then printf {HAS_MODEL} >/dev/termination-log; fi
exit $code
"""
RESTRICTED: dict[str, Any] = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
# A node that is away keeps its pods this long. Without them Kubernetes waits for 300 s.
_AWAY_SECONDS = 30
_TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
# After the grace of the ranks, the supervisor packs up.
_MARGIN_SECONDS = 10


class PodContext(NamedTuple):
    """Values of the pods that are not in the plan.

    `owner` is the uid of the job's ConfigMap, `${UID}` in a plan. `excluded` are nodes that no pod may use. `grace` is
    in seconds, as is `spent`, the time of the attempts before. `passed_on` are settings of the supervisor.
    """

    names: ObjectNames
    namespace: str
    owner: str = "${UID}"
    excluded: tuple[str, ...] = ()
    grace: float = 110.0
    spent: float = 0.0
    passed_on: Mapping[str, str] = {}


class _Claims(NamedTuple):
    """The claims of a pod, where they are mounted in the container, and the words of each link."""

    volumes: list[dict[str, Any]]
    mounts: list[dict[str, Any]]
    links: list[str]


def pod_template(plan: JobPlan, host: HostPlan | None, context: PodContext) -> dict[str, Any]:
    """Return the template of one host's pod; with None, that of all pods of an indexed Job."""
    claims = _claims_of(plan)
    volumes: list[dict[str, Any]] = [
        {"name": "job", "secret": {"secretName": context.names.hosts, "defaultMode": 0o400}},
        {"name": "run", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
        {"name": "tmp", "emptyDir": {}},
        {"name": "ml", "emptyDir": {}},
        {"name": "shm", "emptyDir": {"medium": "Memory", **_shm_limit(plan)}},
        *claims.volumes,
    ]
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": round(context.grace) + _MARGIN_SECONDS,
        "containers": [_container(plan, host, context, claims)],
        "volumes": volumes,
    }
    if host is not None:
        spec |= {"hostname": host.name, "subdomain": context.names.hosts}
    if context.excluded:
        spec["affinity"] = _away_from(context.excluded)
    return template_of(plan, context.names.labels(PodKind.HOST, None if host is None else host.name), spec)


def template_of(plan: JobPlan, labels: Mapping[str, str], spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the template of a pod, with what all pods of a job share: most of it are the user's choices."""
    settings = settings_of(plan)
    shared: dict[str, Any] = {
        # The controller alone mounts a token.
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": _security_context(plan),
        "tolerations": _tolerations_of(plan),
    }
    if settings.node_selector:
        shared["nodeSelector"] = settings.node_selector
    if settings.priority_class is not None:
        shared["priorityClassName"] = settings.priority_class
    if settings.image_pull_secrets:
        shared["imagePullSecrets"] = [{"name": name} for name in settings.image_pull_secrets]
    metadata: dict[str, Any] = {"labels": {**settings.labels, **labels}}
    if settings.annotations:
        metadata["annotations"] = settings.annotations
    return {"metadata": metadata, "spec": {**shared, **spec}}


def _security_context(plan: JobPlan) -> dict[str, Any]:
    user = settings_of(plan).user
    # The Secret's files belong to root; the group may read them.
    own = {} if user == "namespace" else {"runAsUser": user, "runAsGroup": user, "fsGroup": user}
    # A claim with many files is not walked again for each pod.
    policy = {"fsGroupChangePolicy": "OnRootMismatch"}
    return {"runAsNonRoot": True, **own, **policy, "seccompProfile": {"type": "RuntimeDefault"}}


def _tolerations_of(plan: JobPlan) -> list[dict[str, Any]]:
    own = [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": _AWAY_SECONDS} for key in _TAINTS
    ]
    given = [
        {
            "operator": each.operator,
            **({"key": each.key} if each.key is not None else {}),
            **({"value": each.value} if each.value is not None else {}),
            **({"effect": each.effect} if each.effect is not None else {}),
            **({"tolerationSeconds": each.seconds} if each.seconds is not None else {}),
        }
        for each in settings_of(plan).tolerations
    ]
    # Kubernetes takes the first that matches. The user's come first where they name the taint: one for all taints would
    # keep pods on nodes that are away.
    named = [each for each in given if each.get("key") in _TAINTS]
    return named + own + [each for each in given if each not in named]


def group_number(plan: JobPlan, group: str) -> str:
    """Return the beginning of the names of a group's files in the Secret."""
    return f"g{list(dict.fromkeys(host.group for host in plan.hosts)).index(group)}"


def _container(plan: JobPlan, host: HostPlan | None, context: PodContext, claims: _Claims) -> dict[str, Any]:
    group, name = (plan.hosts[0].group, "") if host is None else (host.group, host.name)
    return {
        "name": CONTAINER,
        "image": plan.arguments.image_uri,
        "command": ["/bin/sh", "-ec", _PROGRAM],
        "args": ["train", *_limit(plan, context), group_number(plan, group), name, *map(literal, claims.links)],
        # An image's own folder would be made by root.
        "workingDir": "/opt/ml",
        "env": [
            *({"name": name, "value": literal(value)} for name, value in _variables(plan, host, context).items()),
            {"name": "JOB_UID", "value": context.owner},
            {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        ],
        "resources": _resources(plan),
        "securityContext": RESTRICTED,
        "volumeMounts": [
            {"name": "job", "mountPath": JOB_FOLDER, "readOnly": True},
            {"name": "run", "mountPath": RUN_FOLDER},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - an emptyDir of the pod's own
            {"name": "ml", "mountPath": "/opt/ml"},
            {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108
            *claims.mounts,
        ],
    }


def _limit(plan: JobPlan, context: PodContext) -> tuple[str, str]:
    """Return the seconds that the attempts before have left, and the words for their end."""
    options = plan.options
    words = f"max_run of {options.max_run} s is over"
    if options.max_cost is not None and plan.hourly_cost is not None and plan.limiting_option == "max_cost":
        words = spent_text(options.max_cost, plan.hourly_cost)
    return str(max(1, round(plan.time_limit - context.spent))), literal(f"{words}: stopping")


def _variables(plan: JobPlan, host: HostPlan | None, context: PodContext) -> dict[str, str]:
    variables = {
        HostVariable.JOB_NAME: plan.script_job_name,
        HostVariable.STOP_GRACE: f"{context.grace:.3f}".rstrip("0").rstrip("."),
        HostVariable.PRIVATE: "3",
        HostVariable.CACHE: "/tmp/herringbone",  # noqa: S108
        "HOME": "/tmp",  # noqa: S108
        "USER": "trainer",
        **context.passed_on,
    }
    if len(plan.hosts) > 1:
        # Kubeflow's runtime names the pods itself.
        first = plan.hosts[0].name if host is not None else f"{context.names.hosts}-node-0-0"
        address = f"{first}.{context.names.hosts}.{context.namespace}.svc"
        variables[HostVariable.CONTROL] = f"tcp:{address}:{CONTROL_PORT}"
    return variables


def _resources(plan: JobPlan) -> dict[str, Any]:
    settings = settings_of(plan)
    amounts = {
        "cpu": None if settings.cpu is None else str(settings.cpu),
        "memory": settings.memory,
        settings.gpu_resource: None if plan.options.gpus is None else str(plan.options.gpus),
    }
    amounts = {name: amount for name, amount in amounts.items() if amount is not None}
    return {"requests": amounts, "limits": amounts} if amounts else {}


def _shm_limit(plan: JobPlan) -> dict[str, str]:
    size = plan.options.shm_size
    return {} if size is None else {"sizeLimit": str(size_in_bytes("shm_size", size))}


def _away_from(nodes: tuple[str, ...]) -> dict[str, Any]:
    # By the nodes' names, which labels need not have; such a field takes one value at a time.
    fields = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in nodes]
    terms = {"nodeSelectorTerms": [{"matchFields": fields}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


def places_of(plan: JobPlan) -> list[tuple[Place, str, bool]]:
    """Return the folders of claims that each host uses: with its path in the pod, and whether it is writable.

    Each host has results of its own, at @HOST@; all share the checkpoints. Raises `OptionError`.
    """
    options = plan.options
    places = [
        (parse_place(f"channel {channel.name!r}", channel.input.s3_data), f"/opt/ml/input/data/{channel.name}", False)
        for channel in plan.channels
        if is_claim(channel.input.s3_data)
    ]
    if is_claim(options.checkpoint_s3_uri):
        place = parse_place("checkpoint_s3_uri", str(options.checkpoint_s3_uri))
        places.append((place, "/opt/ml/checkpoints", True))
    if is_claim(options.output_path):
        results = parse_place("output_path", str(options.output_path)).below(plan.job_name, "hosts", HOST_MARK, "ml")
        places += [(results.below(name), f"/opt/ml/{name}", True) for name in ("model", "output")]
    if has_parts(plan):
        job = parse_place("output_path", str(options.output_path)).below(plan.job_name)
        places.append((job.below(PARTS_FOLDER), PARTS, False))
    return places


def has_parts(plan: JobPlan) -> bool:
    """Report whether code and channels of the submitting machine are in the job's results while it runs."""
    places = (plan.hyperparameters.get(key, "") for key in (Key.SUBMIT_DIRECTORY, Key.CODE_ARCHIVE))
    return any(place.startswith(f'"{PARTS}/') for place in places)


def _claims_of(plan: JobPlan) -> _Claims:
    settings, places = settings_of(plan), places_of(plan)
    claims = list(dict.fromkeys([*(place.claim for place, _, _ in places), *settings.volumes]))
    names = {claim: f"claim-{number}" for number, claim in enumerate(claims)}
    linked = [each for each in places if each[1] != PARTS]
    # Whole: the kubelet would make folders that are not there as root, and those on the way to a mount, too.
    written = {place.claim for place, _, writable in linked if writable}
    mounts: list[dict[str, Any]] = [
        {
            "name": names[claim],
            "mountPath": f"{_CLAIMS}/{names[claim]}",
            **({} if claim in written else {"readOnly": True}),
        }
        for claim in dict.fromkeys(place.claim for place, _, _ in linked)
    ]
    mounts += [
        {"name": names[place.claim], "mountPath": path, "subPath": place.folder, "readOnly": True}
        for place, path, _ in places
        if path == PARTS
    ]
    mounts += [{"name": names[claim], "mountPath": path} for claim, path in settings.volumes.items()]
    links = [
        ("write" if writable else "read", f"{_CLAIMS}/{names[place.claim]}/{place.folder}".rstrip("/"), path)
        for place, path, writable in linked
    ]
    return _Claims(
        volumes=[{"name": names[claim], "persistentVolumeClaim": {"claimName": claim}} for claim in claims],
        mounts=mounts,
        links=[word for link in links for word in link],
    )
