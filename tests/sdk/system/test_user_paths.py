"""Paths of the user: the home folder."""

import os
import subprocess
import sys

import pytest


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_user_without_a_home_folder_is_told_what_to_set(tmp_path):
    def listed(**variables):
        # A user of no entry in /etc/passwd, who may read the interpreter's folder all the same.
        words = ["--reuid", "12345", "--regid", "12345", "--clear-groups", "--inh-caps", "+dac_read_search"]
        command = ["setpriv", *words, "--ambient-caps", "+dac_read_search", sys.executable, "-m", "herringbone", "ls"]
        environment = {"PATH": os.environ["PATH"], **variables}
        return subprocess.run(command, env=environment, capture_output=True, text=True, cwd="/", timeout=60)

    tmp_path.chmod(0o777)
    assert "user 12345 has no home folder: set HOME, or set HERRINGBONE_HOME" in listed().stderr
    assert listed(HERRINGBONE_HOME=str(tmp_path / "jobs")).returncode == 0
