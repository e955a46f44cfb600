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
sys.path.insert(0, os.path.join(os.environ["SHEAF_SOURCE"], "tests", "fault"))
from cryptography.hazmat.primitives import hashes  # noqa: E402
from cryptography.hazmat.primitives.asymmetric import ec  # noqa: E402
import mqtt5  # noqa: E402
import wire_device  # noqa: E402

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


class Asking(unittest.TestCase):
    def serve(self, limits="", **options):
        self.service = Service(**options)
        self.addCleanup(self.service.close)
        if limits:
            with open(self.service.config, encoding="utf-8") as file:
                text = file.read()
            with open(self.service.config, "w", encoding="utf-8") as file:
                file.write(text.replace("limits: {", f"limits: {{{limits}, "))
        self.service.start_server()

    def metrics(self):
        code, fields, text = self.service.ask("/metrics")
        self.assertEqual((code, fields["Content-Type"]), (200, "text/plain; version=0.0.4; charset=utf-8"))
        return parse(text)

    def value(self, families, name, **labels):
        return families[name][1].get(tuple(sorted(labels.items())))


class Metrics(Asking):
    def setUp(self):
        self.serve(devices=3, rounds=2)

    def test_the_parser_knows_bad_from_good(self):
        good = "# HELP a b\n# TYPE a gauge\na 1\n"
        self.assertEqual(parse(good), {"a": ("gauge", {(): 1.0})})
        for bad in (good[:-1], good + "b 2\n", good + "a 2\n", good.replace("a 1", 'a{x="} 1'), good.replace("gauge", "graph"),
                    good.replace("gauge", "counter"), good.replace("a 1", "a one")):
            with self.assertRaises(ValueError, msg=bad):
                parse(bad)

    def test_figures_agree_with_what_happened(self):
        job = dict(tenant=fleet.TENANT, job=fleet.JOB)
        self.service.wait_for(lambda: self.value(self.metrics(), "sheaf_job_round", **job) == 1, 20)  # a moment after the start
        before = self.metrics()
        self.assertEqual(self.value(before, "sheaf_job_running", **job), 1)
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


class Quotas(Asking):
    def waits(self):
        return {dict(key)["quota"]: value for key, value in self.metrics()["sheaf_quota_waits_total"][1].items()}

    def test_who_waits_for_a_rate_is_counted_as_often_as_it_is_told(self):
        self.serve("client_requests_per_s: 10", devices=1, rounds=1, chunk_bytes=4096)
        self.assertEqual(self.waits(), {"requests": 0, "bytes": 0, "in_flight": 0, "uploads": 0})
        self.service.start_device("d00")
        self.service.wait_for(lambda: self.service.job()["status"] == "finished", 60)
        told = self.service.log().count("reason=over_quota")
        self.assertGreater(told, 0)
        self.assertEqual(self.waits(), {"requests": told, "bytes": 0, "in_flight": 0, "uploads": 0})

    def test_who_begins_more_payloads_than_it_may_is_counted(self):
        self.serve("client_uploads: 1", devices=2, rounds=1)
        tensors, _ = fleet.read_safetensors(os.path.join(self.service.folder, "initial.safetensors"))
        values = sum(len(data) for _, _, data in tensors.values()) // 4
        schema = wire_device.load_schema(os.environ["SHEAF_SOURCE"], self.service.folder)
        device = wire_device.Device(schema, ("127.0.0.1", self.service.port), self.service.pki, "d00", fleet.TENANT, fleet.JOB,
                                    values)
        self.addCleanup(lambda: device.link is not None and device.link.close())
        opened = wire_device.read_round(device.ask("round", last_round=0)[0].round.statement)
        answers = []
        for number in range(3):
            said = wire_device.update_statement(opened, "d00", device.certificate,
                                                wire_device.payload_of(number, "d00", values), 5)
            reply, _ = device.ask("offer", statement=said, signature=device.key.sign(said, ec.ECDSA(hashes.SHA256())))
            answers.append(reply.WhichOneof("body"))
        self.assertEqual(answers, ["upload", "wait", "wait"])
        self.assertEqual(self.waits(), {"requests": 0, "bytes": 0, "in_flight": 0, "uploads": 2})


class Casts(Asking):
    SEALING = 45  # bytes a message of a cast: 29 of head and sequence, 16 of tag (proto/WIRE.md)

    def test_bytes_cast_are_those_that_the_broker_hears(self):
        self.serve(devices=3, rounds=2, transport="mqtt", chunk_bytes=4096)
        self.service.wait_for(lambda: "broker_connected" in self.service.log(), 20)
        time.sleep(0.3)  # until it has subscribed
        broker = self.service.broker
        heard = mqtt5.Client(broker.port, os.path.join(self.service.pki, "ca.pem"), broker.superuser)
        self.addCleanup(heard.close)
        heard.subscribe("sheaf/1/cast/#")
        job = dict(tenant=fleet.TENANT, job=fleet.JOB)
        cast = lambda: self.metrics()["sheaf_cast_bytes_total"][1][tuple(sorted(job.items()))]  # noqa: E731
        self.assertEqual(cast(), 0)
        for name in self.service.names:
            self.service.start_device(name)
        self.service.wait_for(lambda: self.service.job()["status"] == "finished", 60)
        model = os.path.getsize(os.path.join(self.service.folder, "initial.safetensors"))
        self.service.wait_for(lambda: cast() == sum(len(m.payload) - self.SEALING for m in list(heard.messages)), 20)
        self.assertGreater(cast(), 0.9 * model)


if __name__ == "__main__":
    unittest.main()
