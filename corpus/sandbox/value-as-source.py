# expect: ok harmless'); import os; raise SystemExit(7)  #
# params: {"kind": "harmless'); import os; raise SystemExit(7)  #"}
value = '{{ kind }}'
assert value == kind == {{ kind }} == params["kind"]
print(value)
