# expect: ok nothing
import os

found = []
for path in ("/etc/passwd", "/", ".", "/proc/self/environ", "../../etc/passwd", "/dev/zero"):
    for attempt in (lambda: open(path).read(), lambda: os.listdir(path), lambda: os.stat(path)):
        try:
            attempt()
            found.append(path)
        except OSError:
            pass
print(found or "nothing")
