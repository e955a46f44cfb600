"""`sheaf pki`, and certs/README.md followed to the letter: what `openssl` alone mints by our profiles is accepted.

Witnesses from outside: the openssl command (chain, purpose, key) and hashlib (fingerprint)."""

import base64
import calendar
import hashlib
import json
import os
import re
import stat
import subprocess
import sys
import tempfile
import time
import unittest

sys.dont_write_bytecode = True

BUILD = os.environ["SHEAF_BUILD"]
CERTS = os.path.join(os.environ["SHEAF_SOURCE"], "certs")
SHEAF = os.path.join(BUILD, "server", "sheaf")
ROLES = ("device", "operator", "auditor", "aggregator", "broker")
PURPOSES = {"aggregator": ("sslserver", "sslclient"), "broker": ("sslserver",)}  # an aggregator is a broker's client too


def readme_blocks():
    with open(os.path.join(CERTS, "README.md"), encoding="utf-8") as file:
        return re.findall(r"```sh\n(.*?)```", file.read(), re.S)


def der_of(path):
    with open(path, encoding="ascii") as file:
        first = re.search(r"-----BEGIN CERTIFICATE-----(.*?)-----END", file.read(), re.S).group(1)
    return base64.b64decode(first)


class InFolder(unittest.TestCase):
    def setUp(self):
        self.home = tempfile.TemporaryDirectory()
        self.addCleanup(self.home.cleanup)
        path = os.path.dirname(SHEAF) + ":" + os.environ.get("PATH", "/usr/bin:/bin")
        self.environment = {"PATH": path, "CERTS": CERTS, "HOME": self.home.name, "LC_ALL": "C"}
        for name in ("ASAN_OPTIONS", "UBSAN_OPTIONS", "LSAN_OPTIONS", "TSAN_OPTIONS"):
            if name in os.environ:
                self.environment[name] = os.environ[name]

    def run_it(self, *command, code=0, **variables):
        done = subprocess.run(command, cwd=self.home.name, env={**self.environment, **variables}, text=True,
                              capture_output=True, timeout=120)
        self.assertEqual(done.returncode, code, f"{command}\n{done.stdout}{done.stderr}")
        return done

    def pki(self, *arguments, code=0):
        return self.run_it(SHEAF, "pki", *arguments, code=code)

    def pki_json(self, *arguments, code=0):
        lines = self.pki(*arguments, "--json", code=code).stdout.splitlines()
        self.assertEqual(len(lines), 1)
        return json.loads(lines[0])

    def at(self, *parts):
        return os.path.join(self.home.name, *parts)

    def mode(self, *parts):
        return stat.S_IMODE(os.stat(self.at(*parts)).st_mode)

    def assert_accepted(self, ca, certificate, role, tenant, name, region=""):
        found = self.pki_json("check", "--ca", ca, certificate)
        expected = {"accepted": True, "status": "ok", "role": role, "tenant": tenant, "name": name, "region": region,
                    "fingerprint": hashlib.sha256(der_of(self.at(certificate))).hexdigest()}
        self.assertEqual(found, expected)

    def assert_refused(self, ca, certificate, why):
        found = self.pki_json("check", "--ca", ca, certificate, code=1)
        self.assertEqual((found["accepted"], found["status"]), (False, "bad_certificate"))
        self.assertIn(why, found["reason"])


class Tool(InFolder):
    def test_openssl_accepts_what_we_issue_for_its_purpose_only(self):
        for key_type in ("p256", "ed25519"):
            folder = "pki-" + key_type
            self.pki("init", "--dir", folder, "--key-type", key_type)
            for role in ROLES:
                issued = self.pki_json("issue", "--dir", folder, "--role", role, "--name", "n1", "--key-type", key_type)
                allowed = PURPOSES.get(role, ("sslclient",))
                verify = ("openssl", "verify", "-x509_strict", "-CAfile", folder + "/ca.pem", "-purpose")
                for purpose in ("sslserver", "sslclient"):
                    verified = subprocess.run((*verify, purpose, issued["certificate"]), cwd=self.home.name, capture_output=True)
                    self.assertEqual(verified.returncode == 0, purpose in allowed, (role, purpose))
                public = self.run_it("openssl", "pkey", "-in", issued["key"], "-pubout").stdout
                self.assertEqual(self.run_it("openssl", "x509", "-in", issued["certificate"], "-noout", "-pubkey").stdout, public)
                self.assertEqual(self.mode(issued["key"]), 0o600)
                self.assertEqual(issued["fingerprint"], hashlib.sha256(der_of(self.at(issued["certificate"]))).hexdigest())
                serial = self.run_it("openssl", "x509", "-in", issued["certificate"], "-noout", "-serial").stdout.strip()
                self.assertEqual(serial, "serial=" + issued["serial"])
                self.assert_accepted(folder + "/ca.pem", issued["certificate"], role, "default", "n1")

    def test_validity_starts_five_minutes_ago(self):
        self.pki("init")
        before = time.time()
        issued = self.pki_json("issue", "--role", "device", "--name", "d1", "--days", "2")
        after = time.time()
        def seconds(text):
            return calendar.timegm(time.strptime(text, "%Y-%m-%dT%H:%M:%SZ"))
        self.assertTrue(before - 301 <= seconds(issued["not_before"]) <= after - 299)
        self.assertTrue(before + 2 * 86400 - 1 <= seconds(issued["not_after"]) <= after + 2 * 86400 + 1)

    def test_san_holds_names_and_addresses(self):
        self.pki("init")
        self.pki("issue", "--role", "aggregator", "--name", "a1", "--san", "agg.example.org,10.0.0.7,::1")
        for option, value, good in (("-checkhost", "agg.example.org", True), ("-checkip", "10.0.0.7", True),
                                    ("-checkip", "::1", True), ("-checkhost", "localhost", False)):
            out = self.run_it("openssl", "x509", "-in", "pki/aggregator-a1.pem", "-noout", option, value).stdout
            self.assertEqual("does match" in out, good, out)

    def test_nothing_is_replaced_silently(self):
        self.pki("init")
        with open(self.at("pki/ca.pem"), "rb") as file:
            root = file.read()
        done = self.pki("init", code=1)
        self.assertIn("(exists)", done.stderr)
        with open(self.at("pki/ca.pem"), "rb") as file:
            self.assertEqual(file.read(), root)
        self.pki("issue", "--role", "device", "--name", "d1")
        self.pki("issue", "--role", "device", "--name", "d1", code=1)
        self.pki("issue", "--role", "device", "--name", "d1", "--renew")
        self.assertEqual(len(self.pki_json("list")["issued"]), 2)

    def test_list_tells_what_was_issued_and_needs_no_key(self):
        self.pki("init", "--name", "my-root")
        wanted = [self.pki_json("issue", "--role", "device", "--name", f"d{i}", "--tenant", "acme") for i in range(3)]
        os.unlink(self.at("pki/ca.key"))
        found = self.pki_json("list")
        self.assertEqual(found["issued"], [{**entry, "status": "good"} for entry in wanted])
        self.assertEqual(found["authority"]["name"], "my-root")
        self.assertEqual(found["authority"]["fingerprint"], hashlib.sha256(der_of(self.at("pki/ca.pem"))).hexdigest())
        self.assertEqual(len(self.pki("list").stdout.splitlines()), 4)

    def test_a_region_stands_in_the_subject_and_is_told(self):
        self.pki("init")
        issued = self.pki_json("issue", "--role", "device", "--name", "d1", "--tenant", "acme", "--region", "eu-west")
        self.assertEqual(issued["region"], "eu-west")
        subject = self.run_it("openssl", "x509", "-in", issued["certificate"], "-noout", "-subject", "-nameopt", "RFC2253").stdout
        self.assertIn("ST=eu-west", subject)
        self.assert_accepted("pki/ca.pem", issued["certificate"], "device", "acme", "d1", "eu-west")
        self.assertEqual(self.pki_json("list")["issued"][0]["region"], "eu-west")
        for region in ("a/b", "a+b", "a#b", "a\nb", "x" * 64):
            self.assertIn("(wrong_name)", self.pki("issue", "--role", "device", "--name", "d2", "--region", region, code=3).stderr)

    def test_an_address_with_a_wrong_number_is_no_dns_name(self):
        self.pki("init")
        for san in ("300.1.1.1", "1.2.3", "localhost,127.0.0.256"):
            self.assertIn("(wrong_name)", self.pki("issue", "--role", "aggregator", "--name", "a", "--san", san, code=3).stderr)

    def test_serials_differ_and_have_128_random_bits(self):
        self.pki("init")
        serials = [int(self.pki_json("issue", "--role", "device", "--name", f"d{i}")["serial"], 16) for i in range(32)]
        self.assertEqual(len(set(serials)), 32)
        self.assertLess(max(serials), 2**128)
        # The chance that 32 honest serials all stay below 2^120 is 2^-256.
        self.assertGreater(max(serials), 2**120)

    def test_wrong_names_and_usage_are_refused_by_their_codes(self):
        self.pki("init")
        for name in ("a/b", "a+b", "a#b", "a b", "a\nb", "", "x" * 64, ".a"):
            done = self.pki("issue", "--role", "device", "--name", name, code=3)
            self.assertIn("(wrong_name)", done.stderr)
        for arguments in (("issue", "--role", "gateway", "--name", "x"), ("issue", "--role", "device"), ("issue", "--name", "x"),
                          ("issue", "--role", "device", "--name", "x", "--days", "0"),
                          ("issue", "--role", "device", "--name", "x", "--days", "3x"),
                          ("issue", "--role", "device", "--name", "x", "--days", "36501"),
                          ("issue", "--role", "device", "--name", "x", "--key-type", "rsa"),
                          ("issue", "--role", "device", "--name", "x", "--san", "localhost"),
                          ("issue", "--role", "device", "--name"), ("init", "--role", "device"), ("list", "extra"),
                          ("check", "x.pem"), ("check", "--ca", "x"), ("frobnicate",), ()):
            done = self.pki(*arguments, code=2)
            self.assertIn("usage:", done.stderr)
            self.assertEqual(done.stdout, "")
        for arguments in (("--help",), ("init", "--help"), ("issue", "--help"), ("list", "--help"), ("check", "--help")):
            self.assertIn("usage: sheaf pki init", self.pki(*arguments).stdout)

    def test_missing_files_are_input_errors(self):
        self.assertIn("sheaf pki init", self.pki("list", code=3).stderr)
        self.pki("issue", "--role", "device", "--name", "d1", code=3)
        self.pki("check", "--ca", "no.pem", "no.pem", code=3)

    def mint_authority(self, folder, section, *signer, days="10"):
        """An authority of another kind in `folder`, by openssl; signer: what `openssl x509 -req` takes."""
        os.mkdir(self.at(folder), 0o700)
        with open(self.at("extensions.cnf"), "w", encoding="ascii") as file:
            file.write("[x]\n" + section)
        key, request = folder + "/ca.key", folder + "/ca.csr"
        self.run_it("openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", key)
        self.run_it("openssl", "req", "-new", "-config", CERTS + "/ca.cnf", "-key", key, "-subj", "/CN=odd", "-out", request)
        self.run_it("openssl", "x509", "-req", "-in", request, *(signer or ("-signkey", key)), "-days", days, "-extfile",
                    "extensions.cnf", "-extensions", "x", "-out", folder + "/ca.pem")

    def test_an_expired_authority_issues_nothing(self):
        self.mint_authority("old", "basicConstraints=critical,CA:TRUE\nsubjectKeyIdentifier=hash\n", days="-1")
        done = self.pki("issue", "--dir", "old", "--role", "device", "--name", "d1", code=3)
        self.assertIn("authority's own certificate has expired", done.stderr)
        self.assertEqual(sorted(os.listdir(self.at("old"))), ["ca.csr", "ca.key", "ca.pem", "lock"])

    def test_a_peer_is_no_authority(self):
        for section in ("basicConstraints=CA:FALSE\n", "basicConstraints=CA:TRUE\nkeyUsage=digitalSignature\n"):
            with self.subTest(section=section), tempfile.TemporaryDirectory(dir=self.home.name) as parent:
                folder = os.path.join(os.path.basename(parent), "peer")
                self.mint_authority(folder, section)
                done = self.pki("issue", "--dir", folder, "--role", "device", "--name", "d1", code=3)
                self.assertIn("not the certificate of an authority", done.stderr)

    def test_no_authority_below_ours_and_none_for_another_purpose_is_believed(self):
        good = "basicConstraints=critical,CA:TRUE\nsubjectKeyIdentifier=hash\n"
        self.pki("init")
        self.mint_authority("below", good, "-CA", "pki/ca.pem", "-CAkey", "pki/ca.key")
        self.pki("issue", "--dir", "below", "--role", "device", "--name", "d1")
        self.assert_refused("pki/ca.pem", "below/device-d1.pem", "path length constraint exceeded")
        self.mint_authority("code", good + "extendedKeyUsage=codeSigning\n")
        self.pki("issue", "--dir", "code", "--role", "device", "--name", "d1")
        self.assert_refused("code/ca.pem", "code/device-d1.pem", "purpose")

    def test_an_aggregators_renewal_does_not_forget_its_names(self):
        self.pki("init")
        self.pki("issue", "--role", "aggregator", "--name", "a1", "--san", "agg.example.org")
        self.pki("issue", "--role", "aggregator", "--name", "a1", "--renew", code=2)
        self.pki("issue", "--role", "aggregator", "--name", "a1", "--renew", "--san", "agg.example.org")


class Readme(InFolder):
    def follow(self, *wanted):
        """Runs the blocks that hold one of the wanted words, as they stand, in one folder."""
        blocks = readme_blocks()
        for word in wanted:
            chosen = [block for block in blocks if word in block]
            self.assertEqual(len(chosen), 1, f"README.md should have one block with {word}")
            self.run_it("/bin/sh", "-e", "-u", "-c", chosen[0])

    def test_every_block_is_followed_by_a_test(self):
        self.assertEqual(len(readme_blocks()), 6)

    def test_sheaf_pki(self):
        self.follow("--name alice")
        self.assert_accepted("pki/ca.pem", "pki/aggregator-agg-1.pem", "aggregator", "acme", "agg-1")
        self.assert_accepted("pki/ca.pem", "elsewhere/auditor-carol.pem", "auditor", "acme", "carol")
        self.assertEqual([self.mode("pki"), self.mode("pki/ca.key"), self.mode("pki/ca.pem"), self.mode("pki/index.jsonl")],
                         [0o700, 0o600, 0o644, 0o600])

    def test_taking_back_renewing_enrolling(self):
        self.follow("sheaf pki revoke")
        listed = self.pki_json("list", "--dir", "ca")["issued"]
        self.assertEqual([(entry["name"], entry["status"]) for entry in listed],
                         [("node-1", "revoked"), ("node-1", "revoked"), ("node-2", "good")])
        verify = ("openssl", "verify", "-crl_check_all", "-CAfile", "ca/ca.pem", "-CRLfile", "ca/crl.pem")
        self.run_it(*verify, "node-2/device-node-2.pem")
        self.run_it(*verify, "ca/device-node-1.pem", code=2)

    def test_openssl_alone(self):
        self.follow("-extensions root", "for role in", "openssl ca")
        for role in ROLES:
            self.assert_accepted("ca.pem", role + ".pem", role, "acme", role + "-1")
            self.assertEqual(self.mode(role + ".key"), 0o600)
        self.assert_accepted("ca.pem", "device-ca.pem", "device", "acme", "device-1")

    def test_offline_root(self):
        self.follow("offline_root")
        # The device's file brings the issuing certificate along, so the root suffices; without it nothing chains.
        self.assert_accepted("offline/root.pem", "enrol/device-node-7.pem", "device", "acme", "node-7")
        with open(self.at("alone.pem"), "w", encoding="ascii") as file:
            file.write(self.run_it("openssl", "x509", "-in", "enrol/device-node-7.pem").stdout)
        self.assert_refused("offline/root.pem", "alone.pem", "unable to get local issuer certificate")
        self.assert_accepted("enrol/ca.pem", "alone.pem", "device", "acme", "node-7")

    def test_request_of_a_device_gets_the_name_that_the_authority_gives(self):
        self.follow("-extensions root", "for role in")
        self.run_it("openssl", "x509", "-req", "-in", "device.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-days", "30",
                    "-extfile", CERTS + "/device.cnf", "-extensions", "peer", "-subj", "/O=acme/OU=device/CN=node-1",
                    "-out", "given.pem")
        self.assert_accepted("ca.pem", "given.pem", "device", "acme", "node-1")

    def test_a_profile_without_names_is_refused(self):
        self.follow("-extensions root")
        self.run_it("openssl", "req", "-x509", "-config", CERTS + "/device.cnf", "-extensions", "peer", "-newkey", "ed25519",
                    "-nodes", "-keyout", "x.key", "-out", "x.pem")
        self.assert_refused("ca.pem", "x.pem", "O (tenant)")

    def mint(self, name, section, *more, key=("ED25519",), subject="/O=acme/OU=device/CN=d1"):
        """A certificate of another profile, by openssl alone."""
        with open(self.at("extensions.cnf"), "w", encoding="ascii") as file:
            file.write("[x]\n" + section)
        self.run_it("openssl", "genpkey", "-algorithm", *key, "-out", "x.key")
        self.run_it("openssl", "req", "-new", "-config", CERTS + "/ca.cnf", "-key", "x.key", "-subj", subject, "-out", "x.csr")
        self.run_it("openssl", "x509", "-req", "-in", "x.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-extfile",
                    "extensions.cnf", "-extensions", "x", *more, "-out", name)

    def test_what_the_policy_refuses_is_refused(self):
        self.follow("-extensions root")
        good = "extendedKeyUsage=clientAuth\n"
        self.mint("good.pem", good)
        self.assert_accepted("ca.pem", "good.pem", "device", "acme", "d1")
        cases = (
            ("keyUsage=digitalSignature\n", {}, "extendedKeyUsage extension is missing"),
            ("extendedKeyUsage=serverAuth\n", {}, "needs extendedKeyUsage clientAuth"),
            ("extendedKeyUsage=anyExtendedKeyUsage\n", {}, "needs extendedKeyUsage clientAuth"),
            (good + "keyUsage=keyAgreement\n", {}, "digitalSignature"),
            (good + "basicConstraints=CA:TRUE\n", {}, "CA:TRUE"),
            (good + "1.2.3.4=critical,ASN1:NULL\n", {}, "critical extension"),
            (good, {"key": ("RSA",)}, "P-256 or Ed25519"),
            (good, {"key": ("EC", "-pkeyopt", "ec_paramgen_curve:P-384")}, "P-256 or Ed25519"),
            (good, {"key": ("EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-pkeyopt", "ec_param_enc:explicit")}, "P-256 or Ed25519"),
            (good, {"subject": "/O=acme/OU=device/CN=d1/CN=d2"}, "exactly one CN"),
            (good, {"subject": "/O=acme/OU=device/OU=aggregator/CN=d1"}, "exactly one OU"),
            (good, {"subject": "/OU=device/CN=d1"}, "exactly one O"),
            (good, {"subject": "/C=CH/O=acme/OU=device/CN=d1"}, "more than O, OU, CN and ST"),
            (good, {"subject": "/O=acme/OU=gateway/CN=d1"}, "is no role"),
            (good, {"subject": "/O=acme/OU=aggregator/CN=d1"}, "needs extendedKeyUsage serverAuth"),
            (good, {"subject": "/O=acme/OU=device/CN=d 1"}, "CN (name)"),
            (good, {"subject": "/O=acme/OU=device/CN=d\\+1"}, "CN (name)"),
            (good, {"subject": "/O=acme/OU=device/CN=d#1"}, "CN (name)"),
            (good, {"subject": "/O=acme/ST=e#u/OU=device/CN=d1"}, "ST (region)"),
            (good, {"subject": "/O=acme/ST=eu/ST=us/OU=device/CN=d1"}, "exactly one ST"),
        )
        for section, options, why in cases:
            with self.subTest(why=why, options=options):
                self.mint("bad.pem", section, **options)
                self.assert_refused("ca.pem", "bad.pem", why)

    def test_time_and_authority_are_checked(self):
        self.follow("-extensions root")
        self.mint("old.pem", "extendedKeyUsage=clientAuth\n", "-days", "-1")
        self.assert_refused("ca.pem", "old.pem", "certificate has expired")
        self.mint("good.pem", "extendedKeyUsage=clientAuth\n", "-days", "1")
        self.pki("init", "--dir", "other")
        self.assert_refused("other/ca.pem", "good.pem", "unable to get local issuer certificate")


if __name__ == "__main__":
    unittest.main()
