"""A small job for tests of sheaf-edge: an authority, a running sheafd, devices with configs, and safetensors by hand.

Owner: the test; a Job is a context manager that ends what it started, each process by its own handle.
"""
import json
import os
import pathlib
import signal
import socket
import struct
import subprocess
import tempfile
import time

SOURCE = pathlib.Path(os.environ.get("SHEAF_SOURCE", "."))
BUILD = pathlib.Path(os.environ.get("SHEAF_BUILD", "build/dev"))
SHEAF, SHEAFD, EDGE = BUILD / "server/sheaf", BUILD / "server/sheafd", BUILD / "client/sheaf-edge"


def write_safetensors(path, tensors):
    """{name: (shape, [floats])}, apart from the C code and from the example's helper."""
    header, body = {}, b""
    for name, (shape, values) in tensors.items():
        part = struct.pack(f"<{len(values)}f", *values)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(body), len(body) + len(part)]}
        body += part
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def read_safetensors(path):
    data = pathlib.Path(path).read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    read = {}
    for name, entry in header.items():
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        read[name] = (entry["shape"], list(struct.unpack(f"<{(end - begin) // 4}f", data[begin:end])))
    return read


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Process:
    """A program of ours that logs JSON lines into a file."""

    def __init__(self, arguments, log):
        self.log = log
        self.file = open(log, "wb")
        self.handle = subprocess.Popen([str(a) for a in arguments], stderr=self.file, stdout=self.file)

    def events(self):
        lines = []
        for line in self.log.read_text(errors="replace").splitlines():
            try:
                lines.append(json.loads(line))
            except ValueError:
                lines.append({"event": "text", "text": line})
        return lines

    def wait_for(self, event, seconds=60, **fields):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            ended = self.handle.poll() is not None
            for line in self.events():
                if line.get("event") == event and all(str(line.get(k)) == str(v) for k, v in fields.items()):
                    return line
            if ended:
                break
            time.sleep(0.05)
        raise AssertionError(f"no {event} {fields} in {self.log}:\n{self.log.read_text(errors='replace')[-3000:]}")

    def wait(self, seconds=120):
        return self.handle.wait(seconds)

    def end(self, number=signal.SIGTERM):
        if self.handle.poll() is None:
            self.handle.send_signal(number)
            self.handle.wait(30)
        self.file.close()
        text = self.log.read_text(errors="replace")
        assert "Sanitizer" not in text, text[-5000:]
        return self.handle.returncode


class Job:
    def __init__(self, model, rounds=1, devices=1, **plan):
        self.folder = tempfile.TemporaryDirectory()
        self.root = pathlib.Path(self.folder.name)
        self.processes = []
        self.port = free_port()
        self.pki("init")
        self.pki("issue", "--role", "aggregator", "--name", "agg", "--tenant", "acme")
        for i in range(devices):
            self.pki("issue", "--role", "device", "--name", f"device-{i}", "--tenant", "acme")
        if callable(model):
            model(self.root / "initial.safetensors")
        else:
            write_safetensors(self.root / "initial.safetensors", model)
        values = {"epochs": 1, "batch": 8, "learning_rate": 0.1, "momentum": 0.0, "seed": 7, **plan}
        (self.root / "sheafd.yaml").write_text(f"""
server: {{listen: "tls+tcp://127.0.0.1:{self.port}", state: server, certificate: pki/aggregator-agg.pem,
  key: pki/aggregator-agg.key, ca: pki/ca.pem, exit_when_done: true}}
log: {{form: json}}
jobs:
  - {{tenant: acme, name: job, initial_model: initial.safetensors, rounds: {rounds}, attempts_max: 1000,
     cohort: {{minimum: {devices}, target: {devices}, maximum: {devices}}}, plan: {json.dumps(values)}}}
""")

    def pki(self, *arguments):
        subprocess.run([SHEAF, "pki", *arguments, "--dir", self.root / "pki"], check=True, stdout=subprocess.DEVNULL)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.end(signal.SIGKILL)
        self.folder.cleanup()

    def start(self, *arguments, log):
        process = Process(arguments, self.root / log)
        self.processes.append(process)
        return process

    def serve(self):
        return self.start(SHEAFD, "--config", self.root / "sheafd.yaml", log="sheafd.log")

    def config(self, number=0, trainer="{}", **edge):
        """Writes a device's config and gives its path."""
        path = self.root / f"device-{number}.yaml"
        values = {"url": f"tls+tcp://127.0.0.1:{self.port}", "job": "job", "state": f"device-{number}",
                  "certificate": f"pki/device-device-{number}.pem", "key": f"pki/device-device-{number}.key",
                  "ca": "pki/ca.pem", **edge}
        path.write_text(f"edge: {json.dumps(values)}\nlog: {{form: json}}\ntrainer: {trainer}\n")
        return path

    def device(self, *arguments, number=0, **config):
        return self.start(EDGE, "--config", self.config(number, **config), *arguments, log=f"device-{number}.log")

    def model(self, version):
        """The tensors of the model version with this digest."""
        found = [p for p in self.root.glob("server/**/*.safetensors") if version in p.name]
        assert found, sorted(self.root.glob("server/**/*"))
        return read_safetensors(found[0])
