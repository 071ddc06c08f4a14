"""A sidecar that misbehaves in the way named by its first argument."""

import json
import os
import sys
import time


def say(**message):
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def hear():
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    return json.loads(line)


fault = sys.argv[1]
if fault == "never-starts":
    time.sleep(600)
if fault == "giant-frame-at-start":
    sys.stdout.write("x" * 1_000_000)
    sys.stdout.flush()
    time.sleep(600)
if fault == "closes-stdout":
    os.close(1)
    time.sleep(600)
if fault == "crash-loop":
    print("no module named dspy", file=sys.stderr)
    sys.exit(3)
if fault == "other-protocol":
    say(type="ready", protocol=99)
say(type="ready", protocol=1, dspy="0.0.1", python="3")
request = hear()
if fault in ("well", "dies-after-one", "hangs-after-one"):
    say(type="result", id=request["id"], output={"a": str(os.getpid())})
    if fault == "dies-after-one":
        sys.exit(1)
    if fault == "hangs-after-one":
        time.sleep(600)
    while True:
        say(type="result", id=hear()["id"], output={"a": str(os.getpid())})
ask = {"system": None, "messages": [{"role": "user", "text": "hello"}]}
if fault == "hangs-when-given-up":
    say(type="complete", id=request["id"], call=1, request=ask)
    if hear()["type"] == "cancel":
        time.sleep(600)
    say(type="result", id=request["id"], output={"a": str(os.getpid())})
if fault == "killed-mid-call":
    say(type="complete", id=request["id"], call=1, request=ask)
    os.kill(os.getpid(), 9)
if fault == "garbage":
    print("DSPy says hello", flush=True)
    time.sleep(600)
if fault == "giant-frame":
    sys.stdout.write('{"type": "result", "id": %d, "output": {"a": "' % request["id"])
    while True:
        sys.stdout.write("x" * 65536)
if fault == "silence":
    time.sleep(600)
if fault == "question-flood":
    call = 0
    while True:
        call += 1
        say(type="complete", id=request["id"], call=call, request=ask)
if fault == "slow-drip":
    while True:
        sys.stdout.write(" ")
        sys.stdout.flush()
        time.sleep(0.02)
if fault == "wrong-answer":
    say(type="result", id=request["id"], output="not an object")
    time.sleep(600)
if fault == "wrong-id":
    say(type="result", id=request["id"] + 1000, output={"a": "for another"})
    time.sleep(600)
if fault == "questions":
    # Invalid requests are refused, and the program continues.
    refused = 0
    for call, (kind, body) in enumerate(
        [
            ("complete", {}),
            ("complete", {"request": "x"}),
            ("host", {"name": "open_file", "args": {"path": "/etc/passwd"}}),
            ("host", {"name": "get_page"}),
            ("environment", {}),
            ("score", {}),
        ]
    ):
        say(type=kind, id=request["id"], call=call, **body)
        refused += hear()["type"] == "refused"
    say(type="result", id=request["id"], output={"a": [refused, sorted(os.environ)]})
if fault == "floods-stderr":
    for _ in range(2000):
        print("x" * 1000, file=sys.stderr)
    say(type="result", id=request["id"], output={"a": "still here"})
if fault == "endless-questions":
    call = 0
    while True:
        call += 1
        say(type="complete", id=request["id"], call=call, request=ask)
        if hear()["type"] == "refused":
            say(type="error", id=request["id"], code="budget_exceeded", message="asked too often")
            break
hear()
