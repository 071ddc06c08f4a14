# expect: invalid_call get_pages: gives at most 100 pages
import repertoire

repertoire.get_pages(["places/grey-harbour"] * 100_000)
