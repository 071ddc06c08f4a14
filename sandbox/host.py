"""What a script can ask of whoever runs it: importable as `repertoire` and as `inklings`.

Nothing here is a guard: a script can reach the bridge beneath it, and the host checks every call.
"""

import json

from componentize_py_types import Err
from wit_world import call as _bridge

__all__ = [
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
    """A call the host refused or could not answer; `code` says why and never changes."""

    def __init__(self, code, message):
        super().__init__(message)
        self.code = code


class Submitted(BaseException):
    """Ends a script that has submitted its result."""


# What json.dumps and json.loads make anew, or look for, at every call.
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
        told = json.loads(refused.value)
        raise Error(told["code"], told["message"]) from None
    return _read(answer, 0)[0]


def workspace_search(query, limit=10):
    """The pages that fit some words best: a list of `slug`, `title`, `excerpt`, `score`."""
    return _ask("workspace_search", {"query": query, "limit": limit})


def get_page(name):
    """A page by its slug, title or other name: `slug`, `title`, `type`, `tags`, `text`; or None."""
    return _ask("get_page", {"name": name})


def get_pages(names):
    """Several pages; those that are not there are left out."""
    return _ask("get_pages", {"names": list(names)})


def get_pages_by_type(type):
    """The pages of a type, without their text."""
    return _ask("get_pages_by_type", {"type": type})


def get_tags():
    """Every tag with the number of pages that have it: a list of `name`, `pages`."""
    return _ask("get_tags", {})


def get_references(name):
    """What a page is bound to: `links`, `backlinks`, `missing`."""
    return _ask("get_references", {"name": name})


def get_history(name, limit=20):
    """The changes of a page, newest first: a list of `id`, `author`, `at`, `summary`."""
    return _ask("get_history", {"name": name, "limit": limit})


def llm_query(prompt, system=None, max_tokens=None, schema=None):
    """Asks the model; gives its answer as text."""
    args = {"prompt": prompt, "system": system, "max_tokens": max_tokens, "schema": schema}
    return _ask("llm_query", args)


def llm_query_batched(prompts, system=None, max_tokens=None, schema=None):
    """Asks the model several things at once; gives the answers in the order of the prompts."""
    args = {"prompts": list(prompts), "system": system, "max_tokens": max_tokens, "schema": schema}
    return _ask("llm_query_batched", args)


_NOTHING = object()


def checkpoint(name, value=_NOTHING):
    """Keeps a value, so that a run that is resumed has it.

    `checkpoint(name, value)` keeps it, `checkpoint(name)` gives what was kept, or None. With a
    function for a value, the function is called unless a value was kept, and its result is kept.
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
    """Runs another skill, or one artifact of it; gives what it gave."""
    return _ask("run_skill", {"skill": skill_id, "params": params or {}, "artifact": artifact})


def submit(value):
    """Gives the result of the script, and ends it."""
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
