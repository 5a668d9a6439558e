"""The ways in which a rank may die, and a script that dies in each."""

SCRIPT = """
    import ctypes, os, pathlib, signal, sys, time
    rank = int(os.environ["RANK"])
    pathlib.Path(os.environ["ROOT"], f"up-{rank}").touch()

    def fail(how):
        if how == "exception":
            raise ValueError("boom")
        if how == "sys.exit":
            sys.exit(3)
        if how == "os._exit":
            os._exit(5)
        if how == "sigkill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "segfault":
            ctypes.string_at(0)

    if rank == int(os.environ["BAD_RANK"]):
        world = int(os.environ["WORLD_SIZE"])
        while len(list(pathlib.Path(os.environ["ROOT"]).glob("up-*"))) < world:
            time.sleep(0.01)
        print("last words", time.time())
        fail(os.environ["HOW"])
    time.sleep(60)
"""
CODES = {"exception": 1, "sys.exit": 3, "os._exit": 5, "sigkill": 137, "segfault": 139}
