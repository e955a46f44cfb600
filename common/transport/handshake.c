#include "common/transport/handshake.h"

#include <openssl/x509.h>

#include "common/digest.h"

static const uint8_t magic[3] = {'S', 'h', 'm'};

void sheaf_envelope_write_head(sheaf_writer *writer, sheaf_envelope_kind kind,
                               const uint8_t id[SHEAF_SESSION_ID_BYTES]) {
    sheaf_write_bytes(writer, magic, sizeof magic);
    sheaf_write_u8(writer, SHEAF_ENVELOPE_VERSION);
    sheaf_write_u8(writer, (uint8_t)kind);
    sheaf_write_bytes(writer, id, SHEAF_SESSION_ID_BYTES);
}

/* --- transcripts -------------------------------------------------------------------------------------------------- */

/* SHA-256 over a domain and the parts, each after its length, so that no two lists of parts read alike. */
static sheaf_status digest_parts(const char *domain, const sheaf_span *parts, size_t count,
                                 uint8_t out[SHEAF_DIGEST_BYTES]) {
    sheaf_digest digest;
    uint8_t length[4];
    sheaf_status status = sheaf_digest_begin(&digest);
    if (status != SHEAF_OK) return status;
    status = sheaf_digest_update(&digest, sheaf_span_of(domain, strlen(domain) + 1));
    for (size_t i = 0; status == SHEAF_OK && i < count; i++) {
        sheaf_store_u32(length, (uint32_t)parts[i].size);
        status = sheaf_digest_update(&digest, sheaf_span_of(length, sizeof length));
        if (status == SHEAF_OK) status = sheaf_digest_update(&digest, parts[i]);
    }
    if (status == SHEAF_OK) return sheaf_digest_finish(&digest, out);
    sheaf_digest_drop(&digest);
    return status;
}

sheaf_status sheaf_handshake_first(const char *device, sheaf_span open, sheaf_span challenge,
                                   uint8_t out[SHEAF_DIGEST_BYTES]) {
    const sheaf_span parts[] = {sheaf_span_of(device, strlen(device)), open, challenge};
    return digest_parts("sheaf envelope transcript 1 v1", parts, 3, out);
}

sheaf_status sheaf_handshake_second(const uint8_t first[SHEAF_DIGEST_BYTES], sheaf_span session,
                                    uint8_t out[SHEAF_DIGEST_BYTES]) {
    const sheaf_span parts[] = {sheaf_span_of(first, SHEAF_DIGEST_BYTES), session};
    return digest_parts("sheaf envelope transcript 2 v1", parts, 2, out);
}

/* A domain as a name, then digests of 32 bytes. */
static sheaf_span text_of(const char *domain, const uint8_t *one, const uint8_t *other,
                          uint8_t out[SHEAF_HANDSHAKE_SIGNED_BYTES]) {
    sheaf_writer writer = sheaf_writer_of(out, SHEAF_HANDSHAKE_SIGNED_BYTES);
    sheaf_write_name(&writer, domain);
    sheaf_write_bytes(&writer, one, SHEAF_DIGEST_BYTES);
    if (other != NULL) sheaf_write_bytes(&writer, other, SHEAF_DIGEST_BYTES);
    return sheaf_writer_span(&writer);
}

sheaf_span sheaf_handshake_aggregator_text(const uint8_t first[SHEAF_DIGEST_BYTES],
                                           uint8_t out[SHEAF_HANDSHAKE_SIGNED_BYTES]) {
    return text_of("sheaf envelope challenge v1", first, NULL, out);
}

sheaf_span sheaf_handshake_device_text(const uint8_t second[SHEAF_DIGEST_BYTES],
                                       const uint8_t certificate[SHEAF_DIGEST_BYTES],
                                       uint8_t out[SHEAF_HANDSHAKE_SIGNED_BYTES]) {
    return text_of("sheaf envelope session v1", second, certificate, out);
}

sheaf_span sheaf_handshake_info(const uint8_t first[SHEAF_DIGEST_BYTES], uint8_t out[SHEAF_HANDSHAKE_SIGNED_BYTES]) {
    return text_of("sheaf envelope info v1", first, NULL, out);
}

sheaf_status sheaf_handshake_down(const sheaf_hpke *hpke, const uint8_t second[SHEAF_DIGEST_BYTES], int opens,
                                  sheaf_aead *out) {
    uint8_t text[SHEAF_HANDSHAKE_SIGNED_BYTES], secret[SHEAF_SEAL_KEY_BYTES + SHEAF_SEAL_NONCE_BYTES];
    sheaf_span context = text_of("sheaf envelope down v1", second, NULL, text);
    sheaf_status status = sheaf_hpke_export(hpke, context, secret, sizeof secret);
    if (status == SHEAF_OK) status = sheaf_aead_begin(out, opens, secret, secret + SHEAF_SEAL_KEY_BYTES);
    sheaf_wipe(secret, sizeof secret);
    return status;
}

/* --- certificates and signatures ---------------------------------------------------------------------------------- */

static void write_certificate(sheaf_writer *writer, sheaf_span der) {
    if (der.size > SHEAF_ENVELOPE_CHAIN_BYTES_MAX) {
        writer->failed = 1;
        return;
    }
    sheaf_write_u16(writer, (uint16_t)der.size);
    sheaf_write_bytes(writer, der.data, der.size);
}

static void write_intermediate(sheaf_writer *writer, X509 *certificate) {
    unsigned char *der = NULL;
    int size = i2d_X509(certificate, &der);
    if (size > 0)
        write_certificate(writer, sheaf_span_of(der, (size_t)size));
    else
        writer->failed = 1;
    OPENSSL_free(der);
}

sheaf_status sheaf_handshake_write_chain(sheaf_writer *writer, const sheaf_certificate *certificate) {
    const STACK_OF(X509) *others = sheaf_certificate_intermediates(certificate);
    int count = others == NULL ? 0 : sk_X509_num(others);
    if (count + 1 > (int)SHEAF_CHAIN_MAX) return SHEAF_E_TOO_LARGE;
    size_t start = writer->position;
    sheaf_write_u8(writer, (uint8_t)(count + 1));
    write_certificate(writer, sheaf_certificate_der(certificate));
    for (int i = 0; i < count; i++) write_intermediate(writer, sk_X509_value(others, i));
    size_t lengths = 1 + 2 * (size_t)(count + 1);
    if (writer->failed || writer->position - start - lengths > SHEAF_ENVELOPE_CHAIN_BYTES_MAX) return SHEAF_E_TOO_LARGE;
    return SHEAF_OK;
}

sheaf_status sheaf_handshake_read_chain(sheaf_reader *reader, sheaf_certificate **out, sheaf_problem *problem) {
    sheaf_span ders[SHEAF_CHAIN_MAX];
    size_t count = sheaf_read_u8(reader), bytes = 0;
    if (!reader->failed && (count == 0 || count > SHEAF_CHAIN_MAX)) return SHEAF_E_MALFORMED;
    for (size_t i = 0; i < count && !reader->failed; i++) {
        ders[i] = sheaf_read_bytes(reader, sheaf_read_u16(reader));
        bytes += ders[i].size;
    }
    if (reader->failed) return SHEAF_E_TRUNCATED;
    if (bytes > SHEAF_ENVELOPE_CHAIN_BYTES_MAX) return SHEAF_E_TOO_LARGE;
    return sheaf_certificate_read_chain(ders, count, out, problem);
}

sheaf_status sheaf_handshake_write_signature(sheaf_writer *writer, sheaf_signer *signer, sheaf_span text) {
    uint8_t bytes[SHEAF_SIGNATURE_BYTES_MAX];
    sheaf_buffer signature = {bytes, 0, sizeof bytes};
    sheaf_status status = sheaf_signer_sign(signer, text, &signature);
    if (status != SHEAF_OK) return status;
    sheaf_write_u16(writer, (uint16_t)signature.size);
    sheaf_write_bytes(writer, signature.data, signature.size);
    return writer->failed ? SHEAF_E_TOO_LARGE : SHEAF_OK;
}

sheaf_status sheaf_handshake_read_signature(sheaf_reader *reader, sheaf_span *out) {
    size_t size = sheaf_read_u16(reader);
    *out = sheaf_read_bytes(reader, size);
    if (reader->failed) return SHEAF_E_TRUNCATED;
    return size > 0 && size <= SHEAF_SIGNATURE_BYTES_MAX && sheaf_reader_left(reader) == 0 ? SHEAF_OK
                                                                                           : SHEAF_E_MALFORMED;
}

/* --- heads -------------------------------------------------------------------------------------------------------- */

sheaf_status sheaf_envelope_read_head(sheaf_span message, sheaf_envelope_head *out) {
    sheaf_reader reader = sheaf_reader_of(message);
    sheaf_span mark = sheaf_read_bytes(&reader, sizeof magic);
    uint8_t version = sheaf_read_u8(&reader), kind = sheaf_read_u8(&reader);
    sheaf_read_copy(&reader, out->id, sizeof out->id);
    if (reader.failed) return SHEAF_E_TRUNCATED;
    if (!sheaf_span_equal(mark, sheaf_span_of(magic, sizeof magic))) return SHEAF_E_MALFORMED;
    if (version != SHEAF_ENVELOPE_VERSION) return SHEAF_E_VERSION;
    if (kind < SHEAF_ENVELOPE_OPEN || kind > SHEAF_ENVELOPE_CAST) return SHEAF_E_MALFORMED;
    out->kind = (sheaf_envelope_kind)kind;
    return SHEAF_OK;
}

sheaf_status sheaf_envelope_expect(sheaf_reader *reader, sheaf_envelope_kind kind, const uint8_t *id) {
    sheaf_envelope_head head;
    sheaf_status status = sheaf_envelope_read_head(sheaf_read_bytes(reader, SHEAF_ENVELOPE_HEAD_BYTES), &head);
    if (status != SHEAF_OK) return status;
    if (head.kind != kind) return SHEAF_E_MALFORMED;
    return id == NULL || memcmp(head.id, id, sizeof head.id) == 0 ? SHEAF_OK : SHEAF_E_REPLAY;
}
