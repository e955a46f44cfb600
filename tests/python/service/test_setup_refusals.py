"""What is set up wrongly is refused by name, at start or at the handshake, and the service goes on for the others."""
import datetime
import itertools
import os
import socket
import ssl
import sys
import time
import unittest

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.environ["SHEAF_SOURCE"], "tests", "kit"))
from fleet import EDGE, SHEAF, SHEAFD, TENANT, Fleet, run, sheaf  # noqa: E402


def mint(folder, pki, name, role, usage, days=1):
    """A certificate of the fleet's authority that `sheaf pki` would not issue; negative days: expired."""
    with open(os.path.join(pki, "ca.pem"), "rb") as file:
        authority = x509.load_pem_x509_certificate(file.read())
    with open(os.path.join(pki, "ca.key"), "rb") as file:
        authority_key = serialization.load_pem_private_key(file.read(), None)
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.utcnow()
    subject = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, TENANT),
                         x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, role),
                         x509.NameAttribute(NameOID.COMMON_NAME, name)])
    certificate = (x509.CertificateBuilder().subject_name(subject).issuer_name(authority.subject).public_key(key.public_key())
                   .serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(days=3))
                   .not_valid_after(now + datetime.timedelta(days=days))
                   .add_extension(x509.BasicConstraints(False, None), True)
                   .add_extension(x509.ExtendedKeyUsage([usage]), False).sign(authority_key, hashes.SHA256()))
    paths = [os.path.join(folder, f"{name}.{end}") for end in ("pem", "key")]
    with open(paths[0], "wb") as file:
        file.write(certificate.public_bytes(serialization.Encoding.PEM))
    with open(os.open(paths[1], os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
        file.write(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    return paths


def knock(fleet, files, version=None):
    """A TLS client that shows these files (or none) and asks; returns what ended it, or None."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(os.path.join(fleet.pki, "ca.pem"))
    context.check_hostname = False
    if version is not None:
        context.minimum_version = context.maximum_version = version
    if files is not None:
        context.load_cert_chain(*files)
    try:
        with socket.create_connection(("127.0.0.1", fleet.port), timeout=10) as raw, context.wrap_socket(raw) as peer:
            peer.sendall(b"\0SP\0\0\x30\0\0")
            while peer.recv(64):
                pass
            return "closed"
    except (ssl.SSLError, ConnectionError, OSError) as error:
        return str(error)


class Handshakes(unittest.TestCase):
    def test_wrong_certificates_and_silence_are_cut_counted_and_harm_nobody(self):
        fleet = Fleet(devices=2, rounds=2)
        self.addCleanup(fleet.close)
        fleet.start_server()
        other = os.path.join(fleet.folder, "other")
        sheaf("pki", "init", "--dir", other)
        sheaf("pki", "issue", "--dir", other, "--role", "device", "--name", "d00", "--tenant", TENANT)
        foreign = [os.path.join(other, f"device-d00.{end}") for end in ("pem", "key")]
        expired = mint(fleet.folder, fleet.pki, "old", "device", ExtendedKeyUsageOID.CLIENT_AUTH, days=-1)
        server_role = [os.path.join(fleet.pki, f"aggregator-aggregator.{end}") for end in ("pem", "key")]
        server_only = mint(fleet.folder, fleet.pki, "server-only", "device", ExtendedKeyUsageOID.SERVER_AUTH)
        for what, files in (("none", None), ("unknown authority", foreign), ("expired", expired), ("aggregator's", server_role),
                            ("no client usage", server_only)):
            self.assertIsNotNone(knock(fleet, files), what)
        self.assertIsNotNone(knock(fleet, [os.path.join(fleet.pki, f"device-d00.{end}") for end in ("pem", "key")],
                                   ssl.TLSVersion.TLSv1_2))
        silent = [socket.create_connection(("127.0.0.1", fleet.port)) for _ in range(20)]
        for connection in silent:
            connection.settimeout(20)
            self.addCleanup(connection.close)
        started = time.monotonic()
        self.assertEqual({connection.recv(1) for connection in silent}, {b""})  # cut, though they never spoke
        self.assertLess(time.monotonic() - started, 10)
        for name in fleet.names:
            fleet.start_device(name)
        fleet.finish()
        refused = fleet.refusals()
        self.assertGreaterEqual(refused.get("bad_certificate", 0) + refused.get("wrong_role", 0), 5, (refused, fleet.tail()))
        self.assertRegex(sheaf("job", "status", "--state", fleet.state), r"(?m)^connections and requests of no job:\n    refused bad_certificate ")
        self.assertEqual([row["accepted"] for row in fleet.released()], [2, 2])


class Setup(unittest.TestCase):
    serial = itertools.count()

    @classmethod
    def setUpClass(cls):
        cls.fleet = Fleet(devices=2, rounds=1)
        cls.addClassCleanup(cls.fleet.close)

    def refused(self, code, *texts, command):
        done = run(*command)
        self.assertEqual(done.returncode, code, done.stderr)
        for text in texts:
            self.assertIn(text, done.stderr)

    def broken_config(self, old, new):
        path = os.path.join(self.fleet.folder, "broken.yaml")
        with open(self.fleet.config, encoding="utf-8") as file:
            text = file.read()
        self.assertIn(old, text)
        # A state of its own: what an earlier test created must not be found there.
        state = os.path.join(self.fleet.folder, f"state-{next(self.serial)}")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text.replace(old, new).replace(self.fleet.state, state))
        return path

    def test_a_port_in_use(self):
        with socket.socket() as busy:
            busy.bind(("127.0.0.1", 0))
            busy.listen()
            path = self.broken_config("tls+tcp://127.0.0.1:0", f"tls+tcp://127.0.0.1:{busy.getsockname()[1]}")
            self.refused(4, "address_in_use", command=[SHEAFD, "--config", path])

    def test_a_second_service_on_the_same_state(self):
        fleet = Fleet(devices=1, rounds=1)
        self.addCleanup(fleet.close)
        fleet.start_server()
        path = os.path.join(fleet.folder, "second.yaml")
        with open(fleet.config, encoding="utf-8") as file:
            text = file.read()
        with open(path, "w", encoding="utf-8") as file:
            file.write(text.replace(fleet.settings["listen"], "tls+tcp://127.0.0.1:0"))
        self.refused(4, "another sheafd works in this folder", command=[SHEAFD, "--config", path])
        fleet.start_device("d00")
        fleet.finish()

    def test_a_config_with_an_unknown_key_names_file_line_and_key(self):
        path = self.broken_config("    rounds:", "    ruonds: 1\n    rounds:")
        with open(path, encoding="utf-8") as file:
            line = 1 + file.read().split("ruonds")[0].count("\n")
        self.refused(3, f"broken.yaml:{line}", "ruonds", "rounds", command=[SHEAFD, "--config", path, "--check-config"])

    def test_a_cohort_that_contradicts_itself(self):
        path = self.broken_config("minimum: 2", "minimum: 3")
        self.refused(3, "minimum <= target <= maximum", command=[SHEAFD, "--config", path])

    def test_a_missing_model_and_a_missing_key(self):
        self.refused(3, "initial.safetensorz", command=[SHEAFD, "--config", self.broken_config("initial.safetensors", "initial.safetensorz")])
        self.refused(3, "nothing.key", command=[SHEAFD, "--config", self.broken_config("aggregator-aggregator.key", "nothing.key")])

    def test_a_device_certificate_for_the_service(self):
        path = self.broken_config("aggregator-aggregator.pem", "device-d00.pem")
        self.refused(3, "wrong_role", command=[SHEAFD, "--config", path])

    def test_a_lattice_too_fine_for_the_cohort(self):
        path = self.broken_config("    progress_s: 120", "    progress_s: 120\n    weight_cap: 3000000000")
        self.refused(3, "overflow", command=[SHEAFD, "--config", path])

    def test_devices_with_missing_short_or_wrong_data(self):
        self.fleet.settings["listen"] = "tls+tcp://127.0.0.1:1"
        short = os.path.join(self.fleet.folder, "short.csv")
        with open(os.path.join(self.fleet.folder, "data", "client-00.csv"), encoding="ascii") as file:
            lines = file.readlines()
        with open(short, "w", encoding="ascii") as file:
            file.writelines(lines[:3] + [lines[3][:20] + "\n"])
        config = self.fleet.device_config("d00", data=short)
        self.refused(3, "short.csv:4", command=[EDGE, "--config", config])
        config = self.fleet.device_config("d00", data=os.path.join(self.fleet.folder, "nowhere.csv"))
        self.refused(3, "nowhere.csv", command=[EDGE, "--config", config])
        with open(config, encoding="utf-8") as file:
            text = file.read()
        with open(config, "w", encoding="utf-8") as file:
            file.write(text + "colour: red\n")
        self.refused(3, "colour", command=[EDGE, "--config", config])

    def test_the_tool_names_what_is_missing(self):
        self.refused(2, "--state", command=[SHEAF, "job", "watch"])
        self.refused(3, "state.db", command=[SHEAF, "job", "status", "--state", os.path.join(self.fleet.folder, "nowhere")])


if __name__ == "__main__":
    unittest.main()
