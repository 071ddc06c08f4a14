# expect: script_limit,script_error,sandbox_error
import sys

sys.setrecursionlimit(10**9)


class Deep:
    def __eq__(self, other):
        return self.child == other.child


a = b = None
for _ in range(200_000):
    one, two = Deep(), Deep()
    one.child, two.child = a, b
    a, b = one, two
print(a == b)
