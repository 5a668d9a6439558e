"""The variables that Herringbone sets in every rank, by name: a user's value for one of them would be ignored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from herringbone_contract.constants import BASE_VARIABLE, HostVariable, RankVariable, ReduceVariable
from herringbone_contract.launcher import Launcher

# Each of these fields of SM_TRAINING_ENV has a variable of its own, SM_ and the name in upper case.
FIELDS = (
    *("hosts", "current_host", "current_instance_type", "num_cpus", "num_gpus", "num_neurons"),
    *("current_instance_group", "current_instance_group_hosts", "instance_groups", "instance_groups_dict"),
    *("distribution_instance_groups", "is_hetero", "network_interface_name", "log_level"),
    *("user_entry_point", "module_name", "module_dir", "framework_module", "resource_config", "input_data_config"),
    *("model_dir", "input_dir", "input_config_dir", "output_dir", "output_data_dir", "output_intermediate_dir"),
)
_OTHER_FIELDS = ("hps", "framework_params", "user_args", "channels", "training_env", "checkpoint_dir")
_OF_EVERY_JOB = (
    *(f"SM_{name.upper()}" for name in (*FIELDS, *_OTHER_FIELDS)),
    *(value for name, value in vars(RankVariable).items() if name.isupper()),
    *(BASE_VARIABLE, HostVariable.JOB_NAME, HostVariable.LIFELINE, HostVariable.PRIVATE, HostVariable.RUN_FOLDER),
    *(ReduceVariable.MEET, ReduceVariable.TOKEN_FILE, ReduceVariable.SERVERS),
)
_TORCH = "GROUP_WORLD_SIZE ROLE_RANK ROLE_WORLD_SIZE ROLE_NAME TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS"
_MXNET = "DMLC_ROLE DMLC_PS_ROOT_URI DMLC_PS_ROOT_PORT DMLC_NUM_WORKER DMLC_NUM_SERVER"
_OF_LAUNCHERS = {
    Launcher.MPI: ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "PMI_RANK"),
    Launcher.TORCH_DISTRIBUTED: (*_TORCH.split(), "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE"),
    Launcher.DATA_PARALLEL: ("SMDATAPARALLEL_LOCAL_RANK",),
    Launcher.MULTI_WORKER_MIRRORED: ("TF_CONFIG",),
    # TensorFlow's or MXNet's servers, which the image may decide.
    Launcher.PARAMETER_SERVER: ("TF_CONFIG", *_MXNET.split()),
}


# MPI, Lightning and others that see these variables of Slurm believe that srun placed the ranks; the supervisor does.
SLURM_TASK = (
    *("SLURM_JOBID", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_GTIDS"),
    *("SLURM_STEPID", "SLURM_STEP_ID", "SLURM_NODELIST", "SLURM_STEP_NODELIST", "SLURM_NNODES", "SLURM_TASK_PID"),
    *("SLURM_TASKS_PER_NODE", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE"),
)
_OF_OTHERS = {
    *SLURM_TASK,
    *(name for names in _OF_LAUNCHERS.values() for name in names),
    *(value for name, value in vars(RankVariable).items() if name.isupper()),
}
# Variables of hyperparameters and channels, and those by which launchers and schedulers place a process in a group.
_PREFIXES_TEXT = """
SM_HP_ SM_CHANNEL_ OMPI_COMM_WORLD_ OMPI_MCA_ess_ OMPI_MCA_orte_ PRTE_MCA_ess_ PMI_ PMIX_RANK PMIX_NAMESPACE
PMIX_SERVER_ PMIX_HOSTNAME PMIX_SECURITY_MODE TORCHELASTIC_ MPI_LOCALRANKID MPI_LOCALNRANKS HYDI_ MPISPAWN_
MV2_COMM_WORLD_ FLUX_TASK_ FLUX_JOB_SIZE FLUX_JOB_NNODES PALS_ JSM_NAMESPACE_ NODE_RANK LOCAL_SIZE FORK_LAUNCHED
CROSS_RANK CROSS_SIZE HOROVOD_RANK HOROVOD_SIZE HOROVOD_LOCAL_ HOROVOD_CROSS_ HOROVOD_HOSTNAME
HOROVOD_GLOO_RENDEZVOUS_ SLURM_JOB_N SLURM_STEP SLURM_SRUN_ SLURM_CPU_BIND SLURM_LAUNCH_ SLURM_MPI_TYPE
SLURM_PMI SLURM_DISTRIBUTION SLURM_TOPOLOGY_ PBS_ENVIRONMENT PBS_NODE PBS_TASKNUM PE_HOSTFILE LSB_HOSTS
LSB_MCPU_HOSTS LSB_DJOB_ DMLC_WORKER_ID DMLC_TASK_ID JAX_COORDINATOR_ JAX_PROCESS_ID JAX_NUM_PROCESSES
PET_NNODES PET_NPROC_PER_NODE PET_NODE_RANK PET_MASTER_ PET_RDZV_
"""
_PREFIXES_OF_OTHERS = tuple(_PREFIXES_TEXT.split())
_ACCELERATE = ("ACCELERATE_", "FSDP_", "MEGATRON_LM_", "PARALLELISM_CONFIG_", "OMP_NUM_THREADS")
_OPEN_MPI = ("OMPI_", "OPAL_", "PMIX_", "PRTE_", "HFI_NO_BACKTRACE", "IPATH_NO_BACKTRACE")
# How a launcher sets up its group, by a variable that only this launcher sets. Users set the others to tune a library.
_SETTINGS_OF_LAUNCHERS = {
    "OMPI_COMM_WORLD_RANK": _OPEN_MPI,
    "PRTE_LAUNCHED": _OPEN_MPI,
    "PMIX_RANK": ("PMIX_",),
    "MPI_LOCALRANKID": ("MPIR_CVAR_CH3_INTERFACE_HOSTNAME", "I_MPI_MPIRUN", "GFORTRAN_UNBUFFERED_PRECONNECTED"),
    "MV2_COMM_WORLD_RANK": ("MV2_",),
    "HOROVOD_RANK": ("HOROVOD_",),
    "TORCHELASTIC_RUN_ID": ("TORCH_NCCL_ASYNC_ERROR_HANDLING",),
    "ACCELERATE_DYNAMO_MODE": _ACCELERATE,
    "ACCELERATE_CONFIG_DS_FIELDS": _ACCELERATE,
}


def of_the_shell(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what a job on this machine takes over of a shell's variables.

    Those of a try, of a job or of another launcher around this one would pass for those of this job. Variables that
    also tune a library, such as `OMPI_MCA_btl`, are left out only inside the launcher that sets them.

    >>> of_the_shell({"PATH": "/bin", "SM_HP_LR": "1", "RANK": "3", "SLURM_PROCID": "3", "OMPI_MCA_btl": "^tcp"})
    {'PATH': '/bin', 'OMPI_MCA_btl': '^tcp'}
    >>> of_the_shell({"PATH": "/bin", "OMPI_COMM_WORLD_RANK": "0", "OMPI_MCA_btl": "^tcp", "OPAL_PREFIX": "/opt/other"})
    {'PATH': '/bin'}
    """
    settings = [prefix for mark, group in _SETTINGS_OF_LAUNCHERS.items() if mark in environment for prefix in group]
    # torchrun gives each of several processes one thread, unless the user has decided.
    if "TORCHELASTIC_RUN_ID" in environment and environment.get("OMP_NUM_THREADS") == "1":
        settings.append("OMP_NUM_THREADS")
    others = (*_PREFIXES_OF_OTHERS, *settings)
    return {
        name: value for name, value in environment.items() if name not in _OF_OTHERS and not name.startswith(others)
    }


def own_variables(launcher: Launcher, hyperparameters: Iterable[str], channels: Iterable[str]) -> set[str]:
    """Return the variables that a job's ranks get with values of their own, whatever its `environment` says.

    >>> {"SM_MODEL_DIR", "SM_HP_LR", "RANK"} <= own_variables(Launcher.PLAIN, ["lr"], [])
    True
    """
    return {*_OF_EVERY_JOB, *_OF_LAUNCHERS.get(launcher, ()), *named_variables(hyperparameters, channels)}


def named_variables(hyperparameters: Iterable[str], channels: Iterable[str]) -> dict[str, list[str]]:
    """Return the variables of hyperparameters and channels, each with the names that it is made from.

    >>> named_variables(["lr", "LR"], ["train"])
    {'SM_HP_LR': ['lr', 'LR'], 'SM_CHANNEL_TRAIN': ['train']}
    """
    variables: dict[str, list[str]] = {}
    for name in hyperparameters:
        # Some shells drop variables with a hyphen.
        for spelling in dict.fromkeys((name, name.replace("-", "_"))):
            variables.setdefault(f"SM_HP_{spelling.upper()}", []).append(name)
    for name in channels:
        variables.setdefault(f"SM_CHANNEL_{name.upper()}", []).append(name)
    return variables
