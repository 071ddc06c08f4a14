# expect: script_limit it took more than 1 s
# limits: {"seconds": 1}
block = bytes(40 * 1024 * 1024)
while True:
    bytearray(block)
