# expect: script_limit,sandbox_error
import os

os._exit(0)
