"""Requests of clients: what is one, what is none, and for which hosts."""

import pytest

from herringbone_contract.events.requests import MAX_REQUEST_BYTES, encode, is_for, parse

REQUEST = {"id": "00ff00ff00ff00ff", "kind": "debug", "rank": 1}


def test_a_request_survives_its_way():
    assert parse(encode(REQUEST)) == REQUEST
    assert encode(REQUEST).count(b"\n") == 1


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"no JSON",
        b"[1]",
        b'{"kind":"debug"}',
        b'{"id":"../../../../etc","kind":"debug"}',
        b'{"id":"00ff00ff00ff00ff","kind":"rm -rf"}',
        b'{"id":"00ff00ff00ff00ff","kind":"debug","hosts":"algo-1"}',
        b'{"id":"00ff00ff00ff00ff","kind":"debug","hosts":[1]}',
        b"[" * 3000,
        b'{"id":"00ff00ff00ff00ff","kind":"debug","x":"%s"}' % (b"x" * MAX_REQUEST_BYTES),
        b"\xff\xfe",
    ],
)
def test_what_is_no_request_is_refused(line):
    assert parse(line) is None


def test_what_is_no_request_is_not_sent():
    with pytest.raises(ValueError, match="this is no request"):
        encode({"id": "1", "kind": "debug"})


def test_a_request_may_name_its_hosts():
    assert is_for(REQUEST, "algo-1")
    assert is_for({**REQUEST, "hosts": ["algo-2"]}, "algo-2")
    assert not is_for({**REQUEST, "hosts": ["algo-2"]}, "algo-1")
