"""A name server for the cluster: answers names of Services from their Endpoints, as CoreDNS does.

HOST.SERVICE.NAMESPACE.svc.cluster.local is a pod with that `hostname`, SERVICE.NAMESPACE.svc... are all pods, or the
Service's own address. Every question is looked up anew. While the API server is away, the last answer remains.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import struct
import sys
from collections.abc import Callable
from typing import Any

DOMAIN = ("svc", "cluster", "local")
_A, _IN, _RESPONSE, _NAME_ERROR = 1, 1, 0x8580, 3
_HEADER, _ANSWER = struct.Struct(">HHHHHH"), struct.Struct(">HHHIH")
# Points at the name of the question, which follows the header.
_POINTER = 0xC000 | _HEADER.size

Lookup = Callable[[str], Any]


def addresses(name: str, lookup: Lookup) -> list[str] | None:
    """Return the addresses of a name; None when no Service has it. `lookup` returns an object of the API, or None."""
    words = tuple(name.lower().split("."))
    if words[-3:] != DOMAIN or len(words) not in (5, 6):
        return None
    service, namespace = words[-5:-3]
    path = f"/api/v1/namespaces/{namespace}"
    found = lookup(f"{path}/services/{service}")
    if found is None:
        return None
    if len(words) == 5 and found["spec"]["clusterIP"] != "None":
        return [found["spec"]["clusterIP"]]
    endpoints = lookup(f"{path}/endpoints/{service}") or {}
    pods = [pod for subset in endpoints.get("subsets") or [] for pod in subset.get("addresses") or []]
    ours = [pod["ip"] for pod in pods if len(words) == 5 or pod.get("hostname") == words[0]]
    return ours or None


def answer(question: bytes, lookup: Lookup) -> bytes:
    """Return the answer to one packet with one question."""
    number, flags, *_ = _HEADER.unpack_from(question)
    labels, at = [], _HEADER.size
    while length := question[at]:
        labels.append(question[at + 1 : at + 1 + length].decode("ascii", "replace"))
        at += 1 + length
    kind, _ = struct.unpack_from(">HH", question, at + 1)
    found = addresses(".".join(labels), lookup)
    records = [
        _ANSWER.pack(_POINTER, _A, _IN, 0, 4) + socket.inet_aton(address) for address in found or () if kind == _A
    ]
    code = _NAME_ERROR if found is None else 0
    head = _HEADER.pack(number, _RESPONSE | (flags & 0x0100) | code, 1, len(records), 0, 0)
    return head + question[_HEADER.size : at + 5] + b"".join(records)


def ask_server(host: str, token: str) -> Lookup:
    """Return a function that gets one object from the API server."""
    last: dict[str, Any] = {}
    context = ssl._create_unverified_context()  # noqa: S323 - the server is in the same namespaces

    def lookup(path: str) -> Any:
        connection = http.client.HTTPSConnection(host, timeout=2, context=context)
        try:
            connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
            response = connection.getresponse()
            last[path] = json.load(response) if response.status == 200 else None
        except OSError:
            pass
        finally:
            connection.close()
        return last.get(path)

    return lookup


def main() -> None:
    address, token = sys.argv[1:]
    # The API server listens at the same address.
    lookup = ask_server(address, token)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind((address, 53))
        while True:
            question, sender = server.recvfrom(512)
            server.sendto(answer(question, lookup), sender)


if __name__ == "__main__":
    main()
