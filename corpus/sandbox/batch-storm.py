# expect: script_limit it called the host more than 50 times
# limits: {"host_calls": 50}
import repertoire

repertoire.llm_query_batched(["x"] * 51)
