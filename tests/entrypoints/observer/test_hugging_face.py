"""The endpoint of Hugging Face's Trainer: posts with the token become events, all others cost their own connection."""

from __future__ import annotations

import json
import os
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from herringbone_contract.events.format import Point
from herringbone_entry.channel.reserved_port import StatusListener
from herringbone_entry.observer.hugging_face import HuggingFace, TrainerStatus
from herringbone_entry.observer.status_server import MAX_BODY_BYTES, MAX_CONNECTIONS
from herringbone_entry.ranks.environment import status_environment

TOKEN_PATH = "/proc/7/fd/9"  # noqa: S105 - a path


def body(percent=None, eta=None, **metrics) -> bytes:
    listed = [{"name": name, "value": str(value)} for name, value in metrics.items()]
    status = {"progressPercentage": percent, "estimatedRemainingSeconds": eta, "metrics": listed}
    return json.dumps({"trainerStatus": status}).encode()


def progress(done, total, unit, eta) -> dict:
    return {"kind": "progress", "t": 5.0, "rank": None, "done": done, "total": total, "unit": unit, "eta": eta}


def test_posts_become_progress_and_metrics() -> None:
    status = TrainerStatus()
    assert status.take(body(0, total_steps=40), 5.0) == [progress(0, 40, "step", None)]
    assert status.take(body(25, 30, loss=0.5, current_step=10, total_steps=40, current_epoch=0.25), 5.0) == [
        progress(10, 40, "step", 30.0),
        Point(5.0, "loss", 0.5, None, None, "huggingface"),
    ]
    # The callback repeats what has not changed.
    assert status.take(body(50, 20, loss=0.5, eval_loss=0.25, current_step=20, total_steps=40), 5.0) == [
        progress(20, 40, "step", 20.0),
        Point(5.0, "eval_loss", 0.25, None, None, "huggingface"),
    ]
    assert status.take(body(100, 0, loss="nan"), 5.0)[0] == progress(40, 40, "step", 0.0)
    # Other programs may post a percentage alone.
    assert TrainerStatus().take(body(30), 5.0) == [progress(30.0, 100, "%", None)]


@pytest.mark.parametrize(
    "post",
    [
        b"",
        b"\xff",
        b"[]",
        b'{"trainerStatus": 1}',
        b'{"trainerStatus": {"metrics": 1}}',
        b'{"trainerStatus": {"metrics": [{"name": [], "value": 1}]}}',
        b"[" * 60_000,
        body("x", [], loss="many", current_step="inf", total_steps="1e400"),
    ],
)
def test_a_post_that_says_nothing_has_no_events(post: bytes) -> None:
    assert TrainerStatus().take(post, 5.0) == []


def test_a_hostile_post_has_bounded_names_and_metrics() -> None:
    status = TrainerStatus()
    for begin in range(0, 3000, 500):
        points = status.take(body(**{f"{number}".zfill(400): number for number in range(begin, begin + 500)}), 5.0)
        assert all(isinstance(point, Point) and len(point.name) == 256 for point in points)
    assert len(status._values) <= 1000


@pytest.fixture
def endpoint() -> Iterator[StatusListener]:
    endpoint = StatusListener()
    yield endpoint
    os.close(endpoint.token)


def post(endpoint: StatusListener, content: bytes, token: str | None = None) -> int:
    if token is None:
        token = Path(endpoint.token_path).read_text()
    request = urllib.request.Request(
        f"http://127.0.0.1:{endpoint.port}/", content, {"Authorization": f"Bearer {token}"}
    )
    try:
        with urllib.request.urlopen(request, timeout=5) as response:  # noqa: S310 - a constant scheme
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_only_posts_with_the_token_count(endpoint: StatusListener) -> None:
    source = HuggingFace(endpoint.descriptor, endpoint.token)
    # Peers that send nothing hold no more than their own connections, however many they are.
    silent = [socket.create_connection(("127.0.0.1", endpoint.port)) for _ in range(2 * MAX_CONNECTIONS)]
    assert post(endpoint, body(1), "guessed") == 401
    assert post(endpoint, body(2), "") == 401
    assert post(endpoint, b"x" * (MAX_BODY_BYTES + 1)) == 413
    assert post(endpoint, body(50)) == 200
    # The path can be read more than once.
    assert post(endpoint, body(60)) == 200
    for connection in silent:
        connection.close()
    assert [event["done"] for event in source.poll(time.time())] == [50.0, 60.0]


def test_a_post_before_the_observer_starts_waits(endpoint: StatusListener) -> None:
    content = body(50)
    token = os.pread(endpoint.token, 64, 0).decode()
    early = socket.create_connection(("127.0.0.1", endpoint.port))
    early.sendall(
        f"POST / HTTP/1.1\r\nAuthorization: Bearer {token}\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content
    )
    source = HuggingFace(endpoint.descriptor, endpoint.token)
    early.settimeout(5)
    assert early.recv(100).startswith(b"HTTP/1.0 200")
    early.close()
    assert len(source.poll(1.0)) == 1


def test_posts_are_refused_when_nobody_will_answer(endpoint: StatusListener) -> None:
    """A post that waited would hold up its rank for 5 seconds, each time."""
    endpoint.stop_listening()
    endpoint.stop_listening()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", endpoint.port))


@pytest.mark.parametrize(
    ("inherited", "exceptions"),
    [
        ({}, None),
        ({"http_proxy": "http://proxy"}, "127.0.0.1"),
        ({"HTTP_PROXY": "http://proxy", "NO_PROXY": "a.b"}, "a.b,127.0.0.1"),
        ({"http_proxy": "http://proxy", "no_proxy": "127.0.0.1"}, None),
        ({"http_proxy": "http://proxy", "no_proxy": "*"}, None),
    ],
)
def test_posts_do_not_go_through_the_users_proxy(inherited, exceptions) -> None:
    variables = status_environment(inherited, port=4000, token_path=TOKEN_PATH)
    assert variables.pop("no_proxy", None) == exceptions
    assert variables == {
        "KUBEFLOW_TRAINER_SERVER_URL": "http://127.0.0.1:4000/",
        "KUBEFLOW_TRAINER_SERVER_TOKEN": TOKEN_PATH,
    }


def test_an_address_of_the_user_is_left_alone() -> None:
    inherited = {"KUBEFLOW_TRAINER_SERVER_URL": "https://cluster", "http_proxy": "http://proxy"}
    assert status_environment(inherited, port=4000, token_path=TOKEN_PATH) == {}
