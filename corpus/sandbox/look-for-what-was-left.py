# expect: ok clean
import builtins, sys, json

assert not hasattr(builtins, "planted") and "planted" not in sys.modules
assert not hasattr(json, "planted")
print("clean")
