"""Requests to a cluster's API server, as plain objects. The official client finds the server and logs in.

The kubeconfig (KUBECONFIG, else ~/.kube/config) names servers, users and contexts, with all their ways to log in. Where
there is none, the service account of the pod that this process runs in counts.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlencode

from herringbone_contract.errors import KubernetesError, OptionError, UnsupportedError

_SECONDS = 30.0
_TRIES = 3
_SHOWN_CHARS = 1_000
# The folder of each kind of objects below a namespace's.
_PATHS = {
    "ConfigMap": "api/v1/namespaces/{}/configmaps",
    "Secret": "api/v1/namespaces/{}/secrets",
    "Service": "api/v1/namespaces/{}/services",
    "Event": "api/v1/namespaces/{}/events",
    "Pod": "api/v1/namespaces/{}/pods",
    "Job": "apis/batch/v1/namespaces/{}/jobs",
    "JobSet": "apis/jobset.x-k8s.io/v1alpha2/namespaces/{}/jobsets",
    "TrainJob": "apis/trainer.kubeflow.org/v1alpha1/namespaces/{}/trainjobs",
}


class Api(Protocol):
    """One cluster. Raises `KubernetesError` for an answer other than the one that was asked for."""

    def call(self, method: str, path: str, body: object = None, **query: str) -> Any:
        """Return the object of the answer."""

    def text(self, path: str, **query: str) -> bytes:
        """Return the text of the answer."""

    def run(self, namespace: str, pod: str, container: str, command: list[str]) -> str:
        """Run a command in a container and return its output."""


def path_of(kind: str, namespace: str, *parts: str) -> str:
    """Return the path of the objects of a kind, or of one of them.

    >>> path_of("Job", "team-a", "digits")
    'apis/batch/v1/namespaces/team-a/jobs/digits'
    """
    return "/".join((_PATHS[kind].format(namespace), *parts))


class Cluster:
    """An `Api` over the official client's connections and its ways to log in."""

    def __init__(self, context: str | None) -> None:
        try:
            from kubernetes import client, config
        except ImportError:
            raise UnsupportedError(
                "instance_type 'k8s:' needs Kubernetes' client; install it with: pip install kubernetes"
            ) from None
        configuration: Any = client.Configuration()
        loaders: Any = config
        try:
            files = os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
            if context is None and not any(Path(path).exists() for path in files.split(os.pathsep) if path):
                loaders.load_incluster_config(client_configuration=configuration)
            else:
                # By name: the library reads the variable only once, when it is imported.
                loaders.load_kube_config(files, context=context, client_configuration=configuration)
        except config.ConfigException as error:
            raise OptionError(
                f"kubernetes: no cluster to ask: {error}; give a context of your kubeconfig (`kubectl config "
                "get-contexts` lists them), or run in a pod with a service account"
            ) from None
        self._configuration = configuration
        self._client: Any = client.ApiClient(configuration)

    def call(self, method: str, path: str, body: object = None, **query: str) -> Any:
        return json.loads(self._send(method, path, body, query))

    def text(self, path: str, **query: str) -> bytes:
        return self._send("GET", path, None, query)

    def run(self, namespace: str, pod: str, container: str, command: list[str]) -> str:
        from kubernetes import client, stream
        from kubernetes.client.exceptions import ApiException

        core = client.CoreV1Api(self._client)
        words = {"container": container, "command": command, "stdout": True, "stderr": True}
        try:
            connection = stream.stream(
                core.connect_get_namespaced_pod_exec, pod, namespace, **words, _preload_content=False
            )
            try:
                connection.run_forever(timeout=_SECONDS)
                return str(connection.read_all())
            finally:
                # `close` leaves the socket open where the server has closed the stream.
                connection.sock.shutdown()
        except (ApiException, OSError) as error:
            raise KubernetesError(f"pod {pod}: {command[0]} cannot run there: {str(error)[:_SHOWN_CHARS]}") from error

    def _send(self, method: str, path: str, body: object, query: dict[str, str]) -> bytes:
        import urllib3

        configuration = self._configuration
        # The client renews tokens when it is asked for the header.
        headers = {setting["key"]: setting["value"] for setting in configuration.auth_settings().values()}
        headers |= {"Content-Type": "application/json", "Accept": "application/json, text/plain"}
        url = f"{configuration.host}/{path}" + (f"?{urlencode(query)}" if query else "")
        sent = None if body is None else json.dumps(body).encode()
        # Only a question may be asked twice.
        tries = urllib3.Retry(_TRIES if method == "GET" else 0, backoff_factor=0.2)
        try:
            answer = self._client.rest_client.pool_manager.request(
                method, url, body=sent, headers=headers, timeout=_SECONDS, retries=tries
            )
        except urllib3.exceptions.HTTPError as error:
            raise KubernetesError(f"the API server {configuration.host} does not answer: {error}") from error
        if answer.status >= 300:
            raise KubernetesError(f"{method} {path}: {_message(answer.data)}", status=answer.status)
        return bytes(answer.data)


def _message(answer: bytes) -> str:
    """Return the server's own words about a refused request."""
    try:
        return str(json.loads(answer)["message"])[:_SHOWN_CHARS]
    except (ValueError, TypeError, KeyError):
        return answer[:_SHOWN_CHARS].decode("utf-8", "replace")
