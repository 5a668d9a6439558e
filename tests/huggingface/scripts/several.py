"""Run scripts of this folder in this process, one after the other: a process takes seconds to import transformers.

`--scripts` is a file with a JSON object of each script's arguments. The job's other arguments go to each of them, too.
"""

import argparse
import json
import runpy
import sys
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--scripts", type=Path)
options, added = parser.parse_known_args()
for name, arguments in json.loads(options.scripts.read_text()).items():
    sys.argv = [name, *arguments, *added]
    runpy.run_path(str(Path(__file__).with_name(name)), run_name="__main__")
