# expect: invalid_call workspace_search: takes at most 4096 bytes
import repertoire

repertoire.search(" ".join(f"word{n}" for n in range(200_000)))
