"""Functions that run in the Python with the trackers' packages: exports, and each tracker's own reader.

python programs.py FUNCTION JSON_ARGUMENTS       prints what the function returns, as JSON
"""

from __future__ import annotations

import json
import shutil
import struct
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any


def export(*words: str) -> Any:
    """Run `herringbone export WORDS --json`, and return what it prints."""
    import io

    from herringbone.cli.__main__ import main

    printed = io.StringIO()
    with redirect_stdout(printed):
        code = main(["export", *words, "--json"])
    return json.loads(printed.getvalue()) if printed.getvalue() else code


def mlflow_run(address: str) -> dict[str, Any]:
    """Return a run, and every value of its metrics."""
    from mlflow import MlflowClient

    server, _, run_id = address.partition("/#/experiments/")
    client = MlflowClient(server)
    run = client.get_run(run_id.rpartition("/")[2])
    metrics = {
        name: [[value.step, value.value, value.timestamp] for value in client.get_metric_history(run.info.run_id, name)]
        for name in run.data.metrics
    }
    experiment = client.get_experiment(run.info.experiment_id).name
    info = {"name": run.info.run_name, "status": run.info.status, "experiment": experiment}
    return {**info, "params": run.data.params, "tags": run.data.tags, "metrics": metrics}


def tensorboard_run(folder: str) -> dict[str, Any]:
    """Return the scalars and texts of a run's folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(folder)
    events.Reload()
    tags = events.Tags()
    return {
        "metrics": {tag: [[e.step, e.value, e.wall_time] for e in events.Scalars(tag)] for tag in tags["scalars"]},
        "texts": {tag: events.Tensors(tag)[-1].tensor_proto.string_val[0].decode() for tag in tags["tensors"]},
    }


def wandb_runs(folder: str) -> dict[str, Any]:
    """Return the rows and settings of all offline files below a folder, in the order in which they were made."""
    from wandb.proto.wandb_internal_pb2 import Record

    def values(items: Any) -> dict[str, Any]:
        return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}

    rows, config, ids, exits = [], {}, [], []
    for path in sorted(Path(folder).rglob("*.wandb")):
        for data in _leveldb_records(path.read_bytes()):
            record = Record()
            record.ParseFromString(data)
            kind = record.WhichOneof("record_type")
            if kind == "run":
                ids.append(record.run.run_id)
                config |= values(record.run.config.update)
            elif kind == "config":
                config |= values(record.config.update)
            elif kind == "history":
                rows.append(values(record.history.item))
            elif kind == "exit":
                exits.append(record.exit.exit_code)
    return {"rows": rows, "config": config, "ids": ids, "exits": exits}


def _leveldb_records(data: bytes) -> list[bytes]:
    """Return the records of a log in LevelDB's format: W&B has its own reader in a compiled program alone."""
    # 7 bytes before the first record name the format.
    place, records, parts = 7, [], b""
    while place + 7 <= len(data):
        # Blocks of 32 KiB; what cannot hold a header at their end is empty.
        if (left := 32_768 - place % 32_768) < 7:
            place += left
            continue
        _, size, kind = struct.unpack_from("<IHB", data, place)
        parts += data[place + 7 : place + 7 + size]
        place += 7 + size
        # Whole, or the last part.
        if kind in (1, 4):
            records.append(parts)
            parts = b""
    return records


def trackio_run(project: str, name: str) -> Any:
    """Return the rows and settings of a run."""
    from trackio.sqlite_storage import SQLiteStorage

    SQLiteStorage.init_db(project)
    return {"rows": SQLiteStorage.get_logs(project, name), "config": SQLiteStorage.get_run_config(project, name)}


def mlflow_errors() -> list[Any]:
    """Return whether errors are transient, and their texts: a port without a server, status 401, and status 503."""
    import socket
    import threading
    from http.server import BaseHTTPRequestHandler, HTTPServer

    from herringbone.plan.destinations import Destination
    from herringbone.trackers.facts import facts_of
    from herringbone.trackers.mlflow import MLflowTracker
    from herringbone_contract.errors import TrackerError

    facts = facts_of({"TrainingJobName": "a", "TrainingJobStatus": "InProgress"}, backend="local", created=1.0)

    def error_of(address: str) -> list[Any]:
        try:
            MLflowTracker(Destination("mlflow", address, "a"), Path()).begin(facts, {})
        except TrackerError as error:
            return [error.transient, str(error)]
        return []

    def answering(status: int) -> list[Any]:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_error(status)

            def log_message(self, *words: Any) -> None:
                pass

        with HTTPServer(("127.0.0.1", 0), Handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            result = error_of(f"http://127.0.0.1:{server.server_port}")
            server.shutdown()
        return result

    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        refused = error_of(f"http://127.0.0.1:{unused.getsockname()[1]}")
    return [refused, answering(401), answering(503)]


def live(source_dir: str, to: list[str]) -> dict[str, Any]:
    """Run a job with `track`; return its exports, its run, and the first export before the job's end."""
    import time

    from herringbone import Estimator
    from herringbone.records.home import find_home

    folder = find_home().job("live-1")
    estimator = Estimator(
        "train.py",
        metric_definitions=[{"Name": "loss", "Regex": "loss=([0-9.]+)"}],
        source_dir=source_dir,
        instance_type="local_process",
        hyperparameters={"lr": 0.1},
        track=to,
    )
    job = estimator.fit(wait=False, job_name="live-1")

    def trackers() -> list[dict[str, Any]]:
        return sorted(
            job.describe()["Herringbone"]["Trackers"],
            key=lambda tracker: to.index(tracker["To"]) if tracker["To"] in to else 1,
        )

    def wait_for(condition: Any) -> None:
        deadline = time.monotonic() + 40
        while not condition() and time.monotonic() < deadline:
            time.sleep(0.05)

    wait_for(lambda: trackers()[0]["Values"])
    early = [tracker["Values"] for tracker in trackers()]
    (folder.path / "seen").touch()
    job.wait()
    wait_for(lambda: all(tracker["State"] == "Done" for tracker in trackers()))
    return {"status": job.status, "trackers": trackers(), "early": early, "run": mlflow_run(trackers()[0]["Run"])}


def remove(folder: str) -> None:
    """Remove a folder."""
    shutil.rmtree(folder)


def steps(calls: list[list[Any]]) -> list[Any]:
    """Call several functions; an argument "@N" is the address of the run that call N returned."""
    results: list[Any] = []
    for name, *arguments in calls:
        words = [
            results[int(word[1:])][0]["Run"] if isinstance(word, str) and word[:1] == "@" else word
            for word in arguments
        ]
        results.append(globals()[name](*words))
    return results


def append(path: str, text: str) -> None:
    """Append to a file."""
    with Path(path).open("a") as file:
        file.write(text)


if __name__ == "__main__":
    # Packages print to standard output as well.
    with redirect_stdout(sys.stderr):
        result = globals()[sys.argv[1]](*json.loads(sys.argv[2]))
    print(json.dumps(result))
