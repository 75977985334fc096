/* The compiled core: a recorder that costs about a hundred nanoseconds per region.
 *
 * The Python twin in twin/ does the same with the same names, file and results; read it first. Differences:
 *
 * - A thread finds its arena in thread-local storage. The arena is valid if `Local.epoch == Recorder.epoch`;
 *   both change at start, stop and fork, so one comparison covers all three. While a slow path calls out to
 *   Python, Local.epoch is 0: regions that finalizers or signal handlers enter then are not recorded.
 * - A region remembers its last (parent, child) pair of nodes: one comparison instead of a lookup.
 * - `__enter__` and `__exit__` are created once per region and returned by descriptors, so that a `with`
 *   statement allocates nothing.
 * - Regions that a wrapped call opens or closes together share one reading of the clock.
 * - NumPy arrays are read through their fields instead of the buffer protocol.
 * - The sampler is a native thread: it never takes the GIL, allocates nothing, and holds no lock that a
 *   region or a forked child needs. It samples lines as well (line_samples.h), which the twin cannot do
 *   without the GIL; hotloop/measure/line_sampler.py does it where this core is not available.
 *
 * The GIL protects everything except from the sampler (reads open stacks, writes rss fields), the end of a
 * thread (`thread_ended`, under `registry_lock`) and readers in other processes (the sequence number of each
 * arena).
 *
 * All code is in headers, compiled as one unit, so that the hot path can be inlined.
 */

#include "compiled/recorder.h"
#include "compiled/call_counters.h"
#include "compiled/watched_lock.h"

/* -- the module --------------------------------------------------------------------------------------- */

static PyObject *core_position_at(PyObject *module, PyObject *args)
{
    (void)module;
    Py_buffer table;
    int first_line;
    Py_ssize_t instruction;
    if (!PyArg_ParseTuple(args, "y*in", &table, &first_line, &instruction)) {
        return NULL;
    }
    Position found = position_at(table.buf, (size_t)table.len, first_line, instruction);
    PyBuffer_Release(&table);
    if (found.line == NO_LINE) {
        return Py_NewRef(Py_None);
    }
    return Py_BuildValue("iiii", found.line, found.end_line, found.column, found.end_column);
}

static PyObject *core_peek(PyObject *module, PyObject *args)
{
    (void)module;
    unsigned long long address;
    Py_ssize_t size;
    if (!PyArg_ParseTuple(args, "Kn", &address, &size)) {
        return NULL;
    }
    PyObject *data = PyBytes_FromStringAndSize(NULL, size);
    if (data != NULL && !peek((void *)(uintptr_t)address, PyBytes_AS_STRING(data), (size_t)size)) {
        Py_DECREF(data);
        return Py_NewRef(Py_None);
    }
    return data;
}

static PyObject *core_call_paths(PyObject *module, PyObject *unused)
{
    (void)module, (void)unused;
    unsigned long long slow = call_path_of_objects();
#if FRAMES_CAN_BE_READ
    return Py_BuildValue("KKK", slow, call_path_of_frames(false), call_path_of_frames(true));
#else
    return Py_BuildValue("KOO", slow, Py_None, Py_None);
#endif
}

/* What `class_builder` returns, with (build, names, made) as its `self`. */
static PyObject *build_class(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *words)
{
    PyObject *built = PyObject_Vectorcall(PyTuple_GET_ITEM(self, 0), args, (size_t)count, words);
    if (built == NULL || !PyType_Check(built)) {
        return built;
    }
    PyObject *names = PyTuple_GET_ITEM(self, 1);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); i++) {
        if (_PyType_Lookup((PyTypeObject *)built, PyTuple_GET_ITEM(names, i)) == NULL) {
            return built;
        }
    }
    PyObject *said = PyObject_CallOneArg(PyTuple_GET_ITEM(self, 2), built);
    if (said == NULL) {
        Py_DECREF(built);
        return NULL;
    }
    Py_DECREF(said);
    return built;
}

static PyMethodDef build_class_method = {
    "__build_class__", (PyCFunction)(void (*)(void))build_class, METH_FASTCALL | METH_KEYWORDS,
    "__build_class__(func, name, /, *bases, [metaclass], **kwds) -> class"};

static PyObject *core_class_builder(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *build, *names, *made;
    if (!PyArg_ParseTuple(args, "OO!O", &build, &PyTuple_Type, &names, &made)) {
        return NULL;
    }
    return PyCFunction_NewEx(&build_class_method, args, NULL);
}

static PyMethodDef module_methods[] = {
    {"class_builder", core_class_builder, METH_VARARGS,
     "class_builder(build, names, made): `build` for class statements, which calls made(cls) for each class with these\n"
     "attributes. In C, so that a class body has the caller that it would have without it."},
    {"position_at", core_position_at, METH_VARARGS,
     "position_at(co_linetable, co_firstlineno, instruction): first line, last line, first column and end column of an "
     "instruction, columns -1 where they are not known; None without a line. For tests."},
    {"peek", core_peek, METH_VARARGS, "peek(address, size): memory of this process, or None if it cannot be read; for tests."},
    {"call_paths", core_call_paths, METH_NOARGS,
     "call_paths(): the path of this call from frame objects, from the frames themselves, and from copies of those; None "
     "where frames cannot be read. For tests."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT,
    .m_name = "hotloop.measure._core",
    .m_doc = "The compiled core; hotloop.measure.twin does the same in Python.",
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
        {&word_flops, "flops"}, {&word_detail, "_hotloop_detail"},
#if PY_VERSION_HEX < 0x030d0000
        {&word_acquire, "acquire"}, {&word_release, "release"},
#endif
    };
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        *words[i].word = PyUnicode_InternFromString(words[i].text);
    }
    if (!(is_users = attribute_of("hotloop._util.interrupts", "is_users")) ||
        !(report_own = attribute_of("hotloop._util.interrupts", "report_own")) ||
        !(describe_region = attribute_of("hotloop.measure.core_shared", "describe_region")) ||
        !(user_site = attribute_of("hotloop.measure.core_shared", "user_site")) ||
        !(decorate = attribute_of("hotloop.measure.decorate", "decorate"))) {
        return NULL;
    }
    PyTypeObject *types[] = {&SlotType, &BoundCallType, &RegionType, &ProfileCallType, &ProfiledType,
                             &RecorderType, &StepCounterType, &CallCounterType, &UpdateCounterType,
#if PY_VERSION_HEX < 0x030d0000
                             &WatchedLockType,
#endif
    };
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
        PyModule_AddIntConstant(module, "LAYOUT_CRC", HL_LAYOUT_CRC) < 0 ||
        PyModule_AddObjectRef(module, "Recorder", (PyObject *)&RecorderType) < 0 ||
        PyModule_AddObjectRef(module, "Region", (PyObject *)&RegionType) < 0 ||
        PyModule_AddObjectRef(module, "StepCounter", (PyObject *)&StepCounterType) < 0 ||
        PyModule_AddObjectRef(module, "CallCounter", (PyObject *)&CallCounterType) < 0 ||
        PyModule_AddObjectRef(module, "UpdateCounter", (PyObject *)&UpdateCounterType) < 0) {
        Py_XDECREF(module);
        return NULL;
    }
#if PY_VERSION_HEX < 0x030d0000
    if (PyModule_AddObjectRef(module, "WatchedLock", (PyObject *)&WatchedLockType) < 0) {
        Py_DECREF(module);
        return NULL;
    }
#endif
    return module;
}
