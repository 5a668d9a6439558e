"""Submit tuning jobs with `HyperparameterTuner.fit` to a mock of AWS: one job or none, whatever fails."""

from __future__ import annotations

import json

import pytest
from tests.sagemaker.account import BUCKET, IMAGE, REGION, RequestRecorder, answer, keys

from herringbone import PyTorch
from herringbone.api.tuner import HyperparameterTuner
from herringbone.aws.session import AwsSession
from herringbone.backends.sagemaker.creation import TUNING_JOB, UnknownOutcomeError, create_job, look_up
from herringbone.backends.sagemaker.description import differences
from herringbone.tuner.configs import HyperbandStrategyConfig, StrategyConfig
from herringbone.tuner.parameters import CategoricalParameter, ContinuousParameter
from herringbone.tuner.service.tuning import read_record
from herringbone_contract.errors import AwsUnavailableError, JobNameError, OptionError, UnsupportedError

pytest.importorskip("boto3", reason="the extra aws is not installed")
from botocore.exceptions import ConnectionClosedError

METRICS = [{"Name": "accuracy", "Regex": "accuracy=([0-9.]+)"}]
CREATE = "sagemaker.CreateHyperParameterTuningJob"
DESCRIBE = "sagemaker.DescribeHyperParameterTuningJob"


@pytest.fixture(autouse=True)
def everything(account, home, project_folder):
    pass


def tuner_of(recorder, *, ranges=None, estimator=None, **settings):
    arguments = {
        "entry_point": "train.py",
        "image_uri": IMAGE,
        "instance_type": "ml.m5.large",
        "role": "training",
        "sagemaker_session": recorder.boto,
        **(estimator or {}),
    }
    ranges = {"lr": ContinuousParameter(1e-4, 1e-1)} if ranges is None else ranges
    settings = {"metric_definitions": METRICS, "strategy": "Random", "max_jobs": 4, **settings}
    return HyperparameterTuner(PyTorch(**arguments), "accuracy", ranges, **settings)


def fit(recorder, inputs=None, **settings):
    return tuner_of(recorder, **settings).fit(inputs, job_name="digits", wait=False)


def test_sagemaker_gets_the_planned_request_with_the_accounts_names(recorder, home, project_folder, capsys):
    (project_folder / "data").mkdir()
    (project_folder / "data" / "a.csv").write_text("1,2\n")
    settings = {"estimator": {"hyperparameters": {"epochs": 3, "lr": 0.5}}, "tags": {"team": "vision"}}
    tuning = fit(recorder, {"training": "data"}, **settings)
    described = look_up(AwsSession.of(recorder.boto), "digits", TUNING_JOB)
    trial = described["TrainingJobDefinition"]
    assert trial["RoleArn"] == "arn:aws:iam::123456789012:role/training"
    assert "${" not in json.dumps(tuning.describe())
    code = json.loads(trial["StaticHyperParameters"]["sagemaker_submit_directory"])
    data = trial["InputDataConfig"][0]["DataSource"]["S3DataSource"]["S3Uri"]
    assert [f"s3://{BUCKET}/{key}" for key in keys(recorder.boto)] == [code, f"{data}/a.csv"]
    # The estimator's own value of a tuned hyperparameter is not static.
    assert "lr" not in trial["StaticHyperParameters"]
    assert trial["StaticHyperParameters"]["sagemaker_job_name"] == '"digits"'
    planned = tuner_of(recorder, **settings).plan({"training": "data"}, job_name="digits").request
    assert planned.keys() - {"Tags"} == described.keys() & planned.keys()
    assert planned["Tags"] == [{"Key": "team", "Value": "vision"}]
    assert "tuning job digits created in eu-central-1" in capsys.readouterr().err
    record = read_record(home.tuning("digits"))
    assert (record.location.region, record.location.account) == (REGION, "123456789012")
    assert record.definition.strategy == "Random"


def test_secrets_stay_in_the_request(recorder, home):
    secret = "hunter2-0123456789"  # noqa: S105
    options = {"environment": {"API_TOKEN": secret}, "hyperparameters": {"api_key": secret}}
    fit(recorder, estimator=options)
    files = [path.read_text() for path in home.path.rglob("*") if path.is_file()]
    assert files
    assert not any(secret in text for text in files)


def test_a_lasting_fault_leaves_no_job_and_frees_the_name(recorder, home):
    recorder.on(CREATE, lambda: answer(400, "ResourceLimitExceeded", "The account-level limit is 10"))
    with pytest.raises(Exception, match="request a higher quota"):
        fit(recorder)
    assert not home.tuning("digits").exists()
    assert look_up(AwsSession.of(recorder.boto), "digits", TUNING_JOB) is None
    assert fit(RequestRecorder()).name == "digits"


def test_throttling_is_retried(recorder):
    faults = [lambda: answer(400, "ThrottlingException", "Rate exceeded")]
    recorder.on(CREATE, lambda: faults.pop()() if faults else None)
    assert fit(recorder).describe()["HyperParameterTuningJobStatus"] in ("InProgress", "Completed")


@pytest.mark.parametrize("epochs", [3, 9])
def test_a_lost_answer_is_settled_by_describe(recorder, monkeypatch, tmp_path, epochs):
    """Another request under the name, with 9 epochs, is not taken for ours."""
    lost = []

    def lose(**_):
        if not lost:
            lost.append(True)
            with monkeypatch.context() as elsewhere:
                elsewhere.setenv("HERRINGBONE_HOME", str(tmp_path / "elsewhere"))
                fit(RequestRecorder(), estimator={"hyperparameters": {"epochs": epochs}})
        raise ConnectionClosedError(endpoint_url="https://sagemaker")

    recorder.boto.events.register(f"before-send.{CREATE}", lose)
    if epochs == 3:
        assert fit(recorder, estimator={"hyperparameters": {"epochs": 3}}).name == "digits"
    else:
        with pytest.raises(JobNameError, match=r"tuning job name 'digits' is taken .*StaticHyperParameters\.epochs"):
            fit(recorder, estimator={"hyperparameters": {"epochs": 3}})
    assert recorder.operations("sagemaker")[-1] == "DescribeHyperParameterTuningJob"


def test_an_unknown_outcome_is_reported(recorder):
    def gone():
        raise ConnectionClosedError(endpoint_url="https://sagemaker")

    request = tuner_of(recorder).plan(job_name="digits").request
    session = AwsSession(recorder.boto, attempts=1)
    recorder.on(CREATE, gone)
    recorder.on(DESCRIBE, gone)
    with pytest.raises(
        UnknownOutcomeError, match="unknown whether tuning job digits was created: run `herringbone tune"
    ):
        create_job(session, request, TUNING_JOB, pause=0.0)


@pytest.mark.parametrize(
    ("event", "stays", "message"),
    [
        ("before-send.s3.PutObject", False, None),
        (f"before-send.{CREATE}", False, "tuning job digits was not created"),
        (f"after-call.{CREATE}", True, "tuning job digits was created, and runs: `herringbone tune show digits`"),
    ],
)
def test_ctrl_c_reports_whether_the_job_was_created(recorder, home, capsys, event, stays, message):
    def interrupt(**_):
        raise KeyboardInterrupt

    recorder.boto.events.register(event, interrupt)
    with pytest.raises(KeyboardInterrupt):
        fit(recorder)
    assert home.tuning("digits").exists() is stays
    if message is not None:
        assert message in capsys.readouterr().err


def test_a_name_is_used_once(recorder, home):
    fit(recorder)
    with pytest.raises(JobNameError, match="'digits' is taken on this machine"):
        fit(recorder)
    # Another machine learns it from SageMaker.
    home.tuning("digits").rename(home.tunings / "aside")
    with pytest.raises(JobNameError, match="tuning job name 'digits' is taken in account"):
        fit(recorder)
    assert not home.tuning("digits").exists()


def test_attach_in_another_process_finds_what_fit_submitted(recorder):
    fit(recorder, estimator={"hyperparameters": {"epochs": 3}})
    other = RequestRecorder()
    # The mock knows no tags of tuning jobs.
    other.on("sagemaker.ListTags", lambda: _ok('{"Tags": []}'))
    tuner = HyperparameterTuner.attach("digits", other.boto)
    assert tuner.latest_tuning_job.definition().ranges == {"lr": ContinuousParameter(1e-4, 1e-1)}
    assert tuner.estimator._request.arguments.hyperparameters == {"epochs": 3}
    assert tuner.strategy == "Random"
    # A new plan of the attached tuner asks for the same job again.
    own = tuner_of(recorder, estimator={"hyperparameters": {"epochs": 3}}).plan(job_name="digits").request
    again = tuner.plan(job_name="digits").request
    static = again["TrainingJobDefinition"]["StaticHyperParameters"]
    static["sagemaker_submit_directory"] = own["TrainingJobDefinition"]["StaticHyperParameters"][
        "sagemaker_submit_directory"
    ]
    for request in (own, again):
        request["TrainingJobDefinition"]["RoleArn"] = request["TrainingJobDefinition"]["OutputDataConfig"] = None
    assert differences(own, again) == []


REFUSED = [
    pytest.param({"estimator": {"enable_remote_debug": True}}, "enable_remote_debug: .* no such setting", id="debug"),
    pytest.param(
        {"estimator": {"tensorboard_output_config": {"s3_output_path": "s3://b/t"}}},
        "tensorboard_output_config: .* no such setting",
        id="tensorboard",
    ),
    pytest.param(
        {"estimator": {"extra_request": {"ExperimentConfig": {"RunName": "one"}}}},
        "extra_request, ExperimentConfig: .* no such setting",
        id="extra-request",
    ),
    pytest.param({"estimator": {"distribution": "auto"}}, 'distribution: "auto"', id="auto"),
    pytest.param(
        {
            "strategy": "Hyperband",
            "strategy_config": StrategyConfig(HyperbandStrategyConfig(9, resource_name="rounds")),
        },
        "resource_name: SageMaker",
        id="resource-name",
    ),
    pytest.param(
        {"ranges": {"lr": CategoricalParameter(["x" * 257])}}, "has 259 characters; the service takes 256", id="model"
    ),
    pytest.param({"max_runtime_in_seconds": 60}, "MaxRuntimeInSeconds", id="runtime"),
]


@pytest.mark.parametrize(("settings", "message"), REFUSED)
def test_what_sagemaker_cannot_search_is_refused_at_plan(recorder, settings, message):
    with pytest.raises((OptionError, UnsupportedError), match=message):
        tuner_of(recorder, **settings).plan()
    assert recorder.sent == []


def test_autotune_needs_no_ranges_on_sagemaker(recorder):
    tuner = tuner_of(recorder, ranges={}, autotune=True, estimator={"hyperparameters": {"epochs": 3}})
    request = tuner.plan(job_name="digits").request
    assert request["Autotune"] == {"Mode": "Enabled"}
    ranges = request["HyperParameterTuningJobConfig"]["ParameterRanges"]
    assert ranges["AutoParameters"] == [{"Name": "epochs", "ValueHint": "3"}]


def _ok(body):
    from botocore.awsrequest import AWSResponse

    response = AWSResponse("https://sagemaker", 200, {"Content-Type": "application/x-amz-json-1.1"}, None)
    response._content = body.encode()
    return response


def test_a_server_that_is_away(recorder):
    recorder.on(DESCRIBE, lambda: answer(503, "ServiceUnavailable", "no"))
    with pytest.raises(AwsUnavailableError, match="to find tuning job digits"):
        fit(recorder)
