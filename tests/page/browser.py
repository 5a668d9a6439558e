"""A headless Chromium that tests and screenshots drive with its own protocol, over two pipes and without a package.

Source: https://chromedevtools.github.io/devtools-protocol/ (`--remote-debugging-pipe`: messages end with a NUL byte)
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

_SECONDS = 20.0
_NETWORK_CHANGED = "net::ERR_NETWORK_CHANGED"


def _high_pipe() -> tuple[int, int]:
    ends = os.pipe()
    high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends]
    for end in ends:
        os.close(end)
    return high[0], high[1]


class BrowserError(Exception):
    """The browser, or a script in its page, reported an error."""


class Browser:
    """One page of a headless Chromium: `with Browser() as browser: browser.open(address)`.

    `problems` has what the page's console reported: errors, and what the content security policy refused.
    """

    def __init__(self) -> None:
        program = shutil.which("chromium")
        if program is None:
            raise BrowserError("no chromium: tests/page/setup installs it")
        self._profile = tempfile.mkdtemp(prefix="hb-chromium-")
        # Above 9, so that the shell's 3 and 4 are not among them.
        (own_in, its_out), (its_in, own_out) = _high_pipe(), _high_pipe()
        flags = ["--headless=new", "--no-first-run", "--disable-gpu", "--disable-extensions", "--disable-dev-shm-usage"]
        flags += ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--mute-audio"]
        flags += ["--hide-scrollbars", "--force-color-profile=srgb", "--font-render-hinting=none"]
        # Chromium refuses to run as root with its sandbox. The pages are this project's own.
        flags += ["--no-sandbox"] if os.geteuid() == 0 else []
        command = [program, *flags, f"--user-data-dir={self._profile}", "--remote-debugging-pipe", "about:blank"]
        # The protocol's descriptors are 3 and 4 of the program.
        shell = ["bash", "-c", f'exec 3<&{its_in} 4>&{its_out}; exec "$@"', "bash", *command]
        self._process = subprocess.Popen(
            shell, pass_fds=(its_in, its_out), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        os.close(its_in)
        os.close(its_out)
        self._in, self._out = own_in, own_out
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.problems: list[str] = []
        self._network_changed = False
        try:
            self._attach()
        except BaseException:
            self.close()
            raise

    def _attach(self) -> None:
        targets = self._call("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        self._session = self._call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the browser."""
        os.close(self._out)
        os.close(self._in)
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._profile, ignore_errors=True)

    def open(self, address: str, *, until: str = "document.readyState === 'complete'") -> None:
        """Go to an address, and wait until a JavaScript expression is true.

        Chromium drops all connections when an address comes or goes on the machine, as with a network of Docker's. The
        page is loaded again then, and for no other error.
        """
        while True:
            self._network_changed = False
            try:
                answer = self._call("Page.navigate", url=address)
                if answer.get("errorText") != _NETWORK_CHANGED:
                    self.wait(until)
                    return
            except BrowserError:
                if not self._network_changed:
                    raise

    def size(self, width: int, height: int, *, scale: float = 1, mobile: bool = False) -> None:
        """Give the page's window a size in pixels of CSS."""
        self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=mobile
        )

    def scheme(self, name: str) -> None:
        """Choose the colour scheme, "light" or "dark"."""
        self._call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def run(self, script: str) -> Any:
        """Return the value of a JavaScript expression, a promise's too."""
        answer = self._call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise BrowserError(details.get("exception", {}).get("description") or details["text"])
        return answer["result"].get("value")

    def wait(self, script: str, seconds: float = _SECONDS) -> Any:
        """Wait until an expression is true, and return its value. Raises `BrowserError`."""
        deadline = time.monotonic() + seconds
        while True:
            # Between two pages there is nothing to ask.
            try:
                value = self.run(f"(value => value instanceof Node || value)({script})")
            except BrowserError as error:
                value, trouble = None, str(error)
            else:
                trouble = ""
            if value:
                return value
            if time.monotonic() > deadline:
                text = self.run("document.body ? document.body.innerText.slice(0, 600) : ''")
                raise BrowserError(f"never true: {script} {trouble}\n{self.problems}\n{text}")
            time.sleep(0.03)

    def text(self, selector: str = "body") -> str:
        """Return the text of an element."""
        value: str = self.run(f"document.querySelector({json.dumps(selector)}).innerText")
        return value

    def type(self, selector: str, text: str) -> None:
        """Put a text into a field, as somebody types it."""
        self.run(
            f"(() => {{ const field = document.querySelector({json.dumps(selector)}); field.value = {json.dumps(text)};"
            "field.dispatchEvent(new Event('input', {bubbles: true}));"
            "field.dispatchEvent(new Event('change', {bubbles: true})); })()"
        )

    def picture(self, path: Path, *, height: int | None = None, quality: int = 82) -> None:
        """Save the page's upper part as WebP, `height` pixels of it, or all of its window."""
        area = (
            {"clip": {"x": 0, "y": 0, "width": self.run("innerWidth"), "height": height, "scale": 1}} if height else {}
        )
        data = self._call(
            "Page.captureScreenshot", format="webp", quality=quality, captureBeyondViewport=bool(height), **area
        )
        path.write_bytes(base64.b64decode(data["data"]))

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        self._write(json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + _SECONDS
        while True:
            answer = self._read(deadline)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise BrowserError(f"{method}: {answer['error']['message']}")
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def _note(self, event: dict[str, Any]) -> None:
        if event.get("method") == "Runtime.exceptionThrown":
            details = event["params"]["exceptionDetails"]
            self.problems.append(details.get("exception", {}).get("description") or details["text"])
        elif event.get("method") == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
            entry = event["params"]["entry"]
            if entry["text"].endswith(_NETWORK_CHANGED):
                self._network_changed = True
                return
            self.problems.append(f"{entry['text']} {entry.get('url', '')}")

    def _write(self, message: bytes) -> None:
        while message:
            message = message[os.write(self._out, message) :]

    def _read(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
            chunk = os.read(self._in, 1 << 20) if ready else b""
            if not chunk:
                raise BrowserError("the browser does not answer")
            self._buffer += chunk
        message, _, self._buffer = self._buffer.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer
