"""Record what the released `sagemaker` package sends for each tuner of cases.json; no network.

Usage, with the Python that `tests/peer/setup` makes: `.venv-peer/bin/python tests/sdk/tuner/service/ask_peer.py
[FOLDER]`.
"""

# ruff: noqa: E402 - `recording` sets the environment before the peer is imported
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER.parents[2] / "peer"))

from recording import Recorder, record
from sagemaker import tuner as peer
from sagemaker.estimator import Estimator
from sagemaker.parameter import CategoricalParameter, ContinuousParameter, IntegerParameter
from sagemaker.pytorch import PyTorch
from sagemaker.tensorflow import TensorFlow

KINDS = {"Estimator": Estimator, "PyTorch": PyTorch, "TensorFlow": TensorFlow}
RANGES = {"continuous": ContinuousParameter, "integer": IntegerParameter, "categorical": CategoricalParameter}
ARN = "arn:aws:sagemaker:us-west-2:123456789012:hyper-parameter-tuning-job/none"


def fit(case, session):
    tuner = tuner_of(case, session)
    # Where estimators have names, the package wants this flag for each of them; the default is refused.
    names = case.get("estimators") or {case.get("tuner", {}).get("estimator_name"): None}
    metadata = {} if None in names else {"include_cls_metadata": dict.fromkeys(names, False)}
    tuner.fit(case.get("inputs"), wait=False, job_name="digits-1", **metadata)


def tuner_of(case, session):
    settings = settings_of(case.get("tuner", {}))
    if "estimators" in case:
        return peer.HyperparameterTuner.create(
            estimator_dict={name: estimator(entry, session) for name, entry in case["estimators"].items()},
            hyperparameter_ranges_dict={name: ranges(entry) for name, entry in case["ranges"].items()},
            **settings,
        )
    return peer.HyperparameterTuner(
        estimator(case, session), hyperparameter_ranges=ranges(case.get("ranges", {})), **settings
    )


def estimator(entry, session):
    return KINDS[entry["estimator"]](sagemaker_session=session, **entry["arguments"])


def ranges(entries):
    return {name: RANGES[kind](*arguments) for name, (kind, *arguments) in entries.items()}


def settings_of(entries):
    settings = dict(entries)
    if warm_start := settings.get("warm_start_config"):
        kind, parents = warm_start
        settings["warm_start_config"] = peer.WarmStartConfig(peer.WarmStartTypes(kind), set(parents))
    if resources := settings.get("strategy_config"):
        settings["strategy_config"] = peer.StrategyConfig(peer.HyperbandStrategyConfig(**resources))
    if criteria := settings.get("completion_criteria_config"):
        settings["completion_criteria_config"] = peer.TuningJobCompletionCriteriaConfig(**criteria)
    return settings


if __name__ == "__main__":
    record(FOLDER, Recorder("CreateHyperParameterTuningJob", {"HyperParameterTuningJobArn": ARN}), fit)
