"""Run scripts of this folder in this process, one after the other: a process takes seconds to import transformers.

`--scripts` is a file with a JSON object of each script's arguments.
"""

import argparse
import json
import runpy
import sys
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--scripts", type=Path)
for name, arguments in json.loads(parser.parse_args().scripts.read_text()).items():
    sys.argv = [name, *arguments]
    runpy.run_path(str(Path(__file__).with_name(name)), run_name="__main__")
