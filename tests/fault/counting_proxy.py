"""A TCP proxy that counts what it is sent from either side, and can hold everything still at a given byte, so that somebody
can be killed in the middle of a transfer, wherever the clock is."""
import asyncio
import threading

BLOCK = 16384
UP, DOWN = 0, 1


class Counting:
    def __init__(self, target):
        """`target`: (host, port), connected to anew for each connection."""
        self.target, self.counts = target, [0, 0]
        self.ends, self.pumps = set(), set()  # of the connections that stand
        self.marks = [None, None]
        self.held = threading.Event()
        self.up, self.loop, self.port = threading.Event(), asyncio.new_event_loop(), None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        assert self.up.wait(10)

    def hold_at(self, direction, count):
        """Once so many bytes in all have come in this direction, nothing moves until release() or cut(); `held` is set
        then."""
        self.held.clear()
        self.marks[direction] = count

    def release(self):
        self.marks = [None, None]
        self.loop.call_soon_threadsafe(self.gate.set)

    def cut(self):
        """Instead of release(), when an end of all connections is dead: what was held is lost with them."""
        asyncio.run_coroutine_threadsafe(self._cut(), self.loop).result(10)
        self.release()

    async def _cut(self):
        for end in self.ends:
            end.transport.abort()
        for pump in self.pumps:
            pump.cancel()

    def close(self):
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)

    def _run(self):
        asyncio.set_event_loop(self.loop)
        self.gate = asyncio.Event()
        self.gate.set()
        server = self.loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0, limit=2 * BLOCK))
        self.port = server.sockets[0].getsockname()[1]
        self.up.set()
        self.loop.run_forever()
        server.close()
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.run_until_complete(asyncio.sleep(0.1))
        self.loop.close()

    async def _serve(self, reader, writer):
        try:
            below_reader, below_writer = await asyncio.open_connection(*self.target, limit=2 * BLOCK)
        except OSError:
            writer.transport.abort()
            return
        pumps = [asyncio.ensure_future(self._pump(reader, below_writer, UP)),
                 asyncio.ensure_future(self._pump(below_reader, writer, DOWN))]
        ends = [writer, below_writer]
        self.ends.update(ends)
        self.pumps.update(pumps)
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            for end in ends:
                end.transport.abort()
            self.ends.difference_update(ends)
            self.pumps.difference_update(pumps)

    async def _pump(self, reader, writer, direction):
        try:
            while True:
                await self.gate.wait()
                block = await reader.read(BLOCK)
                if not block:
                    return
                self.counts[direction] += len(block)
                if self.marks[direction] is not None and self.counts[direction] >= self.marks[direction]:
                    self.gate.clear()
                    self.held.set()
                await self.gate.wait()
                writer.write(block)
                await writer.drain()
        except OSError:
            pass
