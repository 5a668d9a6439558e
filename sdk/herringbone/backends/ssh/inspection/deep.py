"""Examine machines as a job examines its hosts before the first step: `herringbone hosts check --deep`."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from herringbone.backends.ssh.transport.connection import Connection
from herringbone_contract.errors import HostError
from herringbone_contract.faults.health import SHARED_MEMORY, links_request

# A person waits longer than the start of a job does.
_SECONDS, _MARGIN_SECONDS = 60.0, 5.0


def examine(machines: Mapping[str, tuple[Connection, dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Return the report of each machine, by its connection and {address, interface, gpus}: of itself and of its links.

    `faults.health` says what a report has.
    """

    def ask(name: str, request: dict[str, Any]) -> dict[str, Any]:
        connection, machine = machines[name]
        message = {"ask": "examine", "request": request, "interface": machine["interface"], "seconds": _SECONDS}
        try:
            report: dict[str, Any] = connection.ask(message, timeout=_SECONDS + _MARGIN_SECONDS)["report"]
        except HostError as error:
            report = {"trouble": str(error)}
        return report

    def local(name: str) -> dict[str, Any]:
        connection, machine = machines[name]
        facts = connection.ask({"ask": "facts"})
        request = {"ask": "local", "folders": [facts["work"], SHARED_MEMORY], "gpus": machine["gpus"]}
        return {**ask(name, request), "port": facts["port"]}

    with ThreadPoolExecutor(max(1, len(machines))) as pool:
        reports = dict(zip(machines, pool.map(local, machines), strict=True))
        request = links_request(reports, _SECONDS - _MARGIN_SECONDS)
        if request is not None:
            hosts = request["hosts"]
            request["address"] = machines[hosts[0]][1]["address"]
            answers = pool.map(lambda name: ask(name, {**request, "rank": hosts.index(name)}), hosts)
            for name, report in zip(hosts, answers, strict=True):
                reports[name] |= report
    return reports
