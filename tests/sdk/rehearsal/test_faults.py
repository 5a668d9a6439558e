"""The faults of a rehearsal: chosen by name, refused where a backend cannot cause them, resumed as their user would."""

from types import SimpleNamespace
from typing import Any

import pytest

from herringbone.plan.request import make_request
from herringbone.rehearsal.faults import FAULTS, chosen, impossible, reason
from herringbone.rehearsal.runs import Pulse, Runs, run_request
from herringbone_contract.errors import OptionError, RequestError
from herringbone_entry.faults import Done

MPI = {"mpi": {"enabled": True, "processes_per_host": 2}}
TORCH = {"torch_distributed": {"enabled": True}}


def asked(**given):
    return make_request("PyTorch", {"entry_point": "a.py", "instance_type": "local_process", **given})


def test_faults_are_chosen_by_name_once_and_in_the_order_of_their_names():
    assert [fault.name for fault in chosen(["save-torn", "rank-killed", "save-torn"])] == ["save-torn", "rank-killed"]
    assert [fault.name for fault in chosen([])] == list(FAULTS)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("rank_killed", "'rank_killed' is no fault of a rehearsal; did you mean rank-killed?"),
        ("saves-torn", "did you mean save-torn?"),
        ("lightning", "there is: rank-killed, host-lost"),
    ],
)
def test_an_unknown_fault_is_refused_with_the_near_one(name, message):
    with pytest.raises(OptionError, match=message.replace("?", r"\?")):
        chosen([name])


@pytest.mark.parametrize(
    ("given", "backend", "refused"),
    [
        ({}, "local_process", {"link-cut": "one host", "fewer-hosts": "one host", "other-layout": "no distribution"}),
        ({"instance_count": 2}, "local_process", {"fewer-hosts": "train apart", "other-layout": "train apart"}),
        ({"instance_count": 2, "distribution": TORCH}, "local", {}),
        (
            {"instance_count": 2, "distribution": MPI},
            "sagemaker",
            dict.fromkeys(FAULTS.keys() - {"stop-resume", "fewer-hosts", "other-layout"}, "only AWS reaches"),
        ),
        (
            {"instance_type": None, "distribution": MPI, "instance_groups": [
                {"instance_group_name": name, "instance_type": "local_process", "instance_count": 1} for name in "ab"]},
            "local_process",
            {"fewer-hosts": "instance_groups", "other-layout": "instance_groups"},
        ),
    ],
)  # fmt: skip
def test_a_fault_that_cannot_be_caused_says_why(given, backend, refused):
    request = asked(**given)
    answers = {name: why for name, fault in FAULTS.items() if (why := impossible(fault, request, backend))}
    assert answers.keys() == refused.keys()
    assert all(words in answers[name] for name, words in refused.items())


def test_another_layout_has_other_ranks_on_each_host_before_another_host():
    two = asked(instance_count=2, distribution=MPI)
    layouts = FAULTS["other-layout"].resumed(two)
    ranks = [layout["distribution"]["mpi"]["processes_per_host"] for layout in layouts[:-2]]
    assert (ranks, layouts[-2:]) == ([4, 1, 3], [{"instance_count": 4}, {"instance_count": 3}])
    assert FAULTS["other-layout"].resumed(asked(distribution=TORCH))[0] == {"instance_count": 2}
    assert FAULTS["fewer-hosts"].resumed(two) == [{"instance_count": 1}]
    assert FAULTS["rank-killed"].resumed(two) == ({},)


def test_each_code_of_the_program_on_the_host_has_a_reason():
    assert len({reason(code) for code in Done}) == len(Done)
    assert reason(Done.YES) == ""
    assert "code 127" in reason(127)


def test_runs_have_no_tracker_and_no_folder_of_the_users():
    given = asked(
        track="mlflow:http://localhost/x", output_path="/mine", tags={"team": "a"}, environment={"A": "b"},
        tensorboard_output_config={"s3_output_path": "/boards"},
    )  # fmt: skip
    options = run_request(given, "a-1").options
    assert (options.track, options.output_path, options.tensorboard_output_config) == ((), None, None)
    assert options.tags == ({"Key": "team", "Value": "a"}, {"Key": "herringbone:rehearsal", "Value": "a-1"})
    assert options.environment == {"A": "b", "HERRINGBONE_FINGERPRINTS": "on"}
    # Pods have no folder of the job.
    assert run_request(asked(output_path="pvc://results/jobs"), "a-1").options.output_path == "pvc://results/jobs"


def test_a_rank_is_killed_on_the_first_host_where_mpirun_has_all(monkeypatch):
    struck = []

    def strike(_self, _job, host, kind, _seconds):
        struck.append((host, kind))
        if host == "algo-2" and kind != "wait":
            raise RequestError("its process was not found on the host")

    record = SimpleNamespace(plan_dict={"hosts": [{"name": "algo-1"}, {"name": "algo-2"}]}, controller=None)
    monkeypatch.setattr(Runs, "_strike", strike)
    monkeypatch.setattr(Runs, "_until", lambda *_: record)
    runs: Any = object.__new__(Runs)
    runs._backend = SimpleNamespace(describe=lambda _: record)
    runs._cause("job", FAULTS["rank-killed"], Pulse())
    assert struck == [("algo-1", "wait"), ("algo-2", "rank"), ("algo-1", "rank")]
    with pytest.raises(RequestError, match="not found"):
        runs._cause("job", FAULTS["host-lost"], Pulse())
