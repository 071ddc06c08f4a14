# expect: script_limit it took more than 500000000 steps
# limits: {"fuel": 500000000}
while True:
    pass
