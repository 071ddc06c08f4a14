"""Optimizes a program with examples, and runs programs."""

import dspy

from . import host, templates
from .wire import Refused

# An answer that cannot be parsed scores badly; it must not stop the optimizer.
_MAX_ERRORS = 1_000_000


def _number(metric):
    def judged(example, prediction, trace=None):
        score = metric(example, prediction).score
        # While demonstrations are collected, an answer is either accepted or not.
        return score >= 1.0 if trace is not None else score

    return judged


def _bootstrap(metric, settings, lm):
    return dspy.BootstrapFewShot(
        metric=_number(metric),
        max_bootstrapped_demos=settings.get("demos", 4),
        max_labeled_demos=settings.get("demos", 4),
        max_errors=_MAX_ERRORS,
    )


def _random_search(metric, settings, lm):
    return dspy.BootstrapFewShotWithRandomSearch(
        metric=_number(metric),
        max_bootstrapped_demos=settings.get("demos", 4),
        max_labeled_demos=settings.get("demos", 4),
        num_candidate_programs=settings.get("candidates", 4),
        num_threads=settings.get("threads", 2),
        max_errors=_MAX_ERRORS,
    )


def _mipro(metric, settings, lm):
    return dspy.MIPROv2(
        metric=_number(metric),
        prompt_model=lm,
        task_model=lm,
        auto=None,
        num_candidates=settings.get("candidates", 4),
        max_bootstrapped_demos=settings.get("demos", 4),
        max_labeled_demos=settings.get("demos", 4),
        num_threads=settings.get("threads", 2),
        max_errors=_MAX_ERRORS,
        verbose=False,
    )


def _gepa(metric, settings, lm):
    return dspy.GEPA(
        metric=metric,
        max_metric_calls=settings.get("metric_calls", 60),
        reflection_lm=lm,
        num_threads=settings.get("threads", 2),
        track_stats=False,
    )


OPTIMIZERS = {
    "bootstrap": _bootstrap,
    "random-search": _random_search,
    "mipro": _mipro,
    "gepa": _gepa,
}


def _examples(rows, inputs):
    return [dspy.Example(**row).with_inputs(*inputs) for row in rows]


def optimize(pipe, request):
    """Compiles a program; returns its state."""
    make = OPTIMIZERS.get(request.get("optimizer"))
    if make is None:
        names = ", ".join(OPTIMIZERS)
        raise Refused("unknown_optimizer", f"there is no such optimizer: there are {names}")
    inputs = [field["name"] for field in request["signature"]["inputs"]]
    training = _examples(request["training_data"], inputs)
    validation = _examples(request.get("validation_data") or [], inputs)
    if not training:
        raise Refused("no_examples", "there are no training examples")
    identity = request["id"]
    lm = host.model(pipe, identity)
    settings = request.get("settings") or {}
    module = templates.build(request, host.tools(pipe, identity))
    optimizer = make(host.metric(pipe, identity), settings, lm)
    with dspy.context(lm=lm):
        more = {}
        if request["optimizer"] == "mipro":
            trials = settings.get("trials", 6)
            more = {"num_trials": trials, "valset": validation or training, "minibatch": False}
        elif request["optimizer"] in ("gepa", "random-search"):
            more = {"valset": validation or training}
        compiled = optimizer.compile(module, trainset=training, **more)
    refused = pipe.refusal(identity)
    if refused is not None:
        raise refused
    return {"state": templates.dump(compiled)}


def execute(pipe, request):
    """Runs a program once; returns its outputs."""
    identity = request["id"]
    module = templates.build(request, host.tools(pipe, identity))
    with dspy.context(lm=host.model(pipe, identity)):
        prediction = module(**request["params"])
    outputs = [field["name"] for field in request["signature"]["outputs"]]
    output = {name: prediction.get(name) for name in outputs}
    reasoning = prediction.get("reasoning")
    return {"output": output, **({"reasoning": reasoning} if isinstance(reasoning, str) else {})}
