"""The searcher against jobs in memory, killed at every line that touches the world."""

import json
from collections import Counter

import pytest

from herringbone.backends.ssh.machines.inventory import MachinesBusyError
from herringbone.system.polling import Pace
from herringbone.tuner.configs import HyperbandStrategyConfig
from herringbone.tuner.definition import define
from herringbone.tuner.parameters import ContinuousParameter
from herringbone.tuner.searcher.runner import Searcher, Waits
from herringbone.tuner.searcher.trial_jobs import JobLook
from herringbone.tuner.store import TuningRecord, TuningStore, encode_record
from herringbone.tuner.strategies.choose import strategy_for
from herringbone_contract.errors import IndexBusyError, LaunchError

ASKED = {"arguments": {"instance_type": "local_process"}}


class KilledError(BaseException):
    """Stands for SIGKILL."""


class World:
    """Jobs in memory. Every call may be the last one of its searcher, before or after its effect."""

    pace = Pace(shortest=0.0, longest=0.0, slower=1.0)

    def __init__(self, kill_at=None, *, fails=()):
        self.calls, self.kill_at, self.fails = 0, kill_at, fails
        # Each submission that ran, and the states of jobs: the number of looks until the end.
        self.ran, self.jobs, self.stopped = [], {}, []

    def point(self):
        """A line at which the searcher may be killed."""
        self.calls += 1
        if self.calls == self.kill_at:
            raise KilledError

    def start(self, record, earlier):
        self.point()
        # The row is there, and its client dies before any host runs.
        self.jobs[record.job] = None
        self.point()
        assert (record.resumes is None) == (earlier is None)
        self.jobs[record.job] = 2
        self.ran.append(record)
        self.point()

    def look(self, job):
        self.point()
        if job not in self.jobs:
            return None
        looks = self.jobs[job]
        if looks is None:
            return JobLook("Failed", True, "its client died", lost=True)
        self.jobs[job] = max(looks - 1, 0)
        if looks:
            return JobLook("InProgress", False)
        if job in self.stopped:
            return JobLook("Stopped", True)
        return JobLook("Failed", True, "boom") if job in self.fails else JobLook("Completed", True)

    def curve(self, job):
        record = next((record for record in self.ran if record.job == job), None)
        if record is None:
            return ()
        quality = 1 - abs(record.values["lr"] - 0.3)
        return tuple(quality * epoch / (epoch + 1) for epoch in range(1, (record.resource or 9) + 1))

    def stop(self, job):
        self.point()
        self.stopped.append(job)

    def forget(self, job):
        self.point()
        del self.jobs[job]
        self.point()


class KilledStore(TuningStore):
    """A store whose searcher may be killed before and after each write."""

    def __init__(self, folder, world):
        super().__init__(folder)
        self.world = world

    def add_proposal(self, proposal, job):
        self.world.point()
        record = super().add_proposal(proposal, job)
        self.world.point()
        return record

    def add_end(self, record):
        self.world.point()
        super().add_end(record)
        self.world.point()

    def set_state(self, state):
        self.world.point()
        super().set_state(state)
        self.world.point()


def make_store(folder, **settings):
    definition = define(
        {
            "name": folder.name,
            "metric": "accuracy",
            "ranges": {"lr": ContinuousParameter(0, 1)},
            "strategy": "Random",
            "max_jobs": 4,
            "max_parallel_jobs": 2,
            "seed": 3,
            **settings,
        }
    )
    folder.mkdir(parents=True)
    record = TuningRecord(definition=definition, request=ASKED, backend="local_process", created=0.0)
    (folder / "tuning.json").write_bytes(encode_record(record))
    return TuningStore(folder)


def searcher(store, world, **options):
    definition = store.record().definition
    options = {"say": lambda _: None, "clock": lambda: 1.0, **options}
    return Searcher(store, world, strategy_for(definition).propose, **options)


def results(store):
    return [
        (record.number, record.values, record.resource, record.resumes, record.status, record.objective)
        for record in store.trials()
    ]


@pytest.fixture(autouse=True)
def no_sync(monkeypatch):
    """A killed process loses nothing that it has written; a sync takes 5 ms, and these tests make thousands."""
    monkeypatch.setattr("os.fsync", lambda descriptor: None)


HYPERBAND = {
    "strategy": "Hyperband",
    "max_jobs": 6,
    "hyperband": HyperbandStrategyConfig(max_resource=9, min_resource=1, resource_name="epochs"),
}


@pytest.mark.parametrize("settings", [{}, HYPERBAND], ids=["random", "hyperband"])
def test_a_search_that_is_killed_at_any_line_has_the_result_of_an_undisturbed_one(tmp_path, settings):
    quiet = World()
    undisturbed = make_store(tmp_path / "quiet", **settings)
    assert searcher(KilledStore(undisturbed.path, quiet), quiet).run().status == "Completed"
    expected = results(undisturbed)
    assert quiet.calls > 40
    for line in range(1, quiet.calls + 1):
        world = World(kill_at=line)
        store = make_store(tmp_path / f"killed-{line}", **settings)
        with pytest.raises(KilledError):
            searcher(KilledStore(store.path, world), world).run()
        assert searcher(store, world).run().status == "Completed"
        assert results(store) == expected, line
        assert max(Counter(record.job for record in world.ran).values()) == 1, line
        assert len(world.ran) == len(expected), line


def test_a_search_that_is_killed_twenty_times_runs_no_trial_twice(tmp_path):
    expected_world = World()
    settings = {**HYPERBAND, "max_jobs": 12}
    expected = make_store(tmp_path / "quiet", **settings)
    searcher(expected, expected_world).run()
    store, world, kills = make_store(tmp_path / "killed", **settings), World(), 0
    while True:
        world.kill_at = world.calls + 7 if kills < 20 else None
        try:
            state = searcher(KilledStore(store.path, world), world).run()
            break
        except KilledError:
            kills += 1
    assert (kills, state.status) == (20, "Completed")
    assert results(store) == results(expected)
    assert Counter(record.job for record in world.ran) == dict.fromkeys((r.job for r in store.trials()), 1)


def test_a_stop_ends_running_trials_and_starts_none(tmp_path):
    store, world = make_store(tmp_path / "stopped"), World()
    store.ask_to_stop()
    assert searcher(store, world).run().status == "Stopped"
    assert world.ran == []


def test_a_proposal_without_a_job_is_stopped_with_the_search(tmp_path):
    store, world = make_store(tmp_path / "stopped"), World(kill_at=3)
    with pytest.raises(KilledError):
        searcher(KilledStore(store.path, world), world).run()
    store.add_proposal(strategy_for(store.record().definition).propose([], 1)[0], "stopped-001")
    store.ask_to_stop()
    world.kill_at = None
    state = searcher(store, world).run()
    assert (state.status, [record.status for record in store.trials()]) == ("Stopped", ["Stopped"])
    assert world.ran == []


def test_a_search_ends_after_its_time_and_says_why(tmp_path):
    store, world = make_store(tmp_path / "late", max_runtime_in_seconds=10), World()
    times = iter([1.0])
    state = searcher(store, world, clock=lambda: next(times, 11.0)).run()
    assert state.status == "Stopped"
    assert state.reason == "max_runtime_in_seconds, 10 s, is over"
    assert [record.status for record in store.trials()] == ["Stopped", "Stopped"]


def test_a_search_whose_first_trials_all_fail_ends(tmp_path):
    store, world = make_store(tmp_path / "bad", max_jobs=20), World(fails=[f"bad-{n:03d}" for n in range(1, 21)])
    state = searcher(store, world).run()
    assert state.status == "Failed"
    assert "no training job succeeded: 5 of 5 failed" in state.reason
    assert len(world.ran) <= 6


def test_a_failed_trial_keeps_its_reason_and_the_search_goes_on(tmp_path):
    store, world = make_store(tmp_path / "some"), World(fails=["some-002"])
    assert searcher(store, world).run().status == "Completed"
    assert [(r.status, r.failure, r.objective is None) for r in store.trials()][1] == ("Failed", "boom", True)


def test_a_job_that_cannot_be_started_is_a_failed_trial(tmp_path):
    class Full(World):
        def start(self, record, earlier):
            if record.number == 1:
                raise LaunchError("no room")
            super().start(record, earlier)

    store, world = make_store(tmp_path / "full"), Full()
    assert searcher(store, world).run().status == "Completed"
    assert store.trials()[1].failure == "job full-002 could not be started: no room"


def test_a_service_that_does_not_answer_is_asked_again(tmp_path):
    class Busy(World):
        def point(self):
            super().point()
            if self.calls in (1, 5, 9, 14):
                raise IndexBusyError("locked")

    store, world, said = make_store(tmp_path / "busy"), Busy(), []
    assert searcher(store, world, say=said.append, waits=Waits(trouble=0.0)).run().status == "Completed"
    assert [record.status for record in store.trials()] == ["Completed"] * 4
    assert len(world.ran) == 4
    assert "trial 1: job busy-001 waits: locked" in said


def test_a_trial_waits_for_a_busy_machine_while_others_end(tmp_path):
    class Full(World):
        refused = 0

        def start(self, record, earlier):
            if sum(looks != 0 for looks in self.jobs.values()):
                self.refused += 1
                raise MachinesBusyError("h-1: runs digits-7")
            super().start(record, earlier)

    store, world, said = make_store(tmp_path / "busy"), Full(), []
    assert searcher(store, world, say=said.append, waits=Waits(trouble=0.0)).run().status == "Completed"
    assert world.refused > 0
    assert [record.status for record in store.trials()] == ["Completed"] * 4
    # Each of the three others says so once.
    assert sum("waits: h-1: runs digits-7" in line for line in said) == 3


def test_a_stop_ends_a_trial_that_waits_for_a_machine(tmp_path):
    class Full(World):
        def start(self, record, earlier):
            store.ask_to_stop()
            raise MachinesBusyError("h-1: runs digits-7")

    store, world = make_store(tmp_path / "busy"), Full()
    assert searcher(store, world).run().status == "Stopped"
    assert [record.status for record in store.trials()] == ["Stopped", "Stopped"]


def test_a_job_whose_place_in_line_was_lost_is_submitted_again(tmp_path):
    class Waiting(World):
        lost = 0

        def start(self, record, earlier):
            if record.number == 1 and self.lost < self.losses:
                self.lost += 1
                self.jobs[record.job] = None
                return
            super().start(record, earlier)

    for losses, status in ((3, "Completed"), (4, "Failed")):
        store, world = make_store(tmp_path / f"lost-{losses}"), Waiting()
        world.losses = losses
        assert searcher(store, world).run().status == "Completed"
        assert store.trials()[1].status == status


def test_a_reboot_loses_no_trial(tmp_path):
    store, world, said = make_store(tmp_path / "reboot"), World(kill_at=30), []
    with pytest.raises(KilledError):
        searcher(KilledStore(store.path, world), world).run()
    running = [record.job for record in store.trials() if not record.done]
    # Their controllers died with the searcher.
    world.jobs, world.kill_at = world.jobs | dict.fromkeys(running), None
    assert searcher(store, world, say=said.append).run().status == "Completed"
    assert [record.status for record in store.trials()] == ["Completed"] * 4
    assert f"trial {int(running[0][-3:])}: job {running[0]} was lost and starts again: its client died" in said


def test_early_stopping_stops_a_trial_and_says_so(tmp_path):
    class Slow(World):
        def start(self, record, earlier):
            super().start(record, earlier)
            self.jobs[record.job] = 8

        def look(self, job):
            look = super().look(job)
            if job in self.stopped and not look.done:
                self.jobs[job] = 0
            return look

        def curve(self, job):
            reports = 9 - (self.jobs[job] or 0)
            return super().curve(job)[:reports]

    store = make_store(tmp_path / "early", early_stopping_type="Auto", max_jobs=12, max_parallel_jobs=1)
    world = Slow()
    searcher(store, world, waits=Waits(curve=0.0)).run()
    early = [record for record in store.trials() if record.early_stopped]
    assert early
    assert {record.job for record in early} == set(world.stopped)
    best = max(store.trials(), key=lambda record: record.objective)
    assert best not in early


def test_a_torn_line_is_dropped_and_the_trial_is_proposed_again(tmp_path):
    store, world = make_store(tmp_path / "torn"), World(kill_at=8)
    with pytest.raises(KilledError):
        searcher(KilledStore(store.path, world), world).run()
    whole = store.trials()
    with (store.path / "trials.jsonl").open("ab") as file:
        file.write(b'{"kind":"proposed","number":1,"val')
    assert store.trials() == whole
    world.kill_at = None
    assert searcher(store, world).run().status == "Completed"
    lines = [json.loads(line) for line in (store.path / "trials.jsonl").read_bytes().splitlines()]
    assert [line["number"] for line in lines if line["kind"] == "proposed"] == [0, 1, 2, 3]


def test_a_stop_of_a_job_that_is_lost_meanwhile_ends_the_search(tmp_path):
    class Lost(World):
        def stop(self, job):
            super().stop(job)
            # Whoever held its place in line was killed.
            self.jobs[job] = None

        def look(self, job):
            if self.calls > 200:
                pytest.fail("the search waits for a job that is gone")
            store.ask_to_stop()
            return super().look(job)

        def start(self, record, earlier):
            super().start(record, earlier)
            self.jobs[record.job] = 99

    store, world = make_store(tmp_path / "lost"), Lost()
    assert searcher(store, world).run().status == "Stopped"
    assert [record.status for record in store.trials()] == ["Stopped", "Stopped"]
    assert len(world.ran) == 2


def test_a_stop_that_fails_is_sent_again_after_a_pause(tmp_path):
    pauses = []

    class Silent(World):
        refused = 0

        def start(self, record, earlier):
            super().start(record, earlier)
            store.ask_to_stop()

        def stop(self, job):
            if self.refused < 2:
                self.refused += 1
                raise IndexBusyError("locked")
            super().stop(job)

    store, world = make_store(tmp_path / "silent", max_parallel_jobs=1), Silent()
    assert searcher(store, world, waits=Waits(sleep=pauses.append)).run().status == "Stopped"
    assert pauses.count(2.0) == 2
