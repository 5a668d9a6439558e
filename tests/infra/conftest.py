"""Fixtures: Terraform, a mock of AWS, and an account in the mock that infra/terraform has prepared."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.aws_mock import mock_aws
from tests.infra.terraform import PLUGINS, PROVIDER, Terraform, find_plugins, managed


class Account(NamedTuple):
    """Observations of one account: after `apply`, at a second plan, and after `destroy`."""

    resources: dict[str, dict[str, Any]]  # values by address
    outputs: dict[str, Any]
    secret_outputs: list[str]
    planned: dict[str, list[str]]  # actions of the second plan, by address
    lifecycle: dict[str, Any]
    remaining: dict[str, Any]  # names of resources that the mock still has after `destroy`


@pytest.fixture(scope="session")
def terraform_program() -> str:
    program = shutil.which("terraform")
    if program is None:
        pytest.skip("terraform is not on PATH")
    return program


@pytest.fixture(scope="session")
def plugins(terraform_program: str) -> Path:
    """Return the folder with the AWS provider."""
    folder = find_plugins()
    if folder is None:
        pytest.skip(
            f"no {PROVIDER} found; run `terraform providers mirror DIR` in infra/terraform and set {PLUGINS}=DIR"
        )
    return folder


@pytest.fixture(scope="session")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the URL of a mock of AWS on loopback."""
    with mock_aws(tmp_path_factory.mktemp("aws") / "log") as address:
        yield address


@pytest.fixture(scope="session")
def initialised(plugins: Path, tmp_path_factory: pytest.TempPathFactory) -> Terraform:
    """Return an initialised copy of all files, with the provider that the lock file names."""
    terraform = Terraform(tmp_path_factory.mktemp("initialised"))
    terraform.copy()
    terraform.run("init", f"-plugin-dir={plugins}", "-input=false", "-lockfile=readonly")
    return terraform


@pytest.fixture(scope="session")
def account(initialised: Terraform, aws: str, tmp_path_factory: pytest.TempPathFactory) -> Account:
    """Apply, plan again and destroy, once for all tests."""
    terraform = Terraform(tmp_path_factory.mktemp("account") / "terraform", aws)
    shutil.copytree(initialised.folder, terraform.folder, symlinks=True)
    # After creating a lifecycle, the provider waits a fixed 55 s for S3 to replicate it. So the tests only plan it.
    (terraform.folder / "lifecycle.tf").unlink()
    # Loopback has no host names for buckets, so requests name the bucket in the path.
    (terraform.folder / "mock_override.tf").write_text('provider "aws" {\n  s3_use_path_style = true\n}\n')
    terraform.set_variables(region="eu-central-1", network={}, other_repository_arns=[OTHER_REPOSITORY])
    terraform.run("apply", "-auto-approve", "-input=false")
    terraform.copy()
    terraform.run("plan", "-out=second", "-input=false")
    plan = terraform.show("second")
    changes = {row["address"]: row["change"] for row in plan["resource_changes"]}
    planned = {address: change["actions"] for address, change in changes.items() if change["actions"] != ["no-op"]}
    state = plan["prior_state"]["values"]
    terraform.run("destroy", "-auto-approve", "-input=false", "-refresh=false")  # the plan has just refreshed the state
    return Account(
        resources=managed(state),
        outputs={name: output["value"] for name, output in state["outputs"].items()},
        secret_outputs=[name for name, output in state["outputs"].items() if output["sensitive"]],
        planned=planned,
        lifecycle=changes["aws_s3_bucket_lifecycle_configuration.this"]["after"],
        remaining=_remaining(aws),
    )


OTHER_REPOSITORY = "arn:aws:ecr:eu-central-1:763104351884:repository/pytorch-training"


def _remaining(aws: str) -> dict[str, Any]:
    import boto3

    session = boto3.Session("mock", "mock", region_name="eu-central-1")
    s3, iam, ecr, ec2 = (session.client(name, endpoint_url=aws) for name in ("s3", "iam", "ecr", "ec2"))
    project_filter = [{"Name": "tag:Project", "Values": ["herringbone"]}]
    return {
        "buckets": [row["Name"] for row in s3.list_buckets()["Buckets"]],
        "roles": [row["RoleName"] for row in iam.list_roles()["Roles"]],
        "policies": [row["PolicyName"] for row in iam.list_policies(Scope="Local")["Policies"]],
        "repositories": [row["repositoryName"] for row in ecr.describe_repositories()["repositories"]],
        "networks": [row["VpcId"] for row in ec2.describe_vpcs(Filters=project_filter)["Vpcs"]],
        "subnets": [row["SubnetId"] for row in ec2.describe_subnets(Filters=project_filter)["Subnets"]],
        "security groups": [
            row["GroupId"] for row in ec2.describe_security_groups(Filters=project_filter)["SecurityGroups"]
        ],
        # Like EC2, the mock lists a deleted endpoint for a while.
        "endpoints": [
            row["State"]
            for row in ec2.describe_vpc_endpoints(Filters=project_filter)["VpcEndpoints"]
            if row["State"] != "deleted"
        ],
    }
