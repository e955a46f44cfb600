/* keys_shim.c - LD_PRELOAD: tells a test with which keys a program seals, so that a recording can be opened afterwards.
 *
 * Every AES-128-GCM key that the program itself sets up goes to SHEAF_KEYS as a line "KEY NONCE", in hex. It shows that a
 * recording in which nothing can be found does hold what was looked for, behind a key that only the two ends have. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define KEY_BYTES   16
#define NONCE_BYTES 12

typedef int (*cipher_init)(EVP_CIPHER_CTX *, const EVP_CIPHER *, ENGINE *, const unsigned char *, const unsigned char *,
                           int);

static int hex(char *out, const unsigned char *bytes, int size) {
    for (int i = 0; i < size; i++) (void)snprintf(out + 2 * i, 3, "%02x", bytes[i]);
    return 2 * size;
}

static void tell(const unsigned char *key, const unsigned char *nonce) {
    char line[2 * (KEY_BYTES + NONCE_BYTES) + 3];
    const char *path = getenv("SHEAF_KEYS");
    int fd = path == NULL ? -1 : open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (fd < 0) return;
    int size = hex(line, key, KEY_BYTES);
    line[size++] = ' ';
    size += hex(line + size, nonce, NONCE_BYTES);
    line[size++] = '\n';
    if (write(fd, line, (size_t)size) != size) abort();
    close(fd);
}

int EVP_CipherInit_ex(EVP_CIPHER_CTX *context, const EVP_CIPHER *cipher, ENGINE *engine, const unsigned char *key,
                      const unsigned char *nonce, int encrypts) {
    static cipher_init next;
    if (next == NULL) *(void **)&next = dlsym(RTLD_NEXT, "EVP_CipherInit_ex");
    if (next == NULL) abort();
    if (key != NULL && nonce != NULL && cipher != NULL && EVP_CIPHER_is_a(cipher, "AES-128-GCM")) tell(key, nonce);
    return next(context, cipher, engine, key, nonce, encrypts);
}
