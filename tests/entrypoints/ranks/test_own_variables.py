"""The names of the variables that ranks get, which a plan refuses in a user's environment."""

from __future__ import annotations

import pytest

from herringbone_contract.launcher import Launcher
from herringbone_contract.layout import lay_out
from herringbone_contract.variables import own_variables
from herringbone_entry.channel.rendezvous import Rendezvous, rendezvous_variables
from herringbone_entry.host import read_host
from herringbone_entry.launchers import mxnet_cluster, torch_distributed
from herringbone_entry.ranks.environment import contract_environment, rank_environment


@pytest.mark.parametrize("launcher", [Launcher.PLAIN, Launcher.TORCH_DISTRIBUTED, Launcher.MXNET_PARAMETER_SERVER])
def test_a_plan_knows_the_variables_that_ranks_get(make_job, launcher: Launcher) -> None:
    """A user's value for one of them is refused at plan."""
    job = make_job()
    job.write("", **{"batch-size": 3})
    host = read_host({"SAGEMAKER_BASE_DIR": str(job.base())})._replace(input_data_config={"training": {}})
    names = set(contract_environment(host, num_cpus=1, num_gpus=0))
    placement = lay_out({"algo-1": 1}).placement(0)
    names |= set(rank_environment(placement, master_address="a", master_port=1))
    names |= set(rendezvous_variables(Rendezvous("a", 1, 2)))
    if launcher is Launcher.TORCH_DISTRIBUTED:
        names |= set(torch_distributed.environment(placement, run_id="a"))
    if launcher is Launcher.MXNET_PARAMETER_SERVER:
        rendezvous = Rendezvous("a", 1, 2)
        variables = mxnet_cluster.environment("worker", rendezvous, hosts=1, on_one_machine=False, interface=None)
        names, launcher = names | set(variables), Launcher.PARAMETER_SERVER
    assert names <= own_variables(launcher, ["batch-size"], ["training"])
