#include "common/transport/mqtt_client.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <mosquitto.h>
#include <mqtt_protocol.h>
#include <openssl/err.h>
#include <openssl/rand.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "common/transport/tls_source.h"

#define KEEP_ALIVE_S      20
#define PAUSE_MIN_MS      100u
#define PAUSE_MAX_MS      10000u
#define TAKEN_MIN_MS      2000u /* another client has our name */
#define TAKEN_MAX_MS      60000u
#define STEADY_MS         5000u /* a connection that lasted so long makes pauses small again */
#define PAUSE_FLAPPING_MS 500u  /* after a connection that did not last */
#define TURN_MS           1000u
#define JOINED_MAX        4u
#define THREAD_STACK      (512u * 1024u)
#define MOVED_MIN         512u /* a keep-alive is about fifty bytes each way in 20 s */

typedef struct posted posted;
struct posted {
    posted *next;
    uint8_t *message;
    size_t size;
    char topic[SHEAF_MQTT_TOPIC_BYTES];
};

struct sheaf_mqtt_client {
    sheaf_mqtt_events events;
    char *url;
    char host[256], tls_host[256];
    int port;
    uint32_t handshake_ms;
    sheaf_tls_source *tls;
    pthread_t thread;
    int wake_fd;

    pthread_mutex_t lock; /* guards what follows up to the thread's own */
    posted *oldest, **newest;
    size_t queued_bytes;
    char joined[JOINED_MAX][SHEAF_MQTT_TOPIC_BYTES], left[JOINED_MAX][SHEAF_MQTT_TOPIC_BYTES];
    int is_new[JOINED_MAX]; /* not subscribed on this connection yet */
    int closing;
    uint64_t linger_until_ms;

    _Atomic uint64_t moved; /* movement.sent + .received, for everybody */

    struct mosquitto *connection; /* the thread's own from here on */
    SSL_CTX *context;
    int is_connected, is_lost;
    uint64_t since_ms, deadline_ms, retry_ms;
    uint32_t pause_ms, taken_ms;
    int alert, is_taken_over;
    sheaf_mqtt_movement movement;     /* over all connections */
    uint64_t written_seen, read_seen; /* of this one's bytes: those in `movement` */
    uint64_t read_at_message;         /* its bytes when the last message had come */
    sheaf_problem reason;             /* why the connection under way fails */
};

static _Thread_local const sheaf_mqtt_client *running; /* whose thread this is */

uint64_t sheaf_mqtt_now_ms(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000u + (uint64_t)now.tv_nsec / 1000000u;
}

/* --- who the broker is -------------------------------------------------------------------------------------------- */

/* The broker carries messages and is not to be believed, so all that matters is that it is one of ours, for this host, and
 * not an aggregator: whoever has an aggregator's key can be one. */
static sheaf_status judge_broker(X509_STORE_CTX *store, const char *host, sheaf_problem *problem) {
    sheaf_certificate *peer = NULL;
    if (X509_verify_cert(store) != 1) {
        int error = X509_STORE_CTX_get_error(store);
        sheaf_status status = sheaf_trust_explain(store, problem);
        if (error == X509_V_ERR_HOSTNAME_MISMATCH || error == X509_V_ERR_IP_ADDRESS_MISMATCH)
            return sheaf_problem_set(problem, status, "the broker's certificate is not for %.100s", host);
        if (error == X509_V_ERR_INVALID_PURPOSE)
            return sheaf_problem_set(problem, SHEAF_E_ROLE,
                                     "the broker's certificate is not one of a broker (sheaf pki issue --role broker)");
        (void)sheaf_problem_prefix(problem, "the broker's certificate is refused");
        return status;
    }
    sheaf_status status = sheaf_tls_read_peer(store, &peer, problem);
    if (status == SHEAF_OK && sheaf_certificate_identity(peer)->role != SHEAF_ROLE_BROKER)
        status = sheaf_problem_set(problem, SHEAF_E_ROLE,
                                   "the broker's certificate has the role %s; expected broker, so that it cannot pass "
                                   "for an aggregator (sheaf pki issue --role broker)",
                                   sheaf_role_name(sheaf_certificate_identity(peer)->role));
    sheaf_certificate_unref(peer);
    return status;
}

static int verify_broker(X509_STORE_CTX *store, void *argument) {
    sheaf_mqtt_client *client = argument;
    if (judge_broker(store, client->tls_host, &client->reason) == SHEAF_OK) return 1;
    if (X509_STORE_CTX_get_error(store) == X509_V_OK) X509_STORE_CTX_set_error(store, X509_V_ERR_CERT_REJECTED);
    return 0;
}

static void note_alert(const SSL *ssl, int where, int value) {
    sheaf_mqtt_client *client = SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl));
    if (where == SSL_CB_READ_ALERT && (value & 0xff) != SSL_AD_CLOSE_NOTIFY) client->alert = value & 0xff;
}

static int expect_host(SSL_CTX *context, const char *host) {
    X509_VERIFY_PARAM *param = SSL_CTX_get0_param(context);
    X509_VERIFY_PARAM_set_hostflags(param, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS | X509_CHECK_FLAG_NEVER_CHECK_SUBJECT);
    if (X509_VERIFY_PARAM_set1_ip_asc(param, host)) return 1;
    ERR_clear_error(); /* not an address, so a name */
    return X509_VERIFY_PARAM_set1_host(param, host, 0);
}

static int take_context(sheaf_mqtt_client *client) {
    client->context = sheaf_tls_source_context(client->tls);
    if (client->context == NULL || !expect_host(client->context, client->tls_host)) return 0;
    SSL_CTX_set_cert_verify_callback(client->context, verify_broker, client);
    SSL_CTX_set_info_callback(client->context, note_alert);
    SSL_CTX_set_app_data(client->context, client);
    return 1;
}

/* --- a connection begins and ends --------------------------------------------------------------------------------- */

static void grow_pause(sheaf_mqtt_client *client, uint64_t now) {
    uint8_t random[2] = {0, 0};
    if (client->is_connected && now - client->since_ms >= STEADY_MS) client->pause_ms = PAUSE_MIN_MS;
    /* The broker is there, if it does not stay: who waits long for it misses the times when it does. */
    if (client->is_connected && client->pause_ms > PAUSE_FLAPPING_MS) client->pause_ms = PAUSE_FLAPPING_MS;
    if (client->is_connected && now - client->since_ms >= TAKEN_MAX_MS) client->taken_ms = TAKEN_MIN_MS;
    uint32_t *pause = client->is_taken_over ? &client->taken_ms : &client->pause_ms;
    uint32_t most = client->is_taken_over ? TAKEN_MAX_MS : PAUSE_MAX_MS;
    (void)RAND_bytes(random, sizeof random); /* without it pauses only lose their jitter */
    client->retry_ms = now + *pause + (uint64_t)*pause * (uint32_t)(random[0] | random[1] << 8) / 65536u;
    *pause = *pause > most / 2u ? most : *pause * 2u;
}

static void drop_posted(sheaf_mqtt_client *client) {
    pthread_mutex_lock(&client->lock);
    posted *item = client->oldest;
    client->oldest = NULL;
    client->newest = &client->oldest;
    client->queued_bytes = 0;
    pthread_mutex_unlock(&client->lock);
    while (item != NULL) {
        posted *next = item->next;
        free(item->message);
        free(item);
        item = next;
    }
}

static void end_connection(sheaf_mqtt_client *client) {
    if (client->connection != NULL) mosquitto_destroy(client->connection);
    SSL_CTX_free(client->context);
    client->connection = NULL;
    client->context = NULL;
    client->written_seen = client->read_seen = client->read_at_message = 0;
    ERR_clear_error();
}

/* Bytes of TLS that were read from this connection. */
static uint64_t bytes_read(const sheaf_mqtt_client *client) {
    const SSL *ssl = client->connection != NULL ? mosquitto_ssl_get(client->connection) : NULL;
    return ssl != NULL && SSL_get_rbio(ssl) != NULL ? BIO_number_read(SSL_get_rbio(ssl)) : 0;
}

/* What the handshake found is nearer to the cause than the alert, and that nearer than libmosquitto's number. */
static void explain(sheaf_mqtt_client *client, const char *text) {
    sheaf_problem *problem = &client->reason;
    if (client->is_taken_over)
        (void)sheaf_problem_set(problem, SHEAF_E_NETWORK,
                                "another client of the broker uses this certificate's name: a copy of this device, or "
                                "another with its certificate");
    else if (client->alert >= 0 && problem->status == SHEAF_OK)
        (void)sheaf_problem_set(problem, SHEAF_E_NETWORK, "the broker refused: TLS alert '%s'",
                                SSL_alert_desc_string_long(client->alert));
    else if (problem->status == SHEAF_OK)
        (void)sheaf_problem_set(problem, SHEAF_E_NETWORK, "%s", text);
    (void)sheaf_problem_prefix(problem, "%s", client->url);
}

static void lose(sheaf_mqtt_client *client, const char *text) {
    int was_connected = client->is_connected;
    explain(client, text);
    end_connection(client);
    drop_posted(client);
    grow_pause(client, sheaf_mqtt_now_ms());
    client->is_connected = client->is_lost = 0;
    client->events.on_lost(client->events.context, was_connected, &client->reason);
}

static void on_connect(struct mosquitto *connection, void *argument, int code, int flags,
                       const mosquitto_property *properties) {
    (void)connection, (void)flags, (void)properties;
    sheaf_mqtt_client *client = argument;
    if (code == 0) {
        client->is_connected = 1;
        client->since_ms = sheaf_mqtt_now_ms();
        return;
    }
    client->is_lost = 1;
    (void)sheaf_problem_set(&client->reason, SHEAF_E_NETWORK, "the broker refused: %s", mosquitto_reason_string(code));
}

static void on_disconnect(struct mosquitto *connection, void *argument, int code,
                          const mosquitto_property *properties) {
    (void)connection, (void)properties;
    sheaf_mqtt_client *client = argument;
    client->is_lost = 1;
    client->is_taken_over = code == MQTT_RC_SESSION_TAKEN_OVER;
    if (code >= 128 && !client->is_taken_over)
        (void)sheaf_problem_set(&client->reason, SHEAF_E_NETWORK, "the broker ended the connection: %s",
                                mosquitto_reason_string(code));
}

static void on_message(struct mosquitto *connection, void *argument, const struct mosquitto_message *message,
                       const mosquitto_property *properties) {
    (void)connection, (void)properties;
    sheaf_mqtt_client *client = argument;
    client->read_at_message = bytes_read(client);
    if (message->payloadlen < 0) return;
    client->events.on_message(client->events.context, message->topic,
                              sheaf_span_of(message->payload, (size_t)message->payloadlen), message->retain);
}

static int prepare_connection(sheaf_mqtt_client *client) {
    client->connection = mosquitto_new(NULL, true, client);
    if (client->connection == NULL || !take_context(client)) return 0;
    struct mosquitto *connection = client->connection;
    mosquitto_connect_v5_callback_set(connection, on_connect);
    mosquitto_disconnect_v5_callback_set(connection, on_disconnect);
    mosquitto_message_v5_callback_set(connection, on_message);
    return mosquitto_int_option(connection, MOSQ_OPT_PROTOCOL_VERSION, MQTT_PROTOCOL_V5) == MOSQ_ERR_SUCCESS &&
           mosquitto_int_option(connection, MOSQ_OPT_TCP_NODELAY, 1) == MOSQ_ERR_SUCCESS &&
           mosquitto_int_option(connection, MOSQ_OPT_SSL_CTX_WITH_DEFAULTS, 0) == MOSQ_ERR_SUCCESS &&
           mosquitto_void_option(connection, MOSQ_OPT_SSL_CTX, client->context) == MOSQ_ERR_SUCCESS;
}

static void begin_connection(sheaf_mqtt_client *client) {
    client->reason = (sheaf_problem){SHEAF_OK, ""};
    client->alert = -1;
    client->is_taken_over = client->is_lost = 0;
    client->deadline_ms = sheaf_mqtt_now_ms() + client->handshake_ms;
    if (!prepare_connection(client)) {
        lose(client, "no memory for a connection");
        return;
    }
    int error = mosquitto_connect_bind_async(client->connection, client->host, client->port, KEEP_ALIVE_S, NULL);
    if (error != MOSQ_ERR_SUCCESS && error != MOSQ_ERR_CONN_PENDING)
        lose(client, error == MOSQ_ERR_ERRNO ? strerror(errno) : mosquitto_strerror(error));
}

/* --- what the thread does in a turn ------------------------------------------------------------------------------- */

static int copy_topics(sheaf_mqtt_client *client, int all, char left[JOINED_MAX][SHEAF_MQTT_TOPIC_BYTES],
                       char joined[JOINED_MAX][SHEAF_MQTT_TOPIC_BYTES]) {
    int count = 0;
    pthread_mutex_lock(&client->lock);
    for (unsigned i = 0; i < JOINED_MAX; i++) {
        int wanted = client->joined[i][0] != '\0' && (all || client->is_new[i]);
        memcpy(left[i], client->left[i], sizeof left[i]);
        memcpy(joined[i], wanted ? client->joined[i] : "", wanted ? sizeof joined[i] : 1);
        count += wanted || left[i][0] != '\0';
        client->is_new[i] = 0;
        client->left[i][0] = '\0';
    }
    pthread_mutex_unlock(&client->lock);
    return count;
}

static void subscribe(sheaf_mqtt_client *client, int all) {
    char left[JOINED_MAX][SHEAF_MQTT_TOPIC_BYTES], joined[JOINED_MAX][SHEAF_MQTT_TOPIC_BYTES];
    if (copy_topics(client, all, left, joined) == 0) return;
    for (unsigned i = 0; i < JOINED_MAX; i++) {
        if (left[i][0] != '\0' && !all) (void)mosquitto_unsubscribe(client->connection, NULL, left[i]);
        if (joined[i][0] != '\0')
            (void)mosquitto_subscribe_v5(client->connection, NULL, joined[i], 0, MQTT_SUB_OPT_NO_LOCAL, NULL);
    }
}

sheaf_status sheaf_mqtt_client_publish(sheaf_mqtt_client *client, const char *topic, sheaf_span message) {
    if (!client->is_connected || client->is_lost || mosquitto_want_write(client->connection)) return SHEAF_AGAIN;
    int error = mosquitto_publish_v5(client->connection, NULL, topic, (int)message.size, message.data, 0, false, NULL);
    if (error == MOSQ_ERR_CONN_LOST || error == MOSQ_ERR_NO_CONN || error == MOSQ_ERR_ERRNO || error == MOSQ_ERR_TLS)
        client->is_lost = 1;
    return error == MOSQ_ERR_SUCCESS ? SHEAF_OK : SHEAF_AGAIN;
}

static posted *take_posted(sheaf_mqtt_client *client) {
    pthread_mutex_lock(&client->lock);
    posted *item = client->oldest;
    if (item != NULL) {
        client->oldest = item->next;
        if (client->oldest == NULL) client->newest = &client->oldest;
        client->queued_bytes -= item->size;
    }
    pthread_mutex_unlock(&client->lock);
    return item;
}

static void send_posted(sheaf_mqtt_client *client) {
    while (client->is_connected && !client->is_lost && !mosquitto_want_write(client->connection)) {
        posted *item = take_posted(client);
        if (item == NULL) return;
        (void)sheaf_mqtt_client_publish(client, item->topic,
                                        sheaf_buffer_span(&(sheaf_buffer){item->message, item->size, item->size}));
        free(item->message);
        free(item);
    }
}

static int has_bytes_of_tls(const sheaf_mqtt_client *client) {
    const SSL *ssl = mosquitto_ssl_get(client->connection);
    return ssl != NULL && SSL_pending(ssl) > 0;
}

static int wait_for_something(sheaf_mqtt_client *client, uint64_t until, int reads, int *wait_error) {
    struct pollfd files[2] = {{client->wake_fd, POLLIN, 0}, {-1, 0, 0}};
    uint64_t now = sheaf_mqtt_now_ms(), left = until > now ? until - now : 0;
    if (client->connection != NULL) {
        int writes = client->is_connected ? mosquitto_want_write(client->connection) : 0;
        files[1].fd = mosquitto_socket(client->connection);
        files[1].events = (short)((reads ? POLLIN : 0) | (writes || !client->is_connected ? POLLOUT : 0));
        if (reads && has_bytes_of_tls(client)) left = 0;
    }
    (void)poll(files, 2, (int)(left > TURN_MS ? TURN_MS : left));
    uint64_t woken;
    if ((files[0].revents & POLLIN) != 0) (void)!read(client->wake_fd, &woken, sizeof woken);
    *wait_error = 0;
    if ((files[1].revents & (POLLERR | POLLHUP)) != 0) {
        socklen_t size = sizeof *wait_error;
        (void)getsockopt(files[1].fd, SOL_SOCKET, SO_ERROR, wait_error, &size);
    }
    return files[1].revents;
}

/* A connection that is not there yet would otherwise wake us all the time: its socket takes bytes, but TLS waits. */
static void rest_while_connecting(const sheaf_mqtt_client *client, int events) {
    const struct timespec moment = {0, 1000000};
    if (client->connection != NULL && !client->is_connected && (events & (POLLIN | POLLERR | POLLHUP)) == 0)
        (void)nanosleep(&moment, NULL);
}

/* libmosquitto takes the end of a connection in the middle of TLS's handshake for bytes that are still to come. What came
 * before the end, an alert perhaps, is read first. */
static int has_ended(const sheaf_mqtt_client *client, int events) {
    char byte;
    return !client->is_connected && (events & (POLLIN | POLLHUP)) != 0 &&
           recv(mosquitto_socket(client->connection), &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

static int is_failure(int error) { return error != MOSQ_ERR_SUCCESS && error != MOSQ_ERR_CONN_PENDING; }

static void move_bytes(sheaf_mqtt_client *client, int events, int reads, int wait_error) {
    int was_connected = client->is_connected, error = MOSQ_ERR_SUCCESS;
    if (wait_error != 0) {
        lose(client, strerror(wait_error));
        return;
    }
    if (has_ended(client, events)) {
        lose(client, "the broker closed the connection before its handshake ended");
        return;
    }
    errno = 0;
    if (reads && ((events & (POLLIN | POLLERR | POLLHUP)) != 0 || !was_connected || has_bytes_of_tls(client)))
        error = mosquitto_loop_read(client->connection, 1);
    if (!is_failure(error) && !client->is_lost && (was_connected || client->is_connected) &&
        mosquitto_want_write(client->connection))
        error = mosquitto_loop_write(client->connection, 1);
    else if (!is_failure(error) && !client->is_lost && !client->is_connected)
        error = mosquitto_loop_write(client->connection, 1);
    if (!is_failure(error) && !client->is_lost) error = mosquitto_loop_misc(client->connection);
    if (is_failure(error) || client->is_lost || mosquitto_socket(client->connection) < 0) {
        lose(client, is_failure(error) ? mosquitto_strerror(error) : "the connection was lost");
    } else if (!client->is_connected && sheaf_mqtt_now_ms() > client->deadline_ms) {
        lose(client, "the broker does not answer");
    } else if (client->is_connected && !was_connected) {
        subscribe(client, 1);
        client->events.on_connected(client->events.context);
    }
}

static int is_over(sheaf_mqtt_client *client) {
    pthread_mutex_lock(&client->lock);
    int over = client->closing && ((client->oldest == NULL && (client->connection == NULL || !client->is_connected ||
                                                               !mosquitto_want_write(client->connection))) ||
                                   sheaf_mqtt_now_ms() >= client->linger_until_ms || !client->is_connected);
    pthread_mutex_unlock(&client->lock);
    return over;
}

static void *thread_main(void *argument) {
    sheaf_mqtt_client *client = argument;
    running = client;
    while (!is_over(client)) {
        uint64_t now = sheaf_mqtt_now_ms();
        int wait_error = 0, events = 0;
        if (client->connection == NULL && now >= client->retry_ms) begin_connection(client);
        if (client->is_connected) subscribe(client, 0);
        uint64_t until = client->events.on_turn(client->events.context, now);
        send_posted(client);
        if (client->connection == NULL && client->retry_ms < until) until = client->retry_ms;
        int reads = client->events.may_read == NULL || client->events.may_read(client->events.context);
        if (!reads && until > now + 20) until = now + 20;
        events = wait_for_something(client, until, reads || !client->is_connected, &wait_error);
        rest_while_connecting(client, events);
        if (client->connection != NULL) move_bytes(client, events, reads || !client->is_connected, wait_error);
    }
    if (client->is_connected) (void)mosquitto_disconnect_v5(client->connection, 0, NULL);
    end_connection(client);
    return NULL;
}

/* --- the caller's side -------------------------------------------------------------------------------------------- */

void sheaf_mqtt_client_wake(sheaf_mqtt_client *client) {
    const uint64_t one = 1;
    (void)!write(client->wake_fd, &one, sizeof one);
}

void sheaf_mqtt_client_post(sheaf_mqtt_client *client, const char *topic, uint8_t *message, size_t size) {
    posted *item = malloc(sizeof *item);
    if (item == NULL) {
        free(message);
        return; /* as if lost on the way */
    }
    item->next = NULL;
    item->message = message;
    item->size = size;
    (void)snprintf(item->topic, sizeof item->topic, "%s", topic);
    pthread_mutex_lock(&client->lock);
    *client->newest = item;
    client->newest = &item->next;
    client->queued_bytes += size;
    pthread_mutex_unlock(&client->lock);
    if (running != client) sheaf_mqtt_client_wake(client); /* its own thread sends before it waits */
}

size_t sheaf_mqtt_client_queued(sheaf_mqtt_client *client) {
    pthread_mutex_lock(&client->lock);
    size_t queued = client->queued_bytes;
    pthread_mutex_unlock(&client->lock);
    return queued;
}

size_t sheaf_mqtt_client_unsent(const sheaf_mqtt_client *client) {
    int bytes = 0;
    if (client->connection == NULL || ioctl(mosquitto_socket(client->connection), SIOCOUTQ, &bytes) != 0) return 0;
    return bytes > 0 ? (size_t)bytes : 0;
}

/* Adds what has moved beyond *seen, if it is more than a keep-alive. */
static void note_moved(uint64_t moved, uint64_t *seen, uint64_t *sum) {
    if (moved < *seen + MOVED_MIN) return;
    *sum += moved - *seen;
    *seen = moved;
}

void sheaf_mqtt_client_movement(sheaf_mqtt_client *client, sheaf_mqtt_movement *out) {
    const SSL *ssl = client->connection != NULL ? mosquitto_ssl_get(client->connection) : NULL;
    if (ssl != NULL && SSL_get_wbio(ssl) != NULL) {
        uint64_t written = BIO_number_written(SSL_get_wbio(ssl)), unsent = sheaf_mqtt_client_unsent(client);
        note_moved(written > unsent ? written - unsent : 0, &client->written_seen, &client->movement.sent);
        note_moved(bytes_read(client), &client->read_seen, &client->movement.received);
    }
    client->movement.arriving = (size_t)(bytes_read(client) - client->read_at_message);
    client->moved = client->movement.sent + client->movement.received;
    *out = client->movement;
}

uint64_t sheaf_mqtt_client_moved(sheaf_mqtt_client *client) { return client->moved; }

sheaf_status sheaf_mqtt_client_join(sheaf_mqtt_client *client, const char *topic) {
    sheaf_status status = SHEAF_E_MEMORY;
    pthread_mutex_lock(&client->lock);
    for (unsigned i = 0; i < JOINED_MAX && status != SHEAF_OK; i++) {
        if (client->joined[i][0] != '\0') continue;
        (void)snprintf(client->joined[i], sizeof client->joined[i], "%s", topic);
        client->is_new[i] = 1;
        status = SHEAF_OK;
    }
    pthread_mutex_unlock(&client->lock);
    sheaf_mqtt_client_wake(client);
    return status;
}

void sheaf_mqtt_client_leave(sheaf_mqtt_client *client, const char *topic) {
    pthread_mutex_lock(&client->lock);
    for (unsigned i = 0; i < JOINED_MAX; i++) {
        if (strcmp(client->joined[i], topic) != 0) continue;
        memcpy(client->left[i], client->joined[i], sizeof client->left[i]);
        client->joined[i][0] = '\0';
    }
    pthread_mutex_unlock(&client->lock);
    sheaf_mqtt_client_wake(client);
}

static sheaf_status read_url(sheaf_mqtt_client *client, const char *url, sheaf_problem *problem) {
    static const char prefix[] = "mqtts://";
    const char *host = url + sizeof prefix - 1, *end = NULL, *colon = NULL;
    char *after = NULL;
    if (strncmp(url, prefix, sizeof prefix - 1) == 0) {
        if (host[0] == '[' && (end = strchr(host, ']')) != NULL)
            colon = end[1] == ':' ? end + 1 : NULL;
        else if ((colon = strchr(host, ':')) != NULL)
            end = colon;
        if (end != NULL && host[0] == '[') host++;
    }
    long port = colon != NULL ? strtol(colon + 1, &after, 10) : 0;
    if (end == NULL || colon == NULL || end == host || (size_t)(end - host) >= sizeof client->host || *after != '\0' ||
        after == colon + 1 || port < 1 || port > 65535)
        return sheaf_problem_set(problem, SHEAF_E_USAGE, "%.200s: not of the form mqtts://host:port", url);
    memcpy(client->host, host, (size_t)(end - host));
    client->port = (int)port;
    return SHEAF_OK;
}

static pthread_once_t once = PTHREAD_ONCE_INIT;
static void init_library(void) { (void)mosquitto_lib_init(); }

static sheaf_status start(sheaf_mqtt_client *client, sheaf_problem *problem) {
    pthread_attr_t attributes;
    (void)pthread_once(&once, init_library);
    client->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    (void)pthread_attr_init(&attributes);
    (void)pthread_attr_setstacksize(&attributes, THREAD_STACK);
    int error = client->wake_fd < 0 ? errno : pthread_create(&client->thread, &attributes, thread_main, client);
    (void)pthread_attr_destroy(&attributes);
    if (error == 0) return SHEAF_OK;
    return sheaf_problem_set(problem, SHEAF_E_MEMORY, "%s: cannot start a thread: %s", client->url, strerror(error));
}

static void client_free(sheaf_mqtt_client *client) {
    drop_posted(client);
    if (client->wake_fd >= 0) close(client->wake_fd);
    sheaf_tls_source_close(client->tls);
    pthread_mutex_destroy(&client->lock);
    free(client->url);
    free(client);
}

sheaf_status sheaf_mqtt_client_open(const sheaf_mqtt_client_options *options, const sheaf_mqtt_events *events,
                                    sheaf_mqtt_client **out, sheaf_problem *problem) {
    *out = NULL;
    sheaf_mqtt_client *client = calloc(1, sizeof *client);
    if (client == NULL) return sheaf_problem_set(problem, SHEAF_E_MEMORY, "no memory for a client");
    pthread_mutex_init(&client->lock, NULL);
    client->newest = &client->oldest;
    client->wake_fd = -1;
    client->events = *events;
    client->handshake_ms = options->handshake_ms;
    client->pause_ms = PAUSE_MIN_MS;
    client->taken_ms = TAKEN_MIN_MS;
    client->url = strdup(options->url);
    sheaf_status status = client->url != NULL ? read_url(client, options->url, problem)
                                              : sheaf_problem_set(problem, SHEAF_E_MEMORY, "no memory for a client");
    const char *name = options->tls.server_name;
    (void)snprintf(client->tls_host, sizeof client->tls_host, "%s",
                   name != NULL && name[0] != '\0' ? name : client->host);
    if (status == SHEAF_OK) status = sheaf_tls_source_open(&options->tls, SHEAF_TLS_LINK, NULL, &client->tls, problem);
    *out = client; /* before the thread runs: callbacks may need it */
    if (status == SHEAF_OK) status = start(client, problem);
    if (status == SHEAF_OK) return SHEAF_OK;
    *out = NULL;
    client_free(client);
    return status;
}

void sheaf_mqtt_client_close(sheaf_mqtt_client *client, uint32_t linger_ms) {
    if (client == NULL) return;
    pthread_mutex_lock(&client->lock);
    client->closing = 1;
    client->linger_until_ms = sheaf_mqtt_now_ms() + linger_ms;
    pthread_mutex_unlock(&client->lock);
    sheaf_mqtt_client_wake(client);
    (void)pthread_join(client->thread, NULL);
    client_free(client);
}
