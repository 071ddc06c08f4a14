# expect: ok nothing
done = []
try:
    import threading

    thread = threading.Thread(target=lambda: done.append("ran"))
    thread.start()
    thread.join()
except (RuntimeError, ImportError, NotImplementedError):
    pass
print(done or "nothing")
