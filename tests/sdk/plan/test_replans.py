"""The layouts with which a job goes on after it has run out of memory."""

import json
from types import SimpleNamespace

import msgspec
import pytest

from herringbone import Estimator, PyTorch
from herringbone.backends.ssh.start.keepers import retries_alone, why_not_alone
from herringbone.controller import completion
from herringbone.controller.retry import (
    Attempt,
    Policies,
    announced,
    decide,
    describe_attempts,
    find_policy,
    num_replanned,
    with_layout,
)
from herringbone.controller.verdict import Verdict
from herringbone.plan.replans import replanned, replans, smaller
from herringbone.prediction import estimating
from herringbone.prediction.estimating import with_smaller
from herringbone_contract.errors import LaunchError, UnsupportedError
from herringbone_contract.failure import Failure
from herringbone_contract.prediction.answer import Answer, Memory, Prediction

MPI = {"mpi": {"enabled": True, "processes_per_host": 2}}


def layout(microbatches, peak, speed, *, count=1, refusal=None, **mesh):
    parameters = {"partitions": 2, "microbatches": microbatches}
    return Prediction(
        hosts="local_process",
        count=count,
        distribution={**MPI, "smdistributed": {"modelparallel": {"enabled": True, "parameters": parameters}}},
        mesh={"replicate": 1, "shard": 1, "context": 1, "pipeline": 2, "tensor": 1, **mesh},
        memory=(Memory(activations=peak), Memory(activations=peak // 2)),
        samples_per_second=speed,
        refusal=refusal,
    )


PLANNED = layout(2, 100, 9.0)


def planned(**options):
    estimator = PyTorch(
        "train.py",
        instance_type="local_process",
        distribution=PLANNED.distribution,
        max_retry_attempts=3,
        hyperparameters={"epochs": 3},
        **{"fault_policies": {"out_of_memory": "restart"}, **options},
    )
    plan = estimator.plan()
    replanned = msgspec.structs.replace(plan.options, fault_policies={"out_of_memory": "replan"})
    return msgspec.structs.replace(plan, options=replanned)


@pytest.fixture(autouse=True)
def _script(tmp_path, monkeypatch):
    monkeypatch.setenv("HERRINGBONE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print(1)")


def test_each_layout_is_the_fastest_that_needs_clearly_less_than_the_one_before():
    found = [layout(4, 95, 8.0), layout(4, 60, 7.0), layout(8, 40, 7.5), layout(16, 30, 6.0), layout(32, 29, 6.5)]
    assert [one.distribution["smdistributed"]["modelparallel"]["parameters"]["microbatches"] for one in
            smaller(PLANNED, found)] == [8, 32]  # fmt: skip


@pytest.mark.parametrize(
    "other",
    [
        layout(4, 50, 9.0, refusal="too large"),
        layout(4, 50, 9.0, count=2),
        # Other numbers of ranks, of batches, and of ranks that may each read one.
        layout(4, 50, 9.0, pipeline=1),
        layout(4, 50, 9.0, pipeline=1, replicate=2),
        layout(4, 50, 9.0, pipeline=1, tensor=2),
        layout(4, 50, None),
        msgspec.structs.replace(layout(4, 50, 9.0), memory=()),
    ],
)
def test_another_global_batch_is_no_layout_of_this_job(other):
    assert smaller(PLANNED, [other]) == ()


def test_a_layout_changes_the_jobs_hyperparameters_and_nothing_of_the_users():
    first = msgspec.structs.replace(layout(4, 50, 8.0), distribution={"torch_distributed": {"enabled": True}})
    plan = msgspec.structs.replace(planned(), prediction=Answer(planned=PLANNED, layouts=(first, layout(8, 40, 7.0))))
    assert [change.text.partition(" (")[2] for change in replans(plan)] == [
        "0 MiB a rank and 8 samples a second predicted)",
        "0 MiB a rank and 7 samples a second predicted)",
    ]
    assert replanned(plan, 0) is plan
    torch, smp = replanned(plan, 1), replanned(plan, 2)
    assert torch.hyperparameters["epochs"] == smp.hyperparameters["epochs"] == "3"
    assert "mp_parameters" not in torch.hyperparameters
    assert "sagemaker_mpi_enabled" not in torch.hyperparameters
    assert torch.hyperparameters["sagemaker_torch_distributed_enabled"] == "true"
    assert '"microbatches": 8' in smp.hyperparameters["mp_parameters"]
    assert smp.distribution.model_parallel.microbatches == 8
    # The second one also removes what the first one set.
    assert "sagemaker_torch_distributed_enabled" in replans(plan)[1].removes
    assert replans(msgspec.structs.replace(plan, prediction=None)) == ()
    stopped = msgspec.structs.replace(plan.options, fault_policies={})
    assert replans(msgspec.structs.replace(plan, options=stopped)) == ()


def test_a_job_without_a_smaller_layout_is_refused():
    plan = msgspec.structs.replace(planned(), prediction=Answer(planned=PLANNED, layouts=(layout(4, 99, 9.0),)))
    with pytest.raises(UnsupportedError, match="1 layout that fits, and none with these ranks"):
        with_smaller(plan)


def test_attempts_take_one_layout_after_the_other_and_then_the_job_fails():
    first = with_layout(Attempt(1, {}, "why", answer="replan"), [], ["a", "b"])
    lost = with_layout(Attempt(2, {}, "why", answer="restart"), [first], ["a", "b"])
    second = with_layout(Attempt(3, {}, "why", answer="replan"), [first, lost], ["a", "b"])
    assert (first.layout, lost.layout, second.layout) == ("a", "", "b")
    assert num_replanned([first, lost, second]) == 2
    with pytest.raises(LaunchError, match="those that were tried: a; b"):
        with_layout(Attempt(4, {}, "why", answer="replan"), [first, lost, second], ["a", "b"])
    assert "restarting with the layout a; there is no checkpoint" in announced(first, 3, {}).announced
    assert '"NextLayout": "a"' in describe_attempts([first])
    assert "NextLayout" not in describe_attempts([lost])


def test_a_controller_changes_what_the_next_supervisors_read(tmp_path):
    path = tmp_path / "input" / "config" / "hyperparameters.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"epochs": "3", "sagemaker_mpi_enabled": "true", "mp_parameters": "{}"}))
    change = {"sets": {"mp_parameters": "new"}, "removes": ["sagemaker_mpi_enabled"], "text": "new"}
    completion._change_layout([SimpleNamespace(base=str(tmp_path))], change)
    assert json.loads(path.read_text()) == {"epochs": "3", "mp_parameters": "new"}
    # A script that has replaced the folder by a link leads to no file of the user's.
    path.parent.rename(tmp_path / "elsewhere")
    path.parent.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError):
        completion._change_layout([SimpleNamespace(base=str(tmp_path))], {**change, "sets": {"mp_parameters": "bad"}})
    assert json.loads(path.read_text())["mp_parameters"] == "new"


@pytest.mark.parametrize(
    ("make", "options", "words"),
    [
        (Estimator, {"fault_policies": {"out_of_memory": "replan"}, "image_uri": "mine"}, "only layouts of PyTorch"),
        (PyTorch, {"fault_policies": {"nan_loss": "roll_back"}, "checkpoint_s3_uri": "s3://bucket/a"}, "stay the new"),
    ],
)
def test_what_no_attempt_could_do_is_refused_at_plan(make, options, words):
    entry = {} if "image_uri" in options else {"entry_point": "train.py"}
    kind = "local" if "image_uri" in options else "local_process"
    with pytest.raises(UnsupportedError, match=words):
        make(instance_type=kind, max_retry_attempts=1, **entry, **options).plan()


def test_machines_that_know_one_layout_leave_the_job_to_a_client():
    """They start their own copy of the plan, so the job had run out of memory until no attempt was left."""
    plan = planned()
    options = msgspec.structs.replace(plan.options, max_retry_attempts=2)
    plan = msgspec.structs.replace(plan, options=options)
    assert "know one layout" in why_not_alone(plan, "process")
    assert not retries_alone(plan, "process")
    restarted = msgspec.structs.replace(options, fault_policies={"out_of_memory": "restart"})
    assert retries_alone(msgspec.structs.replace(plan, options=restarted), "process")


def test_a_user_who_waits_for_the_search_is_told_so_before(tmp_path, monkeypatch, capsys):
    def measured(*_):
        told.append(capsys.readouterr().err)
        raise LaunchError("measured")

    told = []
    monkeypatch.setattr(estimating, "predicted", measured)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    with pytest.raises(LaunchError, match="measured"):
        PyTorch(
            "train.py", instance_type="local_process", fault_policies={"out_of_memory": "replan"}, max_retry_attempts=1
        ).plan()
    assert "replan: looking for smaller layouts before the start; that takes minutes" in told[0]


def test_an_answer_that_restarts_needs_attempts():
    with pytest.raises(UnsupportedError, match="another answer to nan_loss"):
        PyTorch("train.py", instance_type="local_process", fault_policies={"nan_loss": "roll_back"}).plan()


@pytest.mark.parametrize(("fault", "answer"), [("nan_loss", "roll_back"), ("out_of_memory", "replan")])
def test_no_machine_is_blamed_for_its_data_or_its_layout(fault, answer):
    """Two wrong batches, or two layouts that were too large, had excluded the machine."""
    failed = Verdict("Failed", "Failed", Failure("algo-2", 1, message=f"{fault}: x", fault=fault))
    match = find_policy(Policies(faults={fault: answer}), failed, {})
    earlier = []
    for _ in range(3):
        earlier.append(decide(failed, match, {"algo-1": "n1", "algo-2": "n2"}, earlier, 9))
    assert [(attempt.blamed, attempt.excluded, attempt.answer) for attempt in earlier] == [((), (), answer)] * 3
