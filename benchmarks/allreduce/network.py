"""Emulated hosts: a network namespace each, on a bridge in a namespace of its own, with capped links. Root only.

A Docker host filters bridged frames in the root namespace, hence the bridge has one of its own. Both ends of each link
are capped by tbf (burst 64 KB, queue 1 MB), as a port of a switch and a network card would; neighbours are static.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from typing import Any


def ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout


@dataclass(frozen=True)
class Traffic:
    sent: int
    received: int
    dropped: int


class Network:
    """`hosts` namespaces with `mbit` both ways each; `close` removes them.

    with Network(hosts=8, mbit=200) as network:
        subprocess.run([*network.inside(0), "ping", network.address(1)])
    """

    def __init__(self, hosts: int, mbit: float) -> None:
        self._name = f"hb{os.getpid()}"
        self._hosts, self._mbit = hosts, mbit
        self._made: list[str] = []

    def __enter__(self) -> Network:
        try:
            self._make()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        while self._made:
            subprocess.run(["ip", "netns", "del", self._made.pop()], check=False, capture_output=True)

    def namespace(self, host: int) -> str:
        return f"{self._name}-h{host}"

    def inside(self, host: int) -> list[str]:
        """What goes before a command for it to run on that host."""
        return ["ip", "netns", "exec", self.namespace(host)]

    @staticmethod
    def address(host: int) -> str:
        return f"10.77.0.{host + 1}"

    def traffic(self, host: int) -> Traffic:
        """What the host has sent and received so far, and what the queues at both ends of its link dropped."""
        own = self._counters(self.namespace(host), "eth0")
        dropped = self._drops(self.namespace(host), "eth0") + self._drops(self._bridge, f"p{host}")
        return Traffic(own["tx"]["bytes"], own["rx"]["bytes"], dropped)

    @property
    def _bridge(self) -> str:
        return f"{self._name}-br"

    def _counters(self, namespace: str, device: str) -> Any:
        return json.loads(ip("-n", namespace, "-s", "-j", "link", "show", "dev", device))[0]["stats64"]

    def _drops(self, namespace: str, device: str) -> int:
        command = ["tc", "-n", namespace, "-s", "-j", "qdisc", "show", "dev", device]
        shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        return sum(int(entry.get("drops", 0)) for entry in json.loads(shown))

    def _make(self) -> None:
        self._namespace(self._bridge)
        ip("-n", self._bridge, "link", "add", "br0", "type", "bridge", "stp_state", "0")
        ip("-n", self._bridge, "link", "set", "br0", "up")
        for host in range(self._hosts):
            self._namespace(self.namespace(host))
            self._link(host)
        for host in range(self._hosts):
            for other in range(self._hosts):
                if other != host:
                    where = ["neigh", "replace", self.address(other), "lladdr", _mac(other), "dev", "eth0"]
                    ip("-n", self.namespace(host), *where, "nud", "permanent")

    def _namespace(self, name: str) -> None:
        ip("netns", "add", name)
        self._made.append(name)
        ip("-n", name, "link", "set", "lo", "up")

    def _link(self, host: int) -> None:
        inner, outer = self.namespace(host), f"p{host}"
        ip("-n", self._bridge, "link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", inner)
        ip("-n", self._bridge, "link", "set", outer, "master", "br0")
        ip("-n", inner, "link", "set", "eth0", "address", _mac(host))
        ip("-n", inner, "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
        for namespace, device in ((inner, "eth0"), (self._bridge, outer)):
            cap = ["root", "tbf", "rate", f"{self._mbit}mbit", "burst", "64kb", "limit", "1mb"]
            subprocess.run(
                ["tc", "-n", namespace, "qdisc", "add", "dev", device, *cap], check=True, capture_output=True
            )
            ip("-n", namespace, "link", "set", device, "up")


def _mac(host: int) -> str:
    return f"02:00:0a:4d:00:{host + 1:02x}"
