# expect: budget_exceeded tokens were used
# limits: {"tokens": 2000}
import repertoire

while True:
    repertoire.llm_query("word " * 100)
