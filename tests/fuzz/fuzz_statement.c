/* There is one encoding of a statement: whatever decodes encodes to the same bytes, and is of one kind only. */
#include <assert.h>

#include "proto/statement.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void same(sheaf_status status, const sheaf_buffer *out, sheaf_span bytes) {
    assert(status == SHEAF_OK && sheaf_span_equal(sheaf_buffer_span(out), bytes));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    sheaf_span bytes = sheaf_span_of(data, size);
    uint8_t memory[SHEAF_STATEMENT_BYTES_MAX];
    sheaf_buffer out = {memory, 0, sizeof memory};
    sheaf_update_statement update;
    sheaf_round_statement round;
    sheaf_receipt_statement receipt;
    int kinds = 0;
    if (sheaf_update_statement_decode(bytes, &update) == SHEAF_OK) {
        same(sheaf_update_statement_encode(&update, &out), &out, bytes);
        kinds++;
    }
    if (sheaf_round_statement_decode(bytes, &round) == SHEAF_OK) {
        same(sheaf_round_statement_encode(&round, &out), &out, bytes);
        kinds++;
    }
    if (sheaf_receipt_statement_decode(bytes, &receipt) == SHEAF_OK) {
        same(sheaf_receipt_statement_encode(&receipt, &out), &out, bytes);
        kinds++;
    }
    assert(kinds <= 1);
    return 0;
}
