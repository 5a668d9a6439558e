"""`herringbone plan --faults`: its words, the costs that it knows, and its answer."""

import json

import pytest
from msgspec.structs import replace
from tests.plans import plan_of

from herringbone.cli.__main__ import main
from herringbone.plan.request import make_request
from herringbone.prediction.faults.costs import Costs, costs_of, host_bytes
from herringbone.prediction.faults.forecast import fault_forecast
from herringbone.prediction.faults.model import Tier
from herringbone.prediction.faults.options import FaultWords, parse_faults
from herringbone_contract.errors import OptionError
from herringbone_contract.prediction.answer import Answer, Memory, Prediction, Range, StepTime

DAY = 86400.0
DISK = Tier(name="disk", blocked=60.0, save=60.0, load=30.0)


def test_words():
    assert parse_faults("mtbf=30d") == FaultWords(mtbf=30 * DAY)
    assert parse_faults("mtbf=1h30m/job, every=500").mtbf == 5400
    assert parse_faults("mtbf=12h/job").of_job
    assert parse_faults("mtbf=2d/host,every=2.5m,step=500ms,save=20s,blocked=0s,load=1s") == FaultWords(
        mtbf=2 * DAY, every=150.0, step=0.5, save=20.0, blocked=0.0, load=1.0
    )


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "'' is none of mtbf, step"),
        ("save=20s", "mtbf, the mean time between two faults of a host, is missing"),
        ("mtbf=30", "mtbf=30: 30 of which unit\\? write a time as 350ms"),
        ("mtbf=0s", "give 1 s to 366000 d; this is 0 s"),
        ("mtbf=-3d", "mtbf=-3d: write a time"),
        ("mtbf=nan", "mtbf=nan: write a time"),
        ("mtbf=infd", "mtbf=infd: write a time"),
        ("mtbf=1e9d", "mtbf=1e9d: write a time"),
        ("mtbf=999999999d", "give 1 s to 366000 d"),
        ("mtbf=\u0663d", "write a time"),
        ("mtbf=30d/gpu", "write mtbf=30d/host"),
        ("mtbf=30d,mtbf=1d", "mtbf stands twice"),
        ("mtbf=30d,sav=1s", "'sav=1s' is none of"),
        ("mtbf=30d,every=0", "saves after 1 step at the earliest"),
        ("mtbf=30d,every=0s", "every=0s: give 0.001 s"),
        ("mtbf=30d,every=5x", "or a number of steps"),
        ("mtbf=30d,step=0s", "step=0s: give 0.001 s"),
        ("mtbf=30d,save=1s,blocked=2s", "cannot be longer"),
    ],
)
def test_words_that_say_nothing(text, error):
    with pytest.raises(OptionError, match=error):
        parse_faults(text)


def test_bytes_of_a_host_count_replicas_once():
    def size(count, *memory, **mesh):
        memory = memory or (Memory(parameters=1, states=2, activations=99),)
        return host_bytes(Prediction(hosts="x", count=count, distribution={}, mesh=mesh, memory=memory))

    assert size(4, replicate=32) == 3.0
    assert size(4, shard=32) == 3.0 * 8
    assert size(4, replicate=4, shard=8) == 3.0 * 8
    assert size(4, replicate=16, pipeline=2) == 3.0
    assert size(2, *(Memory(parameters=1), Memory(parameters=5)), replicate=1, pipeline=2) == 3.0


def predicted(seconds=None, **mesh):
    step = StepTime(seconds=Range(low=1, expected=2, high=3), compute=2, communication=0, idle=0, data=0)
    memory = (Memory(parameters=500_000_000, states=800_000_000),)
    whole = None if seconds is None else Range(low=seconds, expected=seconds, high=seconds)
    return Answer(
        planned=Prediction(hosts="x", count=2, distribution={}, mesh=mesh, memory=memory, step=step, seconds=whole)
    )


@pytest.fixture
def make(tmp_path):
    """Makes a plan of two hosts of a backend."""
    (tmp_path / "train.py").write_text("")

    def plan(backend="ssh", prediction=None, hosts=2, **members):
        arguments = {"entry_point": "train.py", "instance_type": "local_process", "instance_count": hosts, **members}
        return replace(plan_of(make_request("PyTorch", arguments), tmp_path, backend=backend), prediction=prediction)

    return plan


def test_costs_that_the_user_gives_are_used_as_they_are(make):
    words = parse_faults("mtbf=1d,detect=2s,restart=3s,load=4s,save=5s,blocked=1s,step=7s")
    waits = Tier(name="disk, training waits", blocked=5.0, save=5.0, load=4.0)
    background = replace(waits, name="disk, in the background", blocked=1.0)
    assert costs_of(make(), words, 5.0) == Costs(((waits,), (background,)), 5.0, 7.0, ())
    # Also where a prediction says others.
    assert costs_of(make(prediction=predicted(replicate=16)), words, 5.0) == Costs(
        ((waits,), (background,)), 5.0, 7.0, ()
    )


def test_costs_of_a_measured_script(make):
    costs = costs_of(make(prediction=predicted(replicate=16)), FaultWords(mtbf=DAY), heartbeat=5.0)
    (waits,), (background,) = costs.ways
    assert (waits.blocked, waits.save, waits.load) == (1.0, 1.0, 0.8125)
    assert (background.blocked, background.save) == (0.1, 1.0)
    assert (costs.step, costs.down) == (2, 15.0 + 2.6)
    assert costs.notes[2:] == (
        "save=1s, load=0.812s: 1300 MB of a host to a disk of 1.3 GB/s, and back at 1.6",
        "blocked=0.1s in the background: a copy in memory at 13 GB/s",
    )
    # Another disk, from which checkpoints are read as fast.
    (waits,), (background,) = costs_of(
        make(prediction=predicted(replicate=16)), FaultWords(mtbf=DAY, save=9.0), 5.0
    ).ways
    assert (waits.load, background.load, background.blocked) == (9.0, 9.0, 0.1)
    # A save takes at least as long as it stops training.
    assert (
        costs_of(make(prediction=predicted(replicate=16)), FaultWords(mtbf=DAY, blocked=3.0), 5.0).ways[0][0].save
        == 3.0
    )
    # All hosts write a part.
    assert costs_of(make(prediction=predicted(shard=16)), FaultWords(mtbf=DAY), 5.0).ways[0][0].save == 8.0


def test_a_restart_costs_what_it_took_on_each_backend(make):
    words = FaultWords(mtbf=DAY, save=1.0)
    down = {name: costs_of(make(name), words, 5.0).down for name in ("local_process", "slurm", "ssh", "sagemaker")}
    assert down == pytest.approx({"local_process": 2.4, "slurm": 24.6, "ssh": 17.6, "sagemaker": 225.0})


@pytest.mark.parametrize(
    ("backend", "words", "error"),
    [
        (
            "kubernetes",
            {"save": 1.0},
            "a restart on kubernetes takes is not known; add restart, as --faults mtbf=30d,restart=60s$",
        ),
        (
            "ssh",
            {},
            "a save takes is not known; add save, as --faults mtbf=30d,save=20s, or measure the script: --measure$",
        ),
    ],
)
def test_costs_that_nobody_knows(make, backend, words, error):
    with pytest.raises(OptionError, match=error):
        costs_of(make(backend), FaultWords(mtbf=DAY, **words), 5.0)


def forecast(plan, retries=1000, step=2.0, **words):
    return fault_forecast(plan, FaultWords(**{"mtbf": 2 * DAY, **words}), Costs(((DISK,),), 300.0, step, ()), retries)


def test_the_rate_is_that_of_all_hosts(make):
    assert forecast(make()).mtbf == DAY
    assert [row.mtbf / DAY for row in forecast(make()).scaling] == [1, 2 / 8, 2 / 64, 2 / 1024]
    assert forecast(make(), of_job=True).mtbf == 2 * DAY
    assert [row.hosts for row in forecast(make(hosts=8)).scaling] == [8, 64, 1024]
    assert [row.hosts for row in forecast(make(hosts=1)).scaling] == [1, 8, 64, 1024]
    ettrs = [row.ettr for row in forecast(make()).scaling]
    assert ettrs == sorted(ettrs, reverse=True)


def test_rows_have_the_best_interval_and_that_of_the_script(make):
    def notes(**words):
        return [(row.steps, row.note) for row in forecast(make(), **words).intervals]

    best = [(398, ""), (795, ""), (1590, "best"), (3180, ""), (6360, "")]
    assert notes() == best
    assert notes(every_steps=500) == [best[0], (500, "yours"), *best[1:]]
    assert notes(every=1000.0) == [best[0], (500, "yours"), *best[1:]]
    assert notes(every_steps=1590)[2] == (1590, "yours, best")
    assert [row.steps for row in forecast(make(), step=None).intervals] == [None] * 5
    most = max(forecast(make()).intervals, key=lambda row: row.loss.ettr)
    assert most.note == "best"


def test_save_steps_of_transformers_are_known(make):
    rows = forecast(make(hyperparameters={"save_steps": 500})).intervals
    assert [row.steps for row in rows if row.note == "yours"] == [500]
    # Half of the steps, or the steps of a job whose step is not known.
    for value, step in ((0.5, 2.0), (500, None)):
        rows = forecast(make(hyperparameters={"save_steps": value}), step=step).intervals
        assert not [row for row in rows if row.note == "yours"]


def test_steps_whose_time_is_not_known(make):
    with pytest.raises(OptionError, match="every=500 are steps, and the time of one is not known; add step"):
        forecast(make(), step=None, every_steps=500)


def test_the_length_of_the_job(make):
    assert forecast(make()).run == DAY
    assert forecast(make(max_run=3600)).run == 3600
    assert forecast(make(max_run=604800)).faults == pytest.approx(7.0)
    # The predicted time is without faults.
    assert 3600 * 1.02 < forecast(make(prediction=predicted(3600, replicate=1))).run < 3600 * 1.1


def test_reasons_why_a_job_does_not_end(make):
    assert forecast(make()).notes == ()
    assert forecast(make(), retries=None).notes == ("max_retry_attempts is not set, so the first fault ends the job",)
    assert forecast(make(), retries=1).notes == ("max_retry_attempts=1 is enough for 74 % of such jobs",)
    assert "hardly gets on" in forecast(make(), mtbf=60.0).notes[0]


def test_the_command(script, capsys):
    script("")
    words = ["plan", "train.py", "--faults", "mtbf=4d,save=20s,step=500ms,every=600", "-o", "max_retry_attempts=99"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "faults:            one in 4 d on 1 host; 0.25 expected in 1 d\n" in out
    assert "a fault costs:     2.40 s, the load of a checkpoint, and the work since it\n" in out
    lines = out.splitlines()
    yours = next(line for line in lines if line.endswith("yours"))
    assert " ".join(yours.split()) == "disk, training waits 5 min 600 6.25 % 0.05 % 0.01 % 1 h 30 min 93.70 % yours"
    assert sum(line.startswith("1,024 ") for line in lines) == 1
    assert main([*words, "--json"]) == 0
    faults = json.loads(capsys.readouterr().out)["faults"]
    assert faults["intervals"][0]["loss"]["ettr"] == pytest.approx(0.937, abs=1e-3)
    assert [row["hosts"] for row in faults["scaling"]] == [1, 8, 64, 1024]


def test_the_command_refuses_before_it_plans(script, capsys, monkeypatch):
    script("")
    assert main(["plan", "absent.py", "--faults", "mtbf=30"]) == 2
    assert "30 of which unit?" in capsys.readouterr().err
    for heartbeat in ("soon", "nan", "0", "-1", "inf"):
        monkeypatch.setenv("HERRINGBONE_HEARTBEAT", heartbeat)
        assert main(["plan", "train.py", "--faults", "mtbf=30d,save=1s"]) == 2
        assert f"HERRINGBONE_HEARTBEAT={heartbeat}: expected seconds" in capsys.readouterr().err
