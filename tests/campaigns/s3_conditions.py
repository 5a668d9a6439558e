"""Let many clients want the same change of an object at once, and count the winners; print them as JSON.

Usage: python -m tests.campaigns.s3_conditions [--keys 1000] [--clients 20]. Of the clients that create a key with
If-None-Match, that replace or complete it with If-Match, and that delete it with If-Match, one each must succeed.
"""

from __future__ import annotations

import argparse
import http.client
import json
import re
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import uvicorn

from herringbone.s3.front.app import make_app
from herringbone.s3.front.refusals import HttpRequest, Signer


def anybody(request: HttpRequest) -> Signer:
    return Signer("me")


class Client:
    """One connection; its calls return status, ETag and body."""

    def __init__(self, port: int) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)

    def call(self, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, str, bytes]:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        self.connection.request(method, f"/mine/{path}", body, {"x-amz-content-sha256": "UNSIGNED-PAYLOAD", **sent})
        answer = self.connection.getresponse()
        return answer.status, answer.headers.get("etag", ""), answer.read()

    def upload(self, path: str, body: bytes) -> tuple[str, bytes]:
        """Return the id of an upload with one part, and the body that completes it."""
        text = self.call("POST", f"{path}?uploads")[2].decode()
        match = re.search("<UploadId>(.*)</UploadId>", text)
        assert match is not None, text
        etag = self.call("PUT", f"{path}?uploadId={match[1]}&partNumber=1", body)[1]
        part = f"<Part><PartNumber>1</PartNumber><ETag>{etag}</ETag></Part>"
        return match[1], f"<CompleteMultipartUpload>{part}</CompleteMultipartUpload>".encode()


def run(port: int, number: int, keys: int, together: threading.Barrier, won: Counter[tuple[str, int]]) -> None:
    client = Client(port)
    for key in range(keys):
        path, body = f"key-{key}", b"%d" % number * 50
        upload, parts = client.upload(path, body)
        together.wait()
        created = client.call("PUT", path, body, if_none_match="*")[0]
        together.wait()
        etag = client.call("HEAD", path)[1]
        together.wait()
        # Half of the clients replace the object, and half of them complete an upload: all at once.
        if number % 2:
            replaced = client.call("PUT", path, body + b"new", if_match=etag)[0]
        else:
            replaced = client.call("POST", f"{path}?uploadId={upload}", parts, if_match=etag)[0]
        together.wait()
        etag = client.call("HEAD", path)[1]
        together.wait()
        deleted = client.call("DELETE", path, if_match=etag)[0]
        together.wait()
        if replaced != 200 and not number % 2:
            client.call("DELETE", f"{path}?uploadId={upload}")
        for step, status in (("create", created), ("replace", replaced), ("delete", deleted)):
            won[step, key] += status in (200, 204)
            won[f"{step} {status}", -1] += 1


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--keys", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as listener:
        (Path(folder) / "mine").mkdir()
        server = uvicorn.Server(uvicorn.Config(make_app(Path(folder), anybody), log_level="error", lifespan="on"))
        threads = [threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)]
        threads[0].start()
        while not server.started:
            time.sleep(0.02)
        # Each client has a counter of its own: threads share none.
        counts: list[Counter[tuple[str, int]]] = [Counter() for _ in range(options.clients)]
        together, began = threading.Barrier(options.clients, timeout=300), time.monotonic()
        clients = [
            threading.Thread(target=run, args=(listener.getsockname()[1], number, options.keys, together, count))
            for number, count in enumerate(counts)
        ]
        for thread in clients:
            thread.start()
        for thread in clients:
            thread.join()
        server.should_exit = True
        threads[0].join(30)
    won = sum(counts, Counter())
    wrong = [f"{step} of key-{key}: {won[step, key]} won" for step in ("create", "replace", "delete")
             for key in range(options.keys) if won[step, key] != 1]  # fmt: skip
    statuses = {step: count for (step, key), count in sorted(won.items()) if key < 0}
    seconds = round(time.monotonic() - began, 1)
    print(
        json.dumps({"clients": options.clients, "keys": options.keys, "seconds": seconds, "wrong": wrong, **statuses})
    )
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
