"""The words that some options take."""

from __future__ import annotations

from typing import Literal

InputMode = Literal["File", "Pipe", "FastFile"]
RepositoryAccess = Literal["Platform", "Vpc"]
# The reaction to a failed attempt whose log matches a policy; docs/do/resume.md.
LogAction = Literal["restart", "exclude_host", "blame_silent_host", "fail"]
