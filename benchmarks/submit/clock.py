"""The clock in each SDK's process: time from the call of fit() until CreateTrainingJob is about to be sent.

Both SDKs use a boto3 session, whose events report all requests. No code of either SDK is replaced.
"""

import json
import time


class Clock:
    """Watches a boto3 session. It must run on the peer's older Python too."""

    def __init__(self, boto):
        self.operations = []
        self.sent_at = None
        boto.events.register("before-call", self._note)
        boto.events.register("before-send.sagemaker.CreateTrainingJob", self._stop)

    def _note(self, model, **_):
        self.operations.append(f"{model.service_model.service_name}:{model.name}")

    def _stop(self, **_):
        self.sent_at = self.sent_at or time.perf_counter()

    def report(self, started):
        uploads = sum(name in ("s3:PutObject", "s3:UploadPart") for name in self.operations)
        print(json.dumps({"seconds": self.sent_at - started, "uploads": uploads, "calls": len(self.operations)}))
