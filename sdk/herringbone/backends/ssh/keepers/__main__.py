"""`python -m herringbone.backends.ssh.keepers WORK < config`: the keeper of one job on one machine, until the job ends.

It prints its port, and reads its config when its job's first attempt has started here. Started by an agent only.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path

from herringbone.backends.ssh.agent.host_facts import free_port


def main() -> None:
    if (port := free_port()) is None:
        return
    # One socket for both kinds of addresses, where the system has it.
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    with socket.create_server(("", port), family=family, dualstack_ipv6=both) as listener:
        print(port, flush=True)
        # Imported here: the client waits for the port alone.
        import msgspec

        from herringbone.backends.ssh.keepers.gate import KeeperConfig
        from herringbone.backends.ssh.keepers.holder import decide
        from herringbone.backends.ssh.keepers.keeper import Keeper
        from herringbone.records.home import Home

        # Without a config, the first attempt did not start.
        if text := sys.stdin.buffer.read():
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            config = msgspec.json.decode(text, type=KeeperConfig)
            Keeper(Home(Path(sys.argv[1])), config, listener, decide).run()
    # Threads may still wait for machines that do not answer.
    os._exit(0)


if __name__ == "__main__":
    main()
