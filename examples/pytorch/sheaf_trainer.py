"""sheaf_trainer - the talk between sheaf-edge and a PyTorch program (docs/TRAINERS.md), so that the program need not know it.

    with sheaf_trainer.Round(model, examples=len(x)) as job:
        for batch in job.batches():      # tensors of indices: job.epochs passes in batches of job.batch, shuffled
            ...                          # one step
            job.report(loss.item())

Needs the standard library and torch only. Everything that the program prints goes to the daemon's log.
`PROGRAM ... --initial FILE` writes the model as it is built, as a job's first model version, and ends.
"""
import json
import os
import struct
import sys
import threading

import torch


def read_safetensors(path):
    """{name: float32 tensor} of a safetensors file that holds nothing else."""
    with open(path, "rb") as file:
        data = file.read()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        if entry["dtype"] != "F32":
            raise ValueError(f"{name}: dtype {entry['dtype']}, expected F32")
        begin, end = entry["data_offsets"]
        values = torch.tensor([]) if begin == end else torch.frombuffer(
            bytearray(data[8 + size + begin:8 + size + end]), dtype=torch.float32)
        tensors[name] = values.reshape(entry["shape"])
    return tensors


def write_safetensors(path, tensors):
    header, parts, at = {}, [], 0
    for name, tensor in tensors.items():
        part = bytes(tensor.detach().to("cpu", torch.float32).contiguous().numpy().data)
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [at, at + len(part)]}
        parts.append(part)
        at += len(part)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for part in parts:
            file.write(part)


def _end_with_the_daemon():
    """Standard input ends when the daemon is gone, however it went; a trainer must not work on for nobody."""
    while os.read(0, 4096):  # not sys.stdin, whose lock this thread would hold when the interpreter ends
        pass
    os._exit(1)


class Round:
    """One round of training. Attributes: the plan's (epochs, batch, learning_rate, momentum, round, seed ...)."""

    def __init__(self, model, examples):
        self._model, self._examples = model, examples
        self._done = self._steps = 0
        self._permille, self._losses = -1, []

    def __enter__(self):
        if "--initial" in sys.argv:
            write_safetensors(sys.argv[sys.argv.index("--initial") + 1], self._model.state_dict())
            sys.exit(0)
        # Standard output belongs to the protocol: what the program prints goes to the log instead.
        self._out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        self._plan = json.loads(sys.stdin.readline())
        threading.Thread(target=_end_with_the_daemon, daemon=True).start()
        torch.manual_seed(int(self._plan["seed"][:16], 16) & (2**63 - 1))
        self._names = self._load(read_safetensors(self._plan["parameters"]))
        return self

    def __getattr__(self, name):
        if name != "_plan" and name in self.__dict__.get("_plan", {}):
            return self._plan[name]
        raise AttributeError(name)

    def _load(self, tensors):
        state = self._model.state_dict()
        unknown = sorted(set(tensors) - set(state))
        if unknown:
            raise KeyError(f"the job's model has tensors that this one has not: {unknown}")
        state.update(tensors)
        self._model.load_state_dict(state)
        return list(tensors)

    def _say(self, **line):
        print(json.dumps(line), file=self._out, flush=True)

    def batches(self):
        per_epoch = -(-self._examples // self.batch)
        self._steps = per_epoch * self.epochs
        for _ in range(self.epochs):
            order = torch.randperm(self._examples)
            self._losses = []
            for at in range(per_epoch):
                yield order[at * self.batch:(at + 1) * self.batch]
                self._done += 1

    def report(self, loss):
        """The loss of a step; the daemon hears of it when another thousandth is done."""
        self._losses.append(loss)
        permille = 1000 * self._done // max(1, self._steps)
        if permille > self._permille:
            self._permille = permille
            self._say(event="progress", done_permille=permille, loss=self._loss())

    def _loss(self):
        return sum(self._losses) / len(self._losses) if self._losses else None

    def __exit__(self, kind, value, traceback):
        if kind is not None:
            return False
        state = self._model.state_dict()
        write_safetensors(self._plan["result"], {name: state[name] for name in self._names})
        self._say(event="done", examples=self._examples, loss=self._loss())
        return False
