# expect: script_error Circular
import repertoire

held = []
held.append(held)
try:
    repertoire.checkpoint("held", held)
except ValueError:
    # What failed is not taken for what is under way now.
    repertoire.checkpoint("held", held[:0])
repertoire.submit(held)
