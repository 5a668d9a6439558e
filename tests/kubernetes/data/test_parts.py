"""Code and channels that travel through the reader pod, whose commands run on this machine."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from herringbone.backends.kubernetes.backend import KubernetesBackend
from herringbone.backends.kubernetes.data import parts
from herringbone.backends.kubernetes.data.parts import remove_parts, send_parts
from herringbone.backends.kubernetes.data.reader import Reader
from herringbone.plan.plan import JobPlan
from herringbone.records.home import Home
from herringbone.system.processes import identity, place
from herringbone.system.progress import Progress
from herringbone_contract.errors import KubernetesError
from tests.kubernetes.data.local_api import LocalApi, LocalRun
from tests.kubernetes.data.test_reader import OWNER, RUNNING
from tests.kubernetes.planning import kubernetes_plan


@pytest.fixture
def reader(tmp_path) -> Reader:
    (tmp_path / "claim").mkdir()
    api = LocalApi({"/herringbone/results": tmp_path / "claim"}, lambda api, job: api.add_pod(job, **RUNNING))
    api.objects[OWNER] = {"metadata": {"name": "hb-digits", "uid": "a-uid", "labels": {}}}
    return Reader(api, kubernetes_plan(tmp_path))


def test_files_arrive_whole_and_go(reader, tmp_path):
    content = os.urandom(3 << 20)
    Path(tmp_path, "part").write_bytes(content)
    shown = io.StringIO()
    sent = {"sourcedir.tar.gz": tmp_path / "part", "channel.train.tar.gz": tmp_path / "part"}
    send_parts(reader, sent, Progress(shown))
    folder = tmp_path / "claim/input"
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == dict.fromkeys(sent, content)
    assert shown.getvalue() == "uploading 3.1 MB of code\nuploading 3.1 MB of channel train\n"
    remove_parts(reader)
    assert list((tmp_path / "claim").iterdir()) == []


def test_a_claim_that_takes_nothing_says_why(reader, tmp_path):
    (tmp_path / "claim").rmdir()
    Path(tmp_path, "part").write_bytes(b"a")
    with pytest.raises(KubernetesError, match=r"the claim of output_path takes nothing: exit code 1: mkdir: "):
        send_parts(reader, {"sourcedir.tar.gz": tmp_path / "part"}, Progress(io.StringIO()))


def test_what_a_killed_client_has_left_goes_with_the_next_job_of_that_name(reader, tmp_path):
    (tmp_path / "claim/input").mkdir()
    (tmp_path / "claim/input/channel.old.tar.gz.partial").write_text("half")
    Path(tmp_path, "part").write_bytes(b"a")
    send_parts(reader, {"sourcedir.tar.gz": tmp_path / "part"}, Progress(io.StringIO()))
    assert [path.name for path in (tmp_path / "claim/input").iterdir()] == ["sourcedir.tar.gz"]


def test_a_program_that_starts_behind_the_interrupt_makes_no_folder(reader, tmp_path):
    remove_parts(reader)
    with closing(reader.execution("/bin/sh", "-c", parts._WRITE, f"{parts._FOLDER}/a", stdin=True)) as late:
        late.end_input()
        assert late.exit_code
    assert list((tmp_path / "claim").iterdir()) == []


class Interrupted(LocalApi):
    """A pod of this machine, in which the user's Ctrl-C meets the first piece of an upload, if `is_cut`."""

    is_cut = True

    def stream(self, place: tuple[str, str, str], command: Sequence[str], *, stdin: bool = False, **_: Any) -> LocalRun:
        run = super().stream(place, command, stdin=stdin)
        if self.is_cut and stdin:
            run.end_input = cut  # type: ignore[method-assign]
        return run


def cut() -> None:
    raise KeyboardInterrupt


def backend_of(api: LocalApi, folder: Path) -> tuple[KubernetesBackend, JobPlan]:
    (folder / "claim").mkdir()
    # More than a Secret holds.
    plan = kubernetes_plan(folder)
    (folder / "train.py").write_text(f"# {os.urandom(2 << 20).hex()}")
    return KubernetesBackend(Home(folder / "home"), {}, connect=lambda _: api), plan  # type: ignore[arg-type,return-value]


def add_reader(api: LocalApi, made: dict[str, Any]) -> None:
    if made["metadata"]["name"] == "hb-digits-reader":
        api.add_pod(made, **RUNNING)


def test_ctrl_c_in_an_upload_leaves_nothing(tmp_path):
    api = Interrupted({"/herringbone/results": tmp_path / "claim"}, add_reader)
    backend, plan = backend_of(api, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        backend.submit(plan)
    assert list((tmp_path / "claim").iterdir()) == []
    assert OWNER not in api.objects
    assert backend._index.get("digits").status == "Stopped"


def test_rm_sweeps_what_a_second_ctrl_c_has_left(tmp_path, monkeypatch):
    api = Interrupted({"/herringbone/results": tmp_path / "claim"}, add_reader)
    backend, plan = backend_of(api, tmp_path)
    monkeypatch.setattr(parts, "remove_parts", lambda _: cut())
    with pytest.raises(KeyboardInterrupt):
        backend.submit(plan)
    assert [path.name for path in (tmp_path / "claim").iterdir()] == ["input"]
    # Its objects are gone, which the ConfigMap owned, and a pod needs an owner.
    assert OWNER not in api.objects
    api.objects.clear()
    monkeypatch.undo()
    assert backend.forget(backend._index.get("digits")) == ""
    assert list((tmp_path / "claim").iterdir()) == []
    assert OWNER not in api.objects


def test_a_killed_upload_goes_with_the_next_look(tmp_path):
    api = Interrupted({"/herringbone/results": tmp_path / "claim"}, add_reader)
    backend, plan = backend_of(api, tmp_path)
    api.is_cut = False
    backend.submit(plan)
    assert [path.name for path in (tmp_path / "claim/input").iterdir()] == ["sourcedir.tar.gz"]
    for name in [name for name in api.objects if "algo" in name]:
        del api.objects[name]
    api.objects[OWNER]["data"].pop("attempts", None)
    backend._index.update("digits", client=f"{identity(os.getpid())}1", place=place())
    assert backend.describe("digits").status == "Failed"
    assert list((tmp_path / "claim").iterdir()) == []
    assert OWNER not in api.objects


def test_another_job_of_that_name_is_neither_this_one_nor_removed_with_it(tmp_path):
    api = Interrupted({"/herringbone/results": tmp_path / "claim"}, add_reader)
    backend, plan = backend_of(api, tmp_path)
    api.is_cut = False
    backend.submit(plan)
    api.objects[OWNER]["metadata"]["uid"] = "of-another-job"
    record = backend.describe("digits")
    assert "its objects in namespace team-a were deleted" in str(record.failure)
    assert backend.forget(record) == ""
    assert OWNER in api.objects
