"""Merges a script's settings, those of `smp.init` or `torch.sagemaker.init`, into the job's. The job's settings win.

AWS's later example scripts call `smp.init(smp_config)`, and say that "any value here is overridden by the config set in
notebook when launching the job". So a script's setting counts where the job leaves the setting out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from herringbone_contract.errors import ParallelError

# Keys of scripts for version 1 that only tune AWS's closed library; docs/do/model-parallel-pytorch.md says what happens
# here.
WITHOUT_EFFECT = frozenset(
    {"static_mode", "fast_mode", "_match_weights", "checkpoint_attentions", "_fp32_grad_accumulation"}
)
# Two names of one setting.
_SYNONYMS = {"pipeline_parallel_degree": "partitions"}


class Merged(NamedTuple):
    """The settings of job and script together, and a sentence for each setting on which they contradict each other."""

    settings: dict[str, Any]
    contradictions: list[str]


def merge(
    job: Mapping[str, Any],
    script: Mapping[str, Any],
    init: str = "smp.init",
    without_effect: frozenset[str] = WITHOUT_EFFECT,
) -> Merged:
    """Return the job's settings, filled up with the script's.

    >>> merge({"partitions": 2}, {"pipeline_parallel_degree": 1, "microbatches": 4, "fast_mode": False})
    ... # doctest: +NORMALIZE_WHITESPACE
    Merged(settings={'partitions': 2, 'microbatches': 4},
           contradictions=["pipeline_parallel_degree is 1 in the script and 2 in the job's distribution"])

    A value of None counts as left out, and so do the keys of `without_effect`. `init` is the function that the script
    calls, for the error. Raises `ParallelError` when the script's settings are no dict of names.
    """
    if not isinstance(script, Mapping) or any(not isinstance(key, str) for key in script):
        raise ParallelError(f"{init}({script!r}): it takes the settings as a dict, such as {{'microbatches': 4}}")
    settings = dict(job)
    name_in_job = {_SYNONYMS.get(key, key): key for key in job}
    contradictions = []
    for key, value in script.items():
        if value is None or key in without_effect:
            continue
        given = name_in_job.get(_SYNONYMS.get(key, key))
        if given is None:
            settings[key] = value
        elif job[given] != value:
            contradictions.append(f"{key} is {value!r} in the script and {job[given]!r} in the job's distribution")
    return Merged(settings, contradictions)
