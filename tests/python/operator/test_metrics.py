"""/metrics, read by a parser of Prometheus's text format 0.0.4 that was written for this test; and /livez, /readyz."""
import json
import os
import re
import sqlite3
import sys
import time
import unittest

sys.path.insert(0, os.path.dirname(__file__))
from operator_kit import Service, fleet  # noqa: E402

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
SAMPLE = re.compile(rf"({NAME})(?:\{{(.*)\}})? (\S+)$")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\[\\"n])*)"(?:,|$)')


def parse(text):
    """{name: (type, {labels: value})}; raises ValueError for what the format forbids."""
    if not text.endswith("\n"):
        raise ValueError("the last line has no end")
    families, helped, current = {}, set(), None
    for line in text[:-1].split("\n"):
        if line.startswith("# HELP "):
            name, words = line[7:].split(" ", 1)
            if name in helped or not words:
                raise ValueError("HELP twice or empty: " + line)
            helped.add(name)
        elif line.startswith("# TYPE "):
            name, kind = line[7:].split(" ")
            if name in families or kind not in ("counter", "gauge"):
                raise ValueError("TYPE twice or unknown: " + line)
            families[name], current = (kind, {}), name
        else:
            found = SAMPLE.match(line)
            if not found or found.group(1) != current:
                raise ValueError("not a sample of the family at hand: " + line)
            labels, rest = [], found.group(2) or ""
            while rest:
                label = LABEL.match(rest)
                if not label:
                    raise ValueError("labels: " + line)
                labels.append((label.group(1), label.group(2)))
                rest = rest[label.end():]
            key = tuple(sorted(labels))
            if key in families[current][1] or len(dict(labels)) != len(labels):
                raise ValueError("twice: " + line)
            families[current][1][key] = float(found.group(3))
            if families[current][0] == "counter" and not current.endswith("_total"):
                raise ValueError("a counter that is not called one: " + line)
    if helped != set(families):
        raise ValueError("HELP without TYPE or the other way: " + str(helped ^ set(families)))
    return families


class Metrics(unittest.TestCase):
    def setUp(self):
        self.service = Service(devices=3, rounds=2)
        self.addCleanup(self.service.close)
        self.service.start_server()

    def metrics(self):
        code, fields, text = self.service.ask("/metrics")
        self.assertEqual((code, fields["Content-Type"]), (200, "text/plain; version=0.0.4; charset=utf-8"))
        return parse(text)

    def value(self, families, name, **labels):
        return families[name][1].get(tuple(sorted(labels.items())))

    def test_the_parser_knows_bad_from_good(self):
        good = "# HELP a b\n# TYPE a gauge\na 1\n"
        self.assertEqual(parse(good), {"a": ("gauge", {(): 1.0})})
        for bad in (good[:-1], good + "b 2\n", good + "a 2\n", good.replace("a 1", 'a{x="} 1'), good.replace("gauge", "graph"),
                    good.replace("gauge", "counter"), good.replace("a 1", "a one")):
            with self.assertRaises(ValueError, msg=bad):
                parse(bad)

    def test_figures_agree_with_what_happened(self):
        before = self.metrics()
        job = dict(tenant=fleet.TENANT, job=fleet.JOB)
        self.assertEqual(self.value(before, "sheaf_job_running", **job), 1)
        self.assertEqual(self.value(before, "sheaf_job_round", **job), 1)
        self.assertEqual(self.value(before, "sheaf_job_cohort_target", **job), 3)
        self.assertEqual(self.value(before, "sheaf_updates_accepted_total", **job), 0)
        self.assertEqual(self.value(before, "sheaf_carrier_ready", carrier="nng"), 1)
        for name in self.service.names:
            self.service.start_device(name)
        self.service.wait_for(lambda: self.service.job()["status"] == "finished", 60)
        after = self.metrics()
        payload = sum(size for (size,) in self.service.query("SELECT payload_bytes FROM updates"))
        self.assertEqual(self.value(after, "sheaf_updates_accepted_total", **job), 6)
        self.assertEqual(self.value(after, "sheaf_update_bytes_total", **job), payload)
        self.assertEqual(self.value(after, "sheaf_rounds_released_total", **job), 2)
        self.assertEqual(self.value(after, "sheaf_job_running", **job), 0)
        self.assertEqual(self.value(after, "sheaf_clients_seen"), 3)
        self.assertEqual(self.value(after, "sheaf_uploads", **job), 0)
        with open(f"/proc/{self.service.server.pid}/statm", encoding="ascii") as file:
            resident = int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")
        self.assertAlmostEqual(self.value(after, "process_resident_memory_bytes") / resident, 1, delta=0.2)
        self.assertAlmostEqual(self.value(after, "process_start_time_seconds"), time.time(), delta=120)
        for name, (kind, samples) in before.items():
            for key, value in samples.items() if kind == "counter" else ():
                self.assertGreaterEqual(after[name][1][key], value, name)

    def test_refusals_are_counted_by_reason(self):
        fleet.sheaf("pki", "issue", "--dir", self.service.pki, "--role", "device", "--name", "alien", "--tenant", "other")
        self.service.start_device("alien")
        self.service.wait_for(lambda: "reason=" in self.service.log(), 30)
        reason = re.search(r"refused reason=(\w+)", self.service.log()).group(1)
        families = self.metrics()
        total = sum(v for key, v in families["sheaf_refused_total"][1].items() if dict(key)["reason"] == reason)
        self.assertGreaterEqual(total, 1)
        shown = self.service.get("/v1/refusals")
        everywhere = [shown["of_no_job"]] + [job["refusals"] for job in shown["jobs"]]
        self.assertTrue(any(reason in reasons for reasons in everywhere), shown)

    def test_ready_needs_a_database_that_takes_writes(self):
        self.assertEqual(self.service.get("/livez")["status"], "ok")
        self.assertEqual(self.service.get("/readyz"), {"status": "ready", "reasons": []})
        hold = sqlite3.connect(os.path.join(self.service.state, "state.db"), isolation_level=None)
        hold.execute("BEGIN IMMEDIATE")
        code, _, text = self.service.ask("/readyz")
        self.assertEqual((code, json.loads(text)["status"]), (503, "not_ready"), text)
        self.assertIn("database", text)
        self.assertEqual(self.service.get("/livez")["status"], "ok")
        hold.execute("ROLLBACK")
        hold.close()
        self.assertEqual(self.service.get("/readyz")["status"], "ready")


if __name__ == "__main__":
    unittest.main()
