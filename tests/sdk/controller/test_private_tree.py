"""Jobs of `local_process` whose scripts name `/opt/ml` read and write their own tree there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from herringbone import Estimator, JobFailedError
from herringbone.code.reproducible import write_tar, zipped
from herringbone.controller import private_tree

RESUMES = """
import os, pathlib
file = pathlib.Path("/opt/ml/checkpoints/step")
file.parent.mkdir(parents=True, exist_ok=True)
print("resumes" if file.exists() else "begins", os.environ["SM_CHECKPOINT_DIR"])
file.write_text("7")
"""


def test_only_code_and_settings_that_name_it_get_it(tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text("print(1)")
    assert not private_tree.names_opt_ml(str(tmp_path), ["--out=/opt/other"])
    assert private_tree.names_opt_ml(str(tmp_path), ["--out=/opt/ml/model"])
    (code / "train.py").write_text("open('/opt/ml/model/w')")
    assert private_tree.names_opt_ml(str(tmp_path), [])
    (code / "train.py").unlink()
    (code / "sourcedir.tar.gz").write_bytes(b"packed")
    assert private_tree.names_opt_ml(str(tmp_path), [])


@pytest.mark.parametrize(
    ("code", "names_it"),
    [
        ({"train.py": "print(1)"}, False),
        ({"train.py": "print(1)", "lib/a.py": "#" * 70_000 + "open('/opt/ml/model/w')"}, True),
        ({"train.py": "print(1)", "wheels/a-1.0-py3-none-any.whl": "packed"}, True),
        ({"train.py": "#" * (5 << 20)}, True),
        (None, True),
    ],
)
def test_packed_code_is_searched(tmp_path: Path, code: dict[str, str] | None, names_it: bool) -> None:
    """Packed code, and so all code of ssh jobs, was not searched: its script wrote to the machine's own `/opt/ml`."""
    archive = tmp_path / "sourcedir.tar.gz"
    archive.write_bytes(b"damaged")
    if code is not None:
        with archive.open("wb") as raw, zipped(raw, level=1) as compressed:
            for name, text in code.items():
                (tmp_path / "src" / name).parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / "src" / name).write_text(text)
            write_tar({name: partial((tmp_path / "src" / name).open, "rb") for name in code}, compressed)
    config = tmp_path / "ml" / "input" / "config"
    config.mkdir(parents=True)
    (config / "hyperparameters.json").write_text(json.dumps({"sagemaker_submit_directory": json.dumps(str(archive))}))
    assert private_tree.names_opt_ml(str(tmp_path / "ml"), []) == names_it


@pytest.mark.parametrize("path", ["/opt/ml/home/jobs/a", "/opt/ml/checkpoints"])
def test_a_tree_below_the_folder_itself_is_not_mounted_over(path: str, tmp_path: Path) -> None:
    assert not private_tree.is_possible(path, [])
    assert not private_tree.is_possible(str(tmp_path), [path])


def test_a_namespace_shows_the_tree_and_leaves_the_machine_as_it_is(tmp_path: Path) -> None:
    _needs_namespaces(tmp_path)
    before = sorted(os.listdir("/opt"))
    (tmp_path / "mark").write_text("")
    look = "import os; private_tree.enter({0!r}); print(os.listdir('/opt/ml'), sorted(os.listdir('/opt')))"
    code = "from herringbone.controller import private_tree; " + look.format(str(tmp_path))
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown == f"['mark'] {sorted({*before, 'ml'})}\n"
    assert sorted(os.listdir("/opt")) == before


def test_two_jobs_do_not_see_each_others_checkpoints(script, home, tmp_path: Path) -> None:
    _needs_namespaces(tmp_path)
    script(RESUMES)
    for name, kept in (("a", {}), ("b", {}), ("c", {"checkpoint_s3_uri": f"file://{tmp_path}/kept"})):
        job = Estimator("train.py", instance_type="local_process", **kept).fit(job_name=name, logs=False)
        base = home.job(name).host("algo-1")
        assert [line.text for line in job.logs(rank=0)] == [f"begins {base}/checkpoints"]
        assert (base / "checkpoints" / "step").read_text() == "7"
    assert (tmp_path / "kept" / "step").read_text() == "7"


def test_without_a_namespace_the_error_says_where_to_write(script, home) -> None:
    # The controller does not find the name in this code, so it makes no namespace, as on a system that refuses one.
    script("open(''.join(['/op', 't/ml/checkpoints/step']), 'w')")
    with pytest.raises(JobFailedError, match=r"this job's files are in .*use SM_CHECKPOINT_DIR"):
        Estimator("train.py", instance_type="local_process").fit(job_name="a", logs=False)


def _needs_namespaces(folder: Path) -> None:
    if not private_tree.is_possible(str(folder), []):
        pytest.skip("this system allows no mount namespaces")


def test_a_shells_variables_of_another_job_or_launcher_are_not_the_jobs(script, backend, monkeypatch) -> None:
    others = [
        "SM_CHANNEL_TRAINING",
        "SM_HP_X",
        "SLURM_PROCID",
        "OMPI_COMM_WORLD_RANK",
        "PMIX_RANK",
        "TORCHELASTIC_RUN_ID",
    ]
    for name in (*others, "RANK", "MINE"):
        monkeypatch.setenv(name, "7")
    script(f"import os; print([os.environ.get(name) for name in {[*others, 'RANK', 'MINE']}])")
    job = Estimator("train.py", instance_type="local_process").fit(logs=False)
    assert [line.text for line in job.logs()] == [str([*[None] * len(others), "0", "7"])]
