"""What a broker, or whoever has rights at one, can do to a job over MQTT: retained garbage, forged topics, another version,
endless data, a whole recorded session said again. Each is refused by its name and the job ends with the model of a calm one."""
import os
import struct
import sys
import time
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.environ["SHEAF_SOURCE"], "tests", "kit"))
import fleet  # noqa: E402
import mqtt5  # noqa: E402

NOT_AUTHORIZED = 0x87  # MQTT 5.0, 2.4
OPEN, SESSION, DATA = 1, 3, 5  # proto/WIRE.md, the envelope
UP, DOWN = "sheaf/1/up/", "sheaf/1/down/"


class BadBroker(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        calm = fleet.Fleet(devices=2, rounds=1)
        try:
            cls.calm = calm.run_all()
        finally:
            calm.close()

    def setUp(self):
        self.job = fleet.Fleet(devices=2, rounds=1, transport="mqtt")
        self.addCleanup(self.job.close)
        self.master = self.client(self.job.broker.superuser)
        self.master.subscribe("#")

    def client(self, certificate):
        client = mqtt5.Client(self.job.broker.port, os.path.join(self.job.pki, "ca.pem"), certificate)
        self.addCleanup(client.close)
        return client

    def start_server(self):
        """Until it has subscribed: what is published before is nobody's."""
        known = self.job.log().count("broker_connected")
        self.job.start_server()
        self.job.wait_for(lambda: self.job.log().count("broker_connected") > known, 20)
        time.sleep(0.3)

    def end_well(self):
        for name in self.job.names:
            if name not in self.job.devices:
                self.job.start_device(name)
        self.job.finish()
        self.assertEqual(self.job.released()[-1]["model"], self.calm)
        self.assertEqual(self.job.query("SELECT count(*) FROM updates"), [(2,)])

    def rejects(self, name):
        """The statuses that the aggregator gave on this device's topic."""
        return [struct.unpack_from("<I", m.payload, 21)[0] for m in list(self.master.messages)
                if m.topic == DOWN + name and m.payload[:5] == b"Shm\x01\x07"]

    def refused(self, reason):
        self.job.wait_for(lambda: f"reason={reason}" in self.job.log(), 20)

    def test_retained_garbage_on_every_topic(self):
        for topic in (UP + "d00", UP + "d01", DOWN + "d00", DOWN + "d01", "sheaf/1/cast/" + 32 * "0", UP + "nobody"):
            self.master.publish(topic, os.urandom(100), retain=True)
        self.start_server()
        self.refused("replay")
        self.assertIn("retained", self.job.log())
        self.end_well()

    def test_a_device_cannot_speak_on_the_topic_of_another(self):
        self.start_server()
        forger = self.client(os.path.join(self.job.pki, "device-d01"))
        self.assertEqual(forger.publish(UP + "d00", b"x"), NOT_AUTHORIZED)
        self.assertEqual(forger.publish(DOWN + "d00", b"x"), NOT_AUTHORIZED)
        forger.close()
        self.end_well()

    def test_garbage_other_versions_and_messages_of_the_other_direction(self):
        self.start_server()
        head = b"Shm\x01"
        self.master.publish(UP + "d00", os.urandom(300))
        self.refused("malformed")
        self.master.publish(UP + "d00", b"S")
        self.refused("truncated")
        self.master.publish(UP + "d00", head + b"\x06" + bytes(200))  # a REPLY
        for version in (0, 2):
            self.master.publish(UP + "d00", b"Shm" + bytes([version]) + b"\x01" + bytes(16) + b"\x01\x10\x00")
        self.refused("unknown_version")
        self.job.wait_for(lambda: 103 in self.rejects("d00"), 20)  # unknown_version: the sender is told
        self.master.publish(UP + "d00", os.urandom(8 << 20))  # more than any message of ours
        self.master.publish(UP + "d00", head + b"\x05" + bytes(24) + os.urandom(4 << 20))  # DATA of no session
        self.end_well()

    def test_a_recorded_session_that_is_said_again(self):
        self.start_server()
        self.job.start_device("d00")
        self.job.wait_for(lambda: self.job.query("SELECT count(*) FROM updates") == [(1,)], 30)
        heard = lambda: [m.payload for m in list(self.master.messages) if m.topic == UP + "d00"]
        # Hello, Round, Model, Offer, Chunk: the broker may bring the last of them to this listener after the update counts.
        self.job.wait_for(lambda: [payload[4] for payload in heard()].count(DATA) > 4, 10)
        recorded = heard()
        self.assertEqual([payload[4] for payload in recorded[:2]], [OPEN, SESSION])
        for payload in recorded:
            self.master.publish(UP + "d00", payload)
        time.sleep(1)
        self.assertEqual(self.job.query("SELECT count(*) FROM updates"), [(1,)])
        self.job.devices["d00"].kill()  # and once more to an aggregator for whom the session is over
        self.job.devices["d00"].wait()
        self.job.server.kill()
        self.job.server.wait()
        self.start_server()
        for payload in recorded:
            self.master.publish(UP + "d00", payload)
        self.refused("replay")
        self.job.start_device("d00")
        self.end_well()

    def test_two_devices_with_one_certificate(self):
        """The broker lets one connection have the name; each of the two says so, and neither keeps the other out for ever."""
        self.start_server()
        self.job.start_device("d00")
        twin = self.client(os.path.join(self.job.pki, "device-d00"))
        self.job.wait_for(lambda: twin.closed or "another client" in self.device_log("d00"), 30)
        twin.close()
        self.end_well()

    def device_log(self, name):
        path = os.path.join(self.job.folder, name + ".log")
        if not os.path.exists(path):
            return ""
        with open(path, encoding="utf-8") as file:
            return file.read()


if __name__ == "__main__":
    unittest.main()
