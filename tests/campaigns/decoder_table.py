"""The decoders of `decoders.py`: a function, examples of its input, and its share of a campaign's inputs."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from herringbone.aws.location import parse_s3_uri
from herringbone.backends.registry import _name_of
from herringbone.backends.sagemaker.description import failure_of
from herringbone.backends.slurm.review import parse_sinfo
from herringbone.backends.slurm.states import parse_sacct, parse_squeue
from herringbone.backends.ssh.machines.inventory import parse_inventory, split_type
from herringbone.cli.train import partition
from herringbone.cli.train.request import JobFlags, parse_script_arguments, read_request
from herringbone.convert.script import convert_script
from herringbone.engine.docker_settings import current_context, proxy_variables, read_context, registry_login
from herringbone.events.source import decode_lines
from herringbone.events.view import JobView
from herringbone.images.build import split_name
from herringbone.plan.inputs import parse_inputs
from herringbone.plan.names import check_job_name
from herringbone.plan.options.typed import parse_options, size_in_bytes
from herringbone.plan.request import groups_of
from herringbone.records.index import JobRecord
from herringbone.records.logs import parse_line
from herringbone.system.documents import read_document
from herringbone.system.times import parse_span
from herringbone.trackers.fold import Fold
from herringbone.views.notebook.progress import shown
from herringbone.views.page.data import job_data
from herringbone.views.page.history import History
from herringbone.views.top.detail import detail_of, heading
from herringbone.views.top.rows import row_of, table_of
from herringbone_contract import reduce_servers
from herringbone_contract.constants import split_line
from herringbone_contract.distribution import parse
from herringbone_contract.errors import HerringboneError
from herringbone_contract.events import mllog
from herringbone_contract.failure import Failure, Frame
from herringbone_contract.failure_text import parse_failure, parse_summary
from herringbone_contract.hyperparameters import arguments, decode, decode_values, encode, split
from herringbone_contract.model_parallel import partition_file
from herringbone_contract.reduce_servers import is_rail
from herringbone_contract.resources import parse_resource_config
from herringbone_contract.served import Library, unserved
from herringbone_contract.strategies import Framework
from herringbone_entry.channel.address import parse_address
from herringbone_entry.host import read_host


@dataclass(frozen=True)
class Decoder:
    """One decoder. `kind` is the damage that fits: to a `value`, to `text`, or to the value in a `json` text."""

    name: str
    decode: Callable[[Any], object]
    examples: list[Any]
    kind: str = "text"
    weight: float = 1.0
    as_bytes: bool = False


MODEL_PARALLEL = {"partitions": 2, "microbatches": 4, "pipeline": "interleaved", "memory_weight": 0.5, "ddp": True}
DISTRIBUTIONS: list[Any] = [
    {"mpi": {"enabled": True, "processes_per_host": 2, "custom_mpi_options": "-x A=1"}},
    {"smdistributed": {"modelparallel": {"enabled": True, "parameters": MODEL_PARALLEL}}, "mpi": {"enabled": True}},
    {
        "smdistributed": {"modelparallel": {"enabled": True, "parameters": {"hybrid_shard_degree": 8}}},
        "torch_distributed": {"enabled": True},
    },
    {
        "smdistributed": {"dataparallel": {"enabled": True, "helpers": "cpu", "wire": "bf16", "rails": ["eth0"]}},
        "instance_groups": ["gpu"],
    },
    {"pytorchddp": {"enabled": True}, "parameter_server": {"enabled": False}},
]
OPTIONS: list[Any] = [
    {"max_run": 60, "environment": {"A": "b"}, "metric_definitions": [{"Name": "a", "Regex": "a=([0-9]+)"}]},
    {"instance_groups": [{"instance_group_name": "a", "instance_type": "local_process", "instance_count": 2}]},
    {"git_config": {"repo": "https://example.com/a.git", "commit": "1" * 40}, "shm_size": "2g", "tags": {"a": "b"}},
    {"slurm": {"account": "a", "gres": "gpu:4"}, "log_policies": {"a": "restart"}, "extra_request": {"A": {"B": 1}}},
    {"subnets": ["a"], "security_group_ids": ["b"], "max_wait": 90_000, "checkpoint_s3_uri": "s3://b/c"},
]
JOB = {
    "framework": "pytorch", "entry_point": "train.py", "source_dir": "src", "instance_type": "local_process",
    "instance_count": 2, "distribution": {"mpi": {"enabled": True, "processes_per_host": 2}},
    "hyperparameters": {"lr": 0.1, "name": "a"}, "environment": {"A": "b"}, "inputs": {"training": {"s3_data": "data"}},
    "max_run": 60, "tags": {"a": "b"},
}  # fmt: skip
YAML = "a: &x {b: [1, 1e-3, no], c: 'text'}\nd: *x\ne: !!str 2026-01-31\nf: |\n  text\n  more\n? g\n: {<<: *x, h: 1}\n"
INVENTORY = """\
user: me
work_folder: /scratch/a
shared: [/nfs/data]
hosts:
  - gpu-1
  - {name: gpu-2, host: 10.0.0.2, port: 2222, gpus: 8, labels: [a100], runtime: docker}
"""
PARTITION = {
    "version": 1, "partitions": 2, "memory_weight": 0.8, "memory_cap": None, "method": "moves", "bound": 0.5,
    "certificate": "exact",
    "loads": [{"cost": 0.5, "memory_bytes": 8, "seconds": 0.1, "communication_seconds": 0.0}] * 2,
    "modules": [
        {"path": path, "partition": number, "parameter_bytes": 8, "activation_bytes": 4, "seconds": 0.1}
        for path, number in (("", None), ("a", 0), ("a.b", 1))
    ],
}  # fmt: skip
RESOURCES = {
    "current_host": "algo-1", "hosts": ["algo-1", "algo-2"], "network_interface_name": "eth0",
    "current_instance_type": "ml.p4d.24xlarge", "current_group_name": "a",
    "instance_groups": [{"instance_group_name": "a", "instance_type": "ml.m5.large", "hosts": ["algo-1", "algo-2"]}],
}  # fmt: skip
FAILURE = Failure(
    host="algo-2", rank=1, exit_code=1, exception="ValueError", message="bad batch", log_tail=("a", "b"),
    frames=(Frame("train.py", 3, "main", "step()"),),
)  # fmt: skip
EVENTS = [
    mllog.render(mllog.Event("run_start", None, 1000, mllog.START)),
    mllog.render(mllog.Event("run_stop", None, 3500, mllog.STOP)),
    "[algo-1:0] " + mllog.render(mllog.Event("tracked_stats", {"throughput": 120}, 3500)),
]
SCRIPT = """\
import sagemaker
from sagemaker.pytorch import PyTorch
session = sagemaker.Session()
estimator = PyTorch("train.py", role=sagemaker.get_execution_role(), framework_version="2.0", py_version="py310",
                    instance_type="ml.p3.16xlarge", instance_count=2, hyperparameters={"epochs": 3})
estimator.fit({"training": "s3://bucket/data"})
"""
CONTEXT = {"Name": "a", "Endpoints": {"docker": {"Host": "tcp://gpu:2376", "SkipTLSVerify": False}}}
CONFIG = {
    "currentContext": "a", "proxies": {"default": {"httpProxy": "http://proxy:3128"}},
    "auths": {"registry:5000": {"auth": "bWU6c2VjcmV0"}}, "credHelpers": {"b": "none"},
}  # fmt: skip


_FRAMEWORKS: tuple[Framework, ...] = ("pytorch", "tensorflow", "huggingface", "mxnet")


def _distribution(raw: Any) -> None:
    # Each framework checks other keys; the value has to survive the way to the hosts.
    for framework in _FRAMEWORKS:
        with contextlib.suppress(HerringboneError):
            distribution = parse(raw, framework=framework)
            for library in Library:
                unserved(distribution, library, framework)
    distribution = parse(raw)
    assert decode(encode(distribution, instance_type="local_process")) == distribution, "another one after the way"


def _hyperparameters(raw: Any) -> None:
    if not isinstance(raw, dict):
        return
    try:
        table = {str(name): value if isinstance(value, str) else json.dumps(value) for name, value in raw.items()}
    except RecursionError:
        return  # `dumps` cannot write such a text
    user, _ = split(table)
    arguments(decode_values(user))
    decode(table)


def _partition(data: bytes) -> None:
    file = partition_file.parse(data)
    partition_file.parse(partition_file.to_text(file))
    for lines in (partition._tree(file), partition._ranks(file), partition._verdict(file)):
        "\n".join(lines).encode("utf-8", "replace")


def _event(line: str) -> None:
    if (event := mllog.parse(line)) is not None:
        mllog.Reader().numbers(event)


def _in_folder(folder: Path, files: dict[str, str], read: Callable[[Path], object]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
    read(folder)


def _host(folder: Path) -> Callable[[str], None]:
    names = ("resourceconfig.json", "hyperparameters.json", "inputdataconfig.json")
    whole = (json.dumps(RESOURCES), '{"epochs": "3"}', "{}")

    def read(text: str) -> None:
        for name in names:
            files = {f"host/input/config/{other}": content for other, content in zip(names, whole, strict=True)}
            files[f"host/input/config/{name}"] = text
            _in_folder(folder, files, lambda base: read_host({"SAGEMAKER_BASE_DIR": str(base / "host")}))

    return read


def _docker(folder: Path) -> Callable[[str], None]:
    meta = f"contexts/meta/{hashlib.sha256(b'a').hexdigest()}/meta.json"

    def read(text: str) -> None:
        def settings(base: Path) -> None:
            current_context({"DOCKER_CONFIG": str(base)}, base)
            proxy_variables(base)
            registry_login("registry:5000", base)
            read_context("a", base)

        _in_folder(folder / "docker", {"config.json": text, meta: text}, settings)

    return read


def _job_file(folder: Path) -> Callable[[str], None]:
    (folder / "work" / "src").mkdir(parents=True, exist_ok=True)
    (folder / "work" / "src" / "train.py").touch()
    (folder / "work" / "train.py").touch()
    (folder / "work" / "data").mkdir(exist_ok=True)
    flags = JobFlags(job_or_script=str(folder / "work" / "job.yaml"))

    def read(text: str) -> None:
        def plan(_: Path) -> None:
            estimator, inputs = read_request(flags)
            # No git: fetching is no decoding.
            if (
                estimator.options.git_config is None
                and groups_of(estimator._request)[0].instance_type == "local_process"
            ):
                json.dumps(estimator.plan(inputs, "a").to_dict())

        before = Path.cwd()
        try:
            _in_folder(folder, {"work/job.yaml": text}, plan)
        finally:
            os.chdir(before)

    return read


def _document(text: str) -> None:
    json.dumps(read_document(text, "text"))


def _inventory(text: str) -> None:
    parse_inventory(read_document(text, "hosts.yaml"), "hosts.yaml")


def _convert(text: str) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        convert_script(text)


def _words(text: str) -> None:
    arguments(parse_script_arguments(text.split(" ")))


def _options(raw: Any) -> None:
    # Python itself refuses other keyword arguments.
    if isinstance(raw, dict) and all(isinstance(name, str) for name in raw):
        parse_options(raw)


def _failure(data: bytes) -> None:
    failure = parse_failure(data)
    for text in (failure.render(), failure.render(200), failure.what, failure.advice, str(failure.lost_host)):
        text.encode("utf-8", "replace")


def _inputs(raw: Any) -> None:
    parse_inputs(raw, base=Path("/home/me"))


def _plain_texts(text: str) -> None:
    """Give one text to all small decoders, each of which may refuse it."""
    small: list[Callable[[str], object]] = [
        is_rail, reduce_servers.decode, parse_span, parse_s3_uri, split_type, split_name, check_job_name,
        lambda kind: _name_of(kind, "instance_type"),
        lambda size: size_in_bytes("shm_size", size), lambda address: parse_address(address, heartbeat=5.0),
        parse_summary, failure_of, lambda line: split_line(line.encode("utf-8", "surrogatepass")),
    ]  # fmt: skip
    for decoder in small:
        with contextlib.suppress(HerringboneError):
            decoder(text)


JOB_EVENTS = [
    {"kind": "state", "state": "Training", "why": "x"},
    {"kind": "metrics", "name": "loss", "source": "script", "since": 1.0, "step": 3, "by": 1, "values": [0.5, "nan"]},
    {"kind": "progress", "done": 5, "total": 20, "unit": "step", "eta": 30.0},
    {"kind": "steps", "rank": 0, "count": 5, "since": 1.0, "seconds": [0.25, 0.5]},
    {"kind": "memory", "rank": 0, "peak": 1 << 30, "device": "cuda"},
    {"kind": "sample", "machine": "m", "cpu": 1.5, "memory": 1e9, "memory_total": 2e9,
     "gpus": [{"index": 0, "use": 0.5}], "ranks": {"0": {"cpu": 1.0, "memory": 5, "state": "R"}}},
    {"kind": "checkpoint", "path": "step-1", "bytes": 5},
    {"kind": "restart", "attempt": 2, "why": "lost", "machines": ["a"]},
    {"kind": "straggler", "rank": 1, "seconds": 0.5, "median": 0.25},
    {"kind": "hang", "since": 60.0, "why": "silent", "ranks": [1]},
    {"kind": "stacks", "why": "hang", "groups": [{"ranks": [1], "odd": True, "state": "D", "frames": ["a.py:1 in f"]}]},
    {"kind": "timeline", "step": 3, "since": 1.0, "spans": [["forward", 0, 0, 0.0, 1.0]], "predicted": {"bubble": 0.5}},
    {"kind": "bill", "text": "$2"},
]  # fmt: skip
_ROW = JobRecord(name="a", backend="local", plan="{}", created=0.0, started=1.0)


def _job_event(line: bytes) -> None:
    """Show an event, whatever it is, in every view of a job."""
    view, history, fold = JobView(), History(), Fold("mlflow", system=True)
    for event in decode_lines(line):
        view.take(event)
        history.take(event)
        fold.take(event)
    row = row_of(_ROW, view, now=5.0)
    heading(row), table_of([row], 200), detail_of(row, view, []), shown(_ROW, view, "", [], now=5.0)
    msgspec.json.encode(job_data(_ROW, view, history, now=5.0))


def all_decoders(folder: Path) -> list[Decoder]:
    """Return all decoders; those of files write below `folder`."""
    failure = FAILURE.to_json()
    lines = [
        b"2026-11-21T11:44:37.123456Z [algo-1:0]   loss 0.5".decode(),
        "2026-11-21T11:44:37.123456Z [algo-1] ready",
    ]
    encoded: list[Any] = [encode(parse(raw), instance_type="local_process") for raw in DISTRIBUTIONS]
    encoded += [{"epochs": "3", "name": '"run"', "a": "[1, 2]", "sagemaker_program": '"train.py"'}]
    job_events = [json.dumps({"t": 2.0, "host": "algo-1", **event}) for event in JOB_EVENTS]
    files = [json.dumps(RESOURCES), '{"epochs": "3", "a": 1}', '{"training": {"TrainingInputMode": "File"}}']
    return [
        Decoder("distribution", _distribution, DISTRIBUTIONS, "value", 6),
        Decoder("hyperparameters", _hyperparameters, encoded, "value", 3),
        Decoder("options", _options, OPTIONS, "value", 3),
        Decoder("inputs", _inputs, [{"a": "data", "b": "s3://b/c"}, "file://data"], "value"),
        Decoder("documents", _document, [YAML, json.dumps(JOB), json.dumps(DISTRIBUTIONS)], "json", 2),
        Decoder("job files", _job_file(folder), [json.dumps(JOB), YAML], "json", 0.3),
        Decoder("inventories", _inventory, [INVENTORY, json.dumps({"hosts": ["a", {"name": "b"}]})], "json"),
        Decoder("script arguments", _words, ["--epochs 3 --name=run -n 20", "--shift -0.5 --path=/a=b"]),
        Decoder("partition files", _partition, [json.dumps(PARTITION)], "json", 2, as_bytes=True),
        Decoder("resource configs", parse_resource_config, [json.dumps(RESOURCES)], "json", 2, as_bytes=True),
        Decoder("files of a host", _host(folder), files, "json", 0.1),
        Decoder("failures", _failure, [failure], "json", 2, as_bytes=True),
        Decoder("run logs", _event, EVENTS, "text", 1),
        Decoder("events", _job_event, job_events, "json", 0.3, as_bytes=True),
        Decoder("log lines", lambda line: parse_line(line, "algo-1"), lines, as_bytes=True),
        Decoder("docker settings", _docker(folder), [json.dumps(CONTEXT), json.dumps(CONFIG)], "json", 0.1),
        Decoder("sinfo", parse_sinfo, ["gpu|2:00:00|4|8|4000|gpu:2\n"], weight=0.5),
        Decoder("squeue", parse_squeue, ["4|PENDING|BeginTime|1||/home/me/jobs/a|\n"], weight=0.5),
        Decoder("sacct", parse_sacct, ["4|CANCELLED by 1000|n[1-2]|/home/me/jobs/a\n"], weight=0.5),
        Decoder("converted scripts", _convert, [SCRIPT], weight=0.3),
        Decoder(
            "plain texts", _plain_texts,
            [
                *("eth0", "fabric:efa", "algo-3=10.0.0.5:7601", "30d", "s3://bucket/key", "ssh:hosts.yaml#a100"),
                *("ml.p4d.24xlarge", "registry:5000/base:1", "digits-1", "512m", "tcp:algo-1:7590", "unix:/tmp/x"),
                FAILURE.render(), "AlgorithmError: rank 1 on algo-2: KeyError: x (exit code 1), exit code: 1",
            ],
        ),
    ]  # fmt: skip
