"""Shows the progress of a long run on stderr, if that is a terminal, as the native tool does (tool/show/console.hpp)."""

from __future__ import annotations

import sys
import time

_CLEAR = "\r\033[K"


def without_controls(text: str) -> str:
    """Replaces control characters, so that names in files cannot control the terminal."""
    return "".join("?" if c < " " or "\x7f" <= c < "\xa0" else c for c in text)


def duration_text(seconds: float) -> str:
    """ "3 s", "2 min 5 s", "1 h 20 min" """
    s = int(seconds + 0.5)
    if s < 60:
        return f"{s} s"
    return f"{s // 60} min {s % 60} s" if s < 3600 else f"{s // 3600} h {s // 60 % 60} min"


class Progress:
    """Shows progress during a `with` block. all: bytes to process"""

    def __init__(self, all: int) -> None:
        self._all, self._done = all, 0
        self._terminal = sys.stderr.isatty()
        self._begun = time.monotonic()
        self._shown = self._begun

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._terminal:
            sys.stderr.write(_CLEAR)
            sys.stderr.flush()

    def __call__(self, name: str, bytes: int) -> None:
        self._done += bytes
        now = time.monotonic()
        if not self._terminal or now < self._shown + 0.1:
            return
        self._shown = now
        left = (now - self._begun) * (self._all - self._done) / max(self._done, 1)
        line = f"[{100 * self._done // max(self._all, 1)} %, {duration_text(max(left, 1))} left] {without_controls(name)}"
        sys.stderr.write(_CLEAR + line[:100])
        sys.stderr.flush()
