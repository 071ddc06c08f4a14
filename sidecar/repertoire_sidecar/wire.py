"""Exchanges lines of JSON with the host.

Requests from the host carry an `id`. For each of them the sidecar can send calls with a `call`
number, and the calling thread waits for the answer. Nothing else writes to the pipe.
"""

import json
import math
import os
import sys
import threading

PROTOCOL = 1
# The longest line, in bytes, either way.
MAX_LINE = 16 * 1024 * 1024


class Refused(Exception):
    """An operation that is refused, with a stable code."""

    def __init__(self, code, message):
        super().__init__(message)
        self.code = code


def _check(value, depth=0):
    """Refuses values that JSON cannot represent or that parsers do not accept."""
    if depth > 64:
        raise Refused("invalid_output", "a value is nested too deeply")
    if isinstance(value, float) and not math.isfinite(value):
        raise Refused("invalid_output", f"{value} is not a finite number")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise Refused("invalid_output", "a number is too large")
    if isinstance(value, dict):
        for item in value.values():
            _check(item, depth + 1)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _check(item, depth + 1)


class Pipe:
    """The connection to the host."""

    def __init__(self, reader, writer):
        self._reader = reader
        self._writer = writer
        self._writing = threading.Lock()
        self._state = threading.Lock()
        self._waiting = {}
        self._cancelled = set()
        self._refused = {}
        self._calls = 0
        self._closed = False

    def send(self, message):
        _check(message)
        text = json.dumps(message, ensure_ascii=False, default=str, allow_nan=False)
        line = text.encode("utf-8", "replace")
        if len(line) > MAX_LINE:
            raise Refused("too_large", f"a message has more than {MAX_LINE} bytes")
        with self._writing:
            self._writer.write(line + b"\n")
            self._writer.flush()

    def ask(self, request, kind, /, **what):
        """Sends a call to the host on behalf of a request and waits for the answer."""
        answered = threading.Event()
        with self._state:
            if self._closed or request in self._cancelled:
                raise Refused("cancelled", "the request was cancelled")
            if request in self._refused:
                # The result would be discarded, so do not pay for further calls.
                raise self._refused[request]
            self._calls += 1
            call = self._calls
            self._waiting[call] = [answered, None, request]
        try:
            self.send({"type": kind, "id": request, "call": call, **what})
            answered.wait()
        finally:
            with self._state:
                _, answer, _ = self._waiting.pop(call)
        if answer is None:
            raise Refused("cancelled", "the request was cancelled")
        if answer.get("type") == "refused":
            refused = Refused(str(answer.get("code")), str(answer.get("message")))
            # A program can continue without a page that it cannot read.
            if kind != "host":
                with self._state:
                    self._refused.setdefault(request, refused)
            raise refused
        return answer

    def refusal(self, request):
        """The first refused call of a request, because libraries often ignore the exception."""
        with self._state:
            return self._refused.get(request)

    def _answered(self, answer):
        with self._state:
            waiting = self._waiting.get(answer.get("call"))
            if waiting is not None:
                waiting[1] = answer
                waiting[0].set()

    def cancel(self, request):
        """Cancels a request; its work ends at the next call."""
        with self._state:
            self._cancelled.add(request)
            for waiting in self._waiting.values():
                if waiting[2] == request:
                    waiting[0].set()

    def forget(self, request):
        with self._state:
            self._cancelled.discard(request)
            self._refused.pop(request, None)

    def requests(self):
        """Yields requests until the host disconnects. Answers go to the thread that waits."""
        while True:
            line = self._reader.readline(MAX_LINE + 1)
            if not line:
                break
            if len(line) > MAX_LINE:
                raise Refused("too_large", f"a line has more than {MAX_LINE} bytes")
            message = json.loads(line)
            kind = message.get("type")
            if kind in ("answer", "refused"):
                self._answered(message)
            elif kind == "cancel":
                self.cancel(message.get("id"))
            elif kind == "ping":
                # Answered immediately, even while all workers are busy.
                self.send({"type": "result", "id": message.get("id")})
            else:
                yield message
        with self._state:
            self._closed = True
            for waiting in self._waiting.values():
                waiting[0].set()


def over_stdio():
    """Opens the pipe over stdin and stdout. Output printed by libraries is redirected to stderr."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    reader = os.fdopen(os.dup(0), "rb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    return Pipe(reader, out)
