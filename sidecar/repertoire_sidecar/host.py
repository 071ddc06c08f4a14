"""What the host does for the sidecar: it asks models, reads pages, and says how good an answer is."""

import dspy
from dspy import lm15

from .wire import Refused


class Engine:
    """Puts every completion of a request to the host."""

    def __init__(self, pipe, request):
        self._pipe = pipe
        self._request = request

    def complete(self, request):
        told = {
            "system": _text(request.system),
            "messages": [
                {"role": message.role, "text": _text(message.parts)} for message in request.messages
            ],
            "max_tokens": request.config.max_tokens,
            "temperature": request.config.temperature,
        }
        answer = self._pipe.ask(self._request, "complete", request=told)
        usage = answer.get("usage") or {}
        text = lm15.TextPart(text=answer["text"])
        return lm15.Response(
            id=None,
            model=request.model,
            message=lm15.Message(role="assistant", parts=(text,)),
            finish_reason="length" if answer.get("cut") else "stop",
            usage=lm15.Usage(
                input_tokens=usage.get("input_tokens"), output_tokens=usage.get("output_tokens")
            ),
        )

    def stream(self, request):
        raise Refused("not_supported", "answers come whole")

    def close(self):
        pass


def _text(parts):
    if parts is None or isinstance(parts, str):
        return parts
    return "\n".join(part.text for part in parts if getattr(part, "text", None))


def model(pipe, request):
    """The model of a request: the host's."""
    return dspy.LM("repertoire/host", engine=Engine(pipe, request), cache=False, num_retries=0)


def tools(pipe, request):
    """What a program that may look around can look at."""

    def search(query: str) -> list:
        """The pages of the workspace that fit some words best."""
        return pipe.ask(request, "host", name="workspace_search", args={"query": query})["value"]

    def get_page(name: str) -> dict:
        """A page of the workspace, by its slug or title."""
        return pipe.ask(request, "host", name="get_page", args={"name": name})["value"]

    return [search, get_page]


def metric(pipe, request):
    """How good a prediction is, by the host's word: a number from 0 to 1, and why."""

    def judge(example, prediction, trace=None, pred_name=None, pred_trace=None):
        said = {name: value for name, value in prediction.items() if name != "reasoning"}
        told = pipe.ask(
            request, "score", example=example.toDict(), prediction=said, index=example.get("_at", -1)
        )
        return dspy.Prediction(score=told["score"], feedback=told.get("feedback") or "")

    return judge
