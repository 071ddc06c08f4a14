# expect: ok left
import builtins, sys, json

builtins.planted = sys.modules["planted"] = json.planted = "left"
print("left")
