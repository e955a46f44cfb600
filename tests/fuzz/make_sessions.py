"""Writes the sessions of fuzz_request's corpus, without any code of ours but the schema.

    /usr/bin/python3 tests/fuzz/make_sessions.py

A session is a row of records: two bytes (little-endian: 14 bits of size, 2 of what happens before: 1 all that is quiet
expires, 2 the service is restarted, 3 the round is closed), then a request frame.
"""
import hashlib
import pathlib
import struct
import sys

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "vectors" / "wire"))
from make_vectors import frame, load_schema, pattern, update_statement  # noqa: E402

EXPIRE, RESTART, CLOSE = 1, 2, 3
CHUNK = 40
PB = load_schema()


def record(message, payload=b"", before=0):
    data = frame(message, payload)
    return struct.pack("<H", len(data) | before << 14) + data


def offer(client, payload, before=0, size=None, round_=7, digest=None):
    said = update_statement("acme", "digits", round_, 2, pattern(1, 32), pattern(2, 32), pattern(3, 32), client, pattern(4, 32),
                            "f32", len(payload) if size is None else size, digest or hashlib.sha256(payload).digest(), 5)
    body = PB.Offer(statement=said, signature=pattern(48, 71), training_loss=0.5)
    return record(PB.Request(tenant="acme", job="digits", client=client, offer=body), b"", before)


def chunk(client, payload, offset, part=None, digest=b"", before=0):
    part = payload[offset:offset + CHUNK] if part is None else part
    body = PB.Chunk(payload_digest=hashlib.sha256(payload).digest(), offset=offset, chunk_digest=digest)
    return record(PB.Request(tenant="acme", job="digits", client=client, chunk=body), part, before)


def sessions():
    one, two, three = pattern(3, 100), pattern(7, 130), pattern(11, 90)
    flat = bytes(8192)
    digest = hashlib.sha256(one[:CHUNK]).digest()
    return {
        "in_order": offer("a", one) + b"".join(chunk("a", one, at) for at in (0, 40, 80)) + offer("a", one),
        "out_of_order": offer("a", one) + b"".join(chunk("a", one, at) for at in (0, 80, 0, 40)),
        "last_first": offer("a", one) + b"".join(chunk("a", one, at) for at in (80, 40, 0, 40, 80)),
        "digested": offer("a", one) + chunk("a", one, 0, digest=digest) + chunk("a", one, 40, digest=digest) + chunk("a", one, 80),
        "restarted": offer("a", one) + chunk("a", one, 0) + chunk("a", one, 80) + offer("a", one, RESTART) +
                     chunk("a", one, 40) + chunk("a", one, 80),
        "restarted_damaged": offer("a", one) + chunk("a", one, 0, bytes(CHUNK)) + offer("a", one, RESTART) +
                             b"".join(chunk("a", one, at) for at in (40, 80, 0, 40, 80)),
        "restarted_whole": offer("a", one) + chunk("a", one, 0) + chunk("a", one, 40) + offer("a", one, RESTART) +
                           chunk("a", one, 80),
        "wrong_payload": offer("a", one) + chunk("a", one, 0, bytes(CHUNK)) + chunk("a", one, 40) + chunk("a", one, 80),
        "replaced": offer("a", one) + chunk("a", one, 0) + offer("a", two) + chunk("a", one, 40) +
                    b"".join(chunk("a", two, at) for at in (0, 40, 80, 120)),
        "offered_again": offer("a", one) + chunk("a", one, 0) + chunk("a", one, 80) + offer("a", one) +
                         chunk("a", one, 40, one[40:60]) + chunk("a", one, 60, one[60:80]) + chunk("a", one, 80, one[80:]),
        "many": offer("a", one) + offer("b", two) + offer("c", three) + offer("d", one) + chunk("b", two, 0) +
                chunk("c", three, 0) + chunk("a", two, 0),
        "no_room": offer("a", flat) + offer("b", flat + b"x", size=8192) + offer("c", flat) +
                   chunk("a", flat, 0, flat[:4096]) + chunk("a", flat, 4096, flat[4096:]) + offer("c", flat),
        "expired": offer("a", one) + chunk("a", one, 0) + chunk("a", one, 40, before=EXPIRE) + offer("a", one),
        "closed": offer("a", one) + chunk("a", one, 0) + chunk("a", one, 40, before=CLOSE) + offer("a", one, CLOSE),
        "bad_places": offer("a", one) + chunk("a", one, 0) + chunk("a", one, 70) + chunk("a", one, 101, b"x") +
                      chunk("a", one, 2**64 - 1, b"xy") + chunk("a", one, 40, one[40:]) + chunk("a", one, 100, b"") +
                      chunk("a", one, 40, digest=digest[:31]),
        "bad_offers": offer("a", one, round_=8) + offer("a", one, size=0) + offer("a", one, size=2**63) + offer("../a", one) +
                      offer("", one) + chunk("a", one, 0),
        "window": offer("a", flat) + b"".join(chunk("a", flat, 40 * at) for at in (0, 3, 66, 65, 64, 200, 1, 2)),
    }


def main():
    folder = HERE / "corpus" / "request"
    folder.mkdir(exist_ok=True)
    for name, data in sessions().items():
        (folder / name).write_bytes(data)
        print(f"{len(data):5d}  {name}")


if __name__ == "__main__":
    main()
