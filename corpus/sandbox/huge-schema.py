# expect: invalid_call llm_query: a schema has at most 65536 bytes
# limits: {"tokens": 1000}
import repertoire

repertoire.llm_query("x", schema={"description": "x" * 1_000_000})
