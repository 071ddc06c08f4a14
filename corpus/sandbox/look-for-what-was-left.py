# expect: ok clean
import builtins, gc, sys, json

assert not hasattr(builtins, "planted") and "planted" not in sys.modules
assert not hasattr(json, "planted")
assert not any(isinstance(o, str) and o.startswith("secret of another") for o in gc.get_objects())
print("clean")
