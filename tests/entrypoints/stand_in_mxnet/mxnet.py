"""Replace MXNet in a parameter server or its scheduler: serve inside the import, as `STAND_IN` says."""

import os
import sys
import time

MOOD = os.environ.get("STAND_IN", "")
ROLE, ROOT = os.environ["DMLC_ROLE"], os.environ["ROOT"]
if MOOD == "absent":
    raise ModuleNotFoundError("No module named 'mxnet'")
if MOOD == "numpy":
    raise AttributeError("module 'numpy' has no attribute 'bool'")
if MOOD != "without":
    variables = {name: value for name, value in sorted(os.environ.items()) if name.startswith("DMLC_")}
    print("serves", *(f"{name}={value}" for name, value in variables.items()), flush=True)
    open(f"{ROOT}/{ROLE}-{os.getpid()}", "w").close()
    if f"{ROLE} dies" == MOOD:
        sys.exit("out of memory, say")
    while not os.path.exists(f"{ROOT}/leave"):
        time.sleep(0.01)
    sys.exit()
