"""The pure parts of predictions: devices, amounts, changes, the fewest hosts, tables and refusals."""

import json
import os
import shlex

import msgspec
import pytest

from herringbone.backends.ssh.machines.inventory import parse_inventory
from herringbone.cli.train.measure import read_measures
from herringbone.events.refusal import check_memory, check_time, memory_warning, time_warning
from herringbone.prediction.answers import _folders, mark_of
from herringbone.prediction.cache import prune, used
from herringbone.prediction.choosing import best_first
from herringbone.prediction.machines import figures_of
from herringbone.prediction.options import Measure, WhatIf, parse_amount, parse_changes, parse_device, parse_measure
from herringbone.prediction.questions import fewest
from herringbone.show.predictions import flag_text, layout_rows, prediction_rows
from herringbone_contract.errors import InputError, OptionError, UnsupportedError
from herringbone_contract.prediction.answer import Answer, Memory, Prediction, Range, StepTime
from herringbone_contract.prediction.devices import Device
from herringbone_contract.prediction.question import Hosts

STEP = StepTime(seconds=Range(low=0.15, expected=0.2, high=0.3), compute=0.12, communication=0.06, idle=0.0, data=0.02)


def layout(**members):
    fixed = {"hosts": "ml.g5.12xlarge", "count": 2, "distribution": {}, "mesh": {}, "device_bytes": 24 << 30}
    return Prediction(**{**fixed, **members})


def test_a_device_by_its_figures():
    device = parse_device("memory=24GiB, flops=30e12, bandwidth=600GB, bfloat16=120e12, fraction=0.4")
    assert (device.memory_bytes, device.bytes_per_second, device.fraction) == (24 << 30, 600e9, 0.4)
    assert device.operations_per_second == {"float32": 30e12, "bfloat16": 120e12}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("memory=24GiB", "flops, bandwidth missing; write memory=24GiB,flops=30e12,bandwidth=600e9"),
        ("memory=24GiB,memory=1GiB", "each figure once"),
        ("speed=7", "'speed=7'; write memory="),
        ("memory=24XB,flops=1,bandwidth=1", "memory: '24XB' is no amount"),
        ("memory=0,flops=1,bandwidth=1", "'0' is not greater than 0"),
        ("memory=0.2,flops=1,bandwidth=1", "memory: 0.2 bytes; give 1 to 1e18"),
        ("memory=1e40,flops=1,bandwidth=1", "memory: 1e\\+40 bytes; give 1 to 1e18"),
        ("memory=1,flops=1,bandwidth=1,fraction=2", "fraction: 2 is more than 1"),
    ],
)
def test_a_wrong_device_says_what_to_write(text, error):
    with pytest.raises(OptionError, match=error):
        parse_device(text)


def test_amounts_have_binary_and_decimal_units():
    assert [parse_amount("x", text) for text in ("1KiB", "1kb", "2.5MB", "7")] == [1024, 1000, 2.5e6, 7]
    with pytest.raises(OptionError, match="is not greater than 0"):
        parse_amount("x", "inf")


def test_changes():
    read = {"ddp": {"torch_distributed": {"enabled": True}}}.__getitem__
    words = ("batch=64", "instance-type=ml.p5.48xlarge", "distribution=ddp")
    assert parse_changes(words, read) == WhatIf(batch=64, instance_type="ml.p5.48xlarge", distribution=read("ddp"))
    for words, error in (
        (("lr=3",), "names: batch, instance_type, instance_count, distribution"),
        (("batch",), "write NAME=VALUE"),
        (("batch=0",), ">= 1"),
        (("instance-count=1000000000",), "<= 100000"),
        (("batch=1", "batch=2"), "stands twice"),
    ):
        with pytest.raises(OptionError, match=error):
            parse_changes(words, read)


def test_measure_is_true_false_or_settings():
    assert (parse_measure(False), parse_measure(True), parse_measure({"steps": 7})) == (
        None,
        Measure(),
        Measure(steps=7),
    )
    for wrong in ({"stesp": 7}, Measure(steps="7"), 3):
        with pytest.raises(OptionError, match=r"give True or Measure\(steps=1000\)"):
            parse_measure(wrong)


@pytest.mark.parametrize(
    ("seconds_of", "limit", "expected"),
    [
        (lambda hosts: 100 / hosts, 30.0, (4, 4)),
        (lambda hosts: 100 / hosts, 100.0, (1, 1)),
        (lambda hosts: 100 / hosts, 0.001, (None, 1024)),
        (lambda hosts: 100 / hosts + 10 * hosts, 20.0, (None, 4)),
        # Fewer than three hosts do not hold the model.
        (lambda hosts: None if hosts < 3 else 90 / hosts, 30.0, (3, 3)),
        (lambda _: None, 30.0, (None, 1)),
    ],
)
def test_the_fewest_hosts(seconds_of, limit, expected):
    assert fewest(seconds_of, limit) == expected


def test_the_lines_of_a_prediction():
    answer = Answer(
        planned=layout(
            mesh={"replicate": 2, "pipeline": 2, "tensor": 1},
            memory=(Memory(states=8 << 30, slack=1 << 30), Memory(parameters=2 << 30)),
            step=STEP,
            samples_per_second=1204.4,
            seconds=Range(low=7200, expected=9000, high=10800),
            dollars=Range(low=90, expected=104.5, high=118),
            reasons=("the speed comes from a table",),
        ),
        notes=("nms ran for real",),
    )
    assert prediction_rows(answer) == [
        ("predicted", "2 x ml.g5.12xlarge: replicate 2, pipeline 2"),
        ("memory, part 0", "9.0 GiB of 24.0 GiB: states 8.0 GiB, slack 1.0 GiB"),
        ("memory, part 1", "2.0 GiB of 24.0 GiB: parameters 2.0 GiB"),
        ("step", "200 ms (150 ms to 300 ms): compute 120 ms, communication 60 ms, data 20 ms"),
        ("samples", "1,204 a second, of all ranks"),
        ("time to end", "2 h 30 min (2 h to 3 h)"),
        ("cost", "$104.50 ($90.00 to $118.00)"),
        ("because", "the speed comes from a table"),
        ("note", "nms ran for real"),
    ]


def test_the_table_of_layouts_leaves_out_what_nobody_knows():
    parameters = {"partitions": 2, "microbatches": 4, "pipeline": "interleaved"}
    smp = {"smdistributed": {"modelparallel": {"enabled": True, "parameters": parameters}}}
    layouts = (
        layout(
            mesh={"pipeline": 2}, distribution=smp, memory=(Memory(states=1 << 30),), step=STEP, samples_per_second=9
        ),
        layout(refusal="4 heads cannot be shared by 3 ranks"),
    )
    assert layout_rows(layouts) == [
        ("", "HOSTS", "LAYOUT", "MEMORY", "STEP", "SAMPLES/S", ""),
        ("1", "2 x ml.g5.12xlarge", "pipeline 2, smp, microbatches 4, interleaved", "1.0 GiB", "200 ms", "9", ""),
        ("2", "2 x ml.g5.12xlarge", "one rank", "", "", "", "4 heads cannot be shared by 3 ranks"),
    ]


@pytest.mark.parametrize(
    ("gib", "warns", "refused"), [(22.0, False, False), (23.5, True, False), (25.0, True, False), (25.5, True, True)]
)
def test_a_peak_near_the_memory_warns_and_one_above_is_refused(gib, warns, refused):
    prediction = layout(memory=(Memory(states=round(gib * 2**30)),), step=STEP)
    assert (memory_warning(prediction) is not None) == warns
    if refused:
        with pytest.raises(UnsupportedError, match="check_memory=False"):
            check_memory(prediction)
    else:
        check_memory(prediction)
    check_memory(prediction, enabled=False)


def test_a_layout_that_cannot_run_is_refused_with_its_reason():
    with pytest.raises(UnsupportedError, match=r"distribution: 4 heads .* --choose"):
        check_memory(layout(refusal="4 heads cannot be shared by 3 ranks"))


def test_an_inventory_tells_devices_and_prices():
    content = {
        "gpus": 2,
        "dollars_per_hour": 3,
        "device": "NVIDIA L4",
        "hosts": ["a", {"name": "b", "dollars_per_hour": 5}],
    }
    figures = figures_of(list(parse_inventory(content, "h.yaml").machines))
    assert (figures.device.name, figures.devices, figures.dollars_per_hour) == ("NVIDIA L4", 2, 4.0)
    assert figures_of(list(parse_inventory({"hosts": ["a"]}, "h.yaml").machines)) is None
    with pytest.raises(InputError, match=r"dollars_per_hour: -1\.0 is no price"):
        parse_inventory({"hosts": [{"name": "a", "dollars_per_hour": -1}]}, "h.yaml")


def test_flags_that_have_no_effect_are_refused():
    assert read_measures({"measure": False, "steps": None, "what_if": ()}).base is None
    assert read_measures({"steps": 7}).base == Measure(steps=7)
    title = read_measures({"what_if": ("batch=128", "instance_count=2")}).titles["what_if"]
    assert title == "what if batch=128, instance_count=2"
    assert read_measures({"dollars_per_hour": 0.0}).base == Measure(dollars_per_hour=0.0)
    for flags, error in (
        ({"limit": 3}, "--limit: goes with --choose"),
        ({"over": "ml.g5.xlarge"}, "--over: goes with --choose"),
        ({"data": ("x",)}, "write CHANNEL=PATH"),
        ({"within": "soon"}, "'soon' is no time"),
        ({"within": "0s"}, "0 seconds train nothing"),
    ):
        with pytest.raises(OptionError, match=error):
            read_measures(flags)


def test_hosts_with_prices_compare_by_the_dollars_of_a_sample():
    device = Device(name="cpu", memory_bytes=1, operations_per_second={"float32": 1.0}, bytes_per_second=1.0)
    dear, cheap = (
        Hosts(name=name, count=1, ranks_per_host=1, device=device, dollars_per_hour=price)
        for name, price in (("dear", 10.0), ("cheap", 1.0))
    )
    fast, slow = layout(hosts="dear", samples_per_second=200.0), layout(hosts="cheap", samples_per_second=100.0)
    assert [one.hosts for one in best_first([fast, slow], [dear, cheap])] == ["cheap", "dear"]
    # Without all prices, by speed.
    unknown = msgspec.structs.replace(cheap, dollars_per_hour=None)
    assert [one.hosts for one in best_first([slow, fast], [dear, unknown])] == ["dear", "cheap"]


def test_a_dict_with_an_apostrophe_can_be_pasted_into_a_shell():
    distribution = {"mpi": {"enabled": True, "custom_mpi_options": "-x GREETING='hello you'"}}
    name, text = shlex.split(flag_text(layout(distribution=distribution)))
    assert (name, json.loads(text)) == ("--distribution", distribution)


def test_what_was_not_used_for_the_longest_time_leaves_the_cache(tmp_path):
    for age, name in enumerate(("new", "middle", "old")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "measurement.json").write_text("{}")
        os.utime(folder, (1000.0 - age, 1000.0 - age))
    (tmp_path / "link").symlink_to("old")
    (tmp_path / ".partial").write_text("")
    used(tmp_path / "old")
    prune(tmp_path, "*", 3)
    # The link is new, and a file that is being written does not count.
    assert sorted(path.name for path in tmp_path.iterdir()) == [".partial", "link", "new", "old"]
    prune(tmp_path, "*", 0)
    assert [path.name for path in tmp_path.iterdir()] == [".partial"]


def test_a_change_at_any_depth_of_the_predictors_code_changes_its_mark(tmp_path):
    nested = tmp_path / "core" / "partition" / "decide.py"
    nested.parent.mkdir(parents=True)
    nested.write_text("")
    first = mark_of([tmp_path])
    assert mark_of([tmp_path]) == first
    os.utime(nested, ns=(1, 1))
    changed = mark_of([tmp_path])
    nested.with_name("other.py").write_text("")
    assert len({first, changed, mark_of([tmp_path])}) == 3


def test_the_predictors_code_is_found():
    names = mark_of([folder / "core" for folder in _folders("herringbone_parallel")])
    for part in ("prediction/stages.py", "partition/decide.py", "pipeline/simulate.py", "sums/prediction.py"):
        assert f"core/{part}".encode() in names


def test_a_job_that_is_stopped_before_its_end_is_refused_however_fast_it_is():
    def takes(low, expected, high):
        return msgspec.structs.replace(layout(), seconds=Range(low=low, expected=expected, high=high))

    for seconds, warning in (
        ((80, 90, 100), None),
        ((80, 90, 101), "may be stopped after 1 min 40 s"),
        ((80, 101, 120), "is stopped after 1 min 40 s"),
    ):
        check_time(takes(*seconds), 100, option="max_run")
        said = time_warning(takes(*seconds), 100)
        assert said == warning or warning in said
    with pytest.raises(UnsupportedError, match=r"max_cost: the job takes .* stopped after 1 min 40 s.*check_time=F"):
        check_time(takes(101, 110, 120), 100, option="max_cost")
    check_time(takes(101, 110, 120), 100, option="max_run", enabled=False)
    check_time(layout(), 100, option="max_run")
    assert time_warning(layout(), 100) is None
