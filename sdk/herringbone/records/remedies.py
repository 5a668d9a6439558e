"""Say what to do about a failure of a script, from its record and the plan of its job. Pure."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Mapping
from typing import Any

from herringbone_contract.failure import Failure

# An exception's quoted file: the words of OSError, which shows paths as Python writes texts.
_MISSING = re.compile(r"No such file or directory: '(?P<path>[^']+)'")
_NO_DISTRIBUTION = re.compile(r"No matching distribution found for (?P<requirement>\S+)")
_UNRECOGNIZED = re.compile(r"error: unrecognized arguments: (?P<arguments>.+)")
# The words of Hugging Face's parser, which shows a list of Python.
_NOT_USED = re.compile(r"^Some specified arguments are not used by the HfArgumentParser: (?P<arguments>.+)")
# The folders of a job's host, in a container or in the folder of a job on this machine.
_HOST_FOLDER = r"(?:/opt/ml|/hosts/[^/]+/ml)"
_CHANNEL = re.compile(_HOST_FOLDER + r"/input/data/(?P<channel>[^/]+)(?:/(?P<file>.*))?$")
_CODE = re.compile(_HOST_FOLDER + r"/code/(?P<file>.+)$")
# The words of Python, of the C library and of torch for a name that they cannot resolve.
_NO_NAME = re.compile(r"Name or service not known|in name resolution|No address associated|gai ?error")
# Exit codes of processes that a signal ended without a Python exception: 128 and the signal's number.
_LESS_MEMORY = "Use a smaller batch, or fewer ranks or data loader workers on the host"
_CRASH = "compiled code crashed, not Python: update or replace the library that the last frame calls"
_SIGNALS = {
    128 + signal.SIGKILL: "not sent by Herringbone: a person or a program sent it, or the kernel did, out of memory "
    f"(`sudo dmesg | grep -i oom`). {_LESS_MEMORY}",
    128 + signal.SIGSEGV: _CRASH,
    128 + signal.SIGBUS: f"{_CRASH}, or free room in /dev/shm",
    128 + signal.SIGILL: "a library was compiled for another processor: install a build for this one",
}
# The system's words for a write, or a read, that a disk refuses.
_DISKS = {
    "Disk quota exceeded": "your quota on that file system is used up: remove files there, or set HERRINGBONE_HOME to "
    "a folder on another one",
    "File too large": "raise the limit of a file's size where you start the job (`ulimit -f unlimited`), or write to a "
    "file system that takes such files",
    "Read-only file system": "mounted without writing, or made so by the kernel after an error of the disk "
    "(`sudo dmesg` tells)",
    "Input/output error": "the disk, or the server of the file system, fails (`sudo dmesg` tells)",
}
# Names that Herringbone gives to jobs with a distribution: version 2 of the model parallel library, and Horovod.
_BROUGHT = {
    "torch.sagemaker": "distribution={'torch_distributed': {'enabled': True}}, with smdistributed's modelparallel for "
    "its parameters,",
    "horovod": "distribution={'mpi': {'enabled': True}}",
}
# The words about a process of Herringbone's that ended before its job: the controller, the waiter, the client.
_OWN_PROCESS = re.compile(
    "process that (watched the job was killed|held the job's place in line was killed|was submitting the job died)"
)
# The words of torch for a GPU without memory, of torch's watchdogs and stores for a rank that did not come, and of the
# Hub for a model whose terms nobody has accepted.
_GPU_MEMORY = re.compile(r"CUDA out of memory|HIP out of memory|OutOfMemoryError")
_NOT_IN_TIME = re.compile(
    r"Watchdog caught collective operation timeout|Timed out waiting \d+ms|wait timeout after \d+ms|NCCL timeout"
    r"|collective.* timed out|Socket Timeout"
)
_GATED = re.compile(r"GatedRepoError|[Gg]ated repo|Access to model .* is restricted|must be authenticated to access")
_SHOWN_LAYOUTS = 3
# Arguments that Herringbone adds to the user's hyperparameters, and the reason.
_ADDED = {
    "--mp_parameters": "distribution's modelparallel adds it, as on SageMaker",
    "--model_dir": "TensorFlow's estimator adds it, as on SageMaker; model_dir=False leaves it out",
}


def remedy(failure: Failure, plan: Mapping[str, Any]) -> str:
    """Return a sentence about a failure that users of a launcher meet often, "" for any other; `plan` is a stored one.

    >>> remedy(Failure(exception="ModuleNotFoundError", message="No module named 'x'"), {})
    'not installed where the job ran: give source_dir, with a requirements.txt that names it, or with your own module x'
    """
    if match := _OWN_PROCESS.search(failure.message) if failure.rank is None else None:
        return _restart(plan, with_checkpoints=match[1].startswith("watched"))
    if failure.exception == "ImportError" and failure.message.startswith("cannot import name 'sagemaker' from 'torch'"):
        return _missing_module("No module named 'torch.sagemaker'", plan)
    if failure.exception == "ModuleNotFoundError":
        return _missing_module(failure.message, plan)
    text = f"{failure.exception}: {failure.message}"
    if _GPU_MEMORY.search(text):
        return _more_memory(plan)
    if _GATED.search(text):
        return (
            "accept the model's terms on its page of the Hub, and give the job the token of that account: `export "
            "HF_TOKEN=...` here, and `--env HF_TOKEN`"
        )
    if _NOT_IN_TIME.search(text):
        return (
            "a rank did not come to an operation between ranks; lines `stacks:` and `hang:` of the log say which one, "
            "and where it was. For ranks that rightly are busy so long, give init_process_group a longer timeout"
        )
    if failure.exception == "MemoryError":
        return f"the host has no memory left for the script. {_LESS_MEMORY}"
    if failure.exception == "FileNotFoundError" and (match := _MISSING.search(failure.message)):
        return _missing_file(match["path"], plan)
    if match := _NO_DISTRIBUTION.search(failure.message):
        return (
            f"correct {match['requirement']} in requirements.txt (`pip index versions NAME` lists the versions), "
            "or name the index that has it in PIP_INDEX_URL"
        )
    if match := _NOT_USED.search(failure.message):
        words = [word.strip("',[]\"") for word in match["arguments"].split()]
        return _unrecognized(words, "parse_args_into_dataclasses(return_remaining_strings=True)")
    if "Too many open files" in failure.message:
        return "allow more of them where you start the job (`ulimit -n 65536`), or start fewer ranks and hosts there"
    for refusal, sentence in _DISKS.items():
        if refusal in failure.message:
            return sentence
    if plan.get("backend") in ("local_process", "ssh") and any(
        map(_is_unknown_name, (failure.message, *failure.log_tail))
    ):
        return (
            "here, only Python and torch resolve the names of hosts: give other programs the address in MASTER_ADDR, "
            "which each rank has"
        )
    if not failure.exception and not failure.message:
        return _SIGNALS.get(failure.exit_code, "")
    if failure.exception == "SystemExit":
        for line in reversed(failure.log_tail):
            if match := _UNRECOGNIZED.search(line):
                return _unrecognized(match["arguments"].split(), "args, _ = parser.parse_known_args()")
    return ""


def _more_memory(plan: Mapping[str, Any]) -> str:
    """Name the layouts of the job that were found to fit, or the command that finds them."""
    name, prediction = plan.get("job_name", "NAME"), plan.get("prediction") or {}
    fitting = [layout for layout in prediction.get("layouts") or () if not layout.get("refusal")]
    shown = [
        f"{json.dumps(layout['distribution'])} ({layout['samples_per_second']:.3g} samples a second)"
        for layout in fitting
        if layout.get("distribution") and layout.get("samples_per_second")
    ]
    if shown:
        dicts = "; ".join(shown[:_SHOWN_LAYOUTS])
        return f"these layouts fit: {dicts}. `herringbone run --resume {name} --distribution JSON` goes on with one"
    return (
        f"`herringbone plan --like {name} --choose` lists the layouts of this job that fit, with speed and dict; "
        f"`herringbone run --resume {name} --distribution auto` goes on with the best"
    )


def _is_unknown_name(text: str) -> bool:
    return re.search(r"\balgo-\d+\b", text) is not None and _NO_NAME.search(text) is not None


def _restart(plan: Mapping[str, Any], *, with_checkpoints: bool) -> str:
    name = plan.get("job_name", "NAME")
    again = f"`herringbone run --like {name}` starts it again"
    if with_checkpoints and (
        plan.get("backend") in ("local_process", "local", "slurm") or plan.get("options", {}).get("checkpoint_s3_uri")
    ):
        return f"`herringbone run --resume {name}` goes on from its checkpoints; {again}"
    return again


def _missing_module(message: str, plan: Mapping[str, Any]) -> str:
    match = re.search(r"No module named '([^']+)'", message)
    for name, distribution in _BROUGHT.items():
        if match and f"{match[1]}.".startswith(f"{name}."):
            return f"{distribution} brings {name} to the job"
    parent, _, part = match[1].rpartition(".") if match else ("", "", "")
    if parent:
        # Python has imported everything before the last dot.
        return (
            f"{parent} where the job ran has no {part}: name in requirements.txt a release of {parent.split('.')[0]}"
            " that has it, or the package that adds it"
        )
    start = "not installed where the job ran: "
    source = plan.get("source") or {}
    if source.get("whole_folder") or source.get("archive"):
        return f"{start}name it in requirements.txt of source_dir"
    module = f", or with your own module {match[1]}" if match else ""
    return f"{start}give source_dir, with a requirements.txt that names it{module}"


def _missing_file(path: str, plan: Mapping[str, Any]) -> str:
    if not path.startswith("/"):
        return (
            f"the script runs in a copy of its code, which has no {path}: give the data as a channel, "
            "fit({'training': FOLDER}), and read it in the folder SM_CHANNEL_TRAINING"
        )
    if match := _CHANNEL.search(path):
        for channel in plan.get("channels", ()):
            if channel["name"] == match["channel"]:
                folder = channel.get("path") or channel["input"]["s3_data"]
                return f"channel {match['channel']!r} is {folder}, which has no {match['file'] or 'such file'}"
        names = ", ".join(channel["name"] for channel in plan.get("channels", ())) or "none"
        return f"the job has no channel {match['channel']!r}; its channels: {names}"
    if match := _CODE.search(path):
        return (
            f"the job's copy of the code has no {match['file']}: the file is not in source_dir, or an ignore file "
            "(.gitignore, .dockerignore, .herringboneignore) leaves it out"
        )
    return ""


def _unrecognized(arguments: list[str], accepting: str) -> str:
    names = [word.partition("=")[0] for word in arguments if word.startswith("-")]
    reasons = [f"{name}: {_ADDED[name]}" for name in names if name in _ADDED]
    origin = "; ".join(reasons) or "the job's hyperparameters reach the script as arguments"
    return f"{origin}. Parse with `{accepting}`, or let the parser take them"
