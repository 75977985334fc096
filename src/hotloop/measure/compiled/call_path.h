/* A number for the chain of Python frames that led to a call; twin/call_path.py does the same in Python. */
#ifndef HOTLOOP_CALL_PATH_H
#define HOTLOOP_CALL_PATH_H

#include "python_threads.h"

#define PATH_FRAMES 64 /* innermost frames that count; twin/call_path.py has the same */
#define PATH_TRIALS 32 /* calls in which the quick way is compared with Python's own */

/* The path of the last call that was picked by its path since the last env step; 0 for none. A process has few
   threads that act, so all share it; what comes of it is evidence, and is checked again. */
static uint64_t last_path;

static inline uint64_t mix(uint64_t hash, uint64_t value)
{
    hash = (hash ^ value) * 0x9E3779B97F4A7C15u;
    return hash ^ (hash >> 29);
}

static inline uint64_t mix_frame(uint64_t hash, const void *code, Py_ssize_t instruction)
{
    return mix(mix(hash, (uint64_t)(uintptr_t)code), (uint64_t)instruction);
}

static inline uint64_t never_zero(uint64_t hash)
{
    return (hash >> 1) | 1;
}

/* Only public functions of CPython. They make an object of every frame: 45 ns each, and its memory is freed when
   the function returns. */
static uint64_t call_path_of_objects(void)
{
    uint64_t hash = 1;
    PyFrameObject *frame = PyThreadState_GetFrame(PyThreadState_Get());
    for (int depth = 0; frame != NULL && depth < PATH_FRAMES; depth++) {
        PyCodeObject *code = PyFrame_GetCode(frame);
        hash = mix_frame(hash, code, PyFrame_GetLasti(frame));
        Py_DECREF(code); /* the frame keeps it */
        PyFrameObject *back = PyFrame_GetBack(frame);
        Py_DECREF(frame);
        frame = back;
    }
    Py_XDECREF(frame);
    return never_zero(hash);
}

#if FRAMES_CAN_BE_READ

/* The same from the frames themselves, which the calling thread keeps in place while it is here. 0: a frame could
   not be read (`safely`, as long as their layout is not known for sure). */
static inline uint64_t call_path_of_frames(bool safely)
{
    PyThreadState *state = PyThreadState_Get();
#if PY_VERSION_HEX < 0x030D0000
    const char *at = state->cframe ? (const char *)state->cframe->current_frame : NULL;
#else
    const char *at = (const char *)state->current_frame;
#endif
    uint64_t hash = 1;
    for (int depth = 0; at != NULL && depth < PATH_FRAMES;) {
        InterpreterFrame copy;
        const InterpreterFrame *frame = (const InterpreterFrame *)at;
        if (safely) {
            if (!peek(at, &copy, sizeof copy)) {
                return 0;
            }
            frame = &copy;
        }
        if (frame->owner != OWNED_BY_C_STACK) {
            hash = mix_frame(hash, frame->code, instruction_index(frame) * CODE_UNIT_BYTES);
            depth++;
        }
        at = frame->previous;
    }
    return never_zero(hash);
}

#endif

/* Never 0. Frames are named by their code and instruction, so two lines of one function differ. A wrapped call that
   looks up its region by path takes 31 ns more than one that does not, 91 ns more with 20 frames around it. */
static uint64_t call_path(void)
{
#if FRAMES_CAN_BE_READ
    static int agreed; /* calls in which both ways gave the same; -1: they did not */
    if (LIKELY(agreed == PATH_TRIALS)) {
        return call_path_of_frames(false);
    }
    uint64_t hash = call_path_of_objects();
    if (agreed >= 0) {
        agreed = call_path_of_frames(true) == hash ? agreed + 1 : -1;
    }
    return hash;
#else
    return call_path_of_objects();
#endif
}

#endif
