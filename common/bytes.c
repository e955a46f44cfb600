#include "common/bytes.h"

void sheaf_hex(const uint8_t *data, size_t size, char *text) {
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < size; i++) {
        text[2 * i] = digits[data[i] >> 4];
        text[2 * i + 1] = digits[data[i] & 15];
    }
    text[2 * size] = '\0';
}

static int nibble(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return -1;
}

int sheaf_unhex(const char *text, uint8_t *data, size_t size) {
    for (size_t i = 0; i < size; i++) {
        int high = nibble(text[2 * i]);
        int low = high < 0 ? -1 : nibble(text[2 * i + 1]);
        if (low < 0) return 0;
        data[i] = (uint8_t)(high << 4 | low);
    }
    return text[2 * size] == '\0';
}

void sheaf_wipe(void *data, size_t size) {
    volatile uint8_t *p = data;
    while (size-- > 0) *p++ = 0;
}
