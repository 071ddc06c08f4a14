# expect: ok refused 14
import wit_world
from componentize_py_types import Err

refused = 0
for name, args in [
    ("get_page", ""),
    ("get_page", "{"),
    ("get_page", "null"),
    ("get_page", "[]"),
    ("get_page", '{"name": 1}'),
    ("get_page", '{"name": "a", "name": "b"}'),
    ("get_page", '{"name": "a", "more": 1}'),
    ("get_page", "[" * 100_000),
    ("llm_query", '{"prompt": "x", "model": "openai/gpt", "api_key": "k"}'),
    ("run_skill", '{"skill": "../../etc", "params": 1}'),
    ("checkpoint_save", '{"name": "", "value": 1}'),
    ("checkpoint_save", '{"name": "' + "x" * 1000 + '", "value": 1}'),
    ("open_file", "{}"),
    ("\x00" * 1000, "{}"),
]:
    try:
        wit_world.call(name, args)
    except Err as error:
        assert '"code"' in error.value, error.value
        refused += 1
print("refused", refused)
