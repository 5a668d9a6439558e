"""The agent's store of uploads: code and data in the work folder, by digest, and images in the container engine.

code/DIGEST.tar.gz      packed code
data/DIGEST             a channel, or the checkpoints of earlier attempts
data/.DIGEST.partial    the same, while the client still copies it
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING

from herringbone.backends.ssh.agent.messages import Message
from herringbone.system.user_paths import home_folder
from herringbone_contract.errors import EngineError
from herringbone_contract.files import try_locked, write_whole

if TYPE_CHECKING:
    from herringbone.backends.docker.image import Image
    from herringbone.engine.client import Engine, Upload
    from herringbone.records.home import Home


def code_folder(home: Home) -> Path:
    """Return the folder of packed code, which is named by digest."""
    return home.path / "code"


def data_folder(home: Home) -> Path:
    """Return the folder of data, which is named by digest."""
    return home.path / "data"


class FileStore:
    """Code and data below `home`, the work folder."""

    def __init__(self, home: Home) -> None:
        self._code, self._data = code_folder(home), data_folder(home)
        # By digest: the lock of an upload, which the kernel frees with this process.
        self._locks: dict[str, FileIO | None] = {}
        # Uploads that another connection sends at this moment, too.
        self._doubled: set[str] = set()

    @property
    def verbs(self) -> dict[str, Callable[[Message, bytes], Message]]:
        return {"missing": self._missing, "code": self._add_code, "keep": self._complete_data}

    def prepare(self, digests: list[str]) -> dict[str, str]:
        """Make a folder for each data digest that is not in the store; return those folders by digest."""
        for folder in (self._code, self._data):
            folder.mkdir(exist_ok=True)
        missing = [digest for digest in digests if not (self._data / digest).is_dir()]
        for digest in missing:
            self._lock_partial(digest)
            # An earlier upload that broke leaves its files here, and rsync copies only the difference.
            self._partial(digest).mkdir(exist_ok=True)
        return {digest: str(self._partial(digest)) for digest in missing}

    def has_code(self, digest: str) -> bool:
        """Report whether the packed code is in the store."""
        return self._archive(digest).is_file()

    def add_code(self, digest: str, content: bytes) -> None:
        """Store packed code."""
        # Jobs that share the machine may send the same code at once. A file with the digest's name is used unseen.
        write_whole(self._archive(digest), content, synced=True)

    def complete(self, digest: str) -> None:
        """Give data that has arrived completely its final name."""
        try:
            self._partial(digest).replace(self._data / digest)
        except OSError:
            # Another job has sent the same data meanwhile.
            if not (self._data / digest).is_dir():
                raise
            shutil.rmtree(self._partial(digest), ignore_errors=True)

    def _missing(self, message: Message, _: bytes) -> Message:
        return {"code": not self.has_code(message["code"]), "data": self.prepare(message["data"])}

    def _add_code(self, message: Message, payload: bytes) -> Message:
        self.add_code(message["digest"], payload)
        return {}

    def _complete_data(self, message: Message, _: bytes) -> Message:
        # The client's rsync has copied the data past this process, and it alone knows when rsync has ended.
        self.complete(message["digest"])
        return {}

    def _archive(self, digest: str) -> Path:
        return self._code / f"{digest}.tar.gz"

    def _partial(self, digest: str) -> Path:
        return self._data / f".{digest}.{f'{os.getpid()}.' * (digest in self._doubled)}partial"

    def _lock_partial(self, digest: str) -> None:
        """Use a folder of our own where another connection sends the same data now: its end would rename the folder."""
        if digest in self._locks:
            return
        self._locks[digest] = try_locked(self._data / f".{digest}.lock")
        if self._locks[digest] is None:
            self._doubled.add(digest)


def machine_engine() -> Engine:
    """Return this machine's engine. Raises `EngineError` when no engine answers, or it belongs to another machine."""
    from herringbone.engine.locate import find_engine

    engine = find_engine(os.environ, home_folder())
    if not engine.is_local:
        raise EngineError(f"its container engine is elsewhere, at {engine.address}; a machine needs one of its own")
    return engine


class ImageStore:
    """The images in the machine's engine; `find` finds the engine."""

    def __init__(self, find: Callable[[], Engine] = machine_engine) -> None:
        self._find = find
        self._upload: Upload | None = None

    @property
    def verbs(self) -> dict[str, Callable[[Message, bytes], Message]]:
        return {"image": self._find_image, "load": self._load_image}

    def find(self, name: str) -> Image | None:
        """Return the image with a name or an id; None when the engine does not have it."""
        # Imported here: agents of jobs that run as processes never need the engine's modules.
        from herringbone.backends.docker.image import find_image

        return find_image(self._find(), name)

    def feed(self, piece: bytes) -> None:
        """Pass the next piece of an image on to the engine."""
        if self._upload is None:
            from herringbone.engine.client import Upload

            self._upload = Upload(self._find(), "POST", "/images/load", {"quiet": True})
        self._upload.feed(piece)

    def finish(self, image_id: str) -> None:
        """End the image. Raises `EngineError` when the engine does not have `image_id` afterwards."""
        assert self._upload is not None
        upload, self._upload = self._upload, None
        answer = upload.finish()
        # The engine reports errors inside a response with status 200, so ask for the image itself.
        if self.find(image_id) is None:
            raise EngineError(f"the container engine did not load the image that was sent: {answer.strip()[-500:]}")

    def _find_image(self, message: Message, _: bytes) -> Message:
        image = self.find(message["name"])
        return {"id": None} if image is None else {"id": image.id, "is_ours": image.is_ours}

    def _load_image(self, message: Message, payload: bytes) -> Message:
        # A message without a payload ends the image: its pieces are never empty.
        if payload:
            self.feed(payload)
        else:
            self.finish(message["wanted"])
        return {}
