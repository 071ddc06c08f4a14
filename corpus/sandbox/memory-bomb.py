# expect: script_error MemoryError
parts = []
while True:
    parts.append(bytearray(8 * 1024 * 1024))
