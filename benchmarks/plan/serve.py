"""Run the training script again and again in one process, with the settings that come on standard input.

Each line of input is JSON: `environment` and `arguments`. Each line of output that begins with ANSWER is the error of
the run, or nothing.
"""

from __future__ import annotations

import json
import os
import sys
import traceback

import train

from herringbone_parallel.torch.model_parallel import api as smp


def main() -> None:
    for line in sys.stdin:
        order = json.loads(line)
        os.environ.update(order["environment"])
        error = ""
        try:
            train.main(order["arguments"])
        except Exception:  # noqa: BLE001  the parent shows it
            error = traceback.format_exc()
        finally:
            smp.shutdown()
        print("ANSWER " + json.dumps(error), flush=True)


if __name__ == "__main__":
    main()
