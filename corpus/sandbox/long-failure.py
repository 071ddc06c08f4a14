# expect: sandbox_error did not say
import json

json.dumps = lambda *_: '{"type": "E", "message": "' + "A" * 20_000_000 + '", "line": 1}'
raise ValueError
