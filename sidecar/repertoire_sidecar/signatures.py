"""Signatures from their parts. Types are built from an allow-list, never from text."""

from typing import Any, Dict, List, Literal, Optional

import dspy

from .wire import Refused

_PLAIN = {"str": str, "int": int, "float": float, "bool": bool, "any": Any}
# How deep types nest, and how many fields a signature has.
_DEPTH = 4
_FIELDS = 32
# What a program takes for something else than a value.
_RESERVED = {
    "config",
    "demos",
    "fields",
    "input_fields",
    "instructions",
    "lm",
    "output_fields",
    "signature",
    "traces",
}


def type_of(told, depth=0):
    """The type of `{"type": "list", "of": {"type": "str"}}` and the like."""
    if depth > _DEPTH or not isinstance(told, dict):
        raise Refused("invalid_signature", "a type nests too deep, or is none")
    name = told.get("type")
    if name in _PLAIN:
        return _PLAIN[name]
    if name == "list":
        return List[type_of(told["of"], depth + 1)] if "of" in told else List[Any]
    if name == "dict":
        return Dict[str, type_of(told["of"], depth + 1)] if "of" in told else Dict[str, Any]
    if name == "optional":
        return Optional[type_of(told["of"], depth + 1)]
    if name == "literal":
        values = told.get("values")
        if values and all(isinstance(value, str) for value in values):
            return Literal[tuple(values)]
    raise Refused("invalid_signature", f"there is no type {name!r}")


def signature_of(told):
    """A signature of `inputs`, `outputs` and `instructions`."""
    fields = {}
    for part, make in (("inputs", dspy.InputField), ("outputs", dspy.OutputField)):
        for field in told[part]:
            name = field["name"]
            if not isinstance(name, str) or not name.isidentifier() or name.startswith("_"):
                raise Refused("invalid_signature", f"{name!r} is no name of a field")
            if name in _RESERVED:
                raise Refused("invalid_signature", f"{name!r} means something else")
            if name in fields:
                raise Refused("invalid_signature", f"two fields are called {name!r}")
            about = field.get("desc")
            fields[name] = (type_of(field["type"]), make(desc=about) if about else make())
    if not told["inputs"] or not told["outputs"] or len(fields) > _FIELDS:
        raise Refused("invalid_signature", "it needs inputs and outputs, and not too many")
    return dspy.Signature(fields, told.get("instructions") or None)
