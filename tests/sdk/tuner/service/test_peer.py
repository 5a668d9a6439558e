"""Compare the requests of tuning jobs with those of the released `sagemaker` package, the peer.

`cases.json` holds calls of HyperparameterTuner, and `golden/` the requests that `sagemaker` 2.257.7 sent for them. The
test marked `peer` runs the package again; it needs the environment that `tests/peer/setup` makes. In a case, `differs`
gives the reason for each field that differs. `we_refuse` is a part of Herringbone's message for a call that only the
peer accepts, and `they_refuse` a part of the peer's.
"""

import json
import subprocess
from pathlib import Path

import pytest
from tests.sdk.tuner.service.calls import CASES, own_request

from herringbone_contract.errors import UsageError

FOLDER = Path(__file__).parent
PEER_PYTHON = FOLDER.parents[3] / ".venv-peer" / "bin" / "python"

# The peer uploads the code for each job, below the job's name. Herringbone names it by its content and uploads it once.
CODE = (
    "StaticHyperParameters.sagemaker_submit_directory",
    "InputDataConfig.code.DataSource.S3DataSource.S3Uri",
)


@pytest.fixture(autouse=True)
def project_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()


def cases(*kinds):
    """Return the cases of these kinds; without kinds, the cases that both accept."""
    selection = [case for case in CASES if {"we_refuse", "they_refuse"} & case.keys() == set(kinds)]
    return pytest.mark.parametrize("case", selection, ids=[case["name"] for case in selection])


def peer_request(case):
    return json.loads((FOLDER / "golden" / f"{case['name']}.json").read_text(encoding="utf-8"))


# The members of a list are compared by this name, because their order has no meaning.
NAMES_OF_MEMBERS = ("ChannelName", "DefinitionName", "HyperParameterTuningJobName", "Key", "Name")


def fields(value, path=""):
    """Yield the path and the value of every field."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        value = {next(entry[name] for name in NAMES_OF_MEMBERS if name in entry): entry for entry in value}
    if isinstance(value, dict) and value:
        for name, member in value.items():
            yield from fields(member, f"{path}.{name}" if path else name)
    else:
        yield path, value


def differing(own, peer):
    own, peer = dict(fields(own)), dict(fields(peer))
    return {path for path in own.keys() | peer.keys() if own.get(path) != peer.get(path)}


@cases()
def test_requests_differ_only_where_the_case_says_so(case):
    own, peer = own_request(case), peer_request(case)
    reasons = case.get("differs", {})
    paths = differing(own, peer)
    code = {path for path in paths if path.endswith(CODE)} - reasons.keys()
    assert paths - code == reasons.keys()
    for path in code:
        assert dict(fields(own))[path].strip('"').endswith("/herringbone/code/abc/sourcedir.tar.gz")
        assert dict(fields(peer))[path].strip('"').endswith("/digits-1/source/sourcedir.tar.gz")


@cases("we_refuse")
def test_calls_that_only_herringbone_refuses(case):
    assert "error" not in peer_request(case)
    with pytest.raises(UsageError, match=case["we_refuse"]):
        own_request(case)


@cases("they_refuse")
def test_calls_that_only_the_peer_refuses(case):
    assert case["they_refuse"] in peer_request(case)["error"]
    assert own_request(case)["HyperParameterTuningJobName"] == "digits-1"


def test_every_case_has_a_golden_request_and_every_difference_a_reason():
    assert len(CASES) == len({case["name"] for case in CASES}) >= 20
    assert {path.stem for path in (FOLDER / "golden").iterdir()} == {case["name"] for case in CASES}
    assert all(reason for case in CASES for reason in case.get("differs", {}).values())


def test_the_service_model_allows_all_own_requests():
    pytest.importorskip("botocore", reason="the extra aws is not installed")
    from herringbone.backends.sagemaker.service_model import check_request

    for case in CASES:
        if "we_refuse" not in case:
            check_request(own_request(case), operation="CreateHyperParameterTuningJob")


@pytest.mark.peer
@pytest.mark.skipif(not PEER_PYTHON.exists(), reason="run tests/peer/setup first: the peer is 310 MB")
def test_the_peer_still_sends_the_golden_requests(tmp_path):
    subprocess.run([PEER_PYTHON, FOLDER / "ask_peer.py", tmp_path / "recorded"], check=True, timeout=110)
    for case in CASES:
        recorded = json.loads((tmp_path / "recorded" / f"{case['name']}.json").read_text())
        assert differing(recorded, peer_request(case)) == set(), case["name"]
