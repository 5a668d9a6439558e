"""Conformance with the released peer: the same dict gives the same hyperparameters, except for chosen differences.

`cases.json` holds the dicts, `answers.json` the results of `sagemaker` 2.257.7. The test marked `peer` runs the package
again; it needs the environment that `tests/peer/setup` makes. The keys of a case are:

- `both_refuse`: a phrase that both messages contain.
- `we_refuse`: a phrase of our message for a dict that the peer accepts.
- `they_refuse`: marks a dict that only we accept.
- `we_add`: hyperparameters that we send in addition.
- `why`: the reason for the difference.
"""

import json
import subprocess
from pathlib import Path

import pytest

from herringbone_contract.distribution import parse
from herringbone_contract.errors import DistributionError
from herringbone_contract.hyperparameters import decode, decode_values, encode, encode_values

HERE = Path(__file__).parent
PEER_PYTHON = HERE.parent.parent / ".venv-peer" / "bin" / "python"
FRAMEWORKS = {"PyTorch": "pytorch", "TensorFlow": "tensorflow", "HuggingFace": "huggingface", "Estimator": None}

CASES = json.loads((HERE / "cases.json").read_text(encoding="utf-8"))
RECORDED = json.loads((HERE / "answers.json").read_text(encoding="utf-8"))


def cases(*kinds):
    """Return the cases of these kinds; without kinds, the cases in which we and the peer agree."""
    all_kinds = {"both_refuse", "we_refuse", "they_refuse", "we_add"}
    selection = [case for case in CASES if (all_kinds & case.keys()) == set(kinds)]
    return pytest.mark.parametrize("case", selection, ids=[case["name"] for case in selection])


def distribution_of(case):
    return parse(case["distribution"], framework=FRAMEWORKS[case["estimator"]])


def ours(case):
    return encode_values(case.get("hyperparameters", {})) | encode(
        distribution_of(case), instance_type=RECORDED["instance_type"]
    )


def theirs(case):
    return RECORDED["answers"][case["name"]]


@cases()
def test_the_same_hyperparameters(case):
    # The order of the keys inside mp_parameters is the user's there and the grammar's here.
    assert decode_values(ours(case)) == decode_values(theirs(case))
    same = ours(case).keys() - {"mp_parameters"}
    assert {key: ours(case)[key] for key in same} == {key: theirs(case)[key] for key in same}


@cases()
def test_we_read_the_hyperparameters_of_the_peer(case):
    assert decode(theirs(case)) == distribution_of(case)


@cases("both_refuse")
def test_both_refuse_with_a_common_phrase(case):
    with pytest.raises(DistributionError) as caught:
        distribution_of(case)
    assert theirs(case)["error"].startswith("ValueError: ")
    # The peer lists fewer placements and in another order; the sentence up to the list is the same.
    assert case["both_refuse"] in theirs(case)["error"]
    assert case["both_refuse"] in str(caught.value)


@cases("we_refuse")
def test_dicts_that_only_we_refuse(case):
    with pytest.raises(DistributionError) as caught:
        distribution_of(case)
    assert case["we_refuse"] in str(caught.value)
    # The peer accepts the dict, or fails with a bug of its own.
    assert theirs(case).get("error", "KeyError").startswith("KeyError")


@cases("they_refuse")
def test_dicts_that_only_the_peer_refuses(case):
    assert theirs(case)["error"].startswith("ValueError: ")
    assert decode(ours(case)) == distribution_of(case)


@cases("we_add")
def test_hyperparameters_that_only_we_send(case):
    assert ours(case) == theirs(case) | case["we_add"]
    assert decode(ours(case)) == distribution_of(case)


def test_every_difference_has_its_reason():
    assert all("why" in case for case in CASES if {"we_refuse", "they_refuse", "we_add"} & case.keys())
    assert {case["name"] for case in CASES} == RECORDED["answers"].keys()


@pytest.mark.peer
@pytest.mark.skipif(not PEER_PYTHON.exists(), reason="run tests/peer/setup first: the peer is 310 MB")
def test_the_recorded_answers_are_those_of_the_peer():
    run = subprocess.run([PEER_PYTHON, HERE / "ask_peer.py"], capture_output=True, text=True, check=True)
    assert json.loads(run.stdout) == RECORDED
