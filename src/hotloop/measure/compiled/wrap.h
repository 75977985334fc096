/* `Region.wrap`: functions that run inside a region. */
#ifndef HOTLOOP_WRAP_H
#define HOTLOOP_WRAP_H

#include "call_path.h"
#include "region.h"

/* Regions to look for among the open ones. */
typedef struct {
    PyObject *regions; /* tuple; NULL when empty */
    uint64_t bits;     /* bit_of() of each */
    uint16_t count;
    uint16_t numbers[MAX_SET]; /* of the regions, so that these need not be read; below HL_MAX_REGIONS */
} RegionSet;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    Region *region;
    PyObject *function;
    Recorder *recorder;  /* the region's, to see whether it records without reading the region */
    uint64_t skip_bits; /* of `skip_inside` */
    Last last;           /* of `region` */
    uint64_t epoch;      /* in which `last` is valid */
    Region *outer;       /* opened around the call unless it is already open on this thread */
    PyObject *after;     /* after(first argument, result), for calls that opened `outer` or have none */
    Region *otherwise;
    RegionSet no_outer_inside;    /* `outer` is not opened when one of these is open */
    Region *otherwise_outer; /* `outer` of calls that are `otherwise` */
    RegionSet never;     /* when one of these is open, `otherwise` is the region */
    RegionSet always;    /* else, when one of these is open, `region` is, without calling `choose` */
    PyObject *choose;    /* tuple of callables without arguments: all true -> region, else otherwise */
    PyObject *pick;      /* pick(path, previous path, *args, **kwargs) -> region, or None to record nothing */
    PyObject *settled;   /* dict: path -> region, for calls that need not ask `pick` each time */
    uint32_t picks;      /* calls that were looked up */
    PyObject *detail;    /* detail(first argument) -> region inside this one, or None; remembered by that object */
    RegionSet skip_inside;     /* when one of these is open, the call is not recorded */
    PyObject *dict;
    PyObject *weak;
} Profiled;

static inline Arena *arena_now(Recorder *rec)
{
    Local *local = &locals[rec->slot];
    return rec->epoch != 0 && local->epoch == rec->epoch ? local->arena : NULL;
}

static __attribute__((hot)) bool is_open(Recorder *rec, Region *region)
{
    Arena *a = arena_now(rec);
    if (a == NULL || !(a->open[a->depth].bits & bit_of(region->number))) {
        return false;
    }
    for (uint32_t d = a->depth; d > 0; d--) {
        if (a->file->stack[d - 1].region == region->number) {
            return true;
        }
    }
    return false;
}

static __attribute__((noinline, hot)) bool find_open(Arena *a, const RegionSet *set)
{
    for (uint32_t d = a->depth; d > 0; d--) { /* innermost first: the most likely */
        uint32_t number = a->file->stack[d - 1].region;
        for (uint16_t i = 0; (set->bits & bit_of(number)) && i < set->count; i++) {
            if (set->numbers[i] == number) {
                return true;
            }
        }
    }
    return false;
}

static inline bool any_open(Arena *a, const RegionSet *set)
{
    return a != NULL && (a->open[a->depth].bits & set->bits) && find_open(a, set);
}

/* Whether a call belongs to `region` (1) and not to `otherwise` (0); an error of `choose` must not reach the caller.
   -1 with an error set if that is the user's. */
static __attribute__((noinline, hot)) int is_chosen(Profiled *self, Arena *a)
{
    if (any_open(a, &self->never)) {
        return 0;
    }
    if (any_open(a, &self->always)) {
        return 1;
    }
    for (Py_ssize_t i = 0; self->choose && i < PyTuple_GET_SIZE(self->choose); i++) {
        PyObject *answer = PyObject_CallNoArgs(PyTuple_GET_ITEM(self->choose, i));
        int yes = answer == Py_True ? 1 : answer == Py_False ? 0 : answer ? PyObject_IsTrue(answer) : -1;
        Py_XDECREF(answer);
        if (yes < 0) {
            return report_error() ? 1 : -1;
        }
        if (!yes) {
            return 0;
        }
    }
    return 1;
}

/* `pick` for a call; borrowed, since regions live as long as their recorder. NULL: record nothing, or, with an error
   set, the user's code has raised. */
static __attribute__((noinline)) Region *ask_pick(Profiled *self, PyObject *path, uint64_t previous,
                                                  PyObject *const *args, size_t nargsf, PyObject *names)
{
    size_t given = (size_t)PyVectorcall_NARGS(nargsf), named = names ? (size_t)PyTuple_GET_SIZE(names) : 0;
    PyObject *before = PyLong_FromUnsignedLongLong(previous);
    PyObject **all = before ? PyMem_Malloc((2 + given + named) * sizeof *all) : NULL;
    PyObject *answer = NULL;
    if (all != NULL) {
        all[0] = path;
        all[1] = before;
        memcpy(all + 2, args, (given + named) * sizeof *all);
        answer = PyObject_Vectorcall(self->pick, all, 2 + given, names);
    }
    PyMem_Free(all);
    Py_XDECREF(before);
    if (answer == NULL) {
        if (!PyErr_Occurred()) {
            PyErr_NoMemory();
        }
        return report_error() ? self->region : NULL;
    }
    Region *region = Py_IS_TYPE(answer, &RegionType) && ((Region *)answer)->recorder == self->recorder
                         ? (Region *)answer
                         : answer == Py_None ? NULL : self->region;
    Py_DECREF(answer);
    return region;
}

#define ASK_EVERY 256 /* calls: a settled answer is checked now and then; twin/region.py has the same */

static Region *picked_region(Profiled *self, PyObject *const *args, size_t nargsf, PyObject *names)
{
    uint64_t path = call_path(), previous = last_path;
    last_path = path;
    PyObject *key = PyLong_FromUnsignedLongLong(path);
    PyObject *known = key && ++self->picks % ASK_EVERY ? PyDict_GetItemWithError(self->settled, key) : NULL;
    Region *region = self->region;
    if (known != NULL && Py_IS_TYPE(known, &RegionType)) {
        region = (Region *)known;
    } else if (key != NULL && !PyErr_Occurred()) {
        region = ask_pick(self, key, previous, args, nargsf, names);
    }
    Py_XDECREF(key);
    return PyErr_Occurred() && !report_error() ? NULL : region;
}

static bool count_quickly(PyObject *counter, Arena *a, PyObject *env, PyObject *result);
static bool count_step(PyObject *counter, PyObject *env, PyObject *action, PyObject *result, uint64_t now, bool *called_out);
static bool count_call_of(PyObject *counter, PyObject *first, PyObject *result, bool *called_out);
static bool count_update(PyObject *counter, PyObject *object, uint64_t now, bool *called_out);

/* Hooks after a call are overhead of ours: record their time in a region of ours, so that reports show it. */
static bool credit_hook(Recorder *rec)
{
    if (rec->hooks == NULL) {
        Callout saved = begin_callout(rec);
        PyObject *made = PyObject_CallFunction(rec->profile, "ss", HOOKS_NAME, "hotloop");
        rec->hooks = (Region *)made; /* the list of regions owns it */
        Py_XDECREF(made);
        if (!end_callout(rec, saved)) {
            return false;
        }
    }
    Arena *a = arena_now(rec);
    return a == NULL || rec->hooks == NULL || a->overflow || credit_time(rec, a, rec->hooks, now_ns(rec));
}

/* A counter that did not call Python costs no more than a region and gets no call of its own. */
static __attribute__((noinline)) bool call_slowly_after(Profiled *self, Arena *a, PyObject *first, PyObject *second,
                                                        PyObject *result)
{
    bool went_well, called_out = true;
    uint64_t now = a ? a->file->last_ns : 0; /* the call has just ended: reuse the time of its end */
    if (Py_IS_TYPE(self->after, &StepCounterType)) {
        went_well = count_step(self->after, first, second, result, now, &called_out);
    } else if (Py_IS_TYPE(self->after, &UpdateCounterType)) {
        went_well = count_update(self->after, first, now, &called_out);
    } else if (Py_IS_TYPE(self->after, &CallCounterType)) {
        went_well = count_call_of(self->after, first, result, &called_out);
    } else {
        PyObject *done = PyObject_CallFunctionObjArgs(self->after, first, result, NULL);
        went_well = done != NULL;
        Py_XDECREF(done);
    }
    return (went_well || report_error()) && (!called_out || credit_hook(self->recorder));
}

/* False with an error set if that is the user's. */
static inline bool call_after(Profiled *self, PyObject *const *args, size_t nargsf, PyObject *result)
{
    PyObject *first = PyVectorcall_NARGS(nargsf) > 0 ? args[0] : Py_None;
    Arena *a = arena_now(self->recorder);
    return (Py_IS_TYPE(self->after, &StepCounterType) && a != NULL && count_quickly(self->after, a, first, result)) ||
           call_slowly_after(self, a, first, PyVectorcall_NARGS(nargsf) > 1 ? args[1] : Py_None, result);
}

/* The region of a call's first argument, inside the one of the call; borrowed. NULL: it has none, or, with an error
   set, the user's code has raised. */
static Region *detail_of(Profiled *self, PyObject *first)
{
    PyObject *found = PyObject_GetAttr(first, word_detail);
    if (found == NULL) {
        PyErr_Clear();
        found = PyObject_CallOneArg(self->detail, first);
        if (found == NULL) {
            report_error();
            return NULL;
        }
        if (PyObject_SetAttr(first, word_detail, found) < 0) {
            PyErr_Clear();
        }
    }
    Region *region = Py_IS_TYPE(found, &RegionType) && ((Region *)found)->recorder == self->recorder ? (Region *)found : NULL;
    Py_DECREF(found); /* regions live as long as their recorder */
    return region;
}

/* Not inlined four times: instruction cache misses cost as much as data cache misses. */
static __attribute__((noinline, hot)) bool enter_wrapped(Recorder *rec, Region *region, Last *last, uint64_t *moment)
{
    return enter(rec, region, last, moment);
}

static __attribute__((noinline, hot)) bool exit_wrapped(Recorder *rec, Region *region, uint64_t *moment)
{
    return UNLIKELY(rec->epoch == 0) || leave(rec, region, moment); /* it may have been stopped in the meantime */
}

static __attribute__((hot)) PyObject *call_profiled(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *names)
{
    Profiled *self = (Profiled *)callable;
    Recorder *rec = self->recorder;
    if (rec->epoch == 0) {
        return PyObject_Vectorcall(self->function, args, nargsf, names);
    }
    if (UNLIKELY(self->epoch != rec->epoch)) {
        self->epoch = rec->epoch;
        self->last = (Last){NULL, NULL}; /* the nodes of an earlier recording are gone */
    }
    Arena *a = arena_now(rec);
    if (a != NULL && (a->open[a->depth].bits & self->skip_bits) && find_open(a, &self->skip_inside)) {
        return PyObject_Vectorcall(self->function, args, nargsf, names);
    }
    __builtin_prefetch(self->last.child);
    Region *region = self->region, *outer = self->outer;
    if (self->pick != NULL && !any_open(a, &self->never) && !any_open(a, &self->always)) {
        region = picked_region(self, args, nargsf, names);
        if (region == NULL && PyErr_Occurred()) {
            return NULL;
        }
        if (region == NULL || rec->epoch != self->epoch) {
            return PyObject_Vectorcall(self->function, args, nargsf, names);
        }
    } else if (self->otherwise != NULL) {
        int chosen = is_chosen(self, a);
        if (chosen < 0) {
            return NULL;
        }
        if (!chosen) {
            region = self->otherwise;
            outer = self->otherwise_outer ? self->otherwise_outer : outer;
        }
    }
    bool has_outer = outer != NULL;
    if (has_outer && (is_open(rec, outer) || any_open(arena_now(rec), &self->no_outer_inside))) {
        outer = NULL;
    }
    uint64_t moment = 0;
    if (outer != NULL && !enter_wrapped(rec, outer, &outer->last, &moment)) {
        return NULL;
    }
    PyObject *result = NULL;
    bool good = true; /* no error of the user's in a slow path */
    if (LIKELY(rec->epoch == self->epoch)) { /* opening a part can fail */
        good = enter_wrapped(rec, region, region == self->region ? &self->last : &region->last, &moment);
    }
    if (LIKELY(good)) {
        Region *detail = NULL;
        if (UNLIKELY(self->detail != NULL) && PyVectorcall_NARGS(nargsf) > 0) {
            detail = detail_of(self, args[0]);
            detail = rec->epoch == self->epoch ? detail : NULL;
            good = detail != NULL ? enter_wrapped(rec, detail, &detail->last, &moment) : !PyErr_Occurred();
        }
        if (LIKELY(good)) {
            result = PyObject_Vectorcall(self->function, args, nargsf, names);
            moment = 0;
            if (UNLIKELY(detail != NULL)) {
                good = exit_wrapped(rec, detail, &moment);
            }
        }
        good &= exit_wrapped(rec, region, &moment);
    }
    if (outer != NULL) {
        good &= exit_wrapped(rec, outer, &moment);
    }
    if (self->after != NULL && result != NULL && LIKELY(good) && (outer != NULL || !has_outer)) {
        good = call_after(self, args, nargsf, result);
    }
    if (UNLIKELY(!good)) {
        Py_CLEAR(result);
    }
    return result;
}

static PyObject *none_to_null(PyObject *value)
{
    return value == NULL || value == Py_None ? NULL : Py_NewRef(value);
}

static bool is_region_or_none(PyObject *value, const char *word)
{
    if (value == NULL || value == Py_None || Py_IS_TYPE(value, &RegionType)) {
        return true;
    }
    PyErr_Format(PyExc_TypeError, "%s=%R must be a region or None.", word, value);
    return false;
}

static bool fill_set(RegionSet *set, PyObject *value, const char *word)
{
    set->regions = NULL;
    set->bits = 0;
    set->count = 0;
    if (value == NULL || value == Py_None) {
        return true;
    }
    set->regions = PySequence_Tuple(value);
    if (set->regions && PyTuple_GET_SIZE(set->regions) > MAX_SET) {
        PyErr_Format(PyExc_ValueError, "%s= takes at most %d regions, not %zd.", word, MAX_SET,
                     PyTuple_GET_SIZE(set->regions));
        return false;
    }
    for (Py_ssize_t i = 0; set->regions && i < PyTuple_GET_SIZE(set->regions); i++) {
        PyObject *item = PyTuple_GET_ITEM(set->regions, i);
        if (!Py_IS_TYPE(item, &RegionType)) {
            PyErr_Format(PyExc_TypeError, "%s= takes a tuple of regions, but it contains %R.", word, item);
            return false;
        }
        set->bits |= bit_of(((Region *)item)->number);
        set->numbers[set->count++] = (uint16_t)((Region *)item)->number;
    }
    return set->regions != NULL;
}

/* `choose` as a tuple of callables. */
static bool fill_choices(PyObject **into, PyObject *value)
{
    bool one = value != NULL && value != Py_None && !PyTuple_Check(value);
    *into = one ? PyTuple_Pack(1, value) : none_to_null(value);
    return *into != NULL || !PyErr_Occurred();
}

static PyObject *region_wrap(Region *self, PyObject *args, PyObject *names)
{
    static char *words[] = {"function", "outer", "no_outer_inside", "skip_inside", "choose", "always", "never",
                            "otherwise", "otherwise_outer", "after", "pick", "settled", "detail", NULL};
    PyObject *function, *outer = NULL, *no_outer_inside = NULL, *skip_inside = NULL, *choose = NULL, *always = NULL;
    PyObject *never = NULL, *otherwise = NULL, *otherwise_outer = NULL, *after = NULL;
    PyObject *pick = NULL, *settled = NULL, *detail = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, names, "O|$OOOOOOOOOOO!O", words, &function, &outer, &no_outer_inside, &skip_inside,
                                     &choose, &always, &never, &otherwise, &otherwise_outer, &after, &pick, &PyDict_Type, &settled, &detail) ||
        !is_region_or_none(outer, "outer") || !is_region_or_none(otherwise, "otherwise") ||
        !is_region_or_none(otherwise_outer, "otherwise_outer")) {
        return NULL;
    }
    Profiled *profiled = (Profiled *)PyType_GenericAlloc(&ProfiledType, 0);
    if (profiled == NULL) {
        return NULL;
    }
    profiled->vectorcall = call_profiled;
    profiled->region = (Region *)Py_NewRef((PyObject *)self);
    profiled->recorder = self->recorder; /* owned by the region */
    profiled->function = Py_NewRef(function);
    profiled->outer = (Region *)none_to_null(outer);
    profiled->otherwise = (Region *)none_to_null(otherwise);
    profiled->otherwise_outer = (Region *)none_to_null(otherwise_outer);
    profiled->after = none_to_null(after);
    profiled->pick = none_to_null(pick);
    profiled->detail = none_to_null(detail);
    profiled->settled = settled ? Py_NewRef(settled) : PyDict_New();
    if (!fill_set(&profiled->no_outer_inside, no_outer_inside, "no_outer_inside") || !fill_set(&profiled->skip_inside, skip_inside, "skip_inside") ||
        !fill_set(&profiled->always, always, "always") || !fill_set(&profiled->never, never, "never") ||
        !fill_choices(&profiled->choose, choose) || profiled->settled == NULL) {
        Py_DECREF(profiled);
        return NULL;
    }
    profiled->skip_bits = profiled->skip_inside.bits;
    return (PyObject *)profiled;
}

static int profiled_traverse(Profiled *self, visitproc visit, void *arg)
{
    Py_VISIT(self->region);
    Py_VISIT(self->function);
    Py_VISIT(self->outer);
    Py_VISIT(self->no_outer_inside.regions);
    Py_VISIT(self->skip_inside.regions);
    Py_VISIT(self->always.regions);
    Py_VISIT(self->never.regions);
    Py_VISIT(self->choose);
    Py_VISIT(self->pick);
    Py_VISIT(self->detail);
    Py_VISIT(self->settled);
    Py_VISIT(self->otherwise);
    Py_VISIT(self->otherwise_outer);
    Py_VISIT(self->after);
    Py_VISIT(self->dict);
    return 0;
}

static int profiled_clear(Profiled *self)
{
    Py_CLEAR(self->dict);
    Py_CLEAR(self->after);
    Py_CLEAR(self->choose);
    Py_CLEAR(self->pick);
    Py_CLEAR(self->detail);
    return 0;
}

static void profiled_dealloc(Profiled *self)
{
    PyObject_GC_UnTrack(self);
    if (self->weak) {
        PyObject_ClearWeakRefs((PyObject *)self);
    }
    profiled_clear(self);
    Py_XDECREF(self->settled);
    Py_XDECREF(self->region);
    Py_XDECREF(self->function);
    Py_XDECREF(self->outer);
    Py_XDECREF(self->no_outer_inside.regions);
    Py_XDECREF(self->skip_inside.regions);
    Py_XDECREF(self->always.regions);
    Py_XDECREF(self->never.regions);
    Py_XDECREF(self->otherwise);
    Py_XDECREF(self->otherwise_outer);
    PyObject_GC_Del(self);
}

static PyObject *profiled_get(PyObject *self, PyObject *object, PyObject *type)
{
    (void)type;
    return object == NULL || object == Py_None ? Py_NewRef(self) : PyMethod_New(self, object);
}

static PyObject *profiled_repr(Profiled *self)
{
    return PyUnicode_FromFormat("<%R in %R>", self->function, (PyObject *)self->region);
}

/* Pickled like a function: by its qualified name. */
static PyObject *profiled_reduce(PyObject *self, PyObject *unused)
{
    (void)unused;
    return PyObject_GetAttrString(self, "__qualname__");
}

/* Looks up attributes it does not have (defaults, annotations, code) on the function. */
static PyObject *profiled_getattr(PyObject *self, PyObject *name)
{
    PyObject *found = PyObject_GenericGetAttr(self, name);
    if (found == NULL && PyErr_ExceptionMatches(PyExc_AttributeError)) {
        PyErr_Clear();
        found = PyObject_GetAttr(((Profiled *)self)->function, name);
    }
    return found;
}

static PyMethodDef profiled_methods[] = {
    {"__reduce__", profiled_reduce, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef profiled_getset[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyTypeObject ProfiledType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "hotloop.measure._core.profiled",
    .tp_basicsize = sizeof(Profiled),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR,
    .tp_vectorcall_offset = offsetof(Profiled, vectorcall),
    .tp_dictoffset = offsetof(Profiled, dict),
    .tp_weaklistoffset = offsetof(Profiled, weak),
    .tp_call = PyVectorcall_Call,
    .tp_descr_get = profiled_get,
    .tp_getattro = profiled_getattr,
    .tp_repr = (reprfunc)profiled_repr,
    .tp_traverse = (traverseproc)profiled_traverse,
    .tp_clear = (inquiry)profiled_clear,
    .tp_dealloc = (destructor)profiled_dealloc,
    .tp_methods = profiled_methods,
    .tp_getset = profiled_getset,
};

#endif
