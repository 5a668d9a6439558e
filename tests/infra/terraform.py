"""Terraform in a copy of infra/terraform, against a mock of AWS on loopback."""

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
    """Return the folder for `terraform init -plugin-dir`: the variable's, else one where Terraform's mirrors lie."""
    named = os.environ.get(PLUGINS)
    usual = [Path.home() / ".terraform.d/plugins", Path("/usr/local/share/terraform/plugins"), *Path("/opt").glob("*")]
    for folder in [Path(named)] if named else usual:
        for provider in folder.glob(f"*/hashicorp/aws/*/*/{PROVIDER}"):
            return provider.parents[5]
    return None


@dataclass(frozen=True)
class Terraform:
    """Terraform in one folder; `endpoint` stands for all of AWS."""

    folder: Path
    endpoint: str = "http://127.0.0.1:9"

    def run(self, *words: str, codes: tuple[int, ...] = (0,)) -> subprocess.CompletedProcess[str]:
        """Run a command, and fail with what it said when its exit code is another."""
        done = subprocess.run(
            ["terraform", *words],
            cwd=self.folder,
            env=environment(self.endpoint),
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode in codes, f"terraform {words}: {done.returncode}\n{done.stdout[-4_000:]}{done.stderr}"
        return done

    def show(self, *words: str) -> dict[str, Any]:
        """Return the state, or a saved plan, as `terraform show -json` has it."""
        shown = json.loads(self.run("show", "-json", *words).stdout)
        assert isinstance(shown, dict)
        return shown

    def copy(self) -> None:
        """Copy the files of infra/terraform here."""
        for file in [*ROOT.glob("*.tf"), ROOT / ".terraform.lock.hcl"]:
            shutil.copy(file, self.folder)

    def answer(self, **variables: Any) -> None:
        """Write the variables where Terraform finds them by itself."""
        (self.folder / "test.auto.tfvars.json").write_text(json.dumps(variables))


def environment(endpoint: str) -> Mapping[str, str]:
    """This process's variables without its account or Terraform's settings, and with the mock's."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "TF_"))}
    return {
        **kept,
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
    """Return the values of what Terraform made, by address.

    >>> managed(terraform.show()["values"])["aws_iam_role.job"]["name"]     # doctest: +SKIP
    'herringbone-us-east-1-job'
    """
    rows = resources["root_module"]["resources"]
    return {row["address"]: row["values"] for row in rows if row["mode"] == "managed"}
