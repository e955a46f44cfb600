"""`sheaf-edge --trainer exec:PROGRAM`: a program of the user's trains, well or badly, against a running sheafd."""
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).parent))

import edge_kit  # noqa: E402

MODEL = {"b": ([3], [0.5, -1.0, 2.0]), "w": ([2, 2], [1.0, 2.0, 3.0, 4.0])}

# A trainer in a few lines of any language; {body} may spoil it.
PROGRAM = """#!/usr/bin/python3
import json, os, pathlib, subprocess, sys, time
sys.dont_write_bytecode = True
sys.path.insert(0, {kit!r})
from edge_kit import read_safetensors, write_safetensors
plan = json.loads(sys.stdin.readline())
def say(**line): print(json.dumps(line), flush=True)
tensors = read_safetensors(plan["parameters"])
result = pathlib.Path(plan["result"])
def done(examples=5): say(event="done", examples=examples, loss=0.25)
def add(amount):
    return {{name: (shape, [v + amount for v in values]) for name, (shape, values) in tensors.items()}}
{body}
"""
GOOD = """
say(event="progress", done_permille=500, loss=0.5)
print("a word for the log", file=sys.stderr)
write_safetensors(result, add(0.25))
done()
"""
# What is wrong, the trainer that does it, and the status that the device must tell.
BAD = [
    ("exit code", "sys.exit(3)", "trainer"),
    ("no done line", "write_safetensors(result, add(1))", "trainer"),
    ("no result", "done()", "trainer"),
    ("text on standard output", "print('epoch 1'); write_safetensors(result, add(1)); done()", "trainer"),
    ("an endless line", "sys.stdout.write('x' * 200000); sys.stdout.flush(); time.sleep(60)", "trainer"),
    ("not a number", "t = add(0); t['b'][1][1] = float('nan'); write_safetensors(result, t); done()", "not_finite"),
    ("infinity", "t = add(0); t['w'][1][0] = float('inf'); write_safetensors(result, t); done()", "not_finite"),
    ("another shape", "t = add(0); t['w'] = ([4], t['w'][1]); write_safetensors(result, t); done()", "wrong_shape"),
    ("another name", "t = add(0); t['c'] = t.pop('b'); write_safetensors(result, t); done()", "wrong_name"),
    ("one tensor less", "t = add(0); t.pop('b'); write_safetensors(result, t); done()", "wrong_name"),
    ("garbage", "result.write_bytes(b'\\xff' * 100); done()", "data"),
    ("too large", "t = add(0); t['z'] = ([3000], [0.0] * 3000); write_safetensors(result, t); done()", "too_large"),
    ("no examples", "write_safetensors(result, add(1)); done(0)", "weight_zero"),
    ("fewer than none", "write_safetensors(result, add(1)); done(-1)", "weight_negative"),
    ("a part of an example", "write_safetensors(result, add(1)); done(1.5)", "trainer"),
    ("it hangs", "subprocess.Popen(['/bin/sleep', '3600']); time.sleep(3600)", "timeout"),
]


def alive(pid):
    """A zombie that nobody has reaped yet has ended, too."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def ended_within(pid, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not alive(pid):
            return True
        time.sleep(0.05)
    return False


class ExecTrainer(unittest.TestCase):
    def job(self, **options):
        job = edge_kit.Job(MODEL, **options)
        self.addCleanup(job.__exit__)
        return job

    def program(self, job, body, name="train.py"):
        path = job.root / name
        path.write_text(PROGRAM.format(kit=str(pathlib.Path(edge_kit.__file__).parent), body=body))
        path.chmod(0o755)
        return path

    def test_what_the_program_makes_becomes_the_model(self):
        job = self.job(rounds=2)
        server = job.serve()
        device = job.device("--trainer", f"exec:{self.program(job, GOOD)}", "--exit-when-done")
        self.assertEqual(device.wait(), 0)
        self.assertEqual(server.wait(), 0)
        released = [line for line in server.events() if line["event"] == "round_released"]
        self.assertEqual(len(released), 2)
        # Two rounds of +0.25, all exact in binary.
        expected = {name: (shape, [v + 0.5 for v in values]) for name, (shape, values) in MODEL.items()}
        self.assertEqual(job.model(released[-1]["model"]), expected)
        self.assertEqual(device.wait_for("receipt", round=1)["weight"], 5)
        self.assertEqual(device.wait_for("trainer_says")["line"], "a word for the log")
        self.assertEqual(list((job.root / "device-0/trainer").iterdir()), [], "the files of a round are removed")

    def test_a_bad_program_costs_the_device_nothing_but_the_round(self):
        job = self.job()
        server = job.serve()
        for number, (what, body, status) in enumerate(BAD):
            with self.subTest(what):
                trainer = json.dumps({"use": f"exec:{self.program(job, body, f'bad{number}.py')}", "time_limit_s": 2,
                                      "result_bytes": 8192})
                device = job.device(trainer=trainer, state=f"bad-{number}")
                device.wait_for("gave_up", status=status)
                self.assertEqual(device.end(), 0, "and it ends cleanly")
                self.assertFalse([line for line in device.events() if line["event"] in ("update_stored", "receipt")])
        self.assertFalse([line for line in server.events() if line["event"] == "update_accepted"])
        # The round is as it was: a good program still serves it.
        device = job.device("--trainer", f"exec:{self.program(job, GOOD)}", "--exit-when-done")
        self.assertEqual(device.wait(), 0)

    def pid_of_program(self, job, name):
        path = job.root / name
        end = time.monotonic() + 30
        while time.monotonic() < end:
            if path.exists() and path.read_text().strip():
                return int(path.read_text())
            time.sleep(0.05)
        self.fail(f"the program never wrote {name}")

    def hang(self, job):
        return self.program(job, f"""
child = subprocess.Popen(['/bin/sleep', '3600'])
open({str(job.root / 'child.pid')!r}, 'w').write(str(child.pid))
open({str(job.root / 'program.pid')!r}, 'w').write(str(os.getpid()))
sys.stdin.read()  # ends when the daemon does, as docs/TRAINERS.md asks
""")

    def test_a_stop_kills_the_program_and_all_that_it_started(self):
        job = self.job()
        job.serve()
        device = job.device("--trainer", f"exec:{self.hang(job)}")
        program, child = self.pid_of_program(job, "program.pid"), self.pid_of_program(job, "child.pid")
        self.assertTrue(alive(program) and alive(child))
        self.assertEqual(device.end(signal.SIGTERM), 0)
        self.assertTrue(ended_within(program, 5) and ended_within(child, 5))

    def test_a_program_hears_that_its_daemon_was_killed(self):
        job = self.job()
        job.serve()
        device = job.device("--trainer", f"exec:{self.hang(job)}")
        program, child = self.pid_of_program(job, "program.pid"), self.pid_of_program(job, "child.pid")
        device.end(signal.SIGKILL)
        self.assertTrue(ended_within(program, 5))
        os.kill(child, signal.SIGKILL)  # nobody is left to do it

    def test_a_program_that_is_not_there_is_told_at_once(self):
        job = self.job()
        for use in ("exec:./no-such-program", "exec:", "exec:   ", "bultin"):
            with self.subTest(use):
                device = job.device("--trainer", use)
                self.assertEqual(device.wait(20), 3)
                self.assertIn("trainer", device.log.read_text())


class PyTorch(unittest.TestCase):
    """examples/pytorch against the service: Debian's python3-torch, or that of the interpreter SHEAF_TORCH_PYTHON."""
    PYTHON = os.environ.get("SHEAF_TORCH_PYTHON", "/usr/bin/python3")

    def setUp(self):
        if subprocess.run([self.PYTHON, "-c", "import torch"], capture_output=True).returncode != 0:
            self.skipTest(f"{self.PYTHON} has no torch: Debian's package is python3-torch")

    def test_fifteen_lines_train_a_model_in_the_fleet(self):
        example = edge_kit.SOURCE / "examples/pytorch"
        self.assertLessEqual(len((example / "train.py").read_text().splitlines()), 15)
        data = edge_kit.SOURCE / "examples/digits/digits.csv"
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"

        def initial(path):
            subprocess.run([self.PYTHON, example / "train.py", data, "--initial", path], check=True)

        with edge_kit.Job(initial, rounds=1, epochs=4, batch=16, momentum=0.9, learning_rate=0.05) as job:
            server = job.serve()
            device = job.device("--trainer", f"exec:{self.PYTHON} {example}/train.py {data}", "--exit-when-done")
            self.assertEqual(device.wait(300), 0)
            self.assertEqual(server.wait(), 0)
            version = server.wait_for("round_released")["model"]
            self.assertGreater(self.accuracy(job.model(version), data), 0.9)
            self.assertLess(self.accuracy(edge_kit.read_safetensors(job.root / "initial.safetensors"), data), 0.4)

    def accuracy(self, tensors, data):
        """By numpy, so that neither our trainer nor the example's code judges itself."""
        import numpy
        table = numpy.loadtxt(data, delimiter=",", skiprows=1, dtype=numpy.float32)
        weights = {name: numpy.array(values, numpy.float32).reshape(shape) for name, (shape, values) in tensors.items()}
        hidden = numpy.maximum(table[:, :64] / 16 @ weights["0.weight"].T + weights["0.bias"], 0)
        found = (hidden @ weights["2.weight"].T + weights["2.bias"]).argmax(axis=1)
        return (found == table[:, 64]).mean()


if __name__ == "__main__":
    unittest.main()
