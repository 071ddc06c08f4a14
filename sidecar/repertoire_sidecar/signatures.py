"""Builds signatures from JSON. Types come from an allow-list, never from evaluated text."""

from typing import Any, Dict, List, Literal, Optional

import dspy

from .wire import Refused

_PLAIN = {"str": str, "int": int, "float": float, "bool": bool, "any": Any}
# The maximum nesting of types, and the maximum number of fields in a signature.
_DEPTH = 4
_FIELDS = 32
# Argument names that DSPy modules interpret themselves.
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


def type_of(spec, depth=0):
    """Returns the type of a specification such as `{"type": "list", "of": {"type": "str"}}`."""
    if depth > _DEPTH or not isinstance(spec, dict):
        raise Refused("invalid_signature", "a type is nested too deeply or is not an object")
    name = spec.get("type")
    if name in _PLAIN:
        return _PLAIN[name]
    if name == "list":
        return List[type_of(spec["of"], depth + 1)] if "of" in spec else List[Any]
    if name == "dict":
        return Dict[str, type_of(spec["of"], depth + 1)] if "of" in spec else Dict[str, Any]
    if name == "optional":
        return Optional[type_of(spec["of"], depth + 1)]
    if name == "literal":
        values = spec.get("values")
        if values and all(isinstance(value, str) for value in values):
            return Literal[tuple(values)]
    raise Refused("invalid_signature", f"unknown type {name!r}")


def signature_of(spec):
    """Returns a signature with the given `inputs`, `outputs` and `instructions`."""
    fields = {}
    for part, make in (("inputs", dspy.InputField), ("outputs", dspy.OutputField)):
        for field in spec[part]:
            name = field["name"]
            if not isinstance(name, str) or not name.isidentifier() or name.startswith("_"):
                raise Refused("invalid_signature", f"{name!r} is not a valid field name")
            if name in _RESERVED:
                raise Refused("invalid_signature", f"the field name {name!r} is reserved")
            if name in fields:
                raise Refused("invalid_signature", f"duplicate field name {name!r}")
            about = field.get("desc")
            fields[name] = (type_of(field["type"]), make(desc=about) if about else make())
    if not spec["inputs"] or not spec["outputs"] or len(fields) > _FIELDS:
        raise Refused("invalid_signature", f"needs inputs and outputs, at most {_FIELDS} fields")
    return dspy.Signature(fields, spec.get("instructions") or None)
