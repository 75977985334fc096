/* The Python type `Region`, and `profile("name")`, which finds or creates one. */
#ifndef HOTLOOP_REGION_H
#define HOTLOOP_REGION_H

#include "hot_path.h"

#include <math.h>

/* -- Region ------------------------------------------------------------------------------------- */

static PyObject *call_enter(PyObject *self, PyObject *const *args, size_t nargs, PyObject *names)
{
    (void)args, (void)nargs, (void)names;
    Region *region = ((BoundCall *)self)->region;
    return LIKELY(enter_region(region)) ? Py_NewRef((PyObject *)region) : NULL;
}

static PyObject *call_exit(PyObject *self, PyObject *const *args, size_t nargs, PyObject *names)
{
    (void)args, (void)nargs, (void)names;
    return LIKELY(exit_region(((BoundCall *)self)->region)) ? Py_NewRef(Py_None) : NULL;
}

static PyObject *new_bound_call(Region *region, vectorcallfunc function)
{
    BoundCall *call = PyObject_GC_New(BoundCall, &BoundCallType);
    if (call != NULL) {
        call->vectorcall = function;
        call->region = (Region *)Py_NewRef((PyObject *)region);
        PyObject_GC_Track(call);
    }
    return (PyObject *)call;
}

static int bound_traverse(BoundCall *self, visitproc visit, void *arg)
{
    Py_VISIT(self->region);
    return 0;
}

static int bound_clear(BoundCall *self)
{
    Py_CLEAR(self->region);
    return 0;
}

static void bound_dealloc(BoundCall *self)
{
    PyObject_GC_UnTrack(self);
    bound_clear(self);
    PyObject_GC_Del(self);
}

static PyTypeObject BoundCallType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "hotloop.measure._core.BoundCall",
    .tp_doc = "The __enter__ or __exit__ of one region, created once.",
    .tp_basicsize = sizeof(BoundCall),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(BoundCall, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_traverse = (traverseproc)bound_traverse,
    .tp_clear = (inquiry)bound_clear,
    .tp_dealloc = (destructor)bound_dealloc,
};

/* A descriptor that returns the region's prepared callable instead of creating a bound method. */
typedef struct {
    PyObject_HEAD
    size_t offset;
} Slot;

static PyObject *slot_get(PyObject *self, PyObject *object, PyObject *type)
{
    (void)type;
    if (object == NULL || object == Py_None) {
        return Py_NewRef(self);
    }
    return Py_NewRef(*(PyObject **)((char *)object + ((Slot *)self)->offset));
}

/* type(region).__enter__(region), as contextlib.ExitStack does it */
static PyObject *slot_call(PyObject *self, PyObject *args, PyObject *kwargs)
{
    if (PyTuple_GET_SIZE(args) < 1 || !PyObject_TypeCheck(PyTuple_GET_ITEM(args, 0), &RegionType)) {
        PyErr_SetString(PyExc_TypeError, "the first argument must be a region");
        return NULL;
    }
    PyObject *bound = slot_get(self, PyTuple_GET_ITEM(args, 0), NULL);
    PyObject *rest = PyTuple_GetSlice(args, 1, PyTuple_GET_SIZE(args));
    PyObject *result = rest ? PyObject_Call(bound, rest, kwargs) : NULL;
    Py_XDECREF(rest);
    Py_DECREF(bound);
    return result;
}

static PyTypeObject SlotType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "hotloop.measure._core.Slot",
    .tp_basicsize = sizeof(Slot),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_descr_get = slot_get,
    .tp_call = slot_call,
};

static int region_traverse(Region *self, visitproc visit, void *arg)
{
    Py_VISIT(self->recorder);
    Py_VISIT(self->enter);
    Py_VISIT(self->exit);
    return 0;
}

static int region_clear(Region *self)
{
    /* Keeps the recorder: a region may still be entered while its reference cycle is being cleared. */
    Py_CLEAR(self->enter);
    Py_CLEAR(self->exit);
    return 0;
}

static void region_dealloc(Region *self)
{
    PyObject_GC_UnTrack(self);
    region_clear(self);
    Py_XDECREF(self->recorder);
    Py_XDECREF(self->name);
    Py_XDECREF(self->category);
    Py_XDECREF(self->site);
    PyObject_GC_Del(self);
}

static PyObject *region_repr(Region *self)
{
    return PyUnicode_FromFormat("<hotloop region %R>", self->name);
}

static PyObject *region_call(Region *self, PyObject *args, PyObject *names)
{
    PyObject *function;
    if (names != NULL || !PyArg_ParseTuple(args, "O", &function)) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_TypeError, "A region decorates one function and takes no other argument.");
        }
        return NULL;
    }
    return PyObject_CallFunctionObjArgs(decorate, (PyObject *)self, function, NULL);
}

static bool read_number(PyObject *value, double *out)
{
    *out = PyFloat_AsDouble(value);
    return !(*out == -1.0 && PyErr_Occurred());
}

/* Within an update. One inf or nan would hide all other calls: it is left out, and readers are told. */
static void add_figure(Node *node, double *sum, double value)
{
    if (isfinite(*sum + value)) {
        *sum += value;
    } else {
        node->file->flags |= HL_NODE_ODD_FIGURES;
    }
}

static PyObject *region_add(Region *self, PyObject *const *args, Py_ssize_t nargs, PyObject *names)
{
    double bytes = 0, flops = 0;
    Py_ssize_t count = names ? PyTuple_GET_SIZE(names) : 0;
    if (nargs) {
        PyErr_SetString(PyExc_TypeError, "add() takes bytes= and flops= as keyword arguments only.");
        return NULL;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *word = PyTuple_GET_ITEM(names, i);
        double *out = PyUnicode_Compare(word, word_bytes) == 0   ? &bytes
                      : PyUnicode_Compare(word, word_flops) == 0 ? &flops
                                                                 : NULL;
        if (out == NULL) {
            PyErr_Format(PyExc_TypeError, "add() has no argument %R; it takes bytes= and flops=.", word);
            return NULL;
        }
        if (!read_number(args[i], out)) {
            return NULL;
        }
    }
    Recorder *rec = self->recorder;
    Local *local = &locals[rec->slot];
    if (rec->epoch && local->epoch == rec->epoch) {
        Arena *a = local->arena;
        for (uint32_t d = a->depth; d > 0; d--) {
            if (a->file->stack[d - 1].region == self->number) {
                begin_update(a);
                add_figure(a->open[d].node, &a->open[d].node->file->bytes, bytes);
                add_figure(a->open[d].node, &a->open[d].node->file->flops, flops);
                end_update(a);
                break;
            }
        }
    }
    Py_RETURN_NONE;
}

static PyObject *region_wrap(Region *self, PyObject *args, PyObject *names);
static bool is_open(Recorder *rec, Region *region);

static PyObject *region_is_open(Region *self, PyObject *unused)
{
    (void)unused;
    return PyBool_FromLong(is_open(self->recorder, self));
}

/* A callback for gc.callbacks, in C because the collector ignores exceptions of its callbacks: a Ctrl-C that
   arrived in Python code would be lost. Does nothing on threads that record nothing. */
static PyObject *region_on_collection(Region *self, PyObject *const *args, Py_ssize_t nargs)
{
    Recorder *rec = self->recorder;
    if (nargs == 2 && rec->epoch && locals[rec->slot].epoch == rec->epoch && PyDict_Check(args[1])) {
        PyObject *generation = PyDict_GetItemString(args[1], "generation");
        if (generation != NULL && PyLong_AsLong(generation) == 2) {
            bool begins = PyUnicode_Check(args[0]) && PyUnicode_CompareWithASCIIString(args[0], "start") == 0;
            if (!(begins ? enter_region(self) : exit_region(self))) {
                postpone_error(); /* the collector would drop it */
            }
        }
    }
    Py_RETURN_NONE;
}

static PyMethodDef region_methods[] = {
    {"on_collection", (PyCFunction)(void (*)(void))region_on_collection, METH_FASTCALL,
     "For gc.callbacks: full collections on recorded threads become calls of this region."},
    {"add", (PyCFunction)(void (*)(void))region_add, METH_FASTCALL | METH_KEYWORDS,
     "Add what the open call of this region moved (bytes=) or computed (flops=)."},
    {"is_open", (PyCFunction)region_is_open, METH_NOARGS, "Whether the calling thread is inside this region."},
    {"wrap", (PyCFunction)(void (*)(void))region_wrap, METH_VARARGS | METH_KEYWORDS,
     "A callable that runs the function inside this region; see Region.wrap in twin/region.py."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef region_members[] = {
    {"recorder", T_OBJECT, offsetof(Region, recorder), READONLY, "The recorder it belongs to."},
    {"number", T_UINT, offsetof(Region, number), READONLY, "Its number in the part file."},
    {"name", T_OBJECT, offsetof(Region, name), READONLY, "Its name."},
    {"category", T_OBJECT, offsetof(Region, category), READONLY, "Its category, \"\" when none was given."},
    {"device", T_BOOL, offsetof(Region, device), READONLY, "Whether device time is measured."},
    {"site", T_OBJECT, offsetof(Region, site), READONLY, "file:line where it was created."},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject RegionType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "hotloop.measure._core.Region",
    .tp_doc = "A named stretch of code: created once, entered any number of times, from any thread.",
    .tp_basicsize = sizeof(Region),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_traverse = (traverseproc)region_traverse,
    .tp_clear = (inquiry)region_clear,
    .tp_dealloc = (destructor)region_dealloc,
    .tp_repr = (reprfunc)region_repr,
    .tp_call = (ternaryfunc)region_call,
    .tp_methods = region_methods,
    .tp_members = region_members,
};

static Region *new_region(Recorder *rec, PyObject *name, PyObject *category, bool device, PyObject *site)
{
    Region *region = PyObject_GC_New(Region, &RegionType);
    if (region == NULL) {
        return NULL;
    }
    region->recorder = (Recorder *)Py_NewRef((PyObject *)rec);
    region->last = (Last){NULL, NULL};
    region->gap_before = region->gap = NULL;
    region->published_in = 0;
    region->device = device;
    region->name = Py_NewRef(name);
    region->category = Py_NewRef(category);
    region->site = Py_NewRef(site);
    region->enter = region->exit = NULL;
    PyObject_GC_Track(region);
    region->enter = new_bound_call(region, call_enter);
    region->exit = new_bound_call(region, call_exit);
    /* Nothing may be allocated between these two lines: a garbage collection could run finalizers that create
       regions, and two of them would get the same number. */
    region->number = (uint32_t)PyList_GET_SIZE(rec->regions);
    if (!region->enter || !region->exit || PyList_Append(rec->regions, (PyObject *)region) < 0) {
        Py_DECREF(region);
        return NULL;
    }
    return region;
}

/* The region for names or paths beyond the limit. Borrowed. */
static Region *other_region(Recorder *rec, const char *name)
{
    PyObject *key = Py_BuildValue("(ss)", name, "other");
    if (key == NULL) {
        return NULL;
    }
    Region *region = (Region *)PyDict_GetItemWithError(rec->by_pair, key);
    if (region == NULL && !PyErr_Occurred()) {
        PyObject *empty = PyUnicode_FromString("");
        region = empty ? new_region(rec, PyTuple_GET_ITEM(key, 0), PyTuple_GET_ITEM(key, 1), false, empty) : NULL;
        Py_XDECREF(empty);
        if (region != NULL) {
            PyDict_SetItem(rec->by_pair, key, (PyObject *)region);
        }
        Py_XDECREF(region); /* the list and the dict own it */
    }
    Py_DECREF(key);
    return region;
}

/* New reference. */
static Region *intern_region(Recorder *rec, PyObject *name, PyObject *category, PyObject *device)
{
    PyObject *described = PyObject_CallFunctionObjArgs(describe_region, name, category, device, NULL);
    if (described == NULL) {
        return NULL; /* a TypeError that says what a name must be */
    }
    PyObject *dict = category == Py_None ? rec->by_name : rec->by_pair;
    PyObject *key = category == Py_None ? Py_NewRef(name) : PyTuple_Pack(2, name, category);
    Region *region = key ? (Region *)PyDict_GetItemWithError(dict, key) : NULL;
    Py_XINCREF(region);
    if (key && region == NULL && !PyErr_Occurred()) {
        if (PyList_GET_SIZE(rec->regions) >= HL_MAX_REGIONS - 2) {
            region = other_region(rec, HL_OTHER_NAMES);
            Py_XINCREF(region);
            Callout saved = begin_callout(rec);
            raise_flag(rec, HL_FLAG_NAMES_OVERFLOW,
                       "too many distinct region names; the rest is recorded under '" HL_OTHER_NAMES "'");
            if (!end_callout(rec, saved)) {
                Py_CLEAR(region);
            }
        } else {
            PyObject *text = category == Py_None ? PyUnicode_FromString("") : Py_NewRef(category);
            bool on_device = PyObject_IsTrue(PyTuple_GET_ITEM(described, 0)) == 1;
            region = text ? new_region(rec, name, text, on_device, PyTuple_GET_ITEM(described, 1)) : NULL;
            Py_XDECREF(text);
            if (region != NULL && PyDict_SetItem(dict, key, (PyObject *)region) < 0) {
                Py_CLEAR(region);
            }
        }
    }
    Py_XDECREF(key);
    Py_DECREF(described);
    return region;
}

/* -- profile("name") ----------------------------------------------------------------------------- */

static PyObject *profile_slow(Recorder *rec, PyObject *const *args, Py_ssize_t nargs, PyObject *names)
{
    static const char *const words[] = {"name", "category", "device"};
    PyObject *values[3] = {NULL, Py_None, Py_None};
    Py_ssize_t count = names ? PyTuple_GET_SIZE(names) : 0;
    if (nargs > 2) {
        PyErr_SetString(PyExc_TypeError, "profile() takes a name and a category; device= is a keyword argument.");
        return NULL;
    }
    for (Py_ssize_t i = 0; i < nargs; i++) {
        values[i] = args[i];
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *word = PyTuple_GET_ITEM(names, i);
        int w = 0;
        while (w < 3 && PyUnicode_CompareWithASCIIString(word, words[w]) != 0) {
            w++;
        }
        if (w == 3 || w < nargs) {
            PyErr_Format(PyExc_TypeError, "profile() got an unexpected %R; it takes name, category and device=.", word);
            return NULL;
        }
        values[w] = args[nargs + i];
    }
    if (values[0] == NULL) {
        PyErr_SetString(PyExc_TypeError, "profile() needs the name of the region.");
        return NULL;
    }
    if (PyUnicode_CheckExact(values[0]) && PyUnicode_CheckExact(values[1])) {
        PyObject *key = PyTuple_Pack(2, values[0], values[1]);
        PyObject *found = key ? PyDict_GetItemWithError(rec->by_pair, key) : NULL;
        Py_XDECREF(key);
        if (found || PyErr_Occurred()) {
            return Py_XNewRef(found);
        }
    }
    return (PyObject *)intern_region(rec, values[0], values[1], values[2]);
}

static PyObject *call_profile(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *names)
{
    Recorder *rec = ((ProfileCall *)self)->recorder;
    Py_ssize_t nargs = PyVectorcall_NARGS(nargsf);
    if (LIKELY(nargs == 1 && names == NULL && PyUnicode_CheckExact(args[0]))) {
        PyObject *found = PyDict_GetItemWithError(rec->by_name, args[0]);
        if (LIKELY(found != NULL)) {
            return Py_NewRef(found);
        }
    }
    return profile_slow(rec, args, nargs, names);
}

static int profile_traverse(ProfileCall *self, visitproc visit, void *arg)
{
    Py_VISIT(self->recorder);
    return 0;
}

static void profile_dealloc(ProfileCall *self)
{
    PyObject_GC_UnTrack(self);
    Py_XDECREF(self->recorder);
    PyObject_GC_Del(self);
}

static PyTypeObject ProfileCallType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "hotloop.measure._core.profile",
    .tp_doc = "profile(name, category=None, *, device=None)\n--\n\n"
              "The region with that name: use it in a `with` statement or as a decorator, or keep it.",
    .tp_basicsize = sizeof(ProfileCall),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(ProfileCall, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_traverse = (traverseproc)profile_traverse,
    .tp_dealloc = (destructor)profile_dealloc,
};

#endif
