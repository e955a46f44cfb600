/* Heads of HTTP requests, as RFC 9110 and 9112 have them; Basic credentials with RFC 7617's example, base64 with RFC 4648's. */
#include "tests/cmocka.h"

#include <stdio.h>

#include "server/operator/http_head.h"

static int read_text(const char *text, sheaf_http_head *out) {
    const char *why = NULL;
    int code = sheaf_http_head_read(sheaf_span_of(text, strlen(text)), out, &why);
    assert_non_null(why);
    return code;
}

static void a_request_is_taken_apart(void **state) {
    (void)state;
    sheaf_http_head head;
    assert_int_equal(read_text("POST /v1/jobs/acme/a.b-c_d?limit=5&job=acme/x HTTP/1.1\r\nhOsT: here:1\r\n"
                               "Content-Length:  12 \r\nContent-Type: application/json ; charset=utf-8\r\n"
                               "Authorization: Basic abc\r\nX-Other: 1\r\n\r\n",
                               &head),
                     200);
    assert_int_equal(head.method, SHEAF_HTTP_POST);
    assert_int_equal(head.segment_count, 4);
    assert_string_equal(head.segments[0], "v1");
    assert_string_equal(head.segments[3], "a.b-c_d");
    assert_string_equal(sheaf_http_parameter_of(&head, "limit"), "5");
    assert_string_equal(sheaf_http_parameter_of(&head, "job"), "acme/x");
    assert_null(sheaf_http_parameter_of(&head, "li"));
    assert_int_equal(head.body_bytes, 12);
    assert_string_equal(head.content_type, "application/json");
    assert_string_equal(head.authorization, "Basic abc");
    assert_int_equal(head.expects_continue, 0);
}

static void the_root_has_no_segments_and_1_0_needs_no_host(void **state) {
    (void)state;
    sheaf_http_head head;
    assert_int_equal(read_text("GET / HTTP/1.0\r\n\r\n", &head), 200);
    assert_int_equal(head.segment_count, 0);
    assert_int_equal(head.method, SHEAF_HTTP_GET);
}

static void bounds_hold(void **state) {
    (void)state;
    sheaf_http_head head;
    assert_int_equal(read_text("GET /1/2/3/4/5/6/7/8 HTTP/1.0\r\n\r\n", &head), 200);
    assert_int_equal(read_text("GET /1/2/3/4/5/6/7/8/9 HTTP/1.0\r\n\r\n", &head), 404);
    assert_int_equal(read_text("GET /?1=1&2=1&3=1&4=1&5=1&6=1&7=1&8=1 HTTP/1.0\r\n\r\n", &head), 200);
    assert_int_equal(read_text("GET /?1=1&2=1&3=1&4=1&5=1&6=1&7=1&8=1&9=1 HTTP/1.0\r\n\r\n", &head), 400);
    char text[700];
    (void)snprintf(text, sizeof text, "GET /%063d HTTP/1.0\r\n\r\n", 0);
    assert_int_equal(read_text(text, &head), 200);
    (void)snprintf(text, sizeof text, "GET /%064d HTTP/1.0\r\n\r\n", 0);
    assert_int_equal(read_text(text, &head), 404);
    (void)snprintf(text, sizeof text, "GET / HTTP/1.0\r\nAuthorization: %0511d\r\n\r\n", 0);
    assert_int_equal(read_text(text, &head), 200);
    (void)snprintf(text, sizeof text, "GET / HTTP/1.0\r\nAuthorization: %0512d\r\n\r\n", 0);
    assert_int_equal(read_text(text, &head), 431);
    assert_int_equal(read_text("GET / HTTP/1.0\r\nContent-Length: 999999999999999999\r\n\r\n", &head), 200);
    assert_int_equal(head.body_bytes, 999999999999999999u);
    assert_int_equal(read_text("GET / HTTP/1.0\r\nContent-Length: 1000000000000000000\r\n\r\n", &head), 413);
}

static void what_is_ambiguous_is_refused(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int code;
    } cases[] = {
        {"GET / HTTP/1.1\nHost: x\n\n", 400},
        {"GET / HTTP/1.1\r\nHost: x\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: x\r\n\r\nmore", 400},
        {"GET\t/ HTTP/1.1\r\nHost: x\r\n\r\n", 400},
        {"GET / HTTP/1.1 \r\nHost: x\r\n\r\n", 505},
        {"GET / http/1.1\r\nHost: x\r\n\r\n", 400},
        {"GET /a%41 HTTP/1.0\r\n\r\n", 400},
        {"GET /a?b=%41 HTTP/1.0\r\n\r\n", 400},
        {"GET /a?=b HTTP/1.0\r\n\r\n", 400},
        {"GET /a? HTTP/1.0\r\n\r\n", 400},
        {"GET /a#b HTTP/1.0\r\n\r\n", 400},
        {"GET a HTTP/1.0\r\n\r\n", 400},
        {"GET * HTTP/1.0\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost:\r\n\r\n", 400},
        {"GET / HTTP/1.0\r\nContent-Length: +5\r\n\r\n", 400},
        {"GET / HTTP/1.0\r\nContent-Length: 0x5\r\n\r\n", 400},
        {"GET / HTTP/1.0\r\nContent-Length:\r\n\r\n", 400},
        {"GET / HTTP/1.0\r\nContent-Length : 5\r\n\r\n", 400},
        {"GET / HTTP/1.0\r\n: 5\r\n\r\n", 400},
        {"GET / HTTP/1.0\r\nno colon\r\n\r\n", 400},
        {"GET / HTTP/1.0\r\nTransfer-Encoding: identity\r\n\r\n", 501},
    };
    sheaf_http_head head;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (read_text(cases[i].text, &head) != cases[i].code) fail_msg("%s", cases[i].text);
    }
}

static void a_nul_is_no_end(void **state) {
    (void)state;
    static const char text[] = "GET /a\0b HTTP/1.0\r\n\r\n";
    sheaf_http_head head;
    const char *why;
    assert_int_equal(sheaf_http_head_read(sheaf_span_of(text, sizeof text - 1), &head, &why), 400);
}

static void basic_credentials_are_those_of_rfc_7617(void **state) {
    (void)state;
    char user[SHEAF_NAME_BYTES], password[SHEAF_HTTP_PARAMETER_BYTES];
    assert_int_equal(sheaf_http_read_basic("Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==", user, password), 1);
    assert_string_equal(user, "Aladdin");
    assert_string_equal(password, "open sesame");
    assert_int_equal(sheaf_http_read_basic("basic YTpiOmM=", user, password), 1); /* a:b:c */
    assert_string_equal(user, "a");
    assert_string_equal(password, "b:c");
    static const char *const bad[] = {"",           "Basic",     "Basic ",         "Bearer YTpi",
                                      "Basic YWI=", "Basic YTp", "Basic YQA6Yg==", "Basic ===="};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        if (sheaf_http_read_basic(bad[i], user, password)) fail_msg("%s", bad[i]);
    }
}

static void base64_is_that_of_rfc_4648(void **state) {
    (void)state;
    static const struct {
        const char *text, *plain;
    } vectors[] = {{"", ""},
                   {"Zg==", "f"},
                   {"Zm8=", "fo"},
                   {"Zm9v", "foo"},
                   {"Zm9vYg==", "foob"},
                   {"Zm9vYmE=", "fooba"},
                   {"Zm9vYmFy", "foobar"},
                   {"Zm9v\r\nYm\nFy \n", "foobar"}};
    static const char *const bad[] = {
        "Z", "Zg", "Zg=", "Zg===", "=Zg=", "Zh==", "Zm9=", "Zm9v=", "Zg==Zg==", "Zm9v-", "Zg=a"};
    uint8_t memory[8];
    for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++) {
        sheaf_buffer out = {memory, 0, sizeof memory};
        assert_int_equal(sheaf_http_read_base64(sheaf_span_of(vectors[i].text, strlen(vectors[i].text)), &out), 1);
        assert_int_equal(out.size, strlen(vectors[i].plain));
        assert_memory_equal(memory, vectors[i].plain, out.size);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        sheaf_buffer out = {memory, 0, sizeof memory};
        if (sheaf_http_read_base64(sheaf_span_of(bad[i], strlen(bad[i])), &out)) fail_msg("%s", bad[i]);
    }
    sheaf_buffer small = {memory, 0, 5};
    assert_int_equal(sheaf_http_read_base64(sheaf_span_of("Zm9vYmFy", 8), &small), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_is_taken_apart),
        cmocka_unit_test(the_root_has_no_segments_and_1_0_needs_no_host),
        cmocka_unit_test(bounds_hold),
        cmocka_unit_test(what_is_ambiguous_is_refused),
        cmocka_unit_test(a_nul_is_no_end),
        cmocka_unit_test(basic_credentials_are_those_of_rfc_7617),
        cmocka_unit_test(base64_is_that_of_rfc_4648),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
