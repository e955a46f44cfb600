"""The channel over mutual TLS: roles and tenants; and enrolment by EST, asked by curl and openssl, and by our own tool."""
import base64
import json
import os
import re
import shutil
import signal
import socket
import ssl
import http.client
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.dirname(__file__))
from operator_kit import Service, ask, fleet  # noqa: E402

PATH = f"/v1/jobs/{fleet.TENANT}/{fleet.JOB}"
EST = "/.well-known/est/"
EXTRA = """\
operator: {listen: "https://127.0.0.1:0"}
enrolment: {authority: PKI, days: 30}
"""


class Https(unittest.TestCase):
    enrolment = True

    @classmethod
    def setUpClass(cls):
        cls.service = Service(devices=2, rounds=1)
        extra = EXTRA.replace("PKI", cls.service.pki) if cls.enrolment else EXTRA.split("\n")[0] + "\n"
        cls.service.extra = extra
        cls.service.write_server_config()
        for role, name, tenant in (("operator", "olga", fleet.TENANT), ("auditor", "ann", fleet.TENANT),
                                   ("operator", "stranger", "other")):
            fleet.sheaf("pki", "issue", "--dir", cls.service.pki, "--role", role, "--name", name, "--tenant", tenant)
        cls.service.start_server()
        with open(os.path.join(cls.service.state, "operator.address"), encoding="ascii") as file:
            cls.url = file.read().strip()
        cls.port = int(cls.url.rsplit(":", 1)[1])

    @classmethod
    def tearDownClass(cls):
        cls.service.close()

    def file(self, who, kind="pem"):
        return os.path.join(self.service.pki, f"{who}.{kind}")

    def connection(self, who=None, files=None, version=ssl.TLSVersion.TLSv1_3):
        context = ssl.create_default_context(cafile=os.path.join(self.service.pki, "ca.pem"))
        context.minimum_version = context.maximum_version = version
        if who is not None:
            files = (self.file(who), self.file(who, "key"))
        if files is not None:
            context.load_cert_chain(*files)
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=20, context=context)

    def ask(self, who, path, method="GET", body=None, headers=None):
        code, fields, text = ask(self.connection(who), path, method, body, headers)
        return code, fields, json.loads(text) if "json" in fields.get("Content-Type", "") else text

    def token(self, name, *more):
        return fleet.sheaf("pki", "token", "--dir", self.service.pki, "--role", "device", "--name", name, "--tenant",
                           fleet.TENANT, *more).split()[-1].strip()


class Roles(Https):
    enrolment = False

    def test_each_role_may_what_the_table_says(self):
        reads = ["/livez", "/readyz", "/metrics", "/v1/jobs", PATH, PATH + "/rounds", "/v1/clients", "/v1/refusals", "/v1/crl"]
        for who, may in (("operator-olga", True), ("auditor-ann", True), ("device-d00", False)):
            for path in reads:
                with self.subTest((who, path)):
                    code, _, answer = self.ask(who, path)
                    self.assertEqual(code, 200 if may else 403, answer)
                    if not may:
                        self.assertEqual(answer["error"], "wrong_role")

    def test_auditors_change_nothing(self):
        for path in (PATH + "/pause", PATH + "/resume", PATH + "/cancel", "/v1/crl"):
            code, _, answer = self.ask("auditor-ann", path, "POST")
            self.assertEqual((code, answer["error"], answer["detail"]), (403, "wrong_role", "auditors may read only"))
        self.assertEqual(self.service.job()["status"], "running")
        self.assertEqual(self.ask("operator-olga", PATH + "/pause", "POST")[2], {"status": "paused"})
        self.assertEqual(self.ask("operator-olga", PATH + "/resume", "POST")[2], {"status": "running"})

    def test_other_tenants_see_nothing_and_learn_nothing(self):
        who = "operator-stranger"
        self.assertEqual(self.ask(who, "/v1/jobs")[2], {"jobs": []})
        theirs, nobodys = self.ask(who, PATH), self.ask(who, "/v1/jobs/acme/nothing")
        self.assertEqual((theirs[0], theirs[2]["error"]), (404, "unknown_job"))
        self.assertEqual(theirs[2]["detail"].replace(fleet.JOB, "nothing"), nobodys[2]["detail"])
        self.assertEqual(self.ask(who, PATH + "/pause", "POST")[0], 404)
        self.assertEqual(self.ask(who, "/v1/clients/acme/d00")[0], 404)
        self.assertNotIn('tenant="acme"', self.ask(who, "/metrics")[2])
        self.assertIn('tenant="acme"', self.ask("operator-olga", "/metrics")[2])

    def test_without_a_certificate_there_is_no_handshake(self):
        with self.assertRaises((ssl.SSLError, ConnectionError)):
            ask(self.connection(), "/livez")

    def test_an_older_tls_is_refused(self):
        with self.assertRaises((ssl.SSLError, ConnectionError)):
            ask(self.connection("operator-olga", version=ssl.TLSVersion.TLSv1_2), "/livez")

    def test_a_certificate_of_another_authority_is_refused(self):
        other = os.path.join(self.service.folder, "other")
        fleet.sheaf("pki", "init", "--dir", other)
        fleet.sheaf("pki", "issue", "--dir", other, "--role", "operator", "--name", "olga", "--tenant", fleet.TENANT)
        files = [os.path.join(other, "operator-olga." + kind) for kind in ("pem", "key")]
        with self.assertRaises((ssl.SSLError, ConnectionError)):
            ask(self.connection(files=files), "/livez")

    def test_nobody_is_enrolled_where_it_is_not_configured(self):
        code, _, answer = self.ask("operator-olga", EST + "cacerts")
        self.assertEqual((code, answer["error"]), (404, "not_found"))

    def test_the_tool_comes_by_https_too(self):
        def tool(*arguments, ca="ca.pem", who="operator-olga"):
            return fleet.run(fleet.SHEAF, *arguments, "--url", self.url, "--certificate", self.file(who), "--key",
                             self.file(who, "key"), "--ca", os.path.join(self.service.pki, ca))
        listed = tool("job", "list", "--json")
        self.assertEqual((listed.returncode, [j["job"] for j in json.loads(listed.stdout)["jobs"]]), (0, [fleet.JOB]), listed.stderr)
        refused = tool("job", "pause", "acme/digits", who="auditor-ann")
        self.assertEqual(refused.returncode, 1)
        self.assertIn("auditors may read only (wrong_role)", refused.stderr)
        distrusted = tool("job", "list", ca="operator-olga.pem")
        self.assertEqual(distrusted.returncode, 1)
        self.assertIn("bad_certificate", distrusted.stderr)

    def test_sighup_opens_the_log_again(self):
        path = os.path.join(self.service.folder, "sheafd.log")
        os.rename(path, path + ".1")
        self.service.server.send_signal(signal.SIGHUP)
        self.service.wait_for(lambda: os.path.exists(path), 10)
        self.service.post(PATH + "/pause")
        self.service.wait_for(lambda: "job_paused" in self.service.log(), 10)
        self.service.post(PATH + "/resume")


class Revocation(Https):
    enrolment = False

    def test_a_revoked_operator_is_out_at_once_and_the_list_is_shown(self):
        pki = self.service.pki
        fleet.sheaf("pki", "crl", "--dir", pki)
        self.service.stop_server()
        with open(self.service.config, encoding="utf-8") as file:
            text = file.read().replace("  workers:", f"  crl: {pki}/crl.pem\n  workers:")
        self.service.write_server_config = lambda: None
        with open(self.service.config, "w", encoding="utf-8") as file:
            file.write(text)
        self.service.start_server()
        with open(os.path.join(self.service.state, "operator.address"), encoding="ascii") as file:
            type(self).port = int(file.read().strip().rsplit(":", 1)[1])
        self.assertEqual(self.ask("operator-olga", "/v1/crl")[2]["revoked"], 0)
        fleet.sheaf("pki", "revoke", "olga", "--role", "operator", "--tenant", fleet.TENANT, "--dir", pki)
        # 403: the service had looked at the changed file by itself before it was asked to.
        self.assertIn(self.ask("operator-olga", "/v1/crl", "POST")[0], (202, 403))
        self.service.wait_for(lambda: self.service.get("/v1/crl")["revoked"] == 1, 10)
        with self.assertRaises((ssl.SSLError, ConnectionError)):
            ask(self.connection("operator-olga"), "/livez")
        shown = self.service.get("/v1/crl")["pem"]
        read = subprocess.run(["openssl", "crl", "-noout", "-text"], input=shown[0], text=True, capture_output=True, check=True)
        self.assertEqual(read.stdout.count("Serial Number:"), 1)


class Enrolment(Https):
    def curl(self, path, *arguments):
        """(HTTP status, body) by a client that is not ours."""
        done = subprocess.run(["curl", "-sS", "--cacert", os.path.join(self.service.pki, "ca.pem"), "--noproxy", "*", "-w",
                               "\n%{http_code}", *arguments, self.url + path], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        body, _, code = done.stdout.rpartition("\n")
        return int(code), body

    def request(self, name, subject=None, stem=None):
        """A request by openssl, with a key of its own: (path of base64 DER, path of the key)."""
        key, csr = (os.path.join(self.service.folder, f"{stem or name}.{kind}") for kind in ("made.key", "b64"))
        subject = subject or f"/O={fleet.TENANT}/OU=device/CN={name}"
        subprocess.run(["openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", key],
                       check=True, capture_output=True)
        der = subprocess.run(["openssl", "req", "-new", "-key", key, "-subj", subject, "-outform", "DER"], check=True,
                             capture_output=True).stdout
        with open(csr, "w", encoding="ascii") as file:
            file.write(base64.encodebytes(der).decode())
        os.chmod(key, 0o600)
        return csr, key

    def certificates(self, body):
        der = base64.b64decode(body)
        listed = subprocess.run(["openssl", "pkcs7", "-inform", "DER", "-print_certs"], input=der, check=True,
                                capture_output=True).stdout.decode()
        return ["-----BEGIN" + part for part in listed.split("-----BEGIN")[1:]]

    def enrol_by_curl(self, name, token, subject=None, user=None, kind="application/pkcs10"):
        csr, _ = self.request(name, subject)
        return self.curl(EST + "simpleenroll", "-u", f"{user or name}:{token}", "-H", f"Content-Type: {kind}", "--data-binary",
                         "@" + csr)

    def test_cacerts_gives_the_authority_to_anybody(self):
        code, body = self.curl(EST + "cacerts")
        self.assertEqual(code, 200)
        found = self.certificates(body)
        with open(os.path.join(self.service.pki, "ca.pem"), encoding="ascii") as file:
            self.assertEqual([ssl.PEM_cert_to_DER_cert(c.strip()[:c.strip().index("-----END") + 25]) for c in found],
                             [ssl.PEM_cert_to_DER_cert(file.read())])

    def test_each_resource_lets_in_whom_the_document_says(self):
        with open(os.path.join(os.environ["SHEAF_SOURCE"], "docs", "API.md"), encoding="utf-8") as file:
            rows = re.findall(r"^\| `(GET|POST) (\S+)` \| ([^|]+) \|", file.read(), re.M)
        self.assertGreater(len(rows), 15)
        for method, path, who in rows:
            path = path.replace("TENANT", fleet.TENANT).replace("NAME", "nobody").replace("/R", "/1")
            for role, name in (("operator", "operator-olga"), ("auditor", "auditor-ann"), ("device", "device-d00"),
                               ("anyone", None)):
                may = "anyone" in who or role in who
                with self.subTest((method, path, role)):
                    code, _, answer = self.ask(name, path, method)
                    refused = code == 403 and answer["error"] == "wrong_role"
                    self.assertEqual(refused, not may, answer)
                    self.assertNotEqual(code, 405)
                    self.assertFalse(code == 404 and "API.md" in answer["detail"], answer)  # there is such a resource

    def test_silent_handshakes_keep_nobody_out(self):
        silent = []
        for _ in range(200):
            stream = socket.create_connection(("127.0.0.1", self.port), timeout=10)
            silent.append(stream)
        garbage = socket.create_connection(("127.0.0.1", self.port), timeout=10)
        garbage.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")  # no TLS
        began = time.monotonic()
        for _ in range(5):
            self.assertEqual(self.ask("operator-olga", "/livez")[0], 200)
        self.assertLess(time.monotonic() - began, 5)
        try:
            heard = garbage.recv(100)
        except ConnectionResetError:
            heard = b""
        self.assertFalse(heard.startswith(b"HTTP"))
        for stream in [*silent, garbage]:
            stream.close()

    def test_a_stranger_may_nothing_else(self):
        for path in ("/livez", "/v1/jobs", "/metrics", EST + "simplereenroll"):
            code, body = self.curl(path, *(["-X", "POST"] if "reenroll" in path else []))
            self.assertEqual((code, json.loads(body)["error"]), (403, "wrong_role"), path)

    def test_curl_and_openssl_get_a_certificate_and_the_next_one(self):
        code, body = self.enrol_by_curl("new-a", self.token("new-a"))
        self.assertEqual(code, 200, body)
        found = self.certificates(body)
        self.assertEqual(len(found), 2)
        path, key = os.path.join(self.service.folder, "new-a.pem"), os.path.join(self.service.folder, "new-a.made.key")
        with open(path, "w", encoding="ascii") as file:
            file.write(found[0])
        subprocess.run(["openssl", "verify", "-CAfile", os.path.join(self.service.pki, "ca.pem"), path], check=True,
                       capture_output=True)
        subject = subprocess.run(["openssl", "x509", "-noout", "-subject", "-nameopt", "RFC2253", "-in", path], check=True,
                                 capture_output=True, text=True).stdout
        self.assertEqual(subject.strip(), f"subject=CN=new-a,OU=device,O={fleet.TENANT}")
        code, body = self.curl(EST + "simplereenroll", "--cert", path, "--key", key, "-H", "Content-Type: application/pkcs10",
                               "--data-binary", "@" + self.request("new-a", stem="next")[0])
        self.assertEqual(code, 200, body)
        self.assertEqual(len(self.certificates(body)), 2)
        code, body = self.curl(EST + "simplereenroll", "--cert", path, "--key", key, "-H", "Content-Type: application/pkcs10",
                               "--data-binary", "@" + self.request("new-b")[0])
        self.assertEqual((code, json.loads(body)["error"]), (403, "wrong_identity"))

    def test_bad_requests_have_a_named_reason(self):
        token = self.token("new-c")
        code, body = self.enrol_by_curl("new-c", "A" * 43)
        self.assertEqual((code, json.loads(body)["error"]), (401, "bad_token"))
        for name, subject, user, expected in (("new-c", None, "new-d", (403, "wrong_identity")),
                                              ("new-d", None, None, (403, "wrong_identity")),
                                              ("new-c", f"/O={fleet.TENANT}/OU=operator/CN=new-c", None, (403, "wrong_identity")),
                                              ("new-c", "/O=other/OU=device/CN=new-c", None, (403, "wrong_identity"))):
            with self.subTest((name, subject, user)):
                code, body = self.enrol_by_curl(name, token, subject, user)
                self.assertEqual((code, json.loads(body)["error"]), expected, body)
        code, body = self.enrol_by_curl("new-c", token, kind="text/plain")
        self.assertEqual((code, json.loads(body)["error"]), (415, "malformed"))
        for data in ("", "!!!!", base64.b64encode(b"no request").decode(), "A" * 20000):
            code, body = self.curl(EST + "simpleenroll", "-u", "new-c:" + token, "-H", "Content-Type: application/pkcs10",
                                   "--data-binary", data)
            self.assertEqual((code, json.loads(body)["error"]), (400, "malformed"), data[:10])
        code, body = self.curl(EST + "simpleenroll", "-X", "POST", "-H", "Content-Type: application/pkcs10")
        self.assertEqual((code, json.loads(body)["error"]), (401, "bad_token"))
        code, body = self.enrol_by_curl("new-c", token)
        self.assertEqual(code, 200, body)  # none of these used the token up
        code, body = self.enrol_by_curl("new-c", token)
        self.assertEqual((code, json.loads(body)["error"]), (401, "bad_token"))  # another key: a new one each time here

    def test_our_tool_enrolls_renews_and_the_device_works_with_both(self):
        name = self.service.names[1]
        files = {kind: os.path.join(self.service.pki, f"device-{name}.{kind}") for kind in ("pem", "key")}
        for path in files.values():
            os.remove(path)
        out = os.path.join(self.service.folder, "out")
        common = ("pki", "enroll", "--url", self.url, "--ca", os.path.join(self.service.pki, "ca.pem"), "--name", name,
                  "--tenant", fleet.TENANT, "--out", out)
        secret = os.path.join(self.service.folder, "token")
        with open(secret, "w", encoding="ascii") as file:
            file.write(self.token(name) + "\n")
        first = fleet.run(fleet.SHEAF, *common, "--token-file", secret)
        self.assertEqual(first.returncode, 0, first.stderr)
        made = {kind: os.path.join(out, f"device-{name}.{kind}") for kind in ("pem", "key")}
        self.assertEqual(os.stat(made["key"]).st_mode & 0o777, 0o600)
        again = fleet.run(fleet.SHEAF, *common, "--token-file", secret)
        self.assertEqual(again.returncode, 1, again.stderr)
        self.assertIn("is there already", again.stderr)
        os.remove(made["pem"])  # the answer was lost: the same key asks again
        self.assertEqual(fleet.run(fleet.SHEAF, *common, "--token-file", secret).returncode, 0)
        with open(made["key"], encoding="ascii") as file:
            key = file.read()
        renewed = fleet.run(fleet.SHEAF, *common, "--renew")
        self.assertEqual(renewed.returncode, 0, renewed.stderr)
        with open(made["key"], encoding="ascii") as file:
            self.assertNotEqual(file.read(), key)
        for kind, path in files.items():
            shutil.copy(made[kind], path)
        for device in self.service.names:
            self.service.start_device(device)
        self.service.wait_for(lambda: self.service.job()["status"] == "finished", 60)
        self.assertEqual(self.service.released()[0]["accepted"], 2)

    def test_the_tool_refuses_a_service_that_it_does_not_know(self):
        other = os.path.join(self.service.folder, "elsewhere")
        fleet.sheaf("pki", "init", "--dir", other)
        secret = os.path.join(self.service.folder, "token-x")
        with open(secret, "w", encoding="ascii") as file:
            file.write(self.token("new-x"))
        done = fleet.run(fleet.SHEAF, "pki", "enroll", "--url", self.url, "--ca", os.path.join(other, "ca.pem"), "--name", "new-x",
                         "--tenant", fleet.TENANT, "--out", os.path.join(self.service.folder, "x"), "--token-file", secret)
        self.assertIn("bad_certificate", done.stderr)
        self.assertNotEqual(done.returncode, 0)


del Https  # a base, not a case

if __name__ == "__main__":
    unittest.main()
