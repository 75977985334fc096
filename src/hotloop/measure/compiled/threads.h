/* Threads: attaching them, merging ended ones, forks. */
#ifndef HOTLOOP_THREADS_H
#define HOTLOOP_THREADS_H

#include "tree.h"

#include <unistd.h>

/* -- merging ended threads ------------------------------------------------------------------------ */

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
    f->unrecorded_calls += o->unrecorded_calls;
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

/* Within a callout. False with an error set; the ended thread then keeps its arena. */
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
        PyErr_NoMemory();
        return false;
    }
    twins[0] = into->nodes[0];
    for (uint32_t n = 1; n < count; n++) { /* parents precede their children */
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

/* Within a callout. NULL, with or without an error set, when there is none. */
static Arena *arena_for_thread(Recorder *rec)
{
    uint64_t now = now_ns(rec);
    for (uint32_t i = 0; rec->arena_count >= HL_FOLD_AFTER && i < rec->arena_count; i++) {
        Arena *a = rec->arenas[i];
        if (a && __atomic_load_n(&a->file->state, __ATOMIC_ACQUIRE) == HL_ARENA_ENDED) {
            a->file->state = HL_ARENA_FOLDED; /* so that no other thread takes it */
            if (!fold(rec, a, now)) {
                a->file->state = HL_ARENA_ENDED;
                if (!report_error()) {
                    return NULL;
                }
                break;
            }
            reset_arena(a, now, 0);
            bool named = write_thread_name(a->file, false);
            __atomic_store_n(&a->file->state, named ? HL_ARENA_LIVE : HL_ARENA_ENDED, __ATOMIC_RELEASE);
            return named ? a : NULL;
        }
    }
    if (rec->arena_count >= HL_MAX_ARENAS) {
        raise_flag(rec, HL_FLAG_THREADS_OVERFLOW, "too many threads at the same time; the rest is not recorded");
        return NULL;
    }
    return new_arena(rec, now, HL_ARENA_LIVE);
}

static bool open_part(Recorder *rec);

/* Find or create the arena of the calling thread; in a forked child this first opens its own part. False, with an
   error set if it is the user's, when the thread cannot record now. */
static __attribute__((noinline)) bool attach(Recorder *rec)
{
    Local *local = &locals[rec->slot];
    if (local->calling_out || rec->epoch == 0) {
        return false;
    }
    Callout saved = begin_callout(rec);
    while (rec->attaching) { /* one thread at a time: opening and merging change shared state */
        Py_BEGIN_ALLOW_THREADS
        usleep(100);
        Py_END_ALLOW_THREADS
    }
    rec->attaching = true;
    bool opened = !rec->unopened || open_part(rec);
    if (!opened && report_error()) {
        rec->epoch = 0; /* cannot be recorded; if the user's code has raised, the next region tries again */
    }
    Arena *a = opened && rec->epoch ? arena_for_thread(rec) : NULL;
    rec->attaching = false;
    if (!end_callout(rec, saved) || a == NULL) {
        return false;
    }
    local->arena = a;
    local->epoch = rec->epoch;
    pthread_setspecific(thread_key, &locals); /* so that thread_ended is called */
    return true;
}

/* Destructor of thread_key; runs on the ending thread, without the GIL. */
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

static void abandon_sampler(Sampler *s); /* sampler.h */

/* What was recorded before a fork belongs to the parent. Must not run Python. */
static void forked_child(void)
{
    pthread_mutex_init(&registry_lock, NULL);
    for (int slot = 0; slot < MAX_RECORDERS; slot++) {
        Recorder *rec = recorders[slot];
        if (rec) {
            abandon_sampler(rec->sampler); /* its thread exists in the parent only */
            rec->sampler = NULL;
            rec->attaching = false;
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

#endif
