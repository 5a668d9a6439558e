"""Facts that trackers show next to metrics."""

from herringbone.trackers.facts import MAX_TAGS, facts_of

DESCRIPTION = {
    "TrainingJobName": "digits-1",
    "TrainingJobStatus": "Failed",
    "SecondaryStatus": "Failed",
    "FailureReason": "rank 1 on algo-1: KeyError: 'x'\n  at train.py:3",
    "AlgorithmSpecification": {"TrainingImage": "mine:1"},
    "HyperParameters": {"lr": "0.1", "hub_token": '"hf_abc"', "sagemaker_program": '"train.py"', "name": '"a"'},
    "ResourceConfig": {"InstanceType": "ssh:hosts.yaml", "InstanceCount": 2},
    "TrainingEndTime": "1970-01-01T00:03:20+00:00",
    "Tags": [{"Key": "team", "Value": "a\x1b[2J"}, {"Key": "herringbone.state", "Value": "Completed"}],
    "Herringbone": {
        "Code": {"Commit": "5f70bf18", "Dirty": True},
        "Versions": {"torch": "2.13"},
        "ImageId": "sha256:1",
    },
}


def test_facts_of_a_failed_job():
    facts = facts_of(DESCRIPTION, backend="ssh", created=90.0)
    assert facts.tags == {
        "herringbone.job": "digits-1",
        "herringbone.backend": "ssh",
        "herringbone.instance_type": "ssh:hosts.yaml",
        "herringbone.instance_count": "2",
        "herringbone.image": "mine:1",
        "herringbone.image_id": "sha256:1",
        "herringbone.commit": "5f70bf18-dirty",
        "herringbone.version.torch": "2.13",
        "herringbone.state": "Failed",
        "herringbone.failure": "rank 1 on algo-1: KeyError: 'x'",
        "team": "a\\x1b[2J",
    }
    assert facts.hyperparameters == {"lr": "0.1", "hub_token": '"******"', "name": '"a"'}
    assert facts.values == {"lr": 0.1, "hub_token": "******", "name": "a"}
    assert (facts.ended, facts.status, facts.completed) == (200.0, "Failed", False)


def test_facts_of_a_job_of_which_little_is_known():
    facts = facts_of({"TrainingJobName": "a", "TrainingJobStatus": "InProgress"}, backend="slurm", created=1.0)
    assert (facts.ended, facts.hyperparameters) == (None, {})


def test_texts_are_bounded_and_without_secrets():
    tags = [{"Key": f"k{number}", "Value": "postgres://me:hunter2@db " + "x" * 5000} for number in range(200)]
    facts = facts_of({**DESCRIPTION, "Tags": tags}, backend="ssh", created=1.0)
    assert len(facts.tags) == MAX_TAGS
    assert max(map(len, facts.tags.values())) <= 500
    assert "hunter2" not in str(facts.tags)
