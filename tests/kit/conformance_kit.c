#include "tests/kit/conformance_kit.h"

#include <stdio.h>
#include <sys/resource.h>

#include "tests/kit/broker_kit.h"

/* The url of MQTT is that of a broker which runs as long as the program. */
static conformance_carrier carriers[] = {
    {&sheaf_transport_inproc, "inproc://conformance", CONFORMANCE_LISTENS | CONFORMANCE_CROWDED | CONFORMANCE_CUTS},
    {&sheaf_transport_nng, "tls+tcp://127.0.0.1:0",
     CONFORMANCE_OVER_TCP | CONFORMANCE_IN_ORDER | CONFORMANCE_LISTENS | CONFORMANCE_CROWDED | CONFORMANCE_CUTS},
    {&sheaf_transport_mqtt, NULL, CONFORMANCE_OVER_TCP},
};

static pki_kit *kit;
static broker_kit *broker;
const pki_kit_files *conformance_aggregator, *conformance_other_aggregator, *conformance_device;

uint32_t conformance_crowd_handshake_ms = 5000;

static const pki_kit_files *crowd[CONFORMANCE_CROWD]; /* issued when they are asked for */

/* Both ends of a crowd stand in this process. */
static void allow_descriptors(void) {
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = limit.rlim_max < 8192 ? limit.rlim_max : 8192;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

static int make_kit(void **state) {
    (void)state;
    allow_descriptors();
    kit = pki_kit_make();
    conformance_aggregator = pki_kit_issue(kit, "aggregator", "main", NULL);
    conformance_other_aggregator = pki_kit_issue(kit, "aggregator", "second", NULL);
    conformance_device = pki_kit_issue(kit, "device", "device-01", NULL);
    broker = broker_kit_start(kit, NULL);
    for (size_t i = 0; i < sizeof carriers / sizeof carriers[0]; i++)
        if (carriers[i].transport == &sheaf_transport_mqtt) carriers[i].url = broker_kit_url(broker);
    return 0;
}

static int free_kit(void **state) {
    (void)state;
    broker_kit_free(broker);
    pki_kit_free(kit);
    return 0;
}

void conformance_start(carrier_server *server, const conformance_carrier *carrier, carrier_mode mode) {
    sheaf_transport_options options = carrier_options(carrier->url, conformance_aggregator);
    carrier_start(server, carrier->transport, &options, mode);
}

sheaf_link *conformance_open_link_to(const sheaf_transport *transport, const char *url, const pki_kit_files *files) {
    sheaf_transport_options options = carrier_options(url, files);
    sheaf_problem problem = {SHEAF_OK, ""};
    sheaf_link *link = NULL;
    sheaf_status status = transport->open_link(&options, &link, &problem);
    if (status != SHEAF_OK) fail_msg("open_link: %s: %s", sheaf_status_name(status), problem.text);
    return link;
}

sheaf_link *conformance_open_window(const carrier_server *server, const char *url, uint32_t window) {
    sheaf_transport_options options = carrier_options(url, conformance_device);
    sheaf_problem problem = {SHEAF_OK, ""};
    sheaf_link *link = NULL;
    options.window = window;
    sheaf_status status = server->transport->open_link(&options, &link, &problem);
    if (status != SHEAF_OK) fail_msg("open_link: %s: %s", sheaf_status_name(status), problem.text);
    return link;
}

const char *conformance_url_of(const carrier_server *server) { return server->transport->server_url(server->server); }

sheaf_link *conformance_open_link(const carrier_server *server) {
    return conformance_open_link_to(server->transport, server->transport->server_url(server->server),
                                    conformance_device);
}

sheaf_link *conformance_open_link_of_crowd(const carrier_server *server, unsigned i) {
    unsigned who = server->transport == &sheaf_transport_mqtt ? i : i / CONFORMANCE_EACH;
    char name[16];
    (void)snprintf(name, sizeof name, "crowd-%03u", who);
    if (crowd[who] == NULL) crowd[who] = pki_kit_issue(kit, "device", name, NULL);
    sheaf_transport_options options = carrier_options(conformance_url_of(server), crowd[who]);
    sheaf_link *link = NULL;
    options.handshake_ms =
        conformance_crowd_handshake_ms; /* a crowd's handshakes stand in one queue, and a sanitizer makes it slow */
    assert_int_equal(server->transport->open_link(&options, &link, NULL), SHEAF_OK);
    return link;
}

#define CARRIERS       (sizeof carriers / sizeof carriers[0])
#define BEHAVIOURS_MAX 64u

static unsigned abilities(const conformance_carrier *carrier) {
    return carrier->abilities | (carrier->transport->cast != NULL ? CONFORMANCE_CASTS : 0u);
}

/* Whoever reads the output sees what was not asked of a carrier, and why. */
static void say_what_is_left_out(const conformance_carrier *carrier, const conformance_behaviour *behaviour) {
    static const struct {
        unsigned need;
        const char *reason;
    } reasons[] = {
        {CONFORMANCE_OVER_TCP, "no TCP of its own between the ends that a proxy could break"},
        {CONFORMANCE_IN_ORDER, "what a broken connection loses is said again behind what came after it"},
        {CONFORMANCE_CASTS, "it cannot cast"},
        {CONFORMANCE_LISTENS, "the address is the broker's, not the server's"},
        {CONFORMANCE_CROWDED, "a broker keeps one connection of a name"},
        {CONFORMANCE_CUTS, "requests that were given up but had arrived are handed over until the next session begins"},
    };
    unsigned missing = behaviour->needs & ~abilities(carrier);
    for (size_t i = 0; i < sizeof reasons / sizeof reasons[0]; i++)
        if ((missing & reasons[i].need) != 0)
            print_message("not asked of %s: %s: %s\n", carrier->transport->name, behaviour->name, reasons[i].reason);
}

int conformance_run(const conformance_behaviour *behaviours, size_t behaviour_count) {
    static char names[CARRIERS * BEHAVIOURS_MAX][128];
    static struct CMUnitTest tests[CARRIERS * BEHAVIOURS_MAX];
    size_t count = 0;
    assert_true(behaviour_count <= BEHAVIOURS_MAX);
    for (size_t c = 0; c < CARRIERS; c++) {
        for (size_t b = 0; b < behaviour_count; b++) {
            if ((behaviours[b].needs & ~abilities(&carriers[c])) != 0) {
                say_what_is_left_out(&carriers[c], &behaviours[b]);
                continue;
            }
            (void)snprintf(names[count], sizeof names[count], "%s: %s", carriers[c].transport->name,
                           behaviours[b].name);
            tests[count].name = names[count];
            tests[count].test_func = behaviours[b].run;
            tests[count].initial_state = (void *)(uintptr_t)&carriers[c];
            count++;
        }
    }
    return _cmocka_run_group_tests("conformance", tests, count, make_kit, free_kit);
}
