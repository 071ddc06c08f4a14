# expect: script_limit it took more than 1 s
# limits: {"seconds": 1}
import time

time.sleep(1_000_000)
