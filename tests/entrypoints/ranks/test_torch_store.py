"""Torch's rendezvous store listens where the other ranks call, and nowhere else."""

from __future__ import annotations

import socket
from types import ModuleType

import pytest
from tests.entrypoints.conftest import free_port

from herringbone_entry.ranks.torch_store import limit


def called(port: int, options: dict[str, object]) -> dict[str, object]:
    """Return the options with which torch's class is called when its rendezvous asks for a store."""
    module = ModuleType("rendezvous")
    taken: dict[str, object] = {}
    module.TCPStore = taken.update
    limit(module, "127.0.0.1", "algo-1", port)
    module.TCPStore(**options)
    return taken


def test_rank_0_gives_torch_a_socket_of_one_address() -> None:
    port = free_port()
    taken = called(port, {"host_name": "algo-1", "port": port, "is_master": True})
    assert (taken["host_name"], taken["port"]) == ("127.0.0.1", port)
    with socket.socket(fileno=taken["master_listen_fd"]) as listener:
        assert listener.getsockname() == ("127.0.0.1", port)


@pytest.mark.parametrize(
    "change",
    [{"is_master": False}, {"host_name": "elsewhere"}, {"port": 1}, {"master_listen_fd": 99}],
    ids=["no server", "another host", "another port", "a socket of the script"],
)
def test_other_stores_stay_as_they_are(change: dict[str, object]) -> None:
    port = free_port()
    options = {"host_name": "algo-1", "port": port, "is_master": True} | change
    assert called(port, options) == options


def test_a_port_that_is_taken_is_left_to_torch() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        options = {"host_name": "algo-1", "port": port, "is_master": True}
        assert called(port, options) == options


def test_a_torch_without_the_name_is_left_alone() -> None:
    limit(ModuleType("rendezvous"), "127.0.0.1", "algo-1", 1)


SCRIPT = """
    import os, pathlib, time, torch, torch.distributed as dist
    for _ in range(2):
        dist.init_process_group("gloo")
        total = torch.ones(1)
        dist.all_reduce(total)
        port = f":{int(os.environ['MASTER_PORT']):04X}"
        lines = [line.split() for name in ("tcp", "tcp6") for line in pathlib.Path("/proc/net", name).open()]
        # 0A: a socket that listens.
        listeners = [words[1] for words in lines if words[3] == "0A" and words[1].endswith(port)]
        print(int(total), listeners == [f"0100007F{port}"], listeners)
        dist.barrier()
        dist.destroy_process_group()
        # A rank that joins again at once may still reach the store that rank 0 is about to close.
        time.sleep(2 * (os.environ["RANK"] != "0"))
"""


def test_the_store_of_one_machine_listens_at_loopback_alone(make_job) -> None:
    # It listened at all addresses: a stranger read its keys and ended the job.
    pytest.importorskip("torch", exc_type=ImportError)
    job = make_job(hosts=2, GLOO_SOCKET_IFNAME="lo")
    job.write(SCRIPT, sagemaker_torch_distributed_enabled=True)
    ended = job.run(timeout=90.0)
    lines = [line for result in ended.values() for line in result.rank_lines]
    assert [" 2 True " in line for line in lines] == [True] * 4, [result.output for result in ended.values()]
