"""Describe a plan in lines for people, from the plain values of `JobPlan.to_dict`, which hold no secrets. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

import msgspec

from herringbone.plan.budget import budget_seconds, shown_dollars
from herringbone.plan.code_size import CodeSize
from herringbone.plan.notify import Notify
from herringbone.plan.options.typed import DAY_SECONDS
from herringbone.system.times import shown_span
from herringbone_contract.constants import STEERING_PREFIX, HostVariable, Key
from herringbone_contract.hyperparameters import arguments, decode_values, split
from herringbone_contract.prediction.answer import Answer
from herringbone_contract.resources import HOMOGENEOUS_GROUP

_SHOWN_CHARS = 100
# The characters of the time at the end of a name that `fit` makes: -2026-11-21-09-05-07-042.
_STAMP_CHARS = 24
# Backends whose jobs have a folder on a machine of the user's.
OWN_HOSTS = ("local_process", "local", "slurm", "ssh")
# Those whose hosts Herringbone examines itself.
EXAMINED = (*OWN_HOSTS, "kubernetes")
# Those whose jobs may have another number of hosts while they run: `herringbone scale`.
RESIZED = ("local_process", "local")


def plan_rows(plan: Mapping[str, Any], *, advice: str | None = None, verbose: bool = False) -> list[tuple[str, str]]:
    """Return the lines of a plan, each as (label, text); `verbose` adds the hyperparameters that Herringbone makes.

    >>> plan_rows(estimator.plan("data").to_dict())[0]         # doctest: +SKIP
    ('name', 'train-... (made at fit)')
    """
    name = plan["job_name"]
    if plan.get("made_name"):
        name = f"{name[:-_STAMP_CHARS]}-... (made at fit)"
    rows = [("name", name), ("runs on", plan["backend"]), ("launcher", plan["launcher"])]
    rows += [(f"host {host['name']}", _role(host)) for host in plan["hosts"]]
    rows += _code_rows(plan) + _folder_rows(plan) + _setting_rows(plan, verbose=verbose)
    if plan.get("request") and "script" in plan["request"]:
        rows += [("batch script", line) for line in plan["request"]["script"].splitlines()]
    if plan.get("request") and "objects" in plan["request"]:
        # Imported here: most plans have none.
        from herringbone.show.manifests import manifest_lines

        rows += [("objects", line) for line in manifest_lines(plan["request"]["objects"])]
    if plan.get("request") and plan["request"].get("retried_by"):
        rows.append(("retried by", plan["request"]["retried_by"]))
    rows += _limit_rows(plan)
    if plan.get("prediction") is not None:
        # Imported here: most plans have none.
        from herringbone.show.predictions import prediction_rows

        rows += prediction_rows(msgspec.convert(plan["prediction"], Answer))
    if advice is not None:
        rows.append(("advice", advice))
    if plan.get("code") is not None:
        rows += [("note", note) for note in msgspec.convert(plan["code"], CodeSize).notes]
    rows += [("note", warning) for warning in plan.get("warnings", ())]
    if plan["unused"]:
        rows.append(("unused", f"not used by {plan['backend']}: {', '.join(plan['unused'])}"))
    return rows


def _limit_rows(plan: Mapping[str, Any]) -> list[tuple[str, str]]:
    options, hourly = plan["options"], plan.get("hourly_cost")
    rows = [("limit", f"{options.get('max_run', DAY_SECONDS)} s")]
    rows += [("idle limit", f"{options['idle_timeout']} s")] if "idle_timeout" in options else []
    if hourly is not None:
        most = options.get("max_cost")
        pays = "" if most is None else f"; {shown_dollars(most)} pay for {shown_span(budget_seconds(most, hourly))}"
        rows.append(("price", f"{shown_dollars(hourly)} an hour{pays}"))
    return rows


def rows_text(rows: list[tuple[str, str]]) -> str:
    """Return rows as aligned lines.

    >>> print(rows_text([("name", "digits-1"), ("limit", "60 s")]))
    name:              digits-1
    limit:             60 s
    """
    return "\n".join(f"{label + ':':<18} {text}" for label, text in rows)


def is_internal(hyperparameter: str) -> bool:
    """Return True for a hyperparameter that Herringbone makes, which says how the job runs.

    >>> is_internal("sagemaker_program"), is_internal("lr")
    (True, False)
    """
    return hyperparameter.startswith(STEERING_PREFIX) or hyperparameter == Key.MODEL_PARALLEL_PARAMETERS


def _code_rows(plan: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows = []
    image = plan.get("arguments", {}).get("image_uri")
    if image and "image_uri" not in plan["unused"]:
        rows.append(("image", image))
    elif plan["backend"] == "local":
        framework = plan["estimator"] if plan["estimator"] != "Estimator" else "any framework"
        rows.append(("image", f"the engine's newest one for {framework} (herringbone images ls)"))
    elif plan["backend"] == "local_process":
        rows.append(("image", "none: ranks run in this machine's Python"))
    source = plan.get("source")
    if source is not None:
        origin = source.get("revision") or source.get("archive") or source.get("folder")
        rows.append(("script", f"{source['entry_point']} in {origin}"))
        rows += [("dependency", path) for path in source.get("dependencies", ())]
    if plan.get("code") is not None:
        rows.append(("code", str(msgspec.convert(plan["code"], CodeSize))))
    return rows


def _folder_rows(plan: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows = []
    for channel in plan["channels"]:
        source = channel["input"]
        sharded = ", every host its share of the files" if source.get("distribution") == "ShardedByS3Key" else ""
        rows.append((f"channel {channel['name']}", f"{channel.get('path') or source['s3_data']}{sharded}"))
    options, own = plan["options"], plan["backend"] in OWN_HOSTS
    kept_by = (
        "the job's folder; checkpoint_s3_uri keeps them for other jobs" if own else "not kept: no checkpoint_s3_uri"
    )
    rows.append(("checkpoints", options.get("checkpoint_s3_uri") or kept_by))
    if keep := options.get("keep_checkpoints"):
        best = f", the {keep['best']} best ({keep['objective_type']} {keep['metric']})" if "best" in keep else ""
        rows.append(("kept of them", f"the newest {keep.get('last', 1)}{best}; the job removes its others"))
    if plan["backend"] == "local_process" and options.get("max_retry_attempts"):
        wanted = options.get("checkpoint_memory")
        pace = "as often as it takes 1 % of the time" if wanted in (None, True) else f"every {wanted} steps"
        held = (
            f"loops with Training, {pace}; the newest two, here and on another host, in half of the free memory at most"
        )
        rows.append(("in memory", "off: checkpoint_memory is False" if wanted is False else held))
    output = options.get("output_path")
    if output is not None:
        output = f"{output.rstrip('/')}/{'NAME' if plan.get('made_name') else plan['job_name']}/output"
    rows.append(("output", output or ("the job's folder" if own else "the account's default bucket")))
    return rows


def _setting_rows(plan: Mapping[str, Any], *, verbose: bool) -> list[tuple[str, str]]:
    rows = []
    for name, value in sorted(plan["hyperparameters"].items()):
        internal = is_internal(name)
        if verbose or not internal:
            text = value if len(value) <= _SHOWN_CHARS else f"{value[:_SHOWN_CHARS]}... ({len(value)} characters)"
            rows.append(("internal" if internal else "hyperparameter", f"{name} = {text}"))
    if plan.get("source") is not None and (own := decode_values(split(plan["hyperparameters"])[0])):
        rows.append(("command line", shlex.join([plan["source"]["entry_point"], *arguments(own)])))
    options = plan["options"]
    for name, value in sorted(options.get("environment", {}).items()):
        # The user did not write it.
        if verbose or (name, value) != (HostVariable.COMPARE, "on"):
            rows.append(("environment", f"{name}={value}"))
    rows += [("metric", f"{metric['Name']} from {metric['Regex']}") for metric in options.get("metric_definitions", ())]
    rows += [("tracker", destination) for destination in options.get("track", ())]
    rows += [("notify", str(msgspec.convert(destination, Notify))) for destination in options.get("notify", ())]
    return rows


def _role(host: Mapping[str, Any]) -> str:
    group = "" if host["group"] == HOMOGENEOUS_GROUP else f", group {host['group']}"
    if host["helper"]:
        return f"helper, sums gradients{group}"
    if host["ranks"] is None:
        return f"a rank for each GPU, one without GPUs{group}"
    return f"{host['ranks']} rank{'s' * (host['ranks'] != 1)}{group}"
