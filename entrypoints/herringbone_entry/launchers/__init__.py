"""Commands and environment variables by which the ranks of a job start: one file for each kind of job.

plain                the command of a rank that its host's supervisor starts
torch_distributed    the variables that torchrun sets
mpi                  mpirun's command line; mpirun on the first host starts all ranks, which attach to their own hosts
mpi_agent            the program that mpirun runs in place of ssh
tensorflow_cluster   the variables of TensorFlow's own strategies, for ranks and parameter servers
mxnet_cluster        the variables of MXNet's parameter servers, for ranks, servers and their scheduler
data_parallel        the variables of the data-parallel library, for ranks and for the servers of helper hosts
"""
