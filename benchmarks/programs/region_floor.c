/* The lower limit of a region's cost: two clock reads and a bare `with` statement. Built by region_cost.py. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <time.h>

static uint64_t read_clock(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static PyObject *two_clock_reads(PyObject *module, PyObject *argument)
{
    (void)module;
    long rounds = PyLong_AsLong(argument);
    volatile uint64_t sum = 0;
    uint64_t start = read_clock();
    for (long i = 0; i < rounds; i++) {
        sum += read_clock();
        sum += read_clock();
    }
    return PyFloat_FromDouble((double)(read_clock() - start) / (double)(rounds ? rounds : 1));
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
    .tp_name = "region_floor.Bare",
    .tp_doc = "A context manager that does nothing.",
    .tp_basicsize = sizeof(PyObject),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = PyType_GenericNew,
    .tp_methods = bare_methods,
};

static PyMethodDef module_methods[] = {
    {"two_clock_reads", two_clock_reads, METH_O, "Nanoseconds for two reads of the clock, mean of n rounds."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT,
    .m_name = "region_floor",
    .m_size = -1,
    .m_methods = module_methods,
};

PyMODINIT_FUNC PyInit_region_floor(void)
{
    PyObject *module = PyModule_Create(&module_def);
    if (module != NULL && PyModule_AddType(module, &BareType) < 0) {
        Py_CLEAR(module);
    }
    return module;
}
