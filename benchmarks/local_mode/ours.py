"""Run one job of ours in a new Python process. Usage: ours.py IMAGE SCRIPT HOSTS RANKS_PER_HOST"""

import sys
import time

from herringbone import Estimator

image, script, hosts, ranks = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
estimator = Estimator(
    script,
    image_uri=image,
    instance_type="local",
    instance_count=hosts,
    distribution={"mpi": {"enabled": True, "processes_per_host": ranks}} if hosts * ranks > 1 else None,
)
print("fit", time.time())
estimator.fit()
print("done", time.time())
