"""Services that the host provides: model completions, pages of the workspace, and scores."""

import dspy
from dspy import lm15

from .wire import Refused


class Engine:
    """Forwards every completion of a request to the host."""

    def __init__(self, pipe, request):
        self._pipe = pipe
        self._request = request

    def complete(self, request):
        completion = {
            "system": _text(request.system),
            "messages": [
                {"role": message.role, "text": _text(message.parts)} for message in request.messages
            ],
            "max_tokens": request.config.max_tokens,
            "temperature": request.config.temperature,
        }
        answer = self._pipe.ask(self._request, "complete", request=completion)
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
        raise Refused("not_supported", "answers are not streamed")

    def close(self):
        pass


def _text(parts):
    if parts is None or isinstance(parts, str):
        return parts
    return "\n".join(part.text for part in parts if getattr(part, "text", None))


def model(pipe, request):
    """The language model of a request, provided by the host."""
    return dspy.LM("repertoire/host", engine=Engine(pipe, request), cache=False, num_retries=0)


def tools(pipe, request):
    """The tools of a program that can read the workspace."""

    def search(query: str) -> list:
        """The pages of the workspace that match a query best."""
        return pipe.ask(request, "host", name="workspace_search", args={"query": query})["value"]

    def get_page(name: str) -> dict:
        """A page of the workspace, by its slug or title."""
        return pipe.ask(request, "host", name="get_page", args={"name": name})["value"]

    return [search, get_page]


def metric(pipe, request):
    """A metric computed by the host: a score from 0 to 1, with feedback."""

    def judge(example, prediction, trace=None, pred_name=None, pred_trace=None):
        outputs = {name: value for name, value in prediction.items() if name != "reasoning"}
        at = example.get("_at", -1)
        answer = pipe.ask(request, "score", example=example.toDict(), prediction=outputs, index=at)
        return dspy.Prediction(score=answer["score"], feedback=answer.get("feedback") or "")

    return judge
