# expect: script_limit it took more than 1 s
# limits: {"seconds": 1}
import re

re.match(r"(a+)+$", "a" * 60 + "b")
