/* The recorder, compiled: what twin.py does, for about a hundred nanoseconds a region.
 *
 * Read twin.py first: same names, same file, same results. What is different here:
 *
 * - A thread finds its arena in thread-local storage. `Local.epoch == Recorder.epoch` says that it
 *   is the right one; both change at start, stop and fork, so one compare covers all of them.
 *   While we call out to Python from a slow path, Local.epoch is 0, and regions entered meanwhile
 *   by finalizers or signal handlers on this thread are not recorded.
 * - A region remembers the last (parent, child) pair of nodes: one compare instead of a lookup.
 * - `__enter__` and `__exit__` are callables made once for each region, handed out by descriptors,
 *   so that a `with` statement allocates nothing.
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

#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)
#define MAX_RECORDERS 16
#define SAMPLE_INTERVAL_NS 20000000
#define SWITCH_TIMELINE 1
#define SWITCH_SEGMENT 2
#define HOOKS_NAME "hotloop_hooks" /* as in twin.py */

typedef struct Recorder Recorder;
typedef struct Region Region;
typedef struct Node Node;

/* One cache line: between two calls of a region a training step has filled the caches with its own. */
struct __attribute__((aligned(64))) Node {
    HL_NODE_t *file;
    uint64_t *buckets;
    HL_NODE_WINDOW_t *windows;
    Region *region; /* borrowed: the recorder keeps every region; NULL for a root */
    Node *parent;
    uint32_t index;
    uint32_t last_bucket; /* where the next call is likely to be counted */
    uint32_t number;      /* of the region */
};

/* The last child found below the last parent: one compare instead of a lookup. */
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
    uint64_t due;
    uint64_t cpu_start; /* the thread's CPU time when it began to record */
    uint32_t depth;
    uint32_t overflow;
    uint32_t number;
    uint32_t table_size; /* a power of two */
    uint32_t node_capacity;
    uint32_t node_count; /* our own copy: after a fork the file's belongs to the parent */
    Node **nodes;
    Node **table; /* (parent, region) -> node, open addressing */
    HL_NODE_BLOCK_t *block;
    HL_EVENT_t *events;
    Region *last_outermost; /* borrowed: what ended last at depth 0, for segmenting */
    Open open[HL_MAX_DEPTH + 1]; /* open[0] is the root, open[depth] the innermost */
} Arena;

typedef struct {
    uint64_t epoch;
    Arena *arena;
    bool calling_out;
} Local;

typedef struct {
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    Recorder *recorder;
    HL_HEADER_t *header;
    int statm;
    bool stop;
    bool memory;
    uint64_t last_rss;
    uint64_t last_peak;
} Sampler;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    Region *region;
} BoundCall;

struct Region {
    PyObject_HEAD
    Recorder *recorder;
    Last last;
    Region *gap_before; /* borrowed: the last gap in front of this region came after that one ... */
    Region *gap;        /* ... and is this one; kept by Recorder.gaps */
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
    uint64_t paused_epoch; /* the epoch to come back to; 0 when not paused */
    uint32_t switches;
    uint32_t slot;
    PyObject *clock;
    PyObject *device;
    PyObject *part;
    PyObject *on_window;
    PyObject *on_steps;
    PyObject *name_gap; /* (region before, region after) -> region of the time between them */
    PyObject *gaps;     /* what it answered, by pair */
    Region *hooks;      /* borrowed: the region for what runs after wrapped calls; NULL until then */
    PyObject *profile;
    PyObject *by_name;    /* name -> Region, for regions without a category */
    PyObject *by_pair;    /* (name, category) -> Region */
    PyObject *regions;    /* list, in order of their numbers */
    PyObject *open_part;
    PyObject *blocks;     /* keeps the part's memory mapped */
    PyObject *weak;
    HL_HEADER_t *header;
    Sampler *sampler;
    Arena *arenas[HL_MAX_ARENAS + 1];
    uint32_t arena_count;
    Arena *folded;
    uint32_t node_count;
    uint32_t calling_out; /* threads inside a slow path */
    long long steps_due;
    bool locate; /* ask for the caller of each new node */
    bool attaching;
    bool publishing;
    Py_ssize_t published; /* regions the part knows */
    bool unopened; /* the part is opened at the first region: after a fork, or when joining */
    bool sample_memory;
};

static Recorder *recorders[MAX_RECORDERS];
static pthread_mutex_t registry_lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t last_epoch = 0;
static pthread_key_t thread_key;
static __thread Local locals[MAX_RECORDERS] __attribute__((tls_model("initial-exec")));

static PyObject *describe;  /* hotloop.measure.regions.describe */
static PyObject *user_site; /* hotloop.measure.regions.user_site */
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

/* One bit for a region: where it is not set, the region is not open. */
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

static PyObject *postponed; /* Ctrl-C or sys.exit() in a signal handler, while we were calling out */

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

/* Errors of ours are reported and go no further; the user's wish to end is kept and raised soon. */
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

/* A zeroed block of the part; NULL when Python failed (reported by end_callout). */
static void *new_block(Recorder *rec, const char *kind, uint32_t owner, uint32_t first)
{
    PyObject *memory = PyObject_CallMethod(rec->part, "block", "sII", kind, owner, first);
    if (memory == NULL) {
        return NULL;
    }
    Py_buffer view;
    if (PyObject_GetBuffer(memory, &view, PyBUF_WRITABLE) < 0) {
        Py_DECREF(memory);
        return NULL;
    }
    void *at = view.buf;
    PyBuffer_Release(&view); /* the memoryview in `blocks` keeps the memory mapped */
    int failed = PyList_Append(rec->blocks, memory);
    Py_DECREF(memory);
    return failed ? NULL : at;
}

/* -- nodes ------------------------------------------------------------------------------------ */

static inline uint32_t hash_pair(uint32_t parent, uint32_t region)
{
    uint64_t h = ((uint64_t)parent << 32 | region) * 0x9E3779B97F4A7C15ull;
    return (uint32_t)(h >> 32);
}

static Node *find_node(Arena *a, Node *parent, Region *region)
{
    uint32_t mask = a->table_size - 1;
    for (uint32_t i = hash_pair(parent->index, region->number) & mask; a->table[i]; i = (i + 1) & mask) {
        if (a->table[i]->parent == parent && a->table[i]->region == region) {
            return a->table[i];
        }
    }
    return NULL;
}

static void put_node(Arena *a, Node *node)
{
    uint32_t mask = a->table_size - 1;
    uint32_t i = hash_pair(node->parent->index, node->region->number) & mask;
    while (a->table[i]) {
        i = (i + 1) & mask;
    }
    a->table[i] = node;
}

static bool make_room(Arena *a)
{
    if (a->node_count < a->node_capacity) {
        return true;
    }
    uint32_t capacity = a->node_capacity ? a->node_capacity * 2 : 32;
    Node **nodes = PyMem_RawRealloc(a->nodes, capacity * sizeof(Node *));
    if (nodes == NULL) {
        return false;
    }
    a->nodes = nodes;
    a->node_capacity = capacity;
    PyMem_RawFree(a->table);
    a->table_size = capacity * 2;
    a->table = PyMem_RawCalloc(a->table_size, sizeof(Node *));
    if (a->table == NULL) {
        return false;
    }
    for (uint32_t i = 1; i < a->node_count; i++) {
        put_node(a, a->nodes[i]);
    }
    return true;
}

static Node *new_node(void)
{
    void *memory;
    if (posix_memalign(&memory, sizeof(Node), sizeof(Node)) != 0) {
        return NULL;
    }
    return memset(memory, 0, sizeof(Node));
}

/* Within a callout. The node is complete before its count is published. */
static Node *add_node(Recorder *rec, Arena *a, Node *parent, Region *region)
{
    uint32_t index = a->node_count;
    uint32_t place = index % HL_NODES_PER_BLOCK;
    if (!make_room(a)) {
        PyErr_NoMemory();
        return NULL;
    }
    if (place == 0) {
        HL_NODE_BLOCK_t *block = new_block(rec, "NODE_BLOCK", a->number, index);
        if (block == NULL) {
            return NULL;
        }
        a->block = block;
    }
    Node *node = new_node();
    if (node == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    node->file = &a->block->nodes[place];
    node->buckets = a->block->buckets[place].count;
    node->windows = a->block->windows[place].at;
    node->region = region;
    node->number = region ? region->number : HL_UNNAMED;
    node->parent = parent;
    node->index = index;
    node->file->region = region ? region->number : HL_UNNAMED;
    node->file->parent = parent ? parent->index : HL_NO_PARENT;
    a->nodes[index] = node;
    if (parent != NULL) {
        put_node(a, node);
    }
    a->node_count = index + 1;
    __atomic_store_n(&a->file->node_count, index + 1, __ATOMIC_RELEASE);
    return node;
}

static Region *other_region(Recorder *rec, const char *name);

static void raise_flag(Recorder *rec, int flag, const char *text)
{
    PyObject *done = rec->part ? PyObject_CallMethod(rec->part, "raise_flag", "is", flag, text) : NULL;
    Py_XDECREF(done);
}

/* Within a callout: note where in the user's code the first call of a node comes from. */
static void locate(Recorder *rec, Node *node)
{
    PyObject *site = PyObject_CallNoArgs(user_site);
    if (site != NULL && PyUnicode_Check(site) && PyUnicode_GET_LENGTH(site) > 0) {
        PyObject *holder = PyObject_CallFunction(rec->profile, "Os", site, HL_SITE_CATEGORY);
        if (holder != NULL) {
            node->file->site = ((Region *)holder)->number + 1;
            Py_DECREF(holder);
        }
    }
    Py_XDECREF(site);
}

/* Within a callout. */
static Node *make_child(Recorder *rec, Arena *a, Node *parent, Region *region)
{
    if (rec->node_count >= HL_MAX_NODES - HL_MAX_ARENAS) {
        raise_flag(rec, HL_FLAG_PATHS_OVERFLOW,
                   "too many different paths; the rest is recorded under '" HL_OTHER_PATHS "'");
        region = other_region(rec, HL_OTHER_PATHS);
        parent = a->nodes[0];
        Node *found = region ? find_node(a, parent, region) : NULL;
        if (found || region == NULL) {
            return found;
        }
    }
    rec->node_count++;
    Node *node = add_node(rec, a, parent, region);
    if (node != NULL && rec->locate) {
        locate(rec, node);
    }
    return node;
}

static __attribute__((noinline)) Node *child_of(Recorder *rec, Arena *a, Node *parent, Region *region)
{
    Node *node = find_node(a, parent, region);
    if (node == NULL) {
        Callout saved = begin_callout(rec);
        node = make_child(rec, a, parent, region);
        end_callout(rec, saved);
        if (node == NULL) {
            return NULL;
        }
    }
    region->last = (Last){parent, node};
    return node;
}

/* -- arenas ----------------------------------------------------------------------------------- */

static void free_arena(Arena *a)
{
    for (uint32_t i = 0; i < a->node_count; i++) {
        free(a->nodes[i]);
    }
    PyMem_RawFree(a->nodes);
    PyMem_RawFree(a->table);
    PyMem_RawFree(a);
}

static uint64_t native_thread_id(void)
{
    return (uint64_t)PyThread_get_thread_native_id();
}

/* Within a callout: the thread's name, as Python knows it. */
static void write_thread_name(HL_ARENA_t *file, bool folded)
{
    memset(file->thread_name, 0, sizeof file->thread_name);
    if (folded) {
        strcpy((char *)file->thread_name, "ended threads");
        return;
    }
    PyObject *threading = PyImport_ImportModule("threading");
    PyObject *thread = threading ? PyObject_CallMethod(threading, "current_thread", NULL) : NULL;
    PyObject *name = thread ? PyObject_GetAttrString(thread, "name") : NULL;
    PyObject *data = name ? PyUnicode_AsEncodedString(name, "utf-8", "replace") : NULL;
    if (data != NULL) {
        size_t length = (size_t)PyBytes_GET_SIZE(data);
        memcpy(file->thread_name, PyBytes_AS_STRING(data), length < 63 ? length : 63);
    }
    Py_XDECREF(data);
    Py_XDECREF(name);
    Py_XDECREF(thread);
    Py_XDECREF(threading);
}

static void clear_node(Node *node)
{
    HL_NODE_t *f = node->file;
    uint32_t region = f->region, parent = f->parent, site = f->site;
    memset(f, 0, sizeof *f);
    f->region = region;
    f->site = site;
    f->parent = parent;
    memset(node->buckets, 0, HL_BUCKETS * sizeof(uint64_t));
    memset(node->windows, 0, HL_MAX_WINDOWS * sizeof(HL_NODE_WINDOW_t));
}

/* Begin to serve a thread. */
static void reset_arena(Arena *a, uint64_t now, uint32_t state)
{
    HL_ARENA_t *f = a->file;
    uint64_t seq = f->seq;
    begin_update(a);
    memset((char *)f + 8, 0, sizeof *f - 8);
    f->node_count = a->node_count;
    f->start_ns = f->last_ns = now;
    f->native_id = native_thread_id();
    f->window_interval_ns = HL_FIRST_WINDOW_NS;
    for (uint32_t i = 0; i < a->node_count; i++) {
        clear_node(a->nodes[i]);
    }
    a->due = now + HL_FIRST_WINDOW_NS;
    a->cpu_start = read_clock(CLOCK_THREAD_CPUTIME_ID);
    a->overflow = 0;
    a->last_outermost = NULL;
    set_depth(a, 0);
    __atomic_store_n(&f->state, state, __ATOMIC_RELEASE);
    __atomic_store_n(&f->seq, seq + 2, __ATOMIC_RELEASE);
}

/* Within a callout. */
static Arena *new_arena(Recorder *rec, uint64_t now, uint32_t state)
{
    uint32_t number = rec->arena_count++;
    Arena *a = PyMem_RawCalloc(1, sizeof(Arena));
    if (a == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    a->number = number;
    HL_ARENA_BLOCK_t *block = new_block(rec, "ARENA_BLOCK", number, 0);
    if (block == NULL) {
        PyMem_RawFree(a);
        return NULL;
    }
    a->file = &block->arena;
    reset_arena(a, now, 0);
    Node *root = add_node(rec, a, NULL, NULL);
    if (root == NULL) {
        free_arena(a);
        return NULL;
    }
    a->open[0].node = root;
    write_thread_name(a->file, state == HL_ARENA_FOLDED);
    __atomic_store_n(&a->file->state, state, __ATOMIC_RELEASE);
    __atomic_store_n(&rec->arenas[number], a, __ATOMIC_RELEASE);
    return a;
}

/* -- counting calls --------------------------------------------------------------------------- */

static inline uint32_t bucket_of(uint64_t ns)
{
    if (UNLIKELY(ns < (1u << HL_FIRST_OCTAVE))) {
        return 0;
    }
    uint32_t octave = 63u - (uint32_t)__builtin_clzll(ns);
    uint32_t bucket = (octave - HL_FIRST_OCTAVE) * 4 + ((ns >> (octave - 2)) & 3);
    return bucket < HL_BUCKETS ? bucket : HL_BUCKETS - 1;
}

static inline void count_call(Node *node, uint64_t duration)
{
    HL_NODE_t *f = node->file;
    if (UNLIKELY(f->calls == 0)) {
        f->min_ns = f->max_ns = f->first_ns = duration;
    } else {
        if (duration < f->min_ns) {
            f->min_ns = duration;
        }
        if (duration > f->max_ns) {
            f->max_ns = duration;
        }
        double away = (double)((int64_t)duration - (int64_t)f->first_ns);
        f->squares += away * away;
    }
    f->calls++;
    f->total_ns += duration;
    uint32_t bucket = bucket_of(duration);
    node->last_bucket = bucket;
    node->buckets[bucket]++;
}

/* Give the time since the last event to the node on top; within an update. */
static inline void settle(Arena *a, Node *top, uint64_t now)
{
    top->file->own_ns += now - a->file->last_ns;
    a->file->last_ns = now;
}

/* -- windows ---------------------------------------------------------------------------------- */

static void thin_windows(Arena *a)
{
    HL_ARENA_t *f = a->file;
    for (uint32_t to = 0; to < HL_MAX_WINDOWS / 2; to++) {
        f->windows[to] = f->windows[2 * to + 1];
    }
    for (uint32_t n = 0; n < a->node_count; n++) {
        HL_NODE_WINDOW_t *column = a->nodes[n]->windows;
        for (uint32_t to = 0; to < HL_MAX_WINDOWS / 2; to++) {
            column[to] = column[2 * to + 1];
        }
    }
    f->window_count = HL_MAX_WINDOWS / 2;
    f->window_interval_ns *= 2;
}

/* The caller has settled; called by the thread that owns the arena. */
static void take_window(Recorder *rec, Arena *a, uint64_t now)
{
    HL_ARENA_t *f = a->file;
    uint64_t cpu = read_clock(CLOCK_THREAD_CPUTIME_ID);
    begin_update(a);
    if (f->window_count == HL_MAX_WINDOWS) {
        thin_windows(a);
    }
    uint32_t w = f->window_count;
    HL_WINDOW_t *window = &f->windows[w];
    f->cpu_ns = f->state == HL_ARENA_LIVE ? cpu - a->cpu_start : 0;
    window->time_ns = now;
    window->real_ns = read_clock(CLOCK_REALTIME);
    window->cpu_ns = f->cpu_ns;
    window->rss_bytes = rec->header->rss_bytes;
    window->progress = f->progress;
    for (uint32_t n = 0; n < a->node_count; n++) {
        Node *node = a->nodes[n];
        node->windows[w].calls = node->file->calls;
        node->windows[w].total_ns = node->file->total_ns;
        node->windows[w].own_ns = node->file->own_ns;
    }
    for (uint32_t d = 0; d < a->depth; d++) {
        a->nodes[f->stack[d].node]->windows[w].total_ns += now - f->stack[d].start_ns;
    }
    f->window_count = w + 1;
    end_update(a);
    /* CPU time, not wall: on a busy machine the thread may lose its core right here, for milliseconds. */
    uint64_t cost = rec->clock ? 0 : read_clock(CLOCK_THREAD_CPUTIME_ID) - cpu;
    uint64_t pause = f->window_interval_ns > 1000 * cost ? f->window_interval_ns : 1000 * cost;
    a->due = now + pause; /* so windows cost at most a thousandth, however many nodes there are */
}

static void call_and_forget(PyObject *result)
{
    if (result == NULL) {
        swallow_error(NULL);
    }
    Py_XDECREF(result);
}

/* The window of a thread, then what others do at windows. Touch the arena no more afterwards. */
static __attribute__((noinline)) void window_due(Recorder *rec, Arena *a, uint64_t now)
{
    take_window(rec, a, now);
    Callout saved = begin_callout(rec);
    PyObject *done = PyObject_CallMethod(rec->part, "copy_if_due", "K", (unsigned long long)now);
    Py_XDECREF(done);
    if (done != NULL && rec->device != NULL) {
        done = PyObject_CallMethod(rec->device, "collect", NULL);
        Py_XDECREF(done);
    }
    end_callout(rec, saved);
    if (rec->on_window != NULL) {
        PyObject *type, *value, *trace;
        PyErr_Fetch(&type, &value, &trace);
        call_and_forget(PyObject_CallFunction(rec->on_window, "K", (unsigned long long)now));
        PyErr_Restore(type, value, trace);
    }
}

/* -- folding ended threads together -------------------------------------------------------------- */

static void add_figures(Node *into, const Node *other)
{
    HL_NODE_t *f = into->file;
    const HL_NODE_t *o = other->file;
    if (o->calls) {
        if (f->calls) {
            f->min_ns = o->min_ns < f->min_ns ? o->min_ns : f->min_ns;
            f->max_ns = o->max_ns > f->max_ns ? o->max_ns : f->max_ns;
            double shift = (double)o->first_ns - (double)f->first_ns;
            double away = (double)o->total_ns - (double)o->calls * (double)o->first_ns;
            f->squares += o->squares + 2 * shift * away + (double)o->calls * shift * shift;
        } else {
            f->min_ns = o->min_ns;
            f->max_ns = o->max_ns;
            f->first_ns = o->first_ns;
            f->squares = o->squares;
        }
    }
    f->calls += o->calls;
    f->total_ns += o->total_ns;
    f->own_ns += o->own_ns;
    f->flags |= o->flags;
    f->bytes += o->bytes;
    f->flops += o->flops;
    f->device_ns += o->device_ns;
    f->device_calls += o->device_calls;
    f->device_growth_bytes += o->device_growth_bytes;
    f->rss_growth_bytes += o->rss_growth_bytes;
    f->rss_samples += o->rss_samples;
    f->device_peak_bytes = o->device_peak_bytes > f->device_peak_bytes ? o->device_peak_bytes : f->device_peak_bytes;
    f->rss_peak_bytes = o->rss_peak_bytes > f->rss_peak_bytes ? o->rss_peak_bytes : f->rss_peak_bytes;
    for (int b = 0; b < HL_BUCKETS; b++) {
        into->buckets[b] += other->buckets[b];
    }
}

static void add_progress(HL_PROGRESS_t *into, const HL_PROGRESS_t *other)
{
    into->env_steps += other->env_steps;
    into->updates += other->updates;
    into->episodes += other->episodes;
    into->length_sum += other->length_sum;
    into->length_count += other->length_count;
    into->return_sum += other->return_sum;
    into->return_count += other->return_count;
    into->loss_sum += other->loss_sum;
    into->loss_count += other->loss_count;
}

/* Within a callout. Returns false when memory ran out; the ended thread then keeps its arena. */
static bool fold(Recorder *rec, Arena *ended, uint64_t now)
{
    if (rec->folded == NULL) {
        rec->folded = new_arena(rec, now, HL_ARENA_FOLDED);
        if (rec->folded == NULL) {
            return false;
        }
    }
    Arena *into = rec->folded;
    uint32_t count = ended->node_count;
    Node **twins = PyMem_RawCalloc(count, sizeof(Node *));
    if (twins == NULL) {
        return false;
    }
    twins[0] = into->nodes[0];
    for (uint32_t n = 1; n < count; n++) { /* parents come before their children */
        Node *node = ended->nodes[n], *parent = twins[node->parent->index];
        twins[n] = find_node(into, parent, node->region);
        if (twins[n] == NULL) {
            twins[n] = make_child(rec, into, parent, node->region);
        }
        if (twins[n] == NULL) {
            PyMem_RawFree(twins);
            return false;
        }
    }
    for (uint32_t d = 0; d < ended->depth; d++) {
        HL_FRAME_t *frame = &ended->file->stack[d];
        count_call(ended->nodes[frame->node], ended->file->last_ns - frame->start_ns);
    }
    begin_update(into);
    for (uint32_t n = 0; n < count; n++) {
        add_figures(twins[n], ended->nodes[n]);
    }
    into->file->folded_wall_ns += ended->file->last_ns - ended->file->start_ns;
    into->file->folded_cpu_ns += ended->file->cpu_ns;
    into->file->folded_threads++;
    into->file->last_ns = now;
    add_progress(&into->file->progress, &ended->file->progress);
    end_update(into);
    PyMem_RawFree(twins);
    if (now >= into->due) {
        take_window(rec, into, now);
    }
    return true;
}

/* -- attaching a thread -------------------------------------------------------------------------- */

/* Within a callout. */
static Arena *arena_for_thread(Recorder *rec)
{
    uint64_t now = now_ns(rec);
    for (uint32_t i = 0; rec->arena_count >= HL_FOLD_AFTER && i < rec->arena_count; i++) {
        Arena *a = rec->arenas[i];
        if (a && __atomic_load_n(&a->file->state, __ATOMIC_ACQUIRE) == HL_ARENA_ENDED) {
            a->file->state = HL_ARENA_FOLDED; /* nobody else may take it meanwhile */
            if (!fold(rec, a, now)) {
                a->file->state = HL_ARENA_ENDED;
                break;
            }
            reset_arena(a, now, 0);
            write_thread_name(a->file, false);
            __atomic_store_n(&a->file->state, HL_ARENA_LIVE, __ATOMIC_RELEASE);
            return a;
        }
    }
    if (rec->arena_count >= HL_MAX_ARENAS) {
        raise_flag(rec, HL_FLAG_THREADS_OVERFLOW, "too many threads at once; the rest is not recorded");
        return NULL;
    }
    return new_arena(rec, now, HL_ARENA_LIVE);
}

static bool open_part(Recorder *rec);

/* Find or make the calling thread's arena; in a forked child this first opens a part of its own. */
static __attribute__((noinline)) bool attach(Recorder *rec)
{
    Local *local = &locals[rec->slot];
    if (local->calling_out || rec->epoch == 0) {
        return false;
    }
    Callout saved = begin_callout(rec);
    while (rec->attaching) { /* one thread at a time: opening and folding touch what all share */
        Py_BEGIN_ALLOW_THREADS
        usleep(100);
        Py_END_ALLOW_THREADS
    }
    rec->attaching = true;
    if (rec->unopened) {
        rec->unopened = false;
        if (!open_part(rec)) {
            rec->epoch = 0;
        }
    }
    Arena *a = rec->epoch ? arena_for_thread(rec) : NULL;
    rec->attaching = false;
    end_callout(rec, saved);
    if (a == NULL) {
        return false;
    }
    local->arena = a;
    local->epoch = rec->epoch;
    pthread_setspecific(thread_key, &locals); /* so that thread_ended is called */
    return true;
}

/* Destructor of thread_key: runs on the ending thread, without the GIL. */
static void thread_ended(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&registry_lock);
    for (int slot = 0; slot < MAX_RECORDERS; slot++) {
        Recorder *rec = recorders[slot];
        Local *local = &locals[slot];
        if (rec && rec->epoch && local->epoch == rec->epoch) {
            Arena *a = local->arena;
            uint64_t now = rec->clock ? a->file->last_ns : read_clock(CLOCK_MONOTONIC);
            begin_update(a);
            settle(a, a->open[a->depth].node, now);
            a->file->cpu_ns = read_clock(CLOCK_THREAD_CPUTIME_ID) - a->cpu_start;
            end_update(a);
            __atomic_store_n(&a->file->state, HL_ARENA_ENDED, __ATOMIC_RELEASE);
        }
        local->epoch = 0;
        local->arena = NULL;
    }
    pthread_mutex_unlock(&registry_lock);
}

/* What was recorded before a fork belongs to the parent; no Python may run here. */
static void forked_child(void)
{
    pthread_mutex_init(&registry_lock, NULL);
    for (int slot = 0; slot < MAX_RECORDERS; slot++) {
        Recorder *rec = recorders[slot];
        if (rec) {
            rec->sampler = NULL;
            rec->attaching = rec->publishing = false;
            rec->calling_out = 0;
            locals[slot].calling_out = false;
            if (rec->epoch || rec->paused_epoch) {
                uint64_t *kept = rec->epoch ? &rec->epoch : &rec->paused_epoch;
                *kept = ++last_epoch;
                rec->unopened = true;
            }
        }
    }
}

/* -- the hot path ------------------------------------------------------------------------------- */

/* The time since the last event becomes a completed call of `region` below the innermost open one. */
static void credit_time(Recorder *rec, Arena *a, Region *region, uint64_t now)
{
    Node *top = a->open[a->depth].node;
    Node *node = region->last.parent == top ? region->last.child : child_of(rec, a, top, region);
    if (node != NULL) {
        begin_update(a);
        count_call(node, now - a->file->last_ns);
        settle(a, node, now);
        end_update(a);
    }
}

/* Ask for the region of the time between two others, or remember the answer. Borrowed. */
static __attribute__((noinline)) Region *gap_between(Recorder *rec, Region *before, Region *after)
{
    Callout saved = begin_callout(rec);
    PyObject *key = PyTuple_Pack(2, before, after);
    PyObject *gap = key ? PyDict_GetItemWithError(rec->gaps, key) : NULL;
    if (key && gap == NULL && !PyErr_Occurred() && rec->name_gap != NULL) {
        gap = PyObject_CallFunctionObjArgs(rec->name_gap, (PyObject *)before, (PyObject *)after, NULL);
        if (gap != NULL) {
            PyDict_SetItem(rec->gaps, key, gap);
            Py_DECREF(gap); /* the dict keeps it */
        }
    }
    Py_XDECREF(key);
    end_callout(rec, saved);
    return gap && Py_IS_TYPE(gap, &RegionType) ? (Region *)gap : NULL;
}

/* The time since the last outermost region ended becomes a call of a region of its own, named by its
   neighbours: a script that marks nothing still gets a breakdown of its main loop. */
static __attribute__((noinline)) void credit_gap(Recorder *rec, Arena *a, Region *after, uint64_t now)
{
    Region *before = a->last_outermost;
    if (UNLIKELY(after->gap_before != before)) {
        after->gap = gap_between(rec, before, after);
        after->gap_before = after->gap ? before : NULL;
    }
    if (after->gap != NULL) {
        credit_time(rec, a, after->gap, now);
    }
}

static __attribute__((noinline, cold)) void device_enter(Recorder *rec)
{
    Callout saved = begin_callout(rec);
    PyObject *done = PyObject_CallMethod(rec->device, "enter", NULL);
    Py_XDECREF(done);
    end_callout(rec, saved);
}

/* What is needed of the region stands in its node: in a training step each of them is a cache miss. */
static inline void enter(Recorder *rec, Region *region, Last *last)
{
    Local *local = &locals[rec->slot];
    if (UNLIKELY(local->epoch != rec->epoch) && !attach(rec)) {
        return;
    }
    Arena *a = local->arena;
    uint32_t depth = a->depth;
    if (UNLIKELY(depth == HL_MAX_DEPTH)) {
        a->file->overflow = ++a->overflow;
        return;
    }
    if (UNLIKELY(rec->device != NULL && region->device)) {
        device_enter(rec);
    }
    Node *top = a->open[depth].node, *node = last->child;
    if (UNLIKELY(last->parent != top)) {
        node = region->last.parent == top ? region->last.child : child_of(rec, a, top, region);
        if (node == NULL) {
            a->file->overflow = ++a->overflow; /* no memory: its end must be swallowed, too */
            return;
        }
        *last = (Last){top, node};
    }
    __builtin_prefetch(node); /* reading the clock waits for loads, but not for this */
    uint64_t now = now_ns(rec);
    if (UNLIKELY(depth == 0 && (rec->switches & SWITCH_SEGMENT) && a->last_outermost != NULL)) {
        credit_gap(rec, a, region, now);
    }
    uint32_t number = LIKELY(node->region == region) ? node->number : region->number; /* else: too many paths */
    begin_update(a);
    settle(a, top, now);
    HL_FRAME_t *frame = &a->file->stack[depth];
    frame->node = node->index;
    frame->region = number;
    frame->start_ns = now;
    a->open[depth + 1].bits = a->open[depth].bits | bit_of(number);
    __atomic_store_n(&a->open[depth + 1].node, node, __ATOMIC_RELAXED);
    set_depth(a, depth + 1);
    end_update(a);
    __builtin_prefetch(node->file, 1);
    __builtin_prefetch(&node->buckets[node->last_bucket], 1);
}

static inline void enter_region(Region *region)
{
    Recorder *rec = region->recorder;
    if (UNLIKELY(rec->epoch != 0)) {
        enter(rec, region, &region->last);
    }
}

static __attribute__((noinline)) void close_out_of_order(Recorder *rec, Arena *a, Region *region, uint64_t now)
{
    HL_FRAME_t *stack = a->file->stack;
    uint32_t at = a->depth;
    while (at > 0 && stack[at - 1].region != region->number) {
        at--;
    }
    if (at == 0) {
        return; /* begun before recording, or before a fork: not ours to count */
    }
    at--;
    begin_update(a);
    settle(a, a->open[a->depth].node, now);
    Node *node = a->nodes[stack[at].node];
    count_call(node, now - stack[at].start_ns);
    node->file->flags |= HL_NODE_OUT_OF_ORDER;
    end_update(a);
    uint32_t depth = a->depth - 1;
    for (uint32_t d = at; d < depth; d++) { /* the ones above move down, below another parent */
        Region *moved = (Region *)PyList_GET_ITEM(rec->regions, stack[d + 1].region);
        Node *below = child_of(rec, a, a->open[d].node, moved);
        if (below == NULL) {
            below = a->nodes[stack[d + 1].node];
        }
        below->file->flags |= HL_NODE_OUT_OF_ORDER;
        begin_update(a);
        stack[d].node = below->index;
        stack[d].region = moved->number;
        stack[d].start_ns = stack[d + 1].start_ns;
        a->open[d + 1].bits = a->open[d].bits | bit_of(moved->number);
        __atomic_store_n(&a->open[d + 1].node, below, __ATOMIC_RELAXED);
        end_update(a);
    }
    begin_update(a);
    set_depth(a, depth);
    end_update(a);
}

static __attribute__((noinline, cold)) void record_event(Recorder *rec, Arena *a, Node *node, uint64_t start, uint64_t now)
{
    if (a->events == NULL) {
        Callout saved = begin_callout(rec);
        HL_EVENT_BLOCK_t *block = new_block(rec, "EVENT_BLOCK", a->number, 0);
        end_callout(rec, saved);
        if (block == NULL) {
            return;
        }
        a->events = block->events;
    }
    HL_EVENT_t *event = &a->events[a->file->event_count % HL_EVENTS_PER_BLOCK];
    event->node = node->index;
    event->start_ns = start;
    event->duration_ns = now - start;
    a->file->event_count++;
}

static __attribute__((noinline, cold)) void device_exit(Recorder *rec, Arena *a, Node *node)
{
    Callout saved = begin_callout(rec);
    unsigned long long handle = (unsigned long long)a->number << 32 | node->index;
    PyObject *done = PyObject_CallMethod(rec->device, "exit", "K", handle);
    Py_XDECREF(done);
    end_callout(rec, saved);
}

static inline void leave(Recorder *rec, Region *region)
{
    uint64_t now = now_ns(rec);
    Local *local = &locals[rec->slot];
    if (UNLIKELY(local->epoch != rec->epoch)) {
        return; /* begun before recording, or before a fork */
    }
    Arena *a = local->arena;
    if (UNLIKELY(a->overflow)) {
        a->file->overflow = --a->overflow;
        return;
    }
    uint32_t depth = a->depth;
    Node *node = a->open[depth].node;
    HL_FRAME_t *frame = &a->file->stack[depth - 1];
    if (UNLIKELY(node->region != region) && (depth == 0 || frame->region != region->number)) {
        close_out_of_order(rec, a, region, now);
    } else {
        uint64_t start = frame->start_ns;
        begin_update(a);
        settle(a, node, now);
        count_call(node, now - start);
        set_depth(a, depth - 1);
        end_update(a);
        if (UNLIKELY(rec->switches)) {
            if (rec->switches & SWITCH_TIMELINE) {
                record_event(rec, a, node, start, now);
            }
            if (depth == 1) {
                a->last_outermost = region;
            }
        }
        if (UNLIKELY(rec->device != NULL && region->device)) {
            device_exit(rec, a, node);
        }
    }
    if (UNLIKELY(now >= a->due)) {
        window_due(rec, a, now);
    }
}

static inline void exit_region(Region *region)
{
    Recorder *rec = region->recorder;
    if (UNLIKELY(rec->epoch != 0)) {
        leave(rec, region);
    }
}

/* -- Region ------------------------------------------------------------------------------------- */

static PyObject *call_enter(PyObject *self, PyObject *const *args, size_t nargs, PyObject *names)
{
    (void)args, (void)nargs, (void)names;
    Region *region = ((BoundCall *)self)->region;
    enter_region(region);
    return Py_NewRef((PyObject *)region);
}

static PyObject *call_exit(PyObject *self, PyObject *const *args, size_t nargs, PyObject *names)
{
    (void)args, (void)nargs, (void)names;
    exit_region(((BoundCall *)self)->region);
    Py_RETURN_NONE;
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
    .tp_doc = "The __enter__ or __exit__ of one region, made once.",
    .tp_basicsize = sizeof(BoundCall),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(BoundCall, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_traverse = (traverseproc)bound_traverse,
    .tp_clear = (inquiry)bound_clear,
    .tp_dealloc = (destructor)bound_dealloc,
};

/* A descriptor that hands out a region's ready-made callable instead of making a bound method. */
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

static PyTypeObject SlotType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "hotloop.measure._core.Slot",
    .tp_basicsize = sizeof(Slot),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_descr_get = slot_get,
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
    /* The recorder stays: a region may still be entered while its cycle is being taken apart. */
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
            PyErr_SetString(PyExc_TypeError, "A region decorates one function; it takes no other argument.");
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

static PyObject *region_add(Region *self, PyObject *const *args, Py_ssize_t nargs, PyObject *names)
{
    double bytes = 0, flops = 0;
    Py_ssize_t count = names ? PyTuple_GET_SIZE(names) : 0;
    if (nargs) {
        PyErr_SetString(PyExc_TypeError, "add() takes bytes= and flops= by name only.");
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
                a->open[d].node->file->bytes += bytes;
                a->open[d].node->file->flops += flops;
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

/* A callback for gc.callbacks. No Python code runs in it: the collector swallows exceptions of its
   callbacks, so a Ctrl-C that arrived there would be lost. Threads that record nothing stay out. */
static PyObject *region_on_collection(Region *self, PyObject *const *args, Py_ssize_t nargs)
{
    Recorder *rec = self->recorder;
    if (nargs == 2 && rec->epoch && locals[rec->slot].epoch == rec->epoch && PyDict_Check(args[1])) {
        PyObject *generation = PyDict_GetItemString(args[1], "generation");
        if (generation != NULL && PyLong_AsLong(generation) == 2) {
            if (PyUnicode_Check(args[0]) && PyUnicode_CompareWithASCIIString(args[0], "start") == 0) {
                enter_region(self);
            } else {
                exit_region(self);
            }
        }
    }
    Py_RETURN_NONE;
}

static PyMethodDef region_methods[] = {
    {"on_collection", (PyCFunction)(void (*)(void))region_on_collection, METH_FASTCALL,
     "For gc.callbacks: full collections of threads that record become calls of this region."},
    {"add", (PyCFunction)(void (*)(void))region_add, METH_FASTCALL | METH_KEYWORDS,
     "Say what the open call of this region moved (bytes=) or computed (flops=)."},
    {"is_open", (PyCFunction)region_is_open, METH_NOARGS, "Whether the calling thread is inside this region."},
    {"wrap", (PyCFunction)(void (*)(void))region_wrap, METH_VARARGS | METH_KEYWORDS,
     "A callable that runs the function inside this region; see twin.wrap."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef region_members[] = {
    {"recorder", T_OBJECT, offsetof(Region, recorder), READONLY, "The recorder it belongs to."},
    {"number", T_UINT, offsetof(Region, number), READONLY, "Its number in the part file."},
    {"name", T_OBJECT, offsetof(Region, name), READONLY, "Its name."},
    {"category", T_OBJECT, offsetof(Region, category), READONLY, "Its category, \"\" when none was given."},
    {"device", T_BOOL, offsetof(Region, device), READONLY, "Whether device time is taken."},
    {"site", T_OBJECT, offsetof(Region, site), READONLY, "file:line where it was made."},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject RegionType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "hotloop.measure._core.Region",
    .tp_doc = "A named stretch of code: made once, entered as often as you like, from any thread.",
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
    region->device = device;
    region->name = Py_NewRef(name);
    region->category = Py_NewRef(category);
    region->site = Py_NewRef(site);
    region->enter = region->exit = NULL;
    PyObject_GC_Track(region);
    region->enter = new_bound_call(region, call_enter);
    region->exit = new_bound_call(region, call_exit);
    /* Nothing may be allocated between these two lines: a collection could run finalizers that make
       regions, and two of them would get the same number. */
    region->number = (uint32_t)PyList_GET_SIZE(rec->regions);
    if (!region->enter || !region->exit || PyList_Append(rec->regions, (PyObject *)region) < 0) {
        Py_DECREF(region);
        return NULL;
    }
    return region;
}

/* Tell the part about new regions, in the order of their numbers; a failure is the part's to report.
   While one thread is at it, others leave theirs to it. */
static void publish_regions(Recorder *rec)
{
    if (rec->part == NULL || rec->unopened || rec->publishing) {
        return;
    }
    rec->publishing = true;
    while (rec->part != NULL && rec->published < PyList_GET_SIZE(rec->regions)) {
        Region *region = (Region *)PyList_GET_ITEM(rec->regions, rec->published++);
        call_and_forget(PyObject_CallMethod(rec->part, "add_region", "OOO", region->name, region->category,
                                            region->site));
    }
    rec->publishing = false;
}

/* The bucket for names or paths beyond the limit. Borrowed. */
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
        if (region != NULL && PyDict_SetItem(rec->by_pair, key, (PyObject *)region) == 0) {
            publish_regions(rec);
        }
        Py_XDECREF(region); /* the list and the dict keep it */
    }
    Py_DECREF(key);
    return region;
}

/* New reference. */
static Region *intern_region(Recorder *rec, PyObject *name, PyObject *category, PyObject *device)
{
    PyObject *described = PyObject_CallFunctionObjArgs(describe, name, category, device, NULL);
    if (described == NULL) {
        return NULL; /* a TypeError that says what a name may be */
    }
    PyObject *dict = category == Py_None ? rec->by_name : rec->by_pair;
    PyObject *key = category == Py_None ? Py_NewRef(name) : PyTuple_Pack(2, name, category);
    Region *region = key ? (Region *)PyDict_GetItemWithError(dict, key) : NULL;
    Py_XINCREF(region);
    if (key && region == NULL && !PyErr_Occurred()) {
        if (PyList_GET_SIZE(rec->regions) >= HL_MAX_REGIONS - 2) {
            region = other_region(rec, HL_OTHER_NAMES);
            Py_XINCREF(region);
            raise_flag(rec, HL_FLAG_NAMES_OVERFLOW,
                       "too many different region names; the rest is recorded under '" HL_OTHER_NAMES "'");
            PyErr_Clear();
        } else {
            PyObject *text = category == Py_None ? PyUnicode_FromString("") : Py_NewRef(category);
            bool on_device = PyObject_IsTrue(PyTuple_GET_ITEM(described, 0)) == 1;
            region = text ? new_region(rec, name, text, on_device, PyTuple_GET_ITEM(described, 1)) : NULL;
            Py_XDECREF(text);
            if (region != NULL && PyDict_SetItem(dict, key, (PyObject *)region) < 0) {
                Py_CLEAR(region);
            }
            if (region != NULL) {
                publish_regions(rec);
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
        PyErr_SetString(PyExc_TypeError, "profile() takes a name and a category; device= goes by name.");
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
            PyErr_Format(PyExc_TypeError, "profile() has no argument %R here; it takes name, category and device=.", word);
            return NULL;
        }
        values[w] = args[nargs + i];
    }
    if (values[0] == NULL) {
        PyErr_SetString(PyExc_TypeError, "profile() needs the region's name.");
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
              "The region of that name, to be used in a `with` statement, kept, or as a decorator.",
    .tp_basicsize = sizeof(ProfileCall),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(ProfileCall, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_traverse = (traverseproc)profile_traverse,
    .tp_dealloc = (destructor)profile_dealloc,
};

/* -- decorated functions --------------------------------------------------------------------------- */

/* Regions to be looked for among the open ones. */
typedef struct {
    PyObject *regions; /* tuple; NULL when empty */
    uint64_t bits;     /* bit_of() of each */
} RegionSet;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    Region *region;
    PyObject *function;
    Recorder *recorder;  /* the region's: whether it records can be asked without touching the region */
    uint64_t alone_bits; /* of `alone` */
    Last last;           /* of `region` */
    uint64_t epoch;      /* in which `last` is right */
    Region *outer;       /* opened around the call unless it is open on this thread already */
    RegionSet inside;    /* ... or one of these is */
    PyObject *after;     /* after(first argument, result), for calls that opened `outer` or have none */
    Region *otherwise;
    Region *otherwise_outer; /* `outer` of calls that are `otherwise` */
    RegionSet never;     /* when one of these is open, `otherwise` is the region */
    RegionSet always;    /* else, when one of these is open, `region` is, and `choose` is not asked */
    PyObject *choose;    /* tuple of callables without arguments: all true -> region, else otherwise */
    RegionSet alone;     /* when one of these is open, the call is passed through */
    PyObject *dict;
    PyObject *weak;
} Profiled;

static inline Arena *arena_now(Recorder *rec)
{
    Local *local = &locals[rec->slot];
    return rec->epoch != 0 && local->epoch == rec->epoch ? local->arena : NULL;
}

static bool is_open(Recorder *rec, Region *region)
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

static __attribute__((noinline)) bool find_open(Arena *a, const RegionSet *set)
{
    for (uint32_t d = a->depth; d > 0; d--) { /* from the innermost: it is the likeliest */
        uint32_t number = a->file->stack[d - 1].region;
        for (Py_ssize_t i = 0; (set->bits & bit_of(number)) && i < PyTuple_GET_SIZE(set->regions); i++) {
            if (((Region *)PyTuple_GET_ITEM(set->regions, i))->number == number) {
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

/* Whether a call is of `region` and not of `otherwise`; an error in `choose` is the chooser's fault,
   not the caller's. */
static __attribute__((noinline)) bool is_chosen(Profiled *self, Arena *a)
{
    if (any_open(a, &self->never)) {
        return false;
    }
    if (any_open(a, &self->always)) {
        return true;
    }
    for (Py_ssize_t i = 0; self->choose && i < PyTuple_GET_SIZE(self->choose); i++) {
        PyObject *answer = PyObject_CallNoArgs(PyTuple_GET_ITEM(self->choose, i));
        int yes = answer == Py_True ? 1 : answer == Py_False ? 0 : answer ? PyObject_IsTrue(answer) : -1;
        Py_XDECREF(answer);
        if (yes < 0) {
            swallow_error((PyObject *)self);
            return true;
        }
        if (!yes) {
            return false;
        }
    }
    return true;
}

static bool count_step(PyObject *counter, PyObject *env, PyObject *result);

/* What runs after a call is our own time: it becomes a call of a region of ours, so that reports show it. */
static void credit_hook(Recorder *rec)
{
    if (rec->hooks == NULL) {
        Callout saved = begin_callout(rec);
        PyObject *made = PyObject_CallFunction(rec->profile, "ss", HOOKS_NAME, "hotloop");
        rec->hooks = (Region *)made; /* the list of regions keeps it */
        Py_XDECREF(made);
        end_callout(rec, saved);
    }
    Arena *a = arena_now(rec);
    if (a != NULL && rec->hooks != NULL && !a->overflow) {
        credit_time(rec, a, rec->hooks, now_ns(rec));
    }
}

static __attribute__((noinline)) void call_after(Profiled *self, PyObject *const *args, size_t nargsf, PyObject *result)
{
    PyObject *first = PyVectorcall_NARGS(nargsf) > 0 ? args[0] : Py_None;
    bool went_well;
    if (Py_IS_TYPE(self->after, &StepCounterType)) {
        went_well = count_step(self->after, first, result);
    } else {
        PyObject *done = PyObject_CallFunctionObjArgs(self->after, first, result, NULL);
        went_well = done != NULL;
        Py_XDECREF(done);
    }
    if (!went_well) {
        swallow_error(self->after);
    }
    credit_hook(self->region->recorder);
}

/* Not inlined here, four times: code that is not in the cache costs as much as data. */
static __attribute__((noinline)) void enter_wrapped(Recorder *rec, Region *region, Last *last)
{
    enter(rec, region, last);
}

static __attribute__((noinline)) void exit_wrapped(Recorder *rec, Region *region)
{
    if (LIKELY(rec->epoch != 0)) { /* it may have been stopped meanwhile */
        leave(rec, region);
    }
}

static PyObject *call_profiled(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *names)
{
    Profiled *self = (Profiled *)callable;
    Recorder *rec = self->recorder;
    if (rec->epoch == 0) {
        return PyObject_Vectorcall(self->function, args, nargsf, names);
    }
    if (UNLIKELY(self->epoch != rec->epoch)) {
        self->epoch = rec->epoch;
        self->last = (Last){NULL, NULL}; /* nodes of an earlier recording are gone */
    }
    Arena *a = arena_now(rec);
    if (a != NULL && (a->open[a->depth].bits & self->alone_bits) && find_open(a, &self->alone)) {
        return PyObject_Vectorcall(self->function, args, nargsf, names);
    }
    __builtin_prefetch(self->last.child);
    Region *region = self->region, *outer = self->outer;
    if (self->otherwise != NULL && !is_chosen(self, a)) {
        region = self->otherwise;
        outer = self->otherwise_outer ? self->otherwise_outer : outer;
    }
    bool has_outer = outer != NULL;
    if (has_outer && (is_open(rec, outer) || any_open(arena_now(rec), &self->inside))) {
        outer = NULL;
    }
    if (outer != NULL) {
        enter_wrapped(rec, outer, &outer->last);
    }
    if (LIKELY(rec->epoch == self->epoch)) { /* opening a part may fail */
        enter_wrapped(rec, region, region == self->region ? &self->last : &region->last);
    }
    PyObject *result = PyObject_Vectorcall(self->function, args, nargsf, names);
    exit_wrapped(rec, region);
    if (outer != NULL) {
        exit_wrapped(rec, outer);
    }
    if (self->after != NULL && result != NULL && (outer != NULL || !has_outer)) {
        call_after(self, args, nargsf, result);
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
    if (value == NULL || value == Py_None) {
        return true;
    }
    set->regions = PySequence_Tuple(value);
    for (Py_ssize_t i = 0; set->regions && i < PyTuple_GET_SIZE(set->regions); i++) {
        PyObject *item = PyTuple_GET_ITEM(set->regions, i);
        if (!Py_IS_TYPE(item, &RegionType)) {
            PyErr_Format(PyExc_TypeError, "%s= takes a tuple of regions; there is %R in it.", word, item);
            return false;
        }
        set->bits |= bit_of(((Region *)item)->number);
    }
    return set->regions != NULL;
}

/* `choose` as a tuple: of one callable, or as many as were given. */
static bool fill_choices(PyObject **into, PyObject *value)
{
    bool one = value != NULL && value != Py_None && !PyTuple_Check(value);
    *into = one ? PyTuple_Pack(1, value) : none_to_null(value);
    return *into != NULL || !PyErr_Occurred();
}

static PyObject *region_wrap(Region *self, PyObject *args, PyObject *names)
{
    static char *words[] = {"function", "outer", "inside", "alone", "choose", "always", "never",
                            "otherwise", "otherwise_outer", "after", NULL};
    PyObject *function, *outer = NULL, *inside = NULL, *alone = NULL, *choose = NULL, *always = NULL;
    PyObject *never = NULL, *otherwise = NULL, *otherwise_outer = NULL, *after = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, names, "O|$OOOOOOOOO", words, &function, &outer, &inside, &alone,
                                     &choose, &always, &never, &otherwise, &otherwise_outer, &after) ||
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
    profiled->recorder = self->recorder; /* kept by the region */
    profiled->function = Py_NewRef(function);
    profiled->outer = (Region *)none_to_null(outer);
    profiled->otherwise = (Region *)none_to_null(otherwise);
    profiled->otherwise_outer = (Region *)none_to_null(otherwise_outer);
    profiled->after = none_to_null(after);
    if (!fill_set(&profiled->inside, inside, "inside") || !fill_set(&profiled->alone, alone, "alone") ||
        !fill_set(&profiled->always, always, "always") || !fill_set(&profiled->never, never, "never") ||
        !fill_choices(&profiled->choose, choose)) {
        Py_DECREF(profiled);
        return NULL;
    }
    profiled->alone_bits = profiled->alone.bits;
    return (PyObject *)profiled;
}

static int profiled_traverse(Profiled *self, visitproc visit, void *arg)
{
    Py_VISIT(self->region);
    Py_VISIT(self->function);
    Py_VISIT(self->outer);
    Py_VISIT(self->inside.regions);
    Py_VISIT(self->alone.regions);
    Py_VISIT(self->always.regions);
    Py_VISIT(self->never.regions);
    Py_VISIT(self->choose);
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
    return 0;
}

static void profiled_dealloc(Profiled *self)
{
    PyObject_GC_UnTrack(self);
    if (self->weak) {
        PyObject_ClearWeakRefs((PyObject *)self);
    }
    profiled_clear(self);
    Py_XDECREF(self->region);
    Py_XDECREF(self->function);
    Py_XDECREF(self->outer);
    Py_XDECREF(self->inside.regions);
    Py_XDECREF(self->alone.regions);
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

/* Pickled like a function: by the name it is found under. */
static PyObject *profiled_reduce(PyObject *self, PyObject *unused)
{
    (void)unused;
    return PyObject_GetAttrString(self, "__qualname__");
}

/* Attributes of the function (defaults, annotations, code) show through. */
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

/* -- the sampler ---------------------------------------------------------------------------------- */

static uint64_t read_rss(int statm)
{
    char text[128];
    ssize_t length = statm < 0 ? -1 : pread(statm, text, sizeof text - 1, 0);
    if (length <= 0) {
        return 0;
    }
    text[length] = 0;
    char *second = strchr(text, ' ');
    return second ? strtoull(second, NULL, 10) * (uint64_t)sysconf(_SC_PAGESIZE) : 0;
}

/* Share growth between the innermost open regions of all threads; as twin.credit_memory. */
static void credit_memory(Recorder *rec, int64_t growth, uint64_t level)
{
    uint32_t count = __atomic_load_n(&rec->arena_count, __ATOMIC_ACQUIRE), busy = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (uint32_t i = 0; i < count; i++) {
            Arena *a = __atomic_load_n(&rec->arenas[i], __ATOMIC_ACQUIRE);
            uint32_t depth = a ? __atomic_load_n(&a->depth, __ATOMIC_RELAXED) : 0;
            if (depth == 0 || __atomic_load_n(&a->file->state, __ATOMIC_ACQUIRE) != HL_ARENA_LIVE) {
                continue;
            }
            if (pass == 0) {
                busy++;
                continue;
            }
            for (uint32_t d = 1; d <= depth; d++) {
                Node *node = __atomic_load_n(&a->open[d].node, __ATOMIC_RELAXED);
                if (node == NULL) {
                    continue;
                }
                if (d == depth && busy) {
                    node->file->rss_growth_bytes += growth / (int64_t)busy;
                }
                if (level > node->file->rss_peak_bytes) {
                    node->file->rss_peak_bytes = level;
                }
                node->file->rss_samples++;
            }
        }
    }
}

static void sample(Sampler *s, uint64_t now)
{
    s->header->alive_ns = now;
    uint64_t rss = s->memory ? read_rss(s->statm) : 0;
    if (rss == 0) {
        return;
    }
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
#ifdef __APPLE__
    uint64_t peak = (uint64_t)usage.ru_maxrss;
#else
    uint64_t peak = (uint64_t)usage.ru_maxrss * 1024;
#endif
    s->header->rss_bytes = rss;
    s->header->rss_peak_bytes = peak;
    int64_t growth = s->last_rss ? (int64_t)(rss - s->last_rss) : 0;
    uint64_t highest = s->last_peak && peak > s->last_peak ? peak : rss;
    s->last_rss = rss;
    s->last_peak = peak;
    credit_memory(s->recorder, growth, highest);
}

static void *run_sampler(void *argument)
{
    Sampler *s = argument;
#ifdef __linux__
    pthread_setname_np(pthread_self(), "hotloop-sampler");
#endif
    pthread_mutex_lock(&s->mutex);
    while (!s->stop) {
        uint64_t until = read_clock(CLOCK_MONOTONIC) + SAMPLE_INTERVAL_NS;
        struct timespec limit = {(time_t)(until / 1000000000u), (long)(until % 1000000000u)};
        pthread_cond_timedwait(&s->wake, &s->mutex, &limit);
        if (!s->stop) {
            sample(s, read_clock(CLOCK_MONOTONIC));
        }
    }
    pthread_mutex_unlock(&s->mutex);
    return NULL;
}

static Sampler *new_sampler(Recorder *rec)
{
    Sampler *s = PyMem_RawCalloc(1, sizeof(Sampler));
    if (s == NULL) {
        return NULL;
    }
    s->recorder = rec;
    s->header = rec->header;
    s->memory = rec->sample_memory;
    s->statm = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    s->stop = rec->clock != NULL; /* with an injected clock, tests call sample() themselves */
    pthread_mutex_init(&s->mutex, NULL);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
#ifndef __APPLE__
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
#endif
    pthread_cond_init(&s->wake, &attributes);
    pthread_condattr_destroy(&attributes);
    if (!s->stop && pthread_create(&s->thread, NULL, run_sampler, s) != 0) {
        s->stop = true;
    }
    return s;
}

static void stop_sampler(Sampler *s)
{
    pthread_mutex_lock(&s->mutex);
    bool running = !s->stop;
    s->stop = true;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->mutex);
    if (running) {
        pthread_join(s->thread, NULL);
    }
    if (s->statm >= 0) {
        close(s->statm);
    }
    pthread_cond_destroy(&s->wake);
    pthread_mutex_destroy(&s->mutex);
    PyMem_RawFree(s);
}

/* -- Recorder: starting and stopping -------------------------------------------------------------- */

static void forget_nodes(Recorder *rec)
{
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(rec->regions); i++) {
        Region *region = (Region *)PyList_GET_ITEM(rec->regions, i);
        region->last = (Last){NULL, NULL};
    }
    for (uint32_t i = 0; i < rec->arena_count; i++) {
        Arena *a = rec->arenas[i];
        rec->arenas[i] = NULL;
        if (a != NULL) {
            free_arena(a);
        }
    }
    rec->arena_count = 0;
    rec->folded = NULL;
    rec->node_count = 0;
}

/* Within a callout, or from start(): a new part, all names published in it. */
static bool open_part(Recorder *rec)
{
    forget_nodes(rec);
    if (rec->part != NULL) {
        call_and_forget(PyObject_CallMethod(rec->part, "forget", NULL));
        Py_CLEAR(rec->part);
    }
    Py_XSETREF(rec->blocks, PyList_New(0));
    PyObject *part = rec->blocks ? PyObject_CallNoArgs(rec->open_part) : NULL;
    PyObject *header = part ? PyObject_GetAttrString(part, "header") : NULL;
    Py_buffer view;
    if (header == NULL || PyObject_GetBuffer(header, &view, PyBUF_WRITABLE) < 0) {
        Py_XDECREF(header);
        Py_XDECREF(part);
        return false;
    }
    rec->header = view.buf;
    PyBuffer_Release(&view);
    int failed = PyList_Append(rec->blocks, header);
    Py_DECREF(header);
    rec->part = part;
    rec->published = 0;
    publish_regions(rec);
    rec->sampler = new_sampler(rec);
    return !failed;
}

static PyObject *recorder_start(Recorder *self, PyObject *args, PyObject *names)
{
    static char *words[] = {"open_part", "sample_memory", "lazily", NULL};
    PyObject *opener;
    int memory = 1, lazily = 0;
    if (!PyArg_ParseTupleAndKeywords(args, names, "O|pp", words, &opener, &memory, &lazily)) {
        return NULL;
    }
    if (self->epoch) {
        PyErr_SetString(PyExc_RuntimeError, "This recorder is recording already.");
        return NULL;
    }
    Py_XSETREF(self->open_part, Py_NewRef(opener));
    self->sample_memory = memory;
    self->unopened = lazily;
    if (!lazily && !open_part(self)) {
        return NULL;
    }
    self->epoch = ++last_epoch;
    if (!lazily) {
        attach(self);
    }
    Py_RETURN_NONE;
}

static PyObject *recorder_resume(Recorder *self, PyObject *unused);

static PyObject *recorder_stop(Recorder *self, PyObject *unused)
{
    Py_XDECREF(recorder_resume(self, unused));
    if (self->epoch == 0) {
        Py_RETURN_NONE;
    }
    uint64_t now = now_ns(self);
    Local *local = &locals[self->slot];
    if (local->calling_out) {
        PyErr_SetString(PyExc_RuntimeError, "stop() came from inside hotloop itself (a signal handler?): call it again.");
        return NULL;
    }
    Arena *mine = local->epoch == self->epoch ? local->arena : NULL;
    pthread_mutex_lock(&registry_lock);
    self->epoch = 0;
    pthread_mutex_unlock(&registry_lock);
    while (self->calling_out) { /* another thread is in the middle of a slow path */
        Py_BEGIN_ALLOW_THREADS
        usleep(100);
        Py_END_ALLOW_THREADS
    }
    Sampler *sampler = self->sampler;
    self->sampler = NULL;
    if (sampler != NULL) {
        Py_BEGIN_ALLOW_THREADS
        stop_sampler(sampler);
        Py_END_ALLOW_THREADS
    }
    PyObject *part = self->part;
    self->part = NULL;
    if (self->unopened) { /* this process recorded nothing of its own */
        self->unopened = false;
        forget_nodes(self);
        if (part != NULL) {
            call_and_forget(PyObject_CallMethod(part, "forget", NULL));
            Py_DECREF(part);
        }
        Py_RETURN_NONE;
    }
    if (mine != NULL) {
        begin_update(mine);
        settle(mine, mine->open[mine->depth].node, now);
        end_update(mine);
        take_window(self, mine, now);
    }
    forget_nodes(self);
    PyObject *done = PyObject_CallMethod(part, "close", "K", (unsigned long long)now);
    if (done == NULL) {
        Py_DECREF(part);
        return NULL;
    }
    Py_DECREF(done);
    return part;
}

static PyObject *recorder_pause(Recorder *self, PyObject *unused)
{
    (void)unused;
    if (self->epoch) {
        self->paused_epoch = self->epoch;
        self->epoch = 0;
    }
    Py_RETURN_NONE;
}

static PyObject *recorder_resume(Recorder *self, PyObject *unused)
{
    (void)unused;
    if (self->paused_epoch) {
        self->epoch = self->paused_epoch;
        self->paused_epoch = 0;
    }
    Py_RETURN_NONE;
}

static PyObject *recorder_sample(Recorder *self, PyObject *unused)
{
    (void)unused;
    if (self->sampler != NULL) {
        uint64_t now = now_ns(self);
        pthread_mutex_lock(&self->sampler->mutex);
        sample(self->sampler, now);
        pthread_mutex_unlock(&self->sampler->mutex);
    }
    Py_RETURN_NONE;
}

static PyObject *recorder_open_depth(Recorder *self, PyObject *argument)
{
    uint64_t thread = PyLong_AsUnsignedLongLong(argument);
    if (PyErr_Occurred()) {
        return NULL;
    }
    for (uint32_t i = 0; self->epoch && i < self->arena_count; i++) {
        Arena *a = self->arenas[i];
        if (a && a->file->state == HL_ARENA_LIVE && a->file->native_id == thread) {
            return PyLong_FromUnsignedLong(a->depth);
        }
    }
    return PyLong_FromLong(0);
}

static PyObject *recorder_now(Recorder *self, PyObject *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLongLong(now_ns(self));
}

/* -- Recorder: progress and device ----------------------------------------------------------------- */

typedef struct {
    long long env_steps, updates, episodes;
    double length, result, loss;
    bool has_length, has_return, has_loss;
} Work;

static bool read_work(Work *work, PyObject *word, PyObject *value)
{
    struct { PyObject *word; long long *count; } counts[] = {
        {word_env_steps, &work->env_steps}, {word_updates, &work->updates}, {word_episodes, &work->episodes}};
    struct { PyObject *word; double *value; bool *given; } values[] = {
        {word_episode_length, &work->length, &work->has_length},
        {word_episode_return, &work->result, &work->has_return},
        {word_loss, &work->loss, &work->has_loss}};
    for (int i = 0; i < 3; i++) {
        if (word == counts[i].word || PyUnicode_Compare(word, counts[i].word) == 0) {
            PyObject *whole = PyNumber_Index(value);
            *counts[i].count = whole ? PyLong_AsLongLong(whole) : -1;
            Py_XDECREF(whole);
            if (!PyErr_Occurred() && *counts[i].count < 0) {
                PyErr_Format(PyExc_ValueError, "progress(%U=%R) must not be negative: counts only rise.", word, value);
            }
            return !PyErr_Occurred();
        }
        if (word == values[i].word || PyUnicode_Compare(word, values[i].word) == 0) {
            *values[i].given = value != Py_None;
            return value == Py_None || read_number(value, values[i].value);
        }
    }
    PyErr_Format(PyExc_TypeError,
                 "progress() has no argument %R; it takes env_steps, updates, episodes, episode_length, "
                 "episode_return and loss.", word);
    return false;
}

/* Count work; false when what is to be done every so many steps has raised. */
static bool add_work(Recorder *rec, const Work *work)
{
    if (rec->epoch == 0) {
        return true;
    }
    Local *local = &locals[rec->slot];
    if (local->epoch != rec->epoch && !attach(rec)) {
        return true;
    }
    Arena *a = local->arena;
    HL_PROGRESS_t *p = &a->file->progress;
    uint64_t ended = work->episodes ? (uint64_t)work->episodes : 1;
    uint64_t updated = work->updates ? (uint64_t)work->updates : 1;
    begin_update(a);
    p->env_steps += (uint64_t)work->env_steps;
    p->updates += (uint64_t)work->updates;
    p->episodes += (uint64_t)work->episodes;
    if (work->has_length) {
        p->length_sum += work->length * (double)ended;
        p->length_count += ended;
    }
    if (work->has_return) {
        p->return_sum += work->result * (double)ended;
        p->return_count += ended;
    }
    if (work->has_loss) {
        p->loss_sum += work->loss * (double)updated;
        p->loss_count += updated;
    }
    end_update(a);
    uint64_t now = now_ns(rec);
    if (now >= a->due) {
        begin_update(a);
        settle(a, a->open[a->depth].node, now);
        end_update(a);
        window_due(rec, a, now);
    }
    if (rec->steps_due > 0 && work->env_steps && rec->on_steps != NULL) {
        rec->steps_due -= work->env_steps;
        if (rec->steps_due <= 0) {
            rec->steps_due = 0; /* the callback sets it again */
            PyObject *done = PyObject_CallNoArgs(rec->on_steps);
            Py_XDECREF(done);
            return done != NULL;
        }
    }
    return true;
}

static PyObject *recorder_progress(Recorder *self, PyObject *const *args, Py_ssize_t nargs, PyObject *names)
{
    Work work = {0};
    if (nargs) {
        PyErr_SetString(PyExc_TypeError, "progress() takes its arguments by name, as in progress(env_steps=8).");
        return NULL;
    }
    for (Py_ssize_t i = 0; names && i < PyTuple_GET_SIZE(names); i++) {
        if (!read_work(&work, PyTuple_GET_ITEM(names, i), args[i])) {
            return NULL;
        }
    }
    if (!add_work(self, &work)) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* -- counting steps from what calls return; as steps.py ------------------------------------------------ */

#define MAX_ENDS 4

typedef struct {
    Py_ssize_t width;
    bool resets_cost_a_step;
    bool told; /* somebody has told a return: rewards need not be added up */
    double *returns;
    int64_t *lengths;
    bool *waiting; /* rows whose next step is only a reset */
    PyObject *capsule; /* borrowed: what keeps this memory */
} Rows;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    Recorder *recorder;
    Py_ssize_t places[1 + MAX_ENDS]; /* in a result: of the reward, then of what says that an episode ended */
    Py_ssize_t place_count;
    PyObject *odd;
    PyObject *told;
    PyObject *resets_cost_a_step;
    Region *unless;
    PyObject *watch;
    PyObject *noticed;
    PyObject *report;
    PyObject *rows;       /* id of an env -> capsule with its Rows */
    PyObject *last_env;   /* compared, never looked into */
    Rows *last_rows;      /* its rows, kept by the capsule */
    bool counting;
} StepCounter;

/* One item of a result: a number, or a flat buffer of numbers. */
typedef struct {
    Py_ssize_t width; /* -1: a number */
    double number;
    const char *data;
    Py_ssize_t stride;
    char format;
    bool has_view;
    Py_buffer view;
} Column;

static inline double number_at(const char *at, char format)
{
    switch (format) {
#define READ(code, type) case code: { type value; memcpy(&value, at, sizeof value); return (double)value; }
    READ('?', unsigned char) READ('b', signed char) READ('B', unsigned char) READ('h', short)
    READ('H', unsigned short) READ('i', int) READ('I', unsigned) READ('l', long) READ('L', unsigned long)
    READ('q', long long) READ('Q', unsigned long long) READ('f', float) READ('d', double)
#undef READ
    }
    return 0;
}

static void close_column(Column *column)
{
    if (column->has_view) {
        PyBuffer_Release(&column->view);
        column->has_view = false;
    }
}

/* False, without an error, when the item is nothing we can read. */
static bool open_column(Column *column, PyObject *item)
{
    column->has_view = false;
    column->width = -1;
    if (item == Py_False || item == Py_True) {
        column->number = item == Py_True;
        return true;
    }
    if (PyFloat_Check(item)) {
        column->number = PyFloat_AS_DOUBLE(item);
        return true;
    }
    if (PyLong_Check(item)) {
        column->number = PyLong_AsDouble(item);
        bool fits = !(column->number == -1.0 && PyErr_Occurred());
        PyErr_Clear();
        return fits;
    }
    if (!PyObject_CheckBuffer(item)) {
        return false;
    }
    if (PyObject_GetBuffer(item, &column->view, PyBUF_RECORDS_RO) < 0) {
        PyErr_Clear();
        return false;
    }
    column->has_view = true;
    const Py_buffer *view = &column->view;
    const char *format = view->format ? view->format : "B";
    if (view->ndim > 1 || format[1] != 0 || strchr("?bBhHiIlLqQfd", format[0]) == NULL) {
        close_column(column);
        return false;
    }
    column->format = format[0];
    if (view->ndim == 0) {
        column->number = number_at(view->buf, column->format);
        close_column(column);
        return true;
    }
    column->width = view->shape[0];
    column->stride = view->strides[0];
    column->data = view->buf;
    return true;
}

static inline double column_value(const Column *column, Py_ssize_t row)
{
    return column->width < 0 ? column->number : number_at(column->data + row * column->stride, column->format);
}

static void free_rows(PyObject *capsule)
{
    PyMem_Free(PyCapsule_GetPointer(capsule, NULL));
}

static Rows *new_rows(StepCounter *self, PyObject *env, PyObject *key, Py_ssize_t width)
{
    int costs = 0;
    if (self->resets_cost_a_step != NULL) {
        PyObject *answer = PyObject_CallOneArg(self->resets_cost_a_step, env);
        costs = answer ? PyObject_IsTrue(answer) : -1;
        Py_XDECREF(answer);
        if (costs < 0) {
            swallow_error((PyObject *)self);
            costs = 0;
        }
    }
    size_t count = (size_t)(width ? width : 1);
    Rows *rows = PyMem_Calloc(1, sizeof(Rows) + count * (sizeof(double) + sizeof(int64_t) + sizeof(bool)));
    PyObject *capsule = rows ? PyCapsule_New(rows, NULL, free_rows) : PyErr_NoMemory();
    if (capsule == NULL) {
        PyMem_Free(rows);
        return NULL;
    }
    rows->capsule = capsule;
    rows->width = width;
    rows->resets_cost_a_step = costs;
    rows->returns = (double *)(rows + 1);
    rows->lengths = (int64_t *)(rows->returns + count);
    rows->waiting = (bool *)(rows->lengths + count);
    self->last_env = NULL; /* its rows may be the ones that are dropped now */
    int failed = PyDict_SetItem(self->rows, key, capsule);
    Py_DECREF(capsule);
    return failed ? NULL : rows;
}

static Rows *rows_of(StepCounter *self, PyObject *env, Py_ssize_t width)
{
    if (LIKELY(self->last_env == env && self->last_rows->width == width)) {
        return self->last_rows;
    }
    PyObject *key = PyLong_FromVoidPtr(env);
    PyObject *found = key ? PyDict_GetItemWithError(self->rows, key) : NULL;
    Rows *rows = found ? PyCapsule_GetPointer(found, NULL) : NULL;
    if (key != NULL && !PyErr_Occurred() && (rows == NULL || rows->width != width)) {
        rows = new_rows(self, env, key, width);
    }
    Py_XDECREF(key);
    if (rows != NULL) {
        self->last_env = env;
        self->last_rows = rows;
    }
    return rows;
}

/* Somebody may know better what the episodes that ended came to; with an error, our own sums stay. */
static bool ask_told(StepCounter *self, PyObject *env, PyObject *result, PyObject *finished, double *sums)
{
    bool known = false;
    PyObject *told = PyObject_CallFunctionObjArgs(self->told, env, result, finished, NULL);
    PyObject *pair = told && told != Py_None ? PySequence_Tuple(told) : NULL;
    if (pair != NULL && PyTuple_GET_SIZE(pair) < 2) {
        PyErr_SetString(PyExc_TypeError, "told() gives the sums of returns and lengths, or None.");
    } else if (pair != NULL) {
        double first, second;
        if (read_number(PyTuple_GET_ITEM(pair, 0), &first) && read_number(PyTuple_GET_ITEM(pair, 1), &second)) {
            sums[0] = first;
            sums[1] = second;
            known = true;
        }
    }
    Py_XDECREF(pair);
    Py_XDECREF(told);
    if (PyErr_Occurred()) {
        swallow_error(self->told);
    }
    return known;
}

static bool report_work(StepCounter *self, const Work *work)
{
    if (self->report == NULL) {
        return add_work(self->recorder, work);
    }
    PyObject *words = Py_BuildValue("{sL}", "env_steps", work->env_steps);
    if (words != NULL && work->episodes) {
        PyObject *more = work->has_return
                             ? Py_BuildValue("{sLsdsd}", "episodes", work->episodes, "episode_length", work->length,
                                             "episode_return", work->result)
                             : Py_BuildValue("{sLsd}", "episodes", work->episodes, "episode_length", work->length);
        if (more == NULL || PyDict_Update(words, more) < 0) {
            Py_CLEAR(words);
        }
        Py_XDECREF(more);
    }
    PyObject *nothing = PyTuple_New(0);
    PyObject *done = words && nothing ? PyObject_Call(self->report, nothing, words) : NULL;
    Py_XDECREF(nothing);
    Py_XDECREF(words);
    Py_XDECREF(done);
    return done != NULL;
}

/* One step of every row; columns[0] is what was gained. False with an error set. */
static bool add_step(StepCounter *self, PyObject *env, PyObject *result, Column *columns, Py_ssize_t count)
{
    Py_ssize_t width = columns[0].width < 0 ? 1 : columns[0].width;
    Rows *rows = rows_of(self, env, width);
    if (rows == NULL) {
        return false;
    }
    Work work = {0};
    double sums[2] = {0, 0};
    PyObject *finished = NULL, *kept = Py_NewRef(rows->capsule); /* others may drop the rows meanwhile */
    bool returns_known = !rows->told;
    for (Py_ssize_t row = 0; row < width; row++) {
        if (UNLIKELY(rows->waiting[row])) {
            rows->waiting[row] = false;
            continue;
        }
        work.env_steps++;
        rows->returns[row] += column_value(&columns[0], row);
        rows->lengths[row]++;
        bool ended = false;
        for (Py_ssize_t c = 1; c < count; c++) {
            ended |= column_value(&columns[c], row) != 0;
        }
        if (UNLIKELY(ended)) {
            work.episodes++;
            sums[0] += rows->returns[row];
            sums[1] += (double)rows->lengths[row];
            rows->returns[row] = 0;
            rows->lengths[row] = 0;
            rows->waiting[row] = rows->resets_cost_a_step;
            PyObject *number = self->told && result ? PyLong_FromSsize_t(row) : NULL;
            if (number != NULL && (finished || (finished = PyList_New(0)))) {
                PyList_Append(finished, number);
            }
            Py_XDECREF(number);
        }
    }
    if (PyErr_Occurred()) { /* no memory for the list */
        Py_DECREF(kept);
        Py_XDECREF(finished);
        return false;
    }
    if (finished != NULL) {
        bool told = ask_told(self, env, result, finished, sums);
        rows->told |= told;
        returns_known = told || !rows->told;
        Py_DECREF(finished);
    }
    Py_DECREF(kept);
    if (work.episodes) {
        work.has_length = true;
        work.has_return = returns_known;
        work.result = sums[0] / (double)work.episodes;
        work.length = sums[1] / (double)work.episodes;
    }
    return report_work(self, &work);
}

/* Open every column; false, all closed, when the result is not of a kind we understand. */
static bool open_columns(StepCounter *self, PyObject *result, Column *columns, bool read_rewards)
{
    Py_ssize_t opened = 0;
    bool good = PyTuple_Check(result);
    for (; good && opened < self->place_count; opened++) {
        Py_ssize_t place = self->places[opened];
        if (place >= PyTuple_GET_SIZE(result)) {
            good = false;
            break;
        }
        if (opened == 0 && !read_rewards) { /* the first of the ends stands in for what is not read */
            columns[0].has_view = false;
            continue;
        }
        if (!open_column(&columns[opened], PyTuple_GET_ITEM(result, place))) {
            good = false;
            break;
        }
        if (opened == 1 && !read_rewards) {
            columns[0].width = columns[1].width;
            columns[0].number = columns[1].number;
            columns[0].data = columns[1].data;
            columns[0].stride = columns[1].stride;
            columns[0].format = columns[1].format;
        }
        if (columns[opened].width != columns[0].width) {
            good = false;
            opened++;
            break;
        }
    }
    while (!good && opened > 0) {
        close_column(&columns[--opened]);
    }
    return good;
}

/* False with an error set. */
static bool count_step(PyObject *counter, PyObject *env, PyObject *result)
{
    StepCounter *self = (StepCounter *)counter;
    if (!self->counting || self->recorder->epoch == 0) {
        return true;
    }
    if (UNLIKELY(self->watch && PyList_GET_SIZE(self->watch) > 0 && self->noticed)) {
        PyObject *done = PyObject_CallNoArgs(self->noticed);
        if (done == NULL) {
            return false;
        }
        Py_DECREF(done);
    }
    if (self->unless != NULL && is_open(self->recorder, self->unless)) {
        return true;
    }
    Column columns[1 + MAX_ENDS];
    bool read_rewards = !(self->last_env == env && self->last_rows->told);
    if (!open_columns(self, result, columns, read_rewards)) {
        PyObject *done = self->odd ? PyObject_CallFunctionObjArgs(self->odd, env, result, NULL) : Py_NewRef(Py_None);
        Py_XDECREF(done);
        return done != NULL;
    }
    bool good = add_step(self, env, result, columns, self->place_count);
    for (Py_ssize_t c = 0; c < self->place_count; c++) {
        close_column(&columns[c]);
    }
    return good;
}

static PyObject *call_counter(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *names)
{
    if (PyVectorcall_NARGS(nargsf) != 2 || names != NULL) {
        PyErr_SetString(PyExc_TypeError, "A step counter is called with an env and what its step returned.");
        return NULL;
    }
    if (!count_step(self, args[0], args[1])) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* A column of our own from any sequence; its numbers are freed by the caller. */
static bool column_from(Column *column, PyObject *sequence, bool as_flags, double **numbers)
{
    PyObject *items = PySequence_Fast(sequence, "add() takes sequences of numbers.");
    if (items == NULL) {
        return false;
    }
    Py_ssize_t width = PySequence_Fast_GET_SIZE(items);
    *numbers = PyMem_Calloc((size_t)(width ? width : 1), sizeof(double));
    bool good = *numbers != NULL || PyErr_NoMemory() != NULL;
    for (Py_ssize_t i = 0; good && i < width; i++) {
        PyObject *item = PySequence_Fast_GET_ITEM(items, i);
        if (as_flags) {
            int yes = PyObject_IsTrue(item);
            good = yes >= 0;
            (*numbers)[i] = yes;
        } else {
            good = read_number(item, *numbers + i);
        }
    }
    *column = (Column){.width = width, .data = (char *)*numbers, .stride = sizeof(double), .format = 'd'};
    Py_DECREF(items);
    return good;
}

static PyObject *counter_add(StepCounter *self, PyObject *args)
{
    PyObject *env, *rewards, *ended;
    if (!PyArg_ParseTuple(args, "OOO", &env, &rewards, &ended)) {
        return NULL;
    }
    Column columns[2];
    double *gained = NULL, *over = NULL;
    bool good = column_from(&columns[0], rewards, false, &gained) && column_from(&columns[1], ended, true, &over);
    if (good && columns[0].width != columns[1].width) {
        PyErr_Format(PyExc_ValueError, "add() needs as many rewards (%zd) as ends (%zd).", columns[0].width,
                     columns[1].width);
        good = false;
    }
    good = good && (self->recorder->epoch == 0 || add_step(self, env, NULL, columns, 2));
    PyMem_Free(gained);
    PyMem_Free(over);
    if (!good) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *counter_forget(StepCounter *self, PyObject *args)
{
    PyObject *env, *result = NULL;
    if (!PyArg_ParseTuple(args, "O|O", &env, &result)) {
        return NULL;
    }
    PyObject *key = PyLong_FromVoidPtr(env);
    if (key == NULL) {
        return NULL;
    }
    self->last_env = NULL;
    int known = PyDict_Contains(self->rows, key);
    int failed = known < 0 || (known && PyDict_DelItem(self->rows, key) < 0);
    Py_DECREF(key);
    if (failed) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static bool read_places(StepCounter *self, Py_ssize_t reward, PyObject *ends)
{
    Py_ssize_t count = PyTuple_GET_SIZE(ends);
    bool good = reward >= 0 && count >= 1 && count <= MAX_ENDS;
    self->places[0] = reward;
    for (Py_ssize_t i = 0; good && i < count; i++) {
        self->places[1 + i] = PyNumber_AsSsize_t(PyTuple_GET_ITEM(ends, i), PyExc_OverflowError);
        if (PyErr_Occurred()) {
            return false;
        }
        good = self->places[1 + i] >= 0;
    }
    self->place_count = 1 + count;
    if (!good) {
        PyErr_Format(PyExc_ValueError, "ends=%R, reward=%zd: one to four places in a result, from 0 on.", ends, reward);
    }
    return good;
}

static PyObject *counter_new(PyTypeObject *type, PyObject *args, PyObject *names)
{
    static char *words[] = {"recorder", "reward", "ends", "odd", "told", "resets_cost_a_step",
                            "unless", "watch", "noticed", NULL};
    PyObject *recorder, *ends, *odd = NULL, *told = NULL, *resets = NULL, *unless = NULL, *watch = NULL;
    PyObject *noticed = NULL;
    Py_ssize_t reward;
    if (!PyArg_ParseTupleAndKeywords(args, names, "O!nO!|$OOOOOO", words, &RecorderType, &recorder, &reward,
                                     &PyTuple_Type, &ends, &odd, &told, &resets, &unless, &watch, &noticed) ||
        !is_region_or_none(unless, "unless")) {
        return NULL;
    }
    if (watch != NULL && watch != Py_None && !PyList_Check(watch)) {
        PyErr_Format(PyExc_TypeError, "watch=%R must be a list or None.", watch);
        return NULL;
    }
    StepCounter *self = (StepCounter *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->vectorcall = call_counter;
    self->recorder = (Recorder *)Py_NewRef(recorder);
    self->counting = true;
    self->odd = none_to_null(odd);
    self->told = none_to_null(told);
    self->resets_cost_a_step = none_to_null(resets);
    self->unless = (Region *)none_to_null(unless);
    self->watch = none_to_null(watch);
    self->noticed = none_to_null(noticed);
    self->rows = PyDict_New();
    if (self->rows == NULL || !read_places(self, reward, ends)) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static int counter_traverse(StepCounter *self, visitproc visit, void *arg)
{
    Py_VISIT(self->recorder);
    Py_VISIT(self->odd);
    Py_VISIT(self->told);
    Py_VISIT(self->resets_cost_a_step);
    Py_VISIT(self->unless);
    Py_VISIT(self->watch);
    Py_VISIT(self->noticed);
    Py_VISIT(self->report);
    Py_VISIT(self->rows);
    return 0;
}

static int counter_clear(StepCounter *self)
{
    Py_CLEAR(self->odd);
    Py_CLEAR(self->told);
    Py_CLEAR(self->resets_cost_a_step);
    Py_CLEAR(self->watch);
    Py_CLEAR(self->noticed);
    Py_CLEAR(self->report);
    return 0;
}

static void counter_dealloc(StepCounter *self)
{
    PyObject_GC_UnTrack(self);
    counter_clear(self);
    Py_XDECREF(self->rows);
    Py_XDECREF(self->unless);
    Py_XDECREF(self->recorder);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *get_report(StepCounter *self, void *unused)
{
    (void)unused;
    return Py_NewRef(self->report ? self->report : Py_None);
}

static int set_report(StepCounter *self, PyObject *value, void *unused)
{
    (void)unused;
    Py_XSETREF(self->report, none_to_null(value));
    return 0;
}

static PyMethodDef counter_methods[] = {
    {"add", (PyCFunction)counter_add, METH_VARARGS, "add(env, rewards, ended): one step of every row, in plain numbers."},
    {"forget", (PyCFunction)counter_forget, METH_VARARGS, "forget(env, result=None): its episodes were broken off."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef counter_members[] = {
    {"counting", T_BOOL, offsetof(StepCounter, counting), 0, "Whether steps are counted."},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef counter_getset[] = {
    {"report", (getter)get_report, (setter)set_report, "Called with what progress() takes, instead of counting.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyTypeObject StepCounterType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "hotloop.measure._core.StepCounter",
    .tp_doc = "Counts env steps and episodes from what calls return; see steps.py for the same in Python.",
    .tp_basicsize = sizeof(StepCounter),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(StepCounter, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_new = counter_new,
    .tp_traverse = (traverseproc)counter_traverse,
    .tp_clear = (inquiry)counter_clear,
    .tp_dealloc = (destructor)counter_dealloc,
    .tp_methods = counter_methods,
    .tp_members = counter_members,
    .tp_getset = counter_getset,
};

static PyObject *recorder_credit_device(Recorder *self, PyObject *args)
{
    unsigned long long handle, peak;
    PyObject *time;
    long long growth;
    if (!PyArg_ParseTuple(args, "KOLK", &handle, &time, &growth, &peak)) {
        return NULL;
    }
    uint32_t number = (uint32_t)(handle >> 32), index = (uint32_t)handle;
    Arena *a = number < self->arena_count ? self->arenas[number] : NULL;
    if (a == NULL || index >= a->node_count) {
        Py_RETURN_NONE;
    }
    HL_NODE_t *f = a->nodes[index]->file;
    if (time == Py_None) {
        f->device_growth_bytes += growth;
        if (peak > f->device_peak_bytes) {
            f->device_peak_bytes = peak;
        }
    } else {
        unsigned long long ns = PyLong_AsUnsignedLongLong(time);
        if (PyErr_Occurred()) {
            return NULL;
        }
        f->device_ns += ns;
        f->device_calls++;
    }
    Py_RETURN_NONE;
}

/* -- Recorder: the type ----------------------------------------------------------------------------- */

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
        PyErr_Format(PyExc_TypeError, "A clock is a callable that returns nanoseconds, not %R.", clock);
        return NULL;
    }
    int slot = free_slot();
    if (slot == MAX_RECORDERS) {
        PyGC_Collect(); /* dropped ones may be waiting in a reference cycle */
        slot = free_slot();
    }
    if (slot == MAX_RECORDERS) {
        PyErr_Format(PyExc_RuntimeError, "There are %d profilers already; drop one before making another.",
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
    Py_VISIT(self->gaps);
    Py_VISIT(self->profile);
    Py_VISIT(self->by_name);
    Py_VISIT(self->by_pair);
    Py_VISIT(self->regions);
    Py_VISIT(self->open_part);
    return 0;
}

/* Drop what name_gap has answered; regions remember answers that the dict keeps alive. */
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
    Py_XDECREF(self->blocks);
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

static PyObject *get_part(Recorder *self, void *u) { (void)u; return get_or_none(self->part); }
static PyObject *get_clock(Recorder *self, void *u) { (void)u; return get_or_none(self->clock); }

static PyGetSetDef recorder_getset[] = {
    {"device", (getter)get_device, (setter)set_device, "The DeviceTimer, or None.", NULL},
    {"on_window", (getter)get_on_window, (setter)set_on_window, "Called after each window with its time.", NULL},
    {"on_steps", (getter)get_on_steps, (setter)set_on_steps, "Called when steps_due has run out.", NULL},
    {"name_gap", (getter)get_name_gap, (setter)set_name_gap,
     "Called with two regions, gives the region for the time between them.", NULL},
    {"part", (getter)get_part, NULL, "The part being written, or None.", NULL},
    {"clock", (getter)get_clock, NULL, "The injected clock, or None.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef recorder_members[] = {
    {"epoch", T_ULONGLONG, offsetof(Recorder, epoch), READONLY, "0 while off; changes at start, stop and fork."},
    {"switches", T_UINT, offsetof(Recorder, switches), 0, "Flags looked at when a region ends."},
    {"locate", T_BOOL, offsetof(Recorder, locate), 0, "Whether new nodes note the line of the user's code."},
    {"steps_due", T_LONGLONG, offsetof(Recorder, steps_due), 0, "Env steps until on_steps is called."},
    {"profile", T_OBJECT, offsetof(Recorder, profile), READONLY, "profile(name, category=None) -> region."},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef recorder_methods[] = {
    {"start", (PyCFunction)(void (*)(void))recorder_start, METH_VARARGS | METH_KEYWORDS,
     "start(open_part, sample_memory=True, lazily=False): record here and in forked children."},
    {"stop", (PyCFunction)recorder_stop, METH_NOARGS, "Stop; a reader counts what was open up to now."},
    {"pause", (PyCFunction)recorder_pause, METH_NOARGS, "Record nothing until resume(); the part stays open."},
    {"resume", (PyCFunction)recorder_resume, METH_NOARGS, "Go on after pause()."},
    {"sample", (PyCFunction)recorder_sample, METH_NOARGS, "One heartbeat and one reading of memory, now."},
    {"open_depth", (PyCFunction)recorder_open_depth, METH_O, "Open regions of the thread with that native id."},
    {"now", (PyCFunction)recorder_now, METH_NOARGS, "The clock, in nanoseconds."},
    {"progress", (PyCFunction)(void (*)(void))recorder_progress, METH_FASTCALL | METH_KEYWORDS,
     "progress($self, *, env_steps=0, updates=0, episodes=0, episode_length=None, episode_return=None, loss=None)\n"
     "--\n\nCount work done since the last call; the values are means over `episodes` (1 if 0)."},
    {"credit_device", (PyCFunction)recorder_credit_device, METH_VARARGS, "Add what a device did during a call."},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject RecorderType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "hotloop.measure._core.Recorder",
    .tp_doc = "Recorder(clock=None)\n--\n\nRegions, threads and the part of one profiler.",
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
