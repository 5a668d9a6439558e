"""A script whose ranks speak MPI, of Open MPI's library that LIBMPI names, without mpi4py: each counts all of them."""

ALLREDUCE = """
    import ctypes, os
    mpi = ctypes.CDLL(os.environ["LIBMPI"], mode=ctypes.RTLD_GLOBAL)
    mpi.MPI_Init(None, None)
    names = ("ompi_mpi_comm_world", "ompi_mpi_int", "ompi_mpi_op_sum")
    world, integer, plus = (ctypes.byref(ctypes.c_char.in_dll(mpi, name)) for name in names)
    # Large enough for the ways that only large messages take.
    ours, total = ((ctypes.c_int * (1 << 20))(*[start] * (1 << 20)) for start in (1, 0))
    mpi.MPI_Allreduce(ours, total, 1 << 20, integer, plus, world)
    print("ranks", set(total))
    mpi.MPI_Finalize()
"""
