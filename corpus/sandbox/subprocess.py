# expect: ok nothing
import os

done = []
for attempt in (
    lambda: os.system("true"),
    lambda: os.fork(),
    lambda: os.execv("/bin/sh", ["sh"]),
    lambda: __import__("subprocess").run(["true"]),
    lambda: os.posix_spawn("/bin/sh", ["sh"], {}),
):
    try:
        attempt()
        done.append("ran")
    except (OSError, AttributeError, ImportError, NotImplementedError):
        pass
print(done or "nothing")
