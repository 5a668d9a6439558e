"""Requests to a cluster's API server, as plain objects.

The kubeconfig (KUBECONFIG, else ~/.kube/config) names servers, users and contexts, and the official client knows all
their ways to log in. Where there is none, the service account of the pod that this process runs in counts: that needs
no client, which would be a tenth of each image.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol
from urllib.parse import urlencode

from herringbone.backends.kubernetes.execution import SECONDS, Execution, framed_words, open_socket, server_words
from herringbone.backends.kubernetes.names import TOKEN_FOLDER
from herringbone_contract.errors import KubernetesError, OptionError, UnsupportedError

_TRIES = 3
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

    def stream(
        self,
        place: tuple[str, str, str],
        command: Sequence[str],
        *,
        seconds: float | None,
        stdin: bool = False,
        terminal: bool = False,
    ) -> Execution:
        """Start a command in a container; the place is namespace, pod and container.

        `seconds` is the longest time without a byte, None for any. Close the stream at its end.
        """

    def run(self, namespace: str, pod: str, container: str, command: Sequence[str], *, seconds: float = SECONDS) -> str:
        """Run a command in a container for this time at most, and return its output as text, whatever its exit code."""


def path_of(kind: str, namespace: str, *parts: str) -> str:
    """Return the path of the objects of a kind, or of one of them.

    >>> path_of("Job", "team-a", "digits")
    'apis/batch/v1/namespaces/team-a/jobs/digits'
    """
    return "/".join((_PATHS[kind].format(namespace), *parts))


class Cluster:
    """An `Api` over the connections of a kubeconfig's context, or of the pod that this process runs in."""

    def __init__(self, context: str | None) -> None:
        files = os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
        is_file = any(Path(path).exists() for path in files.split(os.pathsep) if path)
        connect = _of_pod if context is None and not is_file else partial(_of_kubeconfig, files, context)
        self._configuration, self._pool = connect()

    def call(self, method: str, path: str, body: object = None, **query: str) -> Any:
        return json.loads(self._send(method, path, body, query))

    def text(self, path: str, **query: str) -> bytes:
        return self._send("GET", path, None, query)

    def stream(
        self,
        place: tuple[str, str, str],
        command: Sequence[str],
        *,
        seconds: float | None,
        stdin: bool = False,
        terminal: bool = False,
    ) -> Execution:
        namespace, pod, container = place
        flags = {"stdin": stdin, "stdout": True, "stderr": not terminal, "tty": terminal}
        words = framed_words(command) if stdin and not terminal else command
        query = [("container", container), *((name, str(flag).lower()) for name, flag in flags.items())]
        query += [("command", word) for word in words]
        configuration = self._configuration
        scheme, _, rest = configuration.host.partition("://")
        url = f"{scheme.replace('http', 'ws')}://{rest}/{path_of('Pod', namespace, pod, 'exec')}?{urlencode(query)}"
        headers = {name.lower(): value for name, value in self._authorization().items()}
        what = f"pod {pod}: {command[0]}"
        return Execution(open_socket(configuration, url, headers, what), what, seconds, framed=words is not command)

    def run(self, namespace: str, pod: str, container: str, command: Sequence[str], *, seconds: float = SECONDS) -> str:
        with contextlib.closing(self.stream((namespace, pod, container), command, seconds=seconds)) as stream:
            return stream.read_all(seconds).decode("utf-8", "replace")

    def _authorization(self) -> dict[str, str]:
        # The client renews tokens when it is asked for the header.
        return {setting["key"]: setting["value"] for setting in self._configuration.auth_settings().values()}

    def _send(self, method: str, path: str, body: object, query: dict[str, str]) -> bytes:
        import urllib3

        configuration = self._configuration
        headers = self._authorization() | {"Content-Type": "application/json", "Accept": "application/json, text/plain"}
        url = f"{configuration.host}/{path}" + (f"?{urlencode(query)}" if query else "")
        sent = None if body is None else json.dumps(body).encode()
        # Only a question may be asked twice.
        tries = urllib3.Retry(_TRIES if method == "GET" else 0, backoff_factor=0.2)
        try:
            answer = self._pool.request(method, url, body=sent, headers=headers, timeout=SECONDS, retries=tries)
        except urllib3.exceptions.HTTPError as error:
            raise KubernetesError(f"the API server {configuration.host} does not answer: {error}") from error
        if answer.status >= 300:
            raise KubernetesError(f"{method} {path}: {server_words(answer.data)}", status=answer.status)
        return bytes(answer.data)


def _of_kubeconfig(files: str, context: str | None) -> tuple[Any, Any]:
    """Return the official client's configuration, and its connections. Raises `UsageError`."""
    try:
        from kubernetes import client, config
    except ImportError:
        raise UnsupportedError(
            "instance_type 'k8s:' needs Kubernetes' client; install it with: pip install kubernetes"
        ) from None
    configuration: Any = client.Configuration()
    loaders: Any = config
    try:
        # By name: the library reads the variable only once, when it is imported.
        loaders.load_kube_config(files, context=context, client_configuration=configuration)
    except config.ConfigException as error:
        raise OptionError(
            f"kubernetes: no cluster to ask: {error}; give a context of your kubeconfig (`kubectl config get-contexts` "
            "lists them)"
        ) from None
    pool: Any = client.ApiClient(configuration)
    return configuration, pool.rest_client.pool_manager


def _of_pod() -> tuple[Any, Any]:
    """Return the same for this pod's service account. Raises `OptionError`."""
    import urllib3

    host, token = os.environ.get("KUBERNETES_SERVICE_HOST", ""), Path(TOKEN_FOLDER, "token")
    if not host or not token.exists():
        raise OptionError(
            "kubernetes: no cluster to ask: there is no kubeconfig, and this is no pod with a service account; set "
            "KUBECONFIG, or write ~/.kube/config"
        )
    address = f"[{host}]" if ":" in host else host
    configuration = SimpleNamespace(
        host=f"https://{address}:{os.environ.get('KUBERNETES_SERVICE_PORT', '443')}",
        verify_ssl=True,
        ssl_ca_cert=f"{TOKEN_FOLDER}/ca.crt",
        **dict.fromkeys(("assert_hostname", "cert_file", "key_file", "tls_server_name", "proxy", "proxy_headers")),
        # The kubelet renews the file.
        auth_settings=lambda: {"token": {"key": "authorization", "value": f"Bearer {token.read_text().strip()}"}},
    )
    return configuration, urllib3.PoolManager(ca_certs=configuration.ssl_ca_cert)
