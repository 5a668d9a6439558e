"""Compare Herringbone's requests with those of the released `sagemaker` package, the peer.

`cases.json` holds estimator calls, and `golden/` the requests that `sagemaker` 2.257.7 sent for them. The test marked
`peer` runs the package again; it needs the environment that `tests/peer/setup` makes. In a case, `differs` gives the
reason for each field that differs. `we_refuse` is a part of Herringbone's message for a call that only the peer
accepts.
"""

import json
import subprocess
from pathlib import Path

import pytest

import herringbone
from herringbone.backends.sagemaker.request import AccountNames, training_job_request
from herringbone.backends.sagemaker.service_model import check_request
from herringbone.plan.inputs import ShuffleConfig
from herringbone_contract.errors import OptionError
from tests.sagemaker.planning import planned

FOLDER = Path(__file__).parent
PEER_PYTHON = FOLDER.parent.parent / ".venv-peer" / "bin" / "python"
CASES = json.loads((FOLDER / "cases.json").read_text(encoding="utf-8"))
NAMES = AccountNames("us-west-2", "bucket", "arn:aws:iam::123456789012:role/train", code_hash="abc")

# The peer sends these with every request: they configure three services that Herringbone does not support. A user who
# wants one of them writes it into extra_request.
PEER_ONLY = (
    "AlgorithmSpecification.EnableSageMakerMetricsTimeSeries",
    "DebugHookConfig.CollectionConfigurations",
    "DebugHookConfig.S3OutputPath",
    "ProfilerConfig.DisableProfiler",
    "ProfilerConfig.S3OutputPath",
)
# The peer uploads the code for each job, below the job's name. Herringbone names it by its content and uploads it once.
CODE = ("HyperParameters.sagemaker_submit_directory", "InputDataConfig.code.DataSource.S3DataSource.S3Uri")


@pytest.fixture(autouse=True)
def project_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()


def cases(*, refused):
    matching = [case for case in CASES if ("we_refuse" in case) == refused]
    return pytest.mark.parametrize("case", matching, ids=[case["name"] for case in matching])


def own_request(case):
    kind = getattr(herringbone, case["estimator"])
    # Without an explicit None, `planned` would add its own script.
    arguments = {"entry_point": None, **case["arguments"]}
    return training_job_request(planned(inputs(case.get("inputs")), kind=kind, **arguments), NAMES)


def peer_request(case):
    return json.loads((FOLDER / "golden" / f"{case['name']}.json").read_text(encoding="utf-8"))


def inputs(value):
    return {name: channel(entry) for name, entry in value.items()} if isinstance(value, dict) else value


def channel(value):
    if isinstance(value, str):
        return value
    if "file_system_id" in value:
        return herringbone.FileSystemInput(**value)
    arguments = dict(value)
    if "shuffle_config" in arguments:
        arguments["shuffle_config"] = ShuffleConfig(**arguments["shuffle_config"])
    return herringbone.TrainingInput(**arguments)


def fields(value, path=""):
    """Yield the path and the value of every field; channels by name, because their order has no meaning."""
    if path == "InputDataConfig":
        value = {entry["ChannelName"]: entry for entry in value}
    if isinstance(value, dict) and value:
        for name, member in value.items():
            yield from fields(member, f"{path}.{name}" if path else name)
    else:
        yield path, value


def meaning(path, value):
    """Return a field's value, with mp_parameters parsed: only the order of its keys differs between the libraries."""
    return json.loads(value) if path == "HyperParameters.mp_parameters" and value else value


@cases(refused=False)
def test_requests_differ_only_where_the_case_says_so(case):
    own, peer = dict(fields(own_request(case))), dict(fields(peer_request(case)))
    assert not own.keys() & set(PEER_ONLY)
    differing = {
        path for path in own.keys() | peer.keys() if meaning(path, own.get(path)) != meaning(path, peer.get(path))
    }
    assert differing - {*PEER_ONLY, *CODE} == set(case.get("differs", {}))
    for path in differing & set(CODE):
        assert (
            own[path].strip('"').endswith("/herringbone/code/abc/sourcedir.tar.gz") or case["name"] == "code-location"
        )
        assert peer[path].strip('"').endswith("/digits-1/source/sourcedir.tar.gz")


@cases(refused=True)
def test_calls_that_only_herringbone_refuses(case):
    assert "error" not in peer_request(case)
    with pytest.raises(OptionError, match=case["we_refuse"]):
        own_request(case)


def test_every_case_has_a_golden_request():
    assert len(CASES) == 62
    assert {path.stem for path in (FOLDER / "golden").iterdir()} == {case["name"] for case in CASES}


def test_the_service_model_allows_all_own_requests():
    pytest.importorskip("botocore", reason="the extra aws is not installed")
    for case in CASES:
        if "we_refuse" not in case:
            check_request(own_request(case))


@pytest.mark.peer
@pytest.mark.skipif(not PEER_PYTHON.exists(), reason="run tests/peer/setup first: the peer is 310 MB")
def test_the_peer_still_sends_the_golden_requests(tmp_path):
    subprocess.run([PEER_PYTHON, FOLDER / "ask_peer.py", tmp_path / "recorded"], check=True, timeout=110)
    for case in CASES:
        assert json.loads((tmp_path / "recorded" / f"{case['name']}.json").read_text()) == peer_request(case), case[
            "name"
        ]
