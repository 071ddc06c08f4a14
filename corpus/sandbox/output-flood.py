# expect: script_limit it printed or submitted more than 100000 bytes
# limits: {"output": 100000}
while True:
    print("x" * 1000)
