# expect: script_error,script_limit
import wit_world

wit_world.call(None, object())
