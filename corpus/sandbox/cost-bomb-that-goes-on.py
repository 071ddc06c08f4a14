# expect: script_limit it called the host more than 200 times
# limits: {"tokens": 2000, "host_calls": 200}
import repertoire

while True:
    try:
        repertoire.llm_query("word " * 100)
    except repertoire.Error:
        pass
