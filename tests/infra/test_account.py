"""Apply infra/terraform to a mock of AWS; check resources, permissions, and that `destroy` removes everything."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.infra.conftest import OTHER_REPOSITORY, Account
from tests.infra.policy import allows
from tests.infra.terraform import ROOT, Terraform

from herringbone.images.labels import repository
from herringbone.plan.options.typed import parse_options

pytestmark = pytest.mark.terraform

ACCOUNT, REGION = "123456789012", "eu-central-1"
NAME = f"herringbone-{REGION}-{ACCOUNT}"
BUCKET = f"arn:aws:s3:::{NAME}"
ROLE = f"arn:aws:iam::{ACCOUNT}:role/herringbone-{REGION}-job"
LOGS = f"arn:aws:logs:{REGION}:{ACCOUNT}:log-group:/aws/sagemaker/TrainingJobs"
STREAM = f"{LOGS}:log-stream:mine/algo-1-1"
JOB = f"arn:aws:sagemaker:{REGION}:{ACCOUNT}:training-job/mine"
TUNING = f"arn:aws:sagemaker:{REGION}:{ACCOUNT}:hyper-parameter-tuning-job/mine"
IMAGES = f"arn:aws:ecr:{REGION}:{ACCOUNT}:repository"
EC2 = f"arn:aws:ec2:{REGION}:{ACCOUNT}"
TO_SAGEMAKER = {"iam__PassedToService": "sagemaker.amazonaws.com"}


def test_formatted(terraform_program: str) -> None:
    Terraform(ROOT).run("fmt", "-check", "-diff", "-recursive")


def test_valid(initialised: Terraform) -> None:
    initialised.run("validate")


def test_a_second_plan_changes_nothing(account: Account) -> None:
    assert account.planned == {"aws_s3_bucket_lifecycle_configuration.this": ["create"]}  # not applied on purpose


def test_nothing_remains_after_destroy(account: Account) -> None:
    assert len(account.resources) == 27
    assert account.remaining == {kind: [] for kind in account.remaining}


def test_outputs_are_valid_options(account: Account) -> None:
    options = parse_options(account.outputs["options"])
    assert (options.role, options.code_location, options.output_path) == (
        ROLE,
        f"s3://{NAME}/herringbone",
        f"s3://{NAME}/herringbone/jobs",
    )
    assert options.subnets == tuple(row["id"] for row in _resources_of_kind(account, "aws_subnet"))
    assert options.security_group_ids == (account.resources['aws_security_group.job["this"]']["id"],)
    assert (options.output_kms_key, options.volume_kms_key) == (None, None)
    assert account.outputs["bucket"] == NAME
    assert account.outputs["checkpoints"] == f"s3://{NAME}/herringbone/checkpoints"
    registry = f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com"
    assert account.outputs["registry"] == registry
    pushed = [repository(framework) for framework in ("pytorch", "tensorflow", "mxnet")]
    assert account.outputs["repositories"] == {name: f"{registry}/{name}" for name in pushed}
    assert account.outputs["caller_policy_arn"] == f"arn:aws:iam::{ACCOUNT}:policy/herringbone-{REGION}-caller"


def test_no_secret_is_in_state_or_outputs(account: Account) -> None:
    assert account.secret_outputs == []
    kinds = {address.split(".")[0] for address in account.resources}
    assert not kinds & {"aws_iam_access_key", "aws_iam_user", "aws_secretsmanager_secret_version", "aws_ssm_parameter"}


def test_the_bucket_is_private_encrypted_versioned_and_tls_only(account: Account) -> None:
    access = account.resources["aws_s3_bucket_public_access_block.this"]
    blocks = ("block_public_acls", "block_public_policy", "ignore_public_acls", "restrict_public_buckets")
    assert [access[block] for block in blocks] == [True] * 4
    [rule] = account.resources["aws_s3_bucket_server_side_encryption_configuration.this"]["rule"]
    assert rule["apply_server_side_encryption_by_default"] == [{"kms_master_key_id": "", "sse_algorithm": "AES256"}]
    assert account.resources["aws_s3_bucket_versioning.this"]["versioning_configuration"][0]["status"] == "Enabled"
    [ownership] = account.resources["aws_s3_bucket_ownership_controls.this"]["rule"]
    assert ownership["object_ownership"] == "BucketOwnerEnforced"
    assert account.resources["aws_s3_bucket.this"]["force_destroy"] is False
    [statement] = json.loads(account.resources["aws_s3_bucket_policy.this"]["policy"])["Statement"]
    assert (statement["Effect"], statement["Principal"]) == ("Deny", "*")
    policy = {"Statement": [statement, {"Effect": "Allow", "Action": "*", "Resource": "*"}]}
    for resource in (BUCKET, f"{BUCKET}/herringbone/code/a"):
        assert allows(policy, "s3:GetObject", resource, aws__SecureTransport="true")
        assert not allows(policy, "s3:GetObject", resource, aws__SecureTransport="false")


def test_the_lifecycle_keeps_models_and_expires_what_can_be_recreated(account: Account) -> None:
    rules = {}
    for rule in account.lifecycle["rule"]:
        assert rule["status"] == "Enabled"
        [rule_filter] = rule["filter"]
        days = [
            (kind, next(days for key, days in rule[kind][0].items() if "days" in key))
            for kind in ("expiration", "noncurrent_version_expiration", "abort_incomplete_multipart_upload")
            if rule[kind]
        ]
        rules[rule["id"]] = (rule_filter.get("prefix"), days)
    assert rules == {
        "unfinished-uploads": ("", [("abort_incomplete_multipart_upload", 7)]),
        "replaced": ("", [("noncurrent_version_expiration", 30)]),
        "herringbone/checkpoints": ("herringbone/checkpoints/", [("expiration", 90)]),
        "herringbone/code": ("herringbone/code/", [("expiration", 90)]),
    }


def test_repositories_scan_images_and_have_immutable_tags(account: Account) -> None:
    for repository_values in _resources_of_kind(account, "aws_ecr_repository"):
        assert repository_values["image_tag_mutability"] == "IMMUTABLE"
        assert repository_values["image_scanning_configuration"] == [{"scan_on_push": True}]
        assert repository_values["force_delete"] is False
    policies = [
        json.loads(values["policy"])["rules"] for values in _resources_of_kind(account, "aws_ecr_lifecycle_policy")
    ]
    assert [[rule["selection"]["countNumber"] for rule in rules] for rules in policies] == [[14, 50]] * 3


def test_the_network_reaches_s3_and_other_hosts_only(account: Account) -> None:
    subnets = _resources_of_kind(account, "aws_subnet")
    assert [row["cidr_block"] for row in subnets] == ["10.40.0.0/18", "10.40.64.0/18"]
    assert [row["map_public_ip_on_launch"] for row in subnets] == [False, False]
    assert len({row["availability_zone"] for row in subnets}) == 2
    group = account.resources['aws_security_group.job["this"]']["id"]
    endpoint = account.resources['aws_vpc_endpoint.s3["this"]']
    assert (endpoint["vpc_endpoint_type"], endpoint["service_name"]) == ("Gateway", f"com.amazonaws.{REGION}.s3")
    assert endpoint["route_table_ids"] == [account.resources['aws_route_table.job["this"]']["id"]]
    ingress = _resources_of_kind(account, "aws_vpc_security_group_ingress_rule")
    assert [(rule["ip_protocol"], rule["referenced_security_group_id"]) for rule in ingress] == [("-1", group)]
    egress = [
        (
            rule["ip_protocol"],
            rule["from_port"],
            rule["to_port"],
            rule["referenced_security_group_id"] or rule["prefix_list_id"],
        )
        for rule in _resources_of_kind(account, "aws_vpc_security_group_egress_rule")
    ]
    assert egress == [("-1", None, None, group), ("tcp", 443, 443, endpoint["prefix_list_id"])]
    assert not {"aws_internet_gateway", "aws_nat_gateway", "aws_eip"} & {
        address.split(".")[0] for address in account.resources
    }


def test_only_sagemaker_for_this_account_assumes_the_role(account: Account) -> None:
    trust = json.loads(account.resources["aws_iam_role.job"]["assume_role_policy"])
    assert [statement["Principal"] for statement in trust["Statement"]] == [{"Service": "sagemaker.amazonaws.com"}]
    assert allows(trust, "sts:AssumeRole", aws__SourceAccount=ACCOUNT, aws__SourceArn=JOB)
    assert not allows(trust, "sts:AssumeRole")
    other_job = JOB.replace(ACCOUNT, "210987654321")
    assert not allows(trust, "sts:AssumeRole", aws__SourceAccount="210987654321", aws__SourceArn=other_job)
    assert not allows(trust, "sts:AssumeRole", aws__SourceAccount=ACCOUNT, aws__SourceArn=other_job)


# Action, resource and context of requests.
CALLER_MAY: list[tuple[str, str, dict[str, str]]] = [
    ("sagemaker:CreateTrainingJob", JOB, {}),
    ("sagemaker:AddTags", JOB, {}),
    ("sagemaker:DescribeTrainingJob", JOB, {}),
    ("sagemaker:StopTrainingJob", JOB, {}),
    ("sagemaker:ListTags", JOB, {}),
    ("sagemaker:CreateHyperParameterTuningJob", TUNING, {}),
    ("sagemaker:AddTags", TUNING, {}),
    ("sagemaker:DescribeHyperParameterTuningJob", TUNING, {}),
    ("sagemaker:ListTrainingJobsForHyperParameterTuningJob", TUNING, {}),
    ("sagemaker:StopHyperParameterTuningJob", TUNING, {}),
    ("sagemaker:ListTags", TUNING, {}),
    ("pricing:GetProducts", "*", {}),
    ("sagemaker:ListTrainingJobs", "*", {}),
    ("iam:GetRole", ROLE, {}),
    ("iam:PassRole", ROLE, TO_SAGEMAKER),
    ("s3:ListBucket", BUCKET, {}),
    ("s3:GetBucketLocation", BUCKET, {}),
    ("s3:PutObject", f"{BUCKET}/herringbone/code/mine/source/sourcedir.tar.gz", {}),
    ("s3:PutObject", f"{BUCKET}/herringbone/data/training/part-0", {}),
    ("s3:AbortMultipartUpload", f"{BUCKET}/herringbone/data/training/part-0", {}),
    ("s3:GetObject", f"{BUCKET}/herringbone/code/mine/source/sourcedir.tar.gz", {}),
    ("s3:GetObject", f"{BUCKET}/herringbone/jobs/mine/output/model.tar.gz", {}),
    ("s3:GetObject", f"{BUCKET}/herringbone/checkpoints/mine/step-1", {}),
    ("logs:DescribeLogStreams", f"{LOGS}:log-stream:", {}),
    ("logs:GetLogEvents", STREAM, {}),
    ("ecr:GetAuthorizationToken", "*", {}),
    ("ecr:DescribeImages", f"{IMAGES}/herringbone/pytorch", {}),
    ("ecr:BatchCheckLayerAvailability", f"{IMAGES}/herringbone/pytorch", {}),
    ("ecr:InitiateLayerUpload", f"{IMAGES}/herringbone/pytorch", {}),
    ("ecr:UploadLayerPart", f"{IMAGES}/herringbone/pytorch", {}),
    ("ecr:CompleteLayerUpload", f"{IMAGES}/herringbone/tensorflow", {}),
    ("ecr:PutImage", f"{IMAGES}/herringbone/tensorflow", {}),
]
CALLER_MAY_NOT: list[tuple[str, str, dict[str, str]]] = [
    ("sagemaker:CreateTrainingJob", JOB.replace(ACCOUNT, "210987654321"), {}),
    ("sagemaker:CreateTrainingJob", JOB.replace(REGION, "us-east-1"), {}),
    ("sagemaker:CreateEndpoint", f"arn:aws:sagemaker:{REGION}:{ACCOUNT}:endpoint/mine", {}),
    ("sagemaker:CreateNotebookInstance", f"arn:aws:sagemaker:{REGION}:{ACCOUNT}:notebook-instance/mine", {}),
    ("sagemaker:AddTags", f"arn:aws:sagemaker:{REGION}:{ACCOUNT}:endpoint/mine", {}),
    ("iam:PassRole", ROLE, {}),
    ("iam:PassRole", ROLE, {"iam__PassedToService": "ec2.amazonaws.com"}),
    ("iam:PassRole", f"arn:aws:iam::{ACCOUNT}:role/admin", TO_SAGEMAKER),
    ("iam:GetRole", f"arn:aws:iam::{ACCOUNT}:role/admin", {}),
    ("iam:CreateRole", ROLE, {}),
    ("iam:PutRolePolicy", ROLE, {}),
    ("iam:AttachRolePolicy", ROLE, {}),
    ("iam:UpdateAssumeRolePolicy", ROLE, {}),
    ("sts:AssumeRole", ROLE, {}),
    ("s3:PutObject", f"{BUCKET}/herringbone/jobs/mine/output/model.tar.gz", {}),
    ("s3:PutObject", f"{BUCKET}/elsewhere", {}),
    ("s3:DeleteObject", f"{BUCKET}/herringbone/code/mine", {}),
    ("s3:DeleteObjectVersion", f"{BUCKET}/herringbone/code/mine", {}),
    ("s3:PutBucketPolicy", BUCKET, {}),
    ("s3:DeleteBucket", BUCKET, {}),
    ("s3:ListBucket", f"{BUCKET}-2", {}),
    ("s3:GetObject", "arn:aws:s3:::another/code/a", {}),
    ("s3:ListAllMyBuckets", "*", {}),
    ("logs:GetLogEvents", f"arn:aws:logs:{REGION}:{ACCOUNT}:log-group:/aws/lambda/pay:log-stream:a", {}),
    ("logs:DeleteLogGroup", f"{LOGS}:*", {}),
    ("logs:PutLogEvents", STREAM, {}),
    ("ecr:PutImage", f"{IMAGES}/another", {}),
    ("ecr:PutImage", OTHER_REPOSITORY, {}),
    ("ecr:DeleteRepository", f"{IMAGES}/herringbone/pytorch", {}),
    ("ecr:BatchDeleteImage", f"{IMAGES}/herringbone/pytorch", {}),
    ("ecr:PutImageTagMutability", f"{IMAGES}/herringbone/pytorch", {}),
    ("kms:Decrypt", f"arn:aws:kms:{REGION}:{ACCOUNT}:key/any", {}),
    ("ec2:RunInstances", "*", {}),
]
JOB_MAY: list[tuple[str, str, dict[str, str]]] = [
    ("s3:ListBucket", BUCKET, {"s3__prefix": "herringbone/data/training"}),
    ("s3:GetBucketLocation", BUCKET, {}),
    ("s3:GetObject", f"{BUCKET}/herringbone/code/mine/source/sourcedir.tar.gz", {}),
    ("s3:GetObject", f"{BUCKET}/herringbone/data/training/part-0", {}),
    ("s3:GetObject", f"{BUCKET}/herringbone/checkpoints/mine/step-1", {}),
    ("s3:PutObject", f"{BUCKET}/herringbone/checkpoints/mine/step-1", {}),
    ("s3:PutObject", f"{BUCKET}/herringbone/jobs/mine/output/model.tar.gz", {}),
    ("logs:CreateLogGroup", LOGS, {}),
    ("logs:CreateLogStream", STREAM, {}),
    ("logs:PutLogEvents", STREAM, {}),
    ("cloudwatch:PutMetricData", "*", {"cloudwatch__namespace": "/aws/sagemaker/TrainingJobs"}),
    ("ecr:GetAuthorizationToken", "*", {}),
    ("ecr:BatchGetImage", f"{IMAGES}/herringbone/pytorch", {}),
    ("ecr:GetDownloadUrlForLayer", OTHER_REPOSITORY, {}),
    ("ec2:CreateNetworkInterface", f"{EC2}:network-interface/eni-1", {}),
    ("ec2:DescribeSubnets", "*", {}),
]
JOB_MAY_NOT: list[tuple[str, str, dict[str, str]]] = [
    ("s3:ListBucket", BUCKET, {}),
    ("s3:ListBucket", BUCKET, {"s3__prefix": "elsewhere"}),
    ("s3:ListBucket", "arn:aws:s3:::another", {"s3__prefix": "herringbone/data/training"}),
    ("s3:PutObject", f"{BUCKET}/herringbone/code/mine/source/sourcedir.tar.gz", {}),
    ("s3:PutObject", f"{BUCKET}/herringbone/data/training/part-0", {}),
    ("s3:GetObject", "arn:aws:s3:::another/data/a", {}),
    ("s3:DeleteObject", f"{BUCKET}/herringbone/jobs/mine/output/model.tar.gz", {}),
    ("s3:PutBucketPolicy", BUCKET, {}),
    ("logs:PutLogEvents", f"arn:aws:logs:{REGION}:{ACCOUNT}:log-group:/aws/lambda/pay:log-stream:a", {}),
    ("logs:DeleteLogGroup", f"{LOGS}:*", {}),
    ("cloudwatch:PutMetricData", "*", {"cloudwatch__namespace": "Billing"}),
    ("ecr:PutImage", f"{IMAGES}/herringbone/pytorch", {}),
    ("ecr:BatchGetImage", f"{IMAGES}/another", {}),
    ("sagemaker:CreateTrainingJob", JOB, {}),
    ("iam:PassRole", ROLE, TO_SAGEMAKER),
    ("sts:AssumeRole", ROLE, {}),
    ("ec2:CreateNetworkInterface", f"{EC2}:subnet/subnet-of-another", {}),
    ("ec2:DeleteNetworkInterface", f"{EC2}:network-interface/eni-1", {"ec2__Vpc": f"{EC2}:vpc/vpc-of-another"}),
    ("ec2:RunInstances", "*", {}),
    ("secretsmanager:GetSecretValue", "*", {}),
]


def test_the_caller_may_submit_follow_stop_and_push(account: Account) -> None:
    policy = json.loads(account.resources["aws_iam_policy.caller"]["policy"])
    assert [case for case in CALLER_MAY if not allows(policy, case[0], case[1], **case[2])] == []
    assert [case for case in CALLER_MAY_NOT if allows(policy, case[0], case[1], **case[2])] == []


def test_a_job_may_read_its_inputs_and_write_its_results(account: Account) -> None:
    policy = json.loads(account.resources["aws_iam_role_policy.job"]["policy"])
    own_network = [
        *(("ec2:CreateNetworkInterface", subnet["arn"], {}) for subnet in _resources_of_kind(account, "aws_subnet")),
        (
            "ec2:CreateNetworkInterfacePermission",
            f"{EC2}:network-interface/eni-1",
            {"ec2__Vpc": account.resources['aws_vpc.job["this"]']["arn"]},
        ),
    ]
    assert [case for case in [*JOB_MAY, *own_network] if not allows(policy, case[0], case[1], **case[2])] == []
    assert [case for case in JOB_MAY_NOT if allows(policy, case[0], case[1], **case[2])] == []


def _resources_of_kind(account: Account, kind: str) -> list[dict[str, Any]]:
    return [values for address, values in sorted(account.resources.items()) if address.startswith(f"{kind}.")]
