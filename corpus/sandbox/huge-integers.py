# expect: script_limit,script_error
# limits: {"seconds": 1}
print(10 ** (10**8) % 7)
