"""A look at a cluster before anything starts there: `herringbone hosts check k8s:NAMESPACE`.

look()      asks the API server, and notes what the account may not see
problems()  judges what came back, as sentences. Pure
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from importlib.metadata import version
from typing import Any

import msgspec

from herringbone.backends.kubernetes.api import Api, path_of
from herringbone.backends.kubernetes.objects import permissions
from herringbone_contract.errors import KubernetesError

_OLDEST = (1, 20)
_NOT_FOUND = 404
_REVIEWS = "apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_GROUPS = {"jobset": "jobset.x-k8s.io", "trainjob": "trainer.kubeflow.org", "kueue": "kueue.x-k8s.io"}
# What every job needs of a quota, by the names that quotas have for it.
_NEEDED = ("pods", "configmaps", "secrets", "services", "count/pods", "count/configmaps", "count/secrets")
_NEEDED_TOO = ("count/services", "count/jobs.batch", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory")
_AMOUNTS = {"cpu": ("cpu", "requests.cpu", "limits.cpu"), "memory": ("memory", "requests.memory", "limits.memory")}
_UNITS = {"m": Decimal("0.001"), "k": Decimal(1000), "Ki": Decimal(1 << 10)}
_UNITS |= {unit: Decimal(1000) ** power for power, unit in enumerate("MGTPE", 2)}
_UNITS |= {f"{unit}i": Decimal(1 << 10) ** power for power, unit in enumerate("MGTPE", 2)}
_QUANTITY = re.compile(r"([0-9.]+)([mkMGTPE]i?|Ki)?")
# Labels that clusters give the model of a node's devices.
MODEL_LABELS = ("nvidia.com/gpu.product", "amd.com/gpu.product-name", "cloud.google.com/gke-accelerator")
_MANY_NODES = "ReadWriteMany"


class NodeReport(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A node: its allocatable CPUs, memory and devices, by resource; `model` is what its labels say of the devices."""

    name: str
    cpus: str
    memory: str
    devices: dict[str, str] = {}
    model: str = ""
    trouble: str = ""


class ClusterReport(msgspec.Struct, kw_only=True):
    """The result of a check; a job may start when there are no `problems`.

    `denied` are verbs of the Role that the account lacks, `hidden` is what it may not see, `quota` has used and hard
    amounts of each resource, and `limits` are those of the namespace for one container.
    """

    server: str
    client: str
    namespace: str
    workloads: list[str]
    denied: list[str]
    hidden: list[str]
    nodes: list[NodeReport]
    quota: dict[str, tuple[str, str]]
    limits: list[dict[str, Any]]
    claim: dict[str, Any] | None = None
    missing: str = ""
    health: list[str] = []
    problems: list[str] = []


def look(api: Api, namespace: str, claim: str | None) -> ClusterReport:
    """Ask the API server, which is changed by nothing. Raises `KubernetesError` when it does not answer."""
    server = str(api.call("GET", "version")["gitVersion"])
    hidden: list[str] = []
    groups = {group["name"] for group in _items(api, "apis", "its groups of objects", hidden, "groups")}
    nodes = _items(api, "api/v1/nodes", "nodes and their devices", hidden)
    quotas = _items(api, f"api/v1/namespaces/{namespace}/resourcequotas", "quotas", hidden)
    ranges = _items(api, f"api/v1/namespaces/{namespace}/limitranges", "limit ranges", hidden)
    # Without JobSets nobody needs a right to them.
    wanted = [each for each in permissions() if _GROUPS["jobset"] in groups or not each.endswith(_GROUPS["jobset"])]
    report = ClusterReport(
        server=server,
        client=version("kubernetes"),
        namespace=namespace,
        workloads=["job", *(name for name, group in _GROUPS.items() if group in groups)],
        denied=[each for each in wanted if not _may(api, namespace, *each.split())],
        hidden=hidden,
        nodes=[_node(node) for node in nodes],
        quota={
            f"{quota['metadata']['name']}: {name}": (quota["status"].get("used", {}).get(name, "0"), hard)
            for quota in quotas
            for name, hard in quota.get("status", {}).get("hard", {}).items()
        },
        limits=[limit for each in ranges for limit in each["spec"]["limits"] if limit["type"] in ("Container", "Pod")],
        missing=_missing(api, namespace),
    )
    if claim is not None:
        report.claim = _claim(api, namespace, claim, hidden)
    report.problems = list(problems(report, claim))
    return report


def models_of(api: Api, selector: Mapping[str, str], resource: str, number: int) -> set[str]:
    """Return the models of devices, by labels, of the nodes that have these labels and so many of a resource."""
    fit = [
        node
        for node in api.call("GET", "api/v1/nodes")["items"]
        if selector.items() <= node["metadata"].get("labels", {}).items()
        and amount(node["status"].get("allocatable", {}).get(resource, "0")) >= number
    ]
    return {model for node in fit if (model := _node(node).model)}


def problems(report: ClusterReport, claim: str | None) -> Iterator[str]:
    """Yield what would keep a job from running. Pure."""
    numbers = tuple(int(number) for number in re.findall(r"\d+", report.server)[:2])
    if numbers < _OLDEST:
        yield f"the server is {report.server}; jobs need Kubernetes 1.20 or newer"
    if report.missing:
        yield report.missing
    if report.denied:
        yield (
            f"the account may not: {', '.join(report.denied)}; the Role that suffices: herringbone hosts check --role "
            f"k8s:{report.namespace}"
        )
    for name, (used, hard) in report.quota.items():
        if name.rpartition(": ")[2] in (*_NEEDED, *_NEEDED_TOO) and amount(used) >= amount(hard):
            yield f"quota {name}: {used} of {hard} are used, so no job starts"
    if claim is not None and report.claim is not None:
        if not report.claim:
            yield f"claim {claim}: namespace {report.namespace} has none of this name"
        elif _MANY_NODES not in report.claim["modes"]:
            modes = ", ".join(report.claim["modes"])
            yield f"claim {claim} is {modes}: pods on several nodes cannot mount it; it needs {_MANY_NODES}"
    if report.nodes and all(node.trouble for node in report.nodes):
        yield "no node takes pods: " + "; ".join(f"{node.name} {node.trouble}" for node in report.nodes)


def remarks(report: ClusterReport) -> Iterator[str]:
    """Yield what a job's author should know. Pure."""
    for kind, names in _AMOUNTS.items():
        defaults = [limit for limit in report.limits if kind in limit.get("default", {})]
        if any(name.rpartition(": ")[2] in names for name in report.quota) and not defaults:
            yield f"a quota counts {kind}: pods that name none are refused, so give kubernetes={{{kind!r}: ...}}"
        for limit in defaults:
            yield f"a pod that names no {kind} gets {limit['default'][kind]}"
    for limit in report.limits:
        if greatest := limit.get("max"):
            shown = ", ".join(f"{amount} of {name}" for name, amount in greatest.items())
            yield f"a {limit['type'].lower()} may have at most {shown}"
    yield from (f"not shown: {what}: the account may not see them" for what in report.hidden)


def amount(text: str) -> Decimal:
    """Return the number of a quantity.

    >>> amount("500m"), amount("2Ki"), amount("3")
    (Decimal('0.500'), Decimal('2048'), Decimal('3'))
    """
    match = _QUANTITY.fullmatch(text)
    if match is None:
        # An exponent, which nobody writes in a quota, or a new unit.
        return Decimal(0) if not text[:1].isdigit() else Decimal(re.sub(r"[^0-9.eE]", "", text))
    return Decimal(match[1]) * (_UNITS[match[2]] if match[2] else 1)


def _items(api: Api, path: str, what: str, hidden: list[str], member: str = "items") -> Sequence[Mapping[str, Any]]:
    try:
        items: Sequence[Mapping[str, Any]] = api.call("GET", path)[member]
    except KubernetesError as error:
        if not error.denied:
            raise
        hidden.append(what)
        return []
    return items


def _may(api: Api, namespace: str, verb: str, resource: str) -> bool:
    """Report whether the account may do something; the resource is as `jobs.batch` or `pods/log`."""
    name, _, subresource = resource.partition("/")
    name, _, group = name.partition(".")
    attributes = {"namespace": namespace, "verb": verb, "group": group, "resource": name, "subresource": subresource}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    return bool(api.call("POST", _REVIEWS, review)["status"]["allowed"])


def _missing(api: Api, namespace: str) -> str:
    """Return why the namespace takes no objects. The list of the pods of one that is not there would be empty."""
    attempt = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "hb-check-"}}
    try:
        api.call("POST", path_of("ConfigMap", namespace), attempt, dryRun="All")
    except KubernetesError as error:
        # What the account may not do is said by the reviews.
        return "" if error.denied and "forbidden: User" in str(error) else f"namespace {namespace}: {error}"
    return ""


def _claim(api: Api, namespace: str, claim: str, hidden: list[str]) -> dict[str, Any] | None:
    try:
        found = api.call("GET", f"api/v1/namespaces/{namespace}/persistentvolumeclaims/{claim}")
    except KubernetesError as error:
        if error.status == _NOT_FOUND:
            return {}
        if not error.denied:
            raise
        hidden.append(f"claim {claim}")
        return None
    return {"modes": found["spec"]["accessModes"], "phase": found["status"]["phase"]}


def _node(node: Mapping[str, Any]) -> NodeReport:
    status, labels = node["status"], node["metadata"].get("labels", {})
    amounts = status.get("allocatable", {})
    ready = any(each["type"] == "Ready" and each["status"] == "True" for each in status.get("conditions", ()))
    stopped = "takes no new pods (cordoned)" if node["spec"].get("unschedulable") else ""
    return NodeReport(
        name=node["metadata"]["name"],
        cpus=amounts.get("cpu", "?"),
        memory=amounts.get("memory", "?"),
        # Devices are the resources of somebody's domain.
        devices={name: number for name, number in amounts.items() if "/" in name and number != "0"},
        model=next((labels[name] for name in MODEL_LABELS if name in labels), ""),
        trouble=stopped if ready else "is not ready",
    )
