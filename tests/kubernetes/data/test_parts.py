"""Code and channels that travel through the reader pod, whose commands run on this machine."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from herringbone.backends.kubernetes.data.parts import remove_parts, send_parts
from herringbone.backends.kubernetes.data.reader import Reader
from herringbone.system.progress import Progress
from herringbone_contract.errors import KubernetesError
from tests.kubernetes.data.local_api import LocalApi
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
    parts = {"sourcedir.tar.gz": tmp_path / "part", "channel.train.tar.gz": tmp_path / "part"}
    send_parts(reader, parts, Progress(shown))
    folder = tmp_path / "claim/input"
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == dict.fromkeys(parts, content)
    assert shown.getvalue() == "uploading 3.1 MB of code\nuploading 3.1 MB of channel train\n"
    remove_parts(reader)
    assert list((tmp_path / "claim").iterdir()) == []


def test_a_claim_that_takes_nothing_says_why(reader, tmp_path):
    (tmp_path / "claim/input").write_text("a file in the place of the folder")
    Path(tmp_path, "part").write_bytes(b"a")
    with pytest.raises(KubernetesError, match=r"code cannot be written into the claim of output_path: .*exists"):
        send_parts(reader, {"sourcedir.tar.gz": tmp_path / "part"}, Progress(io.StringIO()))
