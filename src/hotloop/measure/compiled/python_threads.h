/* The threads and frames of the interpreter, read without the GIL; what depends on the version of Python is here. */
#ifndef HOTLOOP_PYTHON_THREADS_H
#define HOTLOOP_PYTHON_THREADS_H

#include "state.h" /* first: it sets what the system's headers declare */

#include "peek.h"

#include <string.h>

#define MOST_THREADS 256
#define MOST_FRAMES 1024 /* of one stack; what lies further out is left out */
#define STACK_BYTES 16384 /* of a thread's frames, copied in one go */

#if defined(__linux__) && PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030E0000 && !defined(Py_GIL_DISABLED)
#define FRAMES_CAN_BE_READ 1
#else
#define FRAMES_CAN_BE_READ 0
#endif

/* _PyInterpreterFrame, from pycore_frame.h: up to `owner`. `check_frames` compares it with what Python says before
   anything relies on it. */
typedef struct {
#if PY_VERSION_HEX < 0x030C0000
    void *function, *globals, *builtins, *locals;
    char *code;
    void *object;
    char *previous;
    char *instruction; /* the last one that was begun, or its cache */
    int stacktop;
    bool is_entry;
    char owner;
#else
    char *code; /* since 3.13 it may be another object */
    char *previous;
    void *function, *globals, *builtins, *locals, *object;
    char *instruction; /* 3.12: as above; 3.13: the one that is running */
    int stacktop;
    uint16_t return_offset;
    char owner;
#endif
} InterpreterFrame;

#define CODE_UNIT_BYTES 2
#define OWNED_BY_GENERATOR 1
#define OWNED_BY_C_STACK 3 /* marks a call from C to Python, no code of its own (3.12, 3.13) */

/* The part of a thread state up to the fields we read. */
#define THREAD_STATE_BYTES (offsetof(PyThreadState, datastack_limit) + sizeof(void *))

typedef struct {
    union {
        PyThreadState state;
        char bytes[sizeof(PyThreadState)];
    };
    PyThreadState *at;
} ThreadCopy;

#if FRAMES_CAN_BE_READ

/* Renew the first copies. Returns how many could be read; memory that is no thread any more is noticed by its links. */
static size_t copy_threads_again(ThreadCopy *threads, size_t count)
{
    void *from[MOST_PIECES], *to[MOST_PIECES];
    count = count < MOST_PIECES ? count : MOST_PIECES;
    for (size_t i = 0; i < count; i++) {
        from[i] = threads[i].at;
        to[i] = threads[i].bytes;
    }
    return peek_each(from, to, THREAD_STATE_BYTES, count);
}

/* Copy the states of all Python threads, walking both ways from `anchor`, which must belong to a living thread:
   new threads are linked in front of it. `threads` holds `before` copies from the last time, which are mostly of the
   same threads, so they are read in one go. Returns the number of threads; 0 when the anchor is gone. */
static size_t copy_threads(PyThreadState *anchor, ThreadCopy *threads, size_t before, size_t most)
{
    size_t count = 0;
    ThreadCopy *first = &threads[0];
    size_t fresh = copy_threads_again(threads, before);
    if ((fresh == 0 || first->at != anchor) && !peek(anchor, first->bytes, THREAD_STATE_BYTES)) {
        return 0;
    }
    first->at = anchor;
    PyInterpreterState *interpreter = first->state.interp;
    count = 1;
    for (int way = 0; way < 2; way++) {
        PyThreadState *from = anchor, *next = way ? first->state.next : first->state.prev;
        while (next != NULL && count < most) {
            ThreadCopy *copy = &threads[count];
            bool copied = (count < fresh && copy->at == next) || peek(next, copy->bytes, THREAD_STATE_BYTES);
            if (!copied || copy->state.interp != interpreter || (way ? copy->state.prev : copy->state.next) != from) {
                break; /* threads came or went meanwhile: the next look finds the rest */
            }
            copy->at = next;
            count++;
            from = next;
            next = way ? copy->state.next : copy->state.prev;
        }
    }
    return count;
}

/* The innermost frame of each thread, NULL where it runs no Python. */
static void find_frames(const ThreadCopy *threads, size_t count, char **frames)
{
#if PY_VERSION_HEX < 0x030D0000
    for (size_t at = 0; at < count; at += MOST_PIECES) {
        size_t some = count - at < MOST_PIECES ? count - at : MOST_PIECES;
        void *from[MOST_PIECES];
        _PyCFrame found[MOST_PIECES];
        for (size_t i = 0; i < some; i++) {
            from[i] = threads[at + i].state.cframe;
        }
        size_t got = peek_many(from, found, sizeof(_PyCFrame), some);
        for (size_t i = 0; i < some; i++) {
            frames[at + i] = i < got || peek(from[i], &found[i], sizeof(_PyCFrame)) ? (char *)found[i].current_frame : NULL;
        }
    }
#else
    for (size_t i = 0; i < count; i++) {
        frames[i] = (char *)threads[i].state.current_frame;
    }
#endif
}

/* The frames of one thread are close together; a copy of that memory saves a system call for each. Every address here
   can be any number, so they are compared as numbers that cannot overflow. */
typedef struct {
    uintptr_t from;
    size_t size; /* 0: nothing could be copied */
    char bytes[STACK_BYTES];
} StackCopy;

#define STACK_ABOVE 1024 /* copied above the top, as it may have grown meanwhile */

static void copy_stack(const PyThreadState *state, StackCopy *copy)
{
    uintptr_t chunk = (uintptr_t)state->datastack_chunk, top = (uintptr_t)state->datastack_top;
    uintptr_t limit = (uintptr_t)state->datastack_limit;
    copy->size = 0;
    if (chunk == 0 || top < chunk || limit < top) {
        return;
    }
    size_t below = top - chunk < STACK_BYTES - STACK_ABOVE ? top - chunk : STACK_BYTES - STACK_ABOVE;
    size_t above = limit - top < STACK_ABOVE ? limit - top : STACK_ABOVE;
    copy->from = top - below;
    if (peek((void *)copy->from, copy->bytes, below + above)) {
        copy->size = below + above;
    }
}

static bool read_frame(const StackCopy *stack, const char *at, InterpreterFrame *frame)
{
    uintptr_t offset = (uintptr_t)at - stack->from; /* huge when `at` lies below */
    if (stack->size >= sizeof *frame && offset <= stack->size - sizeof *frame) {
        memcpy(frame, stack->bytes + offset, sizeof *frame);
        return true;
    }
    return peek(at, frame, sizeof *frame); /* a generator's frame, or one of an earlier chunk */
}

/* Index of the instruction a frame is at, in code units; -1 before its first one. */
static inline Py_ssize_t instruction_index(const InterpreterFrame *frame)
{
    uintptr_t first = (uintptr_t)frame->code + offsetof(PyCodeObject, co_code_adaptive);
    return (Py_ssize_t)((uintptr_t)frame->instruction - first) / CODE_UNIT_BYTES;
}

#endif
#endif
