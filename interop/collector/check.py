"""Runs a skill with a real model and reads its spans from a real collector (Phoenix).

Usage: check.py PHOENIX PROGRAM SKILLS HOME MODEL_PYTHON MODEL_SERVER

Prints `ok NAME` for each check; ends with 1 if one fails.
"""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

DEADLINE = 120


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def get(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)


def wait_for(what, attempt, process):
    """Repeats an attempt until it returns something."""
    until = time.monotonic() + DEADLINE
    while time.monotonic() < until:
        if process.poll() is not None:
            sys.exit(f"{what}: the process has ended with {process.returncode}")
        try:
            found = attempt()
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            found = None
        if found:
            return found
        time.sleep(0.2)
    sys.exit(f"{what}: not within {DEADLINE} s")


def check(name, holds, about):
    print(f"{'ok' if holds else 'FAILED'} {name}")
    if not holds:
        print(about)
        check.failed = True


check.failed = False


def main(phoenix, program, skills, home, model_python, model_server):
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    environment = os.environ | {
        "PHOENIX_WORKING_DIR": os.path.join(home, "phoenix"),
        "PHOENIX_HOST": "127.0.0.1",
        "PHOENIX_PORT": str(port),
        "PHOENIX_GRPC_PORT": str(free_port()),
        "PHOENIX_TELEMETRY_ENABLED": "false",
    }
    log = open(os.path.join(home, "phoenix.log"), "wb")
    collector = subprocess.Popen([phoenix, "serve"], env=environment, stdout=log, stderr=log)
    model = subprocess.Popen(
        [model_python, model_server], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        model_url = model.stdout.readline().strip()
        with open(os.path.join(home, "config.toml"), "w") as config:
            config.write(
                'model = "local/smollm2"\n[providers.local]\nkind = "openai"\n'
                f'base_url = "{model_url}/v1"\n'
                '[prices."local/smollm2"]\ninput = 0.1\noutput = 0.2\n'
            )
        wait_for(
            "the collector",
            lambda: urllib.request.urlopen(address + "/healthz", timeout=10).status == 200,
            collector,
        )
        exported = environment | {
            "REPERTOIRE_HOME": home,
            "OTEL_EXPORTER_OTLP_ENDPOINT": address,
            # Its first request takes seconds on a busy machine.
            "OTEL_EXPORTER_OTLP_TIMEOUT": "60000",
            "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "true",
        }
        run = [program, "--from", skills, "run", "hello-world", "-m", "Hello", "--json"]
        report = subprocess.run(
            run + ["--answer-tokens", "12"], env=exported, capture_output=True, text=True
        )
        check("the run succeeds", report.returncode == 0, report.stderr)
        # It says why, if spans could not be sent.
        print(report.stderr)
        session = json.loads(report.stdout)["session"]
        listed = address + "/v1/projects/default/spans?limit=100"
        spans = wait_for("the spans", lambda: get(listed)["data"], collector)
        spans = wait_for(
            "the root span",
            lambda: [s for s in get(listed)["data"]] if root(get(listed)["data"]) else None,
            collector,
        )
    finally:
        # They were started here, so they are ended here.
        model.stdin.close()
        model.wait()
        collector.terminate()
        collector.wait()
    top = root(spans)
    about = json.dumps(spans, indent=1)
    chats = [s for s in spans if s["name"] == "chat smollm2"]
    check("one call of the model", len(chats) == 1, about)
    parents = {s["context"]["span_id"]: s for s in spans}
    path, at = [], chats[0]
    while at:
        path.insert(0, at["name"])
        at = parents.get(at.get("parent_id"))
    check("a tree from run to model call", len(path) == 3 and path[0] == top["name"], path)
    trace = {s["context"]["trace_id"] for s in spans}
    check("one trace for the session", trace == {session.replace("-", "")}, (trace, session))
    attributes = chats[0]["attributes"]
    check("tokens", attributes.get("gen_ai.usage.input_tokens", 0) > 5, attributes)
    check("the model's name", attributes.get("gen_ai.request.model") == "smollm2", attributes)
    check("the prompt", "Hello" in attributes.get("gen_ai.input.messages", ""), attributes)
    sys.exit(1 if check.failed else 0)


def root(spans):
    return next((s for s in spans if s["name"] == "invoke_agent hello-world"), None)


main(*sys.argv[1:])
