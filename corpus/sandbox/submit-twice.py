# expect: ok first
import repertoire

try:
    repertoire.submit("first")
except BaseException:
    pass
try:
    repertoire.submit("second")
except repertoire.Error:
    pass
