"""Inputs that got past a decoder once: each gives a value, or an error of ours that can be printed."""

import json

import pytest

from herringbone.aws.location import parse_s3_uri
from herringbone.plan.inputs import local_path
from tests.campaigns.decoder_table import CONFIG, FAILURE, PARTITION, RESOURCES, all_decoders
from tests.campaigns.decoders import escaped

DEEP = '{"a":' * 3000
DEEP_VALUE = []
for _ in range(2000):
    DEEP_VALUE = [DEEP_VALUE]
LONG = "9" * 5000
FOUND = {
    "distribution": [
        # Two halves became another character on their way to the hosts.
        {"smdistributed": {"dataparallel": {"enabled": True, "helpers": "a\ud800\udcff"}}},
        {"mpi": {"enabled": True}, "instance_groups": ["a", "\ud800\udcff"]},
        {"mpi": {"enabled": True, "custom_mpi_options": "-x A=\ud800\udcff"}},
        {"smdistributed": {"modelparallel": {"enabled": True, "parameters": {"partition_file": "\ud800\udcff"}}}},
        {"mpi": {"enabled": "\ud800"}},
        {"mpi": {"enabled": DEEP_VALUE}},
        {"mp\ud800i": {}},
        # The search for a similar key took half a minute.
        {'{"a":' * 3000: {}},
        {"mpi": {"enabled": True, '{"a":' * 3000: 1}},
    ],
    "options": [
        {"git_config": {"repo": "https://ex[mple.com/a.git"}},
        {"git_config": {"repo": "https://[1:2/a.git", "token": "a"}},
        {"metric_definitions": "\ud800"},
        {"tags": DEEP_VALUE},
        {"shm_size": f"{LONG}g"},
        {"metric_definitions": [{"Name": "a", "Regex": f"a{{{LONG}}}"}]},
        {"x" * 100_000: 1},
    ],
    "inputs": ["file://da]ta://x", "~no-such-user-here/data", "a://[b"],
    "script arguments": ["--shift -\ud800path", "--\ud800 3", "--a=\ud800"],
    "partition files": [
        json.dumps({**PARTITION, "memory_cap": 10**400}).encode(),
        json.dumps({**PARTITION, "loads": [{**PARTITION["loads"][0], "memory_bytes": 10**400}] * 2}).encode(),
        json.dumps(PARTITION).replace('"moves"', DEEP).encode(),
    ],
    "resource configs": [
        DEEP.encode(),
        json.dumps({**RESOURCES, "current_host": "²", "hosts": ["²", "a²"]}).encode(),
        json.dumps({**RESOURCES, "current_host": f"algo-{LONG}", "hosts": [f"algo-{LONG}", "algo-1"]}).encode(),
        json.dumps({**RESOURCES, "network_interface_name": 5}).encode(),
    ],
    "files of a host": [DEEP],
    "failures": [
        DEEP.encode(),
        *(
            json.dumps({**json.loads(FAILURE.to_json()), name: value}).encode()
            for name, value in (
                ("exit_code", "x"),
                ("rank", [1]),
                ("message", 5),
                ("host", 0),
                ("host", []),
                ("log_tail", [1]),
            )
        ),
    ],
    "run logs": [
        f":::MLLOG {DEEP}",
        ':::MLLOG {"key": "a", "event_type": "x", "time_ms": 1, "value": 1' + "0" * 400 + "}",
    ],
    "log lines": [
        f"2026-11-21T11:44:37.123456Z [algo-1:{LONG}] x".encode(),
        b"cut",
        b"",
        b"2026-99-99T11:44:37.123456Z [algo-1:0] x",
    ],
    "docker settings": [
        DEEP,
        *(
            json.dumps({**CONFIG, name: value})
            for name, value in (
                *(("auths", 1.5), ("auths", {"registry:5000": []}), ("auths", {"registry:5000": {"auth": {}}})),
                *(("auths", {"registry:5000": {"auth": "-o"}}), ("auths", {"registry:5000": {"auth": "é"}})),
                *(("credHelpers", [1]), ("proxies", "a"), ("proxies", {"default": [1]})),
            )
        ),
    ],
    "sinfo": ["gpu|4", "gpu|2:00:00|many|8|4000|gpu:2", f"gpu|2:00:00|{LONG}|8|4000|gpu:2", "gpu|1:2:3:4|4|8|4000|g"],
    "squeue": ["4|PENDING", "4|PENDING|BeginTime|often||/home|"],
    "sacct": ["4", "4||n1|/home"],
    "converted scripts": ["(" * 20_000, "x = " + "-" * 200_000 + "1", "a\0b"],
    "plain texts": [
        f"{LONG}d",
        f"{LONG}m",
        f"a=b:{LONG}",
        "tcp:a:²",
        f"tcp:a:{LONG}",
        f"rank {LONG} on a: exit code 1",
    ],
}


@pytest.mark.parametrize("name", FOUND)
def test_inputs_that_got_past_a_decoder_once(tmp_path, name):
    (decoder,) = [decoder for decoder in all_decoders(tmp_path) if decoder.name == name]
    assert [problem for given in FOUND[name] if (problem := escaped(decoder, given)) is not None] == []


def test_keys_of_s3_keep_every_character():
    """A question mark began a query, and the rest of the key was lost."""
    location = parse_s3_uri("s3://bucket/a?b#c/d.tar.gz")
    assert (location.bucket, location.key) == ("bucket", "a?b#c/d.tar.gz")


def test_other_schemes_are_not_on_this_machine(tmp_path):
    assert local_path("S3://bucket/x", base=tmp_path) is None
    assert local_path("FILE:///data", base=tmp_path).as_posix() == "/data"
