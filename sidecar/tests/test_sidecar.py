"""Tests the sidecar from its host's side: a process that exchanges lines of JSON."""

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

MAIN = Path(__file__).resolve().parent.parent / "main.py"
SIGNATURE = {
    "inputs": [{"name": "question", "type": {"type": "str"}}],
    "outputs": [{"name": "answer", "type": {"type": "str"}}],
}
EXAMPLES = [{"question": f"What is number {n}?", "answer": "blue"} for n in range(8)]


def filled(text, values):
    """Answers a prompt like a model that follows the format."""
    wanted = re.findall(r"\[\[ ## (\w+) ## \]\]", text.split("Respond with")[-1])
    return "\n\n".join(f"[[ ## {name} ## ]]\n{values.get(name, 'fine')}" for name in wanted)


class Host:
    """Starts a sidecar and answers its calls."""

    def __init__(self, answer=None, score=None):
        self.home = tempfile.TemporaryDirectory()
        self.process = subprocess.Popen(
            [sys.executable, "-I", str(MAIN)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=self.home.name,
            env={"HOME": self.home.name},
        )
        values = {"answer": "blue", "next_tool_name": "finish", "next_tool_args": "{}"}
        self.answer = answer or (lambda asked: filled(asked["messages"][-1]["text"], values))
        self.score = score or (lambda said: 1.0 if said.get("answer") == "blue" else 0.0)
        self.asked = []
        self.ready = self.read()

    def send(self, message):
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()

    def read(self):
        return json.loads(self.process.stdout.readline())

    def ask(self, **request):
        self.send({"id": 7, **request})
        while True:
            said = self.read()
            self.asked.append(said)
            if said["type"] == "complete":
                try:
                    reply = {"type": "answer", "text": self.answer(said["request"])}
                except LookupError as error:
                    reply = {"type": "refused", "code": "budget_exceeded", "message": str(error)}
            elif said["type"] == "score":
                reply = {"type": "answer", "score": self.score(said["prediction"])}
            elif said["type"] == "host":
                reply = {"type": "answer", "value": {"text": "a page"}}
            else:
                return said
            self.send({**reply, "call": said["call"]})

    def close(self):
        self.process.stdin.close()
        self.process.wait(30)
        self.process.stdout.close()
        self.home.cleanup()


class Sidecar(unittest.TestCase):
    def setUp(self):
        self.host = Host()
        self.addCleanup(lambda: self.host.close())

    def run_(self, template, **more):
        return self.host.ask(
            type="execute",
            template_id=template,
            signature=SIGNATURE,
            params={"question": "q"},
            **more,
        )

    def test_reports_its_version_and_templates(self):
        self.assertEqual(self.host.ready["type"], "ready")
        self.assertEqual(self.host.ready["protocol"], 1)
        manifest = self.host.ask(type="manifest")
        names = [template["template_id"] for template in manifest["templates"]]
        self.assertEqual(names, ["predict", "chain_of_thought", "react", "draft_and_refine"])
        parts = {t["template_id"]: t["predictors"] for t in manifest["templates"]}
        # The host counts these fields too, to check a state before it is sent.
        self.assertEqual(parts["predict"], [{"name": "self", "fields": 2}])
        self.assertEqual(parts["chain_of_thought"], [{"name": "predict", "fields": 3}])
        react = [{"name": "react", "fields": 5}, {"name": "extract.predict", "fields": 4}]
        self.assertEqual(parts["react"], react)
        refine = [part["fields"] for part in parts["draft_and_refine"]]
        self.assertEqual(refine, [3, 3, 5])

    def test_every_template_runs_and_asks_its_host(self):
        for template, calls in [
            ("predict", 1),
            ("chain_of_thought", 1),
            ("react", 2),
            ("draft_and_refine", 3),
        ]:
            self.host.asked = []
            said = self.run_(template)
            self.assertEqual(said["output"], {"answer": "blue"}, template)
            asked = [message for message in self.host.asked if message["type"] == "complete"]
            self.assertEqual(len(asked), calls, template)

    def test_react_reads_pages(self):
        steps = iter(
            [
                {"next_tool_name": "get_page", "next_tool_args": '{"name": "harbour"}'},
                {"next_tool_name": "finish", "next_tool_args": "{}"},
            ]
        )

        def answer(request):
            text = request["messages"][-1]["text"]
            values = next(steps) if "next_tool_name" in text else {"answer": "blue"}
            return filled(text, values)

        self.host.answer = answer
        self.assertEqual(self.run_("react")["output"], {"answer": "blue"})
        pages = [message for message in self.host.asked if message["type"] == "host"]
        self.assertEqual(pages[0]["args"], {"name": "harbour"})

    def test_types_come_from_a_list(self):
        for kind in [{"type": "os.PathLike"}, {"type": "list", "of": {"type": "eval"}}, "str", {}]:
            signature = {**SIGNATURE, "inputs": [{"name": "question", "type": kind}]}
            said = self.host.ask(
                type="execute", template_id="predict", signature=signature, params={"question": 1}
            )
            self.assertEqual(said.get("code"), "invalid_signature", said)
        signature = {
            "inputs": [{"name": "question", "type": {"type": "list", "of": {"type": "str"}}}],
            "outputs": [{"name": "answer", "type": {"type": "literal", "values": ["red", "blue"]}}],
        }
        said = self.host.ask(
            type="execute", template_id="predict", signature=signature, params={"question": ["a"]}
        )
        self.assertEqual(said["output"], {"answer": "blue"})

    def test_invalid_requests_are_refused(self):
        self.assertEqual(self.run_("exec")["code"], "unknown_template")
        self.assertEqual(self.host.ask(type="evaluate")["code"], "unknown_request")
        state = {"predict": {"signature": {"instructions": "x", "fields": []}, "demos": []}}
        self.assertEqual(self.run_("predict", state=state)["code"], "invalid_state")
        self.assertEqual(self.run_("chain_of_thought", state=state)["code"], "invalid_state")

    def test_a_state_never_says_whom_to_ask(self):
        field = {"prefix": "P:", "description": "d"}
        part = {
            "signature": {"instructions": "Say a colour.", "fields": [field] * 2},
            "demos": [{"question": "sky?", "answer": "blue"}],
            "lm": {"model": "openai/x", "api_base": "http://127.0.0.1:9", "api_key": "k"},
        }
        said = self.run_("predict", state={"self": part})
        self.assertEqual(said["output"], {"answer": "blue"})
        asked = [message for message in self.host.asked if message["type"] == "complete"]
        self.assertEqual(len(asked), 1)
        self.assertIn("Say a colour.", asked[0]["request"]["system"])

    def test_non_finite_numbers_fail_only_the_program(self):
        signature = {**SIGNATURE, "outputs": [{"name": "answer", "type": {"type": "float"}}]}
        for number in ("nan", "inf", "1e999"):
            self.host.answer = lambda request: f"[[ ## answer ## ]]\n{number}"
            said = self.host.ask(
                type="execute", template_id="predict", signature=signature, params={"question": "q"}
            )
            self.assertEqual(said["type"], "error", said)
        self.assertEqual(self.host.ask(type="ping")["type"], "result")

    def test_a_refusal_ends_a_program_with_its_code(self):
        def answer(request):
            raise LookupError("nothing is left")

        self.host.answer = answer
        said = self.run_("chain_of_thought")
        self.assertEqual((said["type"], said["code"]), ("error", "budget_exceeded"))
        self.assertIn("nothing is left", said["message"])

    def test_an_optimized_state_can_be_loaded(self):
        learned = self.host.ask(
            type="optimize",
            optimizer="bootstrap",
            template_id="chain_of_thought",
            signature=SIGNATURE,
            training_data=EXAMPLES[:5],
        )
        part = learned["state"]["predict"]
        self.assertIsNone(part["lm"])
        self.assertTrue(part["demos"])
        self.host.asked = []
        said = self.run_("chain_of_thought", state=learned["state"])
        self.assertEqual(said["output"], {"answer": "blue"})
        asked = next(m for m in self.host.asked if m["type"] == "complete")
        # The demonstrations of the optimized state come before the question.
        self.assertGreater(len(asked["request"]["messages"]), 2)

    def test_every_optimizer_runs(self):
        for optimizer in ("random-search", "mipro", "gepa"):
            learned = self.host.ask(
                type="optimize",
                optimizer=optimizer,
                template_id="predict",
                signature=SIGNATURE,
                training_data=EXAMPLES[:5],
                validation_data=EXAMPLES[5:],
                settings={"candidates": 2, "trials": 2, "metric_calls": 12},
            )
            self.assertIn("signature", learned.get("state", {}), f"{optimizer}: {learned}")

    def test_optimization_fails_when_a_call_was_refused(self):
        calls = iter(range(1000))

        def answer(request):
            if next(calls) > 2:
                raise LookupError("nothing is left")
            return filled(request["messages"][-1]["text"], {"answer": "blue"})

        self.host.answer = answer
        said = self.host.ask(
            type="optimize",
            optimizer="random-search",
            template_id="predict",
            signature=SIGNATURE,
            training_data=EXAMPLES[:5],
            validation_data=EXAMPLES[5:],
        )
        self.assertEqual((said["type"], said["code"]), ("error", "budget_exceeded"))

    def learn(self, optimizer, template="predict"):
        self.host.asked = []
        said = self.host.ask(
            type="optimize",
            template_id=template,
            signature=SIGNATURE,
            optimizer=optimizer,
            training_data=EXAMPLES,
            settings={"candidates": 2},
        )
        return said, [message["type"] for message in self.host.asked]

    def test_no_completions_are_sent_after_a_refusal(self):
        def answer(request):
            raise LookupError("nothing is left")

        self.host.answer = answer
        said, asked = self.learn("random-search")
        self.assertEqual(said["code"], "budget_exceeded", said)
        # Only calls that were already in flight when the first was refused.
        self.assertLessEqual(asked.count("complete"), 4)

    def test_malformed_answers_do_not_end_optimization(self):
        self.host.answer = lambda request: "no format at all"
        said, asked = self.learn("random-search")
        self.assertEqual(said["type"], "result", said)
        self.assertGreater(asked.count("complete"), 20)

    def test_reserved_field_names_are_refused(self):
        for name in ["signature", "config", "lm", "demos", "instructions"]:
            signature = {**SIGNATURE, "inputs": [{"name": name, "type": {"type": "str"}}]}
            said = self.host.ask(
                type="execute", template_id="predict", signature=signature, params={name: "q"}
            )
            self.assertEqual(said["code"], "invalid_signature", said)

    def test_exits_when_the_host_closes_stdin(self):
        self.assertEqual(self.host.process.poll(), None)
        self.host.process.stdin.close()
        self.assertEqual(self.host.process.wait(30), 0)
        self.host.process.stdin = open(os.devnull, "wb")


if __name__ == "__main__":
    unittest.main()
