"""Run one job of `sagemaker` 3.x in its local container mode. Usage: peer_v3.py IMAGE SCRIPT"""

import sys
import tempfile
import time
from pathlib import Path

from sagemaker.train import ModelTrainer
from sagemaker.train.configs import Compute, SourceCode
from sagemaker.train.model_trainer import Mode

image, script = sys.argv[1], Path(sys.argv[2])
trainer = ModelTrainer(
    training_image=image,
    training_mode=Mode.LOCAL_CONTAINER,
    source_code=SourceCode(source_dir=str(script.parent), entry_script=script.name),
    compute=Compute(instance_type="local_cpu", instance_count=1),
    base_job_name="local-mode",
    local_container_root=tempfile.mkdtemp(),
)
print("fit", time.time())
trainer.train(wait=True)
print("done", time.time())
