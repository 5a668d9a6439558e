"""Checks of metric definitions, and of policies for logs and faults."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from herringbone_contract.errors import OptionError
from herringbone_contract.faults.policies import FAULTS

MAX_METRIC_DEFINITIONS = 40  # the service's limit


def check_metrics(definitions: Sequence[tuple[str, str]]) -> None:
    """Check pairs of a metric's name and its regular expression. Raises `OptionError`."""
    if len(definitions) > MAX_METRIC_DEFINITIONS:
        raise OptionError(
            f"metric_definitions: {len(definitions)} definitions, the service takes {MAX_METRIC_DEFINITIONS}"
        )
    for name, regex in definitions:
        try:
            groups = re.compile(regex).groups
        except (re.error, ValueError, RecursionError, OverflowError) as error:
            raise OptionError(
                f"metric_definitions: {name}: Regex {regex!r} is no regular expression: {error}"
            ) from None
        if groups < 1:
            raise OptionError(
                f"metric_definitions: {name}: Regex {regex!r} has no group to take the value "
                r"from; write for example 'loss=(\S+)'"
            )


def check_policies(policies: Mapping[str, str]) -> None:
    """Check the patterns of `log_policies`. Raises `OptionError`."""
    for pattern in policies:
        try:
            empty = re.compile(pattern).search("") is not None
        except (re.error, ValueError, RecursionError, OverflowError) as error:
            raise OptionError(f"log_policies: {pattern!r} is no regular expression: {error}") from None
        if empty:
            raise OptionError(
                f"log_policies: {pattern!r} matches every line of a log; write a pattern for the line of the failure"
            )


def check_faults(policies: Mapping[str, str]) -> None:
    """Check the kinds and the answers of `fault_policies`. Raises `OptionError`."""
    for kind, answer in policies.items():
        if kind not in FAULTS:
            raise OptionError(f"fault_policies: {kind!r} is no kind of fault; there are {', '.join(FAULTS)}")
        if answer not in FAULTS[kind].answers:
            answers = ", ".join(FAULTS[kind].answers)
            raise OptionError(f"fault_policies: {kind!r} cannot be answered by {answer!r}; its answers are {answers}")
