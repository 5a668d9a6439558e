"""`sagemaker_training.errors`: errors of the user's code, of its installation, and of its call."""

from __future__ import annotations

from collections.abc import Sequence


class ClientError(Exception):
    """A mistake of the script, or of its caller."""


class _ProcessError(ClientError):
    """A command ended with an exit code other than 0; `output` is its error output, where captured."""

    def __init__(self, command: Sequence[str], return_code: int, output: str | None = None) -> None:
        name = type(self).__name__
        super().__init__(
            f'{name}:\nExitCode {return_code}\nErrorMessage "{output or ""}"\nCommand "{" ".join(command)}"'
        )
        self.cmd, self.return_code, self.output = list(command), return_code, output


class ExecuteUserScriptError(_ProcessError):
    """The script ended with an exit code other than 0."""


class InstallModuleError(_ProcessError):
    """pip could not install the user's own package."""


class InstallRequirementsError(_ProcessError):
    """pip could not install the packages of requirements.txt."""


class ImportModuleError(ClientError):
    """The user's module raised while it was imported; the cause is what it raised."""


class ChannelDoesNotExistError(Exception):
    """The job has no channel of that name."""

    def __init__(self, channel_name: str) -> None:
        super().__init__(f"Channel {channel_name} is not a valid channel")
