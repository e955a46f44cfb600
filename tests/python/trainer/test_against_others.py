"""The built-in trainer does what NumPy and PyTorch do: the same loss, and the same parameters after steps of SGD.

Batches hold all examples, so that the order in which the trainer visits them plays no part. Three steps with momentum
are three applications of every gradient; parameters are compared after each number of steps.
"""
import sys

sys.dont_write_bytecode = True

import unittest

import numpy

import kit

DENSE = ([12], 3, [("dense", {"units": 16}), ("relu", {}), ("dense", {"units": 9}), ("relu", {}), ("dense", {"units": 3})])
CONV = ([11, 10, 2], 4, [("conv", {"channels": 5, "kernel": 3, "padding": "same"}), ("relu", {}), ("maxpool", {"size": 2}),
                         ("conv", {"channels": 6, "kernel": 2, "padding": "valid"}), ("relu", {}), ("flatten", {}),
                         ("dense", {"units": 4})])
STEPS = ([9, 9, 1], 3, [("conv", {"channels": 4, "kernel": 3, "stride": 2}), ("relu", {}),
                        ("conv", {"channels": 3, "kernel": 4, "padding": "same"}), ("maxpool", {"size": 3}), ("flatten", {}),
                        ("dense", {"units": 3})])
RATE, MOMENTUM, SCALE, SHIFT = 0.1, 0.75, 0.5, 1.0
EXAMPLES = 24


def network_text(inputs, layers):
    lines = [f"input: {inputs}", f"scale: {SCALE}", f"shift: {SHIFT}", "layers:"]
    for kind, options in layers:
        lines.append("  - {" + ", ".join([f"kind: {kind}"] + [f"{k}: {v}" for k, v in options.items()]) + "}")
    return "\n".join(lines) + "\n"


def image_shape(inputs):
    return (inputs[2], inputs[0], inputs[1]) if len(inputs) == 3 else (inputs[0], 1, 1)


class Against(kit.Folder):
    def prepare(self, case):
        inputs, classes, layers = case
        random = numpy.random.default_rng(5)
        self.raw = random.normal(size=(EXAMPLES, int(numpy.prod(inputs)))).astype(numpy.float32).astype(numpy.float64)
        self.labels = random.integers(0, classes, size=EXAMPLES)
        self.x = ((self.raw - SHIFT) * SCALE).reshape(EXAMPLES, *image_shape(inputs))
        self.network = self.path / "network.yaml"
        self.network.write_text(network_text(inputs, layers))
        kit.write_csv(self.path / "data.csv", self.raw, self.labels)
        kit.sheaf("model", "init", self.network, "--seed", 3, "-o", self.path / "start.safetensors")
        self.start = kit.read_safetensors(self.path / "start.safetensors")
        self.layers = layers

    def train(self, steps):
        out = self.path / f"after-{steps}.safetensors"
        kit.sheaf("model", "train", self.network, "--data", self.path / "data.csv", "--from", self.path / "start.safetensors",
                  "--epochs", steps, "--batch", EXAMPLES, "--lr", RATE, "--momentum", MOMENTUM, "-o", out)
        return kit.read_safetensors(out)

    def evaluate(self, model):
        return kit.sheaf("model", "evaluate", self.network, self.path / model, "--data", self.path / "data.csv", "--json")

    def compare(self, found, expected, what):
        self.assertEqual(sorted(found), sorted(expected))
        for name, values in found.items():
            self.assertEqual(values.shape, tuple(expected[name].shape), name)
            moved = numpy.abs(expected[name] - self.start[name]).max()
            self.assertGreater(moved, 1e-4, f"{name} has not moved, so nothing is compared")
            numpy.testing.assert_allclose(values, expected[name], rtol=2e-5, atol=2e-6, err_msg=f"{what} {name}")


class NumPy(Against):
    def check(self, case):
        self.prepare(case)
        parameters = {name: value.astype(numpy.float64) for name, value in self.start.items()}
        velocity = {name: numpy.zeros_like(value) for name, value in parameters.items()}
        outputs, _ = kit.forward(self.layers, parameters, self.x)
        result = self.evaluate("start.safetensors")
        self.assertAlmostEqual(result["loss"], kit.loss_and_slope(outputs, self.labels)[0], delta=2e-6)
        self.assertAlmostEqual(result["accuracy"], (outputs.argmax(axis=1) == self.labels).mean(), delta=1e-9)
        for step in (1, 2, 3):
            _, found = kit.gradients(self.layers, parameters, self.x, self.labels)
            for name in parameters:
                velocity[name] = MOMENTUM * velocity[name] + found[name]
                parameters[name] = parameters[name] - RATE * velocity[name]
            self.compare(self.train(step), parameters, f"NumPy, step {step}:")

    def test_dense_layers(self):
        self.check(DENSE)

    def test_convolutions_and_pool(self):
        self.check(CONV)

    def test_convolutions_with_steps_and_even_windows(self):
        self.check(STEPS)


class PyTorch(Against):
    @classmethod
    def setUpClass(cls):
        try:
            import torch
        except ImportError:
            raise unittest.SkipTest("python3-torch is not installed: apt-get install python3-torch")
        torch.set_num_threads(1)
        cls.torch = torch

    def module(self, inputs):
        nn = self.torch.nn
        channels, features, made = image_shape(inputs)[0], None, []
        probe = self.torch.zeros(1, *image_shape(inputs))
        for kind, o in self.layers:
            if kind == "dense":
                features = int(numpy.prod(probe.shape[1:]))
                made.append(nn.Linear(features, o["units"]))
            elif kind == "conv":
                channels = probe.shape[1]
                made.append(nn.Conv2d(channels, o["channels"], o["kernel"], stride=o.get("stride", 1), padding=o.get("padding", "valid")))
            else:
                made.append({"relu": nn.ReLU, "flatten": nn.Flatten}[kind]() if kind != "maxpool" else nn.MaxPool2d(o["size"]))
            probe = made[-1](probe.flatten(1) if kind == "dense" else probe)
        return nn.Sequential(*made)

    def check(self, case):
        self.prepare(case)
        torch = self.torch
        module = self.module(case[0])
        # The names and shapes are PyTorch's own, so the file is a state_dict.
        module.load_state_dict({name: torch.from_numpy(value.copy()) for name, value in self.start.items()})
        optimizer = torch.optim.SGD(module.parameters(), lr=RATE, momentum=MOMENTUM)
        x = torch.from_numpy(self.x.astype(numpy.float32))
        if len(case[0]) == 1:
            x = x.flatten(1)
        labels = torch.from_numpy(self.labels)
        self.assertAlmostEqual(self.evaluate("start.safetensors")["loss"],
                               torch.nn.functional.cross_entropy(module(x), labels).item(), delta=2e-6)
        for step in (1, 2, 3):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(module(x), labels).backward()
            optimizer.step()
            self.compare(self.train(step), {n: v.detach().numpy() for n, v in module.state_dict().items()}, f"PyTorch, step {step}:")

    def test_dense_layers(self):
        self.check(DENSE)

    def test_convolutions_and_pool(self):
        self.check(CONV)

    def test_convolutions_with_steps_and_even_windows(self):
        self.check(STEPS)


if __name__ == "__main__":
    unittest.main()
