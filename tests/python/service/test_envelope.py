"""A device in Python that opens a sealed session with a real sheafd through a real broker: HPKE (RFC 9180), transcripts and
signatures by the words of proto/WIRE.md and Python's `cryptography`, without any code of ours."""
import hashlib
import os
import queue
import struct
import sys
import tempfile
import time
import unittest

sys.dont_write_bytecode = True
for part in ("kit", "fault"):
    sys.path.insert(0, os.path.join(os.environ["SHEAF_SOURCE"], "tests", part))
from cryptography import x509  # noqa: E402
from cryptography.hazmat.primitives import hashes, hmac, serialization  # noqa: E402
from cryptography.hazmat.primitives.asymmetric import ec, x25519  # noqa: E402
from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: E402
import fleet  # noqa: E402
import mqtt5  # noqa: E402
import wire_device  # noqa: E402

P256, X25519 = 0x0010, 0x0020
WRONG_ROLE, BUSY = 112, 150  # common/status.h
UP, DOWN = "sheaf/1/up/", "sheaf/1/down/"


def name(text):
    return struct.pack("<H", len(text)) + text.encode()


def mac(key, data):
    one = hmac.HMAC(key, hashes.SHA256())
    one.update(data)
    return one.finalize()


def extract(suite, salt, label, ikm):
    return mac(salt or bytes(32), b"HPKE-v1" + suite + label + ikm)


def expand(suite, prk, label, info, size):
    info, out, block, counter = struct.pack(">H", size) + b"HPKE-v1" + suite + label + info, b"", b"", 1
    while len(out) < size:
        block = mac(prk, block + info + bytes([counter]))
        out, counter = out + block, counter + 1
    return out[:size]


def encapsulate(kem, public):
    """RFC 9180, 4.1: (shared secret, enc)."""
    if kem == P256:
        own = ec.generate_private_key(ec.SECP256R1())
        enc = own.public_key().public_bytes(serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint)
        shared = own.exchange(ec.ECDH(), ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), public))
    else:
        own = x25519.X25519PrivateKey.generate()
        enc = own.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
        shared = own.exchange(x25519.X25519PublicKey.from_public_bytes(public))
    suite = b"KEM" + struct.pack(">H", kem)
    return expand(suite, extract(suite, b"", b"eae_prk", shared), b"shared_secret", enc + public, 32), enc


class Sender:
    """RFC 9180, 5.1: base mode, HKDF-SHA256, AES-128-GCM."""

    def __init__(self, kem, public, info):
        shared, self.enc = encapsulate(kem, public)
        self.suite = b"HPKE" + struct.pack(">HHH", kem, 1, 1)
        context = b"\0" + extract(self.suite, b"", b"psk_id_hash", b"") + extract(self.suite, b"", b"info_hash", info)
        secret = extract(self.suite, shared, b"secret", b"")
        self.key = expand(self.suite, secret, b"key", context, 16)
        self.base = expand(self.suite, secret, b"base_nonce", context, 12)
        self.exporter = expand(self.suite, secret, b"exp", context, 32)

    def export(self, context, size):
        return expand(self.suite, self.exporter, b"sec", context, size)


def nonce(base, number):
    return base[:4] + (int.from_bytes(base[4:], "big") ^ number).to_bytes(8, "big")


def transcript(label, *parts):
    return hashlib.sha256(label + b"\0" + b"".join(struct.pack("<I", len(part)) + part for part in parts)).digest()


class Session:
    """A device's end."""

    def __init__(self, mqtt, inbox, client, certificate, key):
        self.mqtt, self.inbox, self.client, self.certificate, self.key = mqtt, inbox, client, certificate, key
        self.id, self.number = os.urandom(16), 0

    def head(self, kind):
        return b"Shm\x01" + bytes([kind]) + self.id

    def hear(self, kind):
        while True:
            payload = self.inbox.get(timeout=20)
            if payload[:21] == self.head(kind):
                return payload
            assert payload[4] != 7 or payload[5:21] != self.id, f"rejected: {struct.unpack_from('<I', payload, 21)[0]}"

    def open(self, kem, ca):
        hello = self.head(1) + b"\x01" + struct.pack("<H", kem)
        self.mqtt.publish(UP + self.client, hello)
        challenge = self.hear(2)
        server_nonce, chosen = challenge[21:53], struct.unpack_from("<H", challenge, 53)[0]
        assert chosen == kem
        size = 65 if kem == P256 else 32
        public, at = challenge[55:55 + size], 55 + size
        count, at, chain = challenge[at], at + 1, []
        for _ in range(count):
            length, = struct.unpack_from("<H", challenge, at)
            chain.append(challenge[at + 2:at + 2 + length])
            at += 2 + length
        length, = struct.unpack_from("<H", challenge, at)
        assert at + 2 + length == len(challenge)
        first = transcript(b"sheaf envelope transcript 1 v1", self.client.encode(), hello, challenge[:at])
        self.peer = x509.load_der_x509_certificate(chain[0])
        ca.public_key().verify(self.peer.signature, self.peer.tbs_certificate_bytes, ec.ECDSA(hashes.SHA256()))
        self.peer.public_key().verify(challenge[at + 2:], name("sheaf envelope challenge v1") + first, ec.ECDSA(hashes.SHA256()))
        self.prove(kem, public, first, server_nonce)

    def prove(self, kem, public, first, server_nonce):
        hpke = Sender(kem, public, name("sheaf envelope info v1") + first)
        clear = self.head(3) + server_nonce + hpke.enc
        second = transcript(b"sheaf envelope transcript 2 v1", first, clear)
        said = name("sheaf envelope session v1") + second + hashlib.sha256(self.certificate).digest()
        signature = self.key.sign(said, ec.ECDSA(hashes.SHA256()))
        proof = b"\x01" + struct.pack("<H", len(self.certificate)) + self.certificate
        proof += struct.pack("<H", len(signature)) + signature
        self.up, self.up_base = AESGCM(hpke.key), hpke.base
        down = hpke.export(name("sheaf envelope down v1") + second, 28)
        self.down, self.down_base = AESGCM(down[:16]), down[16:]
        self.mqtt.publish(UP + self.client, clear + self.up.encrypt(nonce(self.up_base, 0), proof, clear))
        accept = self.hear(4)
        assert self.down.decrypt(nonce(self.down_base, 0), accept[21:], accept[:21]) == b""

    def ask(self, frame):
        self.number += 1
        clear = self.head(5) + struct.pack("<Q", self.number)
        self.mqtt.publish(UP + self.client, clear + self.up.encrypt(nonce(self.up_base, self.number), frame, clear))
        reply = self.hear(6)
        number, answers = struct.unpack_from("<QQ", reply, 21)
        assert answers == self.number
        return self.down.decrypt(nonce(self.down_base, number), reply[37:], reply[:37])


class Envelope(unittest.TestCase):
    def setUp(self):
        self.job = fleet.Fleet(devices=1, rounds=1, transport="mqtt")
        self.addCleanup(self.job.close)
        self.client = self.job.names[0]
        self.start()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.pb = wire_device.load_schema(fleet.SOURCE, folder.name)

    def start(self, limits=""):
        with open(self.job.config, encoding="utf-8") as file:
            text = file.read()
        with open(self.job.config, "w", encoding="utf-8") as file:
            file.write(text.replace("limits: {", "limits: {" + limits))
        known = self.job.log().count("broker_connected")
        self.job.start_server()
        self.job.wait_for(lambda: self.job.log().count("broker_connected") > known)

    def session(self, client="", role="device"):
        client = client or self.client
        path = os.path.join(self.job.pki, f"{role}-{client}")
        inbox = queue.Queue()
        mqtt = mqtt5.Client(self.job.broker.port, os.path.join(self.job.pki, "ca.pem"), path,
                            on_message=lambda message: inbox.put(message.payload))
        self.addCleanup(mqtt.close)
        mqtt.subscribe(DOWN + client)
        with open(path + ".pem", "rb") as file:
            certificate = x509.load_pem_x509_certificate(file.read()).public_bytes(serialization.Encoding.DER)
        with open(path + ".key", "rb") as file:
            key = serialization.load_pem_private_key(file.read(), None)
        return Session(mqtt, inbox, client, certificate, key)

    def ask(self, session, body, **fields):
        message = self.pb.Request(tenant=fleet.TENANT, job=fleet.JOB, client=self.client)
        part = getattr(message, body)
        part.SetInParent()
        for key, value in fields.items():
            if isinstance(value, list):
                getattr(part, key).extend(value)
            else:
                setattr(part, key, value)
        header = message.SerializeToString()
        answer = session.ask(b"Shf\x01" + struct.pack("<I", len(header)) + header)
        reply = self.pb.Reply()
        reply.ParseFromString(answer[8:8 + struct.unpack_from("<I", answer, 4)[0]])
        return reply

    def ca(self):
        with open(os.path.join(self.job.pki, "ca.pem"), "rb") as file:
            return x509.load_pem_x509_certificate(file.read())

    def test_certificates_of_a_wrong_role_open_no_session(self):
        for role, name in (("operator", "olga"), ("auditor", "axel")):
            fleet.sheaf("pki", "issue", "--dir", self.job.pki, "--role", role, "--name", name, "--tenant", fleet.TENANT)
            with self.assertRaisesRegex(AssertionError, f"^rejected: {WRONG_ROLE}$"):
                self.session(name, role).open(P256, self.ca())
        self.job.wait_for(lambda: self.job.log().count("reason=wrong_role") == 2)
        session = self.session()
        session.open(P256, self.ca())
        welcome = self.ask(session, "hello", protocol=1, encodings=["f32"], frame_bytes_max=1 << 20)
        self.assertEqual(welcome.welcome.protocol, 1)

    def test_a_session_too_many_is_told_so_and_opens_once_another_is_silent(self):
        self.job.stop_server()
        self.start("connections: 1, ")
        fleet.sheaf("pki", "issue", "--dir", self.job.pki, "--role", "device", "--name", "late", "--tenant", fleet.TENANT)
        first = self.session()
        first.open(P256, self.ca())
        with self.assertRaisesRegex(AssertionError, f"^rejected: {BUSY}$"):
            self.session("late").open(P256, self.ca())
        self.assertIn("reason=busy", self.job.log())
        self.ask(first, "hello", protocol=1)  # who was there is there
        time.sleep(1.1)  # handshake_ms
        self.session("late").open(P256, self.ca())

    def test_a_device_in_python_is_believed_and_believes(self):
        ca = self.ca()
        for kem in (P256, X25519):
            with self.subTest(kem=kem):
                session = self.session()
                session.open(kem, ca)
                welcome = self.ask(session, "hello", protocol=1, encodings=["f32"], frame_bytes_max=1 << 20)
                self.assertEqual((welcome.welcome.protocol, welcome.welcome.encodings_ok), (1, 1))
                opened = self.ask(session, "round")
                statement = wire_device.read_round(opened.round.statement)
                self.assertEqual((statement["job"], statement["round"]), (fleet.JOB, 1))
                session.peer.public_key().verify(opened.round.signature, opened.round.statement, ec.ECDSA(hashes.SHA256()))


if __name__ == "__main__":
    unittest.main()
