/* Line numbers from the location table of a code object (co_linetable, Python 3.11 to 3.13). */
#ifndef HOTLOOP_LOCATIONS_H
#define HOTLOOP_LOCATIONS_H

#include <stddef.h>
#include <stdint.h>

#define NO_LINE (-1)

static int read_varint(const uint8_t **at, const uint8_t *end)
{
    unsigned value = 0, shift = 0;
    while (*at < end) {
        uint8_t byte = *(*at)++;
        value |= (unsigned)(byte & 63) << shift;
        shift += 6;
        if (!(byte & 64) || shift > 30) {
            break;
        }
    }
    return (int)value;
}

/* The line of an instruction; NO_LINE for one without a line or beyond the table. An entry is a byte 1cccclll (code
   and length in code units, less one) and bytes with the highest bit clear; its line is relative to the one before
   (Objects/locations.md in Python's source). */
static int line_at(const uint8_t *table, size_t size, int first_line, ptrdiff_t instruction)
{
    const uint8_t *at = table, *end = table + size;
    ptrdiff_t start = 0;
    int line = first_line;
    while (at < end) {
        uint8_t head = *at++;
        int code = head >> 3 & 15;
        if (code == 13 || code == 14) {
            unsigned delta = (unsigned)read_varint(&at, end);
            line += delta & 1 ? -(int)(delta >> 1) : (int)(delta >> 1);
        } else if (code >= 10 && code <= 12) {
            line += code - 10;
        }
        start += (head & 7) + 1;
        if (instruction < start) {
            return code == 15 ? NO_LINE : line;
        }
        while (at < end && !(*at & 128)) {
            at++;
        }
    }
    return NO_LINE;
}

#endif
