"""The pages of docs/look-up show what the code defines: generated parts are up to date, and nothing lacks its text."""

import re

import pytest
from scripts import look_up

from herringbone import TrainingJob
from herringbone.cli.train import request
from herringbone_contract import errors
from herringbone_contract.layout import RankPlacement
from herringbone_entry.channel.rendezvous import Rendezvous
from herringbone_entry.host import read_host
from herringbone_entry.launchers import mxnet_cluster, tensorflow_cluster, torch_distributed
from herringbone_entry.ranks.environment import contract_environment, rank_environment, thread_environment

PAGES = {path.name: path.read_text(encoding="utf-8") for path in look_up.PAGES}


@pytest.mark.parametrize("name", sorted(name for name, text in PAGES.items() if "<!-- begin " in text))
def test_generated_parts_are_up_to_date(name):
    assert look_up.fill(PAGES[name]) == PAGES[name], "run .venv/bin/python scripts/look_up.py"


def test_every_part_is_on_a_page():
    assert sorted(re.findall(r"<!-- begin (\S+) -->", "".join(PAGES.values()))) == sorted(look_up.PARTS)


def test_every_error_says_what_to_do():
    classes = look_up.error_classes()
    assert [name for name, (_, text) in classes.items() if look_up.FIX not in text] == []
    assert classes.keys() >= {name for name in vars(errors) if name.endswith("Error")}


def test_every_member_of_a_job_has_a_text():
    members = {name: member for name, member in vars(TrainingJob).items() if not name.startswith("_")}
    assert [name for name, member in members.items() if not member.__doc__] == []


def test_tables_of_the_pages_are_whole():
    """A cell may not contain a bar, and a row has as many cells as its head."""
    for name, text in PAGES.items():
        for table in re.findall(r"^\|.*(?:\n\|.*)*", text, re.MULTILINE):
            bars = {len(re.findall(r"(?<!\\)\|", row)) for row in table.split("\n")}
            assert len(bars) == 1, f"{name}: {table}"


def documented_variables():
    return set(re.findall(r"`([A-Z][A-Z_]+)`", PAGES["variables.md"]))


def test_every_variable_of_a_rank_is_on_the_page(tmp_path):
    config = tmp_path / "input" / "config"
    config.mkdir(parents=True)
    (config / "hyperparameters.json").write_text('{"name": "1"}')
    (config / "inputdataconfig.json").write_text('{"name": {}}')
    host = read_host({"SAGEMAKER_BASE_DIR": str(tmp_path)})
    placement = RankPlacement(rank=0, world_size=1, local_rank=0, num_local=1, host="algo-1", host_index=0, num_hosts=1)
    rendezvous = Rendezvous("10.0.0.1", 7000, 7001)
    names = {
        *contract_environment(host, num_cpus=1, num_gpus=0),
        *rank_environment(placement, master_address="", master_port=1),
        *thread_environment({}, num_local=2, num_cpus=2, num_on_machine=2, machine_cpus=2),
        *torch_distributed.environment(placement, run_id=""),
        *mxnet_cluster.environment("worker", rendezvous, hosts=1, on_one_machine=True, interface=None),
        *mxnet_cluster.environment("worker", rendezvous, hosts=1, on_one_machine=False, interface="eth0"),
        tensorflow_cluster.VARIABLE,
    }
    documented = documented_variables()
    assert names - documented == set()
    assert {name for name in documented if name.startswith(("SM_", "DMLC_", "TORCHELASTIC_", "ROLE_"))} == {
        name for name in names if name.startswith(("SM_", "DMLC_", "TORCHELASTIC_", "ROLE_"))
    }


def test_every_variable_of_herringbone_is_on_the_page():
    """Find each name that the code reads or sets, except for the guards of C headers."""
    sources = [
        path
        for folder in ("contract", "sdk", "entrypoints", "parallel", "containers", "compat")
        for path in (look_up.ROOT / folder).rglob("*")
        if path.suffix == ".py" or path.name == "Dockerfile"
    ]
    names = {
        name for path in sources for name in re.findall(r"(?<!_)HERRINGBONE_[A-Z_]+\b(?<!_)", path.read_text("utf-8"))
    }
    documented = {name for name in documented_variables() if name.startswith("HERRINGBONE_")}
    assert documented == names


def test_the_keys_of_a_job_file_that_are_no_options_are_on_the_page():
    keys = dict(re.findall(r"^\| `(\w+)` \| (.+?) \|", PAGES["job-file.md"], re.MULTILINE))
    assert keys.keys() == {"framework", "inputs", request.TUNING}
    assert re.findall(r"`(\w+)`", keys["framework"]) == list(request._FRAMEWORKS)
