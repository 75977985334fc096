/* What is known about code objects, files and functions that were met on stacks; kept in tables of fixed size.
 *
 * A code object can be freed at any time, so everything that is needed later is copied when it is first met. An
 * entry of the cache is used only while the pointers inside the code object are still the same. */
#ifndef HOTLOOP_SAMPLED_CODE_H
#define HOTLOOP_SAMPLED_CODE_H

#include "python_threads.h"

#include "locations.h"

#include <string.h>

#define MOST_CODES 4096
#define CODE_SLOTS 8192
#define POOL_BYTES (1u << 20) /* location tables; one that does not fit is read again each time */
#define TABLE_BYTES 65536
#define TEXT_BYTES 1024
#define MOST_PREFIXES 16
#define PREFIX_BYTES 512
#define NO_FUNCTION 0xFFFFFFFFu

enum { CODE_OF_USER, CODE_OF_LIBRARY, CODE_OF_HOTLOOP, CODE_OF_INTERPRETER };

typedef struct {
    char *at;
    void *filename, *qualname, *table;
    Py_ssize_t units; /* instructions */
    int first_line;
    int first_traceable; /* a frame has begun once it is at this instruction */
    uint32_t function; /* in the tables, or NO_FUNCTION: not needed so far */
    uint32_t table_at, table_bytes; /* in the pool */
    uint32_t moment; /* when it was last compared with the code object */
    uint8_t kind;
    bool table_kept;
} Code;

typedef struct {
    char text[PREFIX_BYTES];
    size_t length;
    uint8_t kind;
} Prefix;

/* Hash tables hold 1 + the index of a row; 0 is a free place. */
typedef struct {
    HL_SAMPLES_t *file;
    Prefix prefixes[MOST_PREFIXES];
    size_t prefix_count;
    Code codes[MOST_CODES];
    uint32_t code_count;
    uint32_t code_slots[CODE_SLOTS];
    uint32_t file_slots[2 * HL_MAX_SAMPLED_FILES];
    uint32_t function_slots[2 * HL_MAX_SAMPLED_FUNCTIONS];
    uint32_t path_slots[2 * HL_MAX_SAMPLED_PATHS];
    uint32_t pool_used;
    uint32_t moment;
    uint8_t pool[POOL_BYTES];
    uint8_t scratch[TABLE_BYTES];
} CodeTables;

static inline uint64_t hash_bytes(const void *data, size_t size, uint64_t hash)
{
    const uint8_t *at = data;
    for (size_t i = 0; i < size; i++) {
        hash = (hash ^ at[i]) * 0x100000001B3ull;
    }
    return hash ^ hash >> 29;
}

/* -- strings -------------------------------------------------------------------------------------- */

static size_t put_utf8(uint32_t point, char *to)
{
    if (point < 0x80) {
        to[0] = (char)point;
        return 1;
    }
    if (point < 0x800) {
        to[0] = (char)(0xC0 | point >> 6);
        to[1] = (char)(0x80 | (point & 63));
        return 2;
    }
    if (point < 0x10000) {
        to[0] = (char)(0xE0 | point >> 12);
        to[1] = (char)(0x80 | (point >> 6 & 63));
        to[2] = (char)(0x80 | (point & 63));
        return 3;
    }
    to[0] = (char)(0xF0 | (point >> 18 & 7));
    to[1] = (char)(0x80 | (point >> 12 & 63));
    to[2] = (char)(0x80 | (point >> 6 & 63));
    to[3] = (char)(0x80 | (point & 63));
    return 4;
}

/* UTF-8 of a string object, at most TEXT_BYTES of its beginning; -1 when it cannot be read. */
static ssize_t read_text(const void *at, char *text)
{
    PyCompactUnicodeObject head;
    if (at == NULL || !peek(at, &head, sizeof head)) {
        return -1;
    }
    const PyASCIIObject *ascii = (const PyASCIIObject *)&head;
    unsigned width = ascii->state.kind;
    if (ascii->ob_base.ob_type != &PyUnicode_Type || !ascii->state.compact || ascii->length < 0 ||
        (width != 1 && width != 2 && width != 4)) {
        return -1;
    }
    size_t most = TEXT_BYTES / (ascii->state.ascii ? 1 : 4);
    size_t count = (size_t)ascii->length < most ? (size_t)ascii->length : most;
    const char *data = (const char *)at + (ascii->state.ascii ? sizeof(PyASCIIObject) : sizeof(PyCompactUnicodeObject));
    if (ascii->state.ascii) {
        return peek(data, text, count) || count == 0 ? (ssize_t)count : -1;
    }
    union {
        uint8_t one[TEXT_BYTES / 4];
        uint16_t two[TEXT_BYTES / 4];
        uint32_t four[TEXT_BYTES / 4];
    } raw;
    if (count > 0 && !peek(data, &raw, count * width)) {
        return -1;
    }
    size_t used = 0;
    for (size_t i = 0; i < count; i++) {
        used += put_utf8(width == 1 ? raw.one[i] : width == 2 ? raw.two[i] : raw.four[i], text + used);
    }
    return (ssize_t)used;
}

/* -- files and functions -------------------------------------------------------------------------- */

static uint8_t kind_of_file(const CodeTables *t, const char *name, size_t length, uint32_t *library_bytes)
{
    *library_bytes = 0;
    for (size_t i = 0; i < t->prefix_count; i++) {
        const Prefix *prefix = &t->prefixes[i];
        if (length >= prefix->length && memcmp(name, prefix->text, prefix->length) == 0) {
            *library_bytes = (uint32_t)prefix->length;
            return prefix->kind;
        }
    }
    return length > 0 && name[0] == '<' ? CODE_OF_LIBRARY : CODE_OF_USER;
}

/* Number of a file in the tables, or NO_FUNCTION when there are too many. */
static uint32_t number_of_file(CodeTables *t, const char *name, size_t length, uint32_t library_bytes)
{
    HL_SAMPLED_FILE_t row = {0};
    size_t room = sizeof row.name, dropped = length > room ? length - room : 0;
    while (dropped && dropped < length && ((uint8_t)name[dropped] & 0xC0) == 0x80) {
        dropped++; /* on to the first byte of a character */
    }
    row.name_bytes = (uint32_t)(length - dropped);
    row.library_bytes = library_bytes > dropped ? library_bytes - (uint32_t)dropped : 0;
    memcpy(row.name, name + dropped, row.name_bytes);
    HL_SAMPLES_t *file = t->file;
    const uint32_t slots = 2 * HL_MAX_SAMPLED_FILES;
    uint32_t slot = (uint32_t)(hash_bytes(row.name, row.name_bytes, 1) % slots);
    for (; t->file_slots[slot]; slot = (slot + 1) % slots) {
        if (memcmp(&file->files[t->file_slots[slot] - 1], &row, sizeof row) == 0) {
            return t->file_slots[slot] - 1;
        }
    }
    if (file->file_count >= HL_MAX_SAMPLED_FILES) {
        return NO_FUNCTION;
    }
    uint32_t number = file->file_count;
    file->files[number] = row;
    __atomic_store_n(&file->file_count, number + 1, __ATOMIC_RELEASE);
    t->file_slots[slot] = number + 1;
    return number;
}

static uint32_t number_of_function(CodeTables *t, uint32_t in_file, int first_line, const char *name, size_t length)
{
    HL_SAMPLED_FUNCTION_t row = {.file = in_file, .first_line = (uint32_t)first_line};
    size_t kept = length < sizeof row.name ? length : sizeof row.name;
    while (kept < length && kept > 0 && ((uint8_t)name[kept] & 0xC0) == 0x80) {
        kept--;
    }
    row.name_bytes = (uint32_t)kept;
    memcpy(row.name, name, kept);
    HL_SAMPLES_t *file = t->file;
    const uint32_t slots = 2 * HL_MAX_SAMPLED_FUNCTIONS;
    uint32_t slot = (uint32_t)(hash_bytes(row.name, kept, in_file * 31ull + row.first_line) % slots);
    for (; t->function_slots[slot]; slot = (slot + 1) % slots) {
        const HL_SAMPLED_FUNCTION_t *other = &file->functions[t->function_slots[slot] - 1];
        if (other->file == in_file && other->first_line == row.first_line && other->name_bytes == kept &&
            memcmp(other->name, row.name, kept) == 0) {
            return t->function_slots[slot] - 1;
        }
    }
    if (in_file == NO_FUNCTION || file->function_count >= HL_MAX_SAMPLED_FUNCTIONS) {
        return NO_FUNCTION;
    }
    uint32_t number = file->function_count;
    file->functions[number] = row;
    __atomic_store_n(&file->function_count, number + 1, __ATOMIC_RELEASE);
    t->function_slots[slot] = number + 1;
    return number;
}

/* -- code objects --------------------------------------------------------------------------------- */

#if FRAMES_CAN_BE_READ

#define CODE_BYTES offsetof(PyCodeObject, co_code_adaptive)
typedef union {
    PyCodeObject code;
    char bytes[sizeof(PyCodeObject)];
} CodeCopy;

static bool same_code(const Code *code, const PyCodeObject *now)
{
    return now->ob_base.ob_base.ob_type == &PyCode_Type && code->filename == now->co_filename &&
           code->qualname == now->co_qualname && code->table == now->co_linetable &&
           code->first_line == now->co_firstlineno && code->units == now->ob_base.ob_size;
}

static Code *known_code(CodeTables *t, const char *at, uint32_t *slot)
{
    *slot = (uint32_t)(((uint64_t)(uintptr_t)at >> 4) * 0x9E3779B97F4A7C15ull >> 40) % CODE_SLOTS;
    for (; t->code_slots[*slot]; *slot = (*slot + 1) % CODE_SLOTS) {
        Code *code = &t->codes[t->code_slots[*slot] - 1];
        if (code->at == at) {
            return code;
        }
    }
    return NULL;
}

/* Fill an entry from a code object; false when that cannot be read. */
static bool learn_code(CodeTables *t, Code *code, char *at, const PyCodeObject *now)
{
    char name[TEXT_BYTES];
    uint32_t library_bytes;
    if (now->ob_base.ob_base.ob_type != &PyCode_Type) {
        return false;
    }
    ssize_t length = now->co_filename ? read_text(now->co_filename, name) : 0;
    if (length < 0) {
        return false;
    }
    *code = (Code){.at = at, .filename = now->co_filename, .qualname = now->co_qualname, .table = now->co_linetable,
                   .units = now->ob_base.ob_size, .first_line = now->co_firstlineno,
                   .first_traceable = now->_co_firsttraceable, .function = NO_FUNCTION};
    code->kind = now->co_filename ? kind_of_file(t, name, (size_t)length, &library_bytes) : CODE_OF_INTERPRETER;
    return true;
}

/* The entry of the code object at `at`, compared with it or filled anew; NULL when it is no code object. */
static Code *code_at(CodeTables *t, char *at, const PyCodeObject *now)
{
    uint32_t slot;
    Code *code = known_code(t, at, &slot);
    if (code == NULL) {
        if (t->code_count >= MOST_CODES) { /* begin again; the names stay in the tables of the part */
            t->code_count = t->pool_used = 0;
            memset(t->code_slots, 0, sizeof t->code_slots);
            known_code(t, at, &slot);
        }
        code = &t->codes[t->code_count];
        if (!learn_code(t, code, at, now)) {
            return NULL;
        }
        t->code_slots[slot] = ++t->code_count;
    } else if (!same_code(code, now) && !learn_code(t, code, at, now)) {
        *code = (Code){.at = at};
        return NULL;
    }
    code->moment = t->moment;
    return code;
}

/* Give the code a number among the functions; call it right after code_at. */
static uint32_t name_code(CodeTables *t, Code *code)
{
    if (code->function == NO_FUNCTION) {
        char name[TEXT_BYTES];
        uint32_t library_bytes;
        ssize_t length = read_text(code->filename, name);
        if (length < 0) {
            return NO_FUNCTION;
        }
        kind_of_file(t, name, (size_t)length, &library_bytes);
        uint32_t file = number_of_file(t, name, (size_t)length, library_bytes);
        length = read_text(code->qualname, name);
        if (length >= 0) {
            code->function = number_of_function(t, file, code->first_line, name, (size_t)length);
        }
    }
    return code->function;
}

/* The position of an instruction; the function's first line where the table does not say. */
static Position position_in_code(CodeTables *t, Code *code, ptrdiff_t instruction)
{
    const Position unknown = {code->first_line, code->first_line, NO_COLUMN, NO_COLUMN};
    PyBytesObject head;
    uint8_t *table = t->pool + code->table_at;
    size_t size = code->table_bytes;
    if (!code->table_kept) {
        if (!peek(code->table, &head, offsetof(PyBytesObject, ob_sval)) || head.ob_base.ob_base.ob_type != &PyBytes_Type ||
            head.ob_base.ob_size < 0) {
            return unknown;
        }
        size = (size_t)head.ob_base.ob_size < TABLE_BYTES ? (size_t)head.ob_base.ob_size : TABLE_BYTES;
        bool fits = POOL_BYTES - t->pool_used >= size;
        table = fits ? t->pool + t->pool_used : t->scratch;
        if (!peek((char *)code->table + offsetof(PyBytesObject, ob_sval), table, size)) {
            return unknown;
        }
        if (fits) {
            code->table_at = t->pool_used;
            code->table_bytes = (uint32_t)size;
            code->table_kept = true;
            t->pool_used += (uint32_t)size;
        }
    }
    if (instruction < 0 || instruction >= code->units) {
        return unknown;
    }
    Position found = position_at(table, size, code->first_line, instruction);
    return found.line == NO_LINE ? unknown : found;
}

#endif
#endif
