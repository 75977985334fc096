/* A lock of `threading` that tells when somebody waited for it or held it for long.
 *
 * In C, and without a twin: a handler of a signal may raise between any two instructions of Python, so a `with`
 * statement whose lock is written in Python can leave it held for ever.
 */

#ifndef WATCHED_LOCK_H
#define WATCHED_LOCK_H

#include "recorder.h"

#if PY_VERSION_HEX < 0x030d0000 /* later, `threading.Lock` is a class and stays as it is */

static PyObject *word_acquire, *word_release;

typedef struct {
    PyObject_HEAD
    PyObject *lock;    /* the lock itself */
    PyObject *begin;   /* begin(): somebody is going to wait */
    PyObject *waited;  /* waited(self, what `begin` returned) */
    PyObject *freeing; /* freeing(self, since_ns, now_ns): it is still held; since_ns is 0 after `waited` */
    PyObject *channel; /* for the callbacks */
    PyObject *weak;
    int64_t since_ns; /* the last acquire, on the clock of time.monotonic_ns */
    int64_t long_ns;  /* a shorter hold that nobody waited for is not told */
    bool told;        /* that somebody waited for the present hold */
} WatchedLock;

static PyObject *watched_new(PyTypeObject *type, PyObject *args, PyObject *words)
{
    static char *names[] = {"lock", "long_ns", "begin", "waited", "freeing", NULL};
    PyObject *lock, *begin, *waited, *freeing;
    long long long_ns;
    if (!PyArg_ParseTupleAndKeywords(args, words, "OLOOO", names, &lock, &long_ns, &begin, &waited, &freeing)) {
        return NULL;
    }
    WatchedLock *self = (WatchedLock *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->lock = Py_NewRef(lock);
        self->begin = Py_NewRef(begin);
        self->waited = Py_NewRef(waited);
        self->freeing = Py_NewRef(freeing);
        self->channel = Py_NewRef(Py_None);
        self->long_ns = long_ns;
    }
    return (PyObject *)self;
}

static void watched_dealloc(WatchedLock *self)
{
    if (self->weak != NULL) {
        PyObject_ClearWeakRefs((PyObject *)self);
    }
    Py_XDECREF(self->lock);
    Py_XDECREF(self->begin);
    Py_XDECREF(self->waited);
    Py_XDECREF(self->freeing);
    Py_XDECREF(self->channel);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

/* Release the lock itself while an error is set. */
static void give_back(WatchedLock *self)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    Py_XDECREF(PyObject_CallMethodNoArgs(self->lock, word_release));
    PyErr_Restore(type, value, trace);
}

/* Acquire, waiting for it; `timeout` may be NULL. */
static PyObject *take_watched(WatchedLock *self, PyObject *timeout)
{
    if (timeout == NULL) {
        PyObject *got = PyObject_CallMethodOneArg(self->lock, word_acquire, Py_False);
        if (got == NULL || got == Py_True) {
            self->told = false;
            self->since_ns = _PyTime_GetMonotonicClock();
            return got;
        }
        Py_DECREF(got);
    }
    PyObject *begun = PyObject_CallNoArgs(self->begin);
    if (begun == NULL && !report_error()) {
        return NULL;
    }
    PyObject *got = timeout ? PyObject_CallMethod(self->lock, "acquire", "OO", Py_True, timeout)
                            : PyObject_CallMethodNoArgs(self->lock, word_acquire);
    if (got == Py_True) {
        self->told = begun != NULL;
        self->since_ns = _PyTime_GetMonotonicClock();
    }
    if (got == Py_True && begun != NULL) {
        PyObject *done = PyObject_CallFunctionObjArgs(self->waited, self, begun, NULL);
        if (done == NULL && !report_error()) {
            give_back(self);
            Py_CLEAR(got);
        }
        Py_XDECREF(done);
    }
    Py_XDECREF(begun);
    return got;
}

static PyObject *watched_acquire(WatchedLock *self, PyObject *args, PyObject *words)
{
    static char *names[] = {"blocking", "timeout", NULL};
    int blocking = 1;
    PyObject *timeout = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, words, "|pO:acquire", names, &blocking, &timeout)) {
        return NULL;
    }
    if (blocking) {
        return take_watched(self, timeout);
    }
    PyObject *got = timeout ? PyObject_CallMethod(self->lock, "acquire", "OO", Py_False, timeout)
                            : PyObject_CallMethodOneArg(self->lock, word_acquire, Py_False);
    if (got == Py_True) {
        self->told = false;
        self->since_ns = _PyTime_GetMonotonicClock();
    }
    return got;
}

static PyObject *watched_enter(WatchedLock *self, PyObject *unused)
{
    (void)unused;
    return take_watched(self, NULL);
}

static PyObject *watched_release(WatchedLock *self, PyObject *unused)
{
    (void)unused;
    int64_t now = _PyTime_GetMonotonicClock();
    bool interrupted = false;
    if (self->told || now - self->since_ns > self->long_ns) {
        PyObject *held = PyObject_CallMethod(self->lock, "locked", NULL);
        PyObject *done = NULL;
        if (held == Py_True) { /* told before it is free: its operations are logged in the order in which they happen */
            done = PyObject_CallFunction(self->freeing, "OLL", self, (long long)(self->told ? 0 : self->since_ns),
                                         (long long)now);
        }
        interrupted = PyErr_Occurred() && !report_error();
        Py_XDECREF(held);
        Py_XDECREF(done);
    }
    if (interrupted) {
        give_back(self);
        return NULL;
    }
    return PyObject_CallMethodNoArgs(self->lock, word_release);
}

static PyObject *watched_exit(WatchedLock *self, PyObject *error)
{
    (void)error;
    return watched_release(self, NULL);
}

static PyObject *watched_reduce(WatchedLock *self, PyObject *protocol)
{
    return PyObject_CallMethod(self->lock, "__reduce_ex__", "O", protocol); /* raises */
}

static PyObject *watched_getattr(WatchedLock *self, PyObject *name)
{
    PyObject *found = PyObject_GenericGetAttr((PyObject *)self, name);
    if (found == NULL && PyErr_ExceptionMatches(PyExc_AttributeError)) {
        PyErr_Clear();
        found = PyObject_GetAttr(self->lock, name);
    }
    return found;
}

static PyObject *watched_repr(WatchedLock *self)
{
    return PyObject_Repr(self->lock);
}

static PyMethodDef watched_methods[] = {
    {"acquire", (PyCFunction)(void (*)(void))watched_acquire, METH_VARARGS | METH_KEYWORDS, NULL},
    {"acquire_lock", (PyCFunction)(void (*)(void))watched_acquire, METH_VARARGS | METH_KEYWORDS, NULL},
    {"release", (PyCFunction)watched_release, METH_NOARGS, NULL},
    {"release_lock", (PyCFunction)watched_release, METH_NOARGS, NULL},
    {"__enter__", (PyCFunction)watched_enter, METH_NOARGS, NULL},
    {"__exit__", (PyCFunction)watched_exit, METH_VARARGS, NULL},
    {"__reduce_ex__", (PyCFunction)watched_reduce, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef watched_members[] = {
    {"channel", T_OBJECT, offsetof(WatchedLock, channel), 0, "For the callbacks; None at first."},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject WatchedLockType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "hotloop.measure._core.WatchedLock",
    .tp_doc = "WatchedLock(lock, long_ns, begin, waited, freeing): a lock of `threading` that tells of long holds and waits.",
    .tp_basicsize = sizeof(WatchedLock),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = watched_new,
    .tp_dealloc = (destructor)watched_dealloc,
    .tp_weaklistoffset = offsetof(WatchedLock, weak),
    .tp_getattro = (getattrofunc)watched_getattr,
    .tp_repr = (reprfunc)watched_repr,
    .tp_methods = watched_methods,
    .tp_members = watched_members,
};

#endif
#endif
