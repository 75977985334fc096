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
    uint32_t overflow;
    uint32_t number;
    uint32_t table_size; /* a power of two */
    uint32_t node_capacity;
    uint32_t node_count; /* our own copy: after a fork the file belongs to the parent */
    Node **nodes;
    Node **table; /* (parent, region) -> node, open addressing */
    Node *slab;   /* memory of the next nodes, allocated together so that few pages are touched */
    HL_NODES_t *section; /* where the next nodes go in the part */
    HL_EVENT_t *events;
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
    PyObject *clock;
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
    bool publishing;
    Py_ssize_t published; /* regions that are in the part */
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
static PyObject *word_episode_length, *word_episode_return, *word_loss, *word_bytes, *word_flops;

static PyTypeObject RegionType, BoundCallType, RecorderType, ProfileCallType, ProfiledType, StepCounterType;

/* -- clock ------------------------------------------------------------------------------------ */

static inline uint64_t read_clock(clockid_t id)
{
    struct timespec t;
    clock_gettime(id, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static __attribute__((noinline, cold)) uint64_t injected_clock(Recorder *rec)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyObject *reading = PyObject_CallNoArgs(rec->clock);
    uint64_t ns = reading ? PyLong_AsUnsignedLongLong(reading) : 0;
    if (PyErr_Occurred()) {
        PyErr_WriteUnraisable(rec->clock);
        ns = 0;
    }
    Py_XDECREF(reading);
    PyErr_Restore(type, value, trace);
    return ns;
}

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

static PyObject *postponed; /* Ctrl-C or sys.exit() in a signal handler that ran during a callout */

static int raise_postponed(void *unused)
{
    (void)unused;
    PyObject *error = postponed;
    postponed = NULL;
    if (error != NULL) {
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
        Py_DECREF(error);
    }
    return error ? -1 : 0;
}

/* Report our own errors without passing them on; keep a request to end the program and raise it soon. */
static void swallow_error(PyObject *where)
{
    if (PyErr_ExceptionMatches(PyExc_Exception)) {
        PyErr_WriteUnraisable(where);
        return;
    }
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    if (value != NULL && trace != NULL) {
        PyException_SetTraceback(value, trace);
    }
    Py_XSETREF(postponed, Py_XNewRef(value));
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    Py_AddPendingCall(raise_postponed, NULL);
}

static void end_callout(Recorder *rec, Callout saved)
{
    if (PyErr_Occurred()) {
        swallow_error((PyObject *)rec);
    }
    rec->calling_out--;
    locals[rec->slot].epoch = saved.epoch;
    locals[rec->slot].calling_out = saved.nested;
    PyErr_Restore(saved.type, saved.value, saved.trace);
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
