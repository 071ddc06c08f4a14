# expect: script_limit,script_error
eval("(" * 100_000 + ")" * 100_000)
