"""Ranks of a standby have imported ahead, and differ from fresh ranks in nothing but the time."""

from __future__ import annotations

import json
import os
import re
import signal
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
from tests.entrypoints.ranks.test_prewarm import private_line

# What a script can see of its Python after its imports. The modules that the rank itself needs are imported by it, too.
PORTRAIT = """
    import _thread, gc, json, locale, os, random, signal, sys, threading, traceback, warnings, weakref
    import numpy
    import seen
    for name in [name for name in os.environ if name == "MASTER_PORT" or name.startswith("KUBEFLOW_TRAINER_")]:
        os.environ.pop(name)
    print(json.dumps({
        "environ": dict(os.environ), "path": sys.path, "argv": sys.argv, "flags": str(sys.flags), "cwd": os.getcwd(),
        "modules": sorted(name for name in sys.modules if not name.startswith("herringbone_entry.ranks.")),
        "files": sorted(str(getattr(module, "__file__", "")) for name, module in sys.modules.items()
                        if not name.startswith("herringbone_entry.ranks.")),
        "main": sorted(vars(sys.modules["__main__"])), "name": __name__, "file": __file__,
        "threads": [str(type(thread)) for thread in threading.enumerate()], "tasks": len(os.listdir("/proc/self/task")),
        "filters": list(map(str, warnings.filters)), "locale": locale.setlocale(locale.LC_ALL),
        "random": [random.getstate()[2], str(numpy.random.get_state()[3:])],
        "finders": [type(finder).__name__ for finder in sys.meta_path], "hook": sys.excepthook.__qualname__,
        "kind": [type(os.environ).__name__, os._exit.__qualname__], "seen": seen.SEEN,
        "leads": os.getpgrp() == os.getpid(), "session": os.getsid(0) == os.getsid(os.getppid()),
        "signals": [getattr(handler, "__qualname__", str(handler))
                    for handler in map(signal.getsignal, sorted(signal.valid_signals()))],
        "mask": list(signal.pthread_sigmask(signal.SIG_BLOCK, [])), "nice": os.nice(0),
        "descriptors": sorted(os.readlink(f"/proc/self/fd/{fd}").rstrip("0123456789[]:")
                              for fd in os.listdir("/proc/self/fd")
                              if os.path.exists(f"/proc/self/fd/{fd}")),
        "encoding": [sys.stdout.encoding, sys.stdout.errors, sys.stdout.line_buffering],
    }, sort_keys=True))
"""
# A library that looks at its surroundings when it is imported.
SEEN = """
    import os, sys
    main = sys.modules["__main__"]
    SEEN = [sys.argv, os.getcwd(), os.environ.get("OMP_NUM_THREADS"), main.__file__, os.environ["SM_CURRENT_HOST"]]
    os.environ["SEEN"] = "yes"
"""
MADE_AHEAD = """
    import os, slow
    line = float(open(os.environ["ROOT"] + "/line").read())
    print("pid", os.getpid(), "made", slow.MADE_IN, "ahead", slow.MADE_AT < line)
"""
SLOW = "import os, time\nMADE_IN, MADE_AT = os.getpid(), time.time()\n"


class Attempts:
    """One job, run in a fresh host first and then in its standby."""

    def __init__(self, job: Any, library: Path) -> None:
        self.job = job
        self._library = library
        library.mkdir()
        job.environment |= {"PYTHONPATH": str(library), "LC_ALL": "C.UTF-8"}
        job.environment |= {"HERRINGBONE_STARTS": str(job.run_folder / "starts-algo-1-")}

    def write(self, script: str, **modules: str) -> None:
        self.job.write(script, epochs=3)
        for name, text in modules.items():
            (self._library / f"{name}.py").write_text(textwrap.dedent(text))

    def fresh(self, **variables: str) -> list[str]:
        (self.job.root / "line").write_text(str(time.time()))
        return self.job.run(**variables)["algo-1"].rank_lines

    def standby(self, **variables: str) -> list[str]:
        """Run a standby that gets its line when its rank is ready."""
        reader, writer = os.pipe()
        self.job.descriptors[:] = [reader]
        self.job.start(HERRINGBONE_PRIVATE_FD=str(reader), HERRINGBONE_STANDBY="1")
        os.close(reader)
        deadline = time.monotonic() + 20.0
        while time.monotonic() < deadline and not self._waits():
            time.sleep(0.02)
        (self.job.root / "line").write_text(str(time.time()))
        os.write(writer, json.dumps({"environment": variables}).encode() + b"\n")
        ended = self.job.wait()["algo-1"]
        os.close(writer)
        assert (ended.code, self.job.survivors()) == (0, [])
        return ended.rank_lines

    def _waits(self) -> bool:
        """Say whether all of the standby's processes wait: for the line, and for the start message."""
        pids = self.job.survivors()
        calls = [Path(f"/proc/{pid}/syscall").read_text().split()[0] for pid in pids]
        # read and recvmsg of x86-64, and of arm64.
        return len(pids) > 1 and all(call in ("0", "47", "63", "212") for call in calls)


@pytest.fixture
def attempts(make_job, tmp_path: Path) -> Attempts:
    return Attempts(make_job(), tmp_path / "library")


def test_a_rank_that_has_imported_ahead_equals_a_fresh_one(attempts: Attempts) -> None:
    attempts.write(PORTRAIT, seen=SEEN)
    fresh, ahead = (json.loads(lines[-1].partition(" ")[2]) for lines in (attempts.fresh(), attempts.standby()))
    assert ahead == fresh


def test_imports_are_made_ahead_in_the_process_of_the_rank(attempts: Attempts) -> None:
    attempts.write(MADE_AHEAD, slow=SLOW)
    [line] = attempts.fresh()
    assert line.endswith("ahead False")
    [line] = attempts.standby()
    found = re.fullmatch(r"\[algo-1:0\] pid (\d+) made (\d+) ahead True", line)
    assert found is not None
    assert found[1] == found[2]


READS = "import os\nREAD = os.environ.get('MASTER_PORT')\n"
KEEPS = "import os\nREAD = {name: value for name, value in os.environ.items()}\n"
COPIES = "import os\nREAD = dict(os.environ)\n"
PASSES = "import os\nREAD = {name for name, value in os.environ.items() if value == 'never'}\n"


@pytest.mark.parametrize(
    ("module", "variables", "why"),
    [
        (READS, {}, "an imported module has read MASTER_PORT, which is another one now"),
        (KEEPS, {}, "an imported module has read KUBEFLOW_TRAINER_SERVER_TOKEN, which is another one now"),
        (COPIES, {}, "an imported module has read KUBEFLOW_TRAINER_SERVER_TOKEN, which is another one now"),
        (PASSES, {}, ""),
        ("", {"OMP_NUM_THREADS": "7"}, "OMP_NUM_THREADS is another one now"),
        ("raise RuntimeError('not yet')\n", {}, "`import slow` fails: RuntimeError: not yet"),
        (
            "import threading, time\nthreading.Thread(target=time.sleep, args=(0.2,), daemon=True).start()\n",
            {},
            "`import slow` changes more of this process than its modules",
        ),
        (
            "import signal\nsignal.signal(signal.SIGUSR1, print)\n",
            {},
            "`import slow` changes more of this process than its modules",
        ),
        ("import helper\n", {}, "a library imports helper, which is a module of the job's code"),
        ("import mxnet\n", {}, "`import slow` imports mxnet, which Herringbone completes when a script imports it"),
        (
            "from socket import getaddrinfo\n",
            {"HERRINGBONE_HOST_NAMES": "{}"},
            "`import slow` imports slow.getaddrinfo, which a rank replaces when its script starts",
        ),
        (
            "from os import _exit as leave\n",
            {},
            "`import slow` imports slow.leave, which a rank replaces when its script starts",
        ),
    ],
)
def test_a_rank_starts_a_new_python_where_early_imports_would_differ(
    attempts: Attempts, module: str, variables: dict[str, str], why: str
) -> None:
    if "raise" in module:
        # Only the import ahead fails.
        armed = 'os.environ["ROOT"] + "/armed"'
        module = f"if os.path.exists({armed}):\n    os.remove({armed})\n    {module}"
    attempts.write(MADE_AHEAD, slow=f"{SLOW}{module}", mxnet="")
    (attempts.job.base() / "code" / "helper.py").write_text("")
    if "HERRINGBONE_HOST_NAMES" in variables:
        attempts.job.environment |= variables
    attempts.fresh()
    (attempts.job.root / "armed").touch()
    *said, line = attempts.standby(**variables)
    assert said == ([f"[algo-1:0] herringbone: not all of the script's imports were made ahead: {why}"] if why else [])
    assert line.endswith(f"ahead {not why}")


def test_imports_before_an_unfit_one_are_made_ahead(attempts: Attempts) -> None:
    attempts.write(f"import slow\nimport bad\n{textwrap.dedent(MADE_AHEAD)}", slow=SLOW, bad="import mxnet\n", mxnet="")
    attempts.fresh()
    *_, line = attempts.standby()
    assert line.endswith("ahead True")


def test_a_standby_without_a_line_leaves_nothing(attempts: Attempts) -> None:
    attempts.write(MADE_AHEAD, slow=SLOW)
    attempts.fresh()
    job = attempts.job
    with private_line(job, None):
        job.start(HERRINGBONE_STANDBY="1")
        while len(job.survivors()) < 2:
            time.sleep(0.01)
    ended = job.wait()["algo-1"]
    assert (ended.code, ended.output, job.survivors(patience=5.0)) == (0, b"", [])


def test_a_standby_that_is_killed_leaves_nothing(attempts: Attempts) -> None:
    attempts.write(MADE_AHEAD, slow=SLOW)
    attempts.fresh()
    job = attempts.job
    with private_line(job, None):
        job.start(HERRINGBONE_STANDBY="1")
        while len(job.survivors()) < 2:
            time.sleep(0.01)
        job.processes["algo-1"].send_signal(signal.SIGKILL)
        job.wait()
    assert job.survivors(patience=5.0) == []
