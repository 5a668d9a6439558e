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
# Variables of hyperparameters and channels, and those by which launchers of MPI tell a process which rank it is.
_PREFIXES_OF_OTHERS = (
    *("SM_HP_", "SM_CHANNEL_", "OMPI_COMM_WORLD_", "OMPI_MCA_ess_", "OMPI_MCA_orte_ess_", "PRTE_MCA_ess_"),
    *("PMI_", "PMIX_RANK", "PMIX_NAMESPACE", "PMIX_SERVER_", "PMIX_HOSTNAME", "PMIX_SECURITY_MODE", "TORCHELASTIC_"),
    *("MPI_LOCALRANKID", "MPI_LOCALNRANKS", "FLUX_TASK_", "PALS_", "JSM_NAMESPACE_", "NODE_RANK", "SLURM_JOB_N"),
    *(
        "HOROVOD_RANK",
        "HOROVOD_SIZE",
        "HOROVOD_LOCAL_",
        "HOROVOD_CROSS_",
        "HOROVOD_HOSTNAME",
        "CROSS_RANK",
        "CROSS_SIZE",
    ),
)


def of_the_shell(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what a job on this machine takes over of a shell's variables.

    Those of a try, of a job or of another launcher around this one would pass for those of this job.

    >>> of_the_shell({"PATH": "/bin", "SM_HP_LR": "1", "RANK": "3", "SLURM_PROCID": "3", "HOROVOD_LOCAL_RANK": "0"})
    {'PATH': '/bin'}
    """
    return {
        name: value
        for name, value in environment.items()
        if name not in _OF_OTHERS and not name.startswith(_PREFIXES_OF_OTHERS)
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
