"""Destinations of a job's metrics: `mlflow:URI`, `tensorboard:FOLDER`, `wandb:PROJECT`, `trackio:PROJECT`. Pure.

    mlflow:http://host:5000/experiment     the last part of the path is the experiment; without one, it is `Default`
    tensorboard:FOLDER                     files in FOLDER/JOB, which `tensorboard --logdir FOLDER` shows
    wandb:PROJECT, wandb:ENTITY/PROJECT    credentials and mode are those of the environment (WANDB_*)
    trackio:PROJECT                        the project in Trackio's folder on this machine

A destination is an argument of a process and a part of the stored plan, so it can hold no secret.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit, urlunsplit

from herringbone.plan.inputs import local_path
from herringbone.plan.texts import check_path, check_texts
from herringbone_contract.errors import OptionError, near_words
from herringbone_contract.masking import masked_text

# Each is the name of a Python package, and of the extra that installs it.
TRACKERS = ("mlflow", "tensorboard", "wandb", "trackio")
DEFAULT_EXPERIMENT = "Default"
MAX_DESTINATIONS = 8
_EXAMPLES = {
    "mlflow": "mlflow:http://host:5000/experiment",
    "tensorboard": "tensorboard:runs",
    "wandb": "wandb:project",
    "trackio": "trackio:project",
}
# What W&B and Trackio take as names of projects and entities.
_PROJECT = re.compile(r"[A-Za-z0-9][\w.-]{0,127}", re.ASCII)


class Destination(NamedTuple):
    """One run of a tracker that gets a job's metrics.

    `place` is MLflow's server, TensorBoard's folder or W&B's entity, else "". `project` is the experiment of MLflow, or
    the project of W&B and Trackio, else "".
    """

    tracker: str
    place: str
    project: str

    def __str__(self) -> str:
        """Return the destination as a user writes it."""
        if self.tracker == "mlflow":
            return f"mlflow:{self.place.rstrip('/')}/{_quoted(self.project)}"
        return f"{self.tracker}:{'/'.join(part for part in (self.place, self.project) if part)}"

    @property
    def file_name(self) -> str:
        """The name, without a suffix, of the files in the job's folder that belong to this destination."""
        return f"{self.tracker}-{hashlib.sha256(str(self).encode()).hexdigest()[:8]}"


def parse_destination(text: str, *, base: Path, where: str = "track") -> Destination:
    """Return the destination that a text means; a folder is relative to `base`.

    >>> parse_destination("mlflow:http://ml:5000/digits", base=Path("/"))
    Destination(tracker='mlflow', place='http://ml:5000', project='digits')
    >>> str(parse_destination("tensorboard:runs", base=Path("/home/me")))
    'tensorboard:/home/me/runs'

    Raises `OptionError`, whose message begins with `where`.
    """
    check_texts(where, text, secret=True)
    tracker, colon, rest = text.partition(":")
    if tracker not in TRACKERS or not colon:
        raise OptionError(f"{where}: {_shown(text)} names no tracker{_nearest(tracker)}; {_all_examples()}")
    if not rest:
        raise OptionError(f"{where}: {tracker}: its destination is missing; write for example {_EXAMPLES[tracker]}")
    if masked_text(rest) != rest:
        raise OptionError(
            f"{where}: {masked_text(text)}: a secret, which would be an argument of a process; give it to the tracker "
            "by its own variable, such as MLFLOW_TRACKING_TOKEN, MLFLOW_TRACKING_PASSWORD or WANDB_API_KEY"
        )
    if tracker == "mlflow":
        return _mlflow(rest, where)
    if tracker == "tensorboard":
        folder = local_path(rest, base=base)
        if folder is None:
            raise OptionError(f"{where}: {_shown(text)} is not on this machine; give a folder, as in tensorboard:runs")
        return Destination(tracker, check_path(where, str(folder)), "")
    entity, slash, project = rest.rpartition("/")
    parts = [entity, project] if slash and tracker == "wandb" else [rest]
    if not all(map(_PROJECT.fullmatch, parts)):
        more = " or wandb:entity/project" if tracker == "wandb" else ""
        raise OptionError(
            f"{where}: {_shown(text)}: a project's name has letters, digits, '.', '_' and '-'; write for example "
            f"{_EXAMPLES[tracker]}{more}"
        )
    return Destination(tracker, entity if tracker == "wandb" else "", project)


def parse_destinations(texts: Sequence[str], *, base: Path, where: str = "track") -> tuple[Destination, ...]:
    """Return the destinations of several texts. Raises `OptionError` for one that is given twice, and for too many."""
    if len(texts) > MAX_DESTINATIONS:
        raise OptionError(f"{where}: {len(texts)} destinations, the limit is {MAX_DESTINATIONS}")
    destinations = tuple(parse_destination(text, base=base, where=where) for text in texts)
    for destination in destinations:
        if destinations.count(destination) > 1:
            raise OptionError(f"{where}: {destination} is given twice; give it once")
    return destinations


def _mlflow(address: str, where: str) -> Destination:
    example = f"write for example {_EXAMPLES['mlflow']}"
    if "://" not in address:
        raise OptionError(f"{where}: mlflow:{_shown(address)} has no scheme; {example}")
    try:
        url = urlsplit(address)
        host, _ = url.hostname, url.port
    except ValueError as error:
        raise OptionError(f"{where}: mlflow:{_shown(address)} is no address: {error}; {example}") from None
    if url.scheme.lower() not in ("http", "https"):
        raise OptionError(
            f"{where}: mlflow: {url.scheme}:// is not served, only the http:// or https:// of a server; {example}"
        )
    if not host or url.query or url.fragment:
        raise OptionError(f"{where}: mlflow:{_shown(address)}: expected a host, and a path without ? and #; {example}")
    folder, _, last = url.path.rpartition("/")
    experiment = unquote(last) or DEFAULT_EXPERIMENT
    check_texts(where, experiment)
    return Destination("mlflow", urlunsplit((url.scheme.lower(), url.netloc, folder, "", "")), experiment)


def _quoted(experiment: str) -> str:
    # Only what would end the last part of the path: names stay as readable as they were typed.
    return "".join(f"%{ord(letter):02X}" if letter in "%/?#" else letter for letter in experiment)


def _shown(text: str) -> str:
    return repr(text if len(text) <= 120 else f"{text[:120]}...")


def _nearest(word: str) -> str:
    near = near_words(word.lower(), TRACKERS)
    return f", did you mean {near[0]}?" if near else ""


def _all_examples() -> str:
    return f"write {', '.join(_EXAMPLES.values())}"
