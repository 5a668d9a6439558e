"""Refuse plans before anything is uploaded, and list the options that SageMaker ignores."""

import pytest

from herringbone import Estimator, FileSystemInput, HuggingFace, PyTorch, SKLearn, TrainingInput
from herringbone.backends.review.settings import is_of_aws
from herringbone_contract.errors import InputError, JobNameError, OptionError, UnsupportedError
from tests.sagemaker.planning import IMAGE, planned

DATA_PARALLEL = {"smdistributed": {"dataparallel": {"enabled": True}}}

EXPERTS = {
    "smdistributed": {"modelparallel": {"enabled": True, "parameters": {"expert_parallel_degree": 2}}},
    "torch_distributed": {"enabled": True},
}
OURS = "123456789012.dkr.ecr.us-west-2.amazonaws.com/team/herringbone/pytorch:2.13"
AWS = "763104351884.dkr.ecr.us-west-2.amazonaws.com/pytorch-training:2.0.0-gpu-py310-cu118-ubuntu20.04-sagemaker"


def version1(**parameters):
    strategy = {"modelparallel": {"enabled": True, "parameters": {"partitions": 1, **parameters}}}
    return {"smdistributed": strategy, "mpi": {"enabled": True, "processes_per_host": 8}}


@pytest.fixture(autouse=True)
def project_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()


@pytest.mark.parametrize(
    ("estimator", "versions", "image"),
    [
        (PyTorch, {"framework_version": "2.1.0", "py_version": "py310"}, "pytorch-training:2.1.0-gpu-py310"),
        (
            HuggingFace,
            {"transformers_version": "4.36.0", "pytorch_version": "2.1.0", "py_version": "py310"},
            "huggingface-pytorch-training:2.1.0-transformers4.36.0-gpu-py310-cu121-ubuntu20.04",
        ),
        (
            SKLearn,
            {"framework_version": "1.4-2", "instance_type": "ml.m5.large"},
            "sagemaker-scikit-learn:1.4-2-cpu-py3",
        ),
        (PyTorch, {"framework_version": "2.1.0", "image_uri": "x/y:2.1.0"}, "y:2.1.0"),
    ],
)
def test_versions_name_awss_image_as_in_its_sdk(monkeypatch, estimator, versions, image):
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    plan = estimator(
        entry_point="train.py",
        **{"instance_type": "ml.p4d.24xlarge", "role": "arn:aws:iam::123456789012:role/r", **versions},
    ).plan()
    assert plan.arguments.image_uri.rpartition("/")[2] == image
    assert plan.request["AlgorithmSpecification"]["TrainingImage"] == plan.arguments.image_uri
    assert plan.unused == ()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"image_uri": None}, OptionError, "image_uri: missing; SageMaker runs an image"),
        ({"use_spot_instances": True}, OptionError, "use_spot_instances: needs max_wait, .* 86400$"),
        ({"checkpoint_local_path": "/x"}, OptionError, "checkpoint_local_path: needs checkpoint_s3_uri"),
        ({"output_path": "file:///o"}, OptionError, "output_path: file:///o is no s3:// address"),
        ({"checkpoint_s3_uri": "c"}, OptionError, "checkpoint_s3_uri: c is no s3:// address"),
        (
            {"tensorboard_output_config": {"s3_output_path": "c"}},
            OptionError,
            "tensorboard_output_config: c is no s3://",
        ),
        ({"code_location": "c"}, OptionError, "code_location: c is no s3:// address"),
        ({"training_repository_credentials_provider_arn": "a"}, OptionError, "needs training_repository_access_mode"),
        ({"bake_requirements": True}, UnsupportedError, "bake_requirements: build the image with them"),
        ({"entry_point": "gone.py"}, InputError, "entry_point: .*gone.py: no such file"),
        ({"inputs": "gone"}, InputError, "channel 'training': .*gone: no such file or folder"),
        ({"source_dir": "s3://b/code"}, UnsupportedError, "source_dir: s3://b/code is no .tar.gz"),
        ({"inputs": "https://x/y"}, InputError, "channel 'training': https://x/y is neither a local path nor"),
        (
            {"inputs": FileSystemInput("fs-1", "EFS", "/train")},
            OptionError,
            "channel 'training': efs://fs-1/train can be reached only from a network of the account; give subnets",
        ),
        (
            {"inputs": TrainingInput(".", s3_data_type="ManifestFile")},
            InputError,
            "channel 'training': .* is a folder, and a ManifestFile is one file",
        ),
        (
            {"inputs": TrainingInput("s3://b/c", target_attribute_name="label")},
            UnsupportedError,
            "target_attribute_name: a training job's channel has no such member",
        ),
        (
            {"inputs": TrainingInput("s3://b/c", instance_groups=("helpers",))},
            InputError,
            "channel 'training': instance_groups: the job has no group helpers; it has: homogeneousCluster",
        ),
        ({"inputs": {f"c{n}": "s3://b/c" for n in range(21)}}, InputError, "inputs: 21 channels; SageMaker accepts 20"),
        (
            {"inputs": {f"c{n}": "s3://b/c" for n in range(20)}, "enable_network_isolation": True},
            InputError,
            r"inputs: 21 channels \(including the code\)",
        ),
        (
            {"inputs": {"code": "s3://b/c"}, "enable_network_isolation": True},
            InputError,
            "channel 'code': an isolated container gets its code under that name",
        ),
        (
            {"kind": PyTorch, "instance_type": "ml.c6g.4xlarge", "distribution": DATA_PARALLEL},
            OptionError,
            r"instance_type: ml\.c6g\.4xlarge has no GPUs",
        ),
    ],
)
def test_refused_by_name(arguments, error, message):
    with pytest.raises(error, match=message):
        planned(**arguments)


@pytest.mark.parametrize("instance_type", ["ml.g5.12xlarge", "ml.p4d.24xlarge", "ml.p3.2xlarge", "ml.g6e.xlarge"])
def test_instance_types_with_gpus_are_recognized_by_family(instance_type):
    assert planned(kind=PyTorch, instance_type=instance_type, distribution=DATA_PARALLEL).backend == "sagemaker"


def test_ignored_options_are_listed():
    plan = planned(shm_size="2g", kind=PyTorch, framework_version="2.12", py_version="py311")
    assert plan.unused == ("framework_version", "py_version", "shm_size")


def test_a_job_name_that_is_too_long_and_hosts_named_twice_are_refused():
    group = {"instance_group_name": "a", "instance_type": "ml.m5.large", "instance_count": 1}
    with pytest.raises(OptionError, match="instance_groups: excludes instance_type"):
        Estimator("train.py", image_uri=IMAGE, instance_type="ml.m5.large", instance_groups=[group])
    with pytest.raises(JobNameError):
        Estimator("train.py", image_uri=IMAGE, instance_type="ml.m5.large").plan(job_name="n" * 64)


def test_local_hosts_and_sagemaker_hosts_cannot_share_a_job():
    groups = [
        {"instance_group_name": "a", "instance_type": "local_process", "instance_count": 1},
        {"instance_group_name": "b", "instance_type": "ml.m5.large", "instance_count": 1},
    ]
    with pytest.raises(UnsupportedError, match=r"no backend serves local_process, ml\.m5\.large in one job"):
        Estimator("train.py", image_uri=IMAGE, instance_groups=groups).plan()


def test_a_value_that_is_no_session_is_refused_by_name():
    pytest.importorskip("boto3", reason="the extra aws is not installed")
    with pytest.raises(OptionError, match=r"sagemaker_session: object is neither a boto3\.Session"):
        planned(sagemaker_session=object())


@pytest.mark.parametrize(
    ("image", "is_aws_s"),
    [
        (AWS, True),
        ("763104351884.dkr.ecr.us-west-2.amazonaws.com/huggingface-pytorch-training", True),
        ("763104351884.dkr.ecr.us-west-2.amazonaws.com/huggingface-pytorch-trcomp-training:1", True),
        ("658645717510.dkr.ecr.us-west-2.amazonaws.com/smdistributed-modelparallel:2.4.1-gpu-py311-cu121", True),
        ("registry.example.com:5000/mirror/tensorflow-training@sha256:1234", True),
        (OURS, False),
        ("123456789012.dkr.ecr.us-west-2.amazonaws.com/mine:1", False),
        ("123456789012.dkr.ecr.us-west-2.amazonaws.com/my-pytorch-training:1", False),
        ("763104351884.dkr.ecr.us-west-2.amazonaws.com/pytorch-inference:2.0.0", False),
    ],
)
def test_images_of_aws_are_known_by_their_repository(image, is_aws_s):
    assert is_of_aws(image) is is_aws_s


@pytest.mark.parametrize(
    ("distribution", "setting"),
    [
        (version1(ddp=True, deterministic_server=True), "parameters.deterministic_server: "),
        (EXPERTS, "parameters.expert_parallel_degree: Herringbone's library has no expert_parallel_degree"),
        ({"pytorchxla": {"enabled": True}}, "distribution.pytorchxla: "),
    ],
)
def test_settings_that_only_aws_s_images_run_are_refused_for_others(distribution, setting):
    """They cost money before: the job died in `smp.init`, on an instance with GPUs."""
    job = {"kind": PyTorch, "instance_type": "ml.p4d.24xlarge", "distribution": distribution}
    with pytest.raises(UnsupportedError, match=setting):
        planned(**job, image_uri=OURS)
    assert planned(**job, image_uri=AWS).request["AlgorithmSpecification"]["TrainingImage"] == AWS


def test_our_keys_are_refused_for_images_of_aws():
    distribution = {"smdistributed": {"dataparallel": {"enabled": True, "wire": "bf16"}}}
    job = {"kind": PyTorch, "instance_type": "ml.p4d.24xlarge", "distribution": distribution}
    with pytest.raises(UnsupportedError, match=r"dataparallel\.wire: an addition of Herringbone's"):
        planned(**job, image_uri=AWS)
    assert planned(**job, image_uri=OURS).request is not None
