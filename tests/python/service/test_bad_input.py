"""Everything bad that a device can say in a session, by a device in Python that knows proto/WIRE.md and none of our code:
each is refused by its name, the device is told, nothing is lost, and the round ends with the model of a calm one."""
import hashlib
import os
import struct
import sys
import threading
import unittest

sys.dont_write_bytecode = True
sys.path[:0] = [os.path.join(os.environ["SHEAF_SOURCE"], "tests", *part) for part in (["fault"], ["python", "service"])]
from cryptography.hazmat.primitives.asymmetric import ec  # noqa: E402
import service  # noqa: E402
import session_kit  # noqa: E402
import wire_device  # noqa: E402
from session_kit import CHUNK  # noqa: E402

WRONG_DIGEST = 114


def changed(opened, **fields):
    return dict(opened, **fields)


class BadInput(session_kit.Sessions):
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
        self.refused(device.ask("model", digest=bytes(32), offset=0, bytes_max=100), "not_found", counted=False)
        self.end_well()

    def test_chunks(self):
        device = self.begin()
        opened = self.open_round(device)
        payload = wire_device.payload_of(1, "d00", service.VALUES)
        other = wire_device.payload_of(1, "other", service.VALUES)
        self.refused(self.chunk(device, payload, 0, payload[:CHUNK]), "not_found", counted=False)  # of nothing that was offered
        said = wire_device.update_statement(opened, "d00", device.certificate, payload, wire_device.weight_of("d00"))
        self.assertEqual(self.offer(device, said)[0].upload.next_offset, 0)
        self.refused(self.chunk(device, other, 0, other[:CHUNK]), "not_found", counted=False)  # of another upload
        self.refused(self.chunk(device, payload, 2**63, b"x"), "too_large")
        self.refused(self.chunk(device, payload, len(payload) - 1, b"xy"), "too_large")  # ends after the end
        reply, _ = self.chunk(device, payload, 0, payload[:CHUNK], bytes(32))
        self.assertEqual(reply.WhichOneof("body"), "wait")
        self.assertEqual(reply.wait.status, WRONG_DIGEST)  # this chunk again
        self.counts["wrong_digest"] += 1
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
        device.link = wire_device.Link(("127.0.0.1", self.world.port), device.context)
        ask = device.link.ask
        device.link.ask = lambda frame: (frames.append(frame), ask(frame))[1]
        device.ask("hello", protocol=1, encodings=["f32"], frame_bytes_max=1 << 20)
        device.one_round()
        self.assertEqual(sorted(device.receipts), [1])
        again = wire_device.Link(("127.0.0.1", self.world.port), device.context)
        replies = [device.read(again.ask(frame))[0] for frame in frames]
        again.close()
        self.assertEqual([reply.WhichOneof("body") for reply in replies[:2]], ["welcome", "wait"])  # Hello; nothing left to do
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
            self.issue("device", client, "--region", region)
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
                self.refused(stranger.ask(body, **fields), "wrong_region", counted=False)  # of the other job
        welcome = self.device(eu)
        welcome.job = "european"
        welcome.one_round()
        self.assertEqual(sorted(welcome.receipts), [1])
        self.open_round(device)
        self.end_well()

    def test_a_late_update(self):
        """The first two of three close a round; what the third still brings of it is late: in the next round, and after the end."""
        two = {"rounds: 1": "rounds: 2", "cohort: {minimum: 3, target: 3,": "cohort: {minimum: 2, target: 2,"}
        calm = self.run_calmly(first=1, changes=two)
        late = self.begin(changes=two)
        self.world.devices = self.world.devices[1:]
        opened, payload = self.open_round(late), wire_device.payload_of(1, "d00", service.VALUES)
        said = self.statement(opened, late, payload)
        self.assertEqual(self.offer(late, said)[0].upload.next_offset, 0)
        self.assertEqual(self.chunk(late, payload, 0, payload[:CHUNK])[0].upload.next_offset, CHUNK)
        for device in self.world.devices:
            device.one_round()
        self.until(lambda: self.open_number(late) == 2)
        self.refused(self.chunk(late, payload, CHUNK, payload[CHUNK:2 * CHUNK]), "not_found", counted=False)
        self.refused(self.offer(late, said), "late")
        self.assertEqual(self.get(f"/v1/jobs/{service.TENANT}/{service.JOB}/rounds/2")["refusals"], {"late": 1})
        self.world.start_devices()
        self.assertEqual(self.world.wait(), "ended", self.world.tail())
        self.refused(self.offer(late, said), "late")
        late.one_round()
        self.assertEqual(late.end.model_digest.hex(), calm)  # it is told how the job ended
        self.assertEqual(self.get("/v1/refusals")["jobs"][0]["refusals"], {"late": 2})
        self.assertEqual([late.receipts, *[device.wrong for device in [late, *self.world.devices]]], [{}, [], [], []])
        self.assertEqual(self.world.digest(), calm)

    def open_number(self, device):
        reply, _ = device.ask("round", last_round=0)
        return wire_device.read_round(reply.round.statement)["round"] if reply.WhichOneof("body") == "round" else 0

    def test_certificates_of_a_wrong_role(self):
        device = self.begin()
        for count, (role, name) in enumerate((("operator", "olga"), ("auditor", "axel"))):
            self.issue(role, name)
            stranger = self.device(name, role)
            for body, fields in (("hello", {"protocol": 1}), ("round", {}), ("model", {"digest": bytes(32)})):
                reply = stranger.ask(body, **fields)
                self.refused(reply, "wrong_role", counted=False)
                self.assertIn("role", reply[0].refusal.detail)
            stranger.client = "d00"  # nor in a device's name
            self.refused(stranger.ask("hello", protocol=1), "wrong_role", counted=False)
            self.assertEqual(self.of_no_job()["wrong_role"], 4 * (count + 1))
        self.open_round(device)
        self.end_well()

    def test_two_devices_with_one_certificate_upload_at_once(self):
        """Both in mid-upload, chunk by chunk in turn, with one payload and then with two: one counts, and both know which."""
        one, other = self.begin(), self.device("d00")
        opened, payload = self.open_round(one), wire_device.payload_of(1, "d00", service.VALUES)
        said = self.statement(opened, one, payload)
        for device in (one, other):
            self.assertEqual(self.offer(device, said)[0].upload.next_offset, 0)
        self.assertEqual(self.chunk(one, payload, 0, payload[:CHUNK])[0].upload.next_offset, CHUNK)
        self.assertEqual(self.chunk(other, payload, CHUNK, payload[CHUNK:2 * CHUNK])[0].upload.next_offset, 2 * CHUNK)
        together = threading.Barrier(2)

        def go_on(device):
            together.wait()
            device.send(1, said, payload)

        threads = [threading.Thread(target=go_on, args=(device,)) for device in (one, other)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        self.assertEqual(one.wrong + other.wrong, [])
        self.assertEqual(one.receipts, other.receipts)
        self.assertEqual(sorted(one.receipts), [1])
        self.world.devices[0].receipts = one.receipts
        self.end_well()

    def test_two_devices_with_one_certificate_upload_different_things_at_once(self):
        payloads = {name: wire_device.payload_of(1, name, service.VALUES) for name in ("d00", "a twin")}
        calm = {name: self.run_calmly(payloads={"d00": payload}) for name, payload in payloads.items()}
        self.assertEqual(calm["d00"], self.calm)
        self.assertNotEqual(calm["a twin"], self.calm)
        devices = {"d00": self.begin(), "a twin": self.device("d00")}
        opened = self.open_round(devices["d00"])
        together, answers, halt = threading.Barrier(2), {}, threading.Event()

        def upload(name):
            """As a device does: a refused chunk is offered again, a Wait is waited for."""
            device, payload = devices[name], payloads[name]
            said = self.statement(opened, device, payload)
            together.wait()
            reply = self.offer(device, said)[0]
            for _ in range(5000):
                kind = reply.WhichOneof("body")
                if kind == "upload":
                    at = reply.upload.next_offset
                    reply = self.chunk(device, payload, at, payload[at:at + CHUNK])[0]
                elif kind == "wait" or reply.refusal.reason == "not_found":
                    halt.wait(0.01)
                    reply = self.offer(device, said)[0]
                else:
                    break
            answers[name] = reply

        threads = [threading.Thread(target=upload, args=(name,)) for name in devices]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        winner, = [name for name, reply in answers.items() if reply.WhichOneof("body") == "receipt"]
        loser, = set(answers) - {winner}
        self.assertEqual(answers[loser].refusal.reason, "conflict", answers)
        self.assertEqual(answers[loser].refusal.receipt.statement, answers[winner].receipt.statement)
        counts = wire_device.read_receipt(answers[winner].receipt.statement)
        self.assertEqual(counts["payload_digest"], hashlib.sha256(payloads[winner]).digest())
        self.world.devices[0].receipts = {1: (answers[winner].receipt.statement, counts["payload_digest"])}
        told = self.get("/v1/refusals")["jobs"][0]["refusals"]
        self.assertEqual(told.get("conflict"), 1)
        self.counts.update(told)  # over_quota too, as often as they drove each other out
        self.assertLessEqual(set(told), {"conflict", "over_quota"})
        self.end_well(calm[winner])


if __name__ == "__main__":
    unittest.main()
