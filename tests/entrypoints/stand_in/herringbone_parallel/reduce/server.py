"""Replace the library's server: keep its contract, and answer only whether a token is right."""

import json
import os
import signal
import socket
import sys
import time

mood = os.environ.get("STAND_IN", "")
if mood == "broken":
    raise ImportError("no numpy here")
with open(os.environ["HERRINGBONE_REDUCE_TOKEN_FILE"]) as file:
    token = file.read()
listener = socket.create_server((os.environ["HERRINGBONE_REDUCE_LISTEN"], 0))


def leave(*_):
    print("stand-in leaves", flush=True)
    sys.exit(0)


signal.signal(signal.SIGTERM, leave)
line = "no JSON" if mood == "odd" else json.dumps({"port": listener.getsockname()[1]})
os.write(int(os.environ["HERRINGBONE_REDUCE_READY_FD"]), line.encode() + b"\n")
print("stand-in serves", os.environ["HERRINGBONE_REDUCE_HOST"], os.environ.get("HERRINGBONE_REDUCE_RAILS"), flush=True)
if mood == "brief":
    sys.exit(0)
while mood == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(1)
while True:
    connection, _ = listener.accept()
    with connection:
        received = connection.recv(1000).decode()
        if received == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        connection.sendall(b"welcome" if received == token else b"refused")
