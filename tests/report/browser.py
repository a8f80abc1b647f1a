"""Chromium over its debugging pipe: what a page asks for, what it complains of, how it is laid out.

Nothing but the standard library: the pipe carries JSON messages that end in a zero byte.
"""

import base64
import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
PROGRAM = next((path for name in NAMES if (path := shutil.which(name))), None)
MOVE_PIPES = 'exec 3<&"$1" 4>&"$2"; shift 2; exec "$@"'


class Browser:
    """One tab."""

    def __init__(self, write: int, read: int) -> None:
        self._write, self._read = write, read
        self._waiting, self._number, self._session = b"", 0, ""
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Network", "Log", "Runtime"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Sends a command and returns its result; events on the way are kept."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            got = self._next()
            if got.get("id") == self._number:
                assert "error" not in got, got
                return dict(got["result"])
            self.events.append(got)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._waiting:
            chunk = os.read(self._read, 1 << 20)
            assert chunk, "the browser has ended"
            self._waiting += chunk
        text, _, self._waiting = self._waiting.partition(b"\0")
        return dict(json.loads(text))

    def open(self, path: Path, *, width: int = 1000, dark: bool = False) -> None:
        """Shows a file and waits until it is loaded."""
        self.events.clear()
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=path.as_uri())
        while not any(e.get("method") == "Page.loadEventFired" for e in self.events):
            self.events.append(self._next())

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"][
            "value"
        ]

    def requests(self) -> list[str]:
        """Addresses that the page asked for, itself included."""
        sent = [e for e in self.events if e.get("method") == "Network.requestWillBeSent"]
        return [e["params"]["request"]["url"] for e in sent]

    def complaints(self) -> list[str]:
        """What stands in the console."""
        told = ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled")
        return [json.dumps(e["params"]) for e in self.events if e.get("method") in told]

    def end(self) -> None:
        """Closes the browser with all its processes."""
        self._session = ""
        self.call("Browser.close")

    def picture(self, path: Path) -> None:
        """Saves the whole page as a PNG."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(shot["data"]))


def _pipe() -> tuple[int, int]:
    """A pipe whose ends are not among the numbers that the browser takes."""
    ends = os.pipe()
    high = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends)
    for end in ends:
        os.close(end)
    return high[0], high[1]


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """A browser of its own, without network, that ends with the block."""
    assert PROGRAM is not None
    (for_browser, write), (read, from_browser) = _pipe(), _pipe()
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    options += ["--remote-debugging-pipe", "--proxy-server=127.0.0.1:9", "--no-first-run"]
    # The browser looks for its pipes at 3 and 4.
    command = ["bash", "-c", MOVE_PIPES, "bash", str(for_browser), str(from_browser)]
    process = subprocess.Popen(
        [*command, PROGRAM, *options, f"--user-data-dir={profile}"],
        pass_fds=(for_browser, from_browser),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(for_browser)
    os.close(from_browser)
    try:
        tab = Browser(write, read)
        yield tab
        tab.end()
        process.wait(timeout=20)
    finally:
        process.kill()
        process.wait()
        os.close(write)
        os.close(read)
