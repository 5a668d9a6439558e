"""On machines that share no folder, a job is rolled back behind a bad batch: with its client, and without it."""

import pytest

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
