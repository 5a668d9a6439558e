"""Standbys: the next attempt begins in processes that have started ahead, and nothing of them is left."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from herringbone.backends.process.backend import ProcessBackend
from herringbone.controller.hosts import Host
from herringbone.controller.spares import standby
from herringbone.controller.spares.standby import Standbys
from herringbone.records.home import Home
from herringbone.system.processes import free_memory

from .test_controller import submit, texts
from .test_retry import LOSE_HOST, TRAINS, weights

EARLY = (
    sys.executable,
    "-c",
    "from herringbone.controller.spares import standby; standby._AFTER_SECONDS = 0.2\n"
    "from herringbone.controller.__main__ import main; main()",
)
# Waits until its host's standby has a rank that waits for its start message, and then does as `FAULT` says.
WAITS = f"""
import os, time
import slow
host = os.environ["SM_CURRENT_HOST"]
def waits(host):
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            variables = open(f"/proc/{{name}}/environ").read()
            if "HERRINGBONE_REPORT_FD" in variables and f"/hosts/{{host}}/" in variables and JOB in variables:
                # recvmsg of x86-64 and of arm64: a rank that runs is never in it.
                if open(f"/proc/{{name}}/syscall").read().split()[0] in ("47", "212"):
                    return True
        except (OSError, IndexError):
            pass
    return False
JOB = os.environ["TRAINING_JOB_NAME"]
first = not os.path.exists(os.environ["SM_CHECKPOINT_DIR"] + "/" + host + ".tried")
while first and not (waits("algo-1") and waits("algo-2")):
    time.sleep(0.05)
{TRAINS}
"""
SLOW = "import os\nTRIED = os.environ.get('STEPS')\n"


@pytest.fixture
def early(home: Home) -> ProcessBackend:
    """`local_process` whose controllers start standbys at once."""
    return ProcessBackend(home, (sys.executable, "-m", "herringbone_entry"), controller=EARLY)


@pytest.mark.parametrize("fault", [LOSE_HOST, "os.kill(os.getpid(), signal.SIGKILL)"])
def test_the_next_attempt_begins_in_standbys_and_reaches_the_same_weights(
    script, early: ProcessBackend, running, fault: str, tmp_path: Path
) -> None:
    script(WAITS)
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "slow.py").write_text(SLOW)
    environment = {"FAULT": fault, "PYTHONPATH": str(tmp_path / "library")}
    options = {"max_retry_attempts": 2, "log_policies": {"from step 0": "restart"}}
    job = submit(early, instance_count=2, environment=environment, **options).wait(timeout=60)
    assert (job.status, job.failure) == ("Completed", None)
    for host in ("algo-1", "algo-2"):
        lines = texts(job, host=host)
        assert lines.count("this attempt begins in a standby, whose ranks' Pythons run already") == 1
        assert not [line for line in lines if "not all of the script's imports" in line]
    script(TRAINS)
    leave_no_trace = "(base / 'model' / 'of-a-broken-attempt').unlink()"
    undisturbed = submit(early, job_name="b", instance_count=2, environment={"FAULT": leave_no_trace}).wait(timeout=60)
    assert weights(job) == weights(undisturbed)
    assert running() == []


HOOKS = """
import glob, os, sys
import torch
import torch.distributed as dist
import torch.optim
from torch.optim import optimizer
store = sys.modules["torch.distributed.rendezvous"].TCPStore
print("hooks", store.__qualname__, len(optimizer._global_optimizer_post_hooks), len(sys.meta_path),
      len(glob.glob(f"{os.path.dirname(os.environ['HERRINGBONE_EVENTS'])}/wake-{os.getpid()}")),
      len(os.listdir("/proc/self/task")), hash(tuple(name for name in sorted(sys.modules)
      if not name.startswith("herringbone_entry") and name not in ("traceback", "json", "pathlib"))), flush=True)
dist.init_process_group("gloo")
ones = torch.ones(2)
dist.all_reduce(ones)
print("sum", ones.tolist(), flush=True)
"""


def test_hooks_into_torch_are_those_of_a_fresh_rank(script, early: ProcessBackend, running) -> None:
    pytest.importorskip("torch")
    script(HOOKS + WAITS.replace("import slow", ""))
    environment = {"FAULT": "os.kill(os.getpid(), signal.SIGKILL)", "PYTHONHASHSEED": "0"}
    options = {"max_retry_attempts": 2, "log_policies": {"from step 0": "restart"}, "environment": environment}
    distribution = {"torch_distributed": {"enabled": True}}
    job = submit(early, instance_count=2, distribution=distribution, **options).wait(timeout=120)
    assert (job.status, job.failure) == ("Completed", None)
    for host in ("algo-1", "algo-2"):
        lines = texts(job, host=host)
        assert not [line for line in lines if "not all of the script's imports" in line]
        assert "this attempt begins in a standby, whose ranks' Pythons run already" in lines
        hooks = [line for line in lines if line.startswith("hooks ")]
        assert (len(hooks), len(set(hooks)), lines.count("sum [2.0, 2.0]")) == (2, 1, 2)
    assert running() == []


class Process(Host):
    """A host without a process; `said` are the lines of its log."""

    def __init__(self, name: str, pid: int = 1 << 22) -> None:
        self.said: list[str] = []
        log = SimpleNamespace(say=lambda text, _now: self.said.append(text))
        super().__init__({"name": name, "base": ""}, log)  # type: ignore[arg-type]
        self.pid = pid


@pytest.fixture
def standbys(tmp_path: Path) -> Standbys:
    numbers = iter(range(10**7, 2 * 10**7))
    standbys = Standbys(str(tmp_path), lambda host: Process(host.name, next(numbers)))
    standbys.hosts = [Process("algo-1"), Process("algo-2")]  # type: ignore[attr-defined]
    standbys.begin(standbys.hosts)  # type: ignore[attr-defined]
    return standbys


def start(standbys: Standbys, *names: str) -> None:
    for name in names:
        Path(f"{standbys.starts(name)}0").touch()
    standbys.act()


def test_hosts_whose_ranks_have_started_get_standbys(standbys: Standbys) -> None:
    assert time.monotonic() < standbys.due < time.monotonic() + 6
    standbys.act()
    # Packages are installed, or mpirun starts the ranks: later, and less often.
    assert (standbys.pids, standbys.due > time.monotonic() + 6) == (set(), True)
    start(standbys, "algo-2")
    # The other host's ranks may start later.
    assert (len(standbys.pids), standbys.due > time.monotonic() + 15) == (1, True)
    start(standbys, "algo-1")
    assert (len(standbys.pids), standbys.due) == (2, float("inf"))
    assert standbys.take("algo-1") is not None
    assert standbys.take("algo-1") is None
    assert len(standbys.pids) == 1


def test_a_standby_that_dies_is_said_and_replaced_twice(standbys: Standbys) -> None:
    said = []
    standbys._hosts = standbys._hosts[:1]
    while standbys.due != float("inf"):
        start(standbys, "algo-1")
        for pid in standbys.pids:
            host = standbys._standbys["algo-1"]
            reader, writer = os.pipe()
            os.write(writer, b"MemoryError\n")
            os.close(writer)
            host.output = reader
            standbys.reaped(pid)
            said += host.said  # type: ignore[attr-defined]
    assert said == [
        "[algo-1] its standby has ended: MemoryError; another one follows",
        "[algo-1] its standby has ended: MemoryError; another one follows",
        "[algo-1] its standby has ended: MemoryError; no other one follows, so a restart imports again",
    ]


def test_there_is_no_standby_where_memory_is_short(standbys: Standbys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standby, "free_memory", lambda: 3 << 30)
    start(standbys, "algo-1", "algo-2")
    assert len(standbys.pids) == 2
    standbys.end()
    monkeypatch.setattr(standby, "free_memory", lambda: 2 << 30)
    standbys.act()
    assert standbys.pids == set()
    assert standbys._hosts[0].said == [  # type: ignore[attr-defined]
        "[algo-1] no standby for another attempt: 2 ranks may need 1536 MiB more, and half of the free memory is 1024 "
        "MiB; a restart imports again"
    ]


def test_free_memory_is_known_here() -> None:
    free = free_memory()
    assert free is not None
    assert 1 << 20 < free < 1 << 50
