/* What is kept: recorders, threads' arenas, nodes, regions; the clock; calling out to Python. Part of _core.c. */

#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)
#define MAX_RECORDERS 16
#define MAX_SET 7 /* regions looked for at once */
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
    Node *slab;   /* memory for the next nodes: they lie together, so few pages are touched */
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
    long long steps_due; /* env steps until on_steps is called; 0: never */
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
