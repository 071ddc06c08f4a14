# expect: ok nothing
import os, tempfile

done = []
for attempt in (
    lambda: open("/tmp/planted", "w").write("x"),
    lambda: os.mkdir("planted"),
    lambda: tempfile.mkstemp(),
    lambda: os.symlink("/etc/passwd", "planted"),
):
    try:
        attempt()
        done.append("wrote")
    except (OSError, NotImplementedError, AttributeError):
        pass
print(done or "nothing")
