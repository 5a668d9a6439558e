"""Compare whole CreateTrainingJob requests with literals."""

import pytest

from herringbone import PyTorch, TensorFlow, TrainingInput
from herringbone.backends.sagemaker.request import AccountNames, merge_extra, training_job_request
from herringbone.plan.inputs import ShuffleConfig
from herringbone.plan.plan import parse_plan
from herringbone_contract.errors import HyperparameterError, OptionError
from tests.sagemaker.planning import IMAGE, planned

ROLE = "arn:aws:iam::123456789012:role/train"


def channel(name, uri, **members):
    source = {"S3DataType": "S3Prefix", "S3Uri": uri, "S3DataDistributionType": "FullyReplicated"}
    return {"ChannelName": name, "DataSource": {"S3DataSource": source}, **members}


EVERY_OPTION = {
    "framework_version": "2.13",
    "role": ROLE,
    "instance_type": "ml.p4d.24xlarge",
    "instance_count": 2,
    "hyperparameters": {"epochs": 3, "name": "run"},
    "distribution": {"mpi": {"enabled": True, "processes_per_host": 8}},
    "max_run": 3600,
    "max_wait": 7200,
    "use_spot_instances": True,
    "max_retry_attempts": 2,
    "keep_alive_period_in_seconds": 600,
    "volume_size": 100,
    "volume_kms_key": "volume-key",
    "training_plan": "arn:aws:sagemaker:us-west-2:123456789012:training-plan/mine",
    "instance_placement_config": {"EnableMultipleJobs": True},
    "enable_infra_check": True,
    "enable_remote_debug": False,
    "enable_session_tag_chaining": True,
    "input_mode": "FastFile",
    "model_uri": "s3://mine/model.tar.gz",
    "model_channel_name": "pretrained",
    "checkpoint_s3_uri": "s3://mine/checkpoints",
    "checkpoint_local_path": "/opt/ml/elsewhere",
    "output_path": "s3://mine/out",
    "output_kms_key": "output-key",
    "disable_output_compression": True,
    "tensorboard_output_config": {"s3_output_path": "s3://mine/tb", "container_local_output_path": "/opt/ml/tb"},
    "code_location": "s3://mine/source/",
    "container_log_level": 10,
    "container_entry_point": ["train"],
    "container_arguments": ["--quick"],
    "environment": {"WANDB_API_KEY": "hunter2"},
    "tags": {"team": "vision"},
    "metric_definitions": [{"Name": "loss", "Regex": "loss=([0-9.]+)"}],
    "subnets": ["subnet-1", "subnet-2"],
    "security_group_ids": ["sg-1"],
    "encrypt_inter_container_traffic": True,
    "training_repository_access_mode": "Vpc",
    "training_repository_credentials_provider_arn": "arn:aws:lambda:us-west-2:123456789012:function:login",
    "extra_request": {"ExperimentConfig": {"RunName": "one"}, "StoppingCondition": {"MaxPendingTimeInSeconds": 7200}},
}
REQUEST_WITH_EVERY_OPTION = {
    "TrainingJobName": "digits-1",
    "AlgorithmSpecification": {
        "TrainingImage": IMAGE,
        "TrainingInputMode": "FastFile",
        "MetricDefinitions": [{"Name": "loss", "Regex": "loss=([0-9.]+)"}],
        "ContainerEntrypoint": ["train"],
        "ContainerArguments": ["--quick"],
        "TrainingImageConfig": {
            "TrainingRepositoryAccessMode": "Vpc",
            "TrainingRepositoryAuthConfig": {
                "TrainingRepositoryCredentialsProviderArn": "arn:aws:lambda:us-west-2:123456789012:function:login"
            },
        },
    },
    "RoleArn": ROLE,
    "InputDataConfig": [
        channel("training", "s3://mine/train"),
        channel("pretrained", "s3://mine/model.tar.gz", ContentType="application/x-sagemaker-model", InputMode="File"),
    ],
    "OutputDataConfig": {"S3OutputPath": "s3://mine/out", "KmsKeyId": "output-key", "CompressionType": "NONE"},
    "ResourceConfig": {
        "InstanceCount": 2,
        "InstanceType": "ml.p4d.24xlarge",
        "VolumeSizeInGB": 100,
        "VolumeKmsKeyId": "volume-key",
        "KeepAlivePeriodInSeconds": 600,
        "TrainingPlanArn": "arn:aws:sagemaker:us-west-2:123456789012:training-plan/mine",
        "InstancePlacementConfig": {"EnableMultipleJobs": True},
    },
    "StoppingCondition": {
        "MaxRuntimeInSeconds": 3600,
        "MaxWaitTimeInSeconds": 7200,
        "MaxPendingTimeInSeconds": 7200,
    },
    "HyperParameters": {
        "epochs": "3",
        "name": '"run"',
        "sagemaker_mpi_enabled": "true",
        "sagemaker_mpi_num_of_processes_per_host": "8",
        "sagemaker_mpi_custom_mpi_options": '""',
        "sagemaker_submit_directory": '"s3://mine/source/code/${code_hash}/sourcedir.tar.gz"',
        "sagemaker_program": '"train.py"',
        "sagemaker_container_log_level": "10",
        "sagemaker_job_name": '"digits-1"',
        "sagemaker_region": '"${region}"',
    },
    "Environment": {"WANDB_API_KEY": "hunter2"},
    "TensorBoardOutputConfig": {"S3OutputPath": "s3://mine/tb", "LocalPath": "/opt/ml/tb"},
    "Tags": [{"Key": "team", "Value": "vision"}],
    "VpcConfig": {"Subnets": ["subnet-1", "subnet-2"], "SecurityGroupIds": ["sg-1"]},
    "CheckpointConfig": {"S3Uri": "s3://mine/checkpoints", "LocalPath": "/opt/ml/elsewhere"},
    "EnableManagedSpotTraining": True,
    "EnableInterContainerTrafficEncryption": True,
    "RetryStrategy": {"MaximumRetryAttempts": 2},
    "InfraCheckConfig": {"EnableInfraCheck": True},
    "RemoteDebugConfig": {"EnableRemoteDebug": False},
    "SessionChainingConfig": {"EnableSessionTagChaining": True},
    "ExperimentConfig": {"RunName": "one"},
}


@pytest.fixture(autouse=True)
def project_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    (tmp_path / "data").mkdir()
    return tmp_path


def test_a_job_with_defaults_only():
    assert planned().request == {
        "TrainingJobName": "digits-1",
        "AlgorithmSpecification": {"TrainingImage": IMAGE, "TrainingInputMode": "File"},
        "RoleArn": "${role_arn}",
        "OutputDataConfig": {"S3OutputPath": "s3://${default_bucket}/"},
        "ResourceConfig": {"InstanceCount": 1, "InstanceType": "ml.g5.12xlarge", "VolumeSizeInGB": 30},
        "StoppingCondition": {"MaxRuntimeInSeconds": 86_400},
        "HyperParameters": {
            "sagemaker_submit_directory": '"s3://${default_bucket}/herringbone/code/${code_hash}/sourcedir.tar.gz"',
            "sagemaker_program": '"train.py"',
            "sagemaker_container_log_level": "20",
            "sagemaker_job_name": '"digits-1"',
            "sagemaker_region": '"${region}"',
        },
    }


def test_a_job_with_every_option():
    plan = planned({"training": "s3://mine/train"}, kind=PyTorch, **EVERY_OPTION)
    assert plan.unused == ()
    assert plan.request == REQUEST_WITH_EVERY_OPTION


def test_local_channels_and_s3_channels_with_every_member():
    full_input = TrainingInput(
        "s3://mine/all",
        distribution="ShardedByS3Key",
        compression="Gzip",
        content_type="text/csv",
        record_wrapping="RecordIO",
        s3_data_type="AugmentedManifestFile",
        instance_groups=("homogeneousCluster",),
        input_mode="Pipe",
        attribute_names=("image", "label"),
        shuffle_config=ShuffleConfig(7),
    )
    assert planned({"a": "data", "b": full_input}).request["InputDataConfig"] == [
        channel("a", "s3://${default_bucket}/herringbone/data/${data_hash:a}"),
        {
            "ChannelName": "b",
            "DataSource": {
                "S3DataSource": {
                    "S3DataType": "AugmentedManifestFile",
                    "S3Uri": "s3://mine/all",
                    "S3DataDistributionType": "ShardedByS3Key",
                    "InstanceGroupNames": ["homogeneousCluster"],
                    "AttributeNames": ["image", "label"],
                }
            },
            "CompressionType": "Gzip",
            "ContentType": "text/csv",
            "RecordWrapperType": "RecordIO",
            "InputMode": "Pipe",
            "ShuffleConfig": {"Seed": 7},
        },
    ]


def test_instance_groups_replace_type_and_count():
    groups = [
        {"instance_group_name": "workers", "instance_type": "ml.p4d.24xlarge", "instance_count": 2},
        {"instance_group_name": "helpers", "instance_type": "ml.c5.18xlarge", "instance_count": 4},
    ]
    distribution = {"smdistributed": {"dataparallel": {"enabled": True, "helpers": "helpers"}}}
    request = planned("s3://mine/train", kind=PyTorch, instance_groups=groups, distribution=distribution).request
    assert request["ResourceConfig"] == {
        "InstanceGroups": [
            {"InstanceGroupName": "workers", "InstanceType": "ml.p4d.24xlarge", "InstanceCount": 2},
            {"InstanceGroupName": "helpers", "InstanceType": "ml.c5.18xlarge", "InstanceCount": 4},
        ],
        "VolumeSizeInGB": 30,
    }
    assert request["HyperParameters"]["sagemaker_distribution_instance_groups"] == '["workers"]'
    (source,) = (entry["DataSource"]["S3DataSource"] for entry in request["InputDataConfig"])
    assert source["InstanceGroupNames"] == ["workers"]


def test_an_isolated_container_gets_its_code_as_a_channel():
    request = planned("s3://mine/train", enable_network_isolation=True).request
    assert request["EnableNetworkIsolation"] is True
    assert request["InputDataConfig"] == [
        channel("training", "s3://mine/train"),
        channel("code", "s3://${default_bucket}/herringbone/code/${code_hash}/sourcedir.tar.gz"),
    ]
    hyperparameters = request["HyperParameters"]
    assert hyperparameters["sagemaker_submit_directory"] == '"/opt/ml/input/data/code/sourcedir.tar.gz"'


def test_an_image_with_its_own_program_gets_no_code_and_unquoted_texts():
    hyperparameters = {"depth": 3, "objective": "reg:linear", "verbose": True, "layers": ["a"]}
    assert planned(entry_point=None, hyperparameters=hyperparameters).request["HyperParameters"] == {
        "depth": "3",
        "objective": "reg:linear",
        "verbose": "true",
        "layers": '["a"]',
    }


@pytest.mark.parametrize(
    ("arguments", "model_dir"),
    [
        ({}, '"s3://${default_bucket}/digits-1/model"'),
        ({"output_path": "s3://mine/out/"}, '"s3://mine/out/digits-1/model"'),
        ({"distribution": {"mpi": {"enabled": True}}}, '"/opt/ml/model"'),
        ({"model_dir": "s3://mine/m"}, '"s3://mine/m"'),
        ({"model_dir": False}, None),
    ],
)
def test_model_dir_of_tensorflow_is_reachable_from_all_hosts(arguments, model_dir):
    assert planned(kind=TensorFlow, **arguments).request["HyperParameters"].get("model_dir") == model_dir


def test_names_of_the_account_replace_the_stand_ins():
    names = AccountNames("eu-west-1", "bucket", ROLE, code_hash="abc", data_hashes={"training": "def"})
    plan = planned("data", role="train")
    assert plan.request["RoleArn"] == "${role_arn:train}"
    request = training_job_request(plan, names)
    assert "${" not in str(request)
    assert request["RoleArn"] == ROLE
    assert request["InputDataConfig"] == [channel("training", "s3://bucket/herringbone/data/def")]
    assert request["HyperParameters"]["sagemaker_region"] == '"eu-west-1"'
    assert request["HyperParameters"]["sagemaker_submit_directory"].endswith('/code/abc/sourcedir.tar.gz"')


def test_the_region_counts_as_a_hyperparameter():
    with pytest.raises(HyperparameterError, match="101 hyperparameters; the service takes 100"):
        planned(hyperparameters={f"h{number}": number for number in range(96)})


def test_a_shown_plan_masks_secrets_everywhere():
    plan = planned(environment={"API_KEY": "hunter2"}, extra_request={"Environment": {"OTHER_TOKEN": "hunter3"}})
    assert plan.request["Environment"] == {"API_KEY": "hunter2", "OTHER_TOKEN": "hunter3"}
    shown = plan.to_dict()
    assert "hunter" not in str(shown)
    assert parse_plan(shown).request["Environment"] == {"API_KEY": "******", "OTHER_TOKEN": "******"}


def test_extra_request_overrides_nothing():
    assert merge_extra({"a": {"b": 1}}, {"a": {"b": 1, "c": 2}, "d": [3]}) == {"a": {"b": 1, "c": 2}, "d": [3]}
    with pytest.raises(OptionError, match=r"^extra_request: AlgorithmSpecification\.TrainingImage is in the request"):
        planned(extra_request={"AlgorithmSpecification": {"TrainingImage": "another"}})
    with pytest.raises(OptionError, match=r"^extra_request: Tags is"):
        planned(tags={"a": "b"}, extra_request={"Tags": []})
