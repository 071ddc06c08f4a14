"""A worker with a skill, a section made by a function, and a slash-command.

Start a hub with `repertoire serve`, then: pip install -r requirements.txt && python worker.py
"""

import os
import pathlib
import signal
import threading
import time

from iii import InitOptions, register_worker

url = os.environ.get("III_URL") or "ws://127.0.0.1:49134"
# The SDK sends the token in III_TOKEN. A server with --require-token keeps the user's own in a file; that
# one is sent to this machine only.
is_here = url.startswith(("ws://127.0.0.1:", "ws://localhost:", "ws://[::1]:"))
account = os.environ.get("REPERTOIRE_HOME") or pathlib.Path.home() / ".repertoire"
local_token = pathlib.Path(account) / "local-token"
if is_here and local_token.is_file():
    os.environ.setdefault("III_TOKEN", local_token.read_text().strip())

iii = register_worker(
    url,
    InitOptions(worker_name="tea", otel={"enabled": False}),
)


async def guide(_given):
    return {"content": "# Tea\n\nGreen tea wants 80 degrees and two minutes."}


async def order(given):
    kind = (given or {}).get("kind", "black")
    return {"content": f"Make one cup of {kind} tea."}


def register(function_id, payload):
    """Retries until it succeeds: the registry may start or restart after this worker."""
    pause, begun = 0.5, time.monotonic()
    while True:
        try:
            return iii.trigger({"function_id": function_id, "payload": payload, "timeout_ms": 5000})
        except Exception as error:
            later = getattr(error, "code", None) in ("function_not_found", "TIMEOUT")
            if not later or time.monotonic() - begun > 180:
                raise
            time.sleep(pause)
            pause = min(pause * 2, 30)


iii.register_function("tea::guide", guide, description="How to make tea.")
iii.register_function("tea::order", order, description="Renders the order.")

stop = threading.Event()
for name in (signal.SIGINT, signal.SIGTERM):
    signal.signal(name, lambda *_: stop.set())

try:
    register(
        "skills::register",
        {
            "id": "tea",
            "skill": "# Tea\n\nMakes tea. Use when a user is thirsty.\n\n"
            "See [the guide](iii://fn/tea/guide) for times and temperatures.\n",
        },
    )
    register(
        "prompts::register",
        {
            "name": "order-tea",
            "description": "Order a cup of tea.",
            "arguments": [{"name": "kind", "description": "Which tea", "required": True}],
            "function_id": "tea::order",
        },
    )
    print("ready", flush=True)
    stop.wait()
finally:
    iii.shutdown()
