# expect: ok nothing
try:
    import socket
except ImportError:
    socket = None

done = []
if socket:
    for attempt in (
        lambda: socket.create_connection(("127.0.0.1", 80), 1),
        lambda: socket.getaddrinfo("localhost", 80)[0],
        lambda: socket.socket().bind(("127.0.0.1", 0)),
        lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", 53)),
    ):
        try:
            attempt()
            done.append("sent")
        except (OSError, AttributeError, NotImplementedError):
            pass
print(done or "nothing")
