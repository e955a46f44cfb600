#!/usr/bin/python3
"""Samples a second of the built-in trainer against PyTorch, both on one core, in the same run.

    bench_trainer.py BENCH_TRAINER [--seconds S]      BENCH_TRAINER: the program of the release preset

Prints one JSON object on one line. Ours and PyTorch take turns, each pinned to the same core, and the best tenth of each
counts: another program on the machine can only slow a slice down. PyTorch is as good as its BLAS; the object names it.
Debian's python3-torch uses the slow reference BLAS unless libopenblas0-pthread is installed.
"""
import sys

sys.dont_write_bytecode = True

import argparse
import json
import os
import pathlib
import platform
import re
import subprocess
import time

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import torch

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples" / "fashion-mnist"
BATCH, COUNT, TURNS = 32, 1024, 3
torch.set_num_threads(1)


def dense():
    nn = torch.nn
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))


def conv():
    nn = torch.nn
    return nn.Sequential(nn.Conv2d(1, 8, 3, padding="same"), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding="same"),
                         nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))


def shapes_in_file(name):
    """The layers' numbers in the model file, so that a changed file cannot be compared with another network."""
    return re.findall(r"(?:units|channels): (\d+)", "\n".join(
        line for line in (EXAMPLES / name).read_text().splitlines() if not line.lstrip().startswith("#")))


def shapes_of(module):
    return [str(layer.weight.shape[0]) for layer in module if hasattr(layer, "weight")]


class Torch:
    def __init__(self, module):
        self.module, self.loss = module, torch.nn.CrossEntropyLoss()
        self.optimizer = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)
        self.x, self.y = torch.rand(COUNT, 1, 28, 28), torch.arange(COUNT) % 10

    def epoch(self):
        for first in range(0, COUNT, BATCH):
            self.optimizer.zero_grad(set_to_none=True)
            self.loss(self.module(self.x[first:first + BATCH]), self.y[first:first + BATCH]).backward()
            self.optimizer.step()

    def rates(self, seconds):
        self.epoch()  # not counted: the first one builds kernels
        for _ in range(10):
            start, done = time.perf_counter(), 0
            while time.perf_counter() - start < seconds / 10:
                self.epoch()
                done += COUNT
            yield done / (time.perf_counter() - start)


def ours(program, name, seconds):
    done = subprocess.run([program, EXAMPLES / name, str(BATCH), str(seconds)], stdout=subprocess.PIPE, text=True, check=True)
    return [float(line) for line in done.stdout.split()]


def blas():
    found = {os.path.basename(os.path.dirname(line.split()[-1])) for line in open("/proc/self/maps") if "libblas" in line}
    return ", ".join(sorted(found)) or "unknown"


def machine():
    for line in open("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--seconds", type=float, default=2.0)
    options = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # the program below inherits it
    results = []
    for title, name, make in (("two layers 784-256-10", "dense.yaml", dense), ("two convolutions 8/16", "conv.yaml", conv)):
        module = make()
        if shapes_in_file(name) != shapes_of(module):
            sys.exit(f"bench_trainer: {name} holds another network than is built here for PyTorch")
        reference, mine, other = Torch(module), [], []
        for _ in range(TURNS):
            mine += ours(options.program, name, options.seconds)
            other += reference.rates(options.seconds)
        results.append({"name": f"{title}, batch {BATCH}", "value": round(max(mine)), "unit": "samples/s",
                        "reference": round(max(other)), "ratio": round(max(mine) / max(other), 3)})
    print(json.dumps({"bench": "trainer", "machine": machine(), "reference": f"PyTorch {torch.__version__}, BLAS {blas()}",
                      "results": results}))


if __name__ == "__main__":
    main()
