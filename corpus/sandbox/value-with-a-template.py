# expect: ok {{ 7 * 7 }} {% raw %}
# params: {"kind": "{{ 7 * 7 }} {% raw %}"}
print("{{ kind }}")
