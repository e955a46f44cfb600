"""What the tests of the trainer share: the `sheaf` tool, safetensors files in plain Python, and a second
implementation of the network in NumPy, in float64, written from the definitions."""
import json
import os
import pathlib
import struct
import subprocess
import tempfile
import unittest

import numpy

SHEAF = pathlib.Path(os.environ["SHEAF_BUILD"]) / "server" / "sheaf"


def sheaf(*arguments, expect=0):
    """Runs the tool; returns the object that it prints with --json, or its stderr when it must fail."""
    done = subprocess.run([SHEAF, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=300)
    if done.returncode != expect:
        raise AssertionError(f"sheaf {arguments}: exit {done.returncode}, expected {expect}: {done.stdout}{done.stderr}")
    return done.stderr if expect else (json.loads(done.stdout) if "--json" in arguments else done.stdout)


def read_safetensors(path):
    data = pathlib.Path(path).read_bytes()
    (size,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8:8 + size])
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        first, last = entry["data_offsets"]
        tensors[name] = numpy.frombuffer(data[8 + size + first:8 + size + last], dtype="<f4").reshape(entry["shape"])
    return tensors


def write_csv(path, features, labels):
    names = [f"f{i}" for i in range(features.shape[1])]
    rows = [",".join([repr(float(v)) for v in row] + [str(int(label))]) for row, label in zip(features, labels)]
    pathlib.Path(path).write_text("\n".join([",".join(names + ["label"]), *rows, ""]))


class Folder(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="sheaf-trainer-")
        self.addCleanup(self.folder.cleanup)
        self.path = pathlib.Path(self.folder.name)


# ---- the second implementation: layers as (kind, options), x as [batch, channels, height, width] ----

def conv_windows(x, kernel, stride, padding):
    if padding == "same":
        before, after = (kernel - 1) // 2, kernel - 1 - (kernel - 1) // 2
        x = numpy.pad(x, ((0, 0), (0, 0), (before, after), (before, after)))
    windows = numpy.lib.stride_tricks.sliding_window_view(x, (kernel, kernel), axis=(2, 3))
    return windows[:, :, ::stride, ::stride], x.shape


def forward(layers, parameters, x):
    """Outputs, and what backward needs of each layer."""
    kept = []
    for position, (kind, o) in enumerate(layers):
        kept.append(x)
        if kind == "dense":
            x = (x.reshape(len(x), -1) @ parameters[f"{position}.weight"].T + parameters[f"{position}.bias"])[:, :, None, None]
        elif kind == "conv":
            windows, _ = conv_windows(x, o["kernel"], o.get("stride", 1), o.get("padding", "valid"))
            x = numpy.einsum("bchwij,ocij->bohw", windows, parameters[f"{position}.weight"])
            x = x + parameters[f"{position}.bias"][None, :, None, None]
        elif kind == "relu":
            x = numpy.maximum(x, 0)
        elif kind == "maxpool":
            s = o["size"]
            b, c, h, w = x.shape
            x = x[:, :, :h // s * s, :w // s * s].reshape(b, c, h // s, s, w // s, s).max(axis=(3, 5))
    return x.reshape(len(x), -1), kept


def loss_and_slope(outputs, labels):
    shifted = outputs - outputs.max(axis=1, keepdims=True)
    likely = numpy.exp(shifted)
    likely /= likely.sum(axis=1, keepdims=True)
    rows = numpy.arange(len(labels))
    loss = -numpy.log(likely[rows, labels]).mean()
    likely[rows, labels] -= 1
    return loss, likely / len(labels)


def conv_backward(o, weight, x, slope):
    kernel, stride, padding = o["kernel"], o.get("stride", 1), o.get("padding", "valid")
    windows, padded = conv_windows(x, kernel, stride, padding)
    gradient = numpy.einsum("bohw,bchwij->ocij", slope, windows)
    before = numpy.zeros(padded)
    for i in range(kernel):
        for j in range(kernel):
            part = numpy.einsum("bohw,oc->bchw", slope, weight[:, :, i, j])
            h, w = part.shape[2:]
            before[:, :, i:i + stride * h:stride, j:j + stride * w:stride] += part
    if padding == "same":
        cut = (kernel - 1) // 2
        before = before[:, :, cut:cut + x.shape[2], cut:cut + x.shape[3]]
    return gradient, before


def pool_backward(size, x, slope):
    before = numpy.zeros_like(x)
    for b, c, y, z in numpy.ndindex(slope.shape):
        window = x[b, c, y * size:(y + 1) * size, z * size:(z + 1) * size]
        i, j = numpy.unravel_index(window.argmax(), window.shape)
        before[b, c, y * size + i, z * size + j] = slope[b, c, y, z]
    return before


def gradients(layers, parameters, x, labels):
    outputs, kept = forward(layers, parameters, x)
    loss, slope = loss_and_slope(outputs, labels)
    slope = slope[:, :, None, None]
    found = {}
    for position in reversed(range(len(layers))):
        kind, o = layers[position]
        x = kept[position]
        if kind == "dense":
            flat = slope.reshape(len(slope), -1)
            found[f"{position}.weight"] = flat.T @ x.reshape(len(x), -1)
            found[f"{position}.bias"] = flat.sum(axis=0)
            slope = (flat @ parameters[f"{position}.weight"]).reshape(x.shape)
        elif kind == "conv":
            found[f"{position}.bias"] = slope.sum(axis=(0, 2, 3))
            found[f"{position}.weight"], slope = conv_backward(o, parameters[f"{position}.weight"], x, slope)
        elif kind == "relu":
            slope = slope * (x > 0)
        elif kind == "maxpool":
            slope = pool_backward(o["size"], x, slope)
        elif kind == "flatten":
            slope = slope.reshape(x.shape)
    return loss, found
