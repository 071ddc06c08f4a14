# expect: budget_exceeded tokens were used
# limits: {"tokens": 2000}
import repertoire

repertoire.llm_query_batched(["word " * 100] * 500)
