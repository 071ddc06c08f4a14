# expect: ok refused
import time

for attempt in (
    lambda: time.clock_settime(time.CLOCK_REALTIME, 0),
    lambda: time.clock_settime_ns(time.CLOCK_REALTIME, 0),
):
    try:
        attempt()
        print("the clock was set")
    except (OSError, AttributeError, NotImplementedError):
        pass
before = time.monotonic()
assert time.monotonic() >= before
assert 1_700_000_000 < time.time() < 10_000_000_000
print("refused")
