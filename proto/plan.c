#include "proto/plan.h"

#include "common/cursor.h"

static const char domain[] = "sheaf plan v1";

static uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

sheaf_status sheaf_plan_validate(const sheaf_plan *plan) {
    /* Written so that a NaN fails every comparison it meets. */
    int ok = plan->epochs >= 1 && plan->epochs <= 10000 && plan->batch >= 1 && plan->batch <= 1000000 &&
             plan->learning_rate > 0.0f && plan->learning_rate <= 1e6f && plan->momentum >= 0.0f &&
             plan->momentum < 1.0f && plan->weight_cap >= 1 && plan->progress_s >= 1 && plan->encoding[0] != '\0';
    return ok ? SHEAF_OK : SHEAF_E_MALFORMED;
}

sheaf_status sheaf_plan_encode(const sheaf_plan *plan, sheaf_buffer *out) {
    sheaf_writer writer = sheaf_writer_of(out->data, out->capacity);
    sheaf_write_name(&writer, domain);
    sheaf_write_u32(&writer, plan->epochs);
    sheaf_write_u32(&writer, plan->batch);
    sheaf_write_u32(&writer, bits_of(plan->learning_rate));
    sheaf_write_u32(&writer, bits_of(plan->momentum));
    sheaf_write_u64(&writer, plan->seed);
    sheaf_write_u64(&writer, (uint64_t)plan->weight_cap);
    sheaf_write_u32(&writer, plan->progress_s);
    sheaf_write_name(&writer, plan->encoding);
    out->size = writer.failed ? 0 : writer.position;
    return writer.failed ? SHEAF_E_TOO_LARGE : SHEAF_OK;
}

sheaf_status sheaf_plan_decode(sheaf_span bytes, sheaf_plan *out) {
    sheaf_reader reader = sheaf_reader_of(bytes);
    char found[SHEAF_NAME_BYTES];
    memset(out, 0, sizeof *out);
    sheaf_read_name(&reader, found, sizeof found);
    if (reader.failed) return SHEAF_E_TRUNCATED;
    if (strcmp(found, domain) != 0) return SHEAF_E_VERSION;
    out->epochs = sheaf_read_u32(&reader);
    out->batch = sheaf_read_u32(&reader);
    out->learning_rate = float_of(sheaf_read_u32(&reader));
    out->momentum = float_of(sheaf_read_u32(&reader));
    out->seed = sheaf_read_u64(&reader);
    out->weight_cap = (int64_t)sheaf_read_u64(&reader);
    out->progress_s = sheaf_read_u32(&reader);
    sheaf_read_name(&reader, out->encoding, sizeof out->encoding);
    if (reader.failed) return SHEAF_E_TRUNCATED;
    if (sheaf_reader_left(&reader) != 0) return SHEAF_E_MALFORMED;
    return sheaf_plan_validate(out);
}

sheaf_status sheaf_plan_training_seed(const sheaf_plan *plan, const char *tenant, const char *job, uint64_t round,
                                      const char *client, sheaf_buffer *out) {
    sheaf_writer writer = sheaf_writer_of(out->data, out->capacity);
    sheaf_write_name(&writer, "sheaf training seed v1");
    sheaf_write_u64(&writer, plan->seed);
    sheaf_write_name(&writer, tenant);
    sheaf_write_name(&writer, job);
    sheaf_write_u64(&writer, round);
    sheaf_write_name(&writer, client);
    out->size = writer.failed ? 0 : writer.position;
    return writer.failed ? SHEAF_E_TOO_LARGE : SHEAF_OK;
}
