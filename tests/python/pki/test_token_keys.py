"""Keys that never leave their token: the authority's, the aggregator's and a device's, in SoftHSM2 through OpenSSL's engine for
PKCS#11. They do a whole job over TLS 1.3, whose model is that of the same job with keys in files."""
import os
import subprocess
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.environ["SHEAF_SOURCE"], "tests", "kit"))
import fleet  # noqa: E402
from fleet import Fleet, SHEAF  # noqa: E402

MODULE = "/usr/lib/softhsm/libsofthsm2.so"
PIN = "4711-sheaf"

def why_not():
    for path in ("/usr/bin/softhsm2-util", "/usr/bin/pkcs11-tool", MODULE):
        if not os.path.exists(path):
            return f"{path} is not there: install softhsm2, opensc and libengine-pkcs11-openssl"
    return None


@unittest.skipIf(why_not(), why_not())
class TokenKeys(unittest.TestCase):
    def setUp(self):
        self.fleet = Fleet(devices=2, rounds=2)
        self.addCleanup(self.fleet.close)
        self.folder = self.fleet.folder
        tokens = os.path.join(self.folder, "tokens")
        os.mkdir(tokens)
        config = os.path.join(self.folder, "softhsm2.conf")
        with open(config, "w", encoding="ascii") as file:
            file.write(f"directories.tokendir = {tokens}\nobjectstore.backend = file\nlog.level = ERROR\n")
        before = os.environ.get("SOFTHSM2_CONF")
        os.environ["SOFTHSM2_CONF"] = config
        self.addCleanup(lambda: os.environ.pop("SOFTHSM2_CONF") if before is None else os.environ.update(SOFTHSM2_CONF=before))
        self.run_it("softhsm2-util", "--init-token", "--free", "--label", "fleet", "--pin", PIN, "--so-pin", "123456")
        self.pin = os.path.join(self.folder, "pin")
        with open(self.pin, "w", encoding="ascii") as file:
            file.write(PIN + "\n")
        os.chmod(self.pin, 0o600)

    def run_it(self, *command, code=0, env=None):
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL, cwd=self.folder,
                              env={**os.environ, **(env or {})})
        self.assertEqual(done.returncode, code, f"{command}\n{done.stdout}{done.stderr}")
        return done

    def make_key(self, name, number):
        self.run_it("pkcs11-tool", "--module", MODULE, "--login", "--pin", PIN, "--token-label", "fleet", "--keypairgen", "--key-type",
                    "EC:prime256v1", "--label", name, "--id", f"{number:02x}")
        return self.uri(name)

    def uri(self, name, query="pin-source={pin}&module-path={module}"):
        return f"pkcs11:token=fleet;object={name};type=private?" + query.format(pin=self.pin, module=MODULE)

    def enrol(self, role, name, key):
        """A certificate for a key in the token, by a request and a one-time token."""
        pki, tenant = self.fleet.pki, fleet.TENANT
        for old in (".pem", ".key"):
            os.remove(os.path.join(pki, f"{role}-{name}{old}"))
        token = self.run_it(SHEAF, "pki", "token", "--dir", pki, "--role", role, "--name", name, "--tenant", tenant).stdout
        with open(os.path.join(self.folder, "once"), "w", encoding="ascii") as file:
            file.write(token)
        self.run_it(SHEAF, "pki", "csr", "--role", role, "--name", name, "--tenant", tenant, "--key", key, "--out", pki)
        self.run_it(SHEAF, "pki", "sign", "--dir", pki, "--out", pki, "--token-file", "once", os.path.join(pki, f"{role}-{name}.csr"))
        self.run_it("openssl", "verify", "-CAfile", os.path.join(pki, "ca.pem"), os.path.join(pki, f"{role}-{name}.pem"))

    def test_a_whole_job_with_keys_in_a_token(self):
        calm = Fleet(devices=2, rounds=2)
        self.addCleanup(calm.close)
        expected = calm.run_all()
        one, device = self.fleet, self.fleet.names[0]
        aggregator_key, device_key = self.make_key("agg", 1), self.make_key("node", 2)
        self.enrol("aggregator", "aggregator", aggregator_key)
        self.enrol("device", device, device_key)
        plain_server, plain_edge = fleet.SERVER_CONFIG, fleet.EDGE_CONFIG
        self.addCleanup(lambda: (setattr(fleet, "SERVER_CONFIG", plain_server), setattr(fleet, "EDGE_CONFIG", plain_edge)))
        fleet.SERVER_CONFIG = plain_server.replace("{pki}/aggregator-aggregator.key", f'"{aggregator_key}"')
        one.write_server_config()
        one.start_server()
        fleet.EDGE_CONFIG = plain_edge.replace("{pki}/device-{name}.key", f'"{device_key}"')
        one.start_device(device)
        fleet.EDGE_CONFIG = plain_edge
        one.start_device(one.names[1])
        one.finish()
        self.assertEqual(one.released()[-1]["model"], expected)

    def test_an_authority_whose_key_is_in_a_token_issues_and_revokes(self):
        self.make_key("ca", 3)
        self.run_it(SHEAF, "pki", "init", "--dir", "ca", "--key", self.uri("ca"))
        self.run_it(SHEAF, "pki", "issue", "--dir", "ca", "--role", "device", "--name", "d1")
        self.run_it("openssl", "verify", "-x509_strict", "-CAfile", "ca/ca.pem", "ca/device-d1.pem")
        self.run_it(SHEAF, "pki", "revoke", "--dir", "ca", "d1")
        done = self.run_it("openssl", "verify", "-crl_check", "-CAfile", "ca/ca.pem", "-CRLfile", "ca/crl.pem", "ca/device-d1.pem", code=2)
        self.assertIn("certificate revoked", done.stdout + done.stderr)
        with open(os.path.join(self.folder, "ca", "ca.key"), encoding="ascii") as file:
            self.assertNotIn("PRIVATE", file.read())

    def csr(self, key, code=3, env=None):
        return self.run_it(SHEAF, "pki", "csr", "--role", "device", "--name", "d9", "--key", key, "--out", "out", code=code, env=env).stderr

    def test_what_is_wrong_is_said_and_no_pin_is_shown_or_asked_for(self):
        good = self.make_key("node", 4)
        self.csr(good, 0)
        plain = self.uri("node", "module-path={module}")
        self.csr(plain, 0, {"SHEAF_PKCS11_PIN": PIN})
        self.assertIn("pin-source", self.csr(plain, 4))
        self.assertIn("pin-value", self.csr(self.uri("node", "pin-value=" + PIN), 2))
        self.assertIn("no such key", self.csr(self.uri("nothing")))
        self.assertIn("known after the '?'", self.csr(self.uri("node", "colour=red"), 2))
        self.assertIn("module for PKCS#11", self.csr(self.uri("node", "pin-source={pin}&module-path=/nonexistent.so")))
        self.assertIn("install libengine-pkcs11-openssl", self.csr(good, 3, {"OPENSSL_ENGINES": "/nonexistent"}))
        os.chmod(self.pin, 0o644)
        self.assertIn("chmod 600", self.csr(good, 4))
        os.chmod(self.pin, 0o600)
        with open(self.pin, "w", encoding="ascii") as file:
            file.write("wrong")
        text = self.csr(good)
        self.assertIn("whether the PIN is right", text)
        self.assertNotIn("wrong", text)

    def test_an_ordinary_key_loads_no_engine(self):
        done = self.run_it(SHEAF, "pki", "issue", "--dir", self.fleet.pki, "--role", "device", "--name", "d9", env={"LD_DEBUG": "files"})
        self.assertNotIn("pkcs11", done.stderr)


if __name__ == "__main__":
    unittest.main()
