"""What hand-made jobs say: events and a line of a script that wants to reach the terminal."""

import time

# Markup, escapes, marks of direction, marks that pile up, wide letters and letters from right to left.
HOSTILE = (
    "[bold red]x[/] \x1b[2J\x1b]0;title\x07 \u202eevil\u2066 "
    + "a"
    + "\u0301" * 500
    + " 日本語 שלום [@click=app.quit]go[/]"
)


def training(step=120, total=500, loss=0.5, *, gpus=False):
    """Return the events of a job as the Trainer of Hugging Face sends them, with those of the sampler."""
    cards = [{"index": 0, "name": "H200", "use": 0.875, "memory": 61.2e9, "memory_total": 141e9}] if gpus else []
    return [
        {"kind": "progress", "rank": 0, "done": step, "total": total, "unit": "step", "eta": 3600.0},
        {
            "kind": "metrics",
            "rank": 0,
            "name": "loss",
            "source": "huggingface",
            "since": time.time() - 1,
            "step": step - 2,
            "by": 1,
            "values": [loss * 4, loss * 2, loss],
        },
        {"kind": "steps", "rank": 0, "count": step, "since": time.time() - 1, "seconds": [0.25] * 4},
        {
            "kind": "sample",
            "seconds": 1.0,
            "cpu": 3.25,
            "memory": 12.3e9,
            "memory_total": 64e9,
            "gpus": cards,
            "ranks": {"0": {"cpu": 1.0, "memory": 4e9, "state": "R"}},
        },
    ]
