# SPDX-License-Identifier: MIT
"""A page as a real browser shows it: headless Chromium, spoken to over its own pipes, with no package between."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from select import select
from typing import Any

LIMIT = 240.0  # seconds for an answer
NAMES = ("chromium", "chromium-browser", "google-chrome")


def chromium() -> str | None:
    """Where it is installed."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One page of Chromium, by the DevTools protocol: a message is JSON that ends with a zero byte."""

    def __init__(self, into: int, out: int) -> None:
        self._into, self._out, self._buffer, self._number = into, out, b"", 0
        self.events: list[dict[str, Any]] = []
        self._session = ""
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The answer; events that come before it are kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._into, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            self.events.append(answer)
        assert "error" not in answer, (method, answer["error"])
        return answer["result"]

    def open(self, page: Path, width: int) -> None:
        """At so many CSS pixels, until all is loaded."""
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=width < 600)
        self.events.clear()
        self.ask("Page.navigate", url=page.resolve().as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())

    def value(self, expression: str) -> Any:
        """Of JavaScript, evaluated on the page whatever the page itself may run."""
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def requested(self) -> list[str]:
        return [event["params"]["request"]["url"] for event in self._all("Network.requestWillBeSent")]

    def complaints(self) -> list[dict[str, Any]]:
        """What the console, the log and failed requests say."""
        kinds = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded", "Network.loadingFailed")
        return [event["params"] for kind in kinds for event in self._all(kind)]

    def _all(self, method: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event.get("method") == method]

    def _next(self) -> dict[str, Any]:
        until = time.monotonic() + LIMIT
        while b"\0" not in self._buffer:
            ready, _, _ = select([self._out], [], [], max(0.0, until - time.monotonic()))
            assert ready, f"Chromium said nothing for {LIMIT:g} s"
            part = os.read(self._out, 1 << 16)
            assert part, "Chromium has ended"
            self._buffer += part
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)


@contextmanager
def browser(program: str, folder: Path) -> Iterator[Browser]:
    """Its profile lies in `folder`. It reads from file descriptor 3 and writes to 4, which is where a shell puts them."""
    flags = ["--headless=new", "--remote-debugging-pipe", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    flags += ["--disable-background-networking", f"--user-data-dir={folder}"]
    if os.geteuid() == 0:
        flags.append("--no-sandbox")
    (theirs, into), (out, from_them) = os.pipe(), os.pipe()
    words = ["bash", "-c", f'exec "$@" 3<&{theirs} 4>&{from_them}', "bash", program, *flags]
    with (folder / "errors").open("wb") as errors:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors, pass_fds=(theirs, from_them), start_new_session=True
        )
    try:
        for descriptor in (theirs, from_them):
            os.close(descriptor)
        yield Browser(into, out)
    finally:
        os.close(into)  # then it ends by itself
        os.close(out)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
