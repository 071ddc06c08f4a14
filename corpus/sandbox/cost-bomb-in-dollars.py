# expect: budget_exceeded were spent
# limits: {"cost": 0.002}
import repertoire

while True:
    repertoire.llm_query("word " * 100)
