#include "common/private_key.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <openssl/bio.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>

#include "common/file.h"
#include "common/openssl_problem.h"
#include "common/token_key.h"

#define KEY_FILE_BYTES_MAX 65536

static const char *const type_names[] = {"any", "p256", "ed25519"};

const char *sheaf_key_type_name(sheaf_key_type type) {
    return (unsigned)type <= SHEAF_KEY_ED25519 ? type_names[type] : type_names[SHEAF_KEY_ANY];
}

sheaf_key_type sheaf_key_type_from_name(const char *name) {
    if (strcmp(name, type_names[SHEAF_KEY_P256]) == 0) return SHEAF_KEY_P256;
    return strcmp(name, type_names[SHEAF_KEY_ED25519]) == 0 ? SHEAF_KEY_ED25519 : SHEAF_KEY_ANY;
}

const EVP_MD *sheaf_private_key_hash(sheaf_key_type type) { return type == SHEAF_KEY_ED25519 ? NULL : EVP_sha256(); }

sheaf_status sheaf_private_key_make(sheaf_key_type type, EVP_PKEY **out, sheaf_problem *problem) {
    (void)ERR_set_mark();
    *out = type == SHEAF_KEY_ED25519 ? EVP_PKEY_Q_keygen(NULL, NULL, "ED25519") : EVP_EC_gen("P-256");
    sheaf_status status = *out != NULL ? SHEAF_OK : sheaf_problem_openssl(problem, SHEAF_E_CRYPTO, "cannot make a key");
    (void)ERR_pop_to_mark();
    return status;
}

/* --- reading ------------------------------------------------------------------------------------------------------ */

/* Without a callback OpenSSL would ask for a passphrase on the terminal: a service must fail instead. */
static int no_passphrase(char *text, int size, int writing, void *context) {
    (void)text, (void)size, (void)writing, (void)context;
    return -1;
}

/* The checks are made on the open descriptor, so that the file which was checked is the one that is read. */
static sheaf_status check_private(int fd, const char *path, size_t *size, sheaf_problem *problem) {
    struct stat info;
    if (fstat(fd, &info) != 0) return sheaf_problem_errno(problem, "look at", path);
    if (!S_ISREG(info.st_mode)) return sheaf_problem_set(problem, SHEAF_E_CRYPTO, "%s: not a regular file", path);
    if ((info.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
        return sheaf_problem_set(problem, SHEAF_E_PERMISSION,
                                 "%s: a private key open to group or others (mode %04o); chmod 600 it (mode 0600)",
                                 path, (unsigned)(info.st_mode & 07777));
    }
    if (info.st_size > KEY_FILE_BYTES_MAX)
        return sheaf_problem_set(problem, SHEAF_E_CRYPTO, "%s: too large for a key file", path);
    *size = (size_t)info.st_size;
    return SHEAF_OK;
}

/* A file with a URI on its first line: for keys that are looked for in a file of a fixed name (ca.key). */
static sheaf_status read_reference(sheaf_span text, const char *path, EVP_PKEY **key, sheaf_problem *problem) {
    char uri[SHEAF_TOKEN_URI_BYTES];
    size_t size = strcspn((const char *)text.data, "\r\n");
    if (size >= sizeof uri || size > text.size)
        return sheaf_problem_set(problem, SHEAF_E_TOO_LARGE, "%s: a pkcs11: URI of more than %zu bytes", path,
                                 sizeof uri - 1);
    memcpy(uri, text.data, size);
    uri[size] = '\0';
    return sheaf_token_key_read(uri, key, problem);
}

static sheaf_status parse_pem(sheaf_span text, const char *path, EVP_PKEY **key, sheaf_problem *problem) {
    if (sheaf_token_key_is((const char *)text.data)) return read_reference(text, path, key, problem);
    BIO *memory = BIO_new_mem_buf(text.data, (int)text.size); /* size <= KEY_FILE_BYTES_MAX; it makes no copy */
    if (memory == NULL) return sheaf_problem_openssl(problem, SHEAF_E_CRYPTO, "%s: cannot read the key", path);
    *key = PEM_read_bio_PrivateKey(memory, NULL, no_passphrase, NULL);
    BIO_free(memory);
    if (*key != NULL) return SHEAF_OK;
    return sheaf_problem_openssl(problem, SHEAF_E_CRYPTO, "%s: not a private key in PEM without passphrase", path);
}

/* Reads the text ourselves: OpenSSL's descriptor BIO takes a failed read for the end of a line. */
static sheaf_status read_pem(int fd, const char *path, EVP_PKEY **key, sheaf_problem *problem) {
    size_t size = 0;
    sheaf_status status = check_private(fd, path, &size, problem);
    if (status != SHEAF_OK) return status;
    uint8_t *text = malloc(size + 1); /* an empty file too gets a block */
    if (text == NULL) return sheaf_problem_set(problem, SHEAF_E_MEMORY, "%s: no memory", path);
    status = sheaf_file_read_at(fd, text, size, 0, path, problem);
    text[size] = '\0';
    if (status == SHEAF_OK) status = parse_pem(sheaf_span_of(text, size), path, key, problem);
    sheaf_wipe(text, size);
    free(text);
    return status;
}

static sheaf_status find_type(const EVP_PKEY *key, const char *path, sheaf_key_type *type, sheaf_problem *problem) {
    char group[32] = "";
    if (EVP_PKEY_is_a(key, "ED25519")) {
        *type = SHEAF_KEY_ED25519;
        return SHEAF_OK;
    }
    if (EVP_PKEY_is_a(key, "EC") && EVP_PKEY_get_group_name(key, group, sizeof group, NULL) == 1 &&
        strcmp(group, "prime256v1") == 0) {
        *type = SHEAF_KEY_P256;
        return SHEAF_OK;
    }
    return sheaf_problem_set(problem, SHEAF_E_CRYPTO, "%s: the key must be ECDSA P-256 or Ed25519", path);
}

static sheaf_status read_file(const char *path, EVP_PKEY **key, sheaf_problem *problem) {
    /* O_NONBLOCK: opening a FIFO must not hang; it has no effect on a regular file. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return sheaf_problem_errno(problem, "open the key", path);
    sheaf_status status = read_pem(fd, path, key, problem);
    close(fd);
    return status;
}

sheaf_status sheaf_private_key_read(const char *path, EVP_PKEY **out, sheaf_key_type *type, sheaf_problem *problem) {
    *out = NULL;
    *type = SHEAF_KEY_ANY;
    EVP_PKEY *key = NULL;
    (void)ERR_set_mark();
    sheaf_status status =
        sheaf_token_key_is(path) ? sheaf_token_key_read(path, &key, problem) : read_file(path, &key, problem);
    if (status == SHEAF_OK) status = find_type(key, path, type, problem);
    (void)ERR_pop_to_mark();
    if (status == SHEAF_OK)
        *out = key;
    else
        EVP_PKEY_free(key);
    return status;
}

/* --- writing ------------------------------------------------------------------------------------------------------ */

static sheaf_status write_pem(const char *path, const EVP_PKEY *key, BIO *memory, sheaf_problem *problem) {
    char *text = NULL;
    if (memory == NULL || PEM_write_bio_PKCS8PrivateKey(memory, key, NULL, NULL, 0, NULL, NULL) != 1) {
        return sheaf_problem_openssl(problem, SHEAF_E_CRYPTO, "%s: cannot encode a key", path);
    }
    long size = BIO_get_mem_data(memory, &text);
    if (size <= 0) return sheaf_problem_openssl(problem, SHEAF_E_CRYPTO, "%s: cannot encode a key", path);
    return sheaf_file_replace(path, sheaf_span_of(text, (size_t)size), 0600, problem);
}

sheaf_status sheaf_private_key_write(const char *path, const EVP_PKEY *key, sheaf_problem *problem) {
    /* A temporary file left by a crash or laid out by somebody keeps its own mode when it is opened again. */
    char temporary[SHEAF_PATH_BYTES];
    if (snprintf(temporary, sizeof temporary, "%s.new", path) >= (int)sizeof temporary) {
        return sheaf_problem_set(problem, SHEAF_E_TOO_LARGE, "%s: path is too long", path);
    }
    sheaf_status status = sheaf_file_remove(temporary, problem);
    if (status != SHEAF_OK) return status;
    (void)ERR_set_mark();
    BIO *memory = BIO_new(BIO_s_secmem()); /* wiped when freed */
    status = write_pem(path, key, memory, problem);
    BIO_free(memory);
    (void)ERR_pop_to_mark();
    return status;
}
