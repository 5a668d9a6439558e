"""Checkpoints: how long training stands still, how long a resume takes next to accelerate's, and kills while saving.

    tests/huggingface/setup                                         # makes this Python; `resume` needs accelerate
    .venv-huggingface/bin/python benchmarks/checkpoint/run.py       # 3 minutes

Progress goes to standard error. The last line of standard output is JSON.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import ranks
from kills import kills
from position import cost, epoch
from resume import resume
from stall import stall


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", default="512x8,768x8", help="WIDTHxLAYERS of each model, 201 and 454 MB by default")
    parser.add_argument("--ranks", type=int, default=16, help="ranks that resume")
    parser.add_argument("--savers", type=int, default=4, help="ranks that save during training")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--parts", default="stall,resume,cost,epoch,kills")
    parser.add_argument("--folder", help="on the disk to measure; by default a temporary folder")
    arguments = parser.parse_args()
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=arguments.folder) as top:
        for shape in arguments.shapes.split(","):
            width, layers = map(int, shape.split("x"))
            for part, size, function in (("stall", arguments.savers, stall), ("resume", arguments.ranks, resume)):
                if part not in arguments.parts:
                    continue
                if part == "resume":
                    import accelerate  # noqa: F401  imported once, before the ranks are forked
                ranks.say(f"{part} {shape}, {size} ranks")
                with tempfile.TemporaryDirectory(dir=top) as folder:
                    result = ranks.run(size, function, folder, width, layers, arguments.rounds)
                results[f"{part} {shape}"] = result
                ranks.say(json.dumps(result))
        for part, measure in (("cost", lambda folder: cost(folder, 512, 4, 6)), ("epoch", lambda f: epoch(f, 10**7))):
            if part in arguments.parts:
                ranks.say(part)
                results[part] = measure(str(Path(top, part)))
                ranks.say(json.dumps(results[part]))
        if "kills" in arguments.parts:
            ranks.say(f"{arguments.kills} kills")
            results["kills"] = kills(str(Path(top, "kills")), arguments.kills)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
