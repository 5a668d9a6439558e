"""An API server that is a dict of objects, and whose pods run their commands on this machine."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from herringbone_contract.errors import KubernetesError


class LocalApi:
    """Answers by the paths of objects. `on_job` gets each Job that is made, and may add its pods.

    In commands, paths that begin with one of `folders` lead to its folder.
    """

    def __init__(self, folders: dict[str, Path], on_job: Callable[[LocalApi, dict[str, Any]], None]) -> None:
        self.folders, self._on_job = folders, on_job
        self.objects: dict[str, dict[str, Any]] = {}
        self.events: list[dict[str, Any]] = []
        self.commands: list[list[str]] = []
        self.made = 0

    def call(self, method: str, path: str, body: Any = None, **query: str) -> Any:
        if method == "POST":
            name = f"{path}/{body['metadata']['name']}"
            if name in self.objects:
                raise KubernetesError("exists", status=409)
            body["metadata"].setdefault("uid", "a-uid")
            self.objects[name] = body
            self.made += 1
            self._on_job(self, body)
            return body
        if path.endswith("/events"):
            kind = query["fieldSelector"].partition("=")[2]
            return {"items": [each for each in self.events if each["involvedObject"]["kind"] == kind]}
        if "labelSelector" in query:
            wanted = dict(part.split("=") for part in query["labelSelector"].split(","))
            pods = [each for name, each in self.objects.items() if name.startswith(f"{path}/")]
            return {"items": [each for each in pods if wanted.items() <= each["metadata"]["labels"].items()]}
        if path not in self.objects:
            raise KubernetesError("not found", status=404)
        if method == "DELETE":
            job = self.objects.pop(path)["metadata"]["name"]
            gone = [name for name, each in self.objects.items() if each["metadata"].get("job") == job]
            for name in gone:
                del self.objects[name]
            return {}
        return self.objects[path]

    def add_pod(self, job: dict[str, Any], **status: Any) -> None:
        name = f"{job['metadata']['name']}-x1"
        metadata = {
            "name": name,
            "labels": job["spec"]["template"]["metadata"]["labels"],
            "job": job["metadata"]["name"],
        }
        pod = {"metadata": metadata, "spec": {"nodeName": "n1"}, "status": status}
        self.objects[f"api/v1/namespaces/team-a/pods/{name}"] = pod

    def text(self, *_: Any, **__: Any) -> bytes:
        raise KubernetesError("gone", status=404)

    def stream(self, place: tuple[str, str, str], command: Sequence[str], *, stdin: bool = False, **_: Any) -> LocalRun:
        assert place[0] == "team-a"
        words = list(command)
        self.commands.append(words)
        for folder, path in self.folders.items():
            words = [f"{path}{word.removeprefix(folder)}" if word.startswith(folder) else word for word in words]
        return LocalRun(words, stdin=stdin)

    def run(self, namespace: str, pod: str, container: str, command: Sequence[str], **_: Any) -> str:
        with contextlib.closing(self.stream((namespace, pod, container), command)) as execution:
            return b"".join(data for _, data in iter(execution.read, None)).decode()


class LocalRun:
    """A command on this machine, in the form of `Execution`."""

    def __init__(self, words: list[str], *, stdin: bool) -> None:
        given = subprocess.PIPE if stdin else subprocess.DEVNULL
        self._process = subprocess.Popen(words, stdin=given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def read(self) -> tuple[int, bytes] | None:
        assert self._process.stdout is not None
        data = self._process.stdout.read1(1000)
        return (1, data) if data else None

    def pieces(self) -> Iterator[tuple[int, bytes]]:
        return iter(self.read, None)

    @property
    def exit_code(self) -> int:
        code = self._process.wait()
        return 128 - code if code < 0 else code

    def write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        # A program that reads no more loses its input, as in a pod.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(data)
            self._process.stdin.flush()

    def end_input(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for file in (self._process.stdin, self._process.stdout):
            if file is not None:
                with contextlib.suppress(BrokenPipeError):
                    file.close()
