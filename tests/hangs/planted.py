"""A script with six hangs, one after the other, and the line of the log that must name each.

Rank 1 of three is the odd one. It stays where it is until a file of the hang's name exists in the folder SHARED, and
then the job continues, except after the last hang.
"""

SCRIPT = """
import ctypes, os, signal, socket, struct, subprocess, sys, threading, time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

from herringbone_contract.events.emit import emit

SHARED = Path(os.environ["SHARED"])
SO_ATTACH_FILTER, SO_DETACH_FILTER = 26, 27
dist.init_process_group("gloo")
rank = dist.get_rank()
is_odd = rank == 1


def wait_for(name):
    while not (SHARED / name).exists():
        time.sleep(0.2)


def meet():
    dist.all_reduce(torch.ones(4))


def skip():
    if is_odd:
        wait_for("skip")
    meet()


def lock():
    own = threading.Lock()
    own.acquire()
    if is_odd:
        threading.Thread(target=lambda: (wait_for("lock"), own.release())).start()
        own.acquire()
    meet()


class Data(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        if index == 2:
            wait_for("loader")
        return index


def loader():
    if is_odd:
        for _ in DataLoader(Data(), num_workers=1):
            pass
    meet()


def stop():
    if is_odd:
        program = "import os, signal, sys, time\\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.1)\\n"
        program += "os.kill(os.getppid(), signal.SIGCONT)"
        subprocess.Popen([sys.executable, "-S", "-c", program, str(SHARED / "stop")])
        os.kill(os.getpid(), signal.SIGSTOP)
    meet()


def connections():
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                connection = socket.socket(fileno=os.dup(int(name)))
                ports = {connection.getpeername()[1], connection.getsockname()[1]}
                if int(os.environ["MASTER_PORT"]) not in ports:
                    yield connection
        except (OSError, IndexError, TypeError):
            pass


def cut():
    if is_odd:
        # A packet filter that drops everything: bytes of the peers, and their confirmations of ours.
        program = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0))
        filter = struct.pack("HL", 1, ctypes.addressof(program))
        cut_off = list(connections())
        for connection in cut_off:
            connection.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, filter)

        def heal():
            wait_for("cut")
            for connection in cut_off:
                connection.setsockopt(socket.SOL_SOCKET, SO_DETACH_FILTER, 0)

        threading.Thread(target=heal, daemon=True).start()
    meet()


def shape():
    dist.all_reduce(torch.ones(3 if is_odd else 4))
    if is_odd:
        wait_for("never")


emit("steps", count=25, since=time.time(), seconds=[0.2 if is_odd else 0.1] * 25)
for name in os.environ["HANGS"].split(","):
    dist.barrier()
    if rank == 0:
        print("planted", name, flush=True)
    globals()[name]()
"""

# Each hang -> a pattern for the rest of the line `hang: no line, metric or collective of any rank for N s: `.
MISSING = r"it has not entered collective operation \d+, in which others wait; "
OTHERS = r"ranks 0, 2 at train\.py:\d+ in meet: dist\.all_reduce\(torch\.ones\(4\)\)"
LINES = {
    "skip": rf"rank 1 \(algo-2\) at train\.py:\d+ in wait_for: .*: {MISSING}{OTHERS}",
    "lock": rf"rank 1 \(algo-2\) at train\.py:\d+ in lock: own\.acquire\(\): {MISSING}{OTHERS}",
    "loader": rf"rank 1 \(algo-2\) at train\.py:\d+ in wait_for: .* \(data loader's worker\): {MISSING}{OTHERS}",
    "stop": rf"rank 1 \(algo-2\) at stopped by a signal: it does not run; {OTHERS}",
    "cut": rf"rank 1 \(algo-2\) at train\.py:\d+ in meet: .*: no data passes between it and the others; {OTHERS}",
    "shape": r"rank 1 \(algo-2\) at train\.py:\d+ in wait_for: .*: it entered another operation \d+ than the others; "
    r"ranks 0, 2 at train\.py:\d+ in shape: dist\.all_reduce\(torch\.ones\(3 if is_odd else 4\)\)",
}
