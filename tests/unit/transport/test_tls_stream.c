/* Both ends of a TLS stream in one process, over NNG's plain TCP streams. */
#include "tests/cmocka.h"

#include <nng/nng.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/transport/tls_stream.h"
#include "tests/kit/carrier_kit.h"

#define BIG_BYTES 1000000u

typedef struct {
    sheaf_tls_stream stream;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    unsigned received, sent; /* steps that have ended */
    int receive_error, send_error;
} end;

static pki_kit *kit;
static sheaf_tls_context *contexts[2]; /* by sheaf_tls_side */
static nng_stream_listener *listener;
static char url[64];
static end ends[2];
static uint8_t *given, *taken;

static sheaf_tls_context *open_context(const pki_kit_files *files, sheaf_tls_side side) {
    const sheaf_tls_options options = {
        .certificate_path = files->certificate, .key_path = files->key, .ca_path = files->ca};
    sheaf_tls_context *context = NULL;
    const char *host = side == SHEAF_TLS_LINK ? "127.0.0.1" : NULL;
    assert_int_equal(sheaf_tls_context_open(&options, side, host, &context, NULL), SHEAF_OK);
    return context;
}

static int make_kit(void **state) {
    (void)state;
    int port = 0;
    kit = pki_kit_make();
    contexts[SHEAF_TLS_SERVER] = open_context(pki_kit_issue(kit, "aggregator", "main", NULL), SHEAF_TLS_SERVER);
    contexts[SHEAF_TLS_LINK] = open_context(pki_kit_issue(kit, "device", "device-01", NULL), SHEAF_TLS_LINK);
    assert_int_equal(nng_stream_listener_alloc(&listener, "tcp://127.0.0.1:0"), 0);
    assert_int_equal(nng_stream_listener_listen(listener), 0);
    assert_int_equal(nng_stream_listener_get_int(listener, NNG_OPT_TCP_BOUND_PORT, &port), 0);
    (void)snprintf(url, sizeof url, "tcp://127.0.0.1:%d", port);
    given = malloc(BIG_BYTES);
    taken = malloc(BIG_BYTES);
    for (size_t i = 0; i < BIG_BYTES; i++) given[i] = (uint8_t)(i * 2654435761u >> 11);
    return 0;
}

static int free_kit(void **state) {
    (void)state;
    nng_stream_listener_close(listener);
    nng_stream_listener_free(listener);
    sheaf_tls_context_unref(contexts[0]);
    sheaf_tls_context_unref(contexts[1]);
    pki_kit_free(kit);
    free(given);
    free(taken);
    return 0;
}

static void note(end *one, unsigned *count, int *kept, int error) {
    pthread_mutex_lock(&one->lock);
    ++*count;
    *kept = error;
    pthread_cond_broadcast(&one->changed);
    pthread_mutex_unlock(&one->lock);
}

static void on_received(void *context, int error) {
    end *one = context;
    note(one, &one->received, &one->receive_error, error);
}

static void on_sent(void *context, int error) {
    end *one = context;
    note(one, &one->sent, &one->send_error, error);
}

static int wait_for(end *one, const unsigned *count, unsigned wanted, const int *error) {
    struct timespec until;
    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 20;
    pthread_mutex_lock(&one->lock);
    int late = 0;
    while (*count < wanted && !late) late = pthread_cond_timedwait(&one->changed, &one->lock, &until);
    int result = *error;
    pthread_mutex_unlock(&one->lock);
    assert_int_equal(late, 0);
    return result;
}

static int wait_received(end *one, unsigned wanted) {
    return wait_for(one, &one->received, wanted, &one->receive_error);
}
static int wait_sent(end *one, unsigned wanted) { return wait_for(one, &one->sent, wanted, &one->send_error); }

/* A connection, and a stream of ours at each end of it. */
static void connect_ends(void) {
    nng_stream_dialer *dialer = NULL;
    nng_aio *dialing = NULL, *accepting = NULL;
    assert_int_equal(nng_aio_alloc(&dialing, NULL, NULL), 0);
    assert_int_equal(nng_aio_alloc(&accepting, NULL, NULL), 0);
    assert_int_equal(nng_stream_dialer_alloc(&dialer, url), 0);
    nng_stream_listener_accept(listener, accepting);
    nng_stream_dialer_dial(dialer, dialing);
    nng_aio_wait(dialing);
    nng_aio_wait(accepting);
    assert_int_equal(nng_aio_result(dialing), 0);
    assert_int_equal(nng_aio_result(accepting), 0);
    sheaf_tls_stream_attach(&ends[0].stream, nng_aio_get_output(accepting, 0), contexts[SHEAF_TLS_SERVER]);
    sheaf_tls_stream_attach(&ends[1].stream, nng_aio_get_output(dialing, 0), contexts[SHEAF_TLS_LINK]);
    nng_stream_dialer_free(dialer);
    nng_aio_free(dialing);
    nng_aio_free(accepting);
}

static int open_ends(void **state) {
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        memset(&ends[i], 0, sizeof ends[i]);
        pthread_mutex_init(&ends[i].lock, NULL);
        pthread_cond_init(&ends[i].changed, NULL);
        assert_int_equal(sheaf_tls_stream_init(&ends[i].stream, on_received, on_sent, &ends[i]), 0);
    }
    connect_ends();
    return 0;
}

static int close_ends(void **state) {
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        sheaf_tls_stream_fini(&ends[i].stream);
        pthread_cond_destroy(&ends[i].changed);
        pthread_mutex_destroy(&ends[i].lock);
    }
    return 0;
}

/* One step out of `from`, taken in two parts by the other end. */
static void pass(end *from, end *to, size_t size, size_t first) {
    unsigned sent = from->sent, received = to->received;
    memset(taken, 0, size);
    assert_int_equal(sheaf_tls_stream_receive(&to->stream, taken, first, taken + first, size - first), 0);
    assert_int_equal(sheaf_tls_stream_send(&from->stream, sheaf_span_of(given, size)), 0);
    assert_int_equal(wait_sent(from, sent + 1), 0);
    assert_int_equal(wait_received(to, received + 1), 0);
    assert_int_equal(sheaf_tls_stream_received(&to->stream), size);
    assert_memory_equal(taken, given, size);
}

static void bytes_pass_both_ways_whatever_the_pieces(void **state) {
    (void)state;
    static const size_t sizes[] = {1,     2,     200,   234,    235,    256,    257,    16361,
                                   16362, 16363, 65536, 262144, 262160, 278528, 278529, BIG_BYTES};
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        pass(&ends[0], &ends[1], sizes[i], 1);
        pass(&ends[1], &ends[0], sizes[i], sizes[i] / 3);
    }
}

/* What one step leaves behind is there for the next, whether it is still sealed or not. */
static void many_small_steps_read_what_one_large_one_wrote(void **state) {
    (void)state;
    size_t at = 0;
    unsigned steps = 0;
    assert_int_equal(sheaf_tls_stream_send(&ends[1].stream, sheaf_span_of(given, 300000)), 0);
    for (size_t size = 1; at < 300000; size = size * 2 % 8191) {
        size_t most = 300000 - at < size ? 300000 - at : size;
        assert_int_equal(sheaf_tls_stream_receive_some(&ends[0].stream, taken + at, most < 8 ? most : 8, most), 0);
        assert_int_equal(wait_received(&ends[0], ++steps), 0);
        at += sheaf_tls_stream_received(&ends[0].stream);
    }
    assert_int_equal(wait_sent(&ends[1], 1), 0);
    assert_memory_equal(taken, given, 300000);
}

static void both_directions_move_at_once(void **state) {
    (void)state;
    uint8_t *other = malloc(BIG_BYTES);
    assert_int_equal(sheaf_tls_stream_receive(&ends[0].stream, taken, BIG_BYTES, NULL, 0), 0);
    assert_int_equal(sheaf_tls_stream_receive(&ends[1].stream, other, BIG_BYTES, NULL, 0), 0);
    assert_int_equal(sheaf_tls_stream_send(&ends[0].stream, sheaf_span_of(given, BIG_BYTES)), 0);
    assert_int_equal(sheaf_tls_stream_send(&ends[1].stream, sheaf_span_of(given, BIG_BYTES)), 0);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(wait_received(&ends[i], 1), 0);
        assert_int_equal(wait_sent(&ends[i], 1), 0);
    }
    assert_memory_equal(taken, given, BIG_BYTES);
    assert_memory_equal(other, given, BIG_BYTES);
    free(other);
}

static int is_small(const sheaf_tls_buffer *buffer) { return buffer->bytes == buffer->small; }

static void who_waits_for_a_message_holds_only_small_buffers(void **state) {
    (void)state;
    uint8_t head[11];
    pass(&ends[1], &ends[0], BIG_BYTES, 12);
    pass(&ends[0], &ends[1], BIG_BYTES, 12);
    assert_int_equal(sheaf_tls_stream_receive_some(&ends[0].stream, head, 8, 11), 0);
    for (unsigned i = 0; i < 2; i++) {
        pthread_mutex_lock(&ends[i].stream.lock);
        int small = is_small(&ends[i].stream.in.buffer) && is_small(&ends[i].stream.out.buffer);
        pthread_mutex_unlock(&ends[i].stream.lock);
        assert_int_equal(small, 1);
    }
}

static void closing_ends_each_step_once_and_lets_none_begin(void **state) {
    (void)state;
    assert_int_equal(sheaf_tls_stream_receive(&ends[0].stream, taken, 8, NULL, 0), 0);
    assert_int_equal(sheaf_tls_stream_send(&ends[0].stream, sheaf_span_of(given, BIG_BYTES)), 0); /* nobody reads */
    sheaf_tls_stream_close(&ends[0].stream);
    assert_int_not_equal(wait_received(&ends[0], 1), 0);
    assert_int_not_equal(wait_sent(&ends[0], 1), 0);
    assert_int_equal(sheaf_tls_stream_send(&ends[0].stream, sheaf_span_of(given, 1)), NNG_ECLOSED);
    assert_int_equal(sheaf_tls_stream_receive(&ends[0].stream, taken, 1, NULL, 0), NNG_ECLOSED);
    assert_int_equal(sheaf_tls_stream_receive(&ends[1].stream, taken, 8, NULL, 0), 0);
    assert_int_not_equal(wait_received(&ends[1], 1), 0);
    assert_int_equal(ends[0].received, 1);
    assert_int_equal(ends[0].sent, 1);
}

/* What was sent before the end arrives, then the end. */
static void the_last_bytes_come_before_the_end(void **state) {
    (void)state;
    pass(&ends[1], &ends[0], 1, 1);
    assert_int_equal(sheaf_tls_stream_send(&ends[0].stream, sheaf_span_of(given, 100)), 0);
    assert_int_equal(wait_sent(&ends[0], 1), 0);
    sheaf_tls_stream_close(&ends[0].stream);
    assert_int_equal(sheaf_tls_stream_receive(&ends[1].stream, taken, 60, NULL, 0), 0);
    assert_int_equal(wait_received(&ends[1], 1), 0);
    assert_int_equal(sheaf_tls_stream_receive(&ends[1].stream, taken + 60, 41, NULL, 0), 0);
    assert_int_not_equal(wait_received(&ends[1], 2), 0);
    assert_int_equal(sheaf_tls_stream_received(&ends[1].stream), 40);
    assert_memory_equal(taken, given, 100);
}

/* The farewell of the old connection is still under way as a rule when the next one is attached. */
static void the_next_connection_may_come_at_once(void **state) {
    (void)state;
    for (unsigned i = 0; i < 100; i++) {
        pass(&ends[1], &ends[0], 100 + i, 7);
        sheaf_tls_stream_detach(&ends[0].stream);
        sheaf_tls_stream_detach(&ends[1].stream);
        connect_ends();
    }
    sheaf_tls_stream_detach(&ends[0].stream); /* before any step */
    sheaf_tls_stream_detach(&ends[1].stream);
}

static void a_connection_knows_its_peer_and_counts_its_bytes(void **state) {
    (void)state;
    sheaf_tls_state known;
    pass(&ends[1], &ends[0], 50000, 1);
    sheaf_tls_stream_ask(&ends[0].stream, &known);
    assert_int_equal(known.status, SHEAF_OK);
    assert_string_equal(sheaf_certificate_identity(known.peer)->name, "device-01");
    sheaf_certificate_unref(known.peer);
    assert_in_range(sheaf_tls_stream_moved(&ends[0].stream), 50000, 60000);
    assert_int_equal(sheaf_tls_stream_is_lost(&ends[0].stream), 0);
    sheaf_tls_stream_close(&ends[0].stream);
    assert_int_equal(sheaf_tls_stream_moved(&ends[0].stream), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(bytes_pass_both_ways_whatever_the_pieces, open_ends, close_ends),
        cmocka_unit_test_setup_teardown(many_small_steps_read_what_one_large_one_wrote, open_ends, close_ends),
        cmocka_unit_test_setup_teardown(both_directions_move_at_once, open_ends, close_ends),
        cmocka_unit_test_setup_teardown(who_waits_for_a_message_holds_only_small_buffers, open_ends, close_ends),
        cmocka_unit_test_setup_teardown(closing_ends_each_step_once_and_lets_none_begin, open_ends, close_ends),
        cmocka_unit_test_setup_teardown(the_last_bytes_come_before_the_end, open_ends, close_ends),
        cmocka_unit_test_setup_teardown(the_next_connection_may_come_at_once, open_ends, close_ends),
        cmocka_unit_test_setup_teardown(a_connection_knows_its_peer_and_counts_its_bytes, open_ends, close_ends),
    };
    return cmocka_run_group_tests(tests, make_kit, free_kit);
}
