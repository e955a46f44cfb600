/* sp.h - NNG's wire format for REQ and REP: a hello of 8 bytes each way, then lengths and messages.
 *
 *     hello    00 'S' 'P' 00, u16 protocol (REQ 0x30, REP 0x31), 00 00      big-endian, as all of this
 *     message  u64 bytes, then u32 request id with the top bit set, then the frame
 *
 * We speak it ourselves, instead of through NNG's REQ and REP sockets, for three things which those cannot do in NNG
 * 1.5.2: cut a peer that stalls in the TLS handshake (the connection is not visible to a socket's user before it ends,
 * and its own 10 s timer cancels a write that is not running), refuse a length before anything is allocated for it, and
 * give a request up without the known faults in cancelling a REQ (nng issues 1702, 1713) and closing (1543).
 *
 * Owner:   nobody; bytes only.
 * Threads: any.
 * Errors:  none.
 * Not:     moving anything: see tls_stream.h. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#define SHEAF_SP_HELLO_BYTES  8u
#define SHEAF_SP_LENGTH_BYTES 8u
#define SHEAF_SP_ID_BYTES     4u
#define SHEAF_SP_HEAD_BYTES   (SHEAF_SP_LENGTH_BYTES + SHEAF_SP_ID_BYTES)
#define SHEAF_SP_REQ          0x30u
#define SHEAF_SP_REP          0x31u

void sheaf_sp_write_hello(uint8_t out[SHEAF_SP_HELLO_BYTES], unsigned protocol);
/* 1 if it is a hello of that protocol. */
int sheaf_sp_hello_is(const uint8_t hello[SHEAF_SP_HELLO_BYTES], unsigned protocol);
void sheaf_sp_write_head(uint8_t out[SHEAF_SP_HEAD_BYTES], uint32_t id, size_t frame_bytes);
uint64_t sheaf_sp_read_length(const uint8_t length[SHEAF_SP_LENGTH_BYTES]);
uint32_t sheaf_sp_read_id(const uint8_t id[SHEAF_SP_ID_BYTES]);
