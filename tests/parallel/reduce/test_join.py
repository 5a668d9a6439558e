"""The rendezvous of ranks and servers, and the connections that they refuse."""

import contextlib
import os
import secrets
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from herringbone_contract.errors import ParallelError
from herringbone_contract.reduce_servers import ReduceServer
from herringbone_entry.channel.reserved_port import ReservedPort
from herringbone_parallel.core.sums.credits import Window
from herringbone_parallel.reduce.cores.messages import VERSION
from herringbone_parallel.reduce.elements import Element
from herringbone_parallel.reduce.join.listener import Acceptor, connect, listen
from herringbone_parallel.reduce.join.rails import addresses_of, rail_of
from herringbone_parallel.reduce.join.settings import Settings
from herringbone_parallel.reduce.join.topology import Topology
from herringbone_parallel.reduce.joining import join
from herringbone_parallel.reduce.server import Server
from tests.parallel.reduce.conftest import KINDS
from tests.waiting import wait_until

TOKEN = b"right"


@pytest.fixture
def rendezvous():
    port = ReservedPort()
    port.release()
    return "127.0.0.1", port.number


def settings(rank, rendezvous, **more):
    values = {
        "rank": rank,
        "size": 2,
        "host": f"host-{rank}",
        "rendezvous": rendezvous,
        "token": TOKEN,
        "join_timeout": 5.0,
        **more,
    }
    return Settings(**values)


def errors_of(*ranks):
    """Join all ranks at once; return each one's error message, or None."""

    def join_one(settings):
        try:
            with join(settings):
                return None
        except ParallelError as error:
            return str(error)

    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(join_one, ranks))


def test_missing_ranks_are_named(rendezvous):
    (error,) = errors_of(settings(0, rendezvous, size=4, join_timeout=0.5))
    assert error == "ranks 1, 2, 3 did not connect to 127.0.0.1 within 0.5 s"


def test_a_rank_with_another_token_is_refused_and_counted(rendezvous):
    zero, one = errors_of(settings(0, rendezvous, join_timeout=1.5), settings(1, rendezvous, token=b"wrong"))
    assert "rank 1 did not connect" in zero
    assert "1 connections without the job's token were refused" in zero
    assert "the two ends have different tokens" in one


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"wire": Element.FLOAT16}, "the format on the wire: as it is on rank 0, float16 on rank 1"),
        (
            {"window": Window(1 << 16, 2)},
            "the window: None on rank 0, Window(chunk_bytes=65536, chunks=2, message=96, few=None) on rank 1",
        ),
        ({"servers": (ReduceServer("x", "127.0.0.1", 9),)}, "the servers on helper hosts:  on rank 0, x=127.0.0.1:9"),
        ({"size": 3}, "their number: 2 on rank 0, 3 on rank 1"),
    ],
)
def test_settings_that_differ_are_named_on_both(rendezvous, other, named):
    for error in errors_of(settings(0, rendezvous), settings(1, rendezvous, **other)):
        assert f"ranks disagree on {named}" in error


def test_two_ranks_of_one_number(rendezvous):
    _, one, two = errors_of(settings(0, rendezvous, size=3, join_timeout=1.0), *[settings(1, rendezvous, size=3)] * 2)
    assert "rank 1 connected twice, from host-1 and from host-1" in f"{one}{two}"


def test_a_server_that_is_not_there_is_named(rendezvous):
    missing_server = (ReduceServer("algo-9", "127.0.0.1", rendezvous[1] + 1),)
    zero, one = errors_of(*(settings(rank, rendezvous, servers=missing_server, join_timeout=0.5) for rank in (0, 1)))
    for error in (zero, one):
        assert "the server on algo-9 cannot be reached at ('127.0.0.1'," in error


def test_a_server_refuses_and_counts_strangers():
    server = Server("algo-3", listen("127.0.0.1"), TOKEN, "python")
    try:
        with pytest.raises(ParallelError, match="different tokens"):
            connect(("127.0.0.1", server.port), "it", b"wrong", {}, time.monotonic() + 5)
        with socket.create_connection(("127.0.0.1", server.port)) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" + b"x" * 64)
            stranger.settimeout(5)
            with contextlib.suppress(ConnectionResetError):
                while stranger.recv(4096):
                    pass
        wait_until(lambda: server.stats()["refused"] >= 2, 5)
        assert server.stats()["refused"] == 2
        with pytest.raises(ParallelError, match="'fabric'"):
            connect(("127.0.0.1", server.port), "the server on algo-3", TOKEN, {}, time.monotonic() + 5)
    finally:
        server.close()


def test_an_acceptor_proves_itself_too():
    """A process that listens at the right address without the token learns nothing about it, and is refused."""
    impostor = listen("127.0.0.1")

    def answer():
        with impostor, impostor.accept()[0] as caller:
            caller.sendall(b"HBRD" + bytes([VERSION, 0, 0, 0]) + b"n" * 32 + b"p" * 32)
            while caller.recv(4096):
                pass

    answering = threading.Thread(target=answer)
    answering.start()
    with pytest.raises(ParallelError, match="it does not know this job's token"):
        connect(impostor.getsockname()[:2], "it", TOKEN, {}, time.monotonic() + 5)
    answering.join()


def test_an_error_of_admit_is_sent_to_the_caller():
    def admit(connection, hello):
        raise ParallelError(f"no {hello['what']} today")

    acceptor = Acceptor([listen("127.0.0.1")], TOKEN, "it", admit)
    with pytest.raises(ParallelError, match="no tea today"):
        connect(("127.0.0.1", acceptor.port), "it", TOKEN, {"what": "tea"}, time.monotonic() + 5)
    acceptor.close()


def test_rails_are_chosen_by_name(world):
    ranks = world("ab", rails=("lo",))
    ranks.run(lambda engine: engine.all_reduce(np.ones(5_000, np.float32)).wait(10))
    assert [rail_of(server, 1, 2) for server in range(4)] == [1, 0, 1, 0]
    with pytest.raises(ParallelError, match=r"rail 'eth77' is no network interface of this host. It has: .*lo"):
        addresses_of(["eth77"])
    with pytest.raises(ParallelError, match="RDMA device, which libfabric reaches: 'fabric:efa'"):
        addresses_of(["efa0"])


def test_hosts_are_told_apart_by_name():
    topology = Topology.of(["b", "a", "b", "b", "a"])
    assert topology.ranks == ((0, 2, 3), (1, 4))
    assert (topology.lanes, topology.carriers(1)) == (2, (2, 4))
    assert topology.label(4) == "rank 4 on a"


def test_settings_come_from_the_environment(tmp_path):
    (tmp_path / "token").write_bytes(secrets.token_hex(8).encode() + b"\n")
    environment = {
        "RANK": "1",
        "WORLD_SIZE": "2",
        "SM_CURRENT_HOST": "algo-1",
        "HERRINGBONE_REDUCE_MEET": "fd00::1:7601",
        "HERRINGBONE_REDUCE_TOKEN_FILE": str(tmp_path / "token"),
        "HERRINGBONE_REDUCE_WIRE": "bf16",
        "HERRINGBONE_REDUCE_RAILS": "eth0,eth1",
        "HERRINGBONE_REDUCE_SERVERS": "algo-3=10.0.0.5:7601",
        "HERRINGBONE_REDUCE": "python",
    }
    values = Settings.from_environment(environment)
    assert (values.rank, values.size, values.host, values.rendezvous) == (1, 2, "algo-1", ("fd00::1", 7601))
    assert (values.wire, values.rails, values.core) == (Element.BFLOAT16, ("eth0", "eth1"), "python")
    assert values.servers == (ReduceServer("algo-3", "10.0.0.5", 7601),)
    assert "token" not in repr(values)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"RANK": "2"}, "rank 2 of 2: ranks count from 0"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE=two: it is a number"),
        ({"HERRINGBONE_REDUCE_MEET": "here"}, "it is ADDRESS:PORT"),
        (
            {"HERRINGBONE_REDUCE_MEET": ""},
            "distribution has no smdistributed.dataparallel: add distribution={'smdistributed'",
        ),
        ({"HERRINGBONE_REDUCE_TOKEN_FILE": "/nowhere"}, "/nowhere cannot be read"),
        ({"HERRINGBONE_REDUCE_TOKEN_FILE": "/dev/null"}, "the job's token is empty"),
        ({"HERRINGBONE_REDUCE_WIRE": "fp32"}, "fp16 and bf16 are the 16-bit formats"),
        ({"HERRINGBONE_REDUCE_WIRE": "fp8"}, "elements of type 'fp8' cannot be summed"),
        ({"HERRINGBONE_REDUCE": "rust"}, "it is python or native"),
    ],
)
def test_settings_that_mean_nothing_are_named(tmp_path, change, named):
    (tmp_path / "token").write_bytes(b"x")
    environment = {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "HERRINGBONE_REDUCE_MEET": "127.0.0.1:7601",
        "HERRINGBONE_REDUCE_TOKEN_FILE": str(tmp_path / "token"),
    }
    with pytest.raises(ParallelError, match=named):
        Settings.from_environment(environment | change)


@pytest.mark.parametrize(
    ("buffer", "more", "named"),
    [
        (np.ones((4, 4), np.float32)[:, 1], {}, "contiguous and writeable"),
        (np.ones(4, np.complex64), {}, "'complex64' cannot be summed"),
        (np.ones(4, np.float32), {"count": 3}, "count 3 for an array of 4"),
        (np.ones(4, np.float32), {"op": "max"}, "op 'max': it is one of sum, average"),
        (np.ones(4, np.int32), {"op": "average"}, "only floating point can be averaged"),
        (np.ones(4, np.float64), {"wire": "fp16"}, "only float32 travels as fp16 or bf16"),
        (np.ones(4, np.float32), {"wire": "int32"}, "only float32 travels as fp16 or bf16"),
        (4096, {}, "an address needs `count` and `dtype`"),
        ([1.0], {}, "a numpy array or an address, not list"),
    ],
)
def test_buffers_that_cannot_be_summed(world, buffer, more, named):
    with pytest.raises(ParallelError, match=named):
        world("a").engines[0].all_reduce(buffer, **more)


@pytest.mark.parametrize("kind", KINDS)
def test_callbacks_and_a_closed_engine(world, kind):
    ranks = world("ab", kind=kind)
    called = threading.Event()
    numbers = []

    def work(engine):
        handle = engine.all_reduce(np.ones(10, np.float32))
        if engine.rank == 0:
            handle.add_callback(lambda done: (numbers.append(done.done()), called.set()))
        handle.wait(10)
        return handle

    first, _ = ranks.run(work)
    assert called.wait(5)
    assert numbers == [True]
    ranks.run(lambda engine: engine.close())
    assert first.done()
    with pytest.raises(ParallelError, match="closed"):
        ranks.engines[0].all_reduce(np.ones(1, np.float32))


def test_a_wait_can_end_before_the_sum(world):
    ranks = world("ab")
    handle = ranks.engines[0].all_reduce(np.ones(10, np.float32))
    with pytest.raises(TimeoutError, match=r"buffer 0 is not summed after 0\.1 s"):
        handle.wait(0.1)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_a_forked_child_leaves_the_rank_alone(world, kind):
    """Regression: a process forked by a data loader left in its rank's name, and waited for a thread that it lacks."""
    ranks = world("ab", kind=kind)
    engine = ranks.engines[0]
    child = os.fork()
    if child == 0:
        code = 1
        try:
            engine.all_reduce(np.ones(1, np.float32))
        except ParallelError as error:
            code = 0 if "forked from a rank" in str(error) else 2
        engine.close()
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    ranks.run(lambda engine: engine.all_reduce(np.ones(10, np.float32)).wait(10))
