"""The pod of the first of two hosts, as a literal."""

from __future__ import annotations

from typing import Any

from tests.kubernetes.planning import IMAGE

_RESTRICTED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
_FOLDER = "/herringbone/claims/claim-0/jobs/digits/hosts/@HOST@/ml"
POD: dict[str, Any] = {
    "restartPolicy": "Never",
    "automountServiceAccountToken": False,
    "enableServiceLinks": False,
    "terminationGracePeriodSeconds": 30,
    "hostname": "algo-1",
    "subdomain": "hb-digits-a1",
    "securityContext": {
        "runAsNonRoot": True,
        "runAsUser": 1000,
        "runAsGroup": 1000,
        "fsGroup": 1000,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    },
    "tolerations": [
        {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30}
        for key in ("not-ready", "unreachable")
    ],
    "containers": [
        {
            "name": "host",
            "image": IMAGE,
            "args": [
                *("train", "3600", "max_run of 3600 s is over: stopping", "g0", "algo-1"),
                *("write", f"{_FOLDER}/model", "/opt/ml/model"),
                *("write", f"{_FOLDER}/output", "/opt/ml/output"),
            ],
            "workingDir": "/opt/ml",
            "env": [
                {"name": "TRAINING_JOB_NAME", "value": "digits"},
                {"name": "HERRINGBONE_STOP_GRACE", "value": "20"},
                {"name": "HERRINGBONE_PRIVATE_FD", "value": "3"},
                {"name": "HERRINGBONE_CACHE", "value": "/tmp/herringbone"},
                {"name": "HOME", "value": "/tmp"},
                {"name": "USER", "value": "trainer"},
                {"name": "HERRINGBONE_CONTROL", "value": "tcp:algo-1.hb-digits-a1.team-a.svc:7590"},
                {"name": "JOB_UID", "value": "a-uid"},
                {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            ],
            "resources": {},
            "securityContext": _RESTRICTED,
            "volumeMounts": [
                {"name": "job", "mountPath": "/herringbone/job", "readOnly": True},
                {"name": "run", "mountPath": "/herringbone/run"},
                {"name": "tmp", "mountPath": "/tmp"},
                {"name": "ml", "mountPath": "/opt/ml"},
                {"name": "shm", "mountPath": "/dev/shm"},
                {"name": "claim-0", "mountPath": "/herringbone/claims/claim-0"},
            ],
        }
    ],
    "volumes": [
        {"name": "job", "secret": {"secretName": "hb-digits-a1", "defaultMode": 0o400}},
        {"name": "run", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
        {"name": "tmp", "emptyDir": {}},
        {"name": "ml", "emptyDir": {}},
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
        {"name": "claim-0", "persistentVolumeClaim": {"claimName": "results"}},
    ],
}
