"""The table of options and members: both ways, and against the options and botocore's model."""

import copy

import pytest

from herringbone.backends.review.checks import UNUSED
from herringbone.plan.options.members import FIELDS, take_options, to_members
from herringbone.plan.options.typed import Options

VALUES = {
    "disable_output_compression": True,
    "instance_groups": [{"instance_group_name": "a", "instance_type": "ml.m5.large", "instance_count": 2}],
    "tensorboard_output_config": {"s3_output_path": "s3://b/t"},
    "tags": [{"Key": "team", "Value": "vision"}],
    "enable_infra_check": False,
    "keep_alive_period_in_seconds": 0,
}
EVERY = {option: VALUES.get(option, option) for option in FIELDS}
NEEDS = {option: field.needs for option, field in FIELDS.items() if field.needs}


def test_options_become_members_and_members_options():
    members = to_members(EVERY)
    rest = copy.deepcopy(members)
    assert take_options(rest) == EVERY
    assert members["ResourceConfig"]["InstanceGroups"][0] == {
        "InstanceGroupName": "a",
        "InstanceType": "ml.m5.large",
        "InstanceCount": 2,
    }
    assert members["InfraCheckConfig"] == {"EnableInfraCheck": False}


def test_each_option_has_a_member_of_its_own_and_those_of_aws_alone_are_unused_elsewhere():
    assert len(FIELDS) == 32
    assert len({field.path for field in FIELDS.values()}) == len(FIELDS)
    assert {*NEEDS.values()} <= {*FIELDS} <= {*Options.__struct_fields__}
    assert {"role", "volume_size", "subnets"} <= {option for option in UNUSED if option in FIELDS}


@pytest.mark.parametrize("option", NEEDS)
def test_an_option_without_the_one_that_it_needs_is_left_out(option):
    assert to_members({option: "a"}) == {}
    assert take_options(to_members({option: "a", NEEDS[option]: "b"})) == {option: "a", NEEDS[option]: "b"}


def test_a_member_that_no_option_has_is_left():
    rest = {"ResourceConfig": {"VolumeSizeInGB": 5, "Novel": 1}, "OutputDataConfig": {"CompressionType": "GZIP"}}
    assert take_options(rest) == {"volume_size": 5}
    assert rest == {"ResourceConfig": {"Novel": 1}, "OutputDataConfig": {}}


def test_botocores_model_has_each_member():
    pytest.importorskip("botocore", reason="the extra aws is not installed")
    from herringbone.serve.model import find_operation

    top = find_operation("sagemaker", "CreateTrainingJob").input_shape
    for field in FIELDS.values():
        shape = top
        for name in field.path.split("."):
            shape = shape.members[name]
