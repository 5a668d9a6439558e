"""Stand-ins for the programs of a prediction: `python programs.py FOLDER measure|timing|predict`.

Measuring notes its environment in FOLDER, whose file `behaviour` may name a failure. The predictor computes with round
numbers: each rank needs GIB GiB, and a step takes a second divided by the ranks.
"""

import json
import os
import sys
from pathlib import Path


def main() -> int:
    kind, *words = sys.argv[2:]
    return {"measure": measure, "timing": timing, "predict": predict}[kind](words)


def measure(words):
    words = words[words.index("--") + 1 :]
    behaviour = wanted()
    print("measure: forward, block.fc", file=sys.stderr, flush=True)
    if behaviour == "fails":
        print(
            'Traceback (most recent call last):\n  File "train.py", line 3\nValueError: no such column', file=sys.stderr
        )
        return 1
    if behaviour == "never steps":
        print("measure: the script ended before an optimizer step, at train.py:7.", file=sys.stderr)
        return 98
    if behaviour == "hangs":
        import time

        time.sleep(60)
    base = Path(os.environ["SAGEMAKER_BASE_DIR"])
    note(
        "measured",
        {
            "base": str(base),
            "words": words,
            "code": sorted(path.name for path in (base / "code").iterdir()),
            "channels": {path.name: os.path.realpath(path) for path in (base / "input" / "data").iterdir()},
            "checkpoints": sorted(path.name for path in (base / "checkpoints").iterdir()),
            "variable": os.environ.get("MINE"),
            "path": os.environ.get("PYTHONPATH"),
            "secret": os.environ.get("AWS_SECRET_ACCESS_KEY"),
        },
    )
    if behaviour == "writes nothing":
        return 0
    output = Path(words[words.index("--output") + 1])
    step = {"batch": 32, "epoch_samples": 3200, "device": "cpu", "notes": ["one\x1b[2J note"]}
    output.write_text("[]" if behaviour == "writes nonsense" else json.dumps(step))
    return 0


def timing(words):
    question = json.loads(Path(words[words.index("--time") + 1]).read_text())
    note("timed", {"words": words, "question": question})
    busy = json.dumps({"slowdown": 8.0}) if wanted() == "busy" else "{}"
    Path(words[words.index("--output") + 1]).write_text(busy)
    return 0


def predict(_):
    question = json.loads(sys.stdin.read())
    if wanted() == "no prediction":
        print("the model has 1 module, and 2 partitions need 2", file=sys.stderr)
        return 2
    note("asked", question)
    layouts, hosts = [], question["hosts"]
    if question["search"]:
        best = {"torch_distributed": {"enabled": True}}
        layouts.append(prediction(question, hosts, best, {"replicate": hosts["count"] * hosts["ranks_per_host"]}))
        layouts.append({**prediction(question, hosts, {}, {}), "step": None, "refusal": "one rank is too few"})
    planned = prediction(question, hosts, question["distribution"], {"replicate": hosts["count"]})
    print(json.dumps({"planned": planned, "layouts": layouts, "notes": ["from a\x9b2J stand-in"]}))
    return 0


def prediction(question, hosts, distribution, mesh):
    ranks = hosts["count"] * hosts["ranks_per_host"]
    batch = 32 * question["scale"] * ranks
    peak = round(float(os.environ.get("GIB", "1")) * question["scale"] * 2**30)
    step = exact(1.0 * question["scale"])
    work = question["work"]
    steps = work["steps"] or (work["samples"] / batch if work["samples"] else None)
    seconds = None if steps is None else steps * step["expected"] + work["start_seconds"]
    price = hosts["dollars_per_hour"]
    return {
        "hosts": hosts["name"],
        "count": hosts["count"],
        "distribution": distribution,
        "mesh": mesh,
        "memory": [{"parameters": peak // 4, "states": peak // 2, "activations": peak // 4}],
        "device_bytes": hosts["device"]["memory_bytes"],
        "step": {"seconds": step, "compute": step["expected"], "communication": 0.0, "idle": 0.0, "data": 0.0},
        "samples_per_second": batch / step["expected"],
        "seconds": None if seconds is None else exact(seconds),
        "dollars": None if seconds is None or price is None else exact(seconds / 3600 * price * hosts["count"]),
        "refusal": None,
        "reasons": ["stand-in"],
    }


def exact(value):
    return {"low": value, "expected": value, "high": value}


def note(name, content):
    with Path(sys.argv[1], name).open("a") as file:
        file.write(json.dumps(content) + "\n")


def wanted():
    file = Path(sys.argv[1], "behaviour")
    return file.read_text() if file.exists() else ""


if __name__ == "__main__":
    sys.exit(main())
