"""A headless Chromium, driven over its debugging pipe: the DevTools protocol with nothing between.

Messages are JSON, each ended by a NUL; the browser reads them from its descriptor 3 and answers on
its descriptor 4.
"""

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import time

NAMES = ("chromium", "chromium-browser", "google-chrome")
LONGEST = 60  # seconds for one answer; a machine may be busy

# Gives the child its descriptors 3 and 4 and becomes the browser.
BECOME = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); "
    "os.execv(sys.argv[3], sys.argv[3:])"
)
FLAGS = (
    "--headless", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--no-first-run",
    "--disable-dev-shm-usage", "--disable-background-networking", "--disable-component-update",
    "--hide-scrollbars", "--force-color-profile=srgb",
)  # fmt: skip


def find():
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    def __init__(self, folder):
        """folder: for what the browser writes."""
        read_end, self.out = os.pipe()
        self.into, write_end = os.pipe()
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (read_end, write_end)]  # not 3 or 4
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-c", BECOME, *map(str, ends), find(), *FLAGS,
             f"--user-data-dir={folder}"],
            pass_fds=ends, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        for end in (read_end, write_end, *ends):
            os.close(end)
        self.rest, self.events, self.last = b"", [], 0

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.out)
        os.close(self.into)

    def call(self, method, session=None, **parameters):
        self.last += 1
        message = {"id": self.last, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + LONGEST
        while True:
            answer = self._next(until)
            if answer is None:
                raise TimeoutError(f"no answer to {method}")
            if answer.get("id") != self.last:
                self.events.append(answer)
            elif "error" in answer:
                raise RuntimeError(f"{method}: {answer['error']}")
            else:
                return answer["result"]

    def _next(self, until):
        while b"\0" not in self.rest:
            ready, _, _ = select.select([self.into], [], [], max(0, until - time.monotonic()))
            piece = os.read(self.into, 1 << 20) if ready else b""
            if not piece:
                return None
            self.rest += piece
        message, _, self.rest = self.rest.partition(b"\0")
        return json.loads(message)

    def wait_for(self, method, session):
        """The event, whether it has been told already or not."""
        until = time.monotonic() + LONGEST
        while True:
            for event in self.events:
                if event["method"] == method and event.get("sessionId") == session:
                    return event
            event = self._next(until)
            if event is None:
                raise TimeoutError(f"{method} did not happen")
            self.events.append(event)

    def open(self, path, width=1280, height=900, **media):
        return Tab(self, path, width, height, media)


class Tab:
    """A page that is shown, and all that it has complained about or asked for."""

    def __init__(self, browser, path, width, height, media):
        self.browser = browser
        context = browser.call("Target.createBrowserContext")  # what one remembers, others do not
        self.context = context["browserContextId"]
        made = browser.call("Target.createTarget", url="about:blank", browserContextId=self.context)
        self.target = made["targetId"]
        attached = browser.call("Target.attachToTarget", targetId=self.target, flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        self.emulate(**media)
        self.call("Page.navigate", url=path.absolute().as_uri())
        browser.wait_for("Page.loadEventFired", self.session)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.browser.call("Target.disposeBrowserContext", browserContextId=self.context)

    def call(self, method, **parameters):
        return self.browser.call(method, self.session, **parameters)

    def emulate(self, scheme="light", media=""):
        features = [
            {"name": "prefers-color-scheme", "value": scheme},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]
        self.call("Emulation.setEmulatedMedia", media=media, features=features)

    def run(self, script):
        """The value of an expression, or of the promise that it is."""
        answer = self.call(
            "Runtime.evaluate",
            expression=script, returnByValue=True, awaitPromise=True, userGesture=True,
        )  # fmt: skip
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"])
        return answer["result"].get("value")

    def press(self, key, code=0, text=None):
        for kind in ("keyDown", "keyUp"):
            more = {"text": text} if text and kind == "keyDown" else {}
            self.call(
                "Input.dispatchKeyEvent",
                type=kind, key=key, code=key, windowsVirtualKeyCode=code, **more,
            )  # fmt: skip

    def happened(self, *methods):
        return [
            event["params"]
            for event in self.browser.events
            if event.get("sessionId") == self.session and event["method"] in methods
        ]

    @property
    def complaints(self):
        """Exceptions, console messages, policy violations, questions and alerts."""
        return self.happened(
            "Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled",
            "Page.javascriptDialogOpening",
        )  # fmt: skip

    @property
    def requests(self):
        return [event["request"]["url"] for event in self.happened("Network.requestWillBeSent")]

    def screenshot(self, whole=True):
        made = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        return base64.b64decode(made["data"])

    def pdf(self):
        return base64.b64decode(self.call("Page.printToPDF", printBackground=True)["data"])
