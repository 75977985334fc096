/* Lines and columns from the location table of a code object (co_linetable, Python 3.11 to 3.13). */
#ifndef HOTLOOP_LOCATIONS_H
#define HOTLOOP_LOCATIONS_H

#include <stddef.h>
#include <stdint.h>

#define NO_LINE (-1)
#define NO_COLUMN (-1)

/* The source of an instruction, in lines from 1 and columns (bytes) from 0. */
typedef struct {
    int line, end_line, column, end_column; /* columns: NO_COLUMN where the table has none */
} Position;

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

/* The columns that an entry says after its first byte and the change of its line. */
static void read_columns(int code, const uint8_t *at, const uint8_t *end, Position *found)
{
    if (code < 10 && at < end) { /* one byte, and three bits of the code */
        found->column = code << 3 | (*at >> 4 & 7);
        found->end_column = found->column + (*at & 15);
    } else if (code >= 10 && code <= 12 && end - at >= 2) {
        found->column = at[0];
        found->end_column = at[1];
    } else if (code == 14) {
        found->end_line = (int)((unsigned)found->line + (unsigned)read_varint(&at, end));
        found->column = read_varint(&at, end) - 1;
        found->end_column = read_varint(&at, end) - 1;
    }
}

/* The position of an instruction; its line is NO_LINE for one without a line or beyond the table. An entry is a byte
   1cccclll (code and length in code units, less one) and bytes with the highest bit clear; its line is relative to the
   one before (Objects/locations.md in Python's source). */
static Position position_at(const uint8_t *table, size_t size, int first_line, ptrdiff_t instruction)
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
            Position found = {line, line, NO_COLUMN, NO_COLUMN};
            if (code == 15) {
                found.line = found.end_line = NO_LINE;
            } else {
                read_columns(code, at, end, &found);
            }
            return found;
        }
        while (at < end && !(*at & 128)) {
            at++;
        }
    }
    return (Position){NO_LINE, NO_LINE, NO_COLUMN, NO_COLUMN};
}

#endif
