"""Conformance with the released peer: the same call asks for the same job, or differs as we chose.

`cases.json` holds estimator calls, `golden/` what `sagemaker` 2.257.7 sent for each. The test marked `peer` asks the
package again; it needs the environment that `tests/peer/setup` makes. In a case, `differs` says for each field why ours
is another, and `we_refuse` is a phrase of our message for what the peer sends.
"""

import json
import subprocess
from pathlib import Path

import pytest

import herringbone
from herringbone.backends.sagemaker.request import AccountNames, training_job_request
from herringbone.backends.sagemaker.service_model import check_request
from herringbone.estimators.inputs import ShuffleConfig
from herringbone_contract.errors import OptionError
from tests.sagemaker.planning import planned

HERE = Path(__file__).parent
PEER_PYTHON = HERE.parent.parent / ".venv-peer" / "bin" / "python"
CASES = json.loads((HERE / "cases.json").read_text(encoding="utf-8"))
NAMES = AccountNames("us-west-2", "bucket", "arn:aws:iam::123456789012:role/train", code_hash="abc")

# Only the peer sends these, whatever it was given: three services that we have no part in. Who wants one of them
# writes it into extra_request.
NOT_OURS = (
    "AlgorithmSpecification.EnableSageMakerMetricsTimeSeries",
    "DebugHookConfig.CollectionConfigurations",
    "DebugHookConfig.S3OutputPath",
    "ProfilerConfig.DisableProfiler",
    "ProfilerConfig.S3OutputPath",
)
# The peer uploads the code for each job anew, below the job's name; ours lies under its content, and is uploaded once.
CODE = ("HyperParameters.sagemaker_submit_directory", "InputDataConfig.code.DataSource.S3DataSource.S3Uri")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()


def cases(*, refused):
    chosen = [case for case in CASES if ("we_refuse" in case) == refused]
    return pytest.mark.parametrize("case", chosen, ids=[case["name"] for case in chosen])


def ours(case):
    kind = getattr(herringbone, case["estimator"])
    # Not given is None here: a script of `planned` would stand in for it.
    arguments = {"entry_point": None, **case["arguments"]}
    return training_job_request(planned(inputs(case.get("inputs")), kind=kind, **arguments), NAMES)


def theirs(case):
    return json.loads((HERE / "golden" / f"{case['name']}.json").read_text(encoding="utf-8"))


def inputs(given):
    return {name: channel(value) for name, value in given.items()} if isinstance(given, dict) else given


def channel(given):
    if isinstance(given, str):
        return given
    if "file_system_id" in given:
        return herringbone.FileSystemInput(**given)
    given = dict(given)
    if "shuffle_config" in given:
        given["shuffle_config"] = ShuffleConfig(**given["shuffle_config"])
    return herringbone.TrainingInput(**given)


def fields(value, place=""):
    """Yield every field with its place; channels by name, because their order says nothing."""
    if place == "InputDataConfig":
        value = {each["ChannelName"]: each for each in value}
    if isinstance(value, dict) and value:
        for name, member in value.items():
            yield from fields(member, f"{place}.{name}" if place else name)
    else:
        yield place, value


def meaning(place, value):
    """Return a field's value; the order of the keys inside mp_parameters is the user's there and the grammar's here."""
    return json.loads(value) if place == "HyperParameters.mp_parameters" and value else value


@cases(refused=False)
def test_the_same_request_but_for_what_is_listed(case):
    mine, peers = dict(fields(ours(case))), dict(fields(theirs(case)))
    assert not mine.keys() & set(NOT_OURS)
    differing = {
        place
        for place in mine.keys() | peers.keys()
        if meaning(place, mine.get(place)) != meaning(place, peers.get(place))
    }
    assert differing - {*NOT_OURS, *CODE} == set(case.get("differs", {}))
    for place in differing & set(CODE):
        assert (
            mine[place].strip('"').endswith("/herringbone/code/abc/sourcedir.tar.gz") or case["name"] == "code-location"
        )
        assert peers[place].strip('"').endswith("/digits-1/source/sourcedir.tar.gz")


@cases(refused=True)
def test_what_only_we_refuse(case):
    assert "error" not in theirs(case)
    with pytest.raises(OptionError, match=case["we_refuse"]):
        ours(case)


def test_there_are_as_many_as_the_contract_asks_for():
    assert len(CASES) == 62
    assert {path.stem for path in (HERE / "golden").iterdir()} == {case["name"] for case in CASES}


def test_the_services_model_allows_all_of_ours():
    pytest.importorskip("botocore", reason="the extra aws is not installed")
    for case in CASES:
        if "we_refuse" not in case:
            check_request(ours(case))


@pytest.mark.peer
@pytest.mark.skipif(not PEER_PYTHON.exists(), reason="run tests/peer/setup first: the peer is 310 MB")
def test_the_peer_still_sends_so(tmp_path):
    subprocess.run([PEER_PYTHON, HERE / "ask_peer.py", tmp_path / "asked"], check=True, timeout=110)
    for case in CASES:
        assert json.loads((tmp_path / "asked" / f"{case['name']}.json").read_text()) == theirs(case), case["name"]
