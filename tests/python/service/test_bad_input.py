"""Everything bad that a device can say in a session, by a device in Python that knows proto/WIRE.md and none of our code:
each is refused by its name, the device is told, nothing is lost, and the round ends with the model of a calm one."""
import hashlib
import os
import struct
import subprocess
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.environ["SHEAF_SOURCE"], "tests", "fault"))
from cryptography.hazmat.primitives import hashes  # noqa: E402
from cryptography.hazmat.primitives.asymmetric import ec  # noqa: E402
import service  # noqa: E402
import wire_device  # noqa: E402

CHUNK = 1024


def changed(opened, **fields):
    return dict(opened, **fields)


class BadInput(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.world = service.World(devices=3, rounds=1)
        cls.addClassCleanup(cls.world.close)
        cls.world.start()
        cls.world.start_devices()
        assert cls.world.wait() == "ended", cls.world.tail()
        cls.calm = cls.world.digest()

    def begin(self, more="", top=""):
        """A fresh service; returns a device that does what the test says, and the open round."""
        self.world.reset()
        if more or top:
            with open(self.world.config, encoding="utf-8") as file:
                text = file.read()
            with open(self.world.config, "w", encoding="utf-8") as file:
                file.write(text.replace("limits: {", "limits: {" + top) + more)
        self.world.start()
        assert self.world.wait_until_up(), self.world.tail()
        return self.device("d00")

    def device(self, client):
        device = wire_device.Device(self.world.pb, ("127.0.0.1", self.world.port), self.world.pki, client, service.TENANT,
                                    service.JOB, service.VALUES)
        self.addCleanup(lambda: device.link is not None and device.link.close())
        return device

    def open_round(self, device):
        reply, _ = device.ask("round", last_round=0)
        self.assertEqual(reply.WhichOneof("body"), "round")
        return wire_device.read_round(reply.round.statement)

    def end_well(self):
        """All honest devices take part, and the model is the calm one."""
        self.world.start_devices()
        self.assertEqual(self.world.wait(), "ended", self.world.tail())
        self.assertEqual([text for device in self.world.devices for text in device.wrong], [])
        self.assertEqual(self.world.digest(), self.calm)

    def refused(self, reply, reason):
        self.assertEqual((reply[0].WhichOneof("body"), reply[0].refusal.reason), ("refusal", reason), reply[0])

    def offer(self, device, statement, key=None):
        signature = (key or device.key).sign(statement, ec.ECDSA(hashes.SHA256()))
        return device.ask("offer", statement=statement, signature=signature)

    def chunk(self, device, payload, offset, part, digest=b""):
        return device.ask("chunk", part, payload_digest=hashlib.sha256(payload).digest(), offset=offset, chunk_digest=digest)

    def test_offers(self):
        device = self.begin()
        opened = self.open_round(device)
        payload = wire_device.payload_of(1, "d00", service.VALUES)

        def statement(weight=5, payload=payload, client="d00", **fields):
            return wire_device.update_statement(changed(opened, **fields), client, device.certificate, payload, weight)

        cases = {
            "weight_zero": statement(weight=0),
            "weight_negative": statement(weight=-1),
            "weight_above_cap": statement(weight=2**40),
            "wrong_nonce": statement(nonce=bytes(32)),
            "wrong_base_model": statement(base_model=bytes(32)),
            "wrong_plan": statement(plan_digest=bytes(32)),
            "wrong_round": statement(round=7),
            "wrong_shape": statement(payload=payload[:-4]),  # a lie about the size
            "wrong_identity": statement(client="d01"),
            "wrong_encoding": statement().replace(wire_device.name("f32"), wire_device.name("f33")),
            "truncated": statement()[:-1],
            "malformed": statement() + b"x",
        }
        for reason, said in cases.items():
            with self.subTest(reason):
                reply = self.offer(device, said)
                self.assertEqual(reply[0].WhichOneof("body"), "refusal", reply[0])
                if reason == "malformed":
                    self.assertIn(reply[0].refusal.reason, ("malformed", "truncated"))
                else:
                    self.refused(reply, reason)
        with self.subTest("bad_signature"):
            self.refused(self.offer(device, statement(), ec.generate_private_key(ec.SECP256R1())), "bad_signature")
        with self.subTest("another version of the statement"):
            said = statement().replace(b"sheaf update v1", b"sheaf update v0")
            self.refused(self.offer(device, said), "unknown_version")
        self.end_well()

    def test_older_and_newer_protocols_and_no_hello(self):
        device = self.begin()
        for protocol in (0, 2, 2**32 - 1):
            reply = device.ask("hello", protocol=protocol, encodings=["f32"], frame_bytes_max=1 << 20)
            self.refused(reply, "unknown_version")
            self.assertIn("protocol 1", reply[0].refusal.detail)
        self.open_round(device)  # who never says hello is told of the round all the same: it commits to nothing
        self.refused(device.ask("model", digest=bytes(32), offset=0, bytes_max=100), "not_found")
        self.end_well()

    def test_chunks(self):
        device = self.begin()
        opened = self.open_round(device)
        payload = wire_device.payload_of(1, "d00", service.VALUES)
        other = wire_device.payload_of(1, "other", service.VALUES)
        self.refused(self.chunk(device, payload, 0, payload[:CHUNK]), "not_found")  # of nothing that was offered
        said = wire_device.update_statement(opened, "d00", device.certificate, payload, wire_device.weight_of("d00"))
        self.assertEqual(self.offer(device, said)[0].upload.next_offset, 0)
        self.refused(self.chunk(device, other, 0, other[:CHUNK]), "not_found")  # of another upload
        self.refused(self.chunk(device, payload, 2**63, b"x"), "too_large")
        self.refused(self.chunk(device, payload, len(payload) - 1, b"xy"), "too_large")  # ends after the end
        reply, _ = self.chunk(device, payload, 0, payload[:CHUNK], bytes(32))
        self.assertEqual(reply.WhichOneof("body"), "wait")
        self.assertEqual(reply.wait.status, 114)  # wrong_digest: this chunk again
        self.refused(self.chunk(device, payload, 0, payload[:CHUNK], b"short"), "malformed")
        first = hashlib.sha256(payload[:CHUNK]).digest()
        self.assertEqual(self.chunk(device, payload, 0, payload[:CHUNK], first)[0].upload.next_offset, CHUNK)
        self.assertEqual(self.chunk(device, payload, 0, payload[:CHUNK], first)[0].upload.next_offset, CHUNK)  # twice
        self.refused(self.chunk(device, payload, CHUNK + 5, payload[CHUNK + 5:CHUNK + 105]), "malformed")  # off the grid
        early, _ = self.chunk(device, payload, 2 * CHUNK, payload[2 * CHUNK:3 * CHUNK])
        self.assertEqual((early.upload.next_offset, early.upload.held), (CHUNK, 1))
        self.assertEqual(self.chunk(device, payload, CHUNK, payload[CHUNK:2 * CHUNK])[0].upload.next_offset, 3 * CHUNK)
        for _ in range(3):  # more than there is
            self.refused(self.chunk(device, payload, len(payload) + CHUNK, bytes(CHUNK)), "too_large")
        self.end_well()

    def spoiled(self, payload, signed):
        """A whole upload of `payload` under a statement for `signed`; the reply to its last chunk."""
        device = self.begin()
        said = wire_device.update_statement(self.open_round(device), "d00", device.certificate, signed, 5)
        self.assertEqual(self.offer(device, said)[0].upload.next_offset, 0)
        for at in range(0, len(payload), CHUNK):
            reply = self.chunk(device, signed, at, payload[at:at + CHUNK])
        return reply

    def test_payloads(self):
        good = wire_device.payload_of(1, "d00", service.VALUES)
        with self.subTest("other bytes than were signed"):
            self.refused(self.spoiled(good[:-1] + bytes([good[-1] ^ 1]), good), "wrong_digest")
            self.end_well()
        for value, reason in ((float("nan"), "not_finite"), (float("inf"), "not_finite"), (3e38, "out_of_range")):
            with self.subTest(reason):
                bad = good[:400] + struct.pack("<f", value) + good[404:]
                self.refused(self.spoiled(bad, bad), reason)
                self.end_well()

    def test_a_frame_above_the_limit_ends_the_connection_and_nothing_else(self):
        device = self.begin()
        self.open_round(device)
        device.link.socket.sendall(struct.pack(">Q", 1 << 40))
        with self.assertRaises((OSError, wire_device.Lost)):
            device.link.ask(b"x")
        self.end_well()

    def test_a_recorded_session_that_is_sent_again_counts_nothing_twice(self):
        device, frames = self.begin(), []
        device.ask("hello", protocol=1, encodings=["f32"], frame_bytes_max=1 << 20)
        ask = device.link.ask
        device.link.ask = lambda frame: (frames.append(frame), ask(frame))[1]
        device.one_round()
        self.assertEqual(sorted(device.receipts), [1])
        again = wire_device.Link(("127.0.0.1", self.world.port), device.context)
        replies = [device.read(again.ask(frame))[0] for frame in frames]
        again.close()
        receipt = replies[-1].receipt if replies[-1].WhichOneof("body") == "receipt" else None
        offers = [reply for reply in replies if reply.WhichOneof("body") == "receipt"]
        self.assertTrue(offers, replies)  # the offer is answered by the receipt that is there
        self.assertEqual({reply.receipt.statement for reply in offers}, {device.receipts[1][0]})
        self.assertTrue(receipt is None or receipt.statement == device.receipts[1][0])
        self.world.devices[0].receipts = device.receipts
        self.end_well()

    def test_two_devices_with_one_certificate(self):
        one = self.begin()
        other = self.device("d00")
        opened = self.open_round(one)
        self.assertEqual(self.open_round(other)["nonce"], opened["nonce"])
        one.one_round()
        self.assertEqual(sorted(one.receipts), [1])
        payload = wire_device.payload_of(1, "a twin", service.VALUES)
        said = wire_device.update_statement(opened, "d00", other.certificate, payload, 5)
        reply = self.offer(other, said)
        self.refused(reply, "conflict")
        self.assertEqual(reply[0].refusal.receipt.statement, one.receipts[1][0])  # told which one counts
        self.world.devices[0].receipts = one.receipts
        self.end_well()

    def test_a_job_for_some_regions(self):
        """A second job for the region eu; d01's certificate is of another region, d00's of none."""
        eu, us = "d-eu", "d-us"
        for client, region in ((eu, "eu"), (us, "us")):
            if not os.path.exists(os.path.join(self.world.pki, f"device-{client}.pem")):
                subprocess.run([service.SHEAF, "pki", "issue", "--role", "device", "--name", client, "--tenant", service.TENANT,
                                "--region", region, "--dir", self.world.pki], check=True, stdout=subprocess.DEVNULL)
        job = f"""\
  - tenant: {service.TENANT}
    name: european
    initial_model: {self.world.folder}/initial.safetensors
    rounds: 1
    cohort: {{minimum: 1, target: 1, maximum: 1}}
    plan: {{learning_rate: 0.1}}
    regions: [eu]
"""
        device = self.begin(more=job)
        for client in ("d00", us):
            stranger = self.device(client)
            stranger.job = "european"
            for body, fields in (("hello", {"protocol": 1}), ("round", {}), ("model", {"digest": bytes(32)})):
                self.refused(stranger.ask(body, **fields), "wrong_region")
        welcome = self.device(eu)
        welcome.job = "european"
        welcome.one_round()
        self.assertEqual(sorted(welcome.receipts), [1])
        self.open_round(device)
        self.end_well()

    def test_who_asks_too_often_is_asked_to_wait_and_then_served(self):
        device = self.begin(top="client_requests_per_s: 5, ")
        waits = 0
        for _ in range(200):
            reply, _ = device.ask("hello", protocol=1, encodings=["f32"], frame_bytes_max=1 << 20)
            if reply.WhichOneof("body") == "wait":
                self.assertEqual(reply.wait.status, 151)  # over_quota
                self.assertGreater(reply.wait.retry_ms, 0)
                waits += 1
        self.assertGreater(waits, 100)
        self.assertIn("over_quota", self.world.tail(1000))


if __name__ == "__main__":
    unittest.main()
