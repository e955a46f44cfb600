"""Power lost at every sync of `sheaf pki init`, `issue`, `revoke`, `renew` and `sign`, and every file call made to fail: no certificate is out that
the list does not know or whose key is gone, and the same command again finishes the work."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
BUILD = os.environ["SHEAF_BUILD"]
SHEAF = os.path.join(BUILD, "server", "sheaf")
FAULTS = os.path.join(BUILD, "tests", "fault")
sys.path.insert(0, os.path.join(os.environ["SHEAF_SOURCE"], "tests", "fault"))
from power import Power  # noqa: E402

MODES = [("strict", 0), ("names", 0)] + [("mixed", seed) for seed in range(4)]


def sheaf(*arguments, env=None):
    return subprocess.run([SHEAF, "pki", *arguments], env=env, capture_output=True, text=True, timeout=60)


def init(root):
    return ["init", "--dir", os.path.join(root, "pki")]


def issue(root, out="out"):
    return ["issue", "--dir", os.path.join(root, "pki"), "--out", os.path.join(root, out), "--role", "device", "--name", "d1", "--json"]


def tree_of(root):
    """Names and contents, to judge equal trees once."""
    found = []
    for folder, _, files in os.walk(root):
        found.append((folder, None))
        for name in files:
            with open(os.path.join(folder, name), "rb") as file:
                found.append((os.path.join(folder, name), file.read()))
    return tuple(sorted(found, key=str))


def init_promises(root, done):
    """What is wrong with the tree, or None. Whatever happened, an authority is whole or not there."""
    certificate, key = (os.path.exists(os.path.join(root, "pki", name)) for name in ("ca.pem", "ca.key"))
    if done and not certificate:
        return "init said that it was done, but ca.pem is not there"
    if certificate and not key:
        return "a root without its key"
    if certificate and sheaf(*issue(root, "later")).returncode != 0:
        return "a root that cannot issue"
    if not certificate and not key and sheaf(*init(root)).returncode != 0:
        return "nothing is there, but init refuses"
    return None


def issue_promises(root, done):
    certificate = os.path.join(root, "out", "device-d1.pem")
    key = certificate.replace(".pem", ".key")
    if done and not os.path.exists(certificate):
        return "issue said that it was done, but the certificate is not there"
    if os.path.exists(certificate):
        found = sheaf("check", "--ca", os.path.join(root, "pki", "ca.pem"), certificate, "--json")
        listed = sheaf("list", "--dir", os.path.join(root, "pki"), "--json")
        if found.returncode != 0 or listed.returncode != 0:
            return "a certificate or a list that cannot be read: " + found.stdout + listed.stderr
        if json.loads(found.stdout)["fingerprint"] not in [entry["fingerprint"] for entry in json.loads(listed.stdout)["issued"]]:
            return "a certificate that the list does not know"
        public = subprocess.run(["openssl", "x509", "-in", certificate, "-noout", "-pubkey"], capture_output=True).stdout
        own = subprocess.run(["openssl", "pkey", "-in", key, "-pubout"], capture_output=True).stdout
        return None if own == public else "a certificate whose key is gone"
    again = sheaf(*issue(root))
    return None if again.returncode == 0 else "the same command again fails: " + again.stderr


# --- revoke, renew, and a token's use: what stands before the power is lost is made by `prepare_...`

def pki_of(root):
    return os.path.join(root, "pki")


def prepare_issued(root):
    assert sheaf(*init(root)).returncode == 0 and sheaf(*issue(root)).returncode == 0


def revoke(root):
    return ["revoke", "--dir", pki_of(root), "d1", "--json"]


def is_accepted(root):
    done = subprocess.run(["openssl", "verify", "-crl_check", "-CAfile", os.path.join(pki_of(root), "ca.pem"), "-CRLfile",
                           os.path.join(pki_of(root), "crl.pem"), os.path.join(root, "out", "device-d1.pem")], capture_output=True)
    return done.returncode == 0


def revoke_promises(root, done):
    """A list that is out names all that was noted, and the next list, whoever asks for it, does too."""
    listed = sheaf("list", "--dir", pki_of(root), "--json")
    if listed.returncode != 0:
        return "the lists cannot be read: " + listed.stderr
    status = json.loads(listed.stdout)["issued"][0]["status"]
    published = os.path.exists(os.path.join(pki_of(root), "crl.pem"))
    if published and not public_key("crl", "-in", os.path.join(pki_of(root), "crl.pem"), "-noout", "-lastupdate"):
        return "a list that nobody can read, which refuses everybody"
    if done and (status != "revoked" or not published or is_accepted(root)):
        return "revoke said that it was done, but the certificate is good"
    if published and status == "revoked" and is_accepted(root):
        return "a list is out that does not name what was revoked before it"
    if published and status != "revoked" and not is_accepted(root):
        return "the list names what was never noted: the next one would take it back"
    again = sheaf(*revoke(root))
    if again.returncode != 0 or is_accepted(root):
        return "the same command again does not finish the work: " + again.stderr
    return None


def renew(root):
    return ["renew", "--dir", pki_of(root), "--out", os.path.join(root, "out"), "--role", "device", "--name", "d1", "--json"]


def public_key(*command):
    return subprocess.run(["openssl", *command], capture_output=True).stdout


def renew_promises(root, done):
    """Whatever is there, the certificate has its key: in its file, or in the one beside it that it replaced."""
    certificate = os.path.join(root, "out", "device-d1.pem")
    key = certificate.replace(".pem", ".key")
    wanted = public_key("x509", "-in", certificate, "-noout", "-pubkey")
    keys = [public_key("pkey", "-in", path, "-pubout") for path in (key, key + ".old") if os.path.exists(path)]
    if not wanted or wanted not in keys:
        return "a certificate whose key is gone"
    listed = json.loads(sheaf("list", "--dir", pki_of(root), "--json").stdout)["issued"]
    found = json.loads(sheaf("check", "--ca", os.path.join(pki_of(root), "ca.pem"), certificate, "--json").stdout)
    if found["fingerprint"] not in [entry["fingerprint"] for entry in listed]:
        return "a certificate that the list does not know"
    if done and (len(listed) < 2 or listed[-1]["fingerprint"] != found["fingerprint"] or len(keys) != 1):
        return "renew said that it was done, but the old pair is there"
    again = sheaf(*renew(root))
    if again.returncode != 0:
        return "the same command again fails: " + again.stderr
    if public_key("x509", "-in", certificate, "-noout", "-pubkey") != public_key("pkey", "-in", key, "-pubout"):
        return "after the same command again the pair does not fit"
    return None


def prepare_token(root):
    assert sheaf(*init(root)).returncode == 0
    token = sheaf("token", "--dir", pki_of(root), "--role", "device", "--name", "d1").stdout
    with open(os.path.join(root, "token"), "w", encoding="ascii") as file:
        file.write(token)
    for folder in ("out", "other"):
        assert sheaf("csr", "--role", "device", "--name", "d1", "--out", os.path.join(root, folder)).returncode == 0


def sign(root, folder="out"):
    out = os.path.join(root, folder)
    return ["sign", "--dir", pki_of(root), "--token-file", os.path.join(root, "token"), "--out", out,
            os.path.join(out, "device-d1.csr"), "--json"]


def sign_promises(root, done):
    """One key gets a certificate for a token, whatever happened: once it has, no other key does."""
    certificate = os.path.join(root, "out", "device-d1.pem")
    if done and not os.path.exists(certificate):
        return "sign said that it was done, but the certificate is not there"
    listed = sheaf("list", "--dir", pki_of(root), "--json")
    if listed.returncode != 0:
        return "the list cannot be read: " + listed.stderr
    listed = json.loads(listed.stdout)["issued"]
    if os.path.exists(certificate):
        found = sheaf("check", "--ca", os.path.join(pki_of(root), "ca.pem"), certificate, "--json")
        if found.returncode != 0:
            return "a certificate that cannot be read: " + found.stdout + found.stderr
        if json.loads(found.stdout)["fingerprint"] not in [entry["fingerprint"] for entry in listed]:
            return "a certificate that the list does not know"
    issued = len(listed) > 0 or os.path.exists(certificate)
    if issued and sheaf(*sign(root, "other")).returncode == 0:
        return "a second key got a certificate for the same token"
    if issued and sheaf(*sign(root)).returncode != 0:
        return "the key that used the token cannot ask again"
    if not issued and sheaf(*sign(root)).returncode != 0:
        return "nobody has a certificate, and the token is gone"
    return None


class PowerLoss(unittest.TestCase):
    def setUp(self):
        self.work = tempfile.mkdtemp(prefix="sheaf-pki-power-")
        self.addCleanup(shutil.rmtree, self.work)
        self.root = os.path.join(self.work, "root")
        self.before = os.path.join(self.work, "before")
        os.mkdir(self.before, 0o700)

    def begin(self):
        shutil.rmtree(self.root, ignore_errors=True)
        shutil.copytree(self.before, self.root)

    def violations(self, command, promises, ignore=None):
        """Yields (sync, mode, seed, what is wrong)."""
        die, code = 0, -9
        while code == -9:
            die += 1
            self.begin()
            power = Power(BUILD, self.root, self.work)
            code, _ = power.run([SHEAF, "pki", *command(self.root)], die=die, ignore=ignore)
            seen = set()
            for mode, seed in MODES:
                fresh = os.path.join(self.work, "fresh")
                shutil.rmtree(fresh, ignore_errors=True)
                power.rebuild(fresh, mode, seed)
                tree = tree_of(fresh)
                wrong = None if tree in seen else promises(fresh, code == 0)
                seen.add(tree)
                if wrong:
                    yield die, mode, seed, wrong
        self.syncs = die - 1

    def sites(self, command):
        self.begin()
        power = Power(BUILD, self.root, self.work)
        power.run([SHEAF, "pki", *command(self.root)])
        return power.sites()

    def hold_to(self, command, promises, sites, spare=()):
        """`spare`: syncs of folders in which nothing is new here; they matter where the file or folder is new."""
        self.assertEqual(list(self.violations(command, promises)), [])
        self.assertGreaterEqual(self.syncs, len(sites))
        self.assertEqual(self.sites(command), sites)
        for site in [site for site in sites if site not in spare]:
            with self.subTest(without=site):
                self.assertIsNotNone(next(self.violations(command, promises, ignore=site), None))

    def test_init_makes_a_whole_root_or_none(self):
        self.hold_to(init, init_promises, ["folder .", "file pki/ca.key.new", "folder pki", "file pki/ca.pem.new"])

    def test_issue_lists_before_it_hands_out(self):
        self.assertEqual(sheaf(*init(self.before)).returncode, 0)
        self.hold_to(issue, issue_promises, ["folder .", "file out/device-d#.key.new", "folder out", "file pki/index.jsonl",
                                             "folder pki", "file out/device-d#.pem.new"])

    def test_revoke_notes_before_it_publishes(self):
        prepare_issued(self.before)
        self.hold_to(revoke, revoke_promises, ["file pki/revoked.jsonl", "folder pki", "file pki/crl.pem.new"])

    def test_renew_leaves_no_certificate_without_its_key(self):
        prepare_issued(self.before)
        self.hold_to(renew, renew_promises, ["file pki/index.jsonl", "folder pki", "folder out", "file out/device-d#.key.new",
                                             "file out/device-d#.pem.new"], spare=["folder pki"])

    def test_a_token_is_used_up_before_its_certificate_exists(self):
        prepare_token(self.before)
        self.hold_to(sign, sign_promises, ["file pki/tokens.jsonl", "folder pki", "file pki/index.jsonl", "folder .",
                                           "file out/device-d#.pem.new", "folder out"], spare=["folder ."])


class Faults(unittest.TestCase):
    def test_a_failing_disk_is_named_and_breaks_no_promise(self):
        names = {"open": "ENOSPC", "write": "ENOSPC", "mkdir": "ENOSPC", "read": "EIO", "fsync": "EIO", "rename": "EIO",
                 "truncate": "EIO"}
        for operation, error in names.items():
            failures = self.each_call(operation, error, "(no_space)" if error == "ENOSPC" else "(disk)")
            self.assertGreater(failures, 0, operation)

    def each_call(self, operation, error, name):
        for number in range(1, 200):
            with tempfile.TemporaryDirectory(prefix="sheaf-pki-fault-") as root:
                self.assertEqual(sheaf(*init(root)).returncode, 0)
                report = os.path.join(root, "report")
                env = dict(os.environ, LD_PRELOAD=os.path.join(FAULTS, "fault_shim.so"), SHEAF_FAULT_REPORT=report,
                           SHEAF_FAULT_PATH=root + "*", SHEAF_FAULT=f"{operation}:{number}:{error}",
                           ASAN_OPTIONS="verify_asan_link_order=0:" + os.environ.get("ASAN_OPTIONS", ""))
                done = sheaf(*issue(root), env=env)
                with open(report, encoding="ascii") as file:
                    failed = sum(int(line.split()[-1]) for line in file)
                if failed == 0:
                    self.assertEqual(done.returncode, 0, done.stderr)
                    return number - 1
                where = f"{operation} {number} {error}: {done.stderr}"
                self.assertEqual(done.returncode, 4, where)
                self.assertIn(name, done.stderr, where)
                self.assertIsNone(issue_promises(root, False), where)
        self.fail("the faults never end")


if __name__ == "__main__":
    unittest.main()
