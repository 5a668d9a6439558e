"""Plans of every kind are those of an earlier commit: what changes is changed here as well, and so is seen."""

import json
from pathlib import Path

import pytest
from tests.sdk.plan.golden.requests import REQUESTS, made

GOLDEN = json.loads((Path(__file__).parent / "golden" / "plans.json").read_text())


@pytest.fixture(scope="module")
def plans(tmp_path_factory):
    folder = tmp_path_factory.mktemp("golden")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("HERRINGBONE_HOME", str(folder / "home"))
        return json.loads(json.dumps(made(folder), default=str).replace(str(folder), "@FOLDER@"))


@pytest.mark.parametrize("name", REQUESTS)
def test_a_plan_stays(plans, name):
    assert plans[name] == GOLDEN[name]
