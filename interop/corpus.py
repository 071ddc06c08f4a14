"""Writes the skills of corpus/irregular: corpus.py CASES FOLDER EXPECTED.

EXPECTED becomes a JSON list of what each skill is served as, for the clients that check it.
"""

import json
import sys
import tomllib
from pathlib import Path

cases_file, folder, expected_file = sys.argv[1:]
expected = []
for case in tomllib.loads(Path(cases_file).read_text())["case"]:
    document = case["document"].replace("{1025}", "x" * 1025).replace("{1024é}", "é" * 1024)
    files = {case.get("document_name", "SKILL.md"): document, **case.get("files", {})}
    for path, text in files.items():
        file = Path(folder, case["folder"], path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, newline="")
    if "id" in case:
        expected.append(
            {
                "about": case["about"],
                "uri": f"skill://{case['id']}/SKILL.md",
                "document": document,
                "listed": "unlisted" not in case,
            }
        )
Path(expected_file).write_text(json.dumps(expected))
