# expect: script_limit it took more than 1 s
# limits: {"seconds": 1}
while True:
    pass
