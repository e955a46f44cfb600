"""Every line that `sheaf pki broker-config` writes is there for something: with it, a real broker keeps a promise; without it,
or with another value, the promise breaks. Lines whose absence cannot be observed are named, with the reason."""
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.environ["SHEAF_SOURCE"], "tests", "kit"))
from broker import MOSQUITTO, free_port  # noqa: E402
import mqtt5  # noqa: E402

SHEAF = os.path.join(os.environ["SHEAF_BUILD"], "server", "sheaf")
UP, DOWN, CAST = "sheaf/1/up/", "sheaf/1/down/", "sheaf/1/cast/"
NOT_AUTHORIZED = 0x87  # MQTT 5.0, 2.4; below 0x80 all is well
PACKET_BYTES = 16842752  # sixteen chunks of the largest message of ours are less
SILENCE_S = 0.4  # so long nothing comes that must not come
PATIENCE_S = 10  # what must come may take so long on a busy machine


def pki(*arguments):
    done = subprocess.run([SHEAF, "pki", *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, (arguments, done.stderr)


def fine(code):
    return code is not None and code < 0x80


def within(condition, seconds):
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


class SlowReader(mqtt5.Client):
    """Acknowledges nothing until it is told to."""
    owed, holds = (), True

    def _take_publish(self, first, body):
        if not self.holds:
            super()._take_publish(first, body)
        else:
            self.owed = [*self.owed, (first, body)]

    def read_on(self):
        """How many messages there were for it."""
        self.holds = False
        for first, body in self.owed:
            super()._take_publish(first, body)
        seen = -1
        while seen != len(self.messages):
            seen = len(self.messages)
            time.sleep(0.2)
        return seen


class Broker:
    """One that runs with this configuration and access list."""

    patience_s = SILENCE_S  # most changed lines break something, and that would be waited for in vain

    def __init__(self, world, config, acl):
        self.world, self.folder = world, tempfile.mkdtemp(prefix="broker-", dir=world.folder)
        acl_path, config_path = os.path.join(self.folder, "acl"), os.path.join(self.folder, "mosquitto.conf")
        self.port = free_port()
        config = config.replace(f"{world.made}/acl", acl_path).replace("listener 18883 ", f"listener {self.port} ")
        if os.geteuid() == 0:  # Mosquitto would become another user, who may not read the keys
            config += "user root\n"
        for path, text in ((acl_path, acl), (config_path, config)):
            with open(path, "w", encoding="ascii") as file:
                file.write(text)
        self.log_path = os.path.join(self.folder, "log")
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen([MOSQUITTO, "-c", config_path], cwd=self.folder, stdout=log, stderr=log)
        within(lambda: self.process.poll() is not None or self.answers(), 10)

    def answers(self):
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            return True
        except OSError:
            return False

    def log(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as file:
            return file.read()

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def client(self, name, kind=mqtt5.Client, **options):
        client = kind(self.port, os.path.join(self.world.pki, "ca.pem"), self.world.certificate(name), **options)
        self.world.clients.append(client)
        return client

    def tls(self, certificate=None, newest=ssl.TLSVersion.TLSv1_3):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(os.path.join(self.world.pki, "ca.pem"))
        context.maximum_version = newest
        if certificate is not None:
            context.load_cert_chain(certificate + ".pem", certificate + ".key")
        stream = context.wrap_socket(socket.create_connection(("127.0.0.1", self.port), timeout=5), server_hostname="localhost")
        return stream


# ---- promises: True while the broker keeps it ----

def lets_a_device_in(b):
    try:
        return fine(b.client("d00").publish(UP + "d00", b"x"))
    except (OSError, AssertionError):
        return False


def lets_no_stranger_in(b):
    """One with a certificate of another authority, and every right name."""
    try:
        return not fine(b.client("alien").publish(UP + "d00", b"x"))
    except (OSError, AssertionError):
        return True


def lets_nobody_revoked_in(b):
    try:
        return not fine(b.client("revoked").publish(UP + "revoked", b"x"))
    except (OSError, AssertionError):
        return True


def answers_nobody_without_certificate(b):
    """Not even by a refusal: nothing of who is unknown reaches the broker's reader of packets."""
    return not greeted(b)


def serves_nobody_without_certificate(b):
    return greeted(b) not in (b"\0", b"\0\0")


def greeted(b):
    """The answer to CONNECT of somebody without a certificate: its reason code; empty when there is none."""
    try:
        with b.tls() as stream:
            stream.sendall(bytes([mqtt5.CONNECT << 4, 16]) + mqtt5.text("MQTT") + b"\x05\x02\0\x3c\0" + mqtt5.text("who"))
            head = stream.recv(4)
            return head[3:4]
    except OSError:
        return b""


def speaks_only_tls_1_3(b):
    try:
        with b.tls(b.world.certificate("d00"), ssl.TLSVersion.TLSv1_2):
            return False
    except OSError:
        return True


def lets_nobody_take_a_client_id(b):
    victim = b.client("d00", client_id="d00")
    b.client("d01", client_id="d00")
    return not within(lambda: victim.closed, SILENCE_S)


def keeps_a_device_to_its_topic(b):
    return b.client("d01").publish(UP + "d00", b"x") == NOT_AUTHORIZED


def keeps_a_device_from_casting(b):
    return b.client("d01").publish(CAST + 32 * "0", b"x") == NOT_AUTHORIZED


def keeps_devices_from_what_others_hear(b):
    reader = b.client("d01")
    reader.subscribe(DOWN + "d00", DOWN + "#")
    b.client("main").publish(DOWN + "d00", b"x")
    return not within(lambda: reader.messages, SILENCE_S)


def keeps_devices_from_what_others_say(b):
    reader = b.client("d01")
    reader.subscribe(UP + "d00", UP + "#", "#")
    b.client("d00").publish(UP + "d00", b"x")
    return not within(lambda: reader.messages, SILENCE_S)


def carries(b, sender, topic, reader):
    """A message on this topic, from one to the other."""
    heard = b.client(reader)
    heard.subscribe(topic)
    return fine(b.client(sender).publish(topic, b"x")) and within(lambda: heard.messages, b.patience_s)


def carries_up(b):
    return carries(b, "d00", UP + "d00", "main")


def carries_down(b):
    return carries(b, "main", DOWN + "d00", "d00")


def carries_casts(b):
    return carries(b, "main", CAST + 32 * "0", "d00")


def answers_at_once(b):
    """Some answers are small packets in a row; with Nagle's algorithm the second waits for the first one's ACK, about 40 ms.
    The fastest of eight, so that a busy machine does not matter."""
    fastest = 1.0
    for _ in range(8):
        begin = time.monotonic()
        client = b.client("d00")
        client.subscribe(DOWN + "d00")
        client.publish(UP + "d00", b"x")
        fastest = min(fastest, time.monotonic() - begin)
    return fastest < 0.03


def takes_no_larger_packet(b):
    return not fine(b.client("d00").publish(UP + "d00", bytes(PACKET_BYTES)))  # and a few more for the topic


def takes_the_largest_of_ours(b):
    return fine(b.client("d00").publish(UP + "d00", bytes(PACKET_BYTES - 1000)))


def send_to_who_does_not_read(b, count, size):
    reader, sender = b.client("main", SlowReader), b.client("d00")
    reader.subscribe(UP + "d00", qos=1)
    for number in range(1, count + 1):
        sender._send(mqtt5.PUBLISH << 4 | 2, mqtt5.text(UP + "d00") + number.to_bytes(2, "big") + b"\0" + bytes(size))
    sender._wait_ack(count)
    return reader


def queues_at_most_1000_messages(b):
    return send_to_who_does_not_read(b, 1100, 1).read_on() <= 1020


def queues_at_most_16_mib(b):
    return send_to_who_does_not_read(b, 60, 1 << 20).read_on() <= 20 + 17


def has_at_most_20_on_their_way(b):
    reader = send_to_who_does_not_read(b, 100, 1)
    return within(lambda: len(reader.owed) == 20, 5) and not within(lambda: len(reader.owed) > 20, SILENCE_S)


def takes_many_connections(b):
    try:
        return len([b.client(name) for name in ("d00", "d01", "main")]) == 3
    except (OSError, AssertionError):
        return False


def retains_nothing(b):
    b.client("d00").publish(UP + "d00", b"garbage", retain=True)
    late = b.client("main")
    late.subscribe(UP + "+")
    return not within(lambda: late.messages, SILENCE_S)


def writes_nothing_to_disk(b):
    before = set(os.listdir(b.folder))
    lets_a_device_in(b)
    b.stop()
    return set(os.listdir(b.folder)) == before


def logs(what):
    def promise(b):
        lets_a_device_in(b)
        # A stranger who hangs up before the broker has looked at the certificate leaves no word; the next one does.
        return within(lambda: lets_no_stranger_in(b) and within(lambda: re.search(what, b.log()), SILENCE_S), b.patience_s)
    promise.__name__ = "logs_" + re.sub(r"\W+", "_", what)
    return promise


def listens_where_it_is_told(b):
    return b.answers()


# ---- lines: (line as a pattern, what becomes of it; None: it goes, the promise that breaks) ----

CONFIG = [
    (r"listener \d+ 127\.0\.0\.1", "listener 0 /dev/null/none", listens_where_it_is_told),
    (r"cafile .*", None, lets_a_device_in),
    (r"cafile .*", "cafile {other}/ca.pem", lets_a_device_in),
    (r"cafile .*", "cafile {both}", lets_no_stranger_in),
    (r"certfile .*", None, lets_a_device_in),
    (r"certfile .*", "certfile {other}/broker-broker.pem", lets_a_device_in),
    (r"keyfile .*", None, lets_a_device_in),
    (r"crlfile .*", None, lets_nobody_revoked_in),
    (r"tls_version tlsv1\.3", None, speaks_only_tls_1_3),
    (r"require_certificate true", None, answers_nobody_without_certificate),
    (r"use_identity_as_username true", None, lets_a_device_in),
    (r"use_username_as_clientid true", None, lets_nobody_take_a_client_id),
    (r"acl_file .*", None, keeps_a_device_to_its_topic),
    (r"acl_file .*", None, keeps_devices_from_what_others_say),
    (r"set_tcp_nodelay true", None, answers_at_once),
    (r"max_packet_size 16842752", None, takes_no_larger_packet),
    (r"max_packet_size 16842752", "max_packet_size 1048576", takes_the_largest_of_ours),
    (r"max_queued_messages 1000", "max_queued_messages 0", queues_at_most_1000_messages),
    (r"max_queued_bytes 16777216", None, queues_at_most_16_mib),
    (r"max_inflight_messages 20", "max_inflight_messages 0", has_at_most_20_on_their_way),
    (r"max_connections 4096", "max_connections 1", takes_many_connections),
    (r"retain_available false", None, retains_nothing),
    (r"persistence false", "persistence true", writes_nothing_to_disk),
    (r"log_dest stderr", "log_dest none", logs("New client connected")),
    (r"log_type error", None, logs("OpenSSL Error")),
    (r"log_type warning", None, logs("Warning: ACL pattern")),
    (r"log_type notice", None, logs("New client connected")),
]
ACL = [
    (r"user main", None, carries_up),
    (r"user main", "user d01", keeps_devices_from_what_others_say),
    (r"topic read sheaf/1/up/\+", None, carries_up),
    (r"topic write sheaf/1/down/\+", None, carries_down),
    (r"topic write sheaf/1/cast/\+", None, carries_casts),
    (r"pattern write sheaf/1/up/%u", None, lets_a_device_in),
    (r"pattern write sheaf/1/up/%u", "pattern write sheaf/1/up/+", keeps_a_device_to_its_topic),
    (r"pattern read sheaf/1/down/%u", None, carries_down),
    (r"pattern read sheaf/1/down/%u", "pattern read sheaf/1/down/+", keeps_devices_from_what_others_hear),
    (r"pattern read sheaf/1/cast/\+", None, carries_casts),
    (r"pattern read sheaf/1/cast/\+", "pattern readwrite sheaf/1/cast/+", keeps_a_device_from_casting),
]
UNSEEN = {
    "allow_anonymous false": "where certificates are required nobody is anonymous; a second lock, shown with the first ones open",
}


class Lines(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="sheaf-lines-")
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        cls.pki, cls.other, cls.made = (os.path.join(cls.folder, name) for name in ("pki", "other", "made"))
        for folder in (cls.pki, cls.other):
            pki("init", "--dir", folder, "--name", os.path.basename(folder))
            pki("issue", "--dir", folder, "--role", "broker", "--name", "broker", "--san", "localhost")
        pki("issue", "--dir", cls.pki, "--role", "aggregator", "--name", "main")
        for name in ("d00", "d01", "revoked"):
            pki("issue", "--dir", cls.pki, "--role", "device", "--name", name, "--tenant", "acme")
        pki("issue", "--dir", cls.other, "--role", "device", "--name", "d00", "--tenant", "acme")
        pki("revoke", "--dir", cls.pki, "revoked")
        cls.both = os.path.join(cls.folder, "both.pem")
        pki("crl", "--dir", cls.other)
        with open(cls.both, "wb") as out:
            for name in ("pki/ca.pem", "other/ca.pem", "pki/crl.pem", "other/crl.pem"):
                with open(os.path.join(cls.folder, name), "rb") as file:
                    out.write(file.read())
        pki("broker-config", "--listen", "127.0.0.1:18883", "--certificate", f"{cls.pki}/broker-broker.pem", "--key",
            f"{cls.pki}/broker-broker.key", "--ca", f"{cls.pki}/ca.pem", "--crl", f"{cls.pki}/crl.pem", "--name", "main",
            "--out", cls.made)
        cls.texts = []
        for name in ("mosquitto.conf", "acl"):
            with open(os.path.join(cls.made, name), encoding="ascii") as file:
                cls.texts.append(file.read())

    def setUp(self):
        self.clients, self.brokers = [], []

    def tearDown(self):
        for client in self.clients:
            client.close()
        for broker in self.brokers:
            broker.stop()

    def certificate(self, name):
        if name == "alien":
            return os.path.join(self.other, "device-d00")
        return os.path.join(self.pki, ("aggregator-" if name == "main" else "device-") + name)

    def broker(self, config, acl):
        self.brokers.append(Broker(self, config, acl))
        return self.brokers[-1]

    def changed(self, text, line, into):
        """The text with this one line gone, or another in its place."""
        into = "" if into is None else into.format(other=self.other, both=self.both) + "\n"
        text, count = re.subn(rf"(?m)^{line}\n", lambda _: into, text)
        self.assertEqual(count, 1, line)
        return text

    def end_clients(self):
        while self.clients:
            self.clients.pop().close()

    def prove(self, lines, which):
        kept, whole = {}, None
        for line, into, promise in lines:
            with self.subTest(line=line, into=into, promise=promise.__name__):
                if promise not in kept:
                    whole = self.broker(*self.texts)
                    whole.patience_s = PATIENCE_S
                    kept[promise] = promise(whole)
                    self.end_clients()
                self.assertTrue(kept[promise], "broken even by the whole configuration; it said last:\n" + whole.log()[-2000:])
                texts = list(self.texts)
                texts[which] = self.changed(texts[which], line, into)
                if promise is lets_no_stranger_in:  # whose authority needs a list too
                    texts[0] = self.changed(texts[0], "crlfile .*", "crlfile {both}")
                broken = not promise(self.broker(*texts))
                self.end_clients()
                self.assertTrue(broken, "kept without the line too")
                told = line.replace("\\", "").replace(" .*", "").replace(" d+", "")
                print(f"    {told}: {'gone' if into is None else into}: no longer {promise.__name__.replace('_', ' ')}",
                      flush=True)

    def test_every_line_of_the_configuration_is_needed(self):
        self.prove(CONFIG, 0)

    def test_every_line_of_the_access_list_is_needed(self):
        self.prove(ACL, 1)

    def test_nobody_is_anonymous_even_where_no_certificate_is_required(self):
        open_door = self.changed(self.texts[0], "require_certificate true", None)
        for line in ("use_identity_as_username true", "use_username_as_clientid true"):
            open_door = self.changed(open_door, line, None)
        self.assertTrue(serves_nobody_without_certificate(self.broker(open_door, self.texts[1])))
        both = self.changed(open_door, "allow_anonymous false", "allow_anonymous true")
        self.assertFalse(serves_nobody_without_certificate(self.broker(both, self.texts[1])))

    def test_no_line_is_left_out_here(self):
        for text, table in zip(self.texts, (CONFIG, ACL)):
            for line in text.splitlines():
                if line == "" or line.startswith("#"):
                    continue
                if line in UNSEEN:
                    print(f"    {line}: not shown: {UNSEEN[line]}", flush=True)
                else:
                    self.assertTrue([True for pattern, _, _ in table if re.fullmatch(pattern, line)], line)


if __name__ == "__main__":
    unittest.main()
