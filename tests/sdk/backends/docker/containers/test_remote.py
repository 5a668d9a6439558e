"""A remote function in containers: its value and its error come back."""

from __future__ import annotations

import pytest

from herringbone import PyTorch, remote

pytest.importorskip("cloudpickle")
pytestmark = [pytest.mark.docker, pytest.mark.timeout(200)]


def test_a_function_runs_in_containers_of_two_hosts(home, image):
    @remote(estimator=PyTorch, instance_type="local", instance_count=2, image_uri=image, base_job_name="halves")
    def halves(count, *, of=12):
        import json
        import os

        return of // count, os.environ["SM_CURRENT_HOST"], len(json.loads(os.environ["SM_HOSTS"]))

    assert halves(4) == (3, "algo-1", 2)
    with pytest.raises(ZeroDivisionError) as caught:
        halves(0)
    assert "in halves\n    return of // count" in caught.value.__cause__.text
