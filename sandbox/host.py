"""Functions that a script can call on its host: importable as `repertoire` and as `inklings`.

Nothing here enforces a limit: a script can reach the bridge below, and the host checks every call.
"""

import json

from componentize_py_types import Err
from wit_world import call as _bridge

__all__ = [
    "Answer",
    "Error",
    "checkpoint",
    "get_history",
    "get_page",
    "get_pages",
    "get_pages_by_type",
    "get_references",
    "get_tags",
    "llm_query",
    "llm_query_batched",
    "run_skill",
    "search",
    "submit",
    "workspace_search",
]


class Error(Exception):
    """A call that the host refused or could not answer; `code` gives the stable reason."""

    def __init__(self, code, message):
        super().__init__(message)
        self.code = code


class Submitted(BaseException):
    """Ends a script that has submitted its result."""


# Created once: json.dumps and json.loads create or look up these at every call.
_under_way = {}
_written = json.encoder.c_make_encoder(
    _under_way,
    json.JSONEncoder().default,
    json.encoder.encode_basestring_ascii,
    None,
    ":",
    ",",
    False,
    False,
    True,
)
_read = json.JSONDecoder().scan_once


def _ask(name, args):
    try:
        asked = "".join(_written(args, 0))
    except BaseException:
        _under_way.clear()
        raise
    try:
        answer = _bridge(name, asked)
    except Err as refused:
        error = json.loads(refused.value)
        raise Error(error["code"], error["message"]) from None
    return _read(answer, 0)[0]


def workspace_search(query, limit=10):
    """The pages that match a query best: a list of `slug`, `title`, `excerpt`, `score`."""
    return _ask("workspace_search", {"query": query, "limit": limit})


def get_page(name):
    """A page by its slug, title or other name: `slug`, `title`, `type`, `tags`, `text`; or None."""
    return _ask("get_page", {"name": name})


def get_pages(names):
    """Several pages; missing pages are left out."""
    return _ask("get_pages", {"names": list(names)})


def get_pages_by_type(type):
    """The pages of a type, without their text."""
    return _ask("get_pages_by_type", {"type": type})


def get_tags():
    """Every tag with the number of pages that have it: a list of `name`, `pages`."""
    return _ask("get_tags", {})


def get_references(name):
    """The links of a page: `links`, `backlinks`, `missing`."""
    return _ask("get_references", {"name": name})


def get_history(name, limit=20):
    """The changes of a page, newest first: a list of `id`, `author`, `at`, `summary`."""
    return _ask("get_history", {"name": name, "limit": limit})


_warned = []


class Answer(str):
    """The answer of a model: a text, and a list of items for whatever iterates over it.

    `claims.extend(llm_query("Extract claims …"))` is what scripts write, and the characters of a text
    are never what they mean. The items are those of a JSON list, of a list with bullets or numbers, or
    else, with a warning, the lines.
    """

    __slots__ = ()

    def __iter__(self):
        return iter(self.as_list())

    def as_list(self):
        """The items of the answer."""
        found = _list_items(self)
        if found is None:
            found = [line.strip() for line in self.splitlines() if line.strip()]
            text = (
                "the model answered with text where a list was expected, so each line is an item; "
                "ask for a JSON list, or pass schema={'type': 'array', …}"
            )
            if not _warned:
                _warned.append(True)
                _ask("warn", {"text": text})
        return found


def _list_items(text):
    """The items of a JSON list, or of a text that is a list with bullets or numbers; else None."""
    text = text.strip()
    if text.startswith("```") and text.endswith("```") and "\n" in text:
        text = text[text.index("\n") + 1 : -3].strip()
    if text[:1] in ("[", "{"):
        try:
            value = json.loads(str(text))
        except (ValueError, RecursionError):
            return None
        if isinstance(value, dict) and len(value) == 1:
            # `{"claims": […]}` is how models that must answer with an object write a list.
            (value,) = value.values()
        return value if isinstance(value, list) else None
    found = []
    for line in text.splitlines():
        content = line.strip()
        item = _bullet(content)
        if item is not None:
            found.append(item)
        elif content and found:
            if not line[:1].isspace():
                # Text after a list, which would be lost.
                return None
            found[-1] += " " + content
        elif content and not content.endswith(":"):
            return None
    return found or None


def _bullet(line):
    """What follows the bullet or the number of a line, or None."""
    if line[:1] in ("-", "*", "+", "\u2022"):
        rest = line[1:]
    else:
        digits = len(line) - len(line.lstrip("0123456789"))
        if not 1 <= digits <= 4 or line[digits : digits + 1] not in (".", ")"):
            return None
        rest = line[digits + 1 :]
    return rest.strip() if rest[:1].isspace() else None


def _read_answer(text, schema):
    # With a schema for a list, the answer is that list.
    if isinstance(schema, dict) and schema.get("type") == "array":
        found = _list_items(text)
        if found is not None:
            return found
    return Answer(text)


def llm_query(prompt, system=None, max_tokens=None, schema=None):
    """Sends a prompt to the model; returns its answer, an `Answer`, or a list if `schema` asks for one."""
    args = {"prompt": prompt, "system": system, "max_tokens": max_tokens, "schema": schema}
    return _read_answer(_ask("llm_query", args), schema)


def llm_query_batched(prompts, system=None, max_tokens=None, schema=None):
    """Sends several prompts at once; returns the answers in the order of the prompts."""
    args = {"prompts": list(prompts), "system": system, "max_tokens": max_tokens, "schema": schema}
    return [_read_answer(text, schema) for text in _ask("llm_query_batched", args)]


_NOTHING = object()


def checkpoint(name, value=_NOTHING):
    """Stores a value, so that a resumed run has it.

    `checkpoint(name, value)` stores it, `checkpoint(name)` returns the stored value, or None. If
    the value is a function, it is called unless a value was stored, and its result is stored.
    """
    if value is _NOTHING:
        return _ask("checkpoint_load", {"name": name})["value"]
    if callable(value):
        kept = _ask("checkpoint_load", {"name": name})
        if kept["kept"]:
            return kept["value"]
        value = value()
    _ask("checkpoint_save", {"name": name, "value": value})
    return value


def run_skill(skill_id, params=None, artifact=None):
    """Runs another skill, or one artifact of it; returns its result."""
    return _ask("run_skill", {"skill": skill_id, "params": params or {}, "artifact": artifact})


def submit(value):
    """Submits the result of the script and ends the script."""
    _ask("submit", {"value": value})
    raise Submitted


# The short names.
search = workspace_search
page = get_page
pages = get_pages
pages_by_type = get_pages_by_type
tags = get_tags
references = get_references
history = get_history
query = llm_query
query_batched = llm_query_batched
