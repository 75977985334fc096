/* Data of the compiled core: recorders, regions, arenas, nodes; the clock; calls into Python from slow paths. */
#ifndef HOTLOOP_STATE_H
#define HOTLOOP_STATE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <time.h>

#include "../layout.h"

#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)
#define MAX_RECORDERS 16
#define MAX_SET 7 /* regions in one RegionSet */
#define SAMPLE_INTERVAL_NS 20000000
#define RECORD_TIMELINE 1
#define RECORD_GAPS 2
#define RECORD_ROUNDS 4
#define RECORD_CALLS 8
#define HOOKS_NAME "hotloop_hooks" /* twin/recorder.py has the same */

typedef struct Recorder Recorder;
typedef struct Region Region;
typedef struct Node Node;

/* One cache line: between two calls of a region, a training step has filled the caches with its own data. */
struct __attribute__((aligned(64))) Node {
    HL_NODE_t *file;
    uint64_t *buckets;
    HL_NODE_WINDOW_t *windows;
    Region *region; /* borrowed: the recorder owns every region; NULL for a root */
    Node *parent;
    uint32_t index;
    uint32_t last_bucket; /* the next call probably falls into the same one */
    uint32_t number;      /* of the region */
};

/* The child found last and its parent: one comparison instead of a lookup. */
typedef struct {
    Node *parent;
    Node *child;
} Last;

typedef struct {
    Node *node;
    uint64_t bits; /* bit_of() of every region open here or further out */
} Open;

typedef struct {
    HL_ARENA_t *file;
    HL_SCHEDULING_t *scheduling; /* written by the sampler; NULL for folded threads */
    uint64_t due;
    uint64_t cpu_start; /* CPU time of the thread when it began to record */
    uint32_t depth;
    uint32_t limit;    /* depth at which calls are no longer recorded: HL_MAX_DEPTH, less after a failure */
    uint32_t overflow; /* calls open beyond it */
    uint32_t number;
    uint32_t table_size; /* a power of two */
    uint32_t node_capacity;
    uint32_t node_count; /* our own copy: after a fork the file belongs to the parent */
    Node **nodes;
    Node **table; /* (parent, region) -> node, open addressing */
    Node *slab;   /* memory of the next nodes, allocated together so that few pages are touched */
    HL_NODES_t *section; /* where the next nodes go in the part */
    HL_EVENT_t *events;
    HL_ROUNDS_t *rounds;
    uint64_t round_burst;    /* number of the burst that is being kept */
    uint32_t round_events;   /* kept in this burst */
    uint64_t least_round_ns; /* shorter calls are not kept */
    HL_CALLS_t *calls;
    uint64_t burst_due;     /* from then on, calls are kept in a row */
    uint64_t least_call_ns; /* calls that take as long are kept at any time */
    uint32_t burst;         /* number of the stretch in which the burst began */
    uint32_t burst_calls;   /* kept in this stretch */
    uint32_t burst_shift;
    Region *last_outermost; /* borrowed: the region that ended last at depth 0, to name the gap after it */
    Open open[HL_MAX_DEPTH + 1]; /* open[0] is the root, open[depth] the innermost */
} Arena;

typedef struct {
    uint64_t epoch;
    Arena *arena;
    bool calling_out;
} Local;

typedef struct Sampler Sampler; /* sampler.h */

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    Region *region;
} BoundCall;

struct Region {
    PyObject_HEAD
    Recorder *recorder;
    Last last;
    Region *gap_before; /* borrowed: the gap seen last in front of this region followed that one ... */
    Region *gap;        /* ... and is recorded as this one; owned by Recorder.gaps */
    uint32_t number;
    uint32_t published_in; /* serial number of the last part that has its name */
    bool device;
    PyObject *name;
    PyObject *category;
    PyObject *site;
    PyObject *enter;
    PyObject *exit;
};

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    Recorder *recorder;
} ProfileCall;

struct Recorder {
    PyObject_HEAD
    uint64_t epoch;        /* 0 while off */
    uint64_t paused_epoch; /* the epoch to return to; 0 when not paused */
    uint32_t flags;        /* RECORD_... */
    uint32_t slot;
    long long steps_due; /* env steps until on_steps is called; 0: never */
    PyObject *clock;   /* written in Python; NULL: the monotonic clock of the system */
    uint64_t clock_ns; /* its last reading */
    PyObject *device;
    PyObject *part;
    PyObject *on_window;
    PyObject *on_steps;
    PyObject *name_gap; /* (region before, region after) -> region of the time between them */
    PyObject *gaps;     /* its answers, by pair */
    Region *hooks;      /* borrowed: the region for hooks after wrapped calls; NULL until first used */
    PyObject *profile;
    PyObject *by_name;    /* name -> Region, for regions without a category */
    PyObject *by_pair;    /* (name, category) -> Region */
    PyObject *regions;    /* list, in order of their numbers */
    PyObject *open_part;
    PyObject *sections;   /* keeps the memory of the part mapped */
    PyObject *weak;
    HL_HEADER_t *header;
    Sampler *sampler;
    Arena *arenas[HL_MAX_ARENAS + 1];
    uint32_t arena_count;
    Arena *folded;
    uint32_t node_count;
    uint32_t calling_out; /* threads inside a slow path */
    bool locate; /* note which line of the user's code first calls each node */
    bool attaching;
    uint32_t part_serial; /* counts the parts opened so far */
    PyObject *after_work; /* called soon after the slow path that a signal handler has interrupted; NULL: nothing */
    bool unopened; /* the part is opened at the first region: after a fork, or when joining a capture */
    bool sample_memory;
};

static Recorder *recorders[MAX_RECORDERS];
static pthread_mutex_t registry_lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t last_epoch = 0;
static pthread_key_t thread_key;
static __thread Local locals[MAX_RECORDERS] __attribute__((tls_model("initial-exec")));

static PyObject *describe_region;  /* hotloop.measure.core_shared.describe_region */
static PyObject *user_site; /* hotloop.measure.core_shared.user_site */
static PyObject *decorate;  /* hotloop.measure.decorate.decorate */
static PyObject *word_env_steps, *word_updates, *word_episodes;
static PyObject *word_episode_length, *word_episode_return, *word_loss, *word_bytes, *word_flops, *word_detail;

static PyTypeObject RegionType, BoundCallType, RecorderType, ProfileCallType, ProfiledType, StepCounterType;
static PyTypeObject CallCounterType, UpdateCounterType;

/* -- clock ------------------------------------------------------------------------------------ */

static inline uint64_t read_clock(clockid_t id)
{
    struct timespec t;
    clock_gettime(id, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t injected_clock(Recorder *rec);

static inline uint64_t now_ns(Recorder *rec)
{
    if (UNLIKELY(rec->clock != NULL)) {
        return injected_clock(rec);
    }
    return read_clock(CLOCK_MONOTONIC);
}

/* -- threads of ours ------------------------------------------------------------------------------ */

/* Start a native thread that gets no signals: those are for the program. */
static int start_thread(pthread_t *thread, void *(*run)(void *), void *argument)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(thread, NULL, run, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed;
}

/* -- the sequence number around an update ------------------------------------------------------ */

static inline void begin_update(Arena *a)
{
    __atomic_store_n(&a->file->seq, a->file->seq + 1, __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_RELEASE);
}

static inline void end_update(Arena *a)
{
    __atomic_store_n(&a->file->seq, a->file->seq + 1, __ATOMIC_RELEASE);
}

/* One bit per region, shared by several: where it is not set, the region is not open. */
static inline uint64_t bit_of(uint32_t region)
{
    return 1ull << (region & 63);
}

static inline void set_depth(Arena *a, uint32_t depth)
{
    a->file->depth = depth;
    __atomic_store_n(&a->depth, depth, __ATOMIC_RELAXED);
}

/* -- calling out to Python from a slow path ----------------------------------------------------- */

/* Python code that is called from here can be interrupted by a signal handler of the user's, whose exception must
   reach the user; errors of our own must not. So functions that call out return false or NULL with an error set
   if, and only if, it is the user's; they have reported their own. */

static PyObject *is_users, *report_own; /* of hotloop._util.interrupts */

/* Make the older exception (references stolen; may be NULL) the context of the one that is set, as Python does. */
static void set_context(PyObject *type, PyObject *value, PyObject *trace)
{
    if (type == NULL) {
        return;
    }
    PyErr_NormalizeException(&type, &value, &trace);
    if (trace != NULL) {
        PyException_SetTraceback(value, trace);
    }
    PyObject *new_type, *new_value, *new_trace;
    PyErr_Fetch(&new_type, &new_value, &new_trace);
    PyErr_NormalizeException(&new_type, &new_value, &new_trace);
    if (new_value != value) {
        PyException_SetContext(new_value, Py_NewRef(value));
    }
    PyErr_Restore(new_type, new_value, new_trace);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
}

/* Report the error that is set and clear it, if it is our own. False, with an error set, if it is the user's. */
static __attribute__((noinline, cold)) bool report_error(void)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    if (trace != NULL) {
        PyException_SetTraceback(value, trace);
    }
    PyObject *answer = PyObject_CallOneArg(is_users, value);
    if (answer == NULL) { /* interrupted once more */
        set_context(type, value, trace);
        return false;
    }
    bool ours = answer == Py_False;
    Py_DECREF(answer);
    PyObject *told = ours ? PyObject_CallOneArg(report_own, value) : NULL;
    if (ours && told == NULL) {
        set_context(type, value, trace);
        return false;
    }
    if (ours) {
        Py_DECREF(told);
        Py_XDECREF(type);
        Py_XDECREF(value);
        Py_XDECREF(trace);
    } else {
        PyErr_Restore(type, value, trace);
    }
    return ours;
}

static PyObject *postponed; /* list of exceptions to be raised on the main thread */

static int raise_postponed(void *unused)
{
    (void)unused;
    if (postponed == NULL || PyList_GET_SIZE(postponed) == 0) {
        return 0;
    }
    PyObject *error = Py_NewRef(PyList_GET_ITEM(postponed, 0));
    PyList_SetSlice(postponed, 0, 1, NULL);
    if (PyList_GET_SIZE(postponed) > 0) {
        Py_AddPendingCall(raise_postponed, NULL);
    }
    PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    Py_DECREF(error);
    return -1;
}

/* For an exception of the user's where none can be raised: keep it, and raise it on the main thread soon. */
static __attribute__((noinline, cold)) void postpone_error(void)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    if (trace != NULL) {
        PyException_SetTraceback(value, trace);
    }
    if (postponed == NULL) {
        postponed = PyList_New(0);
    }
    if (postponed == NULL || PyList_Append(postponed, value) < 0) {
        PyErr_Clear();
        PyErr_Restore(type, value, trace);
        PyErr_WriteUnraisable(NULL); /* no memory */
        return;
    }
    Py_AddPendingCall(raise_postponed, NULL);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
}

/* Reads a clock that is written in Python; what it or a signal handler raises is postponed. */
static __attribute__((noinline, cold)) uint64_t injected_clock(Recorder *rec)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyObject *reading = PyObject_CallNoArgs(rec->clock);
    uint64_t ns = reading ? PyLong_AsUnsignedLongLong(reading) : 0;
    Py_XDECREF(reading);
    if (!PyErr_Occurred()) {
        rec->clock_ns = ns > rec->clock_ns ? ns : rec->clock_ns; /* one that goes back stands still */
    } else if (!report_error()) {
        postpone_error();
    }
    PyErr_Restore(type, value, trace);
    return rec->clock_ns;
}

typedef struct {
    PyObject *type, *value, *trace;
    uint64_t epoch;
    bool nested;
} Callout;

static Callout begin_callout(Recorder *rec)
{
    Callout saved;
    PyErr_Fetch(&saved.type, &saved.value, &saved.trace);
    saved.epoch = locals[rec->slot].epoch;
    saved.nested = locals[rec->slot].calling_out;
    locals[rec->slot].epoch = 0;
    locals[rec->slot].calling_out = true;
    rec->calling_out++;
    return saved;
}

static int run_after_work(void *recorder);

/* False, with an error set, when the user's code has raised one during the callout. */
static bool end_callout(Recorder *rec, Callout saved)
{
    bool good = !PyErr_Occurred() || report_error();
    rec->calling_out--;
    locals[rec->slot].epoch = saved.epoch;
    locals[rec->slot].calling_out = saved.nested;
    if (rec->after_work != NULL && !saved.nested) {
        Py_AddPendingCall(run_after_work, rec);
    }
    if (good) {
        PyErr_Restore(saved.type, saved.value, saved.trace);
    } else {
        set_context(saved.type, saved.value, saved.trace);
    }
    return good;
}

/* A new section of the part (HL_SECTION_...): its payload, zeroed, for one thread to write in place. Readers
   can see it at once. NULL with an error set when there is no memory. Call it within a callout. */
static void *new_section(Recorder *rec, const char *name, uint32_t owner, uint32_t first)
{
    PyObject *memory = PyObject_CallMethod(rec->part, "add_section", "sII", name, owner, first);
    if (memory == NULL) {
        return NULL;
    }
    Py_buffer view;
    if (PyObject_GetBuffer(memory, &view, PyBUF_WRITABLE) < 0) {
        Py_DECREF(memory);
        return NULL;
    }
    void *at = view.buf;
    PyBuffer_Release(&view); /* the memoryview in `sections` keeps the memory mapped */
    int failed = PyList_Append(rec->sections, memory);
    Py_DECREF(memory);
    return failed ? NULL : at;
}

#endif
