"""A stand-in for `smallinit.bench.worker` that speaks its protocol and makes its seconds up; see test_bench."""

import json
import os
import sys

STEP_SECONDS = {"ours": 0.01, "square": 0.001, "shapes": 0.002, "hf-trainer": 0.04}  # all others: 0.02

case = json.loads(sys.stdin.readline())
name = case["contestant"]
seconds = STEP_SECONDS.get(name, 0.02)
if name.startswith("hf") and "MALLOC_TOP_PAD_" in os.environ:
    seconds *= 0.8
problem = None
if name == os.environ.get("FAKE_PROBLEM"):
    problem = "RuntimeError: made up"
elif name.startswith("litgpt") and case["packages"] is None:
    problem = "ImportError: litgpt is not installed"

print(json.dumps({"problem": problem} if problem else {"seconds": seconds}), flush=True)
for line in sys.stdin if problem is None else []:
    command = json.loads(line)
    if "finish" in command:
        print(
            json.dumps({"loss": None if name in ("square", "shapes") else 5.0, "peak_bytes": 100 * 2**20}), flush=True
        )
        break
    print(json.dumps({"seconds": command["steps"] * seconds}), flush=True)
