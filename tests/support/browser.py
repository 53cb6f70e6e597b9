"""A headless Chromium that tests steer: DevTools messages over two pipes, so nothing has to be installed beside the browser."""

import base64
import json
import os
import select
import shutil
import time
from contextlib import contextmanager
from tempfile import TemporaryDirectory

import pytest

PATIENCE = 60.0
"""Seconds after which a browser that does not answer is given up."""
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--in-process-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--remote-debugging-pipe",
)


def chromium():
    """The program, or None."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def required_chromium():
    """The program; where it is missing the test is skipped, unless everything is required."""
    program = chromium()
    if program is None:
        reason = "no Chromium: install the package chromium to run the tests of the report in a browser"
        if os.environ.get("LINGER_REQUIRE_SHARED") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    return program


class Browser:
    """One browser with one page."""

    def __init__(self, program, folder):
        # Chromium reads commands from descriptor 3 and writes answers to 4, each message ended by a zero byte
        theirs_in, self.to = os.pipe()
        self.back, theirs_out = os.pipe()
        quiet = os.open(os.devnull, os.O_RDWR)
        actions = [(os.POSIX_SPAWN_DUP2, quiet, 1), (os.POSIX_SPAWN_DUP2, quiet, 2)]
        # through high numbers, because one of the pipes may itself be 3 or 4
        actions += [(os.POSIX_SPAWN_DUP2, theirs_in, 103), (os.POSIX_SPAWN_DUP2, theirs_out, 104)]
        actions += [(os.POSIX_SPAWN_DUP2, 103, 3), (os.POSIX_SPAWN_DUP2, 104, 4)]
        arguments = [program, *FLAGS, f"--user-data-dir={folder}", "about:blank"]
        self.process = os.posix_spawn(program, arguments, {**os.environ, "HOME": str(folder)}, file_actions=actions)
        for descriptor in (theirs_in, theirs_out, quiet):
            os.close(descriptor)
        self.rest, self.number, self.session = b"", 0, None
        self.events = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def close(self):
        """End the browser."""
        self.session = None
        self.send("Browser.close")
        os.waitpid(self.process, 0)
        os.close(self.to)
        os.close(self.back)

    def send(self, method, **parameters):
        """One command and its answer; events on the way are kept."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        content = json.dumps(message).encode() + b"\0"
        while content:
            content = content[os.write(self.to, content) :]
        answer = self._until(lambda entry: entry.get("id") == self.number)
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]

    def wait_for(self, event):
        """Wait for an event of the page, unless it has come already."""
        if not any(entry["method"] == event for entry in self.events):
            self._until(lambda entry: entry.get("method") == event)

    def _until(self, is_wanted):
        deadline = time.monotonic() + PATIENCE
        while True:
            text, found, self.rest = self.rest.partition(b"\0")
            if not found:
                self.rest = text
                ready, _, _ = select.select([self.back], [], [], max(0.0, deadline - time.monotonic()))
                assert ready, "the browser does not answer"
                part = os.read(self.back, 1 << 20)
                assert part, "the browser has ended"
                self.rest += part
                continue
            entry = json.loads(text)
            if "method" in entry:
                self.events.append(entry)
            if is_wanted(entry):
                return entry

    def open(self, path, *, width=1280, height=800, dark=False, script=True, address="", settle=True):
        """Open a file and wait until it is drawn; what the page did before is forgotten."""
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        self.send("Emulation.setScriptExecutionDisabled", value=not script)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        still = {"name": "prefers-reduced-motion", "value": "reduce"}
        self.send("Emulation.setEmulatedMedia", features=[scheme, still])
        # from another page, for a new `#` alone does not load a page again; its events come late, so they are waited for
        for url in ("about:blank", path.as_uri() + address):
            self.events.clear()
            self.send("Page.navigate", url=url)
            self.wait_for("Page.loadEventFired")
        if script and settle:
            self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def run(self, code):
        """The value of JavaScript in the page; a promise is awaited."""
        answer = self.send("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    @contextmanager
    def inside_frame(self):
        """Commands go to the only frame of the page, which has a process of its own."""
        outside, self.session = self.session, None
        (frame,) = [entry for entry in self.send("Target.getTargets")["targetInfos"] if entry["type"] == "iframe"]
        self.session = self.send("Target.attachToTarget", targetId=frame["targetId"], flatten=True)["sessionId"]
        try:
            for domain in ("Runtime", "Log", "Network"):
                self.send(f"{domain}.enable")
            self.run("document.readyState === 'complete' || new Promise((done) => addEventListener('load', done))")
            yield
        finally:
            self.session = outside

    def click(self, selector):
        """A real click in the middle of the first element that matches."""
        x, y = self.run(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView({{block: 'center'}});"
            "const f = e.getBoundingClientRect(); return [f.x + f.width / 2, f.y + f.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1)

    def press(self, *keys):
        """Real keys: names such as `Enter` and `ArrowDown`, or single letters."""
        codes = {"Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Tab": 9}
        for key in keys:
            text = {"text": "\r" if key == "Enter" else key} if len(key) == 1 or key == "Enter" else {}
            for kind in ("keyDown", "keyUp"):
                self.send(
                    "Input.dispatchKeyEvent",
                    type=kind,
                    key=key,
                    windowsVirtualKeyCode=codes.get(key, 0),
                    **(text if kind == "keyDown" else {}),
                )

    def image(self, *, whole=False):
        """The page as PNG, or only what is in view."""
        answer = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        return base64.b64decode(answer["data"])

    def complaints(self):
        """Errors and warnings of the console, uncaught exceptions and broken policies."""
        logged = [entry["params"]["entry"]["text"] for entry in self.events if entry["method"] == "Log.entryAdded"]
        thrown = [str(entry["params"]) for entry in self.events if entry["method"] == "Runtime.exceptionThrown"]
        called = [str(entry["params"]) for entry in self.events if entry["method"] == "Runtime.consoleAPICalled"]
        return logged + thrown + called

    def requests(self):
        """The addresses that the page asked for, the page's own first."""
        asked = [entry["params"] for entry in self.events if entry["method"] == "Network.requestWillBeSent"]
        return [entry["request"]["url"] for entry in asked]

    def dialogs(self):
        """What was shown by alert and its like."""
        return [entry for entry in self.events if entry["method"] == "Page.javascriptDialogOpening"]


@contextmanager
def opened(program):
    """A browser, ended afterwards."""
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        browser = Browser(program, folder)
        try:
            yield browser
        finally:
            browser.close()
