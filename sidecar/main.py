"""Starts the sidecar from any folder it is installed in."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from repertoire_sidecar.serve import main

main()
