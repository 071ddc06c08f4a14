# expect: script_limit Python alone takes
# limits: {"memory": 1000000}
print("never")
