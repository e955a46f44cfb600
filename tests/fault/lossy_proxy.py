"""A bad network between devices and sheafd for a carrier on TLS over TCP, where a chunk can only be lost with its connection.

The proxy cannot read what passes, but it sees the lengths of TLS records: one of more than `big` bytes carries a chunk of an
update (upwards) or a part of a model (downwards). Of those it cuts the connection in the middle of `drop` percent, so that
the chunk is lost; and after `twice` percent of those that go up it lets the chunk through but no answer, so that the device
must send it again: the aggregator gets it twice.
"""
import asyncio
import random
import struct
import threading

RECORD_HEADER, APPLICATION_DATA = 5, 23


class Cut(Exception):
    """The connection ends here."""


class Line:
    mute = False  # nothing goes down any more


class Lossy:
    def __init__(self, target, seed, drop=20, twice=5, big=1500):
        self.target, self.drop, self.twice, self.big = target, drop, twice, big
        self.rng = random.Random(seed)
        self.chunks = self.dropped = self.doubled = self.parts = self.parts_dropped = self.connections = 0
        self.calm = False  # lets everything through
        self.loop = asyncio.new_event_loop()
        self.port = None
        self.up = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        assert self.up.wait(10)

    def close(self):
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)

    def _run(self):
        asyncio.set_event_loop(self.loop)
        server = self.loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 20))
        self.port = server.sockets[0].getsockname()[1]
        self.up.set()
        self.loop.run_forever()
        server.close()
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.run_until_complete(asyncio.sleep(0.1))
        self.loop.close()

    async def _serve(self, reader, writer):
        self.connections += 1
        try:
            below_reader, below_writer = await asyncio.open_connection(*self.target, limit=1 << 20)
        except OSError:
            writer.transport.abort()
            return
        line = Line()
        up = asyncio.ensure_future(self._pump(reader, below_writer, True, line))
        down = asyncio.ensure_future(self._pump(below_reader, writer, False, line))
        try:
            _, pending = await asyncio.wait([up, down], return_when=asyncio.FIRST_COMPLETED)
            for task in pending:
                task.cancel()
        finally:
            for end in (writer, below_writer):
                end.transport.abort()

    async def _pump(self, reader, writer, upwards, line):
        """Whole records, until one end closes or a record is hit."""
        try:
            while True:
                header = await reader.readexactly(RECORD_HEADER)
                body = await reader.readexactly(struct.unpack(">H", header[3:])[0])
                if line.mute and not upwards:
                    continue
                if header[0] == APPLICATION_DATA and len(body) > self.big:
                    await self._judge(header + body, writer, upwards, line)
                else:
                    writer.write(header + body)
                    await writer.drain()
        except (OSError, asyncio.IncompleteReadError, Cut):
            pass

    async def _judge(self, record, writer, upwards, line):
        lost = not self.calm and self.rng.uniform(0, 100) < self.drop
        again = not self.calm and upwards and not lost and self.rng.uniform(0, 100) < self.twice * 100 / (100 - self.drop)
        if upwards:
            self.chunks, self.dropped, self.doubled = self.chunks + 1, self.dropped + lost, self.doubled + again
        else:
            self.parts, self.parts_dropped = self.parts + 1, self.parts_dropped + lost
        line.mute = again
        writer.write(record[:len(record) // 2] if lost else record)
        await writer.drain()
        if again:
            await asyncio.sleep(0.02)  # until the aggregator has taken it
        if lost or again:
            raise Cut
