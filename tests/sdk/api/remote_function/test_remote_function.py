"""`herringbone.remote`: a function that runs as a job."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from herringbone import OptionError, PyTorch, RemoteError, remote
from herringbone.api.remote_function import bundle, script
from herringbone.api.remote_function.call import RemoteCall, RemoteTraceback
from herringbone.api.remote_function.modules import Loaded, local_modules
from herringbone_contract.constants import HostVariable
from herringbone_contract.errors import DistributionError, InputError, UnsupportedError

cloudpickle = pytest.importorskip("cloudpickle")


def test_the_jobs_script_and_the_supervisor_mean_the_same_variable():
    assert script.KEY_VARIABLE == HostVariable.REMOTE_KEY


def test_a_signature_holds_for_one_key_one_name_and_one_content():
    sealed = script.seal(b"key", "result", b"content")
    assert script.opened(b"key", "result", sealed) == b"content"
    assert script.opened(b"yek", "result", sealed) is None
    assert script.opened(b"key", "error-0", sealed) is None
    assert script.opened(b"key", "result", sealed + b"x") is None
    assert script.opened(b"key", "result", b"short") is None


def test_local_modules_are_those_below_the_folder_that_nobody_installed(tmp_path):
    loaded = [
        Loaded("helpers", (f"{tmp_path}/helpers.py",)),
        Loaded("package", (f"{tmp_path}/package",)),
        Loaded("other", ("/elsewhere/other.py",)),
        Loaded("installed", (f"{tmp_path}/.venv/lib/installed",)),
        Loaded("mine", (f"{tmp_path}/.local/lib/python3.11/site-packages/mine",)),
        Loaded("herringbone", (f"{tmp_path}/sdk/herringbone",)),
    ]
    found = local_modules(loaded, folder=tmp_path, installed=[f"{tmp_path}/.venv/lib"])
    assert [path.name for path in found] == ["helpers.py", "package"]


def test_a_large_call_names_its_largest_part():
    note = bundle.size_note(230 << 20, {"argument 0": 1, "variable table": 229 << 20})
    assert "230 MB" in note
    assert "variable table has 229 MB;" in note


def test_a_call_that_cannot_travel_names_the_part(tmp_path):
    lock = threading.Lock()

    def waits():
        return lock.locked()

    with pytest.raises(InputError, match=r"variable lock of .*waits cannot travel"):
        bundle.write_bundle(tmp_path, waits, (), {}, include_local_workdir=False, requirements=None)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"max_runs": 3}, OptionError, "did you mean max_run"),
        ({"hyperparameters": {"lr": 1}}, OptionError, "to the function as arguments"),
        ({"max_runtime_in_seconds": 3}, OptionError, "write max_run"),
        ({"distribution": {"mpj": {}}}, DistributionError, "mpj"),
        ({"on_interrupt": "kill"}, OptionError, "on_interrupt"),
        ({"dependencies": "environment.yml"}, OptionError, "no requirements.txt"),
        ({"container_entry_point": ["sh"]}, OptionError, "the function is the program"),
    ],
)
def test_a_wrong_setting_is_refused_where_it_is_written(settings, error, message):
    with pytest.raises(error, match=message):
        remote(**settings)(len)


def test_a_generator_is_refused():
    def counts():
        yield 1

    with pytest.raises(OptionError, match="counts is a generator"):
        remote(counts)


def test_without_cloudpickle_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(UnsupportedError, match="pip install cloudpickle"):
        remote(len)


def test_a_wrong_call_starts_no_job(home):
    with pytest.raises(TypeError, match="missing a required argument"):
        remote(lambda x: x)()
    assert not home.path.exists()


def ended(tmp_path, status, **files):
    """Return a job that is over and has left these files."""
    folder = tmp_path / script.RESULTS
    folder.mkdir()
    for name, content in files.items():
        (folder / name.replace("_", "-")).write_bytes(content)

    def raise_failure(*, log_shown):
        raise AssertionError("the job's own failure")

    job = SimpleNamespace(name="job-1", status=status, failure=None, download=lambda part, into: tmp_path)
    job.raise_failure = raise_failure if status == "Failed" else lambda log_shown: None
    return RemoteCall(job, b"key")


class Exploding:
    """A pickle that runs code."""

    def __reduce__(self):
        return (exec, ("raise SystemExit('the code of a pickle ran')",))


def test_a_result_without_the_jobs_signature_is_not_unpickled(tmp_path):
    sealed = script.seal(b"another key", "result", cloudpickle.dumps(Exploding()))
    with pytest.raises(RemoteError, match="'result' of its output is not signed with the job's key"):
        ended(tmp_path, "Completed", result=sealed).outcome()


def test_an_error_without_the_jobs_signature_is_not_unpickled(tmp_path):
    sealed = script.seal(b"key", "result", cloudpickle.dumps(Exploding()))
    with pytest.raises(RemoteError, match="'error-0' of its output is not signed"):
        ended(tmp_path, "Failed", error_0=sealed).outcome()


def test_a_job_without_a_result_says_why(tmp_path):
    with pytest.raises(RemoteError, match="is Stopped and has no result: it was stopped"):
        ended(tmp_path, "Stopped").outcome()


def test_an_error_that_cannot_be_pickled_keeps_its_text(tmp_path):
    sealed = script.seal(b"key", "error-0", cloudpickle.dumps((None, "Traceback of the job")))
    with pytest.raises(RemoteError, match="Traceback of the job"):
        ended(tmp_path, "Failed", error_0=sealed).outcome()


def test_another_python_is_refused_before_anything_is_unpickled(tmp_path):
    header = {"python": [2, 7], "name": "f", "paths": [], "sources": {}}
    (tmp_path / script.HEADER).write_text(json.dumps(header))
    with pytest.raises(RuntimeError, match=r"Python 2\.7 wrote the function f"):
        script.main(tmp_path)


@pytest.mark.e2e
def test_rank_0s_value_comes_back_and_errors_have_the_functions_frames(home, capfd):
    Path("local_part.py").write_text("def twice(x): return 2 * x\n")
    sys.path.insert(0, str(Path.cwd()))
    try:
        import local_part  # type: ignore[import-not-found]
    finally:
        sys.path.pop(0)
    scale = 3

    @remote(estimator=PyTorch, instance_count=2, environment={"MINE": "mine"}, base_job_name="times")
    def times(x, *, divide_by=1):
        import os
        import re
        import sys

        assert "HERRINGBONE_REMOTE_KEY" not in os.environ
        # A process's first environment stays in its memory, which the kernel shows to every process of this user.
        frame, seen = sys._getframe(), ""
        for pid in (os.getpid(), os.getppid()):
            seen += Path(f"/proc/{pid}/environ").read_text(errors="replace")
        while frame is not None:
            seen, frame = f"{seen} {frame.f_locals if frame.f_code.co_name != 'times' else ''}", frame.f_back
        assert not re.search("[0-9a-f]{64}", seen)
        return local_part.twice(x) * scale // divide_by, os.environ["RANK"], os.environ["MINE"]

    try:
        assert times(7) == (42, "0", "mine")
        call = times.submit(7, divide_by=0)
        with pytest.raises(ZeroDivisionError) as caught:
            call.result(timeout=60)
    finally:
        del sys.modules["local_part"]
    assert isinstance(caught.value.__cause__, RemoteTraceback)
    # The user's own frame, with its line, and none of ours.
    assert "in times\n    return local_part.twice(x) * scale // divide_by" in caught.value.__cause__.text
    assert "herringbone_remote.py" not in caught.value.__cause__.text
    assert call.done()
    # The key is in no file of the job that stays, and not in what describes it.
    key = call._key.hex().encode()
    assert not [path for path in home.path.rglob("*") if path.is_file() and key in path.read_bytes()]
