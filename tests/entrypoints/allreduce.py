"""A script whose ranks count each other through Open MPI's library in LIBMPI, without mpi4py."""

ALLREDUCE = """
    import ctypes, os
    mpi = ctypes.CDLL(os.environ["LIBMPI"], mode=ctypes.RTLD_GLOBAL)
    mpi.MPI_Init(None, None)
    names = ("ompi_mpi_comm_world", "ompi_mpi_int", "ompi_mpi_op_sum")
    world, integer, plus = (ctypes.byref(ctypes.c_char.in_dll(mpi, name)) for name in names)
    # Large enough for the transports that only large messages use.
    ours, total = ((ctypes.c_int * (1 << 20))(*[start] * (1 << 20)) for start in (1, 0))
    mpi.MPI_Allreduce(ours, total, 1 << 20, integer, plus, world)
    print("ranks", set(total))
    mpi.MPI_Finalize()
"""
