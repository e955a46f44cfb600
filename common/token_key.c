/* The engine interface is deprecated in OpenSSL 3 in favour of providers, but Debian 12 has no PKCS#11 provider. */
#define OPENSSL_SUPPRESS_DEPRECATED
#include "common/token_key.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <openssl/crypto.h>
#include <openssl/engine.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/ui.h>

#include "common/bytes.h"
#include "common/file.h"
#include "common/openssl_problem.h"

#define SCHEME       "pkcs11:"
#define PIN_BYTES    256u
#define PIN_VARIABLE "SHEAF_PKCS11_PIN"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static ENGINE *engine; /* under the lock; lives as long as the process, since keys use it */

int sheaf_token_key_is(const char *path) { return strncmp(path, SCHEME, strlen(SCHEME)) == 0; }

/* --- the URI ------------------------------------------------------------------------------------------------------ */

/* What we take out of the URI, and the rest of it, which the engine gets. */
typedef struct {
    char rest[SHEAF_TOKEN_URI_BYTES];
    char pin_source[SHEAF_PATH_BYTES];
    char module[SHEAF_PATH_BYTES];
} parts;

static int hex_digit(char digit) {
    if (digit >= '0' && digit <= '9') return digit - '0';
    if (digit >= 'a' && digit <= 'f') return digit - 'a' + 10;
    return digit >= 'A' && digit <= 'F' ? digit - 'A' + 10 : -1;
}

/* A value with its percent-escapes undone; 0 when it does not fit or is malformed. */
static int decode(const char *text, size_t size, char *out, size_t capacity) {
    size_t used = 0;
    for (size_t i = 0; i < size; i++) {
        char byte = text[i];
        if (byte == '%') {
            int high = i + 2 < size ? hex_digit(text[i + 1]) : -1;
            int low = high < 0 ? -1 : hex_digit(text[i + 2]);
            if (low < 0) return 0;
            byte = (char)(high * 16 + low);
            i += 2;
        }
        if (byte == '\0' || used + 1 >= capacity) return 0;
        out[used++] = byte;
    }
    out[used] = '\0';
    return used > 0;
}

static int is_named(const char *attribute, size_t size, const char *name) {
    size_t length = strlen(name);
    return size > length && strncmp(attribute, name, length) == 0 && attribute[length] == '=';
}

/* One attribute of the query part: ours are taken, others stay. `problem` says which is wrong. */
static sheaf_status take_attribute(const char *at, size_t size, parts *out, sheaf_problem *problem) {
    if (is_named(at, size, "pin-value")) {
        return sheaf_problem_set(
            problem, SHEAF_E_USAGE,
            "a pkcs11: URI with a pin-value, which everybody can read; name a file with pin-source, or "
            "set " PIN_VARIABLE);
    }
    if (is_named(at, size, "pin-source")) {
        const char *value = at + strlen("pin-source=");
        size_t left = size - strlen("pin-source=");
        if (left > 5 && strncmp(value, "file:", 5) == 0) value += 5, left -= 5;
        if (decode(value, left, out->pin_source, sizeof out->pin_source)) return SHEAF_OK;
        return sheaf_problem_set(problem, SHEAF_E_USAGE, "a pkcs11: URI whose pin-source is not a path");
    }
    if (is_named(at, size, "module-path")) {
        if (decode(at + strlen("module-path="), size - strlen("module-path="), out->module, sizeof out->module))
            return SHEAF_OK;
        return sheaf_problem_set(problem, SHEAF_E_USAGE, "a pkcs11: URI whose module-path is not a path");
    }
    return sheaf_problem_set(problem, SHEAF_E_USAGE,
                             "a pkcs11: URI with '%.*s'; known after the '?' are pin-source and module-path",
                             size > 80 ? 80 : (int)size, at);
}

static sheaf_status split(const char *uri, parts *out, sheaf_problem *problem) {
    size_t path = strcspn(uri, "?");
    memset(out, 0, sizeof *out);
    if (strlen(uri) >= sizeof out->rest)
        return sheaf_problem_set(problem, SHEAF_E_TOO_LARGE, "a pkcs11: URI of more than %u bytes",
                                 SHEAF_TOKEN_URI_BYTES - 1);
    memcpy(out->rest, uri, path);
    if (strstr(out->rest, "pin-value=") != NULL) return take_attribute("pin-value=", 10 + 1, out, problem);
    for (const char *at = uri + path; *at != '\0';) {
        at++; /* the '?' or '&' before it */
        size_t size = strcspn(at, "&");
        sheaf_status status = take_attribute(at, size, out, problem);
        if (status != SHEAF_OK) return status;
        at += size;
    }
    return SHEAF_OK;
}

/* --- the PIN ------------------------------------------------------------------------------------------------------ */

static sheaf_status read_pin_file(const char *path, char pin[PIN_BYTES], sheaf_problem *problem) {
    struct stat info;
    sheaf_buffer text = {0};
    if (stat(path, &info) != 0) return sheaf_problem_errno(problem, "look at the PIN in", path);
    if ((info.st_mode & (S_IRWXG | S_IRWXO)) != 0)
        return sheaf_problem_set(problem, SHEAF_E_PERMISSION, "%s: a PIN open to group or others; chmod 600 it", path);
    sheaf_status status = sheaf_file_read_whole(path, PIN_BYTES - 1, &text, problem);
    if (status != SHEAF_OK) return status;
    size_t size = strcspn((char *)text.data, "\r\n");
    memcpy(pin, text.data, size);
    pin[size] = '\0';
    sheaf_wipe(text.data, text.size);
    free(text.data);
    return size > 0 ? SHEAF_OK : sheaf_problem_set(problem, SHEAF_E_USAGE, "%s: holds no PIN", path);
}

/* An empty PIN: the token may need none. */
static sheaf_status find_pin(const parts *from, char pin[PIN_BYTES], sheaf_problem *problem) {
    pin[0] = '\0';
    if (from->pin_source[0] != '\0') return read_pin_file(from->pin_source, pin, problem);
    const char *text = getenv(PIN_VARIABLE);
    if (text != NULL && strlen(text) < PIN_BYTES) memcpy(pin, text, strlen(text) + 1);
    return SHEAF_OK;
}

/* --- the engine --------------------------------------------------------------------------------------------------- */

static sheaf_status open_engine(const parts *from, sheaf_problem *problem) {
    if (engine != NULL) return SHEAF_OK;
    /* The engine opens the module only with the first key, and then says no more than that there is none. */
    if (from->module[0] != '\0' && access(from->module, R_OK) != 0)
        return sheaf_problem_errno(problem, "open the module for PKCS#11", from->module);
    ENGINE_load_dynamic();
    ENGINE *found = ENGINE_by_id("pkcs11");
    if (found == NULL) {
        return sheaf_problem_set(problem, SHEAF_E_NOT_FOUND,
                                 "a pkcs11: key needs OpenSSL's engine for PKCS#11; install libengine-pkcs11-openssl");
    }
    (void)ENGINE_ctrl_cmd(found, "QUIET", 0, NULL, NULL, 1); /* it would write on our stderr */
    int good = from->module[0] == '\0' || ENGINE_ctrl_cmd_string(found, "MODULE_PATH", from->module, 0) == 1;
    if (!good || ENGINE_init(found) != 1) {
        sheaf_status status =
            sheaf_problem_openssl(problem, SHEAF_E_CRYPTO, "the module for PKCS#11 (%s) does not start",
                                  from->module[0] != '\0' ? from->module : "the default");
        ENGINE_free(found);
        return status;
    }
    ENGINE_free(found); /* ENGINE_init holds it */
    engine = found;
    return SHEAF_OK;
}

static sheaf_status load(const parts *from, const char *pin, EVP_PKEY **out, sheaf_problem *problem) {
    sheaf_status status = open_engine(from, problem);
    if (status != SHEAF_OK) return status;
    if (pin[0] != '\0' && ENGINE_ctrl_cmd_string(engine, "PIN", pin, 0) != 1)
        return sheaf_problem_openssl(problem, SHEAF_E_CRYPTO, "the engine for PKCS#11 does not take the PIN");
    /* Without a PIN the engine would ask for it on the terminal: a service must fail instead. */
    UI_METHOD *nobody_to_ask = UI_create_method("sheaf: nobody");
    *out = ENGINE_load_private_key(engine, from->rest, nobody_to_ask, NULL);
    UI_destroy_method(nobody_to_ask);
    if (*out != NULL) return SHEAF_OK;
    return sheaf_problem_openssl(problem, pin[0] == '\0' ? SHEAF_E_PERMISSION : SHEAF_E_NOT_FOUND,
                                 "%s: the token gives no such key; look at its name with pkcs11-tool -O%s", from->rest,
                                 pin[0] == '\0' ? ", and name a file with the PIN by pin-source, or set " PIN_VARIABLE
                                                : ", and whether the PIN is right");
}

sheaf_status sheaf_token_key_read(const char *uri, EVP_PKEY **out, sheaf_problem *problem) {
    parts *from = calloc(1, sizeof *from);
    char pin[PIN_BYTES];
    *out = NULL;
    if (from == NULL) return sheaf_problem_set(problem, SHEAF_E_MEMORY, "no memory for a key");
    (void)ERR_set_mark();
    sheaf_status status = split(uri, from, problem);
    if (status == SHEAF_OK) status = find_pin(from, pin, problem);
    if (status == SHEAF_OK) {
        pthread_mutex_lock(&lock);
        status = load(from, pin, out, problem);
        pthread_mutex_unlock(&lock);
    }
    OPENSSL_cleanse(pin, sizeof pin);
    (void)ERR_pop_to_mark();
    free(from);
    return status;
}
