# expect: script_error RecursionError
def deeper():
    deeper()


deeper()
