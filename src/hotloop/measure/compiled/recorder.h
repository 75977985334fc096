/* The Python type `Recorder`. */
#ifndef HOTLOOP_RECORDER_H
#define HOTLOOP_RECORDER_H

#include "progress.h"
#include "start_stop.h"

static int free_slot(void)
{
    int slot = 0;
    while (slot < MAX_RECORDERS && recorders[slot] != NULL) {
        slot++;
    }
    return slot;
}

static PyObject *recorder_new(PyTypeObject *type, PyObject *args, PyObject *names)
{
    static char *words[] = {"clock", NULL};
    PyObject *clock = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, names, "|O", words, &clock)) {
        return NULL;
    }
    if (clock != Py_None && !PyCallable_Check(clock)) {
        PyErr_Format(PyExc_TypeError, "The clock must be a callable that returns nanoseconds, not %R.", clock);
        return NULL;
    }
    int slot = free_slot();
    if (slot == MAX_RECORDERS) {
        PyGC_Collect(); /* dropped ones may be part of a reference cycle */
        slot = free_slot();
    }
    if (slot == MAX_RECORDERS) {
        PyErr_Format(PyExc_RuntimeError, "There are already %d profilers; delete one before creating another.",
                     MAX_RECORDERS);
        return NULL;
    }
    Recorder *self = (Recorder *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->slot = (uint32_t)slot;
    self->clock = clock == Py_None ? NULL : Py_NewRef(clock);
    self->by_name = PyDict_New();
    self->by_pair = PyDict_New();
    self->gaps = PyDict_New();
    self->regions = PyList_New(0);
    ProfileCall *profile = PyObject_GC_New(ProfileCall, &ProfileCallType);
    if (!self->by_name || !self->by_pair || !self->gaps || !self->regions || !profile) {
        Py_XDECREF(profile);
        Py_DECREF(self);
        return NULL;
    }
    profile->vectorcall = call_profile;
    profile->recorder = (Recorder *)Py_NewRef((PyObject *)self);
    PyObject_GC_Track(profile);
    self->profile = (PyObject *)profile;
    pthread_mutex_lock(&registry_lock);
    recorders[slot] = self;
    pthread_mutex_unlock(&registry_lock);
    return (PyObject *)self;
}

static int recorder_traverse(Recorder *self, visitproc visit, void *arg)
{
    Py_VISIT(self->clock);
    Py_VISIT(self->device);
    Py_VISIT(self->part);
    Py_VISIT(self->on_window);
    Py_VISIT(self->on_steps);
    Py_VISIT(self->name_gap);
    Py_VISIT(self->after_work);
    Py_VISIT(self->gaps);
    Py_VISIT(self->profile);
    Py_VISIT(self->by_name);
    Py_VISIT(self->by_pair);
    Py_VISIT(self->regions);
    Py_VISIT(self->open_part);
    return 0;
}

/* Forget the answers of name_gap, also those that regions remember: the dict owns them. */
static void forget_gaps(Recorder *rec)
{
    for (Py_ssize_t i = 0; rec->regions && i < PyList_GET_SIZE(rec->regions); i++) {
        Region *region = (Region *)PyList_GET_ITEM(rec->regions, i);
        region->gap_before = region->gap = NULL;
    }
    if (rec->gaps) {
        PyDict_Clear(rec->gaps);
    }
}

static int recorder_clear(Recorder *self)
{
    Py_CLEAR(self->device);
    Py_CLEAR(self->on_window);
    Py_CLEAR(self->on_steps);
    Py_CLEAR(self->name_gap);
    Py_CLEAR(self->after_work);
    forget_gaps(self);
    Py_CLEAR(self->profile);
    Py_CLEAR(self->open_part);
    if (self->by_name) {
        PyDict_Clear(self->by_name);
    }
    if (self->by_pair) {
        PyDict_Clear(self->by_pair);
    }
    if (self->regions && self->epoch == 0) {
        PyList_SetSlice(self->regions, 0, PyList_GET_SIZE(self->regions), NULL);
    }
    return 0;
}

static void recorder_dealloc(Recorder *self)
{
    PyObject_GC_UnTrack(self);
    if (self->weak) {
        PyObject_ClearWeakRefs((PyObject *)self);
    }
    pthread_mutex_lock(&registry_lock);
    self->epoch = 0;
    if (recorders[self->slot] == self) {
        recorders[self->slot] = NULL;
    }
    pthread_mutex_unlock(&registry_lock);
    if (self->sampler != NULL) {
        stop_sampler(self->sampler);
    }
    if (self->regions) {
        forget_nodes(self);
    }
    recorder_clear(self);
    Py_XDECREF(self->clock);
    Py_XDECREF(self->part);
    Py_XDECREF(self->by_name);
    Py_XDECREF(self->by_pair);
    Py_XDECREF(self->gaps);
    Py_XDECREF(self->regions);
    Py_XDECREF(self->sections);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *get_or_none(PyObject *value)
{
    return Py_NewRef(value ? value : Py_None);
}

#define OPTIONAL_OBJECT(field)                                                        \
    static PyObject *get_##field(Recorder *self, void *u) { (void)u; return get_or_none(self->field); } \
    static int set_##field(Recorder *self, PyObject *value, void *u)                  \
    {                                                                                 \
        (void)u;                                                                      \
        Py_XSETREF(self->field, value == NULL || value == Py_None ? NULL : Py_NewRef(value)); \
        return 0;                                                                     \
    }
OPTIONAL_OBJECT(device)
OPTIONAL_OBJECT(on_window)
OPTIONAL_OBJECT(on_steps)
OPTIONAL_OBJECT(name_gap)
OPTIONAL_OBJECT(after_work)

static PyObject *get_part(Recorder *self, void *u) { (void)u; return get_or_none(self->part); }
static PyObject *get_clock(Recorder *self, void *u) { (void)u; return get_or_none(self->clock); }

static PyObject *get_at_work(Recorder *self, void *u)
{
    (void)u;
    return PyBool_FromLong(locals[self->slot].calling_out);
}

/* A pending call, on the main thread. During another callout it does nothing: the end of that adds it again. */
static int run_after_work(void *recorder)
{
    Recorder *rec = NULL;
    for (int slot = 0; slot < MAX_RECORDERS; slot++) {
        rec = recorders[slot] == recorder ? recorder : rec;
    }
    if (rec == NULL || rec->after_work == NULL || locals[rec->slot].calling_out) {
        return 0;
    }
    PyObject *action = rec->after_work;
    rec->after_work = NULL;
    PyObject *done = PyObject_CallNoArgs(action);
    bool good = done != NULL || report_error();
    Py_XDECREF(done);
    Py_DECREF(action);
    return good ? 0 : -1;
}

static PyGetSetDef recorder_getset[] = {
    {"device", (getter)get_device, (setter)set_device, "The DeviceTimer, or None.", NULL},
    {"on_window", (getter)get_on_window, (setter)set_on_window, "Called after each window with its time.", NULL},
    {"on_steps", (getter)get_on_steps, (setter)set_on_steps, "Called when steps_due has run out.", NULL},
    {"name_gap", (getter)get_name_gap, (setter)set_name_gap,
     "Called with two regions; returns the region for the time between them.", NULL},
    {"after_work", (getter)get_after_work, (setter)set_after_work,
     "Called soon after the slow path that a signal handler has interrupted, once.", NULL},
    {"at_work", (getter)get_at_work, NULL,
     "Whether the calling thread is in a slow path: a signal handler or a finalizer asks.", NULL},
    {"part", (getter)get_part, NULL, "The part being written, or None.", NULL},
    {"clock", (getter)get_clock, NULL, "The injected clock, or None.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef recorder_members[] = {
    {"epoch", T_ULONGLONG, offsetof(Recorder, epoch), READONLY, "0 while off; changes at start, stop and fork."},
    {"flags", T_UINT, offsetof(Recorder, flags), 0, "RECORD_TIMELINE and others."},
    {"locate", T_BOOL, offsetof(Recorder, locate), 0, "Whether new nodes note the calling line of the user's code."},
    {"steps_due", T_LONGLONG, offsetof(Recorder, steps_due), 0, "Env steps until on_steps is called."},
    {"profile", T_OBJECT, offsetof(Recorder, profile), READONLY, "profile(name, category=None) -> region."},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef recorder_methods[] = {
    {"start", (PyCFunction)(void (*)(void))recorder_start, METH_VARARGS | METH_KEYWORDS,
     "start(open_part, sample_memory=True, lazily=False): record here and in forked children."},
    {"stop", (PyCFunction)recorder_stop, METH_NOARGS, "Stop recording; open regions count up to now."},
    {"pause", (PyCFunction)recorder_pause, METH_NOARGS, "Record nothing until resume(); the part stays open."},
    {"resume", (PyCFunction)recorder_resume, METH_NOARGS, "Continue after pause()."},
    {"sample", (PyCFunction)recorder_sample, METH_NOARGS, "Write a heartbeat and sample memory now."},
    {"sample_lines", (PyCFunction)(void (*)(void))recorder_sample_lines, METH_VARARGS | METH_KEYWORDS,
     "sample_lines(own, libraries, interval_ns=...): sample the lines of all threads; returns why it cannot, or None."},
    {"take_line_sample", (PyCFunction)recorder_take_line_sample, METH_NOARGS,
     "Sample the lines of all threads now; with an injected clock, nothing else does."},
    {"save_samples", (PyCFunction)recorder_save_samples, METH_NOARGS,
     "Open the part of a process that ran the user's code without any region."},
    {"open_node", (PyCFunction)recorder_open_node, METH_O,
     "Number of the thread with that native id and index of its innermost open region; (-1, 0) if it has opened none."},
    {"now", (PyCFunction)recorder_now, METH_NOARGS, "The clock, in nanoseconds."},
    {"progress", (PyCFunction)(void (*)(void))recorder_progress, METH_FASTCALL | METH_KEYWORDS,
     "progress($self, *, env_steps=0, updates=0, episodes=0, episode_length=None, episode_return=None, loss=None)\n"
     "--\n\nCount work done since the last call; the values are means over `episodes` (1 if 0)."},
    {"credit_device", (PyCFunction)recorder_credit_device, METH_VARARGS, "Add device time and memory to a node."},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject RecorderType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "hotloop.measure._core.Recorder",
    .tp_doc = "Recorder(clock=None)\n--\n\nThe regions, threads and part of one profiler.",
    .tp_basicsize = sizeof(Recorder),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_weaklistoffset = offsetof(Recorder, weak),
    .tp_new = recorder_new,
    .tp_traverse = (traverseproc)recorder_traverse,
    .tp_clear = (inquiry)recorder_clear,
    .tp_dealloc = (destructor)recorder_dealloc,
    .tp_methods = recorder_methods,
    .tp_members = recorder_members,
    .tp_getset = recorder_getset,
};

#endif
