# expect: ok {} []
import os, sys

print(dict(os.environ), [arg for arg in sys.argv if arg])
