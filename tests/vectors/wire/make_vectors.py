"""Golden bytes of every frame, statement and plan, made without any code of ours.

    /usr/bin/python3 make_vectors.py [--check]

Headers come from Google's protobuf for Python, compiled from proto/sheaf.proto when this runs; frames, statements and
plans from `struct`, by the words of proto/WIRE.md. --check compares with the files here instead of writing them.
tests/unit/proto/test_golden.c builds the same contents in C.
"""
import argparse
import hashlib
import importlib
import pathlib
import struct
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
SCHEMA = HERE.parents[2] / "proto"


def load_schema():
    """The module that protoc makes of sheaf.proto."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["protoc", f"-I{SCHEMA}", f"--python_out={folder}", "sheaf.proto"], check=True)
        sys.path.insert(0, folder)
        try:
            return importlib.import_module("sheaf_pb2")
        finally:
            sys.path.remove(folder)


def pattern(first, count):
    """count bytes first, first + 1, ... (modulo 256)."""
    return bytes((first + i) % 256 for i in range(count))


def name(text):
    data = text.encode("ascii")
    return struct.pack("<H", len(data)) + data


def u32(value):
    return struct.pack("<I", value)


def u64(value):
    return struct.pack("<Q", value)


def update_statement(tenant, job, round_, attempt, nonce, base, plan, client, certificate, payload_type, size, digest, weight):
    return (name("sheaf update v1") + name(tenant) + name(job) + u64(round_) + u32(attempt) + nonce + base + plan +
            name(client) + certificate + name(payload_type) + u64(size) + digest + struct.pack("<q", weight))


def round_statement(tenant, job, round_, attempt, nonce, base, base_bytes, plan, certificate, opened_unix_ms):
    return (name("sheaf round v1") + name(tenant) + name(job) + u64(round_) + u32(attempt) + nonce + base +
            u64(base_bytes) + plan + certificate + u64(opened_unix_ms))


def receipt_statement(tenant, job, round_, attempt, client, update, payload, accepted_unix_ms):
    return (name("sheaf receipt v1") + name(tenant) + name(job) + u64(round_) + u32(attempt) + name(client) + update +
            payload + u64(accepted_unix_ms))


def plan_bytes(epochs, batch, learning_rate, momentum, seed, weight_cap, progress_s, encoding):
    return (name("sheaf plan v1") + u32(epochs) + u32(batch) + struct.pack("<ff", learning_rate, momentum) + u64(seed) +
            struct.pack("<q", weight_cap) + u32(progress_s) + name(encoding))


def signed():
    """The statements and the plan by their file names."""
    longest = "n" * 63
    return {
        "update": update_statement("acme", "digits", 7, 2, pattern(1, 32), pattern(2, 32), pattern(3, 32), "device-03",
                                   pattern(4, 32), "f32", 9720, pattern(5, 32), 61),
        "update_negative": update_statement("acme", "digits", 2**64 - 1, 2**32 - 1, pattern(9, 32), pattern(8, 32),
                                            pattern(7, 32), longest, pattern(6, 32), "f32", 2**63, pattern(5, 32), -2**63),
        "round": round_statement("acme", "digits", 7, 2, pattern(1, 32), pattern(2, 32), 10240, pattern(3, 32),
                                 pattern(6, 32), 1700000000123),
        "receipt": receipt_statement("acme", "digits", 7, 2, "device-03", pattern(7, 32), pattern(5, 32), 1700000001456),
        "plan": plan_bytes(4, 8, 0.05, 0.9, 0x0123456789ABCDEF, 2**40, 30, "f32"),
    }


def requests(pb, parts):
    """(file name, message, payload) of every request."""
    who = {"tenant": "acme", "job": "digits", "client": "device-03"}
    signature = pattern(48, 71)
    return [
        ("hello", pb.Request(**who, hello=pb.Hello(protocol=1, encodings=["f32", "mx8"], frame_bytes_max=264192)), b""),
        ("hello_empty", pb.Request(**who, hello=pb.Hello()), b""),
        ("round_query", pb.Request(**who, round=pb.RoundQuery(last_round=2**64 - 1)), b""),
        ("model_query", pb.Request(**who, model=pb.ModelQuery(digest=pattern(2, 32), offset=2**40 + 1, bytes_max=262144)), b""),
        ("model_query_held", pb.Request(**who, model=pb.ModelQuery(digest=pattern(2, 32), bytes_max=262144, held=pattern(3, 32),
                                                                   can_join=True)), b""),
        ("progress", pb.Request(**who, progress=pb.Progress(round=7, attempt=2, done_permille=1000)), b""),
        ("offer", pb.Request(**who, offer=pb.Offer(statement=parts["update"], signature=signature, training_loss=0.6875)), b""),
        ("chunk", pb.Request(**who, chunk=pb.Chunk(payload_digest=pattern(5, 32), offset=8192)), pattern(200, 300)),
        ("chunk_digested", pb.Request(**who, chunk=pb.Chunk(payload_digest=pattern(5, 32), chunk_digest=pattern(6, 32))),
         pattern(200, 3)),
    ]


def replies(pb, parts):
    signature = pattern(96, 64)
    return [
        ("welcome", pb.Reply(welcome=pb.Welcome(protocol=1, chunk_bytes=262144, encodings_ok=1)), b""),
        ("wait", pb.Reply(wait=pb.Wait(retry_ms=250, status=150)), b""),
        ("wait_zero", pb.Reply(wait=pb.Wait()), b""),
        ("round_open", pb.Reply(round=pb.RoundOpen(statement=parts["round"], signature=signature, plan=parts["plan"])), b""),
        ("model_part", pb.Reply(model=pb.ModelPart(offset=4096, total_bytes=10240)), pattern(17, 513)),
        ("model_part_same", pb.Reply(model=pb.ModelPart(offset=4096, total_bytes=10240, same_bytes=6144)), b""),
        ("model_cast", pb.Reply(cast=pb.ModelCast(group=pattern(7, 16), key=pattern(8, 16), total_bytes=10240)), b""),
        ("upload_held", pb.Reply(upload=pb.Upload(next_offset=8192, held=5)), b""),
        ("upload", pb.Reply(upload=pb.Upload(next_offset=8192)), b""),
        ("receipt", pb.Reply(receipt=pb.Receipt(statement=parts["receipt"], signature=signature)), b""),
        ("refusal", pb.Reply(refusal=pb.Refusal(status=113, reason="bad_signature", detail="not over these bytes")), b""),
        ("refusal_conflict", pb.Reply(refusal=pb.Refusal(status=126, reason="conflict", detail="another one counts",
                                                         receipt=pb.Receipt(statement=b"what counts", signature=b"signed"))), b""),
        ("job_end", pb.Reply(end=pb.JobEnd(status=0, rounds=30, model_digest=pattern(2, 32))), b""),
    ]


def frame(message, payload):
    header = message.SerializeToString(deterministic=True)
    return b"Shf\x01" + u32(len(header)) + header + payload


def vectors():
    """Every file name and its bytes."""
    pb = load_schema()
    parts = signed()
    out = {f"statement_{key}.bin": value for key, value in parts.items() if key != "plan"}
    out["plan.bin"] = parts["plan"]
    out |= {f"request_{key}.bin": frame(message, payload) for key, message, payload in requests(pb, parts)}
    out |= {f"reply_{key}.bin": frame(message, payload) for key, message, payload in replies(pb, parts)}
    return out


def main():
    parser = argparse.ArgumentParser(description="golden bytes of the wire")
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    check = parser.parse_args().check
    different = 0
    for file_name, data in vectors().items():
        path = HERE / file_name
        if not check:
            path.write_bytes(data)
        elif not path.is_file() or path.read_bytes() != data:
            print(f"{file_name}: differs")
            different += 1
        print(f"{hashlib.sha256(data).hexdigest()[:16]}  {len(data):5d}  {file_name}")
    return 1 if different else 0


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    sys.exit(main())
