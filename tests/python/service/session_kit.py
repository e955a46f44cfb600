"""What tests of a device's session share: a fresh service for each, a device that says whatever the test wants, and three ways
in which operators must then hear of every refusal."""
import collections
import hashlib
import json
import os
import subprocess
import sys
import threading
import unittest

sys.dont_write_bytecode = True
sys.path[:0] = [os.path.join(os.environ["SHEAF_SOURCE"], "tests", *part) for part in (["fault"], ["python", "operator"])]
import operator_kit  # noqa: E402
import service  # noqa: E402
import wire_device  # noqa: E402
from cryptography.hazmat.primitives import hashes  # noqa: E402
from cryptography.hazmat.primitives.asymmetric import ec  # noqa: E402

CHUNK = 1024


class Sessions(unittest.TestCase):
    """One world for a class; `calm` is the model of an undisturbed run."""

    @classmethod
    def setUpClass(cls):
        cls.world = service.World(devices=3, rounds=1)
        cls.addClassCleanup(cls.world.close)
        cls.calm = cls.run_calmly()

    @classmethod
    def run_calmly(cls, first=0, changes=None, payloads=None):
        """The model after a run of the devices from `first` on, with these changes to the config."""
        cls.configure(changes or {})
        cls.world.devices = cls.world.devices[first:]
        for device in cls.world.devices:
            device.payloads = payloads or {}
        cls.world.start()
        cls.world.start_devices()
        assert cls.world.wait() == "ended", cls.world.tail()
        assert not [text for device in cls.world.devices for text in device.wrong]
        return cls.world.digest()

    @classmethod
    def configure(cls, changes):
        """Fresh devices, an empty disk, and the config with every key of `changes` replaced by its value."""
        cls.world.reset()
        with open(cls.world.config, encoding="utf-8") as file:
            text = file.read()
        for old, new in changes.items():
            assert old in text, old
            text = text.replace(old, new)
        with open(cls.world.config, "w", encoding="utf-8") as file:
            file.write(text)

    def begin(self, more="", top="", changes=None):
        """A fresh service; returns a device that does what the test says. `more`: at the end of the config; `top`: limits."""
        self.configure(dict(changes or {}, **{"limits: {": "limits: {" + top}))
        with open(self.world.config, "a", encoding="utf-8") as file:
            file.write(more)
        self.counts = collections.Counter()  # what operators must be told, of the job
        self.world.start()
        assert self.world.wait_until_up(), self.world.tail()
        return self.device("d00")

    def device(self, client, role="device"):
        device = wire_device.Device(self.world.pb, ("127.0.0.1", self.world.port), self.world.pki, client, service.TENANT,
                                    service.JOB, service.VALUES, role)
        self.addCleanup(lambda: device.link is not None and device.link.close())
        return device

    def issue(self, role, name, *more):
        if not os.path.exists(os.path.join(self.world.pki, f"{role}-{name}.pem")):
            subprocess.run([service.SHEAF, "pki", "issue", "--role", role, "--name", name, "--tenant", service.TENANT, *more,
                            "--dir", self.world.pki], check=True, stdout=subprocess.DEVNULL)

    # ---- what a device says ----

    def open_round(self, device):
        reply, _ = device.ask("round", last_round=0)
        self.assertEqual(reply.WhichOneof("body"), "round", reply)
        return wire_device.read_round(reply.round.statement)

    def statement(self, opened, device, payload, weight=None):
        weight = wire_device.weight_of(device.client) if weight is None else weight
        return wire_device.update_statement(opened, device.client, device.certificate, payload, weight)

    def offer(self, device, statement, key=None):
        signature = (key or device.key).sign(statement, ec.ECDSA(hashes.SHA256()))
        return device.ask("offer", statement=statement, signature=signature)

    def chunk(self, device, payload, offset, part=None, digest=b""):
        """`part`: what is sent instead of the payload's bytes at `offset`."""
        part = payload[offset:offset + CHUNK] if part is None else part
        return device.ask("chunk", part, payload_digest=hashlib.sha256(payload).digest(), offset=offset, chunk_digest=digest)

    def until(self, condition, seconds=20):
        halt = threading.Event()
        for _ in range(int(seconds / 0.02)):
            if condition():
                return
            halt.wait(0.02)
        self.fail(self.world.tail())

    # ---- what must hold ----

    def refused(self, reply, reason, counted=True):
        """`counted`: not_found and what is refused before the job is known are not the job's refusals."""
        self.assertEqual((reply[0].WhichOneof("body"), reply[0].refusal.reason), ("refusal", reason), reply[0])
        self.assertTrue(reply[0].refusal.detail or reason == "conflict", reply[0])
        self.counts[reason] += counted

    def end_well(self, calm=None):
        """All honest devices take part, the model is the calm one, and operators hear of every refusal."""
        self.world.start_devices()
        self.assertEqual(self.world.wait(), "ended", self.world.tail())
        self.assertEqual([text for device in self.world.devices for text in device.wrong], [])
        self.assertEqual(self.world.digest(), calm or self.calm)
        self.check_operators()

    def get(self, path):
        channel = operator_kit.UnixConnection(os.path.join(self.world.state, "operator.sock"))
        code, _, text = operator_kit.ask(channel, path)
        self.assertEqual(code, 200, text)
        return json.loads(text)

    def tool(self, *arguments):
        done = subprocess.run([service.SHEAF, *arguments, "--state", self.world.state], text=True, capture_output=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def of_no_job(self):
        return self.get("/v1/refusals")["of_no_job"]

    def check_operators(self, round_number=1):
        """The channel, `sheaf job show`, `sheaf job status` and `sheaf round show` say how often each reason came."""
        expected = {reason: count for reason, count in self.counts.items() if count > 0}
        row, = [job for job in self.get("/v1/refusals")["jobs"] if job["job"] == service.JOB]
        self.assertEqual(row["refusals"], expected)
        self.assertEqual(json.loads(self.tool("job", "show", service.JOB, "--json"))["refusals"], expected)
        self.assertEqual(json.loads(self.tool("round", "show", service.JOB, str(round_number), "--json"))["refusals"], expected)
        said = [self.tool("job", "show", service.JOB), self.tool("job", "status"),
                self.tool("round", "show", service.JOB, str(round_number))]
        for text in said:
            lines = {tuple(line.split()) for line in text.splitlines()}
            for reason, count in expected.items():
                self.assertIn(("refused", reason, str(count)), lines)
