# expect: script_error MemoryError
text = "x"
while True:
    text += text
