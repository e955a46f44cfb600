/* Sessions past a broker: what honest ends reach, and what a broker that does as it likes does not. */
#include "tests/cmocka.h"

#include <pthread.h>
#include <stdlib.h>

#include "common/transport/aggregator_session.h"
#include "common/transport/device_session.h"
#include "common/trust.h"
#include "tests/kit/pki_kit.h"

#define ROOM   SHEAF_ENVELOPE_HANDSHAKE_BYTES_MAX
#define DEVICE "device-01"

typedef struct {
    const pki_kit_files *files;
    sheaf_certificate *certificate;
    sheaf_signer *signer;
    sheaf_session_party party;
} end;

typedef struct {
    uint8_t bytes[ROOM];
    sheaf_buffer buffer;
} message;

static pki_kit *kit;
static end aggregator, other_aggregator, device, other_device, stranger;

static sheaf_status check(const sheaf_certificate *peer, void *context, sheaf_problem *problem) {
    (void)context;
    return sheaf_certificate_check_chain(peer, pki_kit_ca(kit), problem);
}

static void make_end(end *out, const char *role, const char *name, const pki_kit_options *options) {
    out->files = pki_kit_issue(kit, role, name, options);
    assert_int_equal(sheaf_certificate_from_pem_file(out->files->certificate, &out->certificate, NULL), SHEAF_OK);
    assert_int_equal(sheaf_signer_open(out->files->key, &out->signer, NULL), SHEAF_OK);
    out->party = (sheaf_session_party){out->certificate, out->signer, check, NULL};
}

static void free_end(end *one) {
    sheaf_certificate_unref(one->certificate);
    sheaf_signer_free(one->signer);
}

static int make_ends(void **state) {
    (void)state;
    const pki_kit_options foreign = {.other_ca = 1};
    const pki_kit_options edwards = {.key_type = "ed25519"};
    kit = pki_kit_make();
    make_end(&aggregator, "aggregator", "main", NULL);
    make_end(&other_aggregator, "aggregator", "second", &edwards);
    make_end(&device, "device", DEVICE, NULL);
    make_end(&other_device, "device", "device-02", &edwards);
    make_end(&stranger, "device", "device-03", &foreign);
    return 0;
}

static int free_ends(void **state) {
    (void)state;
    end *all[] = {&aggregator, &other_aggregator, &device, &other_device, &stranger};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free_end(all[i]);
    pki_kit_free(kit);
    return 0;
}

/* --- a handshake, step by step ------------------------------------------------------------------------------------ */

typedef struct {
    message open, challenge, session, accept;
    sheaf_device_session device;
    sheaf_session_challenge pending;
    sheaf_aggregator_session aggregator;
    sheaf_problem problem;
} talk;

static sheaf_buffer *room(message *of) {
    of->buffer = (sheaf_buffer){of->bytes, 0, sizeof of->bytes};
    return &of->buffer;
}
static sheaf_span said(const message *of) { return sheaf_buffer_span(&of->buffer); }

static talk *begin(void) {
    talk *made = calloc(1, sizeof *made);
    assert_non_null(made);
    assert_int_equal(sheaf_device_session_open(&made->device, NULL, 0, room(&made->open)), SHEAF_OK);
    return made;
}

static talk *challenged(void) {
    talk *made = begin();
    assert_int_equal(sheaf_session_challenge_make(&aggregator.party, DEVICE, said(&made->open), &made->pending,
                                                  room(&made->challenge), &made->problem),
                     SHEAF_OK);
    return made;
}

static talk *proved(const end *by) {
    talk *made = challenged();
    sheaf_status status = sheaf_device_session_answer(&made->device, &by->party, "main", said(&made->challenge),
                                                      room(&made->session), &made->problem);
    if (status != SHEAF_OK) fail_msg("answer: %s: %s", sheaf_status_name(status), made->problem.text);
    return made;
}

static sheaf_status admit(talk *of) {
    return sheaf_aggregator_session_admit(&of->pending, &aggregator.party, DEVICE, said(&of->session), &of->aggregator,
                                          room(&of->accept), &of->problem);
}

static talk *ready(void) {
    talk *made = proved(&device);
    sheaf_status status = admit(made);
    if (status != SHEAF_OK) fail_msg("admit: %s: %s", sheaf_status_name(status), made->problem.text);
    assert_int_equal(sheaf_device_session_accepted(&made->device, said(&made->accept)), SHEAF_OK);
    return made;
}

static void end_talk(talk *of) {
    sheaf_device_session_drop(&of->device);
    sheaf_session_challenge_drop(&of->pending);
    sheaf_aggregator_session_drop(&of->aggregator);
    free(of);
}

static uint64_t send_up(talk *of, const char *text, message *out) {
    uint64_t sequence = 0;
    assert_int_equal(sheaf_device_session_seal(&of->device, sheaf_span_of(text, strlen(text)), room(out), &sequence),
                     SHEAF_OK);
    return sequence;
}

static sheaf_status take_up(talk *of, sheaf_span bytes, message *frame, uint64_t *sequence) {
    return sheaf_aggregator_session_unseal(&of->aggregator, DEVICE, bytes, room(frame), sequence);
}

/* --- honest ends -------------------------------------------------------------------------------------------------- */

static void frames_go_both_ways(void **state) {
    (void)state;
    talk *both = ready();
    message up, down, frame;
    uint64_t asked = send_up(both, "a question", &up), sequence = 0, answers = 0;
    assert_int_equal(up.buffer.size, strlen("a question") + SHEAF_ENVELOPE_DATA_OVERHEAD);
    assert_int_equal(take_up(both, said(&up), &frame, &sequence), SHEAF_OK);
    assert_int_equal(sequence, asked);
    assert_memory_equal(frame.bytes, "a question", frame.buffer.size);
    assert_int_equal(
        sheaf_aggregator_session_seal(&both->aggregator, sequence, sheaf_span_of("an answer", 9), room(&down)),
        SHEAF_OK);
    assert_int_equal(down.buffer.size, 9 + SHEAF_ENVELOPE_REPLY_OVERHEAD);
    assert_int_equal(sheaf_device_session_unseal(&both->device, said(&down), room(&frame), &answers), SHEAF_OK);
    assert_int_equal(answers, asked);
    assert_int_equal(frame.buffer.size, 9);
    assert_memory_equal(frame.bytes, "an answer", 9);
    assert_string_equal(sheaf_certificate_identity(both->aggregator.device)->name, DEVICE);
    assert_string_equal(sheaf_certificate_identity(both->device.aggregator)->name, "main");
    end_talk(both);
}

static void frames_are_sealed_and_opened_in_place(void **state) {
    (void)state;
    talk *both = ready();
    message up;
    uint64_t sequence = 0;
    sheaf_buffer *out = room(&up);
    memcpy(out->data + SHEAF_ENVELOPE_DATA_CLEAR, "in place", 8);
    sheaf_span frame = sheaf_span_of(out->data + SHEAF_ENVELOPE_DATA_CLEAR, 8);
    assert_int_equal(sheaf_device_session_seal(&both->device, frame, out, &sequence), SHEAF_OK);
    sheaf_buffer opened = {up.bytes + SHEAF_ENVELOPE_DATA_CLEAR, 0, 8};
    assert_int_equal(sheaf_aggregator_session_unseal(&both->aggregator, DEVICE, said(&up), &opened, &sequence),
                     SHEAF_OK);
    assert_int_equal(opened.size, 8);
    assert_memory_equal(opened.data, "in place", 8);
    end_talk(both);
}

static void a_request_is_taken_back_and_sealed_anew(void **state) {
    (void)state;
    talk *both = ready();
    message up, frame;
    uint64_t sequence = send_up(both, "again", &up), second = 0, opened = 0;
    uint8_t *text = up.bytes + SHEAF_ENVELOPE_DATA_CLEAR;
    assert_int_equal(sheaf_device_session_take_back(&both->device, up.bytes, SHEAF_ENVELOPE_DATA_OVERHEAD - 1),
                     SHEAF_E_TRUNCATED);
    assert_int_equal(sheaf_device_session_take_back(&both->device, up.bytes, said(&up).size), SHEAF_OK);
    assert_memory_equal(text, "again", 5);
    assert_int_equal(sheaf_device_session_seal(&both->device, sheaf_span_of(text, 5), room(&up), &second), SHEAF_OK);
    assert_int_equal(second, sequence + 1);
    assert_int_equal(take_up(both, said(&up), &frame, &opened), SHEAF_OK);
    assert_int_equal(opened, second);
    assert_memory_equal(said(&frame).data, "again", 5);
    end_talk(both);
}

static void both_kems_and_both_kinds_of_keys_serve(void **state) {
    (void)state;
    static const sheaf_kem kems[] = {SHEAF_KEM_P256, SHEAF_KEM_X25519};
    const end *devices[] = {&device, &other_device}, *aggregators[] = {&aggregator, &other_aggregator};
    for (unsigned i = 0; i < 8; i++) {
        const end *who = devices[i & 1], *whom = aggregators[i >> 1 & 1];
        const char *name = sheaf_certificate_identity(who->certificate)->name;
        talk *both = calloc(1, sizeof *both);
        assert_int_equal(sheaf_device_session_open(&both->device, &kems[i >> 2], 1, room(&both->open)), SHEAF_OK);
        assert_int_equal(sheaf_session_challenge_make(&whom->party, name, said(&both->open), &both->pending,
                                                      room(&both->challenge), &both->problem),
                         SHEAF_OK);
        assert_int_equal(sheaf_device_session_answer(&both->device, &who->party, NULL, said(&both->challenge),
                                                     room(&both->session), &both->problem),
                         SHEAF_OK);
        assert_int_equal(sheaf_aggregator_session_admit(&both->pending, &whom->party, name, said(&both->session),
                                                        &both->aggregator, room(&both->accept), &both->problem),
                         SHEAF_OK);
        assert_int_equal(sheaf_device_session_accepted(&both->device, said(&both->accept)), SHEAF_OK);
        end_talk(both);
    }
}

static void a_lost_accept_is_given_again(void **state) {
    (void)state;
    talk *both = proved(&device);
    message again;
    assert_int_equal(admit(both), SHEAF_OK);
    assert_int_equal(sheaf_aggregator_session_accept_again(&both->aggregator, said(&both->session), room(&again)),
                     SHEAF_OK);
    assert_true(sheaf_span_equal(said(&again), said(&both->accept)));
    assert_int_equal(sheaf_device_session_accepted(&both->device, said(&again)), SHEAF_OK);
    end_talk(both);
}

static void *repeat_session(void *context) {
    talk *both = context;
    message again;
    for (size_t i = 0; i < 20000; i++) {
        sheaf_status status =
            sheaf_aggregator_session_accept_again(&both->aggregator, said(&both->session), room(&again));
        if (status != SHEAF_OK || !sheaf_span_equal(said(&again), said(&both->accept))) return context;
    }
    return NULL;
}

/* A broker may repeat SESSION at any moment: no reply may then leave under ACCEPT's nonce. */
static void a_session_message_repeated_while_replies_are_sealed_disturbs_none(void **state) {
    (void)state;
    talk *both = ready();
    message reply, frame;
    uint64_t answers = 0;
    void *failed = NULL;
    pthread_t broker;
    assert_int_equal(pthread_create(&broker, NULL, repeat_session, both), 0);
    for (size_t i = 0; i < 4000; i++) {
        sheaf_span text = sheaf_span_of("a reply of some length", 22);
        assert_int_equal(sheaf_aggregator_session_seal(&both->aggregator, i, text, room(&reply)), SHEAF_OK);
        assert_int_equal(sheaf_device_session_unseal(&both->device, said(&reply), room(&frame), &answers), SHEAF_OK);
        assert_int_equal(answers, i);
    }
    assert_int_equal(pthread_join(broker, &failed), 0);
    assert_null(failed);
    end_talk(both);
}

static void a_reject_names_its_reason_and_its_session(void **state) {
    (void)state;
    talk *one = begin(), *other = begin();
    message reject;
    sheaf_status reason = SHEAF_OK;
    assert_int_equal(sheaf_envelope_write_reject(one->device.id, SHEAF_E_REVOKED, room(&reject)), SHEAF_OK);
    assert_true(sheaf_device_session_rejected(&one->device, said(&reject), &reason));
    assert_int_equal(reason, SHEAF_E_REVOKED);
    assert_false(sheaf_device_session_rejected(&other->device, said(&reject), &reason));
    end_talk(one);
    end_talk(other);
}

static void members_of_a_group_read_what_is_cast(void **state) {
    (void)state;
    sheaf_cast_group group = {{1, 2, 3}, {4, 5, 6}}, other = {{9}, {4, 5, 6}}, wrong_key = {{1, 2, 3}, {7}};
    sheaf_cast_key sends, member, stranger_to_it, without_key;
    message cast, frame;
    uint64_t sequence = 0;
    assert_int_equal(sheaf_cast_key_begin(&sends, 0, &group), SHEAF_OK);
    assert_int_equal(sheaf_cast_key_begin(&member, 1, &group), SHEAF_OK);
    assert_int_equal(sheaf_cast_key_begin(&stranger_to_it, 1, &other), SHEAF_OK);
    assert_int_equal(sheaf_cast_key_begin(&without_key, 1, &wrong_key), SHEAF_OK);
    assert_int_equal(sheaf_cast_seal(&sends, 77, sheaf_span_of("a part", 6), room(&cast)), SHEAF_OK);
    assert_int_equal(sheaf_cast_open(&member, said(&cast), &sequence, room(&frame)), SHEAF_OK);
    assert_int_equal(sequence, 77);
    assert_memory_equal(frame.bytes, "a part", 6);
    assert_int_equal(sheaf_cast_open(&stranger_to_it, said(&cast), &sequence, room(&frame)), SHEAF_E_REPLAY);
    assert_int_equal(sheaf_cast_open(&without_key, said(&cast), &sequence, room(&frame)), SHEAF_E_SEAL);
    cast.bytes[SHEAF_ENVELOPE_HEAD_BYTES] ^= 1; /* the sequence */
    assert_int_equal(sheaf_cast_open(&member, said(&cast), &sequence, room(&frame)), SHEAF_E_SEAL);
    sheaf_cast_key_drop(&sends);
    sheaf_cast_key_drop(&member);
    sheaf_cast_key_drop(&stranger_to_it);
    sheaf_cast_key_drop(&without_key);
}

/* RFC 4303, appendix A, with a window of 64: by hand. */
static void numbers_are_taken_once_and_not_when_old(void **state) {
    (void)state;
    sheaf_replay_window window = {0, 0};
    static const struct {
        uint64_t sequence;
        int allowed;
    } steps[] = {{0, 1},         {0, 0},   {5, 1},   {3, 1},   {3, 0},
                 {5, 0},         {68, 1},  {4, 0},   {6, 1},   {5, 0},
                 {67, 1},        {200, 1}, {136, 0}, {137, 1}, {UINT64_C(1) << 32, 0},
                 {UINT64_MAX, 0}};
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        int allowed = sheaf_replay_window_allows(&window, steps[i].sequence);
        if (allowed != steps[i].allowed) fail_msg("step %zu: %d", i, allowed);
        if (allowed) sheaf_replay_window_mark(&window, steps[i].sequence);
    }
}

/* --- the broker as attacker --------------------------------------------------------------------------------------- */

static void a_recorded_session_message_is_a_replay(void **state) {
    (void)state;
    talk *old = proved(&device), *new = challenged();
    assert_int_equal(sheaf_aggregator_session_admit(&new->pending, &aggregator.party, DEVICE, said(&old->session),
                                                    &new->aggregator, room(&new->accept), &new->problem),
                     SHEAF_E_REPLAY);
    assert_non_null(new->pending.pair.key); /* the true one may still come */
    end_talk(old);
    end_talk(new);
}

static void a_used_challenge_admits_nobody(void **state) {
    (void)state;
    talk *both = proved(&device);
    assert_int_equal(admit(both), SHEAF_OK);
    sheaf_aggregator_session_drop(&both->aggregator);
    assert_int_equal(admit(both), SHEAF_E_REPLAY);
    end_talk(both);
}

static void recorded_requests_are_refused_in_their_session_and_in_others(void **state) {
    (void)state;
    talk *one = ready(), *other = ready();
    message up, frame;
    uint64_t sequence = 0;
    (void)send_up(one, "once", &up);
    assert_int_equal(take_up(one, said(&up), &frame, &sequence), SHEAF_OK);
    assert_int_equal(take_up(one, said(&up), &frame, &sequence), SHEAF_E_REPLAY);
    assert_int_equal(take_up(other, said(&up), &frame, &sequence), SHEAF_E_REPLAY);
    memcpy(up.bytes + 5, other->device.id, SHEAF_SESSION_ID_BYTES); /* moved into the other session */
    assert_int_equal(take_up(other, said(&up), &frame, &sequence), SHEAF_E_SEAL);
    end_talk(one);
    end_talk(other);
}

static void a_message_that_comes_back_to_its_sender_is_malformed(void **state) {
    (void)state;
    talk *both = ready();
    message up, down, frame;
    uint64_t number = 0;
    (void)send_up(both, "mirror", &up);
    assert_int_equal(sheaf_device_session_unseal(&both->device, said(&up), room(&frame), &number), SHEAF_E_MALFORMED);
    assert_int_equal(sheaf_aggregator_session_seal(&both->aggregator, 1, sheaf_span_of("x", 1), room(&down)), SHEAF_OK);
    assert_int_equal(take_up(both, said(&down), &frame, &number), SHEAF_E_MALFORMED);
    end_talk(both);
}

static void a_reply_moved_to_another_request_does_not_open(void **state) {
    (void)state;
    talk *both = ready();
    message down, frame;
    uint64_t answers = 0;
    assert_int_equal(sheaf_aggregator_session_seal(&both->aggregator, 1, sheaf_span_of("x", 1), room(&down)), SHEAF_OK);
    down.bytes[SHEAF_ENVELOPE_HEAD_BYTES + 8] ^= 3; /* the request that it answers */
    assert_int_equal(sheaf_device_session_unseal(&both->device, said(&down), room(&frame), &answers), SHEAF_E_SEAL);
    down.bytes[SHEAF_ENVELOPE_HEAD_BYTES + 8] ^= 3;
    assert_int_equal(sheaf_device_session_unseal(&both->device, said(&down), room(&frame), &answers), SHEAF_OK);
    assert_int_equal(sheaf_device_session_unseal(&both->device, said(&down), room(&frame), &answers), SHEAF_E_REPLAY);
    end_talk(both);
}

static void two_replies_to_one_request_have_numbers_of_their_own(void **state) {
    (void)state;
    talk *both = ready();
    message one, other;
    assert_int_equal(sheaf_aggregator_session_seal(&both->aggregator, 1, sheaf_span_of("yes", 3), room(&one)),
                     SHEAF_OK);
    assert_int_equal(sheaf_aggregator_session_seal(&both->aggregator, 1, sheaf_span_of("not", 3), room(&other)),
                     SHEAF_OK);
    assert_memory_not_equal(one.bytes + SHEAF_ENVELOPE_HEAD_BYTES, other.bytes + SHEAF_ENVELOPE_HEAD_BYTES, 8);
    end_talk(both);
}

static void another_aggregator_is_named(void **state) {
    (void)state;
    talk *both = begin();
    assert_int_equal(sheaf_session_challenge_make(&other_aggregator.party, DEVICE, said(&both->open), &both->pending,
                                                  room(&both->challenge), &both->problem),
                     SHEAF_OK);
    assert_int_equal(sheaf_device_session_answer(&both->device, &device.party, "main", said(&both->challenge),
                                                 room(&both->session), &both->problem),
                     SHEAF_E_IDENTITY);
    assert_non_null(strstr(both->problem.text, "second"));
    end_talk(both);
}

static void a_challenge_to_somebody_else_is_not_signed_for_this_device(void **state) {
    (void)state;
    talk *both = begin();
    assert_int_equal(sheaf_session_challenge_make(&aggregator.party, "device-02", said(&both->open), &both->pending,
                                                  room(&both->challenge), &both->problem),
                     SHEAF_OK);
    assert_int_equal(sheaf_device_session_answer(&both->device, &device.party, "main", said(&both->challenge),
                                                 room(&both->session), &both->problem),
                     SHEAF_E_SIGNATURE);
    end_talk(both);
}

static void a_device_is_no_aggregator_and_an_aggregator_no_device(void **state) {
    (void)state;
    talk *both = begin();
    assert_int_equal(sheaf_session_challenge_make(&other_device.party, DEVICE, said(&both->open), &both->pending,
                                                  room(&both->challenge), &both->problem),
                     SHEAF_OK);
    assert_int_equal(sheaf_device_session_answer(&both->device, &device.party, NULL, said(&both->challenge),
                                                 room(&both->session), &both->problem),
                     SHEAF_E_ROLE);
    end_talk(both);
    both = calloc(1, sizeof *both);
    assert_int_equal(sheaf_device_session_open(&both->device, NULL, 0, room(&both->open)), SHEAF_OK);
    assert_int_equal(sheaf_session_challenge_make(&aggregator.party, "second", said(&both->open), &both->pending,
                                                  room(&both->challenge), &both->problem),
                     SHEAF_OK);
    assert_int_equal(sheaf_device_session_answer(&both->device, &other_aggregator.party, NULL, said(&both->challenge),
                                                 room(&both->session), &both->problem),
                     SHEAF_OK);
    assert_int_equal(sheaf_aggregator_session_admit(&both->pending, &aggregator.party, "second", said(&both->session),
                                                    &both->aggregator, room(&both->accept), &both->problem),
                     SHEAF_E_ROLE);
    end_talk(both);
}

/* The other device makes the handshake by its own certificate on this device's topic: all it can claim is its own name,
 * and T1 holds the topic's. */
static void a_certificate_on_a_foreign_topic_is_refused(void **state) {
    (void)state;
    talk *both = begin();
    assert_int_equal(sheaf_session_challenge_make(&aggregator.party, "device-02", said(&both->open), &both->pending,
                                                  room(&both->challenge), &both->problem),
                     SHEAF_OK);
    assert_int_equal(sheaf_device_session_answer(&both->device, &other_device.party, NULL, said(&both->challenge),
                                                 room(&both->session), &both->problem),
                     SHEAF_OK);
    assert_int_equal(admit(both), SHEAF_E_IDENTITY);
    end_talk(both);
}

static void a_certificate_of_an_unknown_authority_is_refused(void **state) {
    (void)state;
    talk *both = begin();
    assert_int_equal(sheaf_session_challenge_make(&aggregator.party, "device-03", said(&both->open), &both->pending,
                                                  room(&both->challenge), &both->problem),
                     SHEAF_OK);
    assert_int_equal(sheaf_device_session_answer(&both->device, &stranger.party, NULL, said(&both->challenge),
                                                 room(&both->session), &both->problem),
                     SHEAF_OK);
    assert_int_equal(sheaf_aggregator_session_admit(&both->pending, &aggregator.party, "device-03",
                                                    said(&both->session), &both->aggregator, room(&both->accept),
                                                    &both->problem),
                     SHEAF_E_CERTIFICATE);
    end_talk(both);
}

static void another_version_is_named_and_nothing_less_is_settled_for(void **state) {
    (void)state;
    talk *both = begin();
    sheaf_session_challenge pending;
    for (unsigned version = 0; version < 3; version += 2) {
        both->open.bytes[3] = (uint8_t)version;
        assert_int_equal(sheaf_session_challenge_make(&aggregator.party, DEVICE, said(&both->open), &pending,
                                                      room(&both->challenge), &both->problem),
                         SHEAF_E_VERSION);
    }
    both->open.bytes[3] = 1;
    memset(both->open.bytes + 22, 0x7f, 4); /* KEMs that nobody knows */
    assert_int_equal(sheaf_session_challenge_make(&aggregator.party, DEVICE, said(&both->open), &pending,
                                                  room(&both->challenge), &both->problem),
                     SHEAF_E_VERSION);
    end_talk(both);
}

/* A KEM taken out of OPEN's list on the way changes T1. */
static void a_list_of_kems_that_was_changed_on_the_way_is_noticed(void **state) {
    (void)state;
    talk *both = begin();
    memcpy(both->open.bytes + 22, both->open.bytes + 24, 2); /* X25519 first, and P-256 gone */
    assert_int_equal(sheaf_session_challenge_make(&aggregator.party, DEVICE, said(&both->open), &both->pending,
                                                  room(&both->challenge), &both->problem),
                     SHEAF_OK);
    assert_int_equal(sheaf_device_session_answer(&both->device, &device.party, "main", said(&both->challenge),
                                                 room(&both->session), &both->problem),
                     SHEAF_E_SIGNATURE);
    end_talk(both);
}

/* --- every byte, every cut ---------------------------------------------------------------------------------------- */

static void no_changed_byte_of_a_challenge_is_believed(void **state) {
    (void)state;
    talk *both = challenged();
    for (size_t at = 0; at < both->challenge.buffer.size; at += at < 120 ? 1 : 7) {
        both->challenge.bytes[at] ^= 0x10;
        assert_int_not_equal(sheaf_device_session_answer(&both->device, &device.party, "main", said(&both->challenge),
                                                         room(&both->session), &both->problem),
                             SHEAF_OK);
        both->challenge.bytes[at] ^= 0x10;
    }
    assert_int_equal(sheaf_device_session_answer(&both->device, &device.party, "main", said(&both->challenge),
                                                 room(&both->session), &both->problem),
                     SHEAF_OK);
    end_talk(both);
}

static void no_changed_byte_of_a_session_message_is_believed(void **state) {
    (void)state;
    for (size_t at = 0; at < 250; at += 9) {
        talk *both = proved(&device);
        both->session.bytes[at] ^= 0x20;
        assert_int_not_equal(admit(both), SHEAF_OK);
        assert_null(both->aggregator.device);
        end_talk(both);
    }
}

static void no_changed_or_missing_byte_of_a_request_is_believed(void **state) {
    (void)state;
    talk *both = ready();
    message up, frame;
    uint64_t sequence = 0;
    (void)send_up(both, "some bytes of a frame", &up);
    for (size_t at = 0; at < up.buffer.size; at++) {
        up.bytes[at] ^= 0x08;
        assert_int_not_equal(take_up(both, said(&up), &frame, &sequence), SHEAF_OK);
        up.bytes[at] ^= 0x08;
        assert_int_not_equal(take_up(both, sheaf_span_of(up.bytes, at), &frame, &sequence), SHEAF_OK);
    }
    assert_int_equal(take_up(both, said(&up), &frame, &sequence), SHEAF_OK);
    end_talk(both);
}

static void messages_in_the_wrong_state_change_nothing(void **state) {
    (void)state;
    talk *both = proved(&device);
    message up, frame;
    uint64_t number = 0;
    assert_int_equal(sheaf_device_session_seal(&both->device, sheaf_span_of("x", 1), room(&up), &number), SHEAF_AGAIN);
    assert_int_equal(sheaf_device_session_unseal(&both->device, said(&both->challenge), room(&frame), &number),
                     SHEAF_AGAIN);
    assert_int_equal(sheaf_device_session_answer(&both->device, &device.party, "main", said(&both->challenge),
                                                 room(&up), &both->problem),
                     SHEAF_AGAIN);
    assert_int_equal(admit(both), SHEAF_OK);
    assert_int_equal(sheaf_device_session_accepted(&both->device, said(&both->accept)), SHEAF_OK);
    assert_int_equal(sheaf_device_session_accepted(&both->device, said(&both->accept)), SHEAF_AGAIN);
    end_talk(both);
}

static void a_session_ends_before_its_numbers_do(void **state) {
    (void)state;
    talk *both = ready();
    message up, down;
    uint64_t number = 0;
    both->device.next_up = both->aggregator.next_down = SHEAF_SESSION_MESSAGES_MAX;
    assert_int_equal(sheaf_device_session_seal(&both->device, sheaf_span_of("x", 1), room(&up), &number),
                     SHEAF_E_CLOSED);
    assert_int_equal(sheaf_aggregator_session_seal(&both->aggregator, 1, sheaf_span_of("x", 1), room(&down)),
                     SHEAF_E_CLOSED);
    end_talk(both);
}

static void what_does_not_fit_is_said(void **state) {
    (void)state;
    talk *both = ready();
    message up;
    uint8_t small[SHEAF_ENVELOPE_DATA_OVERHEAD + 2];
    sheaf_buffer tight = {small, 0, sizeof small};
    uint64_t number = 0;
    assert_int_equal(sheaf_device_session_seal(&both->device, sheaf_span_of("abc", 3), &tight, &number),
                     SHEAF_E_TOO_LARGE);
    (void)send_up(both, "abc", &up);
    tight.capacity = 2;
    assert_int_equal(sheaf_aggregator_session_unseal(&both->aggregator, DEVICE, said(&up), &tight, &number),
                     SHEAF_E_TOO_LARGE);
    end_talk(both);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frames_go_both_ways),
        cmocka_unit_test(frames_are_sealed_and_opened_in_place),
        cmocka_unit_test(a_request_is_taken_back_and_sealed_anew),
        cmocka_unit_test(both_kems_and_both_kinds_of_keys_serve),
        cmocka_unit_test(a_lost_accept_is_given_again),
        cmocka_unit_test(a_session_message_repeated_while_replies_are_sealed_disturbs_none),
        cmocka_unit_test(a_reject_names_its_reason_and_its_session),
        cmocka_unit_test(members_of_a_group_read_what_is_cast),
        cmocka_unit_test(numbers_are_taken_once_and_not_when_old),
        cmocka_unit_test(a_recorded_session_message_is_a_replay),
        cmocka_unit_test(a_used_challenge_admits_nobody),
        cmocka_unit_test(recorded_requests_are_refused_in_their_session_and_in_others),
        cmocka_unit_test(a_message_that_comes_back_to_its_sender_is_malformed),
        cmocka_unit_test(a_reply_moved_to_another_request_does_not_open),
        cmocka_unit_test(two_replies_to_one_request_have_numbers_of_their_own),
        cmocka_unit_test(another_aggregator_is_named),
        cmocka_unit_test(a_challenge_to_somebody_else_is_not_signed_for_this_device),
        cmocka_unit_test(a_device_is_no_aggregator_and_an_aggregator_no_device),
        cmocka_unit_test(a_certificate_on_a_foreign_topic_is_refused),
        cmocka_unit_test(a_certificate_of_an_unknown_authority_is_refused),
        cmocka_unit_test(another_version_is_named_and_nothing_less_is_settled_for),
        cmocka_unit_test(a_list_of_kems_that_was_changed_on_the_way_is_noticed),
        cmocka_unit_test(no_changed_byte_of_a_challenge_is_believed),
        cmocka_unit_test(no_changed_byte_of_a_session_message_is_believed),
        cmocka_unit_test(no_changed_or_missing_byte_of_a_request_is_believed),
        cmocka_unit_test(messages_in_the_wrong_state_change_nothing),
        cmocka_unit_test(a_session_ends_before_its_numbers_do),
        cmocka_unit_test(what_does_not_fit_is_said),
    };
    return cmocka_run_group_tests_name("unit.transport.envelope", tests, make_ends, free_ends);
}
