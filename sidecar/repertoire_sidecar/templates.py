"""The available programs. A skill names one and provides its state, but never code."""

import dspy

from .signatures import signature_of
from .wire import Refused


class DraftAndRefine(dspy.Module):
    """Drafts an answer, reviews it, and answers again."""

    def __init__(self, signature):
        super().__init__()
        self.outputs = list(signature.output_fields)
        inputs = {
            name: (field.annotation, dspy.InputField(desc=f"The {name}"))
            for name, field in signature.input_fields.items()
        }
        drafted = {
            f"draft_{name}": (str, dspy.InputField(desc=f"A first attempt at {name}"))
            for name in self.outputs
        }
        problems = {"problems": (str, dspy.OutputField(desc="What is wrong with it, or `none`"))}
        self.draft = dspy.ChainOfThought(signature)
        self.review = dspy.Predict(
            dspy.Signature(
                {**inputs, **drafted, **problems},
                f"Say what is wrong with a first attempt at this task: {signature.instructions}",
            )
        )
        refine = signature
        for name, (kind, field) in {
            **drafted,
            "problems": (str, dspy.InputField(desc="What is wrong with the first attempt")),
        }.items():
            refine = refine.append(name, field, kind)
        self.refine = dspy.ChainOfThought(refine)

    def forward(self, **values):
        draft = self.draft(**values)
        drafted = {f"draft_{name}": str(getattr(draft, name)) for name in self.outputs}
        problems = self.review(**values, **drafted).problems
        return self.refine(**values, **drafted, problems=problems)


def _react(signature, options, tools):
    return dspy.ReAct(signature, tools=tools, max_iters=options.get("max_iters", 6))


TEMPLATES = {
    "predict": (
        "Asks once.",
        lambda signature, options, tools: dspy.Predict(signature),
    ),
    "chain_of_thought": (
        "Asks once, for reasoning before the answer.",
        lambda signature, options, tools: dspy.ChainOfThought(signature),
    ),
    "react": (
        "Asks again and again, with the pages of the workspace to look at in between.",
        _react,
    ),
    "draft_and_refine": (
        "Asks for a draft, for what is wrong with it, and for a better one.",
        lambda signature, options, tools: DraftAndRefine(signature),
    ),
}


def manifest():
    """Lists every template with its description and the names of its predictors."""
    example = dspy.Signature("question -> answer")
    return [
        {
            "template_id": name,
            "description": about,
            "predictors": [
                {"name": part, "fields": len(predictor.signature.fields)}
                for part, predictor in make(example, {}, []).named_predictors()
            ],
        }
        for name, (about, make) in TEMPLATES.items()
    ]


def build(request, tools=()):
    """Builds the program that a request names, with the state it provides."""
    known = TEMPLATES.get(request.get("template_id"))
    if known is None:
        names = ", ".join(TEMPLATES)
        raise Refused("unknown_template", f"unknown template: available are {names}")
    signature = signature_of(request["signature"])
    options = request.get("options") or {}
    module = known[1](signature, options, list(tools))
    state = request.get("state")
    if state:
        load(module, state)
    return module


def load(module, state):
    """Loads a state into a program of the same shape. The model is not part of a state."""
    parts = dict(module.named_predictors())
    state = {name: part for name, part in state.items() if name != "metadata"}
    if set(state) != set(parts):
        have, need = ", ".join(sorted(state)), ", ".join(sorted(parts))
        raise Refused("invalid_state", f"it has the predictors {have}, expected {need}")
    for name, part in state.items():
        fields = len(part["signature"]["fields"])
        if fields != len(parts[name].signature.fields):
            raise Refused("invalid_state", f"{name}: unexpected number of fields: {fields}")
    clean = {
        name: {
            "traces": [],
            "train": [],
            "demos": part.get("demos") or [],
            "signature": part["signature"],
            "lm": None,
        }
        for name, part in state.items()
    }
    # A program with a single predictor uses that predictor's state as its own.
    module.load_state(clean["self"] if isinstance(module, dspy.Predict) else clean)


def dump(module):
    """Returns the state of a program as JSON, without its model."""
    for _, part in module.named_predictors():
        part.lm = None
        part.traces = []
        part.train = []
    return module.dump_state()
