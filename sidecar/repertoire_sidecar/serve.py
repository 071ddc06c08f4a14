"""The loop: what comes in is done on a thread of its own, what comes out is one line."""

import logging
import os
import platform
import sys
from concurrent.futures import ThreadPoolExecutor

from .wire import PROTOCOL, Refused, over_stdio

# How many requests are worked on at a time.
AT_ONCE = 8


def _work(pipe, handlers, request):
    identity = request.get("id")
    try:
        handler = handlers.get(request.get("type"))
        if handler is None:
            raise Refused("unknown_request", f"there is no request {request.get('type')!r}")
        pipe.send({"type": "result", "id": identity, **handler(request)})
    except Refused as refused:
        _tell(pipe, identity, refused.code, str(refused))
    except BaseException as error:  # Whatever it is, the host is told.
        cause = error
        while cause is not None and not isinstance(cause, Refused):
            cause = cause.__cause__ or cause.__context__
        if cause is not None:
            _tell(pipe, identity, cause.code, str(cause))
        else:
            _tell(pipe, identity, "program_error", f"{type(error).__name__}: {error}"[:4000])
    finally:
        pipe.forget(identity)


def _tell(pipe, identity, code, message):
    pipe.send({"type": "error", "id": identity, "code": code, "message": message})


def main():
    pipe = over_stdio()
    os.environ.setdefault("DSPY_CACHEDIR", os.path.join(os.getcwd(), "cache"))
    import dspy

    from . import optimise, templates

    logging.disable(logging.INFO)
    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=False)
    handlers = {
        "execute": lambda request: optimise.execute(pipe, request),
        "optimize": lambda request: optimise.optimise(pipe, request),
        "manifest": lambda request: {
            "templates": templates.manifest(),
            "optimizers": list(optimise.OPTIMISERS),
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
        print(f"the host says nothing that can be read: {error}", file=sys.stderr)
    # Threads that wait for nobody do not keep it.
    os._exit(0)
