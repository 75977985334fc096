/* The tree of one thread: its nodes in the part, counting calls, windows. */
#ifndef HOTLOOP_TREE_H
#define HOTLOOP_TREE_H

#include "state.h"

#include <stdlib.h>
#include <string.h>

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

#define SLAB 32 /* nodes allocated together */

static Node *new_node(Arena *a)
{
    if (a->node_count % SLAB == 0) {
        void *memory;
        if (posix_memalign(&memory, sizeof(Node), SLAB * sizeof(Node)) != 0) {
            return NULL;
        }
        a->slab = memset(memory, 0, SLAB * sizeof(Node));
    }
    return &a->slab[a->node_count % SLAB];
}

/* Within a callout: write the name of a region to the part, if that has not been done. False with an error set. */
static bool publish_region(Recorder *rec, Region *region)
{
    if (region->published_in != rec->part_serial) {
        PyObject *done = PyObject_CallMethod(rec->part, "publish_region", "IOOO", region->number, region->name,
                                             region->category, region->site);
        if (done == NULL) {
            return false;
        }
        Py_DECREF(done);
        region->published_in = rec->part_serial;
    }
    return true;
}

/* Within a callout. The node is complete, and its name is in the part, before its count is published: nothing can
   be reached before what it refers to is in place. NULL with an error set, also one of our own. */
static Node *add_node(Recorder *rec, Arena *a, Node *parent, Region *region)
{
    uint32_t index = a->node_count;
    uint32_t place = index % HL_NODES_PER_SECTION;
    if (region != NULL && !publish_region(rec, region)) {
        return NULL;
    }
    if (!make_room(a)) {
        PyErr_NoMemory();
        return NULL;
    }
    if (place == 0) {
        HL_NODES_t *section = new_section(rec, HL_SECTION_NODES, a->number, index);
        if (section == NULL) {
            return NULL;
        }
        a->section = section;
    }
    Node *node = new_node(a);
    if (node == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    node->file = &a->section->nodes[place];
    node->buckets = a->section->buckets[place].count;
    node->windows = a->section->windows[place].at;
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

/* Within a callout: note which line of the user's code first calls a node. */
static void locate(Recorder *rec, Node *node)
{
    PyObject *site = PyObject_CallNoArgs(user_site);
    if (site != NULL && PyUnicode_Check(site) && PyUnicode_GET_LENGTH(site) > 0) {
        PyObject *holder = PyObject_CallFunction(rec->profile, "Os", site, HL_SITE_CATEGORY);
        if (holder != NULL && publish_region(rec, (Region *)holder)) {
            node->file->site = ((Region *)holder)->number + 1;
        }
        Py_XDECREF(holder);
    }
    Py_XDECREF(site);
}

/* Within a callout. */
static Node *make_child(Recorder *rec, Arena *a, Node *parent, Region *region)
{
    if (rec->node_count >= HL_MAX_NODES - HL_MAX_ARENAS) {
        raise_flag(rec, HL_FLAG_PATHS_OVERFLOW,
                   "too many distinct paths; the rest is recorded under '" HL_OTHER_PATHS "'");
        region = other_region(rec, HL_OTHER_PATHS);
        parent = a->nodes[0];
        Node *found = region ? find_node(a, parent, region) : NULL;
        if (found || region == NULL) {
            return found;
        }
    }
    Node *node = add_node(rec, a, parent, region);
    rec->node_count += node != NULL;
    if (node != NULL && rec->locate) {
        locate(rec, node);
    }
    return node;
}

/* NULL with an error set if that is the user's, without one if there is no memory. */
static __attribute__((noinline)) Node *child_of(Recorder *rec, Arena *a, Node *parent, Region *region)
{
    Node *node = find_node(a, parent, region);
    if (node == NULL) {
        Callout saved = begin_callout(rec);
        node = make_child(rec, a, parent, region);
        if (!end_callout(rec, saved) || node == NULL) {
            return NULL;
        }
    }
    region->last = (Last){parent, node};
    return node;
}

/* -- arenas ----------------------------------------------------------------------------------- */

static void free_arena(Arena *a)
{
    for (uint32_t i = 0; i < a->node_count; i += SLAB) {
        free(a->nodes[i]); /* the first node of its slab */
    }
    PyMem_RawFree(a->nodes);
    PyMem_RawFree(a->table);
    PyMem_RawFree(a);
}

static uint64_t native_thread_id(void)
{
    return (uint64_t)PyThread_get_thread_native_id();
}

/* Within a callout: the name Python has for the thread. */
static bool write_thread_name(HL_ARENA_t *file, bool folded)
{
    memset(file->thread_name, 0, sizeof file->thread_name);
    if (folded) {
        strcpy((char *)file->thread_name, "ended threads");
        return true;
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
    return data != NULL || report_error();
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

/* Prepare the arena for a thread, new or reused. */
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
    a->limit = HL_MAX_DEPTH;
    a->overflow = 0;
    a->last_outermost = NULL;
    if (a->rounds != NULL) { /* of another thread */
        a->rounds->count = 0;
    }
    if (a->calls != NULL) {
        a->calls->count = 0;
    }
    a->burst_due = 0;
    a->burst_calls = 0;
    a->burst_shift = HL_FIRST_BURST_SHIFT;
    a->least_call_ns = HL_FIRST_LONG_CALL_NS;
    set_depth(a, 0);
    __atomic_store_n(&f->state, state, __ATOMIC_RELEASE);
    __atomic_store_n(&f->seq, seq + 2, __ATOMIC_RELEASE);
}

/* Within a callout. NULL with an error set. */
static Arena *new_arena(Recorder *rec, uint64_t now, uint32_t state)
{
    uint32_t number = rec->arena_count;
    Arena *a = PyMem_RawCalloc(1, sizeof(Arena));
    if (a == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    a->number = number;
    a->file = new_section(rec, HL_SECTION_THREAD, number, 0);
    if (a->file == NULL) {
        PyMem_RawFree(a);
        return NULL;
    }
    a->scheduling = state == HL_ARENA_LIVE ? new_section(rec, HL_SECTION_SCHEDULING, number, 0) : NULL;
    if (a->scheduling == NULL && state == HL_ARENA_LIVE) {
        PyMem_RawFree(a);
        return NULL;
    }
    reset_arena(a, now, 0);
    Node *root = write_thread_name(a->file, state == HL_ARENA_FOLDED) ? add_node(rec, a, NULL, NULL) : NULL;
    if (root == NULL) {
        free_arena(a);
        return NULL;
    }
    a->open[0].node = root;
    __atomic_store_n(&a->file->state, state, __ATOMIC_RELEASE);
    __atomic_store_n(&rec->arenas[number], a, __ATOMIC_RELEASE);
    __atomic_store_n(&rec->arena_count, number + 1, __ATOMIC_RELEASE);
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

/* Credit the time since the last event to the node on top; within an update. */
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

/* Called by the thread that owns the arena, after it has settled. */
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
    /* CPU time, not wall time: on a busy machine the thread may lose its core here for milliseconds. */
    uint64_t cost = rec->clock ? 0 : read_clock(CLOCK_THREAD_CPUTIME_ID) - cpu;
    uint64_t pause = f->window_interval_ns > 1000 * cost ? f->window_interval_ns : 1000 * cost;
    a->due = now + pause; /* windows cost at most a thousandth of the time, however many nodes there are */
}

/* Take the window of a thread, then run the on_window callbacks. The arena may be gone afterwards. False, with an
   error set, when the user's code has raised one meanwhile. */
static __attribute__((noinline)) bool window_due(Recorder *rec, Arena *a, uint64_t now)
{
    take_window(rec, a, now);
    Callout saved = begin_callout(rec);
    PyObject *done = PyObject_CallMethod(rec->part, "window_taken", "K", (unsigned long long)now);
    Py_XDECREF(done);
    if (done != NULL && rec->device != NULL) {
        done = PyObject_CallMethod(rec->device, "collect", NULL);
        Py_XDECREF(done);
    }
    bool good = end_callout(rec, saved);
    if (good && rec->on_window != NULL) {
        PyObject *type, *value, *trace;
        PyErr_Fetch(&type, &value, &trace);
        done = PyObject_CallFunction(rec->on_window, "K", (unsigned long long)now);
        Py_XDECREF(done);
        good = done != NULL || report_error();
        if (good) {
            PyErr_Restore(type, value, trace);
        } else {
            set_context(type, value, trace);
        }
    }
    return good;
}

#endif
