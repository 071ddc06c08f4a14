# expect: ok 3000
import repertoire

# One value that is replaced is one value.
for n in range(3000):
    repertoire.checkpoint("so far", n + 1)
for _ in range(20):
    repertoire.checkpoint("large", "x" * 1_000_000)
print(repertoire.checkpoint("so far"))
