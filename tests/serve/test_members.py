"""Every member of every operation has a fate, and the way from a request to an estimator keeps it."""

import re
from pathlib import Path

import msgspec
import pytest

from herringbone.plan.inputs import local_path
from herringbone.plan.request import groups_of, keywords
from herringbone.s3.front.store import Store
from herringbone.serve.actions import ACTIONS, Fate, check_fates, rule_of
from herringbone.serve.errors import ApiError
from herringbone.serve.links import Held, check_held, check_links, held_by
from herringbone.serve.settings import HostType, Mapping, Settings
from herringbone.serve.translate import check_role, local_address, refused, translate
from herringbone_contract.errors import InputError, OptionError

pytest.importorskip("botocore")
from herringbone.serve.model import find_operation

REQUEST = {
    "TrainingJobName": "digits-1",
    "AlgorithmSpecification": {
        "TrainingImage": "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.1-cpu-py310",
        "TrainingInputMode": "File",
        "MetricDefinitions": [{"Name": "weight", "Regex": "weight (.*)"}],
    },
    "RoleArn": "arn:aws:iam::000000000000:role/me",
    "OutputDataConfig": {"S3OutputPath": "s3://mine/out/", "KmsKeyId": ""},
    "ResourceConfig": {"InstanceType": "ml.p4d.24xlarge", "InstanceCount": 2, "VolumeSizeInGB": 30},
    "StoppingCondition": {"MaxRuntimeInSeconds": 600},
    "HyperParameters": {
        "sagemaker_program": '"train.py"',
        "sagemaker_submit_directory": '"s3://mine/code/sourcedir.tar.gz"',
        "sagemaker_mpi_enabled": "true",
        "sagemaker_mpi_num_of_processes_per_host": "2",
        "epochs": "2",
        "hub_token": "null",
    },
    "InputDataConfig": [
        {
            "ChannelName": "training",
            "DataSource": {
                "S3DataSource": {
                    "S3DataType": "S3Prefix",
                    "S3Uri": "s3://mine/data",
                    "S3DataDistributionType": "ShardedByS3Key",
                }
            },
        }
    ],
    "CheckpointConfig": {"S3Uri": "s3://mine/checkpoints/digits"},
    "DebugHookConfig": {"S3OutputPath": "s3://mine/out/"},
    "ProfilerConfig": {"S3OutputPath": "s3://mine/out/", "DisableProfiler": False},
    "EnableManagedSpotTraining": False,
    "Environment": {"MINE": "1"},
}
SETTINGS = Settings(
    backend="local_process", buckets="/srv/s3", mapping=Mapping(instance_types={"ml.p4d.*": HostType(hosts=2, gpus=8)})
)


def leaves(shape, path, seen=()):
    if shape.type_name == "structure" and shape.name not in seen:
        for name, member in shape.members.items():
            yield from leaves(member, f"{path}.{name}" if path else name, (*seen, shape.name))
    elif shape.type_name == "list":
        yield from leaves(shape.member, f"{path}[]", seen)
    else:
        yield path


@pytest.mark.parametrize("name", ACTIONS)
def test_every_member_of_botocores_model_has_a_rule(name):
    service, rules = ACTIONS[name].service, ACTIONS[name].rules
    paths = list(leaves(find_operation(service, name).input_shape, ""))
    assert [path for path in paths if rule_of(name, path) is None] == []
    for rule in rules:
        assert any(path == rule or path.startswith((f"{rule}.", f"{rule}[]")) for path in paths), rule
    for rule in rules.values():
        assert rule.fate is Fate.USED or rule.reason


def test_a_request_becomes_an_estimator():
    translated = translate(REQUEST, SETTINGS)
    assert translated.estimator == "PyTorch"
    assert keywords(translated) | {"metric_definitions": None} == {
        "entry_point": "train.py",
        "source_dir": "file:///srv/s3/mine/code/sourcedir.tar.gz",
        "hyperparameters": {"epochs": 2, "hub_token": None},
        "distribution": {"mpi": {"enabled": True, "processes_per_host": 2}},
        "instance_type": "local_process",
        "instance_count": 2,
        "gpus": 8,
        "output_path": "file:///srv/s3/mine/out",
        "checkpoint_s3_uri": "file:///srv/s3/mine/checkpoints/digits",
        "max_run": 600,
        "environment": {"MINE": "1"},
        "metric_definitions": None,
    }
    (channel,) = translated.channels
    assert (channel.name, channel.input.s3_data, channel.input.distribution) == (
        "training",
        "file:///srv/s3/mine/data",
        "ShardedByS3Key",
    )
    assert channel.path == "/srv/s3/mine/data"


@pytest.mark.parametrize("wanted", [True, False])
def test_the_check_of_hosts_is_that_of_the_request(wanted):
    translated = translate({**REQUEST, "InfraCheckConfig": {"EnableInfraCheck": wanted}}, SETTINGS)
    assert keywords(translated)["enable_infra_check"] is wanted


def test_images():
    mapping = Mapping(images={"*/mine:*": "mine:local"})
    uris = {
        "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.1": None,
        "1.dkr.ecr.eu/mine:3": "mine:local",
        "other:1": "other:1",
    }
    for uri, expected in uris.items():
        request = {**REQUEST, "AlgorithmSpecification": {"TrainingImage": uri, "TrainingInputMode": "File"}}
        arguments = translate(request, Settings(backend="local", mapping=mapping)).arguments
        assert arguments.image_uri == expected


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"OutputDataConfig": {"S3OutputPath": "s3://mine/", "KmsKeyId": "k"}}, "OutputDataConfig.KmsKeyId: "),
        ({"ServerlessJobConfig": {"JobType": "FineTuning"}}, "ServerlessJobConfig.JobType: "),
        ({"OutputDataConfig": {"S3OutputPath": "s3://../etc"}}, "The specified bucket is not valid"),
        ({"ResourceConfig": {"InstanceType": "ml.m5.large", "InstanceCount": 1}}, "is 0 Instances"),
        ({"ResourceConfig": {"InstanceType": "ml.p4d.24xlarge"}}, "InstanceCount is missing"),
        ({"AlgorithmSpecification": {"TrainingInputMode": "File"}}, "TrainingImage: missing"),
        ({"InputDataConfig": [{"ChannelName": "a", "DataSource": {}}]}, "channel a has no S3DataSource"),
        ({"InputDataConfig": REQUEST["InputDataConfig"] * 2}, "the channel training stands twice"),
        ({"StoppingCondition": {"MaxRuntimeInSeconds": 0}}, "StoppingCondition.MaxRuntimeInSeconds: expected int >= 1"),
        (
            {"HyperParameters": {**REQUEST["HyperParameters"], "sagemaker_hang_timeout": "-1"}},
            "HyperParameters.sagemaker_hang_timeout: expected int >= 0",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_requests_that_are_refused(changes, text):
    with pytest.raises(ApiError, match=text.replace(".", r"\.")):
        translate({**REQUEST, **changes}, SETTINGS)


def test_groups_count_before_a_type_of_all_hosts():
    group = {"InstanceGroupName": "a", "InstanceType": "ml.p4d.24xlarge", "InstanceCount": 1}
    resources = {**REQUEST["ResourceConfig"], "InstanceGroups": [group]}
    translated = translate({**REQUEST, "ResourceConfig": resources}, SETTINGS)
    assert [(each.instance_type, each.instance_count) for each in groups_of(translated)] == [("local_process", 1)]


def test_members_that_are_not_set_are_not_refused():
    check_fates("CreateTrainingJob", {**REQUEST, "ExperimentConfig": {}, "OutputDataConfig": {"KmsKeyId": ""}})


@pytest.mark.parametrize("key", ["..", "a/../b", "a//b", "b//", ".", "a/\0", ".herringbone/facts", "x" * 256, "\uf7ff"])
def test_an_address_that_is_no_path_is_refused(key):
    with pytest.raises(ApiError, match="a job opens files by their paths"):
        local_address(f"s3://mine/{key}", SETTINGS)


@pytest.mark.parametrize(
    "key", ["50%.csv", "50%25.csv", "%2E%2E", "a\\b", "~", "$HOME", "a b%/", ".c/d", "\u00fc\t\n#?"]
)
def test_the_path_of_an_address_is_its_key(key):
    """Jobs saw `50%25.csv` for the key `50%.csv`."""
    address = local_address(f"s3://mine/{key}", SETTINGS)
    assert str(local_path(address, base=Path("/"))) == f"/srv/s3/mine/{key.removesuffix('/')}"


@pytest.mark.parametrize("place", ["data", "code", "out", "out/digits-1/output/model", "checkpoints/digits", ""])
def test_addresses_lead_through_no_link(tmp_path, place):
    """A container can make links in its folder of checkpoints; the engine follows them when it mounts a channel."""
    settings = msgspec.structs.replace(SETTINGS, buckets=str(tmp_path / "buckets"))
    (tmp_path / "secrets").mkdir()
    link = tmp_path / "buckets" / "mine" / place
    link.parent.mkdir(parents=True)
    translated = translate(REQUEST, settings)
    check_links(translated, "digits-1", settings)
    link.symlink_to(tmp_path / "secrets")
    if not place:
        # The bucket: only its administrator can make that link.
        check_links(translated, "digits-1", settings)
        return
    with pytest.raises(ApiError, match=f"s3://mine/{place} is a link"):
        check_links(translated, "digits-1", settings)


@pytest.mark.parametrize("key", ["data/a//b", "data/%", "data/..", "data/x\0", "data/a", "data"])
def test_objects_that_a_job_would_not_see_are_refused(tmp_path, key):
    settings, store = msgspec.structs.replace(SETTINGS, buckets=str(tmp_path)), Store(tmp_path)
    store.create_bucket("mine")
    translated = translate({**REQUEST, **training("data")}, settings)
    # `data/` marks a folder, and the others are not in the channel.
    for name in ("data/", "data-2//b", "other/..", "data/50%.csv", "data/a/b"):
        with store.new_file("mine") as file:
            store.keep(file, "mine", name, "0" * 32, {})
    check_links(translated, "digits-1", settings)
    with store.new_file("mine") as file:
        file.write(b"content")
        store.keep(file, "mine", key, "0" * 32, {})
    if key == "data/%":
        check_links(translated, "digits-1", settings)
        return
    with pytest.raises(ApiError, match=re.escape(f"s3://mine/{ascii(key)[1:-1]}: a job opens files by their paths")):
        check_links(translated, "digits-1", settings)


def held(settings=SETTINGS, *, searches=False, name="digits-1", hosts=1, **members):
    """Return the places of a job that reads s3://mine/data and has these members."""
    resources = {**REQUEST["ResourceConfig"], "InstanceCount": hosts}
    request = {
        **REQUEST,
        "CheckpointConfig": {"S3Uri": f"s3://mine/own/{name}"},
        "ResourceConfig": resources,
        **members,
    }
    return held_by(translate(request, settings), name, settings, searches=searches)


def checkpoints(key):
    return {"CheckpointConfig": {"S3Uri": f"s3://mine/{key}"}}


def tensorboard(key):
    return {"TensorBoardOutputConfig": {"S3OutputPath": f"s3://mine/{key}"}}


def training(key):
    source = {"S3DataType": "S3Prefix", "S3Uri": f"s3://mine/{key}"}
    return {"InputDataConfig": [{"ChannelName": "training", "DataSource": {"S3DataSource": source}}]}


@pytest.mark.parametrize("writer", [checkpoints("ck"), tensorboard("ck")])
@pytest.mark.parametrize(
    ("members", "place"),
    [
        (training("ck/x"), "mine/ck/x"),
        (training("ck"), "mine/ck"),
        (training("ck/a/b c"), "mine/ck/a/b c"),
        (checkpoints("ck/x"), "mine/ck/x"),
        (tensorboard("ck/x"), "mine/ck/x"),
        ({"OutputDataConfig": {"S3OutputPath": "s3://mine/ck"}}, "mine/ck/digits-1/output/model"),
        ({"OutputDataConfig": {"S3OutputPath": "s3://mine/ck/out"}}, "mine/ck/out/digits-1/output/model"),
        ({"HyperParameters": {"sagemaker_program": "a.py", "sagemaker_submit_directory": "s3://mine/ck/a.tar.gz"}}, ""),
    ],
)
def test_no_address_is_in_a_folder_that_a_running_job_writes(writer, members, place):
    """Its script could replace a part of the address by a link, between our check and the engine's mount."""
    new, running = held(**members), held(name="other", **writer)
    with pytest.raises(ApiError, match=f"s3://{place}.* is in s3://mine/ck, to which another job writes") as error:
        check_held(new, [held(name="third"), running])
    assert error.value.code == "ResourceInUse"
    with pytest.raises(ApiError, match="is in s3://mine/ck, to which this job would write"):
        check_held(running, [new])
    # One job alone: its hosts start one after the other, and again after a failure.
    with pytest.raises(ApiError, match="is in s3://mine/ck, to which this job writes") as error:
        check_held(held(**{**writer, **members}) if writer.keys() != members.keys() else both(writer, members), [])
    assert error.value.code == "ValidationException"


def both(writer, members):
    """Return the places of a job that has two writers of one kind: no request can say so."""
    one, two = held(**writer), held(**members)
    return Held((*one.opens, *two.opens), (*one.writes, *two.writes))


def test_places_side_by_side_are_free():
    others = [
        held(name="a", **checkpoints("ck")),
        held(name="b", **checkpoints("ck-2/x")),
        held(name="c", hosts=2, **tensorboard("tb")),
        held(name="tuned", searches=True, **checkpoints("all")),
        held(name="tuned-2", searches=True, **checkpoints("all")),
    ]
    for members in (
        checkpoints("ck"),
        {**checkpoints("all/tuned-001"), **training("ck-2")},
        {**training("ck-"), "OutputDataConfig": {"S3OutputPath": "s3://mine/all"}},
        tensorboard("tb"),
    ):
        if members == tensorboard("tb"):
            with pytest.raises(ApiError, match="s3://mine/tb/algo-1 is in s3://mine/tb, to which this job would write"):
                check_held(held(**members), others)
            check_held(held(hosts=2, **members), others)
            continue
        check_held(held(**members), others)
    for members in (training("all/tuned-007/x"), checkpoints("all")):
        with pytest.raises(ApiError, match="is in s3://mine/all"):
            check_held(held(**members), others)
    assert check_held(held(searches=True, **checkpoints("all")), others) is None


def test_pipe_mode_reads_no_link_in_a_channel(tmp_path):
    """The service itself reads these files, outside of the container."""
    settings = msgspec.structs.replace(SETTINGS, buckets=str(tmp_path))
    (tmp_path / "mine" / "data" / "deep").mkdir(parents=True)
    (tmp_path / "mine" / "data" / "deep" / "keys").symlink_to("/etc/hostname")
    algorithm = {**REQUEST["AlgorithmSpecification"], "TrainingInputMode": "Pipe"}
    check_links(translate({**REQUEST, **training("data")}, settings), "digits-1", settings)
    with pytest.raises(ApiError, match="channel training: deep/keys is a link; remove it"):
        check_links(translate({**REQUEST, "AlgorithmSpecification": algorithm}, settings), "digits-1", settings)


@pytest.mark.parametrize("how", ["Pipe", "ShardedByS3Key"])
def test_no_running_job_writes_below_a_channel_that_the_service_lists(how):
    inputs = training("all")["InputDataConfig"]
    plain, running = held(InputDataConfig=inputs), held(name="other", **checkpoints("all/ck"))
    # In a mount, a link leads nowhere.
    check_held(plain, [running])
    if how == "Pipe":
        listed = held(InputDataConfig=[{**inputs[0], "InputMode": how}])
    else:
        inputs[0]["DataSource"]["S3DataSource"]["S3DataDistributionType"] = how
        listed = held(InputDataConfig=inputs)
    with pytest.raises(ApiError, match="s3://mine/all has s3://mine/all/ck, to which another job writes"):
        check_held(listed, [running])


def test_two_buckets_that_are_one_folder_are_one(tmp_path):
    settings = msgspec.structs.replace(SETTINGS, buckets=str(tmp_path))
    (tmp_path / "mine").mkdir()
    (tmp_path / "alias").symlink_to("mine")
    running = held(settings, name="other", CheckpointConfig={"S3Uri": "s3://alias/ck"})
    with pytest.raises(ApiError, match="s3://mine/ck/x is in s3://mine/ck"):
        check_held(held(settings, **training("ck/x")), [running])
    assert held(msgspec.structs.replace(SETTINGS, buckets=None)) == Held()


def test_a_manifest_names_no_files_of_the_service():
    channel = training("data")["InputDataConfig"][0]
    channel["DataSource"]["S3DataSource"]["S3DataType"] = "AugmentedManifestFile"
    with pytest.raises(ApiError, match="channel training: S3DataType is S3Prefix alone with buckets"):
        translate({**REQUEST, "InputDataConfig": [channel]}, SETTINGS)


@pytest.mark.parametrize(
    ("member", "name"), [("CheckpointConfig", "S3Uri"), ("TensorBoardOutputConfig", "S3OutputPath")]
)
def test_scripts_write_into_no_whole_bucket(member, name):
    with pytest.raises(ApiError, match=f"{member}.{name}: s3://mine/ is a whole bucket"):
        translate({**REQUEST, member: {name: "s3://mine/"}}, SETTINGS)


def test_roles_are_names():
    check_role("arn:aws:iam::000000000000:role/me", SETTINGS)
    for arn, settings in (
        ("arn:aws:iam::111111111111:role/me", SETTINGS),
        ("arn:aws:iam::000000000000:role/me", Settings(backend="local", mapping=Mapping(roles=("other",)))),
    ):
        with pytest.raises(ApiError) as caught:
            check_role(arn, settings)
        assert caught.value.code == "AccessDeniedException"


def test_messages_name_what_the_client_sent() -> None:
    settings = Settings(backend="local", buckets="/srv/my s3/")
    assert (
        refused(InputError("channel 'a': file:///srv/my%20s3/mine/x: empty"), settings).message
        == "channel 'a': s3://mine/x: empty"
    )
    assert refused(OptionError("output_path: /srv/my s3/mine/out: a file"), settings).message == (
        "OutputDataConfig.S3OutputPath: s3://mine/out: a file"
    )
    without_buckets = Settings(backend="local")
    assert refused(OptionError("gpus: this machine has 0"), without_buckets).message == "gpus: this machine has 0"
