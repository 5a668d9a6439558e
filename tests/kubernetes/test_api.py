"""Which cluster is asked, and the words of its refusals; a small HTTP server stands in for an API server."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from herringbone.backends.kubernetes.api import Cluster
from herringbone_contract.errors import KubernetesError, OptionError, UnsupportedError


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        word = self.path.partition("?")[0].rpartition("/")[2]
        code = int(word) if word.isdigit() else 200
        content = {"message": f"words about {word}"} if code >= 300 else {"path": self.path, **dict(self.headers)}
        body = b"<html>not JSON" if word == "502" else json.dumps(content).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def kubeconfig(tmp_path: Path, monkeypatch) -> Iterator[Path]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": "one", "cluster": {"server": f"{address}/one"}},
                {"name": "gone", "cluster": {"server": "http://127.0.0.1:1"}},
            ],
            "users": [{"name": "me", "user": {"token": "a-token"}}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": "me"}} for name in ("one", "gone")],
            "current-context": "one",
        }
        path = tmp_path / "config"
        path.write_text(json.dumps(content))
        monkeypatch.setenv("KUBECONFIG", str(path))
        yield path
        server.shutdown()


def test_the_current_context_names_server_and_token(kubeconfig: Path) -> None:
    answer = Cluster(None).call("GET", "api/v1/pods", labelSelector="a=b,c=d")
    assert answer["path"] == "/one/api/v1/pods?labelSelector=a%3Db%2Cc%3Dd"
    assert {name.lower(): value for name, value in answer.items()}["authorization"] == "Bearer a-token"


@pytest.mark.parametrize(
    ("status", "transient", "denied", "words"),
    [
        (404, False, False, "words about 404"),
        (403, False, True, "words about 403"),
        (429, True, False, "words about 429"),
        (502, True, False, "<html>not JSON"),
    ],
)
def test_a_refusal_has_the_servers_words(kubeconfig, status, transient, denied, words) -> None:
    with pytest.raises(KubernetesError, match=f"GET api/{status}: {words}") as error:
        Cluster(None).call("GET", f"api/{status}")
    assert (error.value.status, error.value.transient, error.value.denied) == (status, transient, denied)


def test_a_server_that_does_not_answer_may_answer_later(kubeconfig) -> None:
    with pytest.raises(KubernetesError, match=r"http://127.0.0.1:1 does not answer: .*refused") as error:
        Cluster("gone").call("DELETE", "api")
    assert error.value.transient


def test_an_unknown_context_is_named(kubeconfig) -> None:
    with pytest.raises(OptionError, match=r"kubernetes: no cluster to ask: .*other.*`kubectl config get-contexts`"):
        Cluster("other")


def test_a_machine_without_a_kubeconfig(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(OptionError, match="kubernetes: no cluster to ask: "):
        Cluster(None)


def test_without_the_client_library_its_package_is_named(kubeconfig, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    with pytest.raises(UnsupportedError, match="pip install kubernetes"):
        Cluster(None)
