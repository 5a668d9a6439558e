"""`python -m herringbone_entry.holder < config`: keeps a host's checkpoints in memory until the job ends.

The first line of standard input is JSON, `Config`; its end means that whoever started the holder is gone, or done.
Standard output gets one line when the holder listens, and one for each change that a user should know.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from typing import Any

from herringbone_contract.constants import CHECKPOINT_MANIFEST
from herringbone_contract.files import write_all
from herringbone_contract.memory import link
from herringbone_entry.channel.unix_socket import listen
from herringbone_entry.holder.peers import Peers, accepted, job_key, listening
from herringbone_entry.holder.store import Store

# Ranks and strangers of this user at a time.
_CONNECTIONS = 128
_RANK_SECONDS = 30.0
_LOOK_SECONDS = 1.0


class Holder:
    """One host's holder.

    `config`: the `host`, the `path` of its socket for ranks, the `peers` with the address of each host's holder, the
    `neighbour` that keeps its copies (or null), the job's `key`, the `limit` in bytes, and `idle`: the seconds after
    which a holder to which nobody has spoken ends.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self._host, self._neighbour = str(config["host"]), config.get("neighbour")
        self._idle = float(config["idle"])
        self._heard_at = time.monotonic()
        self._store = Store(self._host, int(config["limit"]))
        addresses: dict[str, str] = config.get("peers") or {}
        self._peers = Peers(self._host, addresses, job_key(str(config["key"]).encode()), self._store, self._hear)
        self._ranks = listen(str(config["path"]), _CONNECTIONS, _Packets)
        self._ranks.setblocking(True)
        self._others = listening(addresses[self._host]) if self._host in addresses else None
        self._connections = threading.Semaphore(_CONNECTIONS)
        # Whether the neighbour took the last copy; True until the first one.
        self._is_reached = True

    def run(self) -> None:
        """Answer until nobody speaks for the limit."""
        targets = [(self._serve_ranks, ())]
        if self._others is not None:
            targets.append((self._peers.serve, (self._others,)))  # type: ignore[arg-type]
        if self._neighbour is not None:
            targets.append((self._copy, ()))
        for target, arguments in targets:
            threading.Thread(target=target, args=arguments, daemon=True).start()
        _say(f"listens for {self._host}")
        while time.monotonic() - self._heard_at < self._idle:
            time.sleep(min(_LOOK_SECONDS, self._idle))

    def _hear(self) -> None:
        self._heard_at = time.monotonic()

    def _copy(self) -> None:
        """Send each whole save of this host to the neighbour, in the background."""
        neighbour = str(self._neighbour)
        while True:
            wanted = self._store.uncopied(_LOOK_SECONDS)
            if wanted is None:
                continue
            try:
                self._peers.copy(neighbour, wanted)
                self._store.copied(wanted.save)
                self._note(True, f"{neighbour} has copies again: of step {wanted.step}")
            except OSError as error:
                self._note(False, f"{neighbour} takes no copy of step {wanted.step}: {error}")
                time.sleep(_LOOK_SECONDS)
            finally:
                for descriptor in wanted.files.values():
                    os.close(descriptor)

    def _note(self, is_reached: bool, text: str) -> None:
        if is_reached != self._is_reached:
            _say(text)
        self._is_reached = is_reached

    def _serve_ranks(self) -> None:
        while True:
            connection = accepted(self._ranks)
            if self._connections.acquire(blocking=False):
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()
            else:
                connection.close()

    def _answer(self, connection: socket.socket) -> None:
        try:
            with connection, suppress(OSError):
                connection.settimeout(_RANK_SECONDS)
                while (received := link.receive(connection)) is not None:
                    self._hear()
                    message, descriptor = received
                    try:
                        answer, file = self._answered(message, descriptor)
                    except (OSError, KeyError, TypeError, ValueError) as error:
                        answer, file = {"error": str(error), "absent": isinstance(error, link.AbsentError)}, None
                    try:
                        link.send(connection, answer, file)
                    finally:
                        if file is not None:
                            os.close(file)
        finally:
            self._connections.release()

    def _answered(self, message: dict[str, Any], descriptor: int | None) -> tuple[dict[str, Any], int | None]:
        do, save = message.get("do"), message.get("save")
        if do == "put" and descriptor is not None:
            self._store.put(self._host, save, message.get("step"), message.get("name"), descriptor)
            return {}, None
        if descriptor is not None:
            os.close(descriptor)
        if do == "room":
            is_copied = self._store.is_copied()
            # A neighbour that takes no copies holds up nothing: this host's own memory has the save.
            alone = self._neighbour is None or not self._is_reached
            return {"busy": not is_copied and not alone, "copied": is_copied and not alone}, None
        if do == "list":
            return {}, self._listing()
        if do == "get" and link.is_save(save) and link.is_name(message.get("name")):
            return {}, self._get(str(save), str(message["name"]), list(message["hosts"]))
        if do == "keep" and isinstance(message.get("names"), dict):
            self._keep(str(save), int(message["step"]), message["names"])
            return {}, None
        raise link.HolderError("no request")

    def _listing(self) -> int:
        descriptor = link.new_file("listing")
        try:
            write_all(descriptor, json.dumps(self._store.listing()).encode())
            link.close_file(descriptor)
        except OSError:
            os.close(descriptor)
            raise
        return descriptor

    def _get(self, save: str, name: str, hosts: list[str]) -> int:
        if (found := self._store.find(save, name)) is not None:
            return found
        for host in hosts:
            if (found := self._peers.get(str(host), save, name)) is not None:
                return found
        raise link.AbsentError(f"no holder has {name} of the save {save}")

    def _keep(self, save: str, step: int, names: dict[str, list[str]]) -> None:
        """Forget all other saves; of this one, get back the files that were lost with the holder before this one."""
        # The manifest last: with it, the save is whole here.
        for name in sorted(self._store.keep(save, set(names)), key=lambda name: name == CHECKPOINT_MANIFEST):
            self._store.put(self._host, save, step, name, self._get(save, name, names[name]))


class _Packets(socket.socket):
    """A socket that keeps packets apart."""

    def __init__(self, family: int) -> None:
        super().__init__(family, socket.SOCK_SEQPACKET)


def _say(text: str) -> None:
    with suppress(OSError):
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()


def _end_with_input() -> None:
    while sys.stdin.buffer.read(4096):
        pass
    os._exit(0)


def main() -> None:
    # Ends of attempts and Ctrl-C are the supervisors': a holder outlives both.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    config = json.loads(sys.stdin.buffer.readline())
    holder = Holder(config)
    threading.Thread(target=_end_with_input, daemon=True).start()
    holder.run()
    os._exit(0)


if __name__ == "__main__":
    main()
