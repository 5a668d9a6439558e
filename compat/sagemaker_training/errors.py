"""`sagemaker_training.errors`: what `entry_point.run` raises."""

from __future__ import annotations


class ClientError(Exception):
    """A mistake of the script, or of its caller."""


class ExecuteUserScriptError(ClientError):
    """The script ended with an exit code other than 0; `output` is the end of its error output, where captured."""

    def __init__(self, command: list[str], return_code: int, output: str | None = None) -> None:
        text = f'ExecuteUserScriptError:\nExitCode {return_code}\nErrorMessage "{output or ""}"\nCommand "{command}"'
        super().__init__(text)
        self.cmd, self.return_code, self.output = command, return_code, output
