"""Replace TensorFlow in a parameter server: print the task, and do as `STAND_IN` says."""

import json
import os
import sys
import time
from types import SimpleNamespace

MOOD = os.environ.get("STAND_IN", "")
if MOOD == "absent":
    raise ModuleNotFoundError("No module named 'tensorflow'")


class TFConfigClusterResolver:
    def __init__(self):
        config = json.loads(os.environ["TF_CONFIG"])
        self.task_type, self.task_id = config["task"]["type"], config["task"]["index"]
        self._cluster = config["cluster"]

    def cluster_spec(self):
        return self._cluster


class Server:
    def __init__(self, cluster, *, job_name, task_index, protocol):
        where = cluster[job_name][task_index].partition(":")[0]
        print("serves", job_name, task_index, "of", sorted(cluster), "at", where, protocol, flush=True)
        open(os.environ["ROOT"] + f"/serves-{task_index}", "w").close()

    def join(self):
        if MOOD == "dies":
            sys.exit("out of memory, say")
        time.sleep(60)


cluster_resolver = SimpleNamespace(TFConfigClusterResolver=TFConfigClusterResolver)
distribute = SimpleNamespace(cluster_resolver=cluster_resolver, Server=Server)
