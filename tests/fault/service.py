"""A world for fault tests: an authority, a tiny job, sheafd, and devices in Python that outlive it."""
import hashlib
import json
import os
import shutil
import signal
import socket
import sqlite3
import struct
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
from wire_device import Device, load_schema  # noqa: E402

BUILD = os.environ["SHEAF_BUILD"]
SOURCE = os.environ["SHEAF_SOURCE"]
SHEAFD = os.path.join(BUILD, "server", "sheafd")
SHEAF = os.path.join(BUILD, "server", "sheaf")
TENANT, JOB = "acme", "digits"
VALUES = 900  # 3,600 bytes: four chunks of 1 KiB

CONFIG = """\
server:
  listen: tls+tcp://127.0.0.1:{port}
  state: {state}
  certificate: {pki}/aggregator-aggregator.pem
  key: {pki}/aggregator-aggregator.key
  ca: {pki}/ca.pem
  workers: 2
limits: {{chunk_bytes: 1 KiB, model_bytes: 1 MiB, spool_bytes: 64 MiB}}
jobs:
  - tenant: {tenant}
    name: {job}
    initial_model: {folder}/initial.safetensors
    rounds: {rounds}
    cohort: {{minimum: {devices}, target: {devices}, maximum: {devices}}}
    plan: {{learning_rate: 0.1}}
    progress_s: 600
    retain: {{payload_rounds: 1000}}
"""


def sanitized():
    """Whether this build is slowed by a sanitizer; then samples are smaller."""
    with open(os.path.join(BUILD, "CMakeCache.txt"), encoding="utf-8") as file:
        return any(line.startswith("SHEAF_SANITIZE:") and line.strip().split("=", 1)[1] for line in file)


def covered():
    """Whether this build counts lines: gcov allocates for itself when the program ends."""
    with open(os.path.join(BUILD, "CMakeCache.txt"), encoding="utf-8") as file:
        return "SHEAF_COVERAGE:BOOL=ON\n" in file.read()



def why_not(*programs):
    """Why whole programs cannot be tried in this build; "" when they can."""
    return "".join(f"{program} is not built " for program in programs if not os.path.exists(program))


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def write_model(path):
    """Two F32 tensors with VALUES values in all, zero."""
    shapes = {"bias": [100], "weight": [8, 100]}
    header, at = {}, 0
    for tensor, shape in shapes.items():
        size = 4
        for dimension in shape:
            size *= dimension
        header[tensor] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + bytes(at))
    assert at == 4 * VALUES


class World:
    """One authority and one schema for many runs; each run has a fresh state and fresh devices."""

    def __init__(self, devices=3, rounds=2):
        self.folder = tempfile.mkdtemp(prefix="sheaf-world-")
        self.devices_count, self.rounds = devices, rounds
        self.clients = [f"d{i:02}" for i in range(devices)]
        self.pki = os.path.join(self.folder, "pki")
        self.root = os.path.join(self.folder, "run")
        self.state = os.path.join(self.root, "state")
        schema = os.path.join(self.folder, "schema")
        os.mkdir(schema)
        self.pb = load_schema(SOURCE, schema)
        self._issue()
        write_model(os.path.join(self.folder, "initial.safetensors"))
        self.server, self.devices, self.log = None, [], os.path.join(self.folder, "sheafd.log")
        self.reset()

    def _issue(self):
        for arguments in (["init"], ["issue", "--role", "aggregator", "--name", "aggregator", "--tenant", TENANT],
                          *(["issue", "--role", "device", "--name", client, "--tenant", TENANT] for client in self.clients)):
            subprocess.run([SHEAF, "pki", *arguments, "--dir", self.pki], check=True, stdout=subprocess.DEVNULL)

    def close(self):
        self.stop_devices()
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    # ---- runs ----

    def reset(self):
        """An empty disk and devices that remember nothing."""
        self.stop_devices()
        self.stop()
        shutil.rmtree(self.root, ignore_errors=True)
        os.mkdir(self.root)
        self.port = free_port()
        self.config = os.path.join(self.folder, "sheafd.yaml")
        with open(self.config, "w", encoding="utf-8") as file:
            file.write(CONFIG.format(port=self.port, state=self.state, pki=self.pki, tenant=TENANT, job=JOB,
                                     folder=self.folder, rounds=self.rounds, devices=self.devices_count))
        open(self.log, "wb").close()
        self.devices = [Device(self.pb, ("127.0.0.1", self.port), self.pki, client, TENANT, JOB, VALUES)
                        for client in self.clients]

    def start_devices(self):
        for device in self.devices:
            device.start()

    def stop_devices(self):
        for device in self.devices:
            device.halt.set()
        for device in self.devices:
            if device.is_alive():
                device.join(15)

    def start(self, env=None):
        with open(self.log, "ab") as log:
            self.server = subprocess.Popen([SHEAFD, "--config", self.config], env=env, stdout=log, stderr=log)

    def stop(self, forget=True):
        """Ends the server as an operator does; returns its exit code."""
        if self.server is None:
            return None
        if self.server.poll() is None:
            self.server.send_signal(signal.SIGTERM)
            try:
                self.server.wait(20)
            except subprocess.TimeoutExpired:
                self.server.kill()
                self.server.wait()
                raise RuntimeError("sheafd does not stop on SIGTERM") from None
        code = self.server.returncode
        assert "Sanitizer" not in self.tail(10000), self.tail(100)
        if forget:
            self.server = None
        return code

    def wait(self, seconds=60):
        """Until every device has heard the job's end ("ended"), or the server is gone ("dead"), or time is over."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if all(device.end is not None for device in self.devices):
                return "ended"
            if self.server.poll() is not None:
                return "dead"
            time.sleep(0.005)
        return "timeout"

    def wait_until_up(self, seconds=20):
        """Until the server listens; False when it ended instead. Before that, it would not end cleanly on SIGTERM."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and self.server.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return True
            except OSError:
                time.sleep(0.005)
        return False

    def tail(self, lines=4):
        with open(self.log, encoding="utf-8", errors="replace") as file:
            return " | ".join(file.read().splitlines()[-lines:])

    # ---- what must hold ----

    def digest(self):
        """The final model digest, in which all devices must agree."""
        digests = {device.end.model_digest.hex() for device in self.devices}
        assert len(digests) == 1, digests
        return digests.pop()

    def broken_promises(self, state):
        """What the disk in `state` does not hold though a device has heard of it. The folder is only read."""
        broken = [text for device in self.devices for text in device.wrong]
        promised = any(device.receipts or device.opened or device.end for device in self.devices)
        if not os.path.exists(os.path.join(state, "state.db")):
            return broken + (["the database is gone"] if promised else [])
        with tempfile.TemporaryDirectory() as copy:
            for part in ("state.db", "state.db-wal", "state.db-journal"):
                if os.path.exists(os.path.join(state, part)):
                    shutil.copy(os.path.join(state, part), copy)
            try:
                broken += self._broken_rows(os.path.join(copy, "state.db"), state)
            except sqlite3.Error as error:
                if promised:
                    broken.append(f"database: {error}")
        return broken

    def _broken_rows(self, path, state):
        broken = []
        database = sqlite3.connect(path)
        if database.execute("PRAGMA integrity_check").fetchone() != ("ok",):
            broken.append("the database is damaged")
        updates = {(round_, client): (bytes(receipt), bytes(digest)) for round_, client, receipt, digest in
                   database.execute("SELECT round, client, receipt, payload_digest FROM updates")}
        opened = {(round_, attempt): (bytes(statement), outcome) for round_, attempt, statement, outcome in
                  database.execute("SELECT round, attempt, statement, outcome FROM rounds")}
        ended = database.execute("SELECT ended FROM jobs").fetchone()
        database.close()
        for device in self.devices:
            for number, receipt in device.receipts.items():
                if updates.get((number, device.client)) != receipt:
                    broken.append(f"{device.client}: the receipt of round {number} is for nothing")
            for key, statement in device.opened.items():
                if opened.get(key, (None,))[0] != statement:
                    broken.append(f"{device.client}: round {key} was heard of but is not there")
            if device.end is not None and (ended is None or ended[0] != 0):
                broken.append(f"{device.client}: heard of an end that is not there")
        for (number, client), (_, digest) in updates.items():
            if all(outcome != 1 for (round_, _), (_, outcome) in opened.items() if round_ == number):
                broken += self._broken_payload(state, number, client, digest)
        return broken

    @staticmethod
    def _broken_payload(state, number, client, digest):
        path = os.path.join(state, TENANT, JOB, "spool", f"{number:08}", f"{client}.update")
        try:
            with open(path, "rb") as file:
                return [] if hashlib.sha256(file.read()).digest() == digest else [f"{path}: not what was accepted"]
        except FileNotFoundError:
            return [f"{path}: accepted and gone"]
