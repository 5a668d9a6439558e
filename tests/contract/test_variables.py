"""Tests of what a job takes over of the shell that submits it."""

import pytest

from herringbone_contract.variables import of_the_shell

# As they stand in the environment of a process below each launcher, and not in that of a plain shell.
LAUNCHERS = {
    "mpirun of Open MPI 4": "OMPI_COMM_WORLD_RANK OMPI_MCA_ess OMPI_MCA_orte_hnp_uri OMPI_MCA_pmix OMPI_UNIVERSE_SIZE "
    "OMPI_COMMAND PMIX_RANK PMIX_ID PMIX_MCA_mca_base_component_show_load_errors PMIX_GDS_MODULE PMIX_SYSTEM_TMPDIR",
    "mpirun of Open MPI 5": "OMPI_COMM_WORLD_RANK OMPI_WORLD_SIZE OMPI_TOOL_NAME OPAL_PREFIX OPAL_USER_PARAMS_GIVEN "
    "PMIX_RANK PMIX_PREFIX PRTE_LAUNCHED PRTE_SHARED_FS",
    "mpiexec of MPICH": "PMI_RANK PMI_FD MPI_LOCALRANKID HYDI_CONTROL_FD MPIR_CVAR_CH3_INTERFACE_HOSTNAME",
    "mpirun_rsh": "MV2_COMM_WORLD_RANK MPISPAWN_ID MV2_SMP_EAGERSIZE",
    "horovodrun": "HOROVOD_RANK HOROVOD_CONTROLLER HOROVOD_CPU_OPERATIONS HOROVOD_GLOO_IFACE",
    "srun": "SLURM_PROCID SLURM_STEP_NODELIST SLURM_STEPID SLURM_SRUN_COMM_HOST SLURM_CPU_BIND SLURM_MPI_TYPE "
    "SLURM_LAUNCH_NODE_IPADDR SLURM_DISTRIBUTION SLURM_TOPOLOGY_ADDR",
    "torchrun": "RANK LOCAL_RANK MASTER_ADDR TORCHELASTIC_RUN_ID TORCHELASTIC_ERROR_FILE OMP_NUM_THREADS "
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "accelerate launch": "ACCELERATE_DYNAMO_MODE ACCELERATE_MIXED_PRECISION ACCELERATE_USE_FSDP FSDP_VERSION "
    "OMP_NUM_THREADS FSDP_AUTO_WRAP_POLICY",
    "accelerate launch of DeepSpeed": "ACCELERATE_CONFIG_DS_FIELDS ACCELERATE_USE_DEEPSPEED",
    "deepspeed": "RANK LOCAL_RANK LOCAL_SIZE CROSS_RANK CROSS_SIZE WORLD_SIZE MASTER_PORT",
    "an operator of pods": "PET_NNODES PET_RDZV_ENDPOINT NODE_RANK JAX_COORDINATOR_ADDRESS JAX_PROCESS_ID",
    "a batch system": "PBS_NODEFILE PBS_ENVIRONMENT PE_HOSTFILE LSB_DJOB_HOSTFILE JSM_NAMESPACE_RANK PALS_RANKID",
}
TUNING = (
    "OMPI_MCA_btl PMIX_MCA_gds OPAL_PREFIX I_MPI_FABRICS I_MPI_ROOT MV2_USE_CUDA MPIR_CVAR_CH4_NETMOD HYDRA_FULL_ERROR "
    "HOROVOD_FUSION_THRESHOLD ACCELERATE_MIXED_PRECISION ACCELERATE_DYNAMO_BACKEND FSDP_VERSION OMP_NUM_THREADS "
    "TORCH_NCCL_ASYNC_ERROR_HANDLING PET_NAMES SLURM_CONF SLURM_JOB_ID SLURM_TMPDIR NCCL_SOCKET_IFNAME"
)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_nothing_of_a_launcher_around_the_command_reaches_the_job(launcher):
    assert of_the_shell({"PATH": "/bin", **dict.fromkeys(LAUNCHERS[launcher].split(), "1")}) == {"PATH": "/bin"}


def test_what_tunes_a_library_outside_its_launcher_is_the_users():
    tuning = dict.fromkeys(TUNING.split(), "1")
    assert of_the_shell(tuning) == tuning
    # torchrun does not change a number of threads that the user has set.
    assert of_the_shell({"TORCHELASTIC_RUN_ID": "none", "OMP_NUM_THREADS": "4"}) == {"OMP_NUM_THREADS": "4"}
