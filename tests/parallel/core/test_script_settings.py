"""A script's settings fill up the job's, and never win over them."""

from __future__ import annotations

import json
import warnings
from typing import Any

import pytest

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core import launch
from herringbone_parallel.core.script_settings import WITHOUT_EFFECT, merge

JOB = {"partitions": 2, "microbatches": 4, "fp16": True}


def resolved(job: dict[str, Any], script: dict[str, Any], rank: int = 0) -> Any:
    return launch.model_parallel({"SM_HP_MP_PARAMETERS": json.dumps(job), "RANK": str(rank)}, "pytorch", script)


def test_a_script_s_settings_count_where_the_job_has_none() -> None:
    settings = resolved({"partitions": 2}, {"microbatches": 4, "ddp": True, "active_microbatches": None})
    assert (settings.partitions, settings.microbatches, settings.ddp, settings.active_microbatches) == (2, 4, True, 4)


def test_a_contradicting_value_is_a_warning_that_names_both() -> None:
    message = (
        "smp.init: the job's settings win over the script's: pipeline_parallel_degree is 4 in the script and 2 in the"
        " job's distribution; fp16 is False in the script and True in the job's distribution"
    )
    with pytest.warns(UserWarning, match=r"^smp\.init: ") as caught:
        settings = resolved(JOB, {"pipeline_parallel_degree": 4, "microbatches": 4, "fp16": False})
    assert [str(warning.message) for warning in caught] == [message]
    assert (settings.partitions, settings.precision) == (2, "fp16")


def test_the_first_rank_alone_warns() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert resolved(JOB, {"microbatches": 1}, rank=1).microbatches == 4


def test_keys_that_tune_the_closed_library_are_left_out() -> None:
    assert merge({}, dict.fromkeys(WITHOUT_EFFECT, True)) == ({}, [])


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ({"microbatchs": 4}, r"^smp\.init: the script's settings do not fit the job's: .*microbatchs: no such key"),
        ({"bf16": True}, r"^smp\.init: the script's settings do not fit the job's: .*bf16"),
        ({"partition_file": object()}, r"^smp\.init\(.*settings are numbers, words, True and False$"),
        ({4: 4}, r"^smp\.init\(\{4: 4\}\): it takes the settings as a dict"),
        (["microbatches"], r"^smp\.init\(\['microbatches'\]\): it takes the settings as a dict"),
    ],
)
def test_settings_that_cannot_be_are_refused(script: Any, message: str) -> None:
    with pytest.raises(ParallelError, match=message):
        resolved(JOB, script)
