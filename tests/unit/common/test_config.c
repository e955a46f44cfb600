/* A configuration is read by its table, and every mistake is named by file, line, key and what was expected. */
#include "tests/cmocka.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/config.h"

typedef struct {
    uint32_t minimum, maximum;
} cohort;

typedef struct {
    const char *name;
    cohort cohort;
    double rate;
} job;

typedef struct {
    const char *certificate, *key;
    int old;
} tls;

typedef struct {
    const char *title, *state;
    uint64_t window_bytes, big;
    int64_t offset;
    int transport, durable;
    tls tls;
    sheaf_config_list jobs, fraction_bits, input, regions, zones;
} sample;

static const char *const transports[] = {"nng", "inproc", "mqtt", NULL};
static const sheaf_config_field cohort_fields[] = {
    {.key = "minimum",
     .kind = SHEAF_CONFIG_U32,
     .offset = offsetof(cohort, minimum),
     .required = 1,
     .minimum = 1,
     .maximum = 1000000},
    {.key = "maximum", .kind = SHEAF_CONFIG_U32, .offset = offsetof(cohort, maximum), .preset = "20", .minimum = 1},
    {.key = NULL},
};
static const sheaf_config_field job_fields[] = {
    {.key = "name",
     .kind = SHEAF_CONFIG_NAME,
     .offset = offsetof(job, name),
     .required = 1,
     .help = "Name of the job."},
    {.key = "cohort",
     .kind = SHEAF_CONFIG_MAP,
     .offset = offsetof(job, cohort),
     .required = 1,
     .fields = cohort_fields},
    {.key = "rate",
     .kind = SHEAF_CONFIG_F64,
     .offset = offsetof(job, rate),
     .preset = "0.5",
     .minimum = 0,
     .maximum = 1},
    {.key = NULL},
};
static const sheaf_config_field tls_fields[] = {
    {.key = "certificate", .kind = SHEAF_CONFIG_PATH, .offset = offsetof(tls, certificate), .required = 1},
    {.key = "key", .kind = SHEAF_CONFIG_PATH, .offset = offsetof(tls, key), .preset = "device.key"},
    {.key = "old", .kind = SHEAF_CONFIG_BOOL, .offset = offsetof(tls, old)},
    {.key = NULL},
};
static const sheaf_config_field fields[] = {
    {.key = "title",
     .kind = SHEAF_CONFIG_STRING,
     .offset = offsetof(sample, title),
     .preset = "a title",
     .help = "For people."},
    {.key = "state", .kind = SHEAF_CONFIG_PATH, .offset = offsetof(sample, state)},
    {.key = "window_bytes",
     .kind = SHEAF_CONFIG_BYTES,
     .offset = offsetof(sample, window_bytes),
     .preset = "64 MiB",
     .minimum = 1024,
     .maximum = 1073741824},
    {.key = "big", .kind = SHEAF_CONFIG_U64, .offset = offsetof(sample, big)},
    {.key = "offset", .kind = SHEAF_CONFIG_I64, .offset = offsetof(sample, offset), .preset = "-3"},
    {.key = "transport",
     .kind = SHEAF_CONFIG_CHOICE,
     .offset = offsetof(sample, transport),
     .preset = "inproc",
     .choices = transports},
    {.key = "durable", .kind = SHEAF_CONFIG_BOOL, .offset = offsetof(sample, durable), .preset = "true"},
    {.key = "tls", .kind = SHEAF_CONFIG_MAP, .offset = offsetof(sample, tls), .fields = tls_fields},
    {.key = "jobs",
     .kind = SHEAF_CONFIG_LIST,
     .offset = offsetof(sample, jobs),
     .fields = job_fields,
     .item_bytes = sizeof(job),
     .minimum = 1,
     .maximum = 3},
    {.key = "fraction_bits",
     .kind = SHEAF_CONFIG_PAIRS,
     .offset = offsetof(sample, fraction_bits),
     .minimum = -125,
     .maximum = 126},
    {.key = "input",
     .kind = SHEAF_CONFIG_NUMBERS,
     .offset = offsetof(sample, input),
     .preset = "[8, 8]",
     .minimum = 1,
     .maximum = 4096},
    {.key = "regions",
     .kind = SHEAF_CONFIG_NAMES,
     .offset = offsetof(sample, regions),
     .preset = "[eu, us]",
     .help = "Where."},
    {.key = "zones", .kind = SHEAF_CONFIG_NAMES, .offset = offsetof(sample, zones), .minimum = 1, .maximum = 2},
    {.key = NULL},
};

static sheaf_status parse(const char *text, sample *out, sheaf_config **config, sheaf_problem *problem) {
    memset(problem, 0, sizeof *problem);
    return sheaf_config_parse(text, strlen(text), "server.yaml", "/etc/sheaf", fields, out, sizeof *out, config,
                              problem);
}

static sheaf_config *accept(const char *text, sample *out) {
    sheaf_config *config = NULL;
    sheaf_problem problem;
    sheaf_status status = parse(text, out, &config, &problem);
    if (status != SHEAF_OK) print_error("%s\n", problem.text);
    assert_int_equal(status, SHEAF_OK);
    assert_non_null(config);
    return config;
}

static void refuse(const char *text, const char *message) {
    sample out, zero;
    sheaf_config *config = (sheaf_config *)&out; /* must be set to NULL */
    sheaf_problem problem;
    memset(&zero, 0, sizeof zero);
    assert_int_equal(parse(text, &out, &config, &problem), SHEAF_E_CONFIG);
    assert_string_equal(problem.text, message);
    assert_null(config);
    assert_memory_equal(&out, &zero, sizeof out); /* nothing dangles */
}

/* ---- values ---- */

static void a_whole_file_is_read(void **state) {
    (void)state;
    sample s;
    sheaf_config *config = accept("title: hello world\n"
                                  "state: run/state\n"
                                  "window_bytes: 2 KiB\n"
                                  "big: 18446744073709551615\n"
                                  "offset: -9223372036854775808\n"
                                  "transport: mqtt\n"
                                  "durable: false\n"
                                  "tls: {certificate: /abs/a.pem, old: true}\n"
                                  "jobs:\n"
                                  "  - name: digits\n"
                                  "    cohort: {minimum: 3}\n"
                                  "  - name: other\n"
                                  "    cohort:\n"
                                  "      minimum: 4\n"
                                  "      maximum: 5\n"
                                  "    rate: 1e-3\n"
                                  "fraction_bits: {layer.0: 20, layer.1: -125}\n"
                                  "input: [28, 28, 1]\n",
                                  &s);
    assert_string_equal(s.title, "hello world");
    assert_string_equal(s.state, "/etc/sheaf/run/state");
    assert_int_equal(s.window_bytes, 2048);
    assert_true(s.big == UINT64_MAX);
    assert_true(s.offset == INT64_MIN);
    assert_int_equal(s.transport, 2);
    assert_int_equal(s.durable, 0);
    assert_string_equal(s.tls.certificate, "/abs/a.pem");
    assert_int_equal(s.tls.old, 1);
    assert_int_equal(s.jobs.count, 2);
    const job *jobs = s.jobs.items;
    assert_string_equal(jobs[0].name, "digits");
    assert_int_equal(jobs[0].cohort.minimum, 3);
    assert_int_equal(jobs[0].cohort.maximum, 20);
    assert_true(jobs[0].rate == 0.5);
    assert_int_equal(jobs[1].cohort.maximum, 5);
    assert_true(jobs[1].rate == 1e-3);
    const sheaf_config_pair *pairs = s.fraction_bits.items;
    assert_int_equal(s.fraction_bits.count, 2);
    assert_string_equal(pairs[1].key, "layer.1");
    assert_int_equal(pairs[1].value, -125);
    const int64_t *input = s.input.items;
    assert_int_equal(s.input.count, 3);
    assert_int_equal(input[2], 1);
    sheaf_config_free(config);
}

static void an_empty_file_gets_the_presets(void **state) {
    (void)state;
    sample s;
    sheaf_config *config = accept("# nothing\n", &s);
    assert_string_equal(s.title, "a title");
    assert_null(s.state);
    assert_int_equal(s.window_bytes, 64u << 20);
    assert_int_equal(s.offset, -3);
    assert_int_equal(s.transport, 1);
    assert_int_equal(s.durable, 1);
    assert_int_equal(s.jobs.count, 0);
    assert_null(s.jobs.items);
    assert_int_equal(s.input.count, 2);
    assert_int_equal(((const int64_t *)s.input.items)[1], 8);
    sheaf_config_free(config);
}

static void an_absent_optional_section_asks_for_nothing_but_has_its_presets(void **state) {
    (void)state;
    sample s;
    sheaf_config *config = accept("title: x\n", &s);
    assert_null(s.tls.certificate);
    assert_string_equal(s.tls.key, "/etc/sheaf/device.key");
    sheaf_config_free(config);
}

static void text_may_look_like_a_number_and_may_be_quoted(void **state) {
    (void)state;
    sample s;
    sheaf_config *config = accept("title: \"12: # no comment\"\n", &s);
    assert_string_equal(s.title, "12: # no comment");
    sheaf_config_free(config);
    config = accept("title: 0010\n", &s);
    assert_string_equal(s.title, "0010");
    sheaf_config_free(config);
    config = accept("title: ''\n", &s);
    assert_string_equal(s.title, "");
    sheaf_config_free(config);
}

static void sizes_take_binary_units(void **state) {
    (void)state;
    static const struct {
        const char *text;
        uint64_t bytes;
    } cases[] = {{"window_bytes: 1024", 1024},
                 {"window_bytes: 3KiB", 3072},
                 {"window_bytes: 5 MiB", 5242880},
                 {"window_bytes: 1 GiB", 1073741824}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sample s;
        sheaf_config *config = accept(cases[i].text, &s);
        assert_int_equal(s.window_bytes, cases[i].bytes);
        sheaf_config_free(config);
    }
}

/* ---- refusals, word for word ---- */

static void a_number_that_is_none(void **state) {
    (void)state;
    refuse("jobs:\n"
           "  - {name: a, cohort: {minimum: 1}}\n"
           "  - {name: b, cohort: {minimum: 1}}\n"
           "  - name: c\n"
           "    cohort:\n"
           "      minimum: ten\n",
           "server.yaml:6: jobs[2].cohort.minimum: 'ten' is not a whole number; expected 1..1000000");
}

static void numbers_out_of_range(void **state) {
    (void)state;
    refuse("jobs: [{name: a, cohort: {minimum: 0}}]",
           "server.yaml:1: jobs[0].cohort.minimum: '0' is out of range; expected 1..1000000");
    refuse("jobs: [{name: a, cohort: {minimum: 1000001}}]",
           "server.yaml:1: jobs[0].cohort.minimum: '1000001' is out of range; expected 1..1000000");
    refuse("jobs: [{name: a, cohort: {minimum: -1}}]",
           "server.yaml:1: jobs[0].cohort.minimum: '-1' is out of range; expected 1..1000000");
    refuse("jobs: [{name: a, cohort: {minimum: 1, maximum: 4294967296}}]",
           "server.yaml:1: jobs[0].cohort.maximum: '4294967296' is out of range; expected 1 or more");
    refuse("big: 18446744073709551616",
           "server.yaml:1: big: '18446744073709551616' is out of range; expected 0..18446744073709551615");
    refuse("offset: 9223372036854775808",
           "server.yaml:1: offset: '9223372036854775808' is out of range; expected a whole number");
    refuse("offset: -9223372036854775809",
           "server.yaml:1: offset: '-9223372036854775809' is out of range; expected a whole number");
    refuse("fraction_bits: {w: 127}", "server.yaml:1: fraction_bits.w: '127' is out of range; expected -125..126");
    refuse("input: [1, 0]", "server.yaml:1: input[1]: '0' is out of range; expected 1..4096");
}

static void numbers_in_other_clothes(void **state) {
    (void)state;
    refuse("big: 010", "server.yaml:1: big: '010' is not a whole number; expected 0..18446744073709551615");
    refuse("big: 0x10", "server.yaml:1: big: '0x10' is not a whole number; expected 0..18446744073709551615");
    refuse("big: 1.0", "server.yaml:1: big: '1.0' is not a whole number; expected 0..18446744073709551615");
    refuse("big: +1", "server.yaml:1: big: '+1' is not a whole number; expected 0..18446744073709551615");
    refuse("big: 1_000", "server.yaml:1: big: '1_000' is not a whole number; expected 0..18446744073709551615");
    refuse("big: '10'", "server.yaml:1: big: '10' is text in quotes; expected 0..18446744073709551615");
    refuse("big:", "server.yaml:1: big: has no value; expected 0..18446744073709551615");
}

static void real_numbers(void **state) {
    (void)state;
    refuse("jobs: [{name: a, cohort: {minimum: 1}, rate: nan}]",
           "server.yaml:1: jobs[0].rate: 'nan' is not a number; expected 0..1");
    refuse("jobs: [{name: a, cohort: {minimum: 1}, rate: 0x1p-1}]",
           "server.yaml:1: jobs[0].rate: '0x1p-1' is not a number; expected 0..1");
    refuse("jobs: [{name: a, cohort: {minimum: 1}, rate: 1e999}]",
           "server.yaml:1: jobs[0].rate: '1e999' is out of range; expected 0..1");
    refuse("jobs: [{name: a, cohort: {minimum: 1}, rate: 1.5}]",
           "server.yaml:1: jobs[0].rate: '1.5' is out of range; expected 0..1");
    refuse("jobs: [{name: a, cohort: {minimum: 1}, rate: 1-}]",
           "server.yaml:1: jobs[0].rate: '1-' is not a number; expected 0..1");
}

static void sizes(void **state) {
    (void)state;
    static const char expected[] = "; expected 1 KiB..1 GiB, as bytes or with KiB, MiB, GiB";
    static const char *const cases[][2] = {
        {"10MB", "'10MB' is not a size"},       {"KiB", "'KiB' is not a size"},
        {"1.5 MiB", "'1.5 MiB' is not a size"}, {"100", "'100' is out of range"},
        {"2 GiB", "'2 GiB' is out of range"},   {"17179869184 GiB", "'17179869184 GiB' is out of range"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[64], message[256];
        (void)snprintf(text, sizeof text, "window_bytes: %s\n", cases[i][0]);
        (void)snprintf(message, sizeof message, "server.yaml:1: window_bytes: %s%s", cases[i][1], expected);
        refuse(text, message);
    }
}

static void choices_and_switches(void **state) {
    (void)state;
    refuse("transport: tcp", "server.yaml:1: transport: 'tcp' is none of the choices; expected nng, inproc or mqtt");
    refuse("durable: yes", "server.yaml:1: durable: 'yes' is neither; expected true or false");
}

static void names_and_paths(void **state) {
    (void)state;
    refuse("jobs: [{name: a/b, cohort: {minimum: 1}}]", "server.yaml:1: jobs[0].name: 'a/b' is not a name; expected "
                                                        "1..63 characters of A-Z a-z 0-9 . _ -, the first no dot");
    refuse("state: ''", "server.yaml:1: state: '' is not a path; expected a path");
}

static void a_list_of_names_is_read_in_its_order(void **state) {
    (void)state;
    sample s;
    sheaf_config *config = accept("regions: [eu-west.1, '42', \"x\"]\nzones:\n  - a\n  - b_\n", &s);
    const char *const *regions = s.regions.items, *const *zones = s.zones.items;
    assert_int_equal(s.regions.count, 3);
    assert_string_equal(regions[0], "eu-west.1");
    assert_string_equal(regions[1], "42");
    assert_string_equal(regions[2], "x");
    assert_int_equal(s.zones.count, 2);
    assert_string_equal(zones[0], "a");
    assert_string_equal(zones[1], "b_");
    sheaf_config_free(config);
    config = accept("regions: []\n", &s); /* says: none, and is not the preset */
    assert_int_equal(s.regions.count, 0);
    assert_int_equal(s.zones.count, 0);
    sheaf_config_free(config);
    config = accept("", &s);
    assert_int_equal(s.regions.count, 2);
    assert_string_equal(((const char *const *)s.regions.items)[1], "us");
    sheaf_config_free(config);
}

static void lists_of_names(void **state) {
    (void)state;
    static const char expected[] = "expected 1..63 characters of A-Z a-z 0-9 . _ -, the first no dot";
    static const char *const cases[][2] = {
        {"[eu, a/b]", "regions[1]: 'a/b' is not a name"}, {"['#']", "regions[0]: '#' is not a name"},
        {"[+]", "regions[0]: '+' is not a name"},         {"['']", "regions[0]: '' is not a name"},
        {"[.eu]", "regions[0]: '.eu' is not a name"},     {"[eu west]", "regions[0]: 'eu west' is not a name"},
        {"[eu, ~]", "regions[1]: '~' is not a name"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[64], message[256];
        (void)snprintf(text, sizeof text, "regions: %s\n", cases[i][0]);
        (void)snprintf(message, sizeof message, "server.yaml:1: %s; %s", cases[i][1], expected);
        refuse(text, message);
    }
    refuse("regions: eu\n", "server.yaml:1: regions: 'eu' is a single value; expected a list of names");
    refuse("regions: {eu: 1}\n", "server.yaml:1: regions: is a map; expected a list of names");
    refuse("regions:\n  - eu\n  - [us]\n", "server.yaml:3: regions[1]: is a list; expected a name");
    refuse("zones: []\n", "server.yaml:1: zones: has 0 entries; expected 1..2");
    refuse("zones: [a, b, c]\n", "server.yaml:1: zones: has 3 entries; expected 1..2");
}

static void missing_keys_with_the_line_of_their_map(void **state) {
    (void)state;
    refuse("title: x\njobs:\n  - name: a\n    cohort: {}\n",
           "server.yaml:4: jobs[0].cohort.minimum: is missing; expected a whole number, 1..1000000");
    refuse("jobs:\n  - cohort: {minimum: 1}\n", "server.yaml:2: jobs[0].name: is missing; expected a name, 1..63 "
                                                "characters of A-Z a-z 0-9 . _ -, the first no dot");
    refuse("jobs:\n  - name: a\n", "server.yaml:2: jobs[0].cohort: is missing; expected a map");
    refuse("tls:\n  key: a\n", "server.yaml:1: tls.certificate: is missing; expected a path");
}

static void unknown_keys_name_the_nearest(void **state) {
    (void)state;
    refuse("titel: x", "server.yaml:1: titel: is not a known key; did you mean 'title'?");
    refuse("jobs:\n  - name: a\n    chort: {}\n",
           "server.yaml:3: jobs[0].chort: is not a known key; did you mean 'cohort'?");
    refuse("jobs:\n  - name: a\n    cohort:\n      min: 1\n",
           "server.yaml:4: jobs[0].cohort.min: is not a known key; did you mean 'minimum'?");
    refuse("jobs:\n  - name: a\n    colour: 1\n",
           "server.yaml:3: jobs[0].colour: is not a known key; expected name, cohort or rate");
}

static void a_key_given_twice(void **state) {
    (void)state;
    refuse("title: a\nbig: 1\ntitle: b\n",
           "server.yaml:3: title: stands here a second time, first in line 1; expected once");
    refuse("fraction_bits: {w: 1, w: 1}",
           "server.yaml:1: w: stands here a second time, first in line 1; expected once");
}

static void anchors_aliases_and_tags(void **state) {
    (void)state;
    refuse("title: &a x\n", "server.yaml:1: an anchor (&name); expected a plain value");
    refuse("title: x\nstate: *a\n", "server.yaml:2: an alias (*name); expected the value itself");
    refuse("title: !secret x\n", "server.yaml:1: a tag (!name); expected a plain value");
    refuse("big: !!int 1\n", "server.yaml:1: a tag (!name); expected a plain value");
    refuse("tls: &t {}\n", "server.yaml:1: an anchor (&name); expected a plain value");
    refuse("jobs: !l []\n", "server.yaml:1: a tag (!name); expected a plain value");
}

static void the_wrong_shape(void **state) {
    (void)state;
    refuse("- a\n", "server.yaml:1: the file is not a map; expected lines of 'key: value'");
    refuse("just text\n", "server.yaml:1: the file is not a map; expected lines of 'key: value'");
    refuse("title: [a]\n", "server.yaml:1: title: is a list; expected text");
    refuse("big: {a: 1}\n", "server.yaml:1: big: is a map; expected a whole number");
    refuse("tls: 3\n", "server.yaml:1: tls: '3' is a single value; expected a map");
    refuse("tls:\nbig: 1\n", "server.yaml:1: tls: has no value; expected a map");
    refuse("jobs: {name: a}\n", "server.yaml:1: jobs: is a map; expected a list of maps");
    refuse("jobs:\n  - a\n", "server.yaml:2: jobs[0]: 'a' is a single value; expected a map");
    refuse("fraction_bits: [1]\n", "server.yaml:1: fraction_bits: is a list; expected a map of whole numbers");
    refuse("fraction_bits: {w: [1]}\n", "server.yaml:1: fraction_bits.w: is a list; expected a whole number");
    refuse("fraction_bits: {w: }\n", "server.yaml:1: fraction_bits.w: has no value; expected -125..126");
    refuse("input: 28\n", "server.yaml:1: input: '28' is a single value; expected 1..4096");
    refuse("input: [a]\n", "server.yaml:1: input[0]: 'a' is not a whole number; expected 1..4096");
    refuse("? [a]\n: 1\n", "server.yaml:1: a map or list as a key; expected a name");
}

static void list_lengths(void **state) {
    (void)state;
    refuse("jobs: []", "server.yaml:1: jobs: has 0 entries; expected 1..3");
    refuse("jobs:\n  - {name: a, cohort: {minimum: 1}}\n  - {name: b, cohort: {minimum: 1}}\n  - {name: c, cohort: "
           "{minimum: 1}}\n"
           "  - {name: d, cohort: {minimum: 1}}\n",
           "server.yaml:1: jobs: has 4 entries; expected 1..3");
}

static void what_is_no_yaml(void **state) {
    (void)state;
    refuse("title: [a\n", "server.yaml:2: not YAML: did not find expected ',' or ']'; expected lines of 'key: value'");
    refuse("title: a\n\tbig: 1\n",
           "server.yaml:2: not YAML: found a tab character that violates indentation; expected lines of 'key: value'");
    refuse("title: a\n---\ntitle: b\n", "server.yaml:2: a second document; expected one");
    refuse("title: \"a\\0b\"\n", "server.yaml:1: a text with a NUL byte; expected none");
    refuse("\"\": 1\n", "server.yaml:1: not a usable key; expected 1..255 characters");
}

static void a_long_or_strange_value_is_shown_short_and_on_one_line(void **state) {
    (void)state;
    refuse("transport: \"a\\nb\\e[31m\"\n",
           "server.yaml:1: transport: 'a?b?[31m' is none of the choices; expected nng, inproc or mqtt");
    char text[400], message[256];
    memset(text, 'x', sizeof text);
    memcpy(text, "transport: ", 11);
    text[399] = '\0';
    (void)snprintf(message, sizeof message,
                   "server.yaml:1: transport: '%.68s...' is none of the choices; expected nng, inproc or mqtt",
                   text + 11);
    refuse(text, message);
}

/* ---- limits ---- */

static void nested_deeper_than_sixteen(void **state) {
    (void)state;
    refuse("big: [[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]", "server.yaml:1: nested more than 16 deep; expected less");
}

static void more_entries_than_4096(void **state) {
    (void)state;
    enum { ENTRIES = 4097 };
    char *text = malloc(16 + 2 * ENTRIES);
    assert_non_null(text);
    memcpy(text, "input: [", 8);
    for (size_t i = 0; i < ENTRIES; i++) memcpy(text + 8 + 2 * i, "1,", 2);
    memcpy(text + 8 + 2 * ENTRIES, "]", 2);
    refuse(text, "server.yaml:1: more than 4096 entries; expected fewer");
    text[8 + 2 * (ENTRIES - 1)] = ']';
    text[8 + 2 * (ENTRIES - 1) + 1] = '\0';
    sample s;
    sheaf_config *config = accept(text, &s);
    assert_int_equal(s.input.count, 4096);
    sheaf_config_free(config);
    free(text);
}

static void larger_than_one_mebibyte(void **state) {
    (void)state;
    size_t size = 1024 * 1024;
    char *text = malloc(size + 2);
    assert_non_null(text);
    memset(text, '#', size + 1);
    text[size + 1] = '\0';
    refuse(text, "server.yaml: 1048577 bytes; expected at most 1 MiB");
    text[size] = '\0';
    sample s;
    sheaf_config_free(accept(text, &s));
    free(text);
}

/* ---- files ---- */

static void a_file_is_read_and_its_paths_start_at_its_folder(void **state) {
    (void)state;
    char folder[] = "/tmp/sheaf-config-XXXXXX", path[64], expected[64];
    assert_non_null(mkdtemp(folder));
    (void)snprintf(path, sizeof path, "%s/a.yaml", folder);
    (void)snprintf(expected, sizeof expected, "%s/s", folder);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs("state: s\n", file);
    fclose(file);
    sample s;
    sheaf_config *config = NULL;
    sheaf_problem problem;
    assert_int_equal(sheaf_config_load(path, fields, &s, sizeof s, &config, &problem), SHEAF_OK);
    assert_string_equal(s.state, expected);
    sheaf_config_free(config);
    assert_int_equal(truncate(path, 1024 * 1024 + 1), 0);
    assert_int_equal(sheaf_config_load(path, fields, &s, sizeof s, &config, &problem), SHEAF_E_CONFIG);
    assert_non_null(strstr(problem.text, "larger than 1 MiB"));
    assert_int_equal(unlink(path), 0);
    assert_int_equal(sheaf_config_load(path, fields, &s, sizeof s, &config, &problem), SHEAF_E_NOT_FOUND);
    assert_non_null(strstr(problem.text, path));
    assert_null(config);
    assert_int_equal(rmdir(folder), 0);
}

static void a_path_in_the_working_folder_stays_as_it_is(void **state) {
    (void)state;
    sample s;
    sheaf_config *config = NULL;
    assert_int_equal(sheaf_config_parse("state: s/t", 10, "a.yaml", ".", fields, &s, sizeof s, &config, NULL),
                     SHEAF_OK);
    assert_string_equal(s.state, "s/t");
    sheaf_config_free(config);
}

/* ---- where and reference ---- */

static void where_finds_the_line_of_a_key_or_of_what_is_around_it(void **state) {
    (void)state;
    sample s;
    sheaf_config *config = accept("title: x\n"
                                  "jobs:\n"
                                  "  - name: a\n"
                                  "    cohort:\n"
                                  "      minimum: 1\n"
                                  "  - name: b\n"
                                  "    cohort: {minimum: 2}\n"
                                  "fraction_bits:\n"
                                  "  a.b: 1\n"
                                  "  a: 2\n",
                                  &s);
    assert_string_equal(sheaf_config_where(config, "title"), "server.yaml:1");
    assert_string_equal(sheaf_config_where(config, "jobs[0].cohort.minimum"), "server.yaml:5");
    assert_string_equal(sheaf_config_where(config, "jobs[1].cohort.minimum"), "server.yaml:7");
    assert_string_equal(sheaf_config_where(config, "jobs[0].cohort.maximum"), "server.yaml:4");
    assert_string_equal(sheaf_config_where(config, "jobs[1]"), "server.yaml:6");
    assert_string_equal(sheaf_config_where(config, "fraction_bits.a.b"), "server.yaml:9");
    assert_string_equal(sheaf_config_where(config, "fraction_bits.a"), "server.yaml:10");
    assert_string_equal(sheaf_config_where(config, "tls.key"), "server.yaml:1");
    assert_string_equal(sheaf_config_where(config, ""), "server.yaml:1");
    sheaf_config_free(config);
}

static char *reference(size_t *size) {
    char *text = NULL;
    FILE *stream = open_memstream(&text, size);
    assert_non_null(stream);
    sheaf_config_print_reference(fields, stream);
    assert_int_equal(fclose(stream), 0);
    return text;
}

static void the_reference_names_every_key_with_default_bounds_and_help(void **state) {
    (void)state;
    size_t size = 0;
    char *text = reference(&size);
    static const char *const parts[] = {
        "# For people.\n# text; default below\ntitle: a title\n",
        "# a size: 1 KiB..1 GiB, as bytes or with KiB, MiB, GiB; default below\nwindow_bytes: 64 MiB\n",
        "# a choice: nng, inproc or mqtt; default below\ntransport: inproc\n",
        "# a path; optional\n#state: path/to/file\n",
        "# a list of maps (1..3); optional\n#jobs:\n  #-\n",
        "    # Name of the job.\n",
        "# a whole number: 1..1000000; required\n      #minimum: 1\n",
        "# a list of whole numbers: 1..4096; default below\ninput: [8, 8]\n",
        "# Where.\n# a list of names; default below\nregions: [eu, us]\n",
        "# a list of names (1..2); optional\n#zones: []\n",
        "#fraction_bits: {}\n"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (strstr(text, parts[i]) == NULL) fail_msg("not in the reference: %s\n%s", parts[i], text);
    }
    free(text);
}

static void the_reference_is_a_valid_file_that_says_the_presets(void **state) {
    (void)state;
    size_t size = 0;
    char *text = reference(&size);
    sample from_reference, from_nothing;
    sheaf_config *a = accept(text, &from_reference), *b = accept("", &from_nothing);
    assert_string_equal(from_reference.title, from_nothing.title);
    assert_int_equal(from_reference.window_bytes, from_nothing.window_bytes);
    assert_int_equal(from_reference.offset, from_nothing.offset);
    assert_int_equal(from_reference.transport, from_nothing.transport);
    assert_int_equal(from_reference.input.count, from_nothing.input.count);
    sheaf_config_free(a);
    sheaf_config_free(b);
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_whole_file_is_read),
        cmocka_unit_test(an_empty_file_gets_the_presets),
        cmocka_unit_test(an_absent_optional_section_asks_for_nothing_but_has_its_presets),
        cmocka_unit_test(text_may_look_like_a_number_and_may_be_quoted),
        cmocka_unit_test(sizes_take_binary_units),
        cmocka_unit_test(a_number_that_is_none),
        cmocka_unit_test(numbers_out_of_range),
        cmocka_unit_test(numbers_in_other_clothes),
        cmocka_unit_test(real_numbers),
        cmocka_unit_test(sizes),
        cmocka_unit_test(choices_and_switches),
        cmocka_unit_test(names_and_paths),
        cmocka_unit_test(a_list_of_names_is_read_in_its_order),
        cmocka_unit_test(lists_of_names),
        cmocka_unit_test(missing_keys_with_the_line_of_their_map),
        cmocka_unit_test(unknown_keys_name_the_nearest),
        cmocka_unit_test(a_key_given_twice),
        cmocka_unit_test(anchors_aliases_and_tags),
        cmocka_unit_test(the_wrong_shape),
        cmocka_unit_test(list_lengths),
        cmocka_unit_test(what_is_no_yaml),
        cmocka_unit_test(a_long_or_strange_value_is_shown_short_and_on_one_line),
        cmocka_unit_test(nested_deeper_than_sixteen),
        cmocka_unit_test(more_entries_than_4096),
        cmocka_unit_test(larger_than_one_mebibyte),
        cmocka_unit_test(a_file_is_read_and_its_paths_start_at_its_folder),
        cmocka_unit_test(a_path_in_the_working_folder_stays_as_it_is),
        cmocka_unit_test(where_finds_the_line_of_a_key_or_of_what_is_around_it),
        cmocka_unit_test(the_reference_names_every_key_with_default_bounds_and_help),
        cmocka_unit_test(the_reference_is_a_valid_file_that_says_the_presets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
