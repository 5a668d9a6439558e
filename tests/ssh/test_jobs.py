"""Tests of ssh jobs on three machines: data, model, code, following from elsewhere, locks, limits."""

import json
import os
import time
from pathlib import Path
from threading import Thread

import pytest
import yaml

from herringbone import Estimator, TrainingJob
from herringbone.api.planning import plan_request
from herringbone.backends.lifecycle import poll_until_done
from herringbone.backends.ssh.backend import SshBackend
from herringbone.records.home import Home
from herringbone.records.index import JobIndex, JobRecord
from herringbone_contract.errors import LaunchError

from .conftest import await_silence, expect, members

pytestmark = pytest.mark.ssh

SHOW = """
import os
print("rank", os.environ["RANK"], "of", os.environ["SM_CURRENT_HOST"], "reads", os.listdir("/proc/self/cwd")[:1])
print("data", sorted(os.listdir(os.environ["SM_CHANNEL_TRAINING"])), os.environ.get("WANDB_API_KEY"))
open(os.environ["SM_MODEL_DIR"] + "/part-" + os.environ["RANK"], "w").write("weights")
"""
WAIT = "import time; print('waits', flush=True); time.sleep(600)"
DDP = """
import os, torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(20, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
generator = torch.Generator().manual_seed(dist.get_rank())
for _ in range(30):
    x = torch.randn(16, 20, generator=generator)
    optimizer.zero_grad(); model(x).pow(2).mean().backward(); optimizer.step()
if dist.get_rank() == 0:
    torch.save(model.module.state_dict(), os.environ["SM_MODEL_DIR"] + "/model.pt")
dist.destroy_process_group()
"""


def test_every_host_gets_its_data_and_adds_to_the_model(submit, machines, home):
    Path("data").mkdir()
    Path("data", "x.txt").write_text("data")
    job = submit(SHOW, "data", environment={"WANDB_API_KEY": "top-secret"})
    assert job.wait().status == "Completed", job.failure
    lines = [line.text for line in job.logs() if line.rank is not None]
    assert sorted(text for text in lines if "rank" in text) == [
        f"rank {rank} of algo-{rank + 1} reads ['train.py']" for rank in range(3)
    ]
    assert lines.count("data ['x.txt'] top-secret") == 3
    assert members(job.model_data) == ["part-0", "part-1", "part-2"]
    # Only the job's processes may have had the secret; no file may contain it.
    for name in machines.names:
        work = machines.work(name)
        logs = set(work.glob("jobs/*/logs/*"))
        for path in work.rglob("*"):
            if path.is_file() and path not in logs and "environments" not in path.parts:
                assert b"top-secret" not in path.read_bytes(), path
    assert b"top-secret" not in home.index.read_bytes()


def test_a_second_run_copies_nothing(submit, machines, transport):
    Path("data").mkdir()
    Path("data", "y.txt").write_text("other data")
    assert submit(SHOW, "data").wait().status == "Completed"
    before = {name: contents(machines.work(name)) for name in machines.names}
    copied = []
    transport.send = lambda machine, local, remote: copied.append(machine.name)
    job = submit(SHOW, "data")
    assert job.wait().status == "Completed", job.failure
    assert copied == []
    assert {name: contents(machines.work(name)) for name in machines.names} == before


def contents(work: Path) -> dict[str, int]:
    return {
        str(path): path.stat().st_mtime_ns
        for kind in ("code", "data", "environments")
        for path in (work / kind).iterdir()
    }


@pytest.mark.mpi
@pytest.mark.timeout(240)  # six processes import torch, three at a time
def test_weights_equal_those_of_processes_on_one_machine(submit, home):
    import tarfile

    import torch

    def weights(job: TrainingJob) -> dict[str, torch.Tensor]:
        status = job.wait().status
        assert status == "Completed", "\n".join([str(job.failure), *(line.text for line in job.logs())])
        with tarfile.open(job.model_data.removeprefix("file://")) as archive:
            return torch.load(archive.extractfile("model.pt"), weights_only=True)

    options = {"distribution": {"mpi": {"enabled": True}}, "environment": {"OMP_NUM_THREADS": "1"}}
    remote_weights = weights(submit(DDP, **options))
    local = Estimator("train.py", instance_type="local_process", instance_count=3, **options)
    local_weights = weights(local.fit(wait=False))
    assert max((remote_weights[name] - local_weights[name]).abs().max().item() for name in local_weights) <= 1e-6


def test_a_job_is_found_followed_and_stopped_from_elsewhere(submit, machines, transport, tmp_path, monkeypatch):
    job = submit(WAIT)
    expect(job, "waits", "waits", "waits")
    # As on another machine, which has nothing but the inventory.
    elsewhere = Home(tmp_path / "elsewhere")
    backend = SshBackend(elsewhere, transport)
    assert job.name in backend.find_jobs(Path("hosts.yaml"))
    # As `attach` does; a job that no user has named is only listed.
    backend.find(job.name)
    other = TrainingJob(job.name, backend)
    assert other.status == "InProgress"
    expect(other, "waits", "waits", "waits")
    other.stop()
    assert other.wait().status == "Stopped"
    assert job.wait().status == "Stopped"
    assert [line.text for line in other.logs()] == [line.text for line in job.logs()]
    folders = [machines.work(name) / "jobs" / job.name for name in machines.names]
    assert sum(folder.exists() for folder in folders) == 3
    assert job.remove().elsewhere == ""
    assert [folder for folder in folders if folder.exists()] == []


def test_a_job_runs_on_without_its_client(submit, machines, home, transport):
    job = submit("import time; print('begins', flush=True); time.sleep(1.5); print('ends')", hosts=2)
    expect(job, "begins", "begins")
    # As after the client's death: all connections are closed.
    job._backend._close(job.name)
    time.sleep(2.5)
    later = TrainingJob(job.name, SshBackend(home, transport))
    assert later.wait().status == "Completed"
    assert sum(line.text == "ends" for line in later.logs()) == 2


def test_one_look_settles_a_job_whose_client_died(submit, machines, home, transport, tmp_path):
    job = submit("import os; print('ends', flush=True); open(os.environ['SM_MODEL_DIR'] + '/m', 'w')", hosts=2)
    expect(job, "ends", "ends")
    job._backend._close(job.name)
    assert [await_silence(machines, name) for name in machines.names] == [[], [], []]
    over = time.time()
    # Elsewhere a list names the state, and fetches nothing until somebody names the job.
    other = SshBackend(Home(tmp_path / "elsewhere"), transport)
    assert job.name in other.find_jobs(Path("hosts.yaml"))
    assert (other.describe(job.name).status, other._completions) == ("Completed", {})
    other.find(job.name)
    assert wait_until_done(other, job.name).model.startswith(str(tmp_path / "elsewhere"))
    # A list looks in threads that end with the program. The results' thread does not.
    backend = SshBackend(home, transport)
    looker = Thread(target=backend.describe, args=(job.name,), daemon=True)
    looker.start()
    looker.join()
    assert [completion.daemon for completion in backend._completions.values()] == [False]
    record = wait_until_done(backend, job.name)
    assert record.status == "Completed"
    states = [event for event in TrainingJob(job.name, backend).events() if event["kind"] == "state"]
    assert [event["state"] for event in states] == ["Starting", "Training", "Uploading", "Completed"]
    # The hosts' end, and not the time of the look; packing counts, as where somebody waits for the job.
    assert states[2]["t"] < over
    assert states[3]["t"] == record.ended


def wait_until_done(backend: SshBackend, name: str) -> JobRecord:
    poll_until_done(backend.describe, name, seconds=60, pause=0.05)
    return backend._index.get(name)


def test_a_machine_runs_one_job_at_a_time(submit, home):
    first = submit(WAIT, hosts=2)
    expect(first, "waits", "waits")
    second = submit(WAIT, hosts=1)
    assert machine_names(home, second) == ["h-3"]
    with pytest.raises(Exception, match=rf"(?s)too few of 3 machines are available:.*h-1: runs {first.name} of .*@"):
        submit(WAIT, hosts=1)
    assert JobIndex(home.index).get(first.name).status == "InProgress"
    for job in (first, second):
        job.stop()
    assert [job.wait().status for job in (first, second)] == ["Stopped", "Stopped"]


def test_one_machine_under_two_names_is_named(machines, backend):
    """The second entry was busy with "the job", which was the very one that was being submitted."""
    work = str(machines.work("h-1"))
    hosts = [{"name": "h-1", "work_folder": work}, {"name": "again", "host": "h-1", "work_folder": work}]
    Path("twins.yaml").write_text(yaml.safe_dump(machines.inventory(hosts=hosts)))
    Path("train.py").write_text(WAIT)
    plan = plan_request(Estimator("train.py", instance_type="ssh:twins.yaml", instance_count=2)._asked(None), backend)
    with pytest.raises(LaunchError, match=r"(h-1|again): is the same machine as another .*`work_folder` of its own"):
        TrainingJob.submit(plan, backend)


def machine_names(home: Home, job: TrainingJob) -> list[str]:
    service = json.loads(JobIndex(home.index).get(job.name).service)
    return [machine["name"] for machine in service["machines"].values()]


def test_a_job_name_that_a_machine_knows_already_starts_nothing(submit, home, tmp_path, transport, machines):
    assert submit("print(1)", name="taken").wait().status == "Completed"
    JobIndex(home.index).remove("taken")
    (home.job("taken").path).rename(tmp_path / "away")
    with pytest.raises(Exception, match="job name 'taken' is taken"):
        submit("print(1)", name="taken")
    assert not home.job("taken").path.exists()
    assert [record.name for record in JobIndex(home.index).all()] == []


def test_max_run_and_a_failing_rank_end_all_hosts(submit):
    job = submit(WAIT, max_run=1)
    assert (job.wait().status, job.secondary_status) == ("Stopped", "MaxRuntimeExceeded")
    job = submit("import os, time; time.sleep(0 if os.environ['RANK'] == '1' else 600); raise ValueError('no luck')")
    assert job.wait().status == "Failed"
    assert job.failure.render().startswith("rank 1 on algo-2: ValueError: no luck")


def test_shared_folders_are_used_and_not_copied(submit, machines, tmp_path, backend):
    (tmp_path / "nfs").mkdir()
    (tmp_path / "nfs" / "z.txt").touch()
    Path("shared.yaml").write_text(yaml.safe_dump(machines.inventory(shared=[str(tmp_path / "nfs")])))
    Path("train.py").write_text(
        "import os; print(os.path.realpath(os.environ['SM_CHANNEL_TRAINING']));"
        "open('/proc/self/cwd/../checkpoints/step-1', 'w')"
    )
    estimator = Estimator(
        "train.py", instance_type="ssh:shared.yaml", checkpoint_s3_uri=f"file://{tmp_path}/nfs/checkpoints"
    )
    job = TrainingJob.submit(plan_request(estimator._asked(str(tmp_path / "nfs")), backend), backend)
    assert job.wait().status == "Completed", job.failure
    assert str(tmp_path / "nfs") in [line.text for line in job.logs()]
    assert os.listdir(tmp_path / "nfs" / "checkpoints") == ["step-1"]
