"""Emulated hosts: one network namespace per host, connected by a bridge, with limited links. Needs root.

The bridge has its own namespace, because Docker filters bridged frames in the root namespace. tbf limits both ends of
each link (burst 64 KB, queue 1 MB), like a network card and a port of a switch. Neighbour entries are static.
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
    """Bytes sent and received by a host, and packets dropped on its link."""

    sent: int
    received: int
    dropped: int


class Network:
    """`hosts` namespaces, with links of `mbit` in each direction. `close` removes them.

    with Network(hosts=8, mbit=200) as network:
        subprocess.run([*network.inside(0), "ping", network.address(1)])
    """

    def __init__(self, hosts: int, mbit: float) -> None:
        self._name = f"hb{os.getpid()}"
        self._hosts, self._mbit = hosts, mbit
        self._namespaces: list[str] = []

    def __enter__(self) -> Network:
        try:
            self._create()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        while self._namespaces:
            subprocess.run(["ip", "netns", "del", self._namespaces.pop()], check=False, capture_output=True)

    def namespace(self, host: int) -> str:
        return f"{self._name}-h{host}"

    def inside(self, host: int) -> list[str]:
        """Return the prefix that runs a command on this host."""
        return ["ip", "netns", "exec", self.namespace(host)]

    @staticmethod
    def address(host: int) -> str:
        return f"10.77.0.{host + 1}"

    def traffic(self, host: int) -> Traffic:
        """Return the host's sent and received bytes, and the packets dropped at both ends of its link, so far."""
        counters = self._counters(self.namespace(host), "eth0")
        dropped = self._drops(self.namespace(host), "eth0") + self._drops(self._bridge, f"p{host}")
        return Traffic(counters["tx"]["bytes"], counters["rx"]["bytes"], dropped)

    @property
    def _bridge(self) -> str:
        return f"{self._name}-br"

    def _counters(self, namespace: str, device: str) -> Any:
        return json.loads(ip("-n", namespace, "-s", "-j", "link", "show", "dev", device))[0]["stats64"]

    def _drops(self, namespace: str, device: str) -> int:
        command = ["tc", "-n", namespace, "-s", "-j", "qdisc", "show", "dev", device]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        return sum(int(entry.get("drops", 0)) for entry in json.loads(output))

    def _create(self) -> None:
        self._namespace(self._bridge)
        ip("-n", self._bridge, "link", "add", "br0", "type", "bridge", "stp_state", "0")
        ip("-n", self._bridge, "link", "set", "br0", "up")
        for host in range(self._hosts):
            self._namespace(self.namespace(host))
            self._link(host)
        for host in range(self._hosts):
            for other in range(self._hosts):
                if other != host:
                    # Static entries: an ARP request in a timed step would cost a round trip.
                    entry = ["neigh", "replace", self.address(other), "lladdr", _mac(other), "dev", "eth0"]
                    ip("-n", self.namespace(host), *entry, "nud", "permanent")

    def _namespace(self, name: str) -> None:
        ip("netns", "add", name)
        self._namespaces.append(name)
        ip("-n", name, "link", "set", "lo", "up")

    def _link(self, host: int) -> None:
        inner, outer = self.namespace(host), f"p{host}"
        ip("-n", self._bridge, "link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", inner)
        ip("-n", self._bridge, "link", "set", outer, "master", "br0")
        ip("-n", inner, "link", "set", "eth0", "address", _mac(host))
        ip("-n", inner, "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
        for namespace, device in ((inner, "eth0"), (self._bridge, outer)):
            limit = ["root", "tbf", "rate", f"{self._mbit}mbit", "burst", "64kb", "limit", "1mb"]
            subprocess.run(
                ["tc", "-n", namespace, "qdisc", "add", "dev", device, *limit], check=True, capture_output=True
            )
            ip("-n", namespace, "link", "set", device, "up")


def _mac(host: int) -> str:
    return f"02:00:0a:4d:00:{host + 1:02x}"
