/* The hot path: entering and leaving a region. */
#ifndef HOTLOOP_HOT_PATH_H
#define HOTLOOP_HOT_PATH_H

#include "threads.h"

/* Everything here returns false or NULL with an error set when a signal handler of the user's has raised it in a
   slow path (state.h). The fast paths return true, so that the compiler drops the checks from them. */

/* Turn the time since the last event into a completed call of `region` below the innermost open one. */
static bool credit_time(Recorder *rec, Arena *a, Region *region, uint64_t now)
{
    Node *top = a->open[a->depth].node;
    Node *node = region->last.parent == top ? region->last.child : child_of(rec, a, top, region);
    if (node == NULL) {
        return !PyErr_Occurred();
    }
    begin_update(a);
    count_call(node, now - a->file->last_ns);
    settle(a, node, now);
    end_update(a);
    return true;
}

/* The region for the time between two others; asks `name_gap` once per pair. Borrowed; NULL, with or without an
   error set, when there is none. */
static __attribute__((noinline)) Region *gap_between(Recorder *rec, Region *before, Region *after)
{
    Callout saved = begin_callout(rec);
    PyObject *key = PyTuple_Pack(2, before, after);
    PyObject *gap = key ? PyDict_GetItemWithError(rec->gaps, key) : NULL;
    if (key && gap == NULL && !PyErr_Occurred() && rec->name_gap != NULL) {
        gap = PyObject_CallFunctionObjArgs(rec->name_gap, (PyObject *)before, (PyObject *)after, NULL);
        if (gap != NULL) {
            PyDict_SetItem(rec->gaps, key, gap);
            Py_DECREF(gap); /* the dict owns it */
        }
    }
    Py_XDECREF(key);
    return end_callout(rec, saved) && gap && Py_IS_TYPE(gap, &RegionType) ? (Region *)gap : NULL;
}

/* Turn the time since the last outermost region into a call of a region named after its neighbours, so that a
   script without regions of its own still gets a breakdown of its main loop. */
static __attribute__((noinline)) bool credit_gap(Recorder *rec, Arena *a, Region *after, uint64_t now)
{
    Region *before = a->last_outermost;
    if (UNLIKELY(after->gap_before != before)) {
        after->gap = gap_between(rec, before, after);
        after->gap_before = after->gap ? before : NULL;
    }
    return after->gap != NULL ? credit_time(rec, a, after->gap, now) : !PyErr_Occurred();
}

static __attribute__((noinline, cold)) bool device_enter(Recorder *rec, uint32_t depth)
{
    Callout saved = begin_callout(rec);
    PyObject *done = PyObject_CallMethod(rec->device, "enter", "I", depth);
    Py_XDECREF(done);
    return end_callout(rec, saved);
}

/* A call too deep to be recorded, or with no memory for its node; its end must be ignored, too. */
static __attribute__((noinline, cold)) void overflow(Arena *a)
{
    begin_update(a);
    a->limit = a->depth; /* what it calls is ignored as well, so that ends match beginnings */
    a->file->overflow = ++a->overflow;
    a->open[a->depth].node->file->unrecorded_calls++;
    end_update(a);
}

static __attribute__((noinline, cold)) void end_overflow(Arena *a)
{
    a->file->overflow = --a->overflow;
    if (a->overflow == 0) {
        a->limit = HL_MAX_DEPTH;
    }
}

/* Reads the node rather than the region: in a training step each of them is a cache miss.
   `moment` is the time, read here if it is 0, so that regions that begin together share one reading.
   Where it returns false, the region is not open. */
static inline bool enter(Recorder *rec, Region *region, Last *last, uint64_t *moment)
{
    Local *local = &locals[rec->slot];
    if (UNLIKELY(local->epoch != rec->epoch) && !attach(rec)) {
        return !PyErr_Occurred();
    }
    Arena *a = local->arena;
    uint32_t depth = a->depth;
    if (UNLIKELY(depth >= a->limit)) {
        overflow(a);
        return true;
    }
    Node *top = a->open[depth].node, *node = last->child;
    if (UNLIKELY(last->parent != top)) {
        node = region->last.parent == top ? region->last.child : child_of(rec, a, top, region);
        if (node == NULL) {
            if (!PyErr_Occurred()) {
                overflow(a);
            }
            return !PyErr_Occurred();
        }
        *last = (Last){top, node};
    }
    if (UNLIKELY(rec->device != NULL && region->device) && !device_enter(rec, depth)) {
        return false;
    }
    __builtin_prefetch(node); /* reading the clock waits for loads, but not for prefetches */
    uint64_t now = *moment ? *moment : now_ns(rec);
    *moment = now;
    if (UNLIKELY(depth == 0 && (rec->flags & RECORD_GAPS) && a->last_outermost != NULL) &&
        !credit_gap(rec, a, region, now)) {
        return false;
    }
    uint32_t number = LIKELY(node->region == region) ? node->number : region->number; /* differs with too many paths */
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
    return true;
}

static inline bool enter_region(Region *region)
{
    Recorder *rec = region->recorder;
    uint64_t moment = 0;
    return LIKELY(rec->epoch == 0) || enter(rec, region, &region->last, &moment);
}

/* An error of the user's stays set and does not keep it from closing the region. */
static __attribute__((noinline)) void close_out_of_order(Recorder *rec, Arena *a, Region *region, uint64_t now)
{
    HL_FRAME_t *stack = a->file->stack;
    uint32_t at = a->depth;
    while (at > 0 && stack[at - 1].region != region->number) {
        at--;
    }
    if (at == 0) {
        return; /* begun before the recording or before a fork */
    }
    at--;
    begin_update(a);
    settle(a, a->open[a->depth].node, now);
    Node *node = a->nodes[stack[at].node];
    count_call(node, now - stack[at].start_ns);
    node->file->flags |= HL_NODE_OUT_OF_ORDER;
    end_update(a);
    uint32_t depth = a->depth - 1;
    for (uint32_t d = at; d < depth; d++) { /* those above move down, below another parent */
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
        HL_EVENTS_t *section = new_section(rec, HL_SECTION_EVENTS, a->number, 0);
        if (!end_callout(rec, saved) || section == NULL) {
            return;
        }
        a->events = section->events;
    }
    HL_EVENT_t *event = &a->events[a->file->event_count % HL_EVENTS_PER_SECTION];
    event->node = node->index;
    event->start_ns = start;
    event->duration_ns = now - start;
    a->file->event_count++;
}

/* Keep a call for the rounds in which threads and processes work together. */
static __attribute__((noinline)) void record_round(Recorder *rec, Arena *a, Node *node, uint64_t start, uint64_t now)
{
    if (a->rounds == NULL) {
        Callout saved = begin_callout(rec);
        HL_ROUNDS_t *section = new_section(rec, HL_SECTION_ROUNDS, a->number, 0);
        if (!end_callout(rec, saved) || section == NULL) {
            return;
        }
        a->rounds = section;
    }
    uint64_t burst = now >> HL_ROUND_BURST_SHIFT;
    if (burst != a->round_burst) {
        a->round_burst = burst;
        a->round_events = 0;
    }
    if (++a->round_events > HL_ROUND_EVENTS_PER_BURST) {
        a->least_round_ns = a->least_round_ns ? 2 * a->least_round_ns : 1000;
        a->rounds->least_ns = a->least_round_ns;
        a->round_events = 0;
    }
    HL_EVENT_t *event = &a->rounds->events[a->rounds->count % HL_ROUND_EVENTS];
    event->node = node->index;
    event->start_ns = start;
    event->duration_ns = now - start;
    __atomic_store_n(&a->rounds->count, a->rounds->count + 1, __ATOMIC_RELEASE);
}

static inline bool shows_round(const Arena *a, uint64_t duration_ns, uint64_t now)
{
    return (now >> HL_ROUND_BURST_SHIFT & HL_ROUND_BURST_MASK) == 0 ? duration_ns >= a->least_round_ns
                                                                   : duration_ns >> HL_ROUND_LONG_SHIFT != 0;
}

/* Drop every second burst or the shortest of the long calls, whichever are more, until a quarter is free. */
static __attribute__((noinline, cold)) void thin_calls(Arena *a)
{
    HL_CALLS_t *calls = a->calls;
    uint64_t count = calls->count;
    __atomic_store_n(&calls->seq, calls->seq + 1, __ATOMIC_RELEASE);
    while (count > HL_MAX_CALLS * 3 / 4) {
        uint64_t outside = 0, kept = 0;
        for (uint64_t i = 0; i < count; i++) {
            outside += calls->events[i].burst == HL_NO_BURST;
        }
        uint32_t bit = a->burst_shift - HL_FIRST_BURST_SHIFT;
        bool bursts = 2 * outside <= count;
        if (bit >= 31 || a->least_call_ns >> 62) { /* a clock that went astray */
            count = 0;
            break;
        }
        if (bursts) {
            a->burst_shift++;
        } else {
            a->least_call_ns *= 2;
        }
        for (uint64_t i = 0; i < count; i++) {
            HL_EVENT_t event = calls->events[i];
            if (bursts && event.burst != HL_NO_BURST && (event.burst >> bit & 1)) {
                event.burst = HL_NO_BURST;
            }
            if (event.burst != HL_NO_BURST || event.duration_ns >= a->least_call_ns) {
                calls->events[kept++] = event;
            }
        }
        count = kept;
    }
    calls->count = count;
    calls->burst_shift = a->burst_shift;
    calls->least_ns = a->least_call_ns;
    __atomic_store_n(&calls->seq, calls->seq + 1, __ATOMIC_RELEASE);
}

/* Keep a call for the sample over the whole run. */
static __attribute__((noinline)) void record_call(Recorder *rec, Arena *a, Node *node, uint64_t start, uint64_t now)
{
    if (a->calls == NULL) {
        Callout saved = begin_callout(rec);
        HL_CALLS_t *section = new_section(rec, HL_SECTION_CALLS, a->number, 0);
        if (!end_callout(rec, saved) || section == NULL) {
            return;
        }
        section->burst_shift = a->burst_shift;
        section->least_ns = a->least_call_ns;
        a->calls = section;
    }
    if (a->calls->count == HL_MAX_CALLS) {
        thin_calls(a);
    }
    uint32_t burst = HL_NO_BURST;
    if (now >= a->burst_due) {
        uint32_t bit = a->burst_shift - HL_FIRST_BURST_SHIFT;
        uint32_t stretch = (uint32_t)(now >> HL_FIRST_BURST_SHIFT) & 0x7fffffff;
        if (a->burst_calls == 0 || stretch >> bit != a->burst >> bit) {
            a->burst = stretch;
            a->burst_calls = 0;
        }
        burst = a->burst;
        if (++a->burst_calls == HL_CALLS_PER_BURST) {
            a->burst_calls = 0;
            a->burst_due = ((now >> a->burst_shift) + 1) << a->burst_shift;
        }
    }
    HL_EVENT_t *event = &a->calls->events[a->calls->count];
    event->node = node->index;
    event->burst = burst;
    event->start_ns = start;
    event->duration_ns = now - start;
    __atomic_store_n(&a->calls->count, a->calls->count + 1, __ATOMIC_RELEASE);
}

static __attribute__((noinline, cold)) void device_exit(Recorder *rec, Arena *a, Node *node)
{
    Callout saved = begin_callout(rec);
    unsigned long long handle = (unsigned long long)a->number << 32 | node->index;
    PyObject *done = PyObject_CallMethod(rec->device, "exit", "KI", handle, a->depth);
    Py_XDECREF(done);
    end_callout(rec, saved);
}

/* Where it returns false, the region is closed all the same. An error may be set before. */
static inline bool leave(Recorder *rec, Region *region, uint64_t *moment)
{
    uint64_t now = *moment ? *moment : now_ns(rec);
    *moment = now;
    Local *local = &locals[rec->slot];
    if (UNLIKELY(local->epoch != rec->epoch)) {
        return true; /* begun before the recording or before a fork */
    }
    Arena *a = local->arena;
    if (UNLIKELY(a->overflow)) {
        end_overflow(a);
        return true;
    }
    bool quick = true; /* no slow path that could have raised an error */
    uint32_t depth = a->depth;
    Node *node = a->open[depth].node;
    HL_FRAME_t *frame = &a->file->stack[depth - 1];
    if (UNLIKELY(node->region != region) && (depth == 0 || frame->region != region->number)) {
        close_out_of_order(rec, a, region, now);
        quick = false;
    } else {
        uint64_t start = frame->start_ns;
        begin_update(a);
        settle(a, node, now);
        count_call(node, now - start);
        set_depth(a, depth - 1);
        end_update(a);
        if (UNLIKELY(rec->flags)) {
            if (rec->flags & RECORD_TIMELINE) {
                record_event(rec, a, node, start, now);
                quick = false;
            }
            if ((rec->flags & RECORD_ROUNDS) && shows_round(a, now - start, now)) {
                record_round(rec, a, node, start, now);
                quick = false;
            }
            if ((rec->flags & RECORD_CALLS) && (now >= a->burst_due || now - start >= a->least_call_ns)) {
                record_call(rec, a, node, start, now);
                quick = false;
            }
            if (depth == 1) {
                a->last_outermost = region;
            }
        }
        if (UNLIKELY(rec->device != NULL && region->device)) {
            device_exit(rec, a, node);
            *moment = 0; /* that took a while */
            quick = false;
        }
    }
    if (UNLIKELY(now >= a->due)) {
        window_due(rec, a, now);
        *moment = 0;
        quick = false;
    }
    return LIKELY(quick) || !PyErr_Occurred();
}

static inline bool exit_region(Region *region)
{
    Recorder *rec = region->recorder;
    uint64_t moment = 0;
    return LIKELY(rec->epoch == 0) || leave(rec, region, &moment);
}

#endif
