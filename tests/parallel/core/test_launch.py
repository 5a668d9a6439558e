from __future__ import annotations

import json

import pytest

from herringbone_contract.errors import HerringboneError, ParallelError
from herringbone_contract.strategies import Framework
from herringbone_parallel.core import launch

ENVIRONMENT = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}


def test_rank_info_reads_the_environment() -> None:
    assert launch.rank_info(ENVIRONMENT) == launch.RankInfo(rank=3, size=4, local_rank=1, local_size=2)


@pytest.mark.parametrize("missing", ENVIRONMENT)
def test_the_error_tells_how_to_launch_a_rank(missing: str) -> None:
    rest = {name: value for name, value in ENVIRONMENT.items() if name != missing}
    with pytest.raises(ParallelError, match=rf"^{missing} is not set: this process was not launched as a rank\. Run "):
        launch.rank_info(rest)


def test_parameters_come_with_their_defaults() -> None:
    settings = launch.model_parallel({"SM_HP_MP_PARAMETERS": '{"partitions": 2, "microbatches": 4}'}, "pytorch")
    assert (settings.partitions, settings.microbatches, settings.active_microbatches) == (2, 4, 4)


def test_a_job_without_model_parallelism_is_refused() -> None:
    with pytest.raises(
        ParallelError, match=r"^the job's distribution has no smdistributed.modelparallel: add distribution={'smd"
    ):
        launch.model_parallel({}, "pytorch")


@pytest.mark.parametrize(
    ("framework", "raw", "message"),
    [
        ("pytorch", '{"partitions": 2, "horovod": true}', "horovod: .* PyTorch averages replicas with 'ddp': True"),
        ("tensorflow", '{"partitions": 2, "ddp": true}', "ddp: .* TensorFlow averages replicas without it"),
        ("tensorflow", '{"partitions": 2, "pipeline": "zero_bubble"}', "no pipeline 'zero_bubble' for tensorflow"),
        ("tensorflow", '{"partitions": 2, "fp16": true, "skip_tracing": true}', "fp16: .*; skip_tracing: "),
        ("pytorch", '{"partitions": 2, "ddp": true, "ddp_port": 0}', "ddp_port: .*name one"),
    ],
)
def test_parameters_that_the_library_does_not_run_are_refused(framework: Framework, raw: str, message: str) -> None:
    """An estimator without a framework lets them pass, because the other framework's library runs them."""
    with pytest.raises(ParallelError, match=rf"^not available in this release: .*{message}"):
        launch.model_parallel({"SM_HP_MP_PARAMETERS": raw}, framework)


def version2(environ: dict[str, str], **config: object) -> tuple[int, int]:
    settings = launch.model_parallel_v2(environ, config or None)
    return settings.tensor_parallel_degree, settings.random_seed


def test_a_script_s_settings_fill_what_the_job_does_not_give() -> None:
    job = {"SM_HP_MP_PARAMETERS": '{"tensor_parallel_degree": 2}'}
    assert version2({}) == (1, 12_345_678)
    assert version2(job) == (2, 12_345_678)
    assert version2(job, tensor_parallel_degree=4, random_seed=7) == (2, 7)
    assert version2({}, tensor_parallel_degree=4) == (4, 12_345_678)


def test_settings_of_a_version_2_script_that_the_job_overrides_are_named_on_rank_0() -> None:
    job = {"SM_HP_MP_PARAMETERS": '{"tensor_parallel_degree": 2}'}
    text = r"^torch\.sagemaker\.init: .*tensor_parallel_degree is 4 in the script and 2 in the job's distribution$"
    with pytest.warns(UserWarning, match=text):
        assert version2({**job, "RANK": "0"}, tensor_parallel_degree=4, random_seed=None) == (2, 12_345_678)
    version2({**job, "RANK": "1"}, tensor_parallel_degree=4)
    version2({**job, "RANK": "0"}, tensor_parallel_degree=2)


@pytest.mark.parametrize("raw", ["{", "[2]"])
def test_damaged_parameters_are_named_whatever_the_script_sets(raw: str) -> None:
    for script in ({}, {"random_seed": 7}):
        with pytest.raises(HerringboneError, match=r"(?i)mp_parameters"):
            version2({"SM_HP_MP_PARAMETERS": raw}, **script)


def test_settings_of_a_version_2_script_are_checked_as_the_job_s_are() -> None:
    with pytest.raises(ParallelError, match=r"^torch\.sagemaker\.init\(.*; settings are numbers, words"):
        version2({}, random_seed={1})
    # A key of version 1 that has no effect there is a mistake here.
    with pytest.raises(ParallelError, match="static_mode"):
        version2({}, static_mode=True)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ('{"partitions": 2}', "torch.sagemaker needs the parameters of version 2 .*use version 1"),
        ('{"tensor_parallel_degree": "two"}', "torch.sagemaker needs the parameters of version 2"),
        ('{"expert_parallel_degree": 2}', "not available in this release: expert_parallel_degree: "),
    ],
)
def test_parameters_of_version_1_and_experts_are_refused(raw: str, message: str) -> None:
    with pytest.raises(ParallelError, match=message):
        launch.model_parallel_v2({"SM_HP_MP_PARAMETERS": raw})
    with pytest.raises(ParallelError, match=message):
        launch.model_parallel_v2({}, json.loads(raw))
