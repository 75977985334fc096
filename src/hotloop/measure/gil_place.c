/* Where the GIL is in memory, so that the sampler can tell a thread that waits for it from one that waits for any
 * other lock. A file of its own: only this one needs the interpreter's internal headers. */
#include <patchlevel.h>

#if defined(__has_include)
#if PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030E0000 && !defined(Py_GIL_DISABLED) && \
    __has_include(<internal/pycore_runtime.h>)
#define GIL_IS_KNOWN 1
#define Py_BUILD_CORE 1
#endif
#endif

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stddef.h>

const void *hotloop_gil_place(size_t *size);
const void *hotloop_gil_holder(const void *gil);

#ifdef GIL_IS_KNOWN
#pragma GCC diagnostic ignored "-Wunused-parameter"
#pragma GCC diagnostic ignored "-Wsign-compare"
#include <internal/pycore_interp.h>
#include <internal/pycore_runtime.h>
#endif

/* The GIL of the calling thread's interpreter, which must hold it; NULL when it is not known. */
const void *hotloop_gil_place(size_t *size)
{
#ifdef GIL_IS_KNOWN
    *size = sizeof(struct _gil_runtime_state);
#if PY_VERSION_HEX < 0x030C0000
    return &_PyRuntime.ceval.gil;
#else
    return PyInterpreterState_Get()->ceval.gil;
#endif
#else
    *size = 0;
    return NULL;
#endif
}

/* The state of the thread that has the GIL at this moment, NULL when nobody does; read without it. */
const void *hotloop_gil_holder(const void *gil)
{
#ifdef GIL_IS_KNOWN
    const struct _gil_runtime_state *now = gil;
    if (__atomic_load_n((const int *)&now->locked, __ATOMIC_ACQUIRE) != 1) {
        return NULL;
    }
    return __atomic_load_n((void *const *)&now->last_holder, __ATOMIC_RELAXED);
#else
    (void)gil;
    return NULL;
#endif
}
