"""A rank resolves the names in SM_HOSTS that no name server knows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.entrypoints.conftest import free_port

from herringbone_entry.ranks import host_names
from herringbone_entry.supervisor.host_register import HostRegister

NAMES = {"HERRINGBONE_HOST_NAMES": '{"algo-1": "127.0.0.1"}'}
SOCKETS = """
import socket
assert socket.gethostbyname("algo-1") == socket.getaddrinfo("algo-1", 80)[0][4][0] == "127.0.0.1"
server = socket.socket()
server.bind(("algo-1", 0))
server.listen()
socket.create_connection(("algo-1", server.getsockname()[1]), timeout=9)
socket.socket().connect(("algo-1", server.getsockname()[1]))
assert socket.getaddrinfo(None, 80, socket.AF_INET)[0][4][0] == "127.0.0.1"
"""
CHILD = """
import os, subprocess, sys
os.environ["MASTER_ADDR"] = os.environ["OTHER"] = "algo-1"
child = "import os; print(os.environ['MASTER_ADDR'], os.environ['OTHER'])"
print(subprocess.run([sys.executable, "-c", child], capture_output=True, text=True).stdout, end="")
"""
STORE = """
import sys
import torch.distributed as dist

dist.TCPStore("algo-1", 0, is_master=True).set("a", "b")
store = dist.TCPStore(host_name="algo-1", port=0, is_master=True)
dist.init_process_group("gloo", init_method="tcp://algo-1:" + sys.argv[1], rank=0, world_size=1)
"""


def run(text: str, *arguments: str, **variables: str) -> str:
    variables = {**os.environ, **NAMES, "PYTHONPATH": host_names.CHILD_PYTHON, **variables}
    command = [sys.executable, "-c", text, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env=variables).stdout


def test_another_module_of_this_start_is_imported_as_well(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('mine')")
    paths = f"{host_names.CHILD_PYTHON}{os.pathsep}{tmp_path}"
    assert run("import sitecustomize; print(sitecustomize.__file__)", PYTHONPATH=paths).split() == [
        "mine",
        str(tmp_path / "sitecustomize.py"),
    ]


def test_python_resolves_the_names() -> None:
    run(SOCKETS)


def test_children_get_an_address_as_the_master() -> None:
    assert run(CHILD) == "127.0.0.1 algo-1\n"


def test_torch_resolves_the_names() -> None:
    pytest.importorskip("torch")
    run(STORE, str(free_port()))


@pytest.mark.parametrize(
    ("across", "unknown", "names"),
    [
        (False, [], {"algo-1": "127.0.0.1", "algo-2": "127.0.0.1"}),
        (True, [], {}),
        (True, ["algo-1"], {"algo-1": "10.0.0.1", "algo-2": "10.0.0.2"}),
    ],
)
def test_names_that_a_host_does_not_know_are_given_to_ranks(
    across: bool, unknown: list[str], names: dict[str, str]
) -> None:
    register = HostRegister(["algo-1", "algo-2"], across=across)
    for number, host in enumerate(register.hosts, 1):
        register.add_facts(host, {"address": f"10.0.0.{number}", "unknown": unknown, "known": {}, "wall": 0.0}, 0.0)  # type: ignore[typeddict-item]
        ready = {"processes": 1, "port": 7000, "reduce_port": 7001, "tensorflow": (), "server_port": None}
        register.add_ready(host, ready)  # type: ignore[arg-type]
    assert register.rendezvous().names == names
