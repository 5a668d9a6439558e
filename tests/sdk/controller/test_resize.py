"""Another number of hosts for a running job: what is refused, and what the next attempt is told."""

import json

import pytest

from herringbone.controller.attempt_end import Conclusion, EndedHosts, end_attempt
from herringbone.controller.attempts import Saved
from herringbone.controller.hosts import Host, Restart, Site, next_hosts
from herringbone.controller.log_files import LogFile
from herringbone.controller.requests import SUFFIX
from herringbone.controller.resize import refusal, rewrite_hosts, take_requests
from herringbone.controller.retry import Attempt, Policies, decide, find_policy, with_progress
from herringbone.controller.verdict import Verdict
from herringbone.events.source import decode_lines
from herringbone_contract.events.requests import SCALE, encode
from herringbone_contract.failure import Failure
from herringbone_contract.resources import HostGroup, ResourceConfig, parse_resource_config

NAMES = ("algo-1", "algo-2", "algo-3", "algo-4")


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (1, "1 host is fewer than min_instance_count, 2"),
        (5, "5 hosts are more than instance_count, 4"),
        (3, "no layout on 3 hosts; it has one on 4, 2"),
        (4, "the job has 4 hosts already"),
        (0, "no number of hosts"),
        (True, "no number of hosts"),
        ("2", "no number of hosts"),
        (None, "no number of hosts"),
        (2, ""),
    ],
)
def test_a_size_is_refused_by_name(wanted, words):
    why = refusal([4, 2], 4, wanted, planned=None, is_ending=False)
    assert words in why
    assert bool(why) == bool(words)


def test_a_job_keeps_its_hosts_while_it_ends_or_changes_or_without_the_option():
    assert "min_instance_count" in refusal([], 4, 2, planned=None, is_ending=False)
    assert "on its way to 3 hosts" in refusal([4, 3, 2], 4, 2, planned=Attempt(1, {}, next_hosts=3), is_ending=True)
    assert "are ending" in refusal([4, 3, 2], 4, 2, planned=None, is_ending=True)


@pytest.fixture
def config(tmp_path):
    hosts = [{"name": name, "base": str(tmp_path / name)} for name in NAMES]
    for host in hosts:
        config = tmp_path / host["name"] / "input" / "config"
        config.mkdir(parents=True)
        resources = ResourceConfig(host["name"], NAMES, groups=(HostGroup("gpu", "local", NAMES),))
        (config / "resourceconfig.json").write_text(json.dumps(resources.to_json()))
    (tmp_path / "logs").mkdir()
    (tmp_path / "requests").mkdir()
    return {"hosts": hosts, "logs": str(tmp_path / "logs"), "sizes": [4, 3, 2]}


def made_site(config, count):
    site = Site()
    site.hosts = [Host(host, LogFile(f"{config['logs']}/{host['name']}.log")) for host in config["hosts"][:count]]
    return site


def ask(tmp_path, kind, number, **members):
    request = {"id": f"{number:016x}", "kind": kind, **members}
    (tmp_path / "requests" / f"{number}{SUFFIX}").write_bytes(encode(request))


def answers(tmp_path, host):
    events = decode_lines((tmp_path / "logs" / f"{host}.events").read_bytes())
    return {event["id"][-1]: event["error"] or event["text"] for event in events}


def test_of_two_requests_at_once_the_first_is_served(config, tmp_path):
    site = made_site(config, 3)
    ask(tmp_path, SCALE, 1, count=4)
    assert take_requests(str(tmp_path / "requests"), config, site, is_ending=False)
    ask(tmp_path, SCALE, 2, count=2)
    assert not take_requests(str(tmp_path / "requests"), config, site, is_ending=True)
    assert site.planned == Attempt(1, {}, "3 -> 4 hosts: asked by `herringbone scale`", next_hosts=4)
    assert answers(tmp_path, "algo-1") == {"1": "3", "2": "the job is on its way to 4 hosts; ask again when they run"}


def test_a_host_that_is_not_in_this_attempt_answers_all_the_same(config, tmp_path):
    ask(tmp_path, "stacks", 1)
    assert not take_requests(str(tmp_path / "requests"), config, made_site(config, 3), is_ending=False)
    assert answers(tmp_path, "algo-4") == {"1": "the job has fewer hosts now, without this one"}


def test_the_hosts_of_the_next_attempt_read_who_they_are(config, tmp_path):
    rewrite_hosts(config, 2)
    rewrite_hosts(config, 3)
    for name in NAMES[:3]:
        found = parse_resource_config((tmp_path / name / "input/config/resourceconfig.json").read_bytes())
        assert (found.current_host, found.hosts) == (name, NAMES[:3])
        assert found.groups == (HostGroup("gpu", "local", NAMES[:3]),)


def test_a_file_that_the_script_has_replaced_by_a_link_leads_nowhere(config, tmp_path):
    file, other = tmp_path / "algo-1/input/config/resourceconfig.json", tmp_path / "other"
    other.write_text("kept")
    file.unlink()
    file.symlink_to(other)
    with pytest.raises(OSError, match="resourceconfig"):
        rewrite_hosts(config, 2)
    assert other.read_text() == "kept"


def test_hosts_that_leave_close_their_logs_and_come_back_to_the_same_file(config):
    site = made_site(config, 4)
    site.hosts[3].log.feed(b"[algo-4] one\n", now=0.0)
    smaller = next_hosts(config["hosts"], site.hosts, [Attempt(1, {}, next_hosts=3)], config["logs"])
    assert [log for _, log in smaller] == [host.log for host in site.hosts[:3]]
    site.hosts = site.hosts[:3]
    larger = next_hosts(config["hosts"], site.hosts, [Attempt(2, {}, next_hosts=4)], config["logs"])
    # It begins behind what the host wrote before.
    assert larger[3][1].begin_attempt() > 0
    same = next_hosts(config["hosts"], site.hosts, [Attempt(1, {})], config["logs"])
    assert len(same) == 3


def test_a_planned_restart_uses_up_no_attempt():
    lost = Verdict("Failed", "Failed", Failure(host="algo-2", exit_code=137), lost="algo-2")
    match = find_policy(Policies(), lost, {})
    planned = [Attempt(number, {}, next_hosts=2, checkpoint="a", saved=1) for number in (1, 2, 3)]
    assert decide(lost, match, {}, planned, retries=1).number == 4
    assert decide(lost, match, {}, [*planned, Attempt(4, {})], retries=1) is None
    # Nor is one of them an attempt without a new step.
    assert with_progress(Attempt(4, {}), Saved("a", 1), planned).checkpoint == "a"


class Ended(EndedHosts):
    retries, policies, earlier, machines = 0, Policies(), (), {}
    planned = Attempt(1, {}, "4 -> 3 hosts: why", next_hosts=3)
    hourly_cost, compress, job = None, True, "digits-1"
    stopping = ""

    def __init__(self, verdict, error=None):
        self.verdict, self.error, self.ends, self.restarted = verdict, error, [], []

    def judge(self):
        return self.verdict

    def restart(self, failed):
        if self.error:
            raise self.error
        self.restarted.append(failed)
        return Restart.HERE

    def output(self):
        return None

    def release(self): ...

    def collect(self, verdict): ...

    def send(self, model):
        return model

    def finish(self, verdict, model):
        self.ends.append(verdict)


def test_hosts_that_ended_for_another_size_are_followed_by_another_attempt():
    hosts = Ended(Verdict("Completed", "Completed"))
    assert end_attempt(hosts) is Conclusion.RESTART
    assert hosts.restarted == [Ended.planned]
    assert not hosts.ends


@pytest.mark.parametrize("status", ["Stopped", "Failed"])
def test_a_stop_or_a_failure_meanwhile_comes_first(status):
    failure = Failure(host="algo-1", exit_code=1) if status == "Failed" else None
    hosts = Ended(Verdict(status, status, failure))
    end_attempt(hosts)
    assert not hosts.restarted
    assert [verdict.status for verdict in hosts.ends] == [status]


def test_an_attempt_that_cannot_start_fails_the_job_and_says_how_to_go_on():
    hosts = Ended(Verdict("Completed", "Completed"), OSError("no space"))
    assert end_attempt(hosts) is Conclusion.FAILED
    [verdict] = hosts.ends
    assert "4 -> 3 hosts: why; the job could not be restarted: no space" in verdict.failure.message
    assert "herringbone run --resume digits-1" in verdict.failure.message
