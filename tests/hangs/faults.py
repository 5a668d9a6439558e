"""A script that trains, and does one thing at its third step: one of twelve hangs, or something long that is none.

A hang stands still only in an attempt that began at step 0. What is innocent lasts as many seconds as LASTS says.
"""

SCRIPT = """
import ctypes, http.client, http.server, json, multiprocessing, os, pdb, re, signal, socket, struct, subprocess, sys
import threading, time, zlib
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

from herringbone_contract.events.script import log_metrics

LASTS = float(os.environ["LASTS"])
CHECKPOINTS = Path(os.environ["SM_CHECKPOINT_DIR"])
dist.init_process_group("gloo")
rank = dist.get_rank()
is_odd = rank == 1


def forever():
    time.sleep(1e6)


# Hangs of rank 1.

def busy():
    while True:
        pass


def lock():
    own = threading.Lock()
    own.acquire()
    own.acquire()


def gil():
    # Compiled code that keeps the interpreter's lock: an expression that backtracks for years.
    re.fullmatch("(a|aa)+b", "a" * 200)


def fork():
    held = threading.Lock()
    threading.Thread(target=lambda: (held.acquire(), forever()), daemon=True).start()
    time.sleep(0.2)
    child = multiprocessing.get_context("fork").Process(target=held.acquire)
    child.start()
    child.join()


def breakpoint_():
    # A terminal that nobody types into.
    terminal, other = os.openpty()
    sys.stdin = os.fdopen(other)
    pdb.Pdb(stdin=sys.stdin, stdout=open(os.devnull, "w")).set_trace()
    print("went on")


def fuse():
    # A file system whose server does not answer, not even to the first message.
    import tempfile
    place, device = tempfile.mkdtemp(), os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
    if ctypes.CDLL(None, use_errno=True).mount(b"stuck", place.encode(), b"fuse", 0, options):
        raise OSError(ctypes.get_errno(), "mount")
    os.listdir(place)


def frozen():
    # Not even SIGKILL ends it.
    group = Path("/sys/fs/cgroup/freezer", os.environ["FREEZER"])
    group.mkdir(exist_ok=True)
    (group / "tasks").write_text(str(os.getpid()))
    (group / "freezer.state").write_text("FROZEN")
    time.sleep(1)


def collectives():
    dist.all_reduce(torch.ones(3))
    dist.broadcast(torch.ones(3), 0)


def stopped():
    os.kill(os.getpid(), signal.SIGSTOP)


class Stuck(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        forever()


def loader():
    for _ in DataLoader(Stuck(), num_workers=1):
        pass


def pipe():
    # A program that nobody answers.
    subprocess.run(["cat"], stdin=os.openpty()[1])


def skipped():
    forever()


HANGS = (busy, lock, gil, fork, breakpoint_, fuse, frozen, collectives, stopped, loader, pipe, skipped)


# What is no hang. Only rank 0 does it, where the others wait.

def seconds():
    end = time.monotonic() + LASTS
    while time.monotonic() < end:
        yield


def evaluates():
    for _ in seconds():
        torch.randn(300, 300) @ torch.randn(300, 300)


def saves():
    with open(CHECKPOINTS / "large", "wb") as file:
        for _ in seconds():
            file.write(os.urandom(1 << 19))
            os.fsync(file)
            file.seek(0)
            time.sleep(0.1)


class Slow(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        for _ in seconds():
            self.wfile.write(bytes(20_000))
            time.sleep(0.1)

    def log_message(self, *_):
        pass


def served():
    server = http.server.HTTPServer(("127.0.0.1", 0), Slow)
    if not os.fork():
        server.handle_request()
        os._exit(0)
    connection = http.client.HTTPConnection(*server.server_address)
    connection.request("GET", "/")
    return connection.getresponse()


def downloads():
    while served().read(65_536):
        return


def compiles():
    program = f"import time\\nend = time.monotonic() + {LASTS}\\nwhile time.monotonic() < end: pass"
    subprocess.run([sys.executable, "-c", program])


class Fed(Dataset):
    def __len__(self):
        return 1

    def __getitem__(self, index):
        return len(served().read())


def loads():
    for _ in DataLoader(Fed(), num_workers=1):
        pass


def prints():
    for _ in seconds():
        print("still here", flush=True)
        time.sleep(1)


def logs_metrics():
    for _ in seconds():
        log_metrics({"x": 1.0})
        time.sleep(1)


def one_call():
    # A single call into C, at one line of Python all the time.
    matrix, end = torch.randn(400, 400), time.monotonic() + LASTS
    while time.monotonic() < end:
        torch.linalg.matrix_power(matrix, 2_000)


def compresses():
    data = os.urandom(1 << 24)
    for _ in seconds():
        zlib.compress(data, 9)


def reads():
    path = CHECKPOINTS / "data"
    path.write_bytes(bytes(1 << 20))
    for _ in seconds():
        path.read_bytes()
        time.sleep(0.1)


def collects():
    # All ranks: silent steps.
    end = torch.tensor(time.monotonic() + LASTS)
    while True:
        going = torch.tensor(float(rank == 0 and time.monotonic() < end))
        dist.all_reduce(going)
        if not going:
            return
        time.sleep(0.2)


def talks():
    # Two ranks pass data without a collective operation.
    for _ in range(int(LASTS * 5)):
        if rank == 0:
            dist.send(torch.ones(5_000), 1)
        elif rank == 1:
            dist.recv(torch.ones(5_000), 0)
        time.sleep(0.2)


INNOCENTS = (
    evaluates, saves, downloads, compiles, loads, prints, logs_metrics, one_call, compresses, reads, collects, talks
)

step, weights = 0, [0.0] * 4
saved = CHECKPOINTS / "state.json"
if rank == 0 and saved.exists():
    step, weights = json.loads(saved.read_text())
begun = torch.tensor([float(step), *weights])
dist.broadcast(begun, 0)
step, weights = int(begun[0]), begun[1:].clone()
is_fresh = step == 0
name = os.environ["FAULT"]
while step < 6:
    gradients = torch.full((4,), 0.1 * step + rank)
    dist.all_reduce(gradients)
    weights += gradients * torch.arange(1.0, 5.0)
    step += 1
    if rank == 0:
        saved.with_suffix(".part").write_text(json.dumps([step, weights.tolist()]))
        saved.with_suffix(".part").replace(saved)
    dist.barrier()
    if step == 3 and name and is_fresh:
        act = globals()[name]
        if rank == 0:
            print("planted", name, flush=True)
        if act in HANGS:
            if is_odd:
                act()
        elif rank == 0 or act in (collects, talks):
            act()
if rank == 0:
    print("weights", json.dumps(weights.tolist()), flush=True)
"""

HANGS = (
    *("busy", "lock", "gil", "fork", "breakpoint_", "fuse", "frozen", "collectives", "stopped", "loader", "pipe"),
    "skipped",
)
INNOCENTS = (
    *("evaluates", "saves", "downloads", "compiles", "loads", "prints", "logs_metrics", "one_call", "compresses"),
    *("reads", "collects", "talks"),
)
