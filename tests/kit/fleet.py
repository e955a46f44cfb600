"""A real fleet for tests: an authority, sheafd, and sheaf-edge processes that train on the digits, over NNG and mutual TLS,
over MQTT through a real broker, or half of them each way."""
import json
import os
import shutil
import signal
import sqlite3
import struct
import subprocess
import tempfile
import time

from broker import Broker

BUILD, SOURCE = os.environ["SHEAF_BUILD"], os.environ["SHEAF_SOURCE"]
SHEAFD = os.path.join(BUILD, "server", "sheafd")
SHEAF = os.path.join(BUILD, "server", "sheaf")
EDGE = os.path.join(BUILD, "client", "sheaf-edge")
NETWORK = os.path.join(SOURCE, "examples", "digits", "network.yaml")
DIGITS = os.path.join(SOURCE, "examples", "digits", "digits.csv")
TENANT, JOB = "acme", "digits"

SERVER_CONFIG = """\
server:
  listen: {listen}
  state: {folder}/state
  certificate: {pki}/aggregator-aggregator.pem
  key: {pki}/aggregator-aggregator.key
  ca: {pki}/ca.pem
  workers: {workers}
  exit_when_done: true
limits: {{handshake_ms: 1000, chunk_bytes: {chunk_bytes}}}
broker: {{url: "{broker}"}}
{more}log: {{file: {folder}/sheafd.log}}
jobs:
  - tenant: {tenant}
    name: {job}
    initial_model: {folder}/initial.safetensors
    rounds: {rounds}
    cohort: {{minimum: {devices}, target: {devices}, maximum: {devices}}}
    plan: {{epochs: 1, batch: 16, learning_rate: 0.05, momentum: 0.9, seed: {seed}}}
    progress_s: 120
    retain: {{payload_rounds: 1000}}
"""
EDGE_CONFIG = """\
edge:
  url: {url}
  job: {job}
  state: {folder}/device-{name}
  certificate: {pki}/device-{name}.pem
  key: {pki}/device-{name}.key
  ca: {pki}/ca.pem
  exit_when_done: true
trainer: {{network: {network}, data: {data}}}
limits: {{chunk_bytes: {chunk_bytes}}}
log: {{file: {folder}/{name}.log}}
"""


def run(*command, **options):
    """The finished process, with its text."""
    return subprocess.run(command, text=True, capture_output=True, timeout=60, **options)


def sheaf(*arguments):
    done = run(SHEAF, *arguments)
    assert done.returncode == 0, (arguments, done.returncode, done.stdout, done.stderr)
    return done.stdout


def read_safetensors(path):
    """{name: (dtype, shape, bytes)} and the metadata, by a reader of our own."""
    with open(path, "rb") as file:
        content = file.read()
    size, = struct.unpack("<Q", content[:8])
    header = json.loads(content[8:8 + size])
    metadata = header.pop("__metadata__", {})
    data = content[8 + size:]
    return {name: (e["dtype"], e["shape"], data[slice(*e["data_offsets"])]) for name, e in header.items()}, metadata


class Fleet:
    def __init__(self, devices=4, rounds=3, workers=2, seed=1, chunk_bytes=262144, more="", transport="nng", network=NETWORK):
        """`more`: further lines of sheafd's config, each ended by a newline. `transport`: nng, mqtt, or both: the first half of
        the devices over MQTT. `network`: the file of the network that is trained."""
        self.folder = tempfile.mkdtemp(prefix="sheaf-fleet-")
        self.pki = os.path.join(self.folder, "pki")
        self.state = os.path.join(self.folder, "state")
        self.names = [f"d{i:02}" for i in range(devices)]
        self.server, self.devices, self.network = None, {}, network
        self.via_broker = self.names[:{"nng": 0, "mqtt": devices, "both": devices // 2}[transport]]
        sheaf("pki", "init", "--dir", self.pki)
        sheaf("pki", "issue", "--dir", self.pki, "--role", "aggregator", "--name", "aggregator", "--tenant", TENANT)
        for name in self.names:
            sheaf("pki", "issue", "--dir", self.pki, "--role", "device", "--name", name, "--tenant", TENANT)
        self.broker = Broker(self.folder, self.pki, TENANT) if self.via_broker else None
        if self.broker is not None:
            self.broker.start()
        sheaf("data", "split", "--data", DIGITS, "--clients", str(devices), "--test-fraction", "0.2", "--seed", "1",
              "--out", os.path.join(self.folder, "data"))
        sheaf("model", "init", network, "--seed", "1", "-o", os.path.join(self.folder, "initial.safetensors"))
        self.config = os.path.join(self.folder, "sheafd.yaml")
        self.settings = dict(listen="tls+tcp://127.0.0.1:0", folder=self.folder, pki=self.pki, workers=workers, tenant=TENANT,
                             job=JOB, rounds=rounds, devices=devices, seed=seed, chunk_bytes=chunk_bytes, more=more,
                             broker=self.broker.url if self.broker is not None else "")
        self.write_server_config()

    def write_server_config(self):
        with open(self.config, "w", encoding="utf-8") as file:
            file.write(SERVER_CONFIG.format(**self.settings))

    def close(self):
        for process in [self.server, *self.devices.values()]:
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()
            if process is not None:
                process.stderr.close()
        if self.broker is not None:
            self.broker.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start_server(self, env=None):
        address = os.path.join(self.state, "address")
        if os.path.exists(address):
            os.remove(address)
        if self.server is not None:
            self.server.stderr.close()
        self.server = subprocess.Popen([SHEAFD, "--config", self.config], stderr=subprocess.PIPE, text=True, env=env)
        self.wait_for(lambda: os.path.exists(address) or self.server.poll() is not None)
        assert self.server.poll() is None, self.server.stderr.read()
        with open(address, encoding="ascii") as file:
            self.settings["listen"] = file.readline().strip()
        self.write_server_config()  # a restart keeps the port
        return self.settings["listen"]

    @property
    def port(self):
        return int(self.settings["listen"].rsplit(":", 1)[1])

    def device_config(self, name, **changes):
        index = self.names.index(name) if name in self.names else 0
        url = self.broker.url if name in self.via_broker else self.settings["listen"]
        settings = dict(url=url, job=JOB, folder=self.folder, name=name, pki=self.pki, network=self.network,
                        chunk_bytes=self.settings["chunk_bytes"],
                        data=os.path.join(self.folder, "data", f"client-{index:0{max(2, len(str(len(self.names) - 1)))}}.csv"))
        settings.update(changes)
        path = os.path.join(self.folder, f"{name}.yaml")
        with open(path, "w", encoding="utf-8") as file:
            file.write(EDGE_CONFIG.format(**settings))
        return path

    def start_device(self, name, env=None, **changes):
        if name in self.devices:
            self.devices[name].stderr.close()
        self.devices[name] = subprocess.Popen([EDGE, "--config", self.device_config(name, **changes)], stderr=subprocess.PIPE,
                                              text=True, env=env)

    def wait_for(self, condition, seconds=120):
        until = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < until, "waited too long; " + self.tail()
            time.sleep(0.02)

    def finish(self, seconds=240):
        """Until sheafd has ended by itself; every device must then have ended well too."""
        self.wait_for(lambda: self.server.poll() is not None, seconds)
        assert self.server.returncode == 0, self.tail()
        for name, process in self.devices.items():
            assert process.wait(60) == 0, (name, process.stderr.read())

    def run_all(self):
        self.start_server()
        for name in self.names:
            self.start_device(name)
        self.finish()
        return self.released()[-1]["model"]

    def log(self):
        path = os.path.join(self.folder, "sheafd.log")
        if not os.path.exists(path):
            return ""
        with open(path, encoding="utf-8") as file:
            return file.read()

    def tail(self):
        return self.log()[-2000:]

    def query(self, sql, *values):
        database = sqlite3.connect(os.path.join(self.state, "state.db"), timeout=20)
        try:
            return database.execute(sql, values).fetchall()
        finally:
            database.close()

    def released(self):
        rows = self.query("SELECT round, accepted, refused, weight, model FROM rounds WHERE outcome = 1 ORDER BY round")
        return [dict(round=r, accepted=a, refused=f, weight=w, model=m.hex()) for r, a, f, w, m in rows]

    def refusals(self):
        return dict(self.query("SELECT reason, sum(count) FROM refusals GROUP BY reason"))

    def refusals_but_of_old_sessions(self):
        """Without those of a session that a device began with a sheafd that was killed meanwhile: to the next it is a replay."""
        return {reason: count for reason, count in self.refusals().items() if reason != "replay"}

    def stop_server(self):
        self.server.send_signal(signal.SIGTERM)
        return self.server.wait(30)

    def model_path(self, digest):
        return os.path.join(self.state, TENANT, JOB, "models", digest + ".safetensors")
