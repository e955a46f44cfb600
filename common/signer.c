#include "common/signer.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>

#include "common/openssl_problem.h"

#define KEY_FILE_BYTES_MAX 65536

struct sheaf_signer {
    EVP_PKEY *key;
    const EVP_MD *hash; /* NULL for Ed25519, which hashes by itself */
};

/* Without a callback OpenSSL would ask for a passphrase on the terminal: a service must fail instead. */
static int no_passphrase(char *text, int size, int writing, void *context) {
    (void)text, (void)size, (void)writing, (void)context;
    return -1;
}

/* The checks are made on the open descriptor, so that the file which was checked is the one that is read. */
static sheaf_status open_private_file(const char *path, int *fd, sheaf_problem *problem) {
    /* O_NONBLOCK: opening a FIFO must not hang; it has no effect on a regular file. */
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*fd < 0) return sheaf_problem_errno(problem, "open the key", path);
    struct stat entry;
    sheaf_status status = SHEAF_OK;
    if (fstat(*fd, &entry) != 0) {
        status = sheaf_problem_errno(problem, "stat", path);
    } else if (!S_ISREG(entry.st_mode)) {
        status = sheaf_problem_set(problem, SHEAF_E_CRYPTO, "%s: not a regular file", path);
    } else if ((entry.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
        status = sheaf_problem_set(problem, SHEAF_E_PERMISSION,
                                   "%s: a private key open to group or others (mode %04o); chmod 600 it", path,
                                   (unsigned)(entry.st_mode & 07777));
    } else if (entry.st_size > KEY_FILE_BYTES_MAX) {
        status = sheaf_problem_set(problem, SHEAF_E_CRYPTO, "%s: too large for a key file", path);
    }
    if (status != SHEAF_OK) {
        close(*fd);
        *fd = -1;
    }
    return status;
}

static sheaf_status read_key(int fd, const char *path, EVP_PKEY **key, sheaf_problem *problem) {
    BIO *file = BIO_new_fd(fd, BIO_NOCLOSE);
    if (file == NULL) return sheaf_problem_openssl(problem, SHEAF_E_CRYPTO, "%s: cannot read the key", path);
    *key = PEM_read_bio_PrivateKey(file, NULL, no_passphrase, NULL);
    BIO_free(file);
    if (*key != NULL) return SHEAF_OK;
    return sheaf_problem_openssl(problem, SHEAF_E_CRYPTO, "%s: not a private key in PEM without passphrase", path);
}

static sheaf_status choose_hash(const EVP_PKEY *key, const char *path, const EVP_MD **hash, sheaf_problem *problem) {
    char group[32] = "";
    *hash = NULL;
    if (EVP_PKEY_is_a(key, "ED25519")) return SHEAF_OK;
    *hash = EVP_sha256();
    if (EVP_PKEY_is_a(key, "EC") && EVP_PKEY_get_group_name(key, group, sizeof group, NULL) == 1 &&
        strcmp(group, "prime256v1") == 0) {
        return SHEAF_OK;
    }
    return sheaf_problem_set(problem, SHEAF_E_CRYPTO, "%s: the key must be ECDSA P-256 or Ed25519", path);
}

sheaf_status sheaf_signer_open(const char *key_path, sheaf_signer **out, sheaf_problem *problem) {
    *out = NULL;
    int fd = -1;
    sheaf_status status = open_private_file(key_path, &fd, problem);
    if (status != SHEAF_OK) return status;
    sheaf_signer *signer = calloc(1, sizeof *signer);
    (void)ERR_set_mark();
    if (signer == NULL) {
        status = sheaf_problem_set(problem, SHEAF_E_MEMORY, "%s: no memory", key_path);
    } else {
        status = read_key(fd, key_path, &signer->key, problem);
    }
    if (status == SHEAF_OK) status = choose_hash(signer->key, key_path, &signer->hash, problem);
    (void)ERR_pop_to_mark();
    close(fd);
    if (status != SHEAF_OK) {
        sheaf_signer_free(signer);
        return status;
    }
    *out = signer;
    return SHEAF_OK;
}

void sheaf_signer_free(sheaf_signer *signer) {
    if (signer == NULL) return;
    EVP_PKEY_free(signer->key); /* clears the private part */
    free(signer);
}

sheaf_status sheaf_signer_sign(sheaf_signer *signer, sheaf_span message, sheaf_buffer *out) {
    out->size = 0;
    if (out->capacity < SHEAF_SIGNATURE_BYTES_MAX) return SHEAF_E_TOO_LARGE;
    (void)ERR_set_mark();
    size_t size = out->capacity;
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    int done = context != NULL && EVP_DigestSignInit(context, NULL, signer->hash, NULL, signer->key) == 1 &&
               EVP_DigestSign(context, out->data, &size, message.data, message.size) == 1;
    EVP_MD_CTX_free(context);
    (void)ERR_pop_to_mark();
    if (!done) return SHEAF_E_CRYPTO;
    out->size = size;
    return SHEAF_OK;
}
