# expect: ok True
# params: {"print": 1, "__builtins__": 2, "params": 3, "class": 4, "__name__": "x", "not a name": 5}
print(params["print"] == 1 and params["class"] == 4 and __name__ == "__main__")
