# expect: script_limit,script_error
import repertoire

held = []
for _ in range(200_000):
    held = [held]
repertoire.submit(held)
