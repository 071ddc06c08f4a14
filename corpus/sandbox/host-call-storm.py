# expect: script_limit it called the host more than 50 times
# limits: {"host_calls": 50}
import repertoire

while True:
    try:
        repertoire.get_tags()
    except BaseException:
        pass
