"""How the ranks of a job are started: one file per way.

direct               each host's supervisor starts its own ranks: a plain script, torch_distributed, data_parallel
torch_distributed    what torchrun's ranks find in their environment
mpi                  mpirun on the first host starts all ranks, which then attach to their own hosts
tensorflow_cluster   what ranks find of TensorFlow's own strategies, and the parameter servers beside them
mxnet_cluster        what ranks find of MXNet's parameter servers, and those servers and their scheduler
data_parallel        what ranks of the data-parallel library find in their environment, and the servers of helper hosts
"""
