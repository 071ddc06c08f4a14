"""The guest: runs one script, once, with its values bound as data.

Each value that a template put into the script is a hole with its own name. Holes are filled after
the script has been parsed, so that no value can become source.
"""

import ast
import builtins
import gc
import importlib
import json
import keyword
import linecache
import random
import sys
import traceback

import host
from componentize_py_types import Err
from wit_world import WitWorld as World

# Only modules that are imported at build time are available at run time.
_LIBRARY = """
abc argparse array ast base64 binascii bisect calendar cmath cmd codecs collections collections.abc
colorsys configparser contextlib contextvars copy copyreg csv dataclasses datetime decimal difflib
dis email.message email.parser enum errno fileinput filecmp fnmatch fractions functools gc getopt
gettext glob graphlib hashlib heapq hmac html html.entities html.parser inspect io ipaddress
itertools json keyword linecache locale logging math mimetypes numbers opcode operator os os.path
pathlib pickle pprint posixpath quopri random re reprlib secrets shlex shutil signal stat statistics
string stringprep struct sched tempfile textwrap threading time timeit token tokenize tomllib
traceback types typing unicodedata unittest urllib.parse uuid warnings wave weakref
xml.etree.ElementTree zlib zoneinfo
asyncio concurrent.futures queue socket subprocess
encodings.ascii encodings.cp1252 encodings.cp437 encodings.idna encodings.iso8859_1
encodings.iso8859_15 encodings.latin_1 encodings.punycode encodings.raw_unicode_escape
encodings.unicode_escape encodings.utf_16 encodings.utf_16_be encodings.utf_16_le encodings.utf_32
encodings.utf_8 encodings.utf_8_sig encodings.base64_codec encodings.hex_codec encodings.rot_13
"""

for _name in _LIBRARY.split():
    try:
        importlib.import_module(_name)
    except Exception:  # Modules that this Python was built without are skipped.
        pass

sys.modules["repertoire"] = sys.modules["inklings"] = host

# Flush every line, so that output is not lost when a script is stopped.
for _stream in (sys.stdout, sys.stderr):
    _stream.reconfigure(line_buffering=True)

_FILE = "skill.py"


class _Holes(ast.NodeTransformer):
    """Puts values into the strings of a script. A hole that is an expression stays a name."""

    def __init__(self, holes):
        self.holes = holes

    def visit_Constant(self, node):
        if isinstance(node.value, str):
            node.value = self._fill(node.value, lambda text: text)
        elif isinstance(node.value, bytes):
            node.value = self._fill(node.value, lambda text: text.encode())
        return node

    def _fill(self, text, form):
        # In one pass, so that a value that looks like a hole is not filled.
        parts, rest = [], text
        while True:
            found = [(at, hole) for hole in self.holes if (at := rest.find(form(hole))) >= 0]
            if not found:
                break
            at, hole = min(found)
            parts += [rest[:at], form(self.holes[hole]["text"])]
            rest = rest[at + len(hole) :]
        return form("").join([*parts, rest]) if parts else text


def _namespace(given):
    names = {"__name__": "__main__", "__builtins__": builtins, "params": given["values"]}
    for name, value in given["values"].items():
        usual = name.isidentifier() and not keyword.iskeyword(name) and not name.startswith("__")
        if usual and name not in names and not hasattr(builtins, name):
            names[name] = value
    names.update((hole, filled["value"]) for hole, filled in given["holes"].items())
    return names


def _describe_error(error, source):
    """Describes an exception, with the line of the script."""
    linecache.cache[_FILE] = (len(source), None, source.splitlines(True), _FILE)
    message = str(error)
    if isinstance(error, SyntaxError) and error.filename == _FILE:
        line, message = error.lineno, str(error.msg)
    else:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == _FILE]
        line = lines[-1] if lines else None
    return {"type": type(error).__name__, "message": message[:2000], "line": line}


def _flush():
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            pass


class WitWorld(World):
    def run(self, code, given):
        given = host._read(given, 0)[0]
        # The random state from build time is shared by every instance.
        random.seed()
        try:
            script = code
            if given["holes"]:
                script = _Holes(given["holes"]).visit(ast.parse(code, _FILE))
            exec(compile(script, _FILE, "exec"), _namespace(given))
        except host.Submitted:
            pass
        except SystemExit as left:
            if left.code not in (None, 0):
                _flush()
                raise Err(json.dumps(_describe_error(left, code)))
        except BaseException as error:
            _flush()
            raise Err(json.dumps(_describe_error(error, code)))
        _flush()
        return "{}"


def _pack():
    """Fills the gaps between existing objects, so that a script's objects are contiguous.

    Memory pages are shared with every other instance of this guest until they are written to: the
    fewer pages a script writes to, the sooner it finishes.
    """
    taken, top = [], 0
    for size in [1 << power | half << (power - 1) for power in range(19, 3, -1) for half in (1, 0)]:
        beyond = 0
        while beyond < 4:
            taken.append(bytes(size))
            beyond = beyond + 1 if id(taken[-1]) > top else 0
            top = max(top, id(taken[-1]))
    return taken


# Python specialises code that runs often; do so once here instead of in every script.
for _ in range(20):
    WitWorld().run("import repertoire\nprint(end='')", '{"values": {"value": 1}, "holes": {}}')
gc.collect()
_taken = _pack()
# Garbage collection writes to pages, too.
gc.freeze()
