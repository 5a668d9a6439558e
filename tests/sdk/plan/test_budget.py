"""The price of a job, its budget, and the limits that follow on each backend."""

import json

import msgspec
import pytest

from herringbone import Estimator
from herringbone.backends.detached import base_config
from herringbone.backends.sagemaker.request import AccountNames, training_job_request
from herringbone.backends.slurm.script import minutes
from herringbone.backends.ssh.machines.inventory import Inventory, Machine
from herringbone.controller.hosts import Site
from herringbone.plan.budget import bill_text, budget_seconds, shown_dollars
from herringbone.plan.options.typed import parse_options
from herringbone.plan.plan import parse_plan
from herringbone.prediction.prices import most_of, priced
from herringbone.records.home import Home
from herringbone_contract.errors import OptionError, UnsupportedError

HOSTS = """
dollars_per_hour: 2.0
hosts:
  - {name: a, labels: [cheap]}
  - {name: b, labels: [cheap]}
  - {name: c, dollars_per_hour: 8.0}
"""


@pytest.fixture
def plan(script, home):
    script("print('x')")

    def make(instance_type="local_process", **options):
        return Estimator("train.py", instance_type=instance_type, **options).plan(job_name="a")

    return make


def test_a_budget_is_a_limit_in_time(plan):
    made = plan(instance_count=2, dollars_per_hour=1.2, max_cost=4.8)
    assert (made.hourly_cost, made.budget, made.time_limit) == (2.4, 7200, 7200)
    assert "price:             $2.40 an hour; $4.80 pay for 2 h" in str(made)
    assert parse_plan(made.to_dict()).time_limit == 7200
    # A job that may run for less is stopped earlier.
    assert plan(dollars_per_hour=1.0, max_cost=100, max_run=60).time_limit == 60


def test_a_job_without_a_price_is_stored_as_before(plan):
    made = plan()
    assert (made.hourly_cost, made.time_limit) == (None, 86_400)
    assert "hourly_cost" not in made.to_dict()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_cost": 5}, r"max_cost: the price of local_process is not known here"),
        ({"max_cost": 0.01, "dollars_per_hour": 1}, r"max_cost: \$0.01 pays for 36 s of these hosts"),
        ({"max_cost": 0}, "max_cost"),
        ({"max_cost": float("nan"), "dollars_per_hour": 1}, "max_cost"),
        ({"max_cost": "5"}, "max_cost: expected float, got str"),
        ({"dollars_per_hour": -1}, "dollars_per_hour"),
    ],
)
def test_a_budget_that_nobody_can_keep_is_refused(plan, options, message):
    with pytest.raises(OptionError, match=message):
        plan(**options)


def test_an_inventory_has_prices_and_the_dearest_machine_counts(plan, tmp_path):
    (tmp_path / "work" / "hosts.yaml").write_text(HOSTS)
    assert plan("ssh:hosts.yaml", max_cost=8).time_limit == 3600
    assert plan("ssh:hosts.yaml#cheap", instance_count=2, max_cost=8).time_limit == 7200
    assert plan("ssh:hosts.yaml", max_cost=8, dollars_per_hour=4).time_limit == 7200
    # Known without being asked for: `ls --cost` shows what such a job costs.
    assert plan("ssh:hosts.yaml#cheap").hourly_cost == 2.0
    (tmp_path / "work" / "hosts.yaml").write_text("hosts: [{name: a, dollars_per_hour: 2}, b]")
    with pytest.raises(OptionError, match=r"the price of ssh:hosts.yaml is not known here"):
        plan("ssh:hosts.yaml", max_cost=8)


def test_a_sum_over_some_of_the_hosts_is_no_price(plan):
    made = plan(instance_count=2)
    inventory = Inventory(machines=(Machine(name="a", dollars_per_hour=1.0), Machine(name="b")))
    assert most_of(made, inventory) is None


def test_on_the_service_the_time_limit_follows_from_the_price_list(plan, home):
    # The review of such a job asks AWS's list, of which there is none here.
    made = plan("local", instance_count=2)
    hosts = tuple(msgspec.structs.replace(host, instance_type="ml.p4d.24xlarge") for host in made.hosts)
    service = msgspec.structs.replace(made, hosts=hosts, options=parse_options({"max_cost": 64.0}))
    known = priced(service, home.cache, lambda name, _: {"ml.p4d.24xlarge": 32.0}[name])
    assert (known.hourly_cost, known.time_limit) == (64.0, 3600)
    request = training_job_request(known, AccountNames())
    assert request["StoppingCondition"] == {"MaxRuntimeInSeconds": 3600}
    with pytest.raises(OptionError, match=r"the price of ml.p4d.24xlarge is not known here"):
        priced(service, home.cache, lambda *_: None)


def test_unused_devices_of_the_service_are_nobodys_to_free(plan):
    with pytest.raises(UnsupportedError, match="idle_timeout: no controller of ours runs there"):
        plan("ml.m5.large", image_uri="i:1", idle_timeout=60, role="r")


def test_the_budget_is_in_the_controllers_config(plan, tmp_path):
    config = base_config(plan(instance_count=2, dollars_per_hour=1.2, max_cost=4.8), Home(tmp_path))
    assert config["max_run"] == 86_400
    assert config["budget"] == {
        "hourly_cost": 2.4,
        "seconds": 7200,
        "text": "max_cost of $4.80 is spent ($2.40 an hour)",
    }
    # A price alone limits nothing.
    assert Site().time_limit(base_config(plan(dollars_per_hour=1.2), Home(tmp_path)))[1] == "max_run"
    assert base_config(plan(), Home(tmp_path))["budget"] is None
    assert minutes(plan(dollars_per_hour=60.0, max_cost=2).time_limit) == 2


def config(**members):
    return {"max_run": 3600.0, "spent": 0.0, "warning": 0.0, "budget": {"seconds": 1800, "text": "spent"}, **members}


@pytest.mark.parametrize(
    ("members", "spent", "limit"),
    [
        ({}, 0.0, ("max_cost", 1800.0, "spent")),
        ({"budget": None}, 9.0, ("max_run", 3600.0, "max_run of 3600 s is over")),
        # Slurm kills without a grace, so hosts are warned; earlier attempts have been paid for.
        ({"warning": 115.0}, 800.0, ("max_cost", 885.0, "spent in 115 s")),
        ({"max_run": 600.0}, 0.0, ("max_run", 600.0, "max_run of 600 s is over")),
        ({}, 9999.0, ("max_cost", 0.0, "spent")),
        # The rest of what earlier attempts of a job on machines have left, in the words of the whole.
        ({"budget": None, "spent": 3573.0}, 0.0, ("max_run", 27.0, "max_run of 3600 s is over")),
        ({"spent": 1700.0}, 0.0, ("max_cost", 100.0, "spent")),
    ],
)
def test_the_first_limit_counts(members, spent, limit):
    site = Site()
    site.spent = spent
    seconds, option, text = site.time_limit(config(**members))
    assert (option, seconds, text) == limit


def test_options_of_idleness_go_together():
    for options, message in (
        ({"fault_policies": {"idle": "report"}}, "idle_timeout is missing"),
        ({"fault_policies": {"idle": "restart"}, "idle_timeout": 60}, "cannot be answered by 'restart'"),
        ({"idle_timeout": 60, "environment": {"HERRINGBONE_OBSERVER": "off"}}, "idle_timeout: a host's observer"),
        ({"idle_timeout": 0}, "idle_timeout"),
    ):
        with pytest.raises(OptionError, match=message):
            parse_options(options)
    assert parse_options({"idle_timeout": "30m"}).idle_timeout == 1800


def test_amounts():
    assert [shown_dollars(amount) for amount in (0.0, 0.5, 0.004, 1234.567)] == [
        "$0.00",
        "$0.50",
        "$0.004",
        "$1,234.57",
    ]
    assert budget_seconds(10.0, 3.0) == 12_000
    assert bill_text(1.0, 1, 1800.0) == "about $0.50: 1 host for 30 min, $1.00 an hour"
    assert json.loads(json.dumps(parse_options({"max_cost": 5}).max_cost)) == 5.0
