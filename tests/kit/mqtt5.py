"""A small MQTT 5 client of our own (OASIS MQTT 5.0, chapters 2 and 3): for captures and forgeries, not through libmosquitto."""
import collections
import socket
import ssl
import struct
import threading

CONNECT, CONNACK, PUBLISH, PUBACK, SUBSCRIBE, SUBACK, PINGREQ, DISCONNECT = 1, 2, 3, 4, 8, 9, 12, 14
Message = collections.namedtuple("Message", "topic payload qos retain")


def text(value):
    raw = value.encode()
    return struct.pack(">H", len(raw)) + raw


def number(value):
    """Variable byte integer (1.5.5)."""
    out = bytearray()
    while True:
        out.append(value % 128 | (128 if value > 127 else 0))
        value //= 128
        if value == 0:
            return bytes(out)


def read_number(data, at):
    value, shift = 0, 0
    while True:
        value |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 128:
            return value, at


class Client:
    """Connects at once. Messages that come are kept in `messages`, or given to `on_message`; reason codes of our own
    publishes with QoS 1 come back from publish()."""

    def __init__(self, port, ca, certificate, client_id="", on_message=None):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(ca)
        context.load_cert_chain(certificate + ".pem", certificate + ".key")
        self.socket = context.wrap_socket(socket.create_connection(("127.0.0.1", port), timeout=20), server_hostname="localhost")
        self.messages, self.on_message = [], on_message
        self.acks, self.changed, self.lock = {}, threading.Condition(), threading.Lock()
        self.packet_id, self.closed = 0, False
        try:
            self._send(CONNECT << 4, text("MQTT") + b"\x05\x02" + struct.pack(">H", 600) + b"\x00" + text(client_id))
            kind, body = self._read()
            assert kind >> 4 == CONNACK and body[1] == 0, (kind, body)
        except (OSError, AssertionError):
            self.socket.close()
            raise
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _send(self, first, body):
        with self.lock:
            self.socket.sendall(bytes([first]) + number(len(body)) + body)

    def _exactly(self, size):
        data = bytearray()
        while len(data) < size:
            part = self.socket.recv(size - len(data))
            if not part:
                raise OSError("closed")
            data += part
        return bytes(data)

    def _read(self):
        first, size, shift = self._exactly(1)[0], 0, 0
        while True:
            byte = self._exactly(1)[0]
            size |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return first, self._exactly(size)

    def _run(self):
        self.socket.settimeout(None)
        try:
            while True:
                self._take(*self._read())
        except (OSError, ValueError):
            pass
        with self.changed:
            self.closed = True
            self.changed.notify_all()

    def _take(self, first, body):
        if first >> 4 == PUBLISH:
            self._take_publish(first, body)
        elif first >> 4 in (PUBACK, SUBACK):
            packet_id, = struct.unpack(">H", body[:2])
            code = body[-1] if first >> 4 == SUBACK else body[2] if len(body) > 2 else 0
            with self.changed:
                self.acks[packet_id] = code
                self.changed.notify_all()

    def _take_publish(self, first, body):
        size, = struct.unpack(">H", body[:2])
        topic, at, qos = body[2:2 + size].decode(), 2 + size, first >> 1 & 3
        if qos > 0:
            self._send(PUBACK << 4, body[at:at + 2])
            at += 2
        properties, at = read_number(body, at)
        message = Message(topic, body[at + properties:], qos, first & 1)
        if self.on_message is not None:
            self.on_message(message)
        else:
            self.messages.append(message)

    def _wait_ack(self, packet_id):
        with self.changed:
            self.changed.wait_for(lambda: packet_id in self.acks or self.closed, 20)
            return self.acks.pop(packet_id, None)

    def _next_id(self):
        self.packet_id = self.packet_id % 65535 + 1
        return self.packet_id

    def subscribe(self, *filters, qos=0):
        packet_id = self._next_id()
        self._send(SUBSCRIBE << 4 | 2, struct.pack(">H", packet_id) + b"\x00" +
                   b"".join(text(one) + bytes([qos]) for one in filters))
        return self._wait_ack(packet_id)

    def publish(self, topic, payload, qos=1, retain=False):
        """The broker's reason code, 0 when all is well; None when the connection ended instead."""
        packet_id = self._next_id()
        body = text(topic) + (struct.pack(">H", packet_id) if qos else b"") + b"\x00" + payload
        try:
            self._send(PUBLISH << 4 | qos << 1 | int(retain), body)
        except OSError:
            return None
        return self._wait_ack(packet_id) if qos else 0

    def close(self):
        """The reader must have ended before the descriptor is free: OpenSSL would go on with the number, whatever file then
        has it."""
        try:
            self._send(DISCONNECT << 4, b"")
            self.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self.thread.join()
        self.socket.close()
