"""A headless Chromium, driven over its DevTools socket."""

import contextlib
import json
import os
import shutil
import subprocess
import time
from pathlib import Path

from websockets.sync.client import connect

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Page:
    """One tab."""

    def __init__(self, socket):
        self._socket, self._last, self.log = socket, 0, []
        for domain in ("Page", "Runtime", "Log"):
            self.send(f"{domain}.enable")

    def send(self, method, **params):
        self._last += 1
        self._socket.send(json.dumps({"id": self._last, "method": method, "params": params}))
        while (message := json.loads(self._socket.recv(timeout=60))).get("id") != self._last:
            if message["method"] in ("Log.entryAdded", "Runtime.exceptionThrown"):
                self.log.append(json.dumps(message["params"]))
        assert "error" not in message, message
        return message["result"]

    def run(self, code):
        """The value of JavaScript, awaited."""
        found = self.send("Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def open(self, url):
        self.send("Page.navigate", url=url)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    def right_edge(self, width):
        """How far to the right anything of the page reaches in a window of this width."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        edges = "[...document.querySelectorAll('body *')].map(part => part.getBoundingClientRect().right)"
        edge = self.run(f"Math.max(...{edges})")
        self.send("Emulation.clearDeviceMetricsOverride")
        return edge

    def until(self, condition):
        end = time.monotonic() + 60
        while not self.run(f"Boolean({condition})"):
            assert time.monotonic() < end, condition
            time.sleep(0.05)


@contextlib.contextmanager
def browsing(profile: Path):
    """A tab of a browser of its own."""
    command = [
        *(str(CHROMIUM), "--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
        *("--remote-debugging-port=0", f"--user-data-dir={profile}", "--window-size=1000,900"),
        *(["--no-sandbox"] if os.geteuid() == 0 else []),
        "about:blank",
    ]
    with (profile.parent / "chromium.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        socket = profile / "DevToolsActivePort"
        end = time.monotonic() + 60
        while not (socket.exists() and len(socket.read_text().split()) == 2):
            assert process.poll() is None, log.name
            assert time.monotonic() < end
            time.sleep(0.05)
        port, path = socket.read_text().split()
        with connect(f"ws://127.0.0.1:{port}{path}", max_size=None) as browser:
            browser.send(json.dumps({"id": 0, "method": "Target.createTarget", "params": {"url": "about:blank"}}))
            target = json.loads(browser.recv(timeout=60))["result"]["targetId"]
            with connect(f"ws://127.0.0.1:{port}/devtools/page/{target}", max_size=None) as tab:
                yield Page(tab)
    finally:
        process.terminate()
        process.wait(30)
