/* The recorder, compiled: what twin.py does, for about a hundred nanoseconds a region.
 *
 * Read twin.py and twin_region.py first: same names, same file, same results. What is different here:
 *
 * - A thread finds its arena in thread-local storage. `Local.epoch == Recorder.epoch` says that it
 *   is the right one; both change at start, stop and fork, so one compare covers all of them.
 *   While we call out to Python from a slow path, Local.epoch is 0, and regions entered meanwhile
 *   by finalizers or signal handlers on this thread are not recorded.
 * - A region remembers the last (parent, child) pair of nodes: one compare instead of a lookup.
 * - `__enter__` and `__exit__` are callables made once for each region, handed out by descriptors,
 *   so that a `with` statement allocates nothing.
 * - Regions that a wrapped call opens or closes together share one reading of the clock.
 * - Arrays of NumPy are read by their fields, without asking for a buffer.
 * - The sampler is a native thread: it never takes the GIL, allocates nothing and holds no lock
 *   that a region or a forked child would need.
 *
 * The GIL guards everything but three things: the sampler (reads open stacks, writes rss fields),
 * the end of a thread (`thread_ended`, under `registry_lock`) and readers in other processes (the
 * sequence number of each arena).
 */

#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "layout.h"
#include "compiled/state.h"
#include "compiled/tree.h"
#include "compiled/threads.h"
#include "compiled/hot.h"
#include "compiled/region.h"
#include "compiled/wrap.h"
#include "compiled/sampler.h"
#include "compiled/lifetime.h"
#include "compiled/progress.h"
#include "compiled/columns.h"
#include "compiled/steps.h"
#include "compiled/recorder.h"

/* -- for the benchmark: what a region cannot be cheaper than ------------------------------------------ */

static PyObject *two_clock_reads(PyObject *module, PyObject *argument)
{
    (void)module;
    long rounds = PyLong_AsLong(argument);
    volatile uint64_t sum = 0;
    uint64_t start = read_clock(CLOCK_MONOTONIC);
    for (long i = 0; i < rounds; i++) {
        sum += read_clock(CLOCK_MONOTONIC);
        sum += read_clock(CLOCK_MONOTONIC);
    }
    return PyFloat_FromDouble((double)(read_clock(CLOCK_MONOTONIC) - start) / (double)(rounds ? rounds : 1));
}

static PyObject *bare_enter(PyObject *self, PyObject *unused)
{
    (void)unused;
    return Py_NewRef(self);
}

static PyObject *bare_exit(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    (void)self, (void)args, (void)nargs;
    Py_RETURN_NONE;
}

static PyMethodDef bare_methods[] = {
    {"__enter__", bare_enter, METH_NOARGS, NULL},
    {"__exit__", (PyCFunction)(void (*)(void))bare_exit, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject BareType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "hotloop.measure._core.Bare",
    .tp_doc = "A context manager that does nothing, written the usual way: the bare `with` protocol.",
    .tp_basicsize = sizeof(PyObject),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = PyType_GenericNew,
    .tp_methods = bare_methods,
};

static PyMethodDef module_methods[] = {
    {"two_clock_reads", two_clock_reads, METH_O, "Nanoseconds for two reads of the clock, mean of n rounds."},
    {NULL, NULL, 0, NULL},
};

/* -- the module --------------------------------------------------------------------------------------- */

static struct PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT,
    .m_name = "hotloop.measure._core",
    .m_doc = "The recorder, compiled; see twin.py for the same in Python.",
    .m_size = -1,
    .m_methods = module_methods,
};

static PyObject *attribute_of(const char *module, const char *name)
{
    PyObject *imported = PyImport_ImportModule(module);
    PyObject *found = imported ? PyObject_GetAttrString(imported, name) : NULL;
    Py_XDECREF(imported);
    return found;
}

static bool add_slot(const char *name, size_t offset)
{
    Slot *slot = PyObject_New(Slot, &SlotType);
    if (slot == NULL) {
        return false;
    }
    slot->offset = offset;
    int failed = PyDict_SetItemString(RegionType.tp_dict, name, (PyObject *)slot);
    Py_DECREF(slot);
    return !failed;
}

PyMODINIT_FUNC PyInit__core(void)
{
    struct { PyObject **word; const char *text; } words[] = {
        {&word_env_steps, "env_steps"}, {&word_updates, "updates"},
        {&word_episodes, "episodes"}, {&word_episode_length, "episode_length"},
        {&word_episode_return, "episode_return"}, {&word_loss, "loss"}, {&word_bytes, "bytes"},
        {&word_flops, "flops"}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        *words[i].word = PyUnicode_InternFromString(words[i].text);
    }
    describe = attribute_of("hotloop.measure.regions", "describe");
    user_site = attribute_of("hotloop.measure.regions", "user_site");
    decorate = attribute_of("hotloop.measure.decorate", "decorate");
    if (describe == NULL || user_site == NULL || decorate == NULL) {
        return NULL;
    }
    PyTypeObject *types[] = {&SlotType, &BoundCallType, &RegionType, &ProfileCallType, &ProfiledType,
                             &RecorderType, &StepCounterType, &BareType};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (PyType_Ready(types[i]) < 0) {
            return NULL;
        }
    }
    if (!add_slot("__enter__", offsetof(Region, enter)) || !add_slot("__exit__", offsetof(Region, exit))) {
        return NULL;
    }
    PyType_Modified(&RegionType);
    if (pthread_key_create(&thread_key, thread_ended) != 0 || pthread_atfork(NULL, NULL, forked_child) != 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        return NULL;
    }
    PyObject *module = PyModule_Create(&module_def);
    if (module == NULL || PyModule_AddIntConstant(module, "KIND", HL_CORE_COMPILED) < 0 ||
        PyModule_AddObjectRef(module, "Recorder", (PyObject *)&RecorderType) < 0 ||
        PyModule_AddObjectRef(module, "Region", (PyObject *)&RegionType) < 0 ||
        PyModule_AddObjectRef(module, "StepCounter", (PyObject *)&StepCounterType) < 0 ||
        PyModule_AddObjectRef(module, "Bare", (PyObject *)&BareType) < 0) {
        Py_XDECREF(module);
        return NULL;
    }
    return module;
}
