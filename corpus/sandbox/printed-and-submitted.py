# expect: script_limit it printed or submitted more than 100000 bytes
# limits: {"output": 100000}
import repertoire

print("x" * 60_000)
repertoire.submit("x" * 60_000)
