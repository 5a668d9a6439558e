"""On machines that share no folder, a job is rolled back behind a bad batch, or takes another layout."""

from pathlib import Path

import msgspec
import pytest
import yaml

from herringbone import PyTorch, TrainingJob
from herringbone.api.planning import plan_request
from herringbone_contract.prediction.answer import Answer, Memory, Prediction
from tests.hangs.test_roll_back import SCRIPT, used

pytestmark = [pytest.mark.ssh, pytest.mark.timeout(170)]


@pytest.mark.parametrize("alone", [False, True], ids=["client", "alone"])
def test_a_bad_batch_is_passed_over(submit, machines, alone):
    job = submit(
        SCRIPT,
        hosts=2,
        name="rolled-back-alone" if alone else "rolled-back",
        hyperparameters={"bad": 13},
        distribution={"torch_distributed": {"enabled": True}},
        environment={"OMP_NUM_THREADS": "1"},
        fault_policies={"nan_loss": "roll_back"},
        max_retry_attempts=1,
        **({"retry_without_client": True} if alone else {}),
    )
    assert job.wait().status == "Completed", (job.failure, [line.text for line in job.logs()][-40:])
    [told] = job.logs(host="algo-1", pattern="^attempt 2 of 2")
    assert "nan_loss: rank 1 (algo-2" in told.text
    assert "newest checkpoint: step-10" in told.text
    [passed] = job.logs(host="algo-1", pattern="roll_back: the data of")
    assert "the data of 4 steps is passed over, from step 10 to 14" in passed.text
    assert [[step for step, *_ in used(job, rank)][-18:] for rank in (0, 1)] == [list(range(14, 32))] * 2


LAYOUTS = """
import os, torch
from pathlib import Path
import smdistributed.modelparallel.torch as smp

smp.init()
torch.manual_seed(0)


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(8, 8)

    def forward(self, x):
        if first + steps >= 3 and x.shape[0] > 8:
            raise torch.OutOfMemoryError(f"CUDA out of memory, planted for {x.shape[0]} rows")
        return self.inner(x)


@smp.step
def train_step(model, x):
    loss = model(x).square().mean()
    model.backward(loss)
    return loss


steps, first = 0, 0
model = smp.DistributedModel(torch.nn.Sequential(Block(), Block()))
optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
if Path(os.environ["SM_CHECKPOINT_DIR"], "newest").exists():
    first = smp.resume_from_checkpoint()["step"] + 1
for steps in range(6 - first):
    optimizer.zero_grad()
    loss = train_step(model, torch.ones(32, 8)).reduce_mean()
    optimizer.step()
    if smp.rank() == 0:
        print("step", first + steps, loss.item(), flush=True)
    smp.save_checkpoint(tag=f"s{first + steps}", model=model, optimizer=optimizer, user_content={"step": first + steps})
"""


def layout(microbatches, peak):
    parameters = {"partitions": 2, "microbatches": microbatches}
    return Prediction(
        hosts="ssh:hosts.yaml",
        count=1,
        distribution={
            "mpi": {"enabled": True, "processes_per_host": 2},
            "smdistributed": {"modelparallel": {"enabled": True, "parameters": parameters}},
        },
        mesh={"pipeline": 2},
        memory=(Memory(activations=peak),),
        samples_per_second=9.0,
    )


def test_a_job_goes_on_with_ever_smaller_layouts(backend, machines):
    Path("hosts.yaml").write_text(yaml.safe_dump(machines.inventory()))
    Path("train.py").write_text(LAYOUTS)
    estimator = PyTorch(
        "train.py",
        instance_type="ssh:hosts.yaml",
        distribution=layout(1, 90).distribution,
        environment={"OMP_NUM_THREADS": "1"},
        fault_policies={"out_of_memory": "restart"},
        max_retry_attempts=3,
    )
    plan = plan_request(estimator._asked(None), backend, "smaller")
    # As after a search, which measures the script.
    options = msgspec.structs.replace(plan.options, fault_policies={"out_of_memory": "replan"})
    answer = Answer(planned=layout(1, 90), layouts=(layout(2, 60), layout(4, 30)))
    job = TrainingJob.submit(msgspec.structs.replace(plan, options=options, prediction=answer), backend)
    assert job.wait().status == "Completed", (job.failure, [line.text for line in job.logs()][-40:])
    assert [attempt["NextLayout"].count('"microbatches": 2') for attempt in job.describe()["Attempts"]] == [1, 0]
    steps = [line.text.split()[1] for line in job.logs(pattern="^step ")]
    assert steps == ["0", "1", "2", "3", "4", "5"]
