"""A Mosquitto of a test's own: mutual TLS, the topics' rights by the name in the certificate, kill -9 and restart on its port.

Two certificates are minted here by the `cryptography` package, apart from our issuing code: the broker's, and that of a
superuser who may read and write every topic.
"""
import datetime
import ipaddress
import os
import signal
import socket
import subprocess
import time

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

MOSQUITTO = "/usr/sbin/mosquitto"
SUPERUSER = "observer"

CONFIG = """\
per_listener_settings false
{user}
listener {port} 127.0.0.1
cafile {pki}/ca.pem
certfile {folder}/broker.pem
keyfile {folder}/broker.key
require_certificate true
use_identity_as_username true
use_username_as_clientid {client_id}
set_tcp_nodelay true
allow_anonymous {open}
max_queued_messages 1000
max_inflight_messages 100
persistence false
log_dest file {folder}/broker.log
log_type error
log_type warning
log_type notice
{acl}
"""
ACL = """\
pattern write {prefix}/1/up/%u
pattern read {prefix}/1/down/%u
pattern read {prefix}/1/cast/+
user {aggregator}
topic readwrite {prefix}/1/#
user {superuser}
topic readwrite #
topic readwrite $SYS/#
"""


def mint(pki, path, common_name, unit, tenant, usage):
    """path.pem and path.key, signed by the authority in `pki`."""
    with open(os.path.join(pki, "ca.key"), "rb") as file:
        authority_key = serialization.load_pem_private_key(file.read(), None)
    with open(os.path.join(pki, "ca.pem"), "rb") as file:
        authority = x509.load_pem_x509_certificate(file.read())
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.utcnow()
    names = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, tenant), x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, unit),
             x509.NameAttribute(NameOID.COMMON_NAME, common_name)]
    places = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    certificate = (x509.CertificateBuilder().subject_name(x509.Name(names)).issuer_name(authority.subject)
                   .public_key(key.public_key()).serial_number(x509.random_serial_number())
                   .not_valid_before(now - datetime.timedelta(minutes=5)).not_valid_after(now + datetime.timedelta(days=1))
                   .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
                   .add_extension(x509.KeyUsage(True, *[False] * 8), critical=True)
                   .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
                   .add_extension(places, critical=False)
                   .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False)
                   .sign(authority_key, hashes.SHA256()))
    with open(path + ".pem", "wb") as file:
        file.write(certificate.public_bytes(serialization.Encoding.PEM))
    with open(path + ".key", "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
                                     serialization.NoEncryption()))


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Broker:
    def __init__(self, folder, pki, tenant, aggregator="aggregator", prefix="sheaf", rights=True):
        """`rights`: without, every certificate may read and write every topic, and take any client id."""
        self.folder = os.path.join(folder, "broker")
        os.makedirs(self.folder, exist_ok=True)
        self.port, self.process, self.kills = free_port(), None, 0
        mint(pki, os.path.join(self.folder, "broker"), "broker", "broker", tenant, ExtendedKeyUsageOID.SERVER_AUTH)
        mint(pki, os.path.join(self.folder, SUPERUSER), SUPERUSER, "auditor", tenant, ExtendedKeyUsageOID.CLIENT_AUTH)
        self.superuser = os.path.join(self.folder, SUPERUSER)
        acl = os.path.join(self.folder, "acl")
        with open(acl, "w", encoding="ascii") as file:
            file.write(ACL.format(prefix=prefix, aggregator=aggregator, superuser=SUPERUSER))
        self.config = os.path.join(self.folder, "mosquitto.conf")
        with open(self.config, "w", encoding="ascii") as file:
            # As root, Mosquitto would become another user, who may not read the test's keys.
            file.write(CONFIG.format(user="user root" if os.geteuid() == 0 else "", port=self.port, pki=pki, folder=self.folder, client_id="true" if rights else "false",
                                     open="true" if not rights else "false", acl=f"acl_file {acl}" if rights else ""))
        os.chmod(self.folder, 0o755)

    @property
    def url(self):
        return f"mqtts://127.0.0.1:{self.port}"

    def start(self):
        self.process = subprocess.Popen([MOSQUITTO, "-c", self.config], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until = time.monotonic() + 10
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                assert time.monotonic() < until and self.process.poll() is None, self.log()
                time.sleep(0.01)

    def kill(self):
        """As a power loss: whatever it had in memory is gone."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.kills += 1

    def close(self):
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def log(self):
        path = os.path.join(self.folder, "broker.log")
        if not os.path.exists(path):
            return "the broker has no log"
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()[-2000:]
