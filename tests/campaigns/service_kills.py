"""Kill the service again and again while clients submit; no job may be lost, and none may run twice.

Usage: python tests/campaigns/service_kills.py [--jobs 200] [--clients 20] [--kills 10] [--fuzz 0]. The last line is
JSON. Each client is a thread with a boto3 client of its own, which creates jobs and repeats a call until it is
answered, as a program with retries does. Each job writes a line when it begins, and a known number of lines into its
log. Compared are the jobs that were created, those that the service lists, those that ran, and the length of each log.
With --fuzz, so many bodies of any kind are sent afterwards, and the memory of the service is compared.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from tests.serve import test_live as live  # noqa: E402
from tests.serve.signing import TYPE, signed  # noqa: E402
from tests.serve.test_app import TARGETS, mutated  # noqa: E402

LINES = 50
SCRIPT = f"""
import json, os
with open(os.environ["RUNS"], "a") as runs:
    runs.write(json.loads(os.environ["SM_TRAINING_ENV"])["job_name"] + "\\n")
for number in range({LINES}):
    print("line", number, flush=True)
"""
SECONDS = 3000.0


def create(service: live.Running, names: list[str], runs: Path, unclear: list[str]) -> None:
    """Create jobs one after the other; a call without an answer is repeated."""
    client = service.client()
    for name in names:
        request = live.request(name) | {"Environment": {"RUNS": str(runs), "HERRINGBONE_REPORT": "off"}}
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            try:
                client.create_training_job(**request)
                break
            except ClientError as error:
                if error.response["Error"]["Code"] == "ResourceInUse":
                    # An earlier call has created it, and its answer was lost.
                    break
                time.sleep(0.5)
            except BotoCoreError:
                time.sleep(0.5)
        else:
            unclear.append(name)


def kill(service: live.Running, kills: int, over: threading.Event) -> int:
    """Kill the service at random moments; return how often."""
    rng = random.Random(0)
    done = 0
    while done < kills and not over.wait(rng.uniform(0.5, 8.0)):
        service.end(kill=True)
        service.start()
        done += 1
    return done


def wait_for_all(service: live.Running, count: int) -> list[dict[str, Any]]:
    deadline = time.monotonic() + SECONDS
    while True:
        pages = service.client().get_paginator("list_training_jobs").paginate(PaginationConfig={"PageSize": 37})
        jobs = [job for page in pages for job in page["TrainingJobSummaries"]]
        over = [job for job in jobs if job["TrainingJobStatus"] in ("Completed", "Failed", "Stopped")]
        if len(over) >= count or time.monotonic() > deadline:
            return jobs
        time.sleep(2)


def log_lengths(service: live.Running, names: list[str]) -> Counter[int]:
    logs = service.client("logs")
    lengths: Counter[int] = Counter()
    for name in names:
        pages = logs.get_paginator("filter_log_events").paginate(
            logGroupName=live.GROUP,
            logStreamNamePrefix=f"{name}/",
            filterPattern="line",
            PaginationConfig={"PageSize": 20},
        )
        lengths[sum(len(page["events"]) for page in pages)] += 1
    return lengths


def fuzz(service: live.Running, count: int) -> dict[str, int]:
    """Send bodies of any kind over the network; return the answers by status, and the memory before and after."""
    from http.client import HTTPConnection

    def memory() -> int:
        status = Path(f"/proc/{service.process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0])

    rng, answers = random.Random(0), Counter[int]()
    before = 0
    connection = HTTPConnection("127.0.0.1", service.port, timeout=60)
    for number in range(count):
        if number == count // 10:
            before = memory()
        body = mutated(rng)
        name, target = rng.choice(TARGETS)
        request = signed(service.ada, target, body, now=time.time(), service=name)
        connection.request("POST", "/", body, dict(request.headers) | {"content-type": TYPE})
        answer = connection.getresponse()
        answer.read()
        answers[answer.status] += 1
    return {"kib_before": before, "kib_after": memory(), **{str(status): n for status, n in answers.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option, default in (("--jobs", 200), ("--clients", 20), ("--kills", 10), ("--fuzz", 0)):
        parser.add_argument(option, type=int, default=default)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="service-kills-"))
    live.SCRIPT = SCRIPT
    service = live.Running(folder)
    runs, unclear, over = folder / "runs.txt", [], threading.Event()
    names = [f"job-{number}" for number in range(arguments.jobs)]
    threads = [
        threading.Thread(target=create, args=(service, names[number :: arguments.clients], runs, unclear))
        for number in range(arguments.clients)
    ]
    kills: list[int] = []
    killer = threading.Thread(target=lambda: kills.append(kill(service, arguments.kills, over)))
    begin = time.monotonic()
    for thread in (*threads, killer):
        thread.start()
    for thread in threads:
        thread.join()
    killer.join()
    jobs = wait_for_all(service, len(names))
    ran = Counter(runs.read_text().split())
    result = {
        "jobs": len(names),
        "kills": kills[0],
        "unclear": len(unclear),
        "lost": len(set(names) - {job["TrainingJobName"] for job in jobs}),
        "states": Counter(job["TrainingJobStatus"] for job in jobs),
        "ran": len(ran),
        "ran_twice": sum(count > 1 for count in ran.values()),
        "log_lines": log_lengths(service, names),
        "seconds": round(time.monotonic() - begin),
    }
    if arguments.fuzz:
        result["fuzz"] = fuzz(service, arguments.fuzz)
    service.end()
    print(json.dumps(result))
    whole = result["log_lines"] == {LINES: len(names)} and result["states"] == {"Completed": len(names)}
    sys.exit(not (whole and not result["lost"] and not result["ran_twice"] and not unclear))


if __name__ == "__main__":
    main()
