# expect: invalid_call a run keeps at most 16777216 bytes
import repertoire

for n in range(100):
    repertoire.checkpoint(f"value {n}", "x" * 1_000_000)
