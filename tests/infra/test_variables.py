"""Validate variables before anything is created: variables.tf alone, without a provider or an account."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
from tests.infra.terraform import ROOT, Terraform

pytestmark = pytest.mark.terraform


@pytest.fixture(scope="module")
def variables(terraform_program: str, tmp_path_factory: pytest.TempPathFactory) -> Terraform:
    folder = tmp_path_factory.mktemp("variables")
    shutil.copy(ROOT / "variables.tf", folder)
    return Terraform(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"region": "Frankfurt"}, "A region looks like us-east-1"),
        ({"name": "Herringbone_"}, "3 to 24 lower-case letters"),
        ({"name": "a-name-of-twenty-five-abc"}, "3 to 24 lower-case letters"),
        ({"tags": {"Project": "mine"}}, "The tag Project is reserved for the name"),
        ({"kms_key_arn": "arn:aws:kms:eu-central-1:123456789012:alias/mine"}, "IAM takes no alias"),
        ({"keep_days": {"jobs": 0.5}}, "Whole days, at least 1"),
        ({"keep_days": {"code": 28}}, "A job may run for 28 days"),
        ({"repositories": []}, "Give at least one name"),
        ({"repositories": ["Mine"]}, "lower-case letters and digits"),
        ({"keep_images": 0}, "keep_images is a whole number, at least 1"),
        ({"other_repository_arns": ["*"]}, "Each ARN looks like arn:aws:ecr:"),
        ({"network": {"cidr": "10.0.0.0/28"}}, "network.cidr is an IPv4 range from /16 to /24"),
        ({"network": {"cidr": "here"}}, "network.cidr is an IPv4 range from /16 to /24"),
        ({"network": {"zones": 0}}, "network.zones is 1 to 4"),
    ],
)
def test_invalid_values_are_refused(variables: Terraform, changes: dict[str, Any], message: str) -> None:
    variables.set_variables(**{"region": "eu-central-1", **changes})
    stderr = variables.run("plan", "-input=false", codes=(1,)).stderr
    assert "Invalid value for variable" in stderr
    assert message in " ".join(stderr.replace("│", " ").split())


def test_valid_values_are_accepted(variables: Terraform) -> None:
    variables.set_variables(
        region="us-gov-west-1",
        name="a-name-of-twenty-four-ab",
        tags={"Team": "vision"},
        kms_key_arn="arn:aws-us-gov:kms:us-gov-west-1:123456789012:key/1234abcd-12ab-34cd-56ef-1234567890ab",
        keep_days={"code": None, "checkpoints": 29, "jobs": 1},
        network={"cidr": "10.0.0.0/24", "zones": 4},
    )
    variables.run("plan", "-input=false")
