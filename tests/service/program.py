"""Run the service with a stand-in for S3: PROGRAM BUCKETS KEYS [PORT]. Prints the address.

The stand-in has GET, HEAD and PUT of objects, which is what `sagemaker` 2.x needs to stage its code.
"""

from __future__ import annotations

import sys
from pathlib import Path

from herringbone.service.app import Verifier
from herringbone.service.errors import ApiError
from herringbone.service.keys import KeyFile
from herringbone.service.run import Listener, serve
from herringbone.service.settings import Settings
from herringbone.service.signature import HttpRequest


def stand_in(settings: Settings, verifier: Verifier):
    async def app(scope, receive, send):
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        headers = [(name.decode(), value.decode()) for name, value in scope["headers"]]
        request = HttpRequest(scope["method"], scope["raw_path"].decode(), scope["query_string"].decode(), headers)
        path = Path(str(settings.buckets), *scope["path"].strip("/").split("/"))
        status, answer = 200, b""
        try:
            verifier(request, request.header("x-amz-content-sha256"))
            if scope["method"] == "PUT":
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(body)
            elif path.is_file():
                answer = path.read_bytes()
            elif not path.is_dir():
                status = 404
        except ApiError as error:
            status = error.status
        length = [(b"content-length", str(len(answer)).encode()), (b"etag", b'"0"')]
        await send({"type": "http.response.start", "status": status, "headers": length})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else answer})

    return app


if __name__ == "__main__":
    buckets, keys, *port = sys.argv[1:]
    settings = Settings(backend="local_process", buckets=buckets, account="123456789012")
    listener = Listener(port=int(port[0]) if port else 0)
    serve(settings, KeyFile(Path(keys)), listener, lambda line: print(line, flush=True), front=stand_in)
