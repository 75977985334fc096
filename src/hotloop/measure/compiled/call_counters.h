/* What follows a wrapped call and only counts most of the time; twin/call_counters.py does the same in Python. */
#ifndef HOTLOOP_CALL_COUNTERS_H
#define HOTLOOP_CALL_COUNTERS_H

#include "step_counter.h"

/* -- CallCounter ---------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *callback;
    unsigned long long calls;
    unsigned long long due; /* from this call on, `callback` is called */
} CallCounter;

/* False with an error set. */
static bool count_call_of(PyObject *counter, PyObject *first, PyObject *result, bool *called_out)
{
    CallCounter *self = (CallCounter *)counter;
    *called_out = ++self->calls >= self->due;
    if (LIKELY(!*called_out)) {
        return true;
    }
    PyObject *done = PyObject_CallFunctionObjArgs(self->callback, first, result, NULL);
    Py_XDECREF(done);
    return done != NULL;
}

static PyObject *call_call_counter(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *names)
{
    bool called_out;
    if (PyVectorcall_NARGS(nargsf) != 2 || names != NULL) {
        PyErr_SetString(PyExc_TypeError, "A call counter takes an object and the result of its call.");
        return NULL;
    }
    return count_call_of(self, args[0], args[1], &called_out) ? Py_NewRef(Py_None) : NULL;
}

static PyObject *call_counter_new(PyTypeObject *type, PyObject *args, PyObject *names)
{
    static char *words[] = {"callback", "due", NULL};
    PyObject *callback;
    unsigned long long due = 1;
    if (!PyArg_ParseTupleAndKeywords(args, names, "O|K", words, &callback, &due)) {
        return NULL;
    }
    CallCounter *self = (CallCounter *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->vectorcall = call_call_counter;
        self->callback = Py_NewRef(callback);
        self->due = due;
    }
    return (PyObject *)self;
}

static int call_counter_traverse(CallCounter *self, visitproc visit, void *arg)
{
    Py_VISIT(self->callback);
    return 0;
}

static int call_counter_clear(CallCounter *self)
{
    Py_CLEAR(self->callback);
    return 0;
}

static void call_counter_dealloc(CallCounter *self)
{
    PyObject_GC_UnTrack(self);
    call_counter_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMemberDef call_counter_members[] = {
    {"calls", T_ULONGLONG, offsetof(CallCounter, calls), READONLY, "Calls so far."},
    {"due", T_ULONGLONG, offsetof(CallCounter, due), 0, "From this call on, the callback is called."},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject CallCounterType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "hotloop.measure._core.CallCounter",
    .tp_doc = "CallCounter(callback, due=1): counts calls; from the call `due` on, it calls callback(object, result).",
    .tp_basicsize = sizeof(CallCounter),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(CallCounter, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_new = call_counter_new,
    .tp_traverse = (traverseproc)call_counter_traverse,
    .tp_clear = (inquiry)call_counter_clear,
    .tp_dealloc = (destructor)call_counter_dealloc,
    .tp_members = call_counter_members,
};

/* -- UpdateCounter -------------------------------------------------------------------------------- */

#define TELL_EVERY 256 /* steps; twin/call_counters.py has the same */
#define RETIRED_AFTER 4 /* and this */

typedef struct {
    PyObject *object; /* only compared, never dereferenced */
    PyObject *weak;   /* tells whether it still is that object; NULL if its class forbids that */
    unsigned long long total;
    unsigned long long steps; /* in this training */
    unsigned long long since; /* since the last step of the one that counts */
} Stepped;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    Recorder *recorder;
    PyObject *on_new;
    PyObject *on_many;
    PyObject *step_counters; /* list: all that count env steps */
    PyObject *places;        /* id of an object -> index in `known` */
    Stepped *known;
    Py_ssize_t count, capacity, last;
    unsigned long long most; /* steps of the one that counts */
    unsigned long long rested_at;
    unsigned rested; /* different numbers of env steps seen while it rested */
    unsigned until_told;
    bool others; /* stepped since its last step */
    bool paused;
} UpdateCounter;

static bool is_still(const Stepped *one, PyObject *object)
{
    if (one->weak == NULL) {
        return false;
    }
#if PY_VERSION_HEX < 0x030D0000
    return PyWeakref_GET_OBJECT(one->weak) == object;
#else
    PyObject *found = NULL;
    PyWeakref_GetRef(one->weak, &found);
    Py_XDECREF(found); /* the caller holds it, if it is the same */
    return found == object;
#endif
}

/* Index of an object in `known`, added if need be; -1 with an error set. */
static Py_ssize_t place_of(UpdateCounter *self, PyObject *object)
{
    if (self->count > 0) { /* they step in turn */
        Py_ssize_t next = self->last + 1 < self->count ? self->last + 1 : 0;
        if (self->known[next].object == object) {
            return self->last = next;
        }
        if (self->known[self->last].object == object) {
            return self->last;
        }
    }
    PyObject *key = PyLong_FromVoidPtr(object);
    PyObject *found = key ? PyDict_GetItemWithError(self->places, key) : NULL;
    Py_ssize_t place = found ? PyLong_AsSsize_t(found) : -1;
    if (found == NULL && !PyErr_Occurred()) {
        if (self->count == self->capacity) {
            Py_ssize_t capacity = self->capacity ? 2 * self->capacity : 8;
            Stepped *more = PyMem_Realloc(self->known, (size_t)capacity * sizeof *more);
            if (more == NULL) {
                PyErr_NoMemory();
            } else {
                self->known = more;
                self->capacity = capacity;
            }
        }
        PyObject *index = PyErr_Occurred() ? NULL : PyLong_FromSsize_t(self->count);
        if (index != NULL && PyDict_SetItem(self->places, key, index) == 0) {
            place = self->count++;
            self->known[place] = (Stepped){.object = object};
        }
        Py_XDECREF(index);
    }
    Py_XDECREF(key);
    self->last = place >= 0 ? place : 0;
    return place;
}

static void begin_counting(UpdateCounter *self)
{
    for (Py_ssize_t i = 0; i < self->count; i++) {
        self->known[i].steps = self->known[i].since = 0;
    }
    self->most = 0;
    self->rested = 0;
    self->others = false;
}

static unsigned long long env_steps_so_far(UpdateCounter *self)
{
    unsigned long long total = 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(self->step_counters); i++) {
        PyObject *one = PyList_GET_ITEM(self->step_counters, i);
        total += Py_IS_TYPE(one, &StepCounterType) ? ((StepCounter *)one)->calls : 0;
    }
    return total;
}

/* Those that still step count, from the last step of the one that counted so far. */
static void retire(UpdateCounter *self)
{
    self->most = 0;
    for (Py_ssize_t i = 0; i < self->count; i++) {
        Stepped *one = &self->known[i];
        one->steps = one->since;
        one->since = 0;
        self->most = one->steps > self->most ? one->steps : self->most;
    }
    self->rested = 0;
    self->others = false;
}

static bool call_back(PyObject *callback, PyObject *argument, bool *called_out)
{
    *called_out = true;
    PyObject *done = PyObject_CallFunctionObjArgs(callback, argument, NULL); /* argument may be NULL: none */
    Py_XDECREF(done);
    return done != NULL;
}

/* False with an error set. `now` is the time, read if it is 0. */
static bool count_update(PyObject *counter, PyObject *object, uint64_t now, bool *called_out)
{
    UpdateCounter *self = (UpdateCounter *)counter;
    *called_out = false;
    if (self->paused) {
        return true;
    }
    Py_ssize_t place = place_of(self, object);
    if (place < 0) {
        return false;
    }
    if (UNLIKELY(!is_still(&self->known[place], object))) {
        Py_CLEAR(self->known[place].weak);
        PyObject *weak = PyWeakref_NewRef(object, NULL);
        if (weak == NULL) {
            PyErr_Clear();
        }
        Py_XSETREF(self->known[place].weak, weak);
        if (!call_back(self->on_new, object, called_out)) {
            return false;
        }
        place = place_of(self, object); /* that may have counted other steps, or forgotten all */
        if (place < 0) {
            return false;
        }
    }
    Stepped *one = &self->known[place];
    one->total++;
    Work work = {0};
    if (++one->steps > self->most) {
        self->most = one->steps;
        for (Py_ssize_t i = 0; self->others && i < self->count; i++) {
            self->known[i].since = 0;
        }
        self->rested = self->others ? 0 : self->rested;
        self->others = false;
        work.updates = 1;
    } else {
        one->since++;
        self->others = true;
        unsigned long long steps = env_steps_so_far(self);
        if (steps != self->rested_at) {
            self->rested_at = steps;
            if (++self->rested > RETIRED_AFTER) {
                retire(self);
                work.updates = (long long)self->most;
            }
        }
    }
    if (work.updates && !add_work(self->recorder, &work, now)) {
        return false;
    }
    if (UNLIKELY(++self->until_told >= TELL_EVERY)) {
        self->until_told = 0;
        return call_back(self->on_many, NULL, called_out);
    }
    return true;
}

static PyObject *call_update_counter(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *names)
{
    bool called_out;
    if (PyVectorcall_NARGS(nargsf) != 2 || names != NULL) {
        PyErr_SetString(PyExc_TypeError, "An update counter takes an object and the result of its step.");
        return NULL;
    }
    return count_update(self, args[0], 0, &called_out) ? Py_NewRef(Py_None) : NULL;
}

static PyObject *update_counter_begin(UpdateCounter *self, PyObject *unused)
{
    (void)unused;
    begin_counting(self);
    Py_RETURN_NONE;
}

static void forget_all(UpdateCounter *self)
{
    Py_ssize_t count = self->count;
    Stepped *known = self->known;
    self->known = NULL;
    self->count = self->capacity = self->last = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_XDECREF(known[i].weak);
    }
    PyMem_Free(known);
}

static PyObject *update_counter_forget(UpdateCounter *self, PyObject *unused)
{
    (void)unused;
    begin_counting(self);
    PyDict_Clear(self->places);
    forget_all(self);
    Py_RETURN_NONE;
}

static PyObject *update_counter_steps(UpdateCounter *self, PyObject *key)
{
    PyObject *found = PyDict_GetItemWithError(self->places, key);
    if (found == NULL && PyErr_Occurred()) {
        return NULL;
    }
    return PyLong_FromUnsignedLongLong(found ? self->known[PyLong_AsSsize_t(found)].total : 0);
}

static PyObject *update_counter_new(PyTypeObject *type, PyObject *args, PyObject *names)
{
    static char *words[] = {"recorder", "step_counters", "on_new", "on_many", NULL};
    PyObject *recorder, *step_counters, *on_new, *on_many;
    if (!PyArg_ParseTupleAndKeywords(args, names, "O!O!OO", words, &RecorderType, &recorder, &PyList_Type,
                                     &step_counters, &on_new, &on_many)) {
        return NULL;
    }
    UpdateCounter *self = (UpdateCounter *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->vectorcall = call_update_counter;
    self->recorder = (Recorder *)Py_NewRef(recorder);
    self->step_counters = Py_NewRef(step_counters);
    self->on_new = Py_NewRef(on_new);
    self->on_many = Py_NewRef(on_many);
    self->rested_at = ULLONG_MAX;
    self->places = PyDict_New();
    if (self->places == NULL) {
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

static int update_counter_traverse(UpdateCounter *self, visitproc visit, void *arg)
{
    Py_VISIT(self->recorder);
    Py_VISIT(self->step_counters);
    Py_VISIT(self->on_new);
    Py_VISIT(self->on_many);
    return 0;
}

static int update_counter_clear(UpdateCounter *self)
{
    Py_CLEAR(self->on_new);
    Py_CLEAR(self->on_many);
    return 0;
}

static void update_counter_dealloc(UpdateCounter *self)
{
    PyObject_GC_UnTrack(self);
    update_counter_clear(self);
    forget_all(self);
    Py_XDECREF(self->places);
    Py_XDECREF(self->step_counters);
    Py_XDECREF(self->recorder);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef update_counter_methods[] = {
    {"begin", (PyCFunction)update_counter_begin, METH_NOARGS, "A new training begins: its first step is an update."},
    {"forget", (PyCFunction)update_counter_forget, METH_NOARGS, "Forget every object; each is new again."},
    {"steps", (PyCFunction)update_counter_steps, METH_O, "steps(id): all steps of an object."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef update_counter_members[] = {
    {"paused", T_BOOL, offsetof(UpdateCounter, paused), 0, "Whether steps are ignored."},
    {"most", T_ULONGLONG, offsetof(UpdateCounter, most), READONLY, "Steps of the one that counts, in this training."},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject UpdateCounterType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "hotloop.measure._core.UpdateCounter",
    .tp_doc = "Counts updates from the steps of several optimizers; twin/call_counters.py does the same in Python.",
    .tp_basicsize = sizeof(UpdateCounter),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(UpdateCounter, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_new = update_counter_new,
    .tp_traverse = (traverseproc)update_counter_traverse,
    .tp_clear = (inquiry)update_counter_clear,
    .tp_dealloc = (destructor)update_counter_dealloc,
    .tp_methods = update_counter_methods,
    .tp_members = update_counter_members,
};

#endif
