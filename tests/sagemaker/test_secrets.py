"""Check that planted secrets reach the service, and no log, no file and no command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sagemaker.account import IMAGE, described, make_role

boto3 = pytest.importorskip("boto3", reason="the extra aws is not installed")

PLANTED = {
    "AWS_SECRET_ACCESS_KEY": "planted-aws-secret",
    "AWS_SESSION_TOKEN": "planted-session-token",
    "WANDB_API_KEY": "planted-environment",
    "HF_TOKEN": "planted-hyperparameter",
}
PROGRAM = """
import logging, os, sys
logging.basicConfig(level=logging.INFO)
from herringbone import Estimator
def argv():
    return open("/proc/self/cmdline").read()
before = argv()
estimator = Estimator("train.py", image_uri=sys.argv[1], instance_type="ml.m5.large", role="training",
    hyperparameters={"hf_token": os.environ["HF_TOKEN"], "epochs": 3},
    environment={"WANDB_API_KEY": os.environ["WANDB_API_KEY"]})
print(estimator.plan("data"))
estimator.fit("data", wait=False, job_name="digits-1")
try:
    estimator.fit("data", wait=False, job_name="digits-1")
except Exception as error:
    print(repr(error))
assert argv() == before
"""


def test_planted_secrets_are_in_no_log_file_or_process_list(account, home, tmp_path):
    make_role(boto3.Session())
    (tmp_path / "train.py").touch()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.csv").write_text("1\n")
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, IMAGE],
        cwd=tmp_path,
        env={**os.environ, **PLANTED},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    answer = described(boto3.Session())
    assert json.loads(answer["HyperParameters"]["hf_token"]) == PLANTED["HF_TOKEN"]
    texts = [run.stdout, run.stderr, *(path.read_text("latin-1") for path in _files(home.path))]
    assert "digits-1" in "".join(texts)
    for secret in PLANTED.values():
        assert not any(secret in text for text in texts)


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]
