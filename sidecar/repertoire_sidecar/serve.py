"""The main loop: handles each request on a thread and writes one line per reply."""

import logging
import os
import platform
import sys
from concurrent.futures import ThreadPoolExecutor

from .wire import PROTOCOL, Refused, over_stdio

# How many requests are handled at a time.
AT_ONCE = 8


def _work(pipe, handlers, request):
    identity = request.get("id")
    try:
        handler = handlers.get(request.get("type"))
        if handler is None:
            raise Refused("unknown_request", f"there is no request {request.get('type')!r}")
        pipe.send({"type": "result", "id": identity, **handler(request)})
    except Refused as refused:
        _send_error(pipe, identity, refused.code, str(refused))
    except BaseException as error:  # Every failure is reported to the host.
        cause = error
        while cause is not None and not isinstance(cause, Refused):
            cause = cause.__cause__ or cause.__context__
        if cause is not None:
            _send_error(pipe, identity, cause.code, str(cause))
        else:
            message = f"{type(error).__name__}: {error}"[:4000]
            _send_error(pipe, identity, "program_error", message)
    finally:
        pipe.forget(identity)


def _send_error(pipe, identity, code, message):
    pipe.send({"type": "error", "id": identity, "code": code, "message": message})


def main():
    pipe = over_stdio()
    os.environ.setdefault("DSPY_CACHEDIR", os.path.join(os.getcwd(), "cache"))
    import dspy

    from . import optimize, templates

    logging.disable(logging.INFO)
    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=False)
    handlers = {
        "execute": lambda request: optimize.execute(pipe, request),
        "optimize": lambda request: optimize.optimize(pipe, request),
        "manifest": lambda request: {
            "templates": templates.manifest(),
            "optimizers": list(optimize.OPTIMIZERS),
        },
    }
    pipe.send(
        {
            "type": "ready",
            "protocol": PROTOCOL,
            "dspy": dspy.__version__,
            "python": platform.python_version(),
        }
    )
    pool = ThreadPoolExecutor(max_workers=AT_ONCE)
    try:
        for request in pipe.requests():
            pool.submit(_work, pipe, handlers, request)
    except (ValueError, Refused) as error:
        print(f"cannot read a message from the host: {error}", file=sys.stderr)
    # Exit at once: threads that are still running must not keep the process alive.
    os._exit(0)
