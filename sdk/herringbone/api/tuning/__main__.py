"""`python -m herringbone.api.tuning NAME < order`: searches. Started by `searcher.launch`, never by hand."""

from __future__ import annotations

import json
import os
import sys
import time

from herringbone.api.planning import start_request
from herringbone.plan.request import parse_request
from herringbone.records.home import find_home
from herringbone.tuner.searcher.runner import search
from herringbone.tuner.store import TuningStore


def main() -> None:
    text = sys.stdin.buffer.read()
    if not text:
        # The client died before it had written the order.
        return
    store = TuningStore(find_home().tuning(sys.argv[1]))
    search(store, parse_request(json.loads(text)["request"]), submit=start_request, say=_say)


def _say(line: str) -> None:
    print(time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), line, flush=True)


if __name__ == "__main__":
    main()
    # The interpreter's own shutdown takes milliseconds.
    sys.stdout.flush()
    os._exit(0)
