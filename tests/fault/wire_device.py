"""A device in Python, written from proto/WIRE.md: NNG's REQ over TLS, protobuf headers, canonical statements.

It does not train: its update is a function of (round, client), as a real device's stored update is. It keeps what the
aggregator promised (receipts) over any number of deaths of the aggregator, and notes every answer that it must not get.
"""
import hashlib
import importlib
import os
import random
import socket
import ssl
import struct
import subprocess
import sys
import threading

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

sys.dont_write_bytecode = True


def load_schema(source, folder):
    """The messages of proto/sheaf.proto, compiled by protoc into `folder`."""
    subprocess.run(["protoc", f"--proto_path={os.path.join(source, 'proto')}", f"--python_out={folder}", "sheaf.proto"],
                   check=True)
    sys.path.insert(0, folder)
    return importlib.import_module("sheaf_pb2")


# ---- canonical bytes (proto/statement.h) ----

def name(text):
    raw = text.encode()
    return struct.pack("<H", len(raw)) + raw


class Fields:
    """Reads a statement in the order of its struct."""

    def __init__(self, data, domain):
        self.data, self.at = data, 0
        assert self.name() == domain, data

    def take(self, size):
        self.at += size
        assert self.at <= len(self.data)
        return self.data[self.at - size:self.at]

    def name(self):
        return self.take(struct.unpack("<H", self.take(2))[0]).decode()

    def u32(self):
        return struct.unpack("<I", self.take(4))[0]

    def u64(self):
        return struct.unpack("<Q", self.take(8))[0]


def read_round(data):
    f = Fields(data, "sheaf round v1")
    return {"tenant": f.name(), "job": f.name(), "round": f.u64(), "attempt": f.u32(), "nonce": f.take(32),
            "base_model": f.take(32), "base_model_bytes": f.u64(), "plan_digest": f.take(32), "certificate": f.take(32)}


def read_receipt(data):
    f = Fields(data, "sheaf receipt v1")
    return {"tenant": f.name(), "job": f.name(), "round": f.u64(), "attempt": f.u32(), "client": f.name(),
            "update_digest": f.take(32), "payload_digest": f.take(32)}


def update_statement(opened, client, certificate, payload, weight):
    return b"".join([name("sheaf update v1"), name(opened["tenant"]), name(opened["job"]),
                     struct.pack("<QI", opened["round"], opened["attempt"]), opened["nonce"], opened["base_model"],
                     opened["plan_digest"], name(client), hashlib.sha256(certificate).digest(), name("f32"),
                     struct.pack("<Q", len(payload)), hashlib.sha256(payload).digest(), struct.pack("<q", weight)])


def payload_of(round_number, client, values):
    rng = random.Random(f"{round_number}/{client}")
    return struct.pack(f"<{values}f", *(rng.uniform(-0.1, 0.1) for _ in range(values)))


def weight_of(client):
    return 1 + hashlib.sha256(client.encode()).digest()[0] % 50


class Lost(Exception):
    """The connection failed; the same request may be sent again."""


class Link:
    """NNG's REQ protocol, version 0, over TLS."""

    def __init__(self, address, context):
        self.socket = socket.create_connection(address, timeout=10)
        self.number = random.getrandbits(30)
        try:
            self._greet(context)
        except (OSError, Lost):
            self.socket.close()
            raise

    def _greet(self, context):
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = context.wrap_socket(self.socket)
        self.peer = self.socket.getpeercert(binary_form=True)
        self.socket.sendall(b"\0SP\0" + struct.pack(">HH", 0x30, 0))
        if self._receive(8) != b"\0SP\0" + struct.pack(">HH", 0x31, 0):
            raise Lost("not a REP peer")

    def _receive(self, size):
        data = b""
        while len(data) < size:
            part = self.socket.recv(size - len(data))
            if not part:
                raise Lost("closed")
            data += part
        return data

    def ask(self, frame):
        self.number = (self.number + 1) & 0x7fffffff
        header = struct.pack(">I", self.number | 0x80000000)
        self.socket.sendall(struct.pack(">Q", 4 + len(frame)) + header + frame)
        while True:
            size = struct.unpack(">Q", self._receive(8))[0]
            message = self._receive(size)
            if message[:4] == header:
                return message[4:]

    def close(self):
        self.socket.close()


class Device(threading.Thread):
    """Takes part in the job until it ends. Everything public may be read by the test at any time."""

    def __init__(self, pb, address, folder, client, tenant, job, values, role="device"):
        super().__init__(daemon=True)
        self.pb, self.address, self.client, self.tenant, self.job, self.values = pb, address, client, tenant, job, values
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.context.check_hostname = False
        self.context.minimum_version = ssl.TLSVersion.TLSv1_3
        self.context.load_verify_locations(os.path.join(folder, "ca.pem"))
        own = os.path.join(folder, f"{role}-{client}")
        self.context.load_cert_chain(own + ".pem", own + ".key")
        with open(own + ".key", "rb") as file:
            self.key = serialization.load_pem_private_key(file.read(), None)
        with open(own + ".pem", "rb") as file:
            self.certificate = x509.load_pem_x509_certificate(file.read()).public_bytes(serialization.Encoding.DER)
        self.halt = threading.Event()
        self.link = None
        self.receipts = {}   # round -> (statement, signature): promises
        self.opened = {}     # (round, attempt) -> statement: what the aggregator has told us
        self.payloads = {}   # client -> what it sends instead, of a test that wants it so
        self.wrong = []      # answers that must not come
        self.end = None      # JobEnd
        self.requests = 0

    # ---- one request, over any number of connections ----

    def ask(self, body, payload=b"", **fields):
        message = self.pb.Request(tenant=self.tenant, job=self.job, client=self.client)
        part = getattr(message, body)
        part.SetInParent()
        for key, value in fields.items():
            if isinstance(value, list):
                getattr(part, key).extend(value)
            else:
                setattr(part, key, value)
        header = message.SerializeToString()
        frame = b"Shf\x01" + struct.pack("<I", len(header)) + header + payload
        while not self.halt.is_set():
            try:
                if self.link is None:
                    self.link = Link(self.address, self.context)
                answer = self.link.ask(frame)
                self.requests += 1
                if answer:
                    return self.read(answer)
                self.halt.wait(0.02)  # an empty reply: too many at once, ask again
            except (OSError, Lost):
                if self.link is not None:
                    self.link.close()
                self.link = None
                self.halt.wait(0.02)
        raise SystemExit

    def read(self, frame):
        assert frame[:4] == b"Shf\x01", frame[:16]
        size = struct.unpack_from("<I", frame, 4)[0]
        reply = self.pb.Reply()
        reply.ParseFromString(frame[8:8 + size])
        return reply, frame[8 + size:]

    # ---- the session ----

    def run(self):
        try:
            self.ask("hello", protocol=1, encodings=["f32"], frame_bytes_max=1 << 20)
            while self.end is None and not self.halt.is_set():
                self.one_round()
        except SystemExit:
            pass
        except Exception as error:  # pylint: disable=broad-except
            self.wrong.append(f"{type(error).__name__}: {error}")
        finally:
            if self.link is not None:
                self.link.close()

    def one_round(self):
        reply, _ = self.ask("round", last_round=max(self.receipts, default=0))
        kind = reply.WhichOneof("body")
        if kind == "end":
            self.end = reply.end
        elif kind == "wait":
            self.halt.wait(min(reply.wait.retry_ms, 50) / 1000)
        elif kind == "round":
            self.take_part(reply.round.statement, reply.round.signature)
        else:
            self.complain("round", reply)

    def complain(self, request, reply):
        self.wrong.append(f"{self.client}: {request}: {reply.WhichOneof('body')} {reply}".replace("\n", " "))
        self.halt.wait(0.05)

    def check_signature(self, statement, signature):
        key = x509.load_der_x509_certificate(self.link.peer).public_key()
        key.verify(signature, statement, ec.ECDSA(hashes.SHA256()))

    def take_part(self, statement, signature):
        self.check_signature(statement, signature)
        opened = read_round(statement)
        known = self.opened.setdefault((opened["round"], opened["attempt"]), statement)
        if known != statement:
            self.wrong.append(f"round {opened['round']} was told in two forms")
        self.fetch_model(opened)
        payload = self.payloads.get(self.client) or payload_of(opened["round"], self.client, self.values)
        update = update_statement(opened, self.client, self.certificate, payload, weight_of(self.client))
        self.send(opened["round"], update, payload)

    def fetch_model(self, opened):
        data = b""
        while len(data) < opened["base_model_bytes"]:
            reply, part = self.ask("model", digest=opened["base_model"], offset=len(data), bytes_max=1 << 18)
            if reply.WhichOneof("body") != "model":
                return  # the round may have gone on meanwhile; the offer will tell
            data += part
        if hashlib.sha256(data).digest() != opened["base_model"]:
            self.wrong.append("the model does not have its digest")

    def send(self, number, update, payload):
        signature = self.key.sign(update, ec.ECDSA(hashes.SHA256()))
        digest = hashlib.sha256(payload).digest()
        body, fields, part = "offer", {"statement": update, "signature": signature}, b""
        while not self.halt.is_set():
            reply, _ = self.ask(body, part, **fields)
            kind = reply.WhichOneof("body")
            if kind == "receipt":
                self.keep_receipt(number, reply.receipt, digest)
                return
            if kind == "upload":
                at = reply.upload.next_offset
                body, fields, part = "chunk", {"payload_digest": digest, "offset": at}, payload[at:at + 1024]
            elif kind == "wait":
                self.halt.wait(min(reply.wait.retry_ms, 50) / 1000)
            elif kind == "refusal" and body == "chunk" and reply.refusal.reason == "not_found":
                body, fields, part = "offer", {"statement": update, "signature": signature}, b""
            else:
                self.complain(body, reply)
                return

    def keep_receipt(self, number, receipt, digest):
        self.check_signature(receipt.statement, receipt.signature)
        said = read_receipt(receipt.statement)
        if (said["round"], said["client"], said["payload_digest"]) != (number, self.client, digest):
            self.wrong.append(f"a receipt for something else: {said}")
        self.receipts[number] = (receipt.statement, digest)
