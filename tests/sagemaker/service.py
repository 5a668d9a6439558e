"""A small scripted AWS: the JSON operations that following a job needs, with scripted faults.

    service.jobs["digits-1"] = [starting, downloading, completed]     # one per Describe; the last one repeats
    service.write("digits-1/algo-1-1", ["[algo-1:0] epoch 1"])        # log lines
    service.fail("GetLogEvents", 3, "ThrottlingException")            # the next three answers
    service.calls["DescribeTrainingJob"]                              # number of requests

The service does not check signatures; GetCallerIdentity answers with `service.account`.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PAGE_EVENTS = 100
PAGE_STREAMS = 50
_GROUP = "/aws/sagemaker/TrainingJobs"
_IDENTITY = """<GetCallerIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><GetCallerIdentityResult>
<Arn>arn:aws:iam::{0}:user/me</Arn><UserId>ME</UserId><Account>{0}</Account></GetCallerIdentityResult>
<ResponseMetadata><RequestId>1</RequestId></ResponseMetadata></GetCallerIdentityResponse>"""


class Service:
    """State of the server; tests change it while the server runs."""

    def __init__(self) -> None:
        self.address = ""
        self.account = "123456789012"
        self.jobs: dict[str, list[dict[str, Any]]] = {}
        self.tags: list[dict[str, str]] = []
        self.products: list[str] = []
        self.streams: dict[str, list[dict[str, Any]]] = {}
        self.has_group = True
        self.away = False  # connections are closed without an answer
        self.forget_tokens = False  # the next request with a token fails, once
        self.calls: Counter[str] = Counter()
        self.stopped: list[str] = []
        self._faults: defaultdict[str, list[tuple[int, str, str]]] = defaultdict(list)
        # Guards the members, because the server answers in threads of its own.
        self._lock = threading.RLock()
        self._clock = int((time.time() - 3_600) * 1_000)

    def fail(self, operation: str, times: int, code: str, message: str = "no", *, status: int = 400) -> None:
        """Answer the next `times` requests of an operation with an error."""
        with self._lock:
            self._faults[operation] += [(status, code, message)] * times

    def recover(self) -> None:
        """Discard the remaining faults."""
        with self._lock:
            self._faults.clear()
            self.away = False

    def write(self, stream: str, lines: list[str], *, first_ms: int | None = None) -> None:
        """Add lines to a stream, one millisecond apart, the first at `first_ms` or one hour ago."""
        with self._lock:
            events = self.streams.setdefault(stream, [])
            for number, line in enumerate(lines):
                self._clock += 1
                stamp = self._clock if first_ms is None else first_ms + number
                events.append({"timestamp": stamp, "message": line, "ingestionTime": stamp})

    def answer(self, operation: str, arguments: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        with self._lock:
            self.calls[operation] += 1
            if self._faults[operation]:
                status, code, message = self._faults[operation].pop(0)
                return status, {"__type": code, "message": message}
            handler: Callable[[dict[str, Any]], tuple[int, dict[str, Any]]] = getattr(self, f"_{operation}")
            return handler(arguments)

    def _DescribeTrainingJob(self, arguments: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        states = self.jobs.get(arguments["TrainingJobName"])
        if states is None:
            return 400, {"__type": "ValidationException", "message": "Requested resource not found."}
        return 200, states.pop(0) if len(states) > 1 else states[0]

    def _CreateTrainingJob(self, arguments: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        name = arguments["TrainingJobName"]
        if name in self.jobs:
            return 400, {"__type": "ResourceInUse", "message": "Training job names must be unique"}
        self.jobs[name] = [described(name, **arguments)]
        return 200, {"TrainingJobArn": self.jobs[name][0]["TrainingJobArn"]}

    def _StopTrainingJob(self, arguments: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        name = arguments["TrainingJobName"]
        self.stopped.append(name)
        last = self.jobs[name][-1]
        self.jobs[name] = [
            {**last, "TrainingJobStatus": "Stopping", "SecondaryStatus": "Stopping"},
            {**last, "TrainingJobStatus": "Stopped", "SecondaryStatus": "Stopped", "TrainingEndTime": time.time()},
        ]
        return 200, {}

    def _ListTags(self, arguments: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        return 200, {"Tags": self.tags}

    def _GetProducts(self, arguments: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        return 200, {"PriceList": self.products}

    def _DescribeLogStreams(self, arguments: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if not self.has_group or arguments["logGroupName"] != _GROUP:
            return 400, {"__type": "ResourceNotFoundException", "message": "The specified log group does not exist."}
        names = sorted(name for name in self.streams if name.startswith(arguments["logStreamNamePrefix"]))
        start = int(arguments.get("nextToken", "0"))
        page: dict[str, Any] = {
            "logStreams": [
                {"logStreamName": name, "lastIngestionTime": self.streams[name][-1]["timestamp"]}
                if self.streams[name]
                else {"logStreamName": name}
                for name in names[start : start + PAGE_STREAMS]
            ]
        }
        if start + PAGE_STREAMS < len(names):
            page["nextToken"] = str(start + PAGE_STREAMS)
        return 200, page

    def _GetLogEvents(self, arguments: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        assert arguments["startFromHead"]
        events = self.streams[arguments["logStreamName"]]
        token = arguments.get("nextToken")
        if token is not None and self.forget_tokens:
            self.forget_tokens = False
            return 400, {"__type": "InvalidParameterException", "message": "The specified nextToken is invalid."}
        start = int(token.removeprefix("f/")) if token else 0
        if not token and "startTime" in arguments:
            start = next(
                (n for n, event in enumerate(events) if event["timestamp"] >= arguments["startTime"]), len(events)
            )
        page = events[start : start + PAGE_EVENTS]
        return 200, {"events": page, "nextForwardToken": f"f/{start + len(page)}", "nextBackwardToken": f"b/{start}"}


def described(name: str, **members: Any) -> dict[str, Any]:
    """Return the description of a starting job."""
    return {
        "TrainingJobName": name,
        "TrainingJobArn": f"arn:aws:sagemaker:us-west-2:123456789012:training-job/{name}",
        "TrainingJobStatus": "InProgress",
        "SecondaryStatus": "Starting",
        "AlgorithmSpecification": {"TrainingImage": "image:1", "TrainingInputMode": "File"},
        "RoleArn": "arn:aws:iam::123456789012:role/train",
        "OutputDataConfig": {"S3OutputPath": "s3://mine/", "KmsKeyId": ""},
        "ResourceConfig": {"InstanceCount": 1, "InstanceType": "ml.g5.xlarge", "VolumeSizeInGB": 30},
        "StoppingCondition": {"MaxRuntimeInSeconds": 86_400},
        "CreationTime": time.time(),
        "LastModifiedTime": time.time(),
        **members,
    }


def life(*states: tuple[str, str], status: str = "Completed", **members: Any) -> list[dict[str, Any]]:
    """Return the descriptions of a job that passes through states, each with a message, and ends with `status`."""
    descriptions = []
    transitions: list[dict[str, Any]] = []
    for secondary, message in (*states, (members.get("SecondaryStatus", status), "")):
        transitions = [*transitions, {"Status": secondary, "StatusMessage": message, "StartTime": time.time()}]
        descriptions.append({"SecondaryStatus": secondary, "SecondaryStatusTransitions": transitions})
    end = {"TrainingJobStatus": status, "TrainingStartTime": time.time() - 300, "TrainingEndTime": time.time()}
    descriptions[-1] |= end | members
    return descriptions


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Buffers header and body into one segment. Sent apart, Nagle's algorithm holds the body back until the client's
    # delayed acknowledgement of the header, 40 ms.
    wbufsize = 1 << 16
    service: Service

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.service.away:
            self.close_connection = True
            return
        target = self.headers.get("X-Amz-Target")
        if target is None:  # STS uses the query protocol, without this header
            self.service.calls["GetCallerIdentity"] += 1
            self._send(200, "text/xml", _IDENTITY.format(self.service.account).encode())
            return
        status, answer = self.service.answer(target.rpartition(".")[2], json.loads(body or b"{}"))
        self._send(status, "application/x-amz-json-1.1", json.dumps(answer).encode())

    def _send(self, status: int, kind: str, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def serving(service: Service | None = None) -> Iterator[Service]:
    """Run a service on loopback."""
    service = Service() if service is None else service
    handler = type("Handler", (_Handler,), {"service": service})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        service.address = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield service
        finally:
            server.shutdown()
            thread.join()
