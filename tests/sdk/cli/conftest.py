"""The fixture that runs a command in this process."""

import pytest

from herringbone.cli.__main__ import main


@pytest.fixture
def herringbone(capsys):
    """Runs a command; returns its exit code, standard output and standard error."""

    def run(*arguments):
        code = main(arguments)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run
