#include "server/tool/channel.h"

#include <curl/curl.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>

#include "common/credentials.h"
#include "common/file.h"

enum { ANSWER_BYTES_MAX = 16 << 20, CONNECT_S = 10, TOTAL_S = 60 };
#define SOCKET                                                                                                         \
    "operator.sock" /* server/operator/operator.h; the tool does not link the service's listener for a name */

int sheaf_channel_option(sheaf_channel *channel, int count, char **arguments, int *at) {
    const struct {
        const char *name;
        const char **value;
    } options[] = {{"--state", &channel->state},
                   {"--url", &channel->url},
                   {"--certificate", &channel->certificate},
                   {"--key", &channel->key},
                   {"--ca", &channel->ca}};
    if (strcmp(arguments[*at], "--json") == 0) return channel->json = 1;
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        if (strcmp(arguments[*at], options[i].name) != 0 || *at + 1 == count) continue;
        *options[i].value = arguments[++*at];
        return 1;
    }
    return 0;
}

const char *sheaf_channel_check(const sheaf_channel *channel) {
    int with_files = channel->certificate != NULL || channel->key != NULL || channel->ca != NULL;
    if (channel->state == NULL && channel->url == NULL) return "--state DIR or --url URL is missing";
    if (channel->state != NULL && (channel->url != NULL || with_files))
        return "--state goes alone: --url, --certificate, --key and --ca are for another machine's service";
    if (channel->url == NULL) return NULL;
    if (strncmp(channel->url, "https://", 8) != 0) return "--url: expected https://HOST:PORT";
    if (channel->certificate == NULL || channel->key == NULL || channel->ca == NULL)
        return "--url needs --certificate, --key and --ca";
    return NULL;
}

/* --- one exchange ------------------------------------------------------------------------------------------------- */

typedef struct {
    const sheaf_channel *channel;
    sheaf_channel_answer *answer;
    sheaf_credentials *credentials;
    char socket_path[SHEAF_PATH_BYTES];
    char url[1024];
    char reason[CURL_ERROR_SIZE];
    int too_large;
} exchange;

static size_t take_bytes(char *bytes, size_t one, size_t count, void *context) {
    exchange *self = context;
    sheaf_channel_answer *answer = self->answer;
    size_t size = one * count;
    self->too_large = answer->size + size > ANSWER_BYTES_MAX;
    char *text = self->too_large ? NULL : realloc(answer->text, answer->size + size + 1);
    if (text == NULL) return 0;
    memcpy(text + answer->size, bytes, size);
    answer->text = text;
    answer->size += size;
    text[answer->size] = '\0';
    return size;
}

/* Our own certificate and key, wherever the key lives. */
static CURLcode prepare_tls(CURL *curl, void *context, void *user) {
    (void)curl;
    SSL_CTX *tls = context;
    const exchange *self = user;
    sheaf_credentials_pair pair;
    if (SSL_CTX_set_min_proto_version(tls, TLS1_3_VERSION) != 1) return CURLE_SSL_CERTPROBLEM;
    if (self->credentials == NULL) return CURLE_OK;
    sheaf_credentials_take(self->credentials, &pair);
    STACK_OF(X509) *chain = sheaf_certificate_intermediates(pair.certificate);
    int ok = SSL_CTX_use_certificate(tls, sheaf_certificate_x509(pair.certificate)) == 1 &&
             (chain == NULL || SSL_CTX_set1_chain(tls, chain) == 1) &&
             SSL_CTX_use_PrivateKey(tls, sheaf_signer_key(pair.signer)) == 1;
    sheaf_credentials_pair_fini(&pair);
    return ok ? CURLE_OK : CURLE_SSL_CERTPROBLEM;
}

/* What is the same for every request: nothing of the user's surroundings (proxies, .netrc) has a say. */
static int set_common(CURL *curl, exchange *self) {
    return curl_easy_setopt(curl, CURLOPT_NOPROXY, "*") == CURLE_OK &&
           curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https") == CURLE_OK &&
           curl_easy_setopt(curl, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1) == CURLE_OK &&
           curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_S) == CURLE_OK &&
           curl_easy_setopt(curl, CURLOPT_TIMEOUT, (long)TOTAL_S) == CURLE_OK &&
           curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L) == CURLE_OK &&
           curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, self->reason) == CURLE_OK &&
           curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, take_bytes) == CURLE_OK &&
           curl_easy_setopt(curl, CURLOPT_WRITEDATA, self) == CURLE_OK &&
           curl_easy_setopt(curl, CURLOPT_URL, self->url) == CURLE_OK;
}

static int set_end(CURL *curl, exchange *self) {
    if (self->channel->state != NULL)
        return curl_easy_setopt(curl, CURLOPT_UNIX_SOCKET_PATH, self->socket_path) == CURLE_OK;
    return curl_easy_setopt(curl, CURLOPT_CAINFO, self->channel->ca) == CURLE_OK &&
           curl_easy_setopt(curl, CURLOPT_CAPATH, NULL) == CURLE_OK &&
           curl_easy_setopt(curl, CURLOPT_SSL_CTX_FUNCTION, prepare_tls) == CURLE_OK &&
           curl_easy_setopt(curl, CURLOPT_SSL_CTX_DATA, self) == CURLE_OK;
}

static int set_request(CURL *curl, const sheaf_channel_request *request, struct curl_slist **fields) {
    char type[160];
    if (request->user != NULL && (curl_easy_setopt(curl, CURLOPT_HTTPAUTH, CURLAUTH_BASIC) != CURLE_OK ||
                                  curl_easy_setopt(curl, CURLOPT_USERNAME, request->user) != CURLE_OK ||
                                  curl_easy_setopt(curl, CURLOPT_PASSWORD, request->secret) != CURLE_OK))
        return 0;
    if (request->body.data == NULL) return 1;
    (void)snprintf(type, sizeof type, "Content-Type: %s", request->type == NULL ? "application/json" : request->type);
    *fields = curl_slist_append(NULL, type);
    return *fields != NULL && curl_easy_setopt(curl, CURLOPT_HTTPHEADER, *fields) == CURLE_OK &&
           curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE, (long)request->body.size) == CURLE_OK &&
           curl_easy_setopt(curl, CURLOPT_POSTFIELDS, request->body.data) == CURLE_OK;
}

static sheaf_status explain(CURLcode code, const exchange *self, sheaf_problem *problem) {
    const char *reason = self->reason[0] == '\0' ? curl_easy_strerror(code) : self->reason;
    if (self->too_large)
        return sheaf_problem_set(problem, SHEAF_E_TOO_LARGE, "%s: the answer is larger than 16 MiB", self->url);
    if (self->channel->state != NULL && code == CURLE_COULDNT_CONNECT)
        return sheaf_problem_set(problem, SHEAF_E_NETWORK,
                                 "%s: no sheafd answers; does it run, and is this its server.state?",
                                 self->socket_path);
    if (code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CERTPROBLEM || code == CURLE_SSL_CACERT_BADFILE)
        return sheaf_problem_set(problem, SHEAF_E_CERTIFICATE, "%s: %s", self->url, reason);
    if (code == CURLE_URL_MALFORMAT)
        return sheaf_problem_set(problem, SHEAF_E_USAGE, "%s: is no url; expected https://HOST:PORT", self->url);
    return sheaf_problem_set(problem, code == CURLE_OPERATION_TIMEDOUT ? SHEAF_E_TIMEOUT : SHEAF_E_NETWORK, "%s: %s",
                             self->url, reason);
}

static sheaf_status run(exchange *self, const sheaf_channel_request *request, sheaf_problem *problem) {
    struct curl_slist *fields = NULL;
    CURL *curl = curl_easy_init();
    int ready = curl != NULL && set_common(curl, self) && set_end(curl, self) && set_request(curl, request, &fields);
    CURLcode code = ready ? curl_easy_perform(curl) : CURLE_OUT_OF_MEMORY;
    if (code == CURLE_OK) code = curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &self->answer->code);
    curl_slist_free_all(fields);
    curl_easy_cleanup(curl);
    return code == CURLE_OK ? SHEAF_OK : explain(code, self, problem);
}

static sheaf_status find_end(exchange *self, const sheaf_channel_request *request, sheaf_problem *problem) {
    const sheaf_channel *channel = self->channel;
    const char *base = channel->state == NULL ? channel->url : "http://sheafd";
    size_t size = strlen(base);
    while (size > 0 && base[size - 1] == '/') size--;
    if (snprintf(self->url, sizeof self->url, "%.*s%s", (int)size, base, request->path) >= (int)sizeof self->url)
        return sheaf_problem_set(problem, SHEAF_E_USAGE, "%s: the url is too long", base);
    if (channel->state == NULL && channel->certificate == NULL) return SHEAF_OK;
    if (channel->state == NULL)
        return sheaf_credentials_open(channel->certificate, channel->key, &self->credentials, problem);
    sheaf_status status = sheaf_path_join(self->socket_path, channel->state, SOCKET, problem);
    size_t most = sizeof((struct sockaddr_un *)NULL)->sun_path - 1;
    if (status == SHEAF_OK && strlen(self->socket_path) > most)
        return sheaf_problem_set(problem, SHEAF_E_USAGE, "%s: a socket's path may have %zu bytes; this has %zu",
                                 self->socket_path, most, strlen(self->socket_path));
    return status;
}

sheaf_status sheaf_channel_exchange(const sheaf_channel *channel, const sheaf_channel_request *request,
                                    sheaf_channel_answer *out, sheaf_problem *problem) {
    exchange self = {.channel = channel, .answer = out};
    memset(out, 0, sizeof *out);
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        return sheaf_problem_set(problem, SHEAF_E_MEMORY, "libcurl does not start");
    sheaf_status status = find_end(&self, request, problem);
    if (status == SHEAF_OK) status = run(&self, request, problem);
    sheaf_credentials_unref(self.credentials);
    if (status != SHEAF_OK) {
        free(out->text);
        memset(out, 0, sizeof *out);
    }
    return status;
}

/* --- answers in JSON ---------------------------------------------------------------------------------------------- */

static sheaf_status status_named(const char *name) {
    for (long number = 0; number < 400; number++) {
        sheaf_status status = sheaf_status_from_number(number);
        if ((long)status == number && strcmp(sheaf_status_name(status), name) == 0) return status;
    }
    return SHEAF_E_MALFORMED;
}

sheaf_status sheaf_channel_refusal(const sheaf_channel_answer *answer, sheaf_problem *problem) {
    json_t *object = answer->text == NULL ? NULL : json_loadb(answer->text, answer->size, 0, NULL);
    const char *error = json_string_value(json_object_get(object, "error"));
    const char *detail = json_string_value(json_object_get(object, "detail"));
    sheaf_status status;
    if (error == NULL)
        status = sheaf_problem_set(problem, SHEAF_E_MALFORMED, "HTTP status %ld, and no reason that a sheafd gives",
                                   answer->code);
    else
        status = sheaf_problem_set(problem, status_named(error), "%s", detail == NULL ? error : detail);
    json_decref(object);
    return status;
}

sheaf_status sheaf_channel_ask(const sheaf_channel *channel, int post, const char *path, json_t **out,
                               sheaf_problem *problem) {
    const sheaf_channel_request request = {.path = path, .body = sheaf_span_of(post ? "" : NULL, 0)};
    sheaf_channel_answer answer;
    *out = NULL;
    sheaf_status status = sheaf_channel_exchange(channel, &request, &answer, problem);
    if (status != SHEAF_OK) return status;
    if (answer.code != 200) {
        status = sheaf_channel_refusal(&answer, problem);
    } else {
        *out = json_loadb(answer.text == NULL ? "" : answer.text, answer.size, 0, NULL);
        if (!json_is_object(*out)) {
            json_decref(*out);
            *out = NULL;
            status = sheaf_problem_set(problem, SHEAF_E_MALFORMED, "%s: the answer is no JSON object", path);
        }
    }
    free(answer.text);
    return status;
}

void sheaf_channel_print(const json_t *object) {
    char *text = json_dumps(object, JSON_COMPACT);
    if (text != NULL) puts(text);
    free(text);
}
