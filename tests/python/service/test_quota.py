"""Each quota of sheafd, by a device in Python that goes beyond it: the answer is "later, in so many milliseconds", after which
the device is served, and the round ends with the model of a calm run."""
import os
import signal
import ssl
import sys
import threading
import time
import unittest

sys.dont_write_bytecode = True
sys.path[:0] = [os.path.join(os.environ["SHEAF_SOURCE"], "tests", *part) for part in (["fault"], ["kit"], ["python", "service"])]
import fleet  # noqa: E402
import service  # noqa: E402
import session_kit  # noqa: E402
import wire_device  # noqa: E402
from session_kit import CHUNK  # noqa: E402

BUSY, OVER_QUOTA = 150, 151  # common/status.h
PAYLOAD = 4 * service.VALUES


class Quota(session_kit.Sessions):
    def later(self, reply, status=OVER_QUOTA):
        """The seconds after which the device shall come again."""
        self.assertEqual(reply.WhichOneof("body"), "wait", reply)
        self.assertEqual(reply.wait.status, status, reply)
        self.assertGreater(reply.wait.retry_ms, 0)
        return reply.wait.retry_ms / 1000

    def patiently(self, ask, *arguments):
        """(the reply, how often it was put off): who waits as long as he is told is served the next time."""
        reply = ask(*arguments)[0]
        if reply.WhichOneof("body") != "wait":
            return reply, 0
        time.sleep(self.later(reply))
        reply = ask(*arguments)[0]
        self.assertNotEqual(reply.WhichOneof("body"), "wait", reply)
        return reply, 1

    def begin_upload(self, device, payload=None):
        """Offers, and sends the first chunk."""
        payload = payload or wire_device.payload_of(1, device.client, service.VALUES)
        said = self.statement(self.open_round(device), device, payload)
        self.assertEqual(self.offer(device, said)[0].upload.next_offset, 0)
        self.assertEqual(self.chunk(device, payload, 0)[0].upload.next_offset, CHUNK)
        return payload, said

    def test_requests_a_second(self):
        device = self.begin(top="client_requests_per_s: 5, ")
        hello = lambda: device.ask("hello", protocol=1, encodings=["f32"], frame_bytes_max=1 << 20)  # noqa: E731
        waits = 0
        for _ in range(200):
            reply = hello()[0]
            if reply.WhichOneof("body") == "wait":
                self.assertLessEqual(self.later(reply), 0.3)  # a fifth of a second, and up to a quarter of that at random
                waits += 1
        self.assertGreater(waits, 100)
        for _ in range(3):
            reply, _ = self.patiently(hello)
            self.assertEqual(reply.WhichOneof("body"), "welcome")
        self.end_well()
        self.assertGreaterEqual(self.of_no_job()["over_quota"], waits)

    def test_bytes_a_second(self):
        device = self.begin(top="client_bytes_per_s: 1 KiB, ")
        payload, waits = wire_device.payload_of(1, "d00", service.VALUES), 0
        said = self.statement(self.open_round(device), device, payload)
        reply, waits = self.patiently(self.offer, device, said)
        for at in range(0, len(payload), CHUNK):
            self.assertEqual(reply.upload.next_offset, at)
            reply, more = self.patiently(self.chunk, device, payload, at)
            waits += more
        self.assertEqual(reply.WhichOneof("body"), "receipt")
        self.assertGreater(waits, 0)
        self.assertEqual(self.of_no_job()["over_quota"], waits)
        self.end_well()

    def test_bytes_in_flight(self):
        """Four connections of one device ask at once, so that a second request meets the first."""
        devices = [self.begin(top="client_in_flight_bytes: 1, "), *[self.device("d00") for _ in range(3)]]
        for device in devices:
            self.open_round(device)
        late = None
        for _ in range(100):
            late = self.ask_at_once(devices)
            if late is not None:
                break
        self.assertIsNotNone(late, "no two requests ever met")
        self.open_round(late)
        self.end_well()

    def ask_at_once(self, devices):
        """The device that was put off, after the time that it was told; None: none was."""
        replies = {}

        def ask(device):
            replies[device] = device.ask("round", last_round=0)[0]

        threads = [threading.Thread(target=ask, args=(device,)) for device in devices]
        self.world.server.send_signal(signal.SIGSTOP)
        for thread in threads:
            thread.start()
        time.sleep(0.05)
        self.world.server.send_signal(signal.SIGCONT)
        for thread in threads:
            thread.join(20)
        for device, reply in replies.items():
            if reply.WhichOneof("body") == "wait":
                time.sleep(self.later(reply))
                return device
        return None

    def test_uploads_of_a_device(self):
        device = self.begin(top="client_uploads: 2, ")
        opened = self.open_round(device)
        others = [wire_device.payload_of(1, name, service.VALUES) for name in ("first", "third")]
        self.assertEqual(self.offer(device, self.statement(opened, device, others[0]))[0].upload.next_offset, 0)
        payload, _ = self.begin_upload(device)
        for _ in range(3):
            self.assertGreater(self.later(self.offer(device, self.statement(opened, device, others[1]))[0]), 1)
        self.counts["over_quota"] = 3
        self.assertEqual(self.chunk(device, payload, CHUNK)[0].upload.next_offset, 2 * CHUNK)  # what was begun goes on
        self.end_well()

    def test_unfinished_uploads_of_a_job(self):
        first = self.begin(top="uploads: 2, ")
        second, third = self.device("d01"), self.device("d02")
        payload, _ = self.begin_upload(first)
        self.begin_upload(second)
        opened, last = self.open_round(third), wire_device.payload_of(1, "d02", service.VALUES)
        said = self.statement(opened, third, last)
        pause = self.later(self.offer(third, said)[0], BUSY)
        for at in range(CHUNK, len(payload), CHUNK):
            reply = self.chunk(first, payload, at)[0]
        self.assertEqual(reply.WhichOneof("body"), "receipt")
        time.sleep(pause)
        self.assertEqual(self.offer(third, said)[0].upload.next_offset, 0)
        self.end_well()

    def take_all_places(self, top=""):
        """Three connections, which is all there are; returns their devices and one that comes too late."""
        taken = [self.begin(top="connections: 3, " + top), self.device("d01"), self.device("d01")]
        for device in taken:
            self.open_round(device)
        return taken, self.device("d02")

    def test_connections(self):
        """Who comes when all places are taken is told when to come again, and served on the same connection once there is one."""
        taken, guest = self.take_all_places()
        hello = lambda: guest.ask("hello", protocol=1, encodings=["f32"], frame_bytes_max=1 << 20)  # noqa: E731
        pauses = [self.later(hello()[0]) for _ in range(3)]
        self.assertTrue(all(1 <= pause <= 1.25 for pause in pauses), pauses)
        link = guest.link
        self.assertEqual(self.of_no_job(), {"over_quota": 3})
        self.assertIn("limits.connections is reached", self.world.tail(100))
        taken[0].link.close()
        time.sleep(pauses[-1])
        self.assertEqual(hello()[0].WhichOneof("body"), "welcome")
        self.assertIs(guest.link, link)
        self.open_round(guest)
        self.open_round(taken[1])  # nobody who was there lost his place
        taken[0].link = None
        self.later(taken[0].ask("round", last_round=0)[0])  # now he is the one too many
        for device in (guest, *taken):
            device.link.close()
        self.end_well()

    def test_a_silent_connection_too_many_is_cut(self):
        taken, guest = self.take_all_places("handshake_ms: 2000, ")
        self.later(guest.ask("round", last_round=0)[0])
        guest.link.socket.settimeout(20)
        began = time.monotonic()
        with self.assertRaises((OSError, wire_device.Lost)):
            guest.link._receive(1)  # pylint: disable=protected-access
        self.assertLess(time.monotonic() - began, 10)
        expected, until = {"over_quota": 1, "timeout": 1}, time.monotonic() + 5
        while self.of_no_job() != expected and time.monotonic() < until:  # it is cut first, and then counted
            time.sleep(0.05)
        self.assertEqual(self.of_no_job(), expected)
        for device in taken:  # as silent, but members
            self.open_round(device)
        for device in (guest, *taken):
            device.link.close()
        self.end_well()

    def test_more_who_wait_than_there_are_places(self):
        """As many again may wait to be let in; of more, those who have waited longest must come anew. The members stay."""
        taken, guest = self.take_all_places()
        guests = [guest, *[self.device(client) for client in ("d02", "d02", "d02", "d00", "d00", "d00")]]
        for device in guests:
            self.later(device.ask("round", last_round=0)[0])
        self.assertIn("busy", self.of_no_job())
        for device in taken:
            link = device.link
            self.open_round(device)
            self.assertIs(device.link, link)
        for device in (*guests, *taken):
            device.link.close()
        self.end_well()

    def test_the_spool(self):
        """A job that could need more than the spool may take is refused at the start, so no device ever has to be; one that
        needs all of it is served, also when a device begins with another payload first."""
        room = 3 * PAYLOAD
        self.configure({"spool_bytes: 64 MiB": f"spool_bytes: {room - 1}"})
        self.world.start()
        self.assertNotEqual(self.world.server.wait(20), 0)
        self.assertIn("limits.spool_bytes", self.world.tail())
        device = self.begin(changes={"spool_bytes: 64 MiB": f"spool_bytes: {room}"})
        self.begin_upload(device, wire_device.payload_of(1, "other", service.VALUES))
        for client in ("d01", "d02"):
            self.begin_upload(self.device(client))
        self.begin_upload(device)
        self.end_well()


class RealDevices(unittest.TestCase):
    def test_one_connection_too_many_waits_and_takes_part(self):
        """Two places for two devices, one of which a stranger holds until one device has been put off."""
        calm = fleet.Fleet(devices=2, rounds=1)
        self.addCleanup(calm.close)
        wanted = calm.run_all()
        job = fleet.Fleet(devices=2, rounds=1)
        self.addCleanup(job.close)
        with open(job.config, encoding="utf-8") as file:
            text = file.read()
        with open(job.config, "w", encoding="utf-8") as file:
            file.write(text.replace("limits: {", "limits: {connections: 2, "))
        job.start_server()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.load_verify_locations(os.path.join(job.pki, "ca.pem"))
        fleet.sheaf("pki", "issue", "--dir", job.pki, "--role", "device", "--name", "squatter", "--tenant", fleet.TENANT)
        own = os.path.join(job.pki, "device-squatter")
        context.load_cert_chain(own + ".pem", own + ".key")
        squatter = wire_device.Link(("127.0.0.1", job.port), context)
        squatter.ask(b"x")  # a member from here on
        for name in job.names:
            job.start_device(name)
        job.wait_for(lambda: "limits.connections is reached" in job.log(), 20)
        squatter.close()
        job.finish(60)
        self.assertEqual(job.released()[-1]["model"], wanted)


if __name__ == "__main__":
    unittest.main()
