# expect: script_limit it printed or submitted more than 100000 bytes
# limits: {"output": 100000}
import os

for _ in range(1000):
    os.write(1, b"x" * 1000)
