"""A page in headless Chromium, driven over the DevTools protocol through a pipe; the standard library is enough."""

import base64
import json
import os
import select
import shutil
import struct
import subprocess
import tempfile
import time

PROGRAM = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
LIMIT = 60.0  # seconds that an answer may take


class Browser:
    """One page. `errors`: of its console, exceptions, and logs of level error. `requests`: URLs that it asked for."""

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="deepreduce-chromium-")
        in_read, self.to = os.pipe()
        self.out, out_write = os.pipe()
        options = ["--headless=new", "--remote-debugging-pipe", f"--user-data-dir={self.folder}", "--no-first-run", "--disable-gpu", "--disable-dev-shm-usage",
                   "--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-default-browser-check", "--hide-scrollbars", "--force-color-profile=srgb"]
        if os.geteuid() == 0:
            options.append("--no-sandbox")

        def place_pipes():
            # Chromium reads from 3 and writes to 4. First out of the way, for one may be the other.
            read, write = os.dup(in_read), os.dup(out_write)
            os.dup2(read, 3), os.dup2(write, 4)

        self.process = subprocess.Popen([PROGRAM, *options, "about:blank"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                        close_fds=False, preexec_fn=place_pipes)
        os.close(in_read), os.close(out_write)
        self.count, self.buffer, self.errors, self.requests, self.session, self.loaded = 0, b"", [], [], None, False
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        try:
            self.session = None
            self.call("Browser.close")
            self.process.wait(10)
        except (OSError, TimeoutError, EOFError, RuntimeError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        os.close(self.to), os.close(self.out)
        shutil.rmtree(self.folder, ignore_errors=True)

    # ---- The protocol: messages of JSON, each ended by a zero byte

    def call(self, method, **parameters):
        self.count += 1
        number, message = self.count, {"id": self.count, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]

    def receive(self):
        end = time.monotonic() + LIMIT
        while b"\0" not in self.buffer:
            if not select.select([self.out], [], [], max(0.0, end - time.monotonic()))[0]:
                raise TimeoutError(f"Chromium has not answered for {LIMIT} s")
            part = os.read(self.out, 1 << 20)
            if not part:
                raise EOFError("Chromium has ended")
            self.buffer += part
        text, _, self.buffer = self.buffer.partition(b"\0")
        message = json.loads(text)
        self.note(message.get("method"), message.get("params", {}))
        return message

    def note(self, event, given):
        if event == "Runtime.exceptionThrown":
            details = given["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description") or details["text"])
        elif event == "Runtime.consoleAPICalled" and given["type"] in ("error", "warning", "assert"):
            self.errors.append(" ".join(str(a.get("value", a.get("description"))) for a in given["args"]))
        elif event == "Log.entryAdded" and given["entry"]["level"] in ("error", "warning"):
            self.errors.append(given["entry"]["text"])
        elif event == "Network.requestWillBeSent":
            self.requests.append(given["request"]["url"])
        elif event == "Page.loadEventFired":
            self.loaded = True

    # ---- What a person does

    def open(self, path, width=1280, height=900, scale=1, dark=False):
        self.size(width, height, scale)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self.errors.clear(), self.requests.clear()
        self.loaded = False
        self.call("Page.navigate", url=path.resolve().as_uri())
        while not self.loaded:
            self.receive()
        self.settle()

    def size(self, width, height=900, scale=1):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=False)

    def settle(self):
        """After two frames layout and charts have followed."""
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done))))")

    def run(self, script):
        """The value of an expression in the page; if it is a promise, its result."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"].get("exception", {}).get("description", "exception"))
        return answer["result"].get("value")

    def press(self, *keys):
        """Enter and Tab as keyboards send them; others by name."""
        codes = {"Enter": (13, "\r"), "Tab": (9, ""), "ArrowRight": (39, ""), "ArrowLeft": (37, ""), "Home": (36, ""), "End": (35, ""), "Escape": (27, "")}
        for key in keys:
            code, text = codes[key]
            down = {"type": "keyDown", "key": key, "code": key, "windowsVirtualKeyCode": code}
            self.call("Input.dispatchKeyEvent", **({**down, "text": text} if text else down))
            self.call("Input.dispatchKeyEvent", type="keyUp", key=key, code=key, windowsVirtualKeyCode=code)

    def picture(self, path):
        """A PNG of the window."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


def contrast(a, b):
    """WCAG 2 of two colours, #rrggbb."""

    def luminance(text):
        parts = [x / 255 for x in struct.unpack("3B", bytes.fromhex(text[1:]))]
        return sum(w * (x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4) for w, x in zip((0.2126, 0.7152, 0.0722), parts))

    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


# The smallest contrast of visible text with what is behind it.
CONTRAST = """(() => {
  const parse = (text) => (text.match(/[\\d.]+/g) ?? [0, 0, 0, 0]).map(Number);
  const luminance = (c) => [0.2126, 0.7152, 0.0722].reduce((sum, w, i) => { const x = c[i] / 255; return sum + w * (x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4); }, 0);
  let worst = { ratio: 99, count: 0 };
  for (const element of document.querySelectorAll("body *")) {
    if (!element.checkVisibility() || ![...element.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()) || ["SCRIPT", "OPTION"].includes(element.tagName)) continue;
    let behind = element;
    while (behind && (parse(getComputedStyle(behind).backgroundColor)[3] ?? 1) === 0) behind = behind.parentElement;
    const pair = [luminance(parse(getComputedStyle(element).color)), luminance(parse(getComputedStyle(behind ?? document.body).backgroundColor))].sort((a, b) => b - a);
    const ratio = (pair[0] + 0.05) / (pair[1] + 0.05), count = worst.count + 1;
    worst = ratio < worst.ratio ? { ratio, count, text: element.textContent.slice(0, 60) } : { ...worst, count };
  }
  return worst;
})()"""
