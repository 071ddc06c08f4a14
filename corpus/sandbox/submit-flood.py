# expect: script_limit it printed or submitted more than 100000 bytes
# limits: {"output": 100000}
import repertoire

repertoire.submit("x" * 200000)
