"""Sentences about the failures that users of a launcher meet often."""

import pytest

from herringbone.backends.lifecycle import client_died
from herringbone.records.remedies import remedy
from herringbone.slots.pending import waiter_died
from herringbone_contract.failure import Failure

PLAN = {
    "source": {"entry_point": "train.py", "folder": "/home/me/src", "whole_folder": True},
    "channels": [
        {"name": "training", "input": {"s3_data": "data"}, "path": "/home/me/data"},
        {"name": "far", "input": {"s3_data": "s3://bucket/far"}},
    ],
}
ALONE = {"source": {"entry_point": "train.py", "folder": "/home/me"}, "channels": []}


def missing(path):
    return Failure(exception="FileNotFoundError", message=f"[Errno 2] No such file or directory: {path!r}")


@pytest.mark.parametrize(
    ("failure", "plan", "text"),
    [
        (
            Failure(exception="ModuleNotFoundError", message="No module named 'timm'"),
            PLAN,
            "not installed where the job ran: name it in requirements.txt of source_dir",
        ),
        (Failure(exception="OSError", message="[Errno 27] File too large"), PLAN, "`ulimit -f unlimited`"),
        (Failure(exception="OSError", message="[Errno 122] Disk quota exceeded: 'w'"), PLAN, "your quota"),
        (Failure(exception="OSError", message="[Errno 30] Read-only file system"), {}, "mounted without writing"),
        (Failure(exception="OSError", message="[Errno 5] Input/output error"), {}, "`sudo dmesg` tells"),
        (Failure(exception="OSError", message="[Errno 24] Too many open files"), PLAN, "`ulimit -n 65536`"),
        (
            Failure(exit_code=1, log_tail=("ssh: Could not resolve hostname algo-2: Name or service not known",)),
            {"backend": "local_process"},
            "give other programs the address in MASTER_ADDR",
        ),
        (
            Failure(exception="ModuleNotFoundError", message="No module named 'timm'"),
            ALONE,
            "give source_dir, with a requirements.txt that names it, or with your own module timm",
        ),
        (
            Failure(exception="ModuleNotFoundError", message="No module named 'torch.nn.old'"),
            PLAN,
            "torch.nn where the job ran has no old: name in requirements.txt a release of torch that has it",
        ),
        *(
            (Failure(exception=exception, message=message), PLAN, f"distribution={{'{launcher}': {{'enabled': True}}}}")
            for exception, message, launcher in (
                ("ModuleNotFoundError", "No module named 'torch.sagemaker'", "torch_distributed"),
                ("ModuleNotFoundError", "No module named 'torch.sagemaker.checkpoint'", "torch_distributed"),
                (
                    "ImportError",
                    "cannot import name 'sagemaker' from 'torch' (/torch/__init__.py)",
                    "torch_distributed",
                ),
                ("ModuleNotFoundError", "No module named 'horovod'", "mpi"),
            )
        ),
        (
            missing("data/train.txt"),
            PLAN,
            "a copy of its code, which has no data/train.txt: give the data as a channel",
        ),
        (
            missing("/home/me/.herringbone/jobs/a/hosts/algo-1/ml/input/data/training/b/x.txt"),
            PLAN,
            "channel 'training' is /home/me/data, which has no b/x.txt",
        ),
        (Failure(exit_code=137), PLAN, "or the kernel did, out of memory (`sudo dmesg | grep -i oom`)"),
        (Failure(exception="MemoryError"), PLAN, "the host has no memory left for the script. Use a smaller batch"),
        (Failure(exit_code=139), PLAN, "compiled code crashed, not Python: update or replace the library"),
        (
            Failure(exception="LaunchError", message="pip cannot install: No matching distribution found for tim==9"),
            PLAN,
            "correct tim==9 in requirements.txt (`pip index versions NAME` lists the versions)",
        ),
        (missing("/opt/ml/input/data/far/x"), PLAN, "channel 'far' is s3://bucket/far, which has no x"),
        (missing("/opt/ml/input/data/test/x"), PLAN, "the job has no channel 'test'; its channels: training, far"),
        (missing("/opt/ml/input/data/test"), ALONE, "the job has no channel 'test'; its channels: none"),
        (missing("/opt/ml/code/vocab.txt"), PLAN, "the job's copy of the code has no vocab.txt"),
        (
            Failure(
                exception="SystemExit",
                message="2",
                log_tail=("usage: train.py", "train.py: error: unrecognized arguments: --mp_parameters partitions=2"),
            ),
            PLAN,
            "--mp_parameters: distribution's modelparallel adds it, as on SageMaker. Parse with `args, _ = "
            "parser.parse_known_args()`",
        ),
        (
            Failure(exception="SystemExit", message="2", log_tail=("t.py: error: unrecognized arguments: --lr 3",)),
            PLAN,
            "the job's hyperparameters reach the script as arguments. Parse with",
        ),
        *(
            (
                Failure(
                    exception="ValueError",
                    message=f"Some specified arguments are not used by the HfArgumentParser: {arguments}",
                ),
                PLAN,
                f"{reason}. Parse with `parse_args_into_dataclasses(return_remaining_strings=True)`",
            )
            for arguments, reason in (
                (
                    ["--model_dir", "/a b"],
                    "--model_dir: TensorFlow's estimator adds it, as on SageMaker; model_dir=False leaves it out",
                ),
                (["--lr", "3"], "the job's hyperparameters reach the script as arguments"),
            )
        ),
    ],
)
def test_common_failures_say_what_to_do(failure, plan, text):
    assert text in remedy(failure, plan)


@pytest.mark.parametrize(
    "failure",
    [
        missing("/home/me/x"),
        Failure(exception="FileNotFoundError", message="x not found."),
        Failure(exception="SystemExit", message="2", log_tail=("error: the following arguments are required: --lr",)),
        Failure(exit_code=137, message="out of memory: the group of this job may have 1.0 GB"),
        Failure(exit_code=3),
    ],
)
def test_other_failures_say_nothing(failure):
    assert remedy(failure, PLAN) == ""
    assert remedy(failure, {}) == ""


LOST = Failure(host="algo-1", message="the process that watched the job was killed, or its machine restarted: its log")


@pytest.mark.parametrize(
    ("failure", "plan", "text"),
    [
        (
            LOST,
            {"backend": "local_process", "job_name": "a"},
            "`herringbone run --resume a` goes on from its checkpoints",
        ),
        (
            LOST,
            {"backend": "ssh", "options": {"checkpoint_s3_uri": "/nfs/c"}},
            "`herringbone run --resume NAME` goes on",
        ),
        (LOST, {"backend": "ssh", "job_name": "a"}, "`herringbone run --like a` starts it again"),
        (waiter_died(), {"backend": "local", "job_name": "a"}, "`herringbone run --like a` starts it again"),
        (client_died("it ran"), {"backend": "local", "job_name": "a"}, "`herringbone run --like a` starts it again"),
    ],
)
def test_a_job_that_lost_a_process_of_ours_can_be_started_again(failure, plan, text):
    assert remedy(failure, plan).startswith(text)


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (Failure(exception="OutOfMemoryError", message="CUDA out of memory. Tried to allocate 2 GiB"), "plan --like j"),
        (Failure(exception="RuntimeError", message="[..] Timed out waiting 1800000ms for recv operation"), "`stacks:`"),
        (Failure(exception="DistBackendError", message="Watchdog caught collective operation timeout: W"), "timeout"),
        (Failure(exception="OSError", message="You are trying to access a gated repo.\nMake sure"), "--env HF_TOKEN"),
        (Failure(exception="GatedRepoError", message="401 Client Error"), "accept the model's terms"),
    ],
)
def test_what_to_do_about_memory_waits_and_models(failure, words):
    assert words in remedy(failure, {"job_name": "j"})


def test_layouts_that_were_found_to_fit_are_named():
    layouts = [
        {"distribution": {"mpi": {"enabled": True}}, "samples_per_second": 12.0, "refusal": "too large"},
        {"distribution": {"smdistributed": {}}, "samples_per_second": 7.25, "refusal": None},
    ]
    failure = Failure(exception="OutOfMemoryError", message="CUDA out of memory")
    assert remedy(failure, {"job_name": "j", "prediction": {"layouts": layouts}}) == (
        'these layouts fit: {"smdistributed": {}} (7.25 samples a second). `herringbone run --resume j --distribution '
        "JSON` goes on with one"
    )
