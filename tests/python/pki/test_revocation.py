"""Revocation, renewal, requests and tokens of `sheaf pki`, judged by openssl and python3-cryptography, which read what we
wrote without any line of ours."""
import datetime
import os
import stat
import subprocess
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cryptography import x509  # noqa: E402
from cryptography.hazmat.primitives.asymmetric import ec  # noqa: E402
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key  # noqa: E402
from test_pki import InFolder, SHEAF  # noqa: E402

os.environ["ASAN_OPTIONS"] = "verify_asan_link_order=0:" + os.environ.get("ASAN_OPTIONS", "")  # faketime comes before it


class Lists(InFolder):
    def verify(self, ca, lists, certificate, *more):
        """What openssl says about a certificate under these lists."""
        arguments = ["openssl", "verify", "-crl_check_all", "-purpose", "sslclient", "-CAfile", ca]
        for one in lists:
            arguments += ["-CRLfile", one]
        done = subprocess.run([*arguments, *more, certificate], cwd=self.home.name, capture_output=True, text=True)
        return done.returncode == 0, done.stdout + done.stderr

    def list_of(self, path):
        with open(self.at(path), "rb") as file:
            return x509.load_pem_x509_crl(file.read())

    def serial_of(self, path):
        with open(self.at(path), "rb") as file:
            return x509.load_pem_x509_certificate(file.read()).serial_number

    def test_a_revoked_name_is_refused_by_openssl_and_by_us_and_nobody_else_is(self):
        for key_type in ("p256", "ed25519"):
            folder = "pki-" + key_type
            self.pki("init", "--dir", folder, "--key-type", key_type)
            for name in ("good", "bad"):
                self.pki("issue", "--dir", folder, "--role", "device", "--name", name)
            self.pki("issue", "--dir", folder, "--role", "device", "--name", "bad", "--renew")
            told = self.pki_json("revoke", "--dir", folder, "bad", "--reason", "stolen")
            self.assertEqual((told["newly_revoked"], told["revoked"]), (2, 2))
            bad, good, ca, crl = (f"{folder}/{name}" for name in ("device-bad.pem", "device-good.pem", "ca.pem", "crl.pem"))
            self.assertEqual(self.verify(ca, [crl], good)[0], True)
            accepted, text = self.verify(ca, [crl], bad)
            self.assertEqual((accepted, "certificate revoked" in text), (False, True))
            self.assertEqual(self.pki_json("check", "--ca", ca, "--crl", crl, good)["accepted"], True)
            found = self.pki_json("check", "--ca", ca, "--crl", crl, bad, code=1)
            self.assertEqual((found["accepted"], found["status"]), (False, "revoked"))
            found = self.list_of(crl)
            self.assertIsNotNone(found.get_revoked_certificate_by_serial_number(self.serial_of(bad)))
            self.assertIsNone(found.get_revoked_certificate_by_serial_number(self.serial_of(good)))
            self.assertIn("verify OK", self.run_it("openssl", "crl", "-in", crl, "-CAfile", ca, "-noout").stderr)
            statuses = {(entry["name"], entry["status"]) for entry in self.pki_json("list", "--dir", folder)["issued"]}
            self.assertEqual(statuses, {("good", "good"), ("bad", "revoked")})

    def test_numbers_grow_and_thirty_days_are_the_default(self):
        self.pki("init")
        numbers = []
        for _ in range(3):
            told = self.pki_json("crl")
            found = self.list_of("pki/crl.pem")
            numbers.append(found.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number)
            self.assertEqual(str(numbers[-1]), told["number"])
        self.assertEqual(numbers, sorted(set(numbers)))
        self.assertEqual(found.next_update - found.last_update, datetime.timedelta(days=30, minutes=5))
        self.assertEqual(stat.S_IMODE(os.stat(self.at("pki/crl.pem")).st_mode), 0o644)
        self.pki("crl", "--days", "3")
        found = self.list_of("pki/crl.pem")
        self.assertEqual(found.next_update - found.last_update, datetime.timedelta(days=3, minutes=5))

    def test_revoking_is_idempotent_and_exact(self):
        self.pki("init")
        first = self.pki_json("issue", "--role", "device", "--name", "d1")
        second = self.pki_json("issue", "--role", "device", "--name", "d1", "--renew")
        self.assertEqual(self.pki_json("revoke", "--serial", first["serial"])["newly_revoked"], 1)
        self.assertEqual(self.pki_json("revoke", "--serial", first["serial"].lower())["newly_revoked"], 0)
        self.assertEqual(self.verify("pki/ca.pem", ["pki/crl.pem"], second["certificate"])[0], True)
        self.assertEqual(self.pki_json("revoke", "d1")["newly_revoked"], 1)
        self.assertEqual(len(list(self.list_of("pki/crl.pem"))), 2)

    def test_a_name_of_several_peers_is_not_guessed(self):
        self.pki("init")
        self.pki("issue", "--role", "device", "--name", "x", "--tenant", "a")
        self.pki("issue", "--role", "device", "--name", "x", "--tenant", "b")
        self.pki("issue", "--role", "operator", "--name", "x", "--tenant", "a")
        self.assertTrue(os.path.exists(self.at("pki/device-x@b.pem")))
        for arguments in (("x",), ("x", "--tenant", "a"), ("x", "--role", "device")):
            self.assertIn("names several peers", self.pki("revoke", *arguments, code=3).stderr)
        self.assertEqual(self.pki_json("revoke", "x", "--tenant", "a", "--role", "device")["newly_revoked"], 1)
        self.assertEqual(self.verify("pki/ca.pem", ["pki/crl.pem"], "pki/device-x@b.pem")[0], True)
        self.assertEqual(self.verify("pki/ca.pem", ["pki/crl.pem"], "pki/device-x.pem")[0], False)
        self.pki("revoke", "nobody", code=3)
        self.pki("revoke", "--serial", "00", code=3)
        for arguments in ((), ("x", "y"), ("x", "--serial", "1"), ("x", "--role", "gateway")):
            self.assertIn("usage:", self.pki("revoke", *arguments, code=2).stderr)

    def test_an_issuing_authority_under_an_offline_root_can_be_revoked_there(self):
        self.pki("init", "--dir", "root", "--offline", "--name", "root")
        self.pki("init", "--dir", "enrol", "--under", "root", "--name", "enrol", "--days", "900")
        self.pki("issue", "--dir", "enrol", "--role", "device", "--name", "d1")
        lists = ["root/crl.pem", "enrol/crl.pem"]
        for folder in ("root", "enrol"):
            self.pki("crl", "--dir", folder)
        chain = ("-untrusted", "enrol/device-d1.pem")
        self.assertEqual(self.verify("root/ca.pem", lists, "enrol/device-d1.pem", *chain), (True, "enrol/device-d1.pem: OK\n"))
        os.mkdir(self.at("lists"))
        def ours(code):
            for i, path in enumerate(lists):
                with open(self.at(path), "rb") as file, open(self.at(f"lists/{i}.crl"), "wb") as out:
                    out.write(file.read())
            return self.pki_json("check", "--ca", "root/ca.pem", "--crl", "lists", "enrol/device-d1.pem", code=code)
        self.assertEqual(ours(0)["accepted"], True)
        # One list is not enough: every authority of the chain needs one.
        one = self.pki_json("check", "--ca", "root/ca.pem", "--crl", "enrol/crl.pem", "enrol/device-d1.pem", code=1)
        self.assertIn("no revocation list", one["reason"])
        self.assertEqual(self.verify("root/ca.pem", lists[1:], "enrol/device-d1.pem", *chain)[0], False)
        self.pki("revoke", "--dir", "root", "enrol")
        self.assertEqual(self.verify("root/ca.pem", lists, "enrol/device-d1.pem", *chain)[0], False)
        self.assertEqual(ours(1)["status"], "revoked")
        self.assertEqual(self.pki_json("list", "--dir", "root")["issued"][0]["role"], "authority")
        # A root that was not made for it has none below.
        self.pki("init", "--dir", "plain")
        self.assertIn("--offline", self.pki("init", "--dir", "below", "--under", "plain", code=3).stderr)
        self.pki("init", "--dir", "both", "--under", "root", "--offline", code=2)

    def test_a_list_that_its_authority_did_not_sign_is_no_list(self):
        self.pki("init", "--name", "same")
        self.pki("init", "--dir", "forger", "--name", "same")
        self.pki("issue", "--role", "device", "--name", "d1")
        self.pki("crl", "--dir", "forger")
        found = self.pki_json("check", "--ca", "pki/ca.pem", "--crl", "forger/crl.pem", "pki/device-d1.pem", code=1)
        self.assertIn("has not signed", found["reason"])

    def test_what_is_neither_of_the_two_clocks_is_told_with_both(self):
        self.pki("init")
        self.pki("issue", "--role", "device", "--name", "d1", "--days", "30")
        for shift, word in (("-1y", "is not yet valid"), ("+1y", "has expired")):
            done = self.run_it("faketime", "-f", shift, SHEAF, "pki", "check", "--ca", "pki/ca.pem", "pki/device-d1.pem", code=1)
            self.assertIn(word, done.stderr)
            year = datetime.date.today().year + (-1 if shift[0] == "-" else 1)
            self.assertIn(f"the clock here says {year}", done.stderr)
            self.assertIn("set the clock", done.stderr)


class Renewal(InFolder):
    def test_another_key_and_certificate_for_the_same_peer(self):
        self.pki("init")
        old = self.pki_json("issue", "--role", "aggregator", "--name", "a1", "--san", "agg.example.org,10.0.0.7,::1",
                            "--region", "eu", "--key-type", "ed25519")
        with open(self.at(old["certificate"]), "rb") as file:
            before = file.read()
        new = self.pki_json("renew", "--role", "aggregator", "--name", "a1", "--overlap", "48")
        self.assertEqual((new["certificate"], new["region"]), (old["certificate"], "eu"))
        with open(self.at(new["certificate"]), "rb") as file:
            fresh = x509.load_pem_x509_certificate(file.read())
        with open(self.at(new["key"]), "rb") as file:
            key = load_pem_private_key(file.read(), None)
        def public(one):
            return one.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        self.assertEqual(public(fresh), public(key))
        self.assertNotEqual(public(fresh), public(x509.load_pem_x509_certificate(before)))
        for option, value in (("-checkhost", "agg.example.org"), ("-checkip", "10.0.0.7"), ("-checkip", "::1")):
            self.assertIn("does match", self.run_it("openssl", "x509", "-in", new["certificate"], "-noout", option, value).stdout)
        self.assertEqual(self.mode(new["key"]), 0o600)
        self.assertFalse(os.path.exists(self.at(new["key"] + ".old")))
        # The old one is good until the overlap is over, and in the list that is published after it.
        with open(self.at("old.pem"), "wb") as file:
            file.write(before)
        self.assertEqual([entry["status"] for entry in self.pki_json("list")["issued"]], ["superseded", "good"])
        self.pki("crl")
        self.assertEqual(self.pki_json("check", "--ca", "pki/ca.pem", "--crl", "pki/crl.pem", "old.pem")["accepted"], True)
        self.run_it("faketime", "-f", "+49h", SHEAF, "pki", "crl")
        self.assertEqual(self.pki_json("check", "--ca", "pki/ca.pem", "--crl", "pki/crl.pem", "old.pem", code=1)["status"], "revoked")
        self.assertEqual(self.pki_json("check", "--ca", "pki/ca.pem", "--crl", "pki/crl.pem", new["certificate"])["accepted"], True)

    def test_who_has_no_certificate_cannot_renew_it(self):
        self.pki("init")
        self.pki("renew", "--role", "device", "--name", "d1", code=3)
        self.pki("renew", "--name", "d1", code=2)


class Requests(InFolder):
    def token(self, *more):
        self.pki("init")
        token = self.pki("token", "--role", "device", "--name", "d1", "--tenant", "acme", "--region", "eu", *more).stdout
        with open(self.at("token"), "w", encoding="ascii") as file:
            file.write(token)
        return token.strip()

    def csr(self, out, *more, name="d1", region="eu"):
        return self.pki_json("csr", "--role", "device", "--name", name, "--tenant", "acme", "--region", region, "--out", out, *more)

    def sign(self, request, code=0):
        return self.pki("sign", "--token-file", "token", "--out", os.path.dirname(request), request, "--json", code=code)

    def test_a_token_gets_one_key_a_certificate_and_no_other(self):
        token = self.token()
        first, second = self.csr("one"), self.csr("two", "--key-type", "ed25519")
        self.assertIn("verify OK", self.run_it("openssl", "req", "-in", first["request"], "-noout", "-verify").stderr)
        self.sign(first["request"])
        self.assert_accepted("pki/ca.pem", "one/device-d1.pem", "device", "acme", "d1", "eu")
        self.run_it("openssl", "verify", "-CAfile", "pki/ca.pem", "-purpose", "sslclient", "one/device-d1.pem")
        self.assertIn("(bad_token)", self.sign(second["request"], code=1).stderr)
        self.sign(first["request"])  # the answer was lost, say
        with open(self.at("pki/tokens.jsonl"), encoding="ascii") as file:
            text = file.read()
        self.assertNotIn(token, text)
        self.assertEqual((text.count("\n"), self.mode("pki/tokens.jsonl")), (2, 0o600))
        self.assertEqual(len(token), 43)

    def test_a_token_is_for_one_name_and_region_and_time(self):
        self.token("--valid", "2")
        for options in ({"name": "d2"}, {"region": "us"}):
            self.assertIn("(wrong_identity)", self.sign(self.csr("other", **options)["request"], code=1).stderr)
        request = self.csr("one")["request"]
        late = self.run_it("faketime", "-f", "+3h", SHEAF, "pki", "sign", "--token-file", "token", "--out", "one", request, code=1)
        self.assertIn("has expired", late.stderr)
        with open(self.at("token"), "w", encoding="ascii") as file:
            file.write("A" * 43)
        self.assertIn("(bad_token)", self.sign(request, code=1).stderr)
        self.assertFalse(os.path.exists(self.at("one/device-d1.pem")))
        self.assertFalse(os.path.exists(self.at("pki/index.jsonl")))

    def openssl_request(self, subject, *key):
        self.run_it("openssl", "genpkey", "-algorithm", *key, "-out", "x.key")
        self.run_it("openssl", "req", "-new", "-key", "x.key", "-subj", subject, "-out", "x.csr")
        return "./x.csr"

    def test_requests_of_openssl_are_judged_by_the_same_rules(self):
        self.token()
        p256 = ("EC", "-pkeyopt", "ec_paramgen_curve:P-256")
        good = "/O=acme/ST=eu/OU=device/CN=d1"
        for subject, key, why in ((good, ("RSA",), "P-256 or Ed25519"), (good, ("EC", "-pkeyopt", "ec_paramgen_curve:P-384"), "P-256"),
                                  ("/C=CH" + good, p256, "more than O, OU, CN and ST"), ("/O=acme/OU=device", p256, "exactly one CN"),
                                  ("/O=acme/ST=eu/OU=device/CN=d#1", p256, "CN (name)")):
            with self.subTest(why=why):
                self.assertIn(why, self.sign(self.openssl_request(subject, *key), code=3).stderr)
        self.sign(self.openssl_request(good, *p256))
        self.assert_accepted("pki/ca.pem", "device-d1.pem", "device", "acme", "d1", "eu")

    def test_a_request_signed_by_another_key_is_refused(self):
        self.token()
        request = self.csr("one")["request"]
        with open(self.at(request), "rb") as file:
            der = bytearray(x509.load_pem_x509_csr(file.read()).public_bytes(Encoding.DER))
        key = ec.generate_private_key(ec.SECP256R1())
        other = x509.CertificateSigningRequestBuilder().subject_name(x509.load_der_x509_csr(bytes(der)).subject)
        public = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        from cryptography.hazmat.primitives import hashes
        good = other.sign(key, hashes.SHA256()).public_bytes(Encoding.DER)
        mixed = good.replace(public, x509.load_der_x509_csr(bytes(der)).public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo))
        self.assertNotEqual(mixed, good)
        with open(self.at("x.csr"), "wb") as file:
            file.write(x509.load_der_x509_csr(mixed).public_bytes(Encoding.PEM))
        self.assertIn("(bad_signature)", self.sign("./x.csr", code=3).stderr)


if __name__ == "__main__":
    unittest.main()
