# expect: ok 3
import json, repertoire

# Whatever it does to its own module, the host sees a call like any other.
json.dumps = lambda value: '{"value": 3, "value": 4}'
try:
    repertoire.submit(1)
except repertoire.Error:
    pass
import importlib

print(3)
