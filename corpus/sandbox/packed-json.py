# expect: ok refused 4
import wit_world
from componentize_py_types import Err

# JSON in a string in JSON, and so on: each level would be read with a depth of its own.
packed = "[]"
for _ in range(250):
    inner = packed.replace("\\", "\\u005c").replace('"', "\\u0022")
    packed = "[" * 100 + '{"$serde_json::private::RawValue":"' + inner + '"}' + "]" * 100

refused = 0
for name, args in [
    ("submit", '{"value":' + packed + "}"),
    ("submit", '{"value":' + packed.replace("$", "\\u0024", 1) + "}"),
    ("checkpoint_save", '{"name": "x", "value":' + packed + "}"),
    ("run_skill", '{"skill": "x", "params": {"a":' + packed + "}}"),
]:
    try:
        wit_world.call(name, args)
    except Err as error:
        assert "reserved" in error.value, error.value
        refused += 1
print("refused", refused)
