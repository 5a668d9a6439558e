"""Run Terraform in a copy of infra/terraform, against a mock of AWS on loopback."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2] / "infra" / "terraform"
PROVIDER = "terraform-provider-aws_v5.100.0*"
PLUGINS = "HERRINGBONE_TEST_TERRAFORM_PLUGINS"


def find_plugins() -> Path | None:
    """Return the folder for `terraform init -plugin-dir`: from the variable, else a usual place of mirrors."""
    override = os.environ.get(PLUGINS)
    usual_folders = [
        Path.home() / ".terraform.d/plugins",
        Path("/usr/local/share/terraform/plugins"),
        *Path("/opt").glob("*"),
    ]
    for folder in [Path(override)] if override else usual_folders:
        for provider in folder.glob(f"*/hashicorp/aws/*/*/{PROVIDER}"):
            return provider.parents[5]
    return None


@dataclass(frozen=True)
class Terraform:
    """Runs Terraform in one folder; `endpoint` is the URL of a mock that replaces all of AWS."""

    folder: Path
    endpoint: str = "http://127.0.0.1:9"

    def run(self, *words: str, codes: tuple[int, ...] = (0,)) -> subprocess.CompletedProcess[str]:
        """Run a command; fail with its output when the exit code is not one of `codes`."""
        process = subprocess.run(
            ["terraform", *words],
            cwd=self.folder,
            env=environment(self.endpoint),
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )
        output = f"{process.stdout[-4_000:]}{process.stderr}"
        assert process.returncode in codes, f"terraform {words}: {process.returncode}\n{output}"
        return process

    def show(self, *words: str) -> dict[str, Any]:
        """Return the state, or a saved plan, as `terraform show -json` prints it."""
        values = json.loads(self.run("show", "-json", *words).stdout)
        assert isinstance(values, dict)
        return values

    def copy(self) -> None:
        """Copy the files of infra/terraform to the folder."""
        for file in [*ROOT.glob("*.tf"), ROOT / ".terraform.lock.hcl"]:
            shutil.copy(file, self.folder)

    def set_variables(self, **variables: Any) -> None:
        """Write the variables to a file that Terraform loads automatically."""
        (self.folder / "test.auto.tfvars.json").write_text(json.dumps(variables))


def environment(endpoint: str) -> Mapping[str, str]:
    """Return this process's environment without AWS and Terraform settings, and with those of the mock."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "TF_"))}
    return {
        **inherited,
        "AWS_ACCESS_KEY_ID": "mock",
        "AWS_SECRET_ACCESS_KEY": "mock",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_ENDPOINT_URL": endpoint,
        "CHECKPOINT_DISABLE": "1",
        "TF_IN_AUTOMATION": "1",
        "TF_CLI_ARGS": "-no-color",
    }


def managed(resources: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the values of the resources that Terraform manages, by address.

    >>> managed(terraform.show()["values"])["aws_iam_role.job"]["name"]     # doctest: +SKIP
    'herringbone-us-east-1-job'
    """
    rows = resources["root_module"]["resources"]
    return {row["address"]: row["values"] for row in rows if row["mode"] == "managed"}
