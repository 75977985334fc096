/* A number for the chain of Python frames that led to a call; twin/call_path.py does the same in Python. */
#ifndef HOTLOOP_CALL_PATH_H
#define HOTLOOP_CALL_PATH_H

#include "state.h"

#define PATH_FRAMES 64 /* innermost frames that count; twin/call_path.py has the same */

/* The path of the last call that was picked by its path since the last env step; 0 for none. A process has few
   threads that act, so all share it; what comes of it is evidence, and is checked again. */
static uint64_t last_path;

static inline uint64_t mix(uint64_t hash, uint64_t value)
{
    hash = (hash ^ value) * 0x9E3779B97F4A7C15u;
    return hash ^ (hash >> 29);
}

/* Never 0. Frames are named by their code and instruction, so two lines of one function differ. Only public
   functions of CPython. A wrapped call that looks up its region by path takes 333 ns, one that asks
   torch.is_grad_enabled 174 ns (least CPU time of 30 runs, two frames between the loop and the call, with one
   call in 256 examined in Python). */
static uint64_t call_path(void)
{
    uint64_t hash = 1;
    PyFrameObject *frame = PyThreadState_GetFrame(PyThreadState_Get());
    for (int depth = 0; frame != NULL && depth < PATH_FRAMES; depth++) {
        PyCodeObject *code = PyFrame_GetCode(frame);
        hash = mix(mix(hash, (uint64_t)(uintptr_t)code), (uint64_t)PyFrame_GetLasti(frame));
        Py_DECREF(code); /* the frame keeps it */
        PyFrameObject *back = PyFrame_GetBack(frame);
        Py_DECREF(frame);
        frame = back;
    }
    Py_XDECREF(frame);
    return (hash >> 1) | 1;
}

#endif
