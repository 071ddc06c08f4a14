# expect: ok 3
import repertoire

# Whatever it does to its own module, the host sees a call like any other.
repertoire._written = lambda value, depth: ['{"value": 3, "value": 4}']
try:
    repertoire.submit(1)
except repertoire.Error:
    print(3)
