/* The native thread that writes the heartbeat and samples memory, scheduling and lines. */
#ifndef HOTLOOP_SAMPLER_H
#define HOTLOOP_SAMPLER_H

#include "line_samples.h"
#include "sampler_budget.h"
#include "scheduling.h"
#include "state.h"
#include "tree.h"

#include <fcntl.h>
#include <string.h>
#include <stdlib.h>
#ifdef __linux__
#include <sys/prctl.h>
#include <sys/syscall.h>
#endif
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

struct Sampler {
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    Recorder *recorder;
    HL_HEADER_t *header; /* NULL until the part is open */
    int statm;
    struct stat statm_is, schedstat_is;
    bool stop;
    bool memory;
    uint64_t last_rss;
    uint64_t last_peak;
    PyThreadState *anchor; /* of a thread that lives as long as Python: the main one if possible */
    Lines *lines;          /* NULL: lines are not sampled */
    Budget budget;
    uint64_t heartbeat;    /* when the next one is due */
    Schedule schedule;
    ThreadCopy threads[MOST_THREADS];
};

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

/* Share growth between the innermost open regions of all threads; `credit_memory` of the twin does the same. */
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

/* Ids of the threads that run Python; 0 when they cannot be read. */
static size_t python_threads(Sampler *s, uint32_t *found)
{
    size_t count = 0;
#if FRAMES_CAN_BE_READ
    count = copy_threads(s->anchor, s->threads, 0, MOST_THREADS);
    for (size_t i = 0; i < count; i++) {
        found[i] = (uint32_t)s->threads[i].state.native_thread_id;
    }
#else
    (void)s, (void)found;
#endif
    return count;
}

static void sample_memory(Sampler *s)
{
    uint64_t rss = s->memory ? read_rss(s->statm) : 0;
    if (rss == 0) {
        return;
    }
    struct rusage usage;
#ifdef __APPLE__
    getrusage(RUSAGE_SELF, &usage);
    uint64_t peak = (uint64_t)usage.ru_maxrss;
#else
    getrusage(RUSAGE_THREAD, &usage); /* the peak is that of the process, and the kernel need not visit all threads */
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

/* The heartbeat, memory, and what else is due; with the mutex. */
static void sample(Sampler *s, uint64_t now)
{
    if (s->header == NULL) {
        return;
    }
    s->header->alive_ns = now;
    sample_memory(s);
    if (now >= (process_waits(&s->budget) ? s->schedule.due_waiting : s->schedule.due)) {
        uint32_t python[MOST_THREADS];
        size_t count = python_threads(s, python);
        take_scheduling(&s->schedule, s->recorder, python, count, now);
    }
}

static void sample_lines_now(Sampler *s, uint64_t now)
{
#if FRAMES_CAN_BE_READ
    Lines *lines = s->lines;
    uint64_t until = lines->stratum_start + lines->stratum_ns;
    if (s->recorder->paused_epoch == 0) {
        uint64_t weight = until > lines->covered_until ? until - lines->covered_until : lines->stratum_ns;
        take_samples(lines, s->recorder, s->schedule.own_tid, s->header != NULL, now, weight);
    }
    plan_sample(lines, now, affordable_pause(&s->budget, lines->interval_ns));
#else
    (void)s, (void)now;
#endif
}

#ifdef __linux__

/* Ask for a short slice (Linux 6.12 and later): the scheduler then lets this thread in soon after it wakes up, for a
   shorter time. On a busy machine it would otherwise get a core when the program leaves one, that is when it
   sleeps, and would see it sleep too often. No privilege is needed; older kernels ignore it. */
static void ask_for_short_slice(void)
{
    struct {
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime, deadline, period;
    } wish = {.size = sizeof wish, .policy = SCHED_OTHER, .nice = getpriority(PRIO_PROCESS, 0), .runtime = 100000};
    if (sched_getscheduler(0) == SCHED_OTHER) { /* the user has not chosen another one */
        syscall(SYS_sched_setattr, 0, &wish, 0);
    }
    prctl(PR_SET_TIMERSLACK, 1000ul);
}

#endif

/* Waking up costs as much as the work, so a heartbeat waits for the next sample of lines if that comes soon. */
static uint64_t wake_up_time(const Sampler *s)
{
    uint64_t lines = s->lines ? s->lines->next_ns : UINT64_MAX;
    return lines < s->heartbeat + affordable_pause(&s->budget, SAMPLE_INTERVAL_NS) ? lines : s->heartbeat;
}

static void *run_sampler(void *argument)
{
    Sampler *s = argument;
#ifdef __linux__
    pthread_setname_np(pthread_self(), "hotloop-sampler");
    ask_for_short_slice();
#endif
    pthread_mutex_lock(&s->mutex);
    s->schedule.own_tid = (uint32_t)native_thread_id();
    s->heartbeat = read_clock(CLOCK_MONOTONIC) + SAMPLE_INTERVAL_NS;
    while (!s->stop) {
        uint64_t until = wake_up_time(s);
        struct timespec limit = {(time_t)(until / 1000000000u), (long)(until % 1000000000u)};
        pthread_cond_timedwait(&s->wake, &s->mutex, &limit);
        uint64_t now = read_clock(CLOCK_MONOTONIC);
        bool lines = s->lines && now >= s->lines->next_ns;
        if (s->stop || (!lines && now < s->heartbeat)) {
            continue;
        }
        update_budget(&s->budget, now);
        if (lines) {
            sample_lines_now(s, now);
        }
        if (now >= s->heartbeat) {
            sample(s, now);
            s->heartbeat = now + affordable_pause(&s->budget, SAMPLE_INTERVAL_NS);
        }
    }
    pthread_mutex_unlock(&s->mutex);
    return NULL;
}

/* The state of the main thread, or of the calling one where the main thread is not found; with the GIL. */
static PyThreadState *lasting_thread(void)
{
    PyThreadState *state = PyThreadState_Get();
    for (PyThreadState *other = PyInterpreterState_ThreadHead(PyThreadState_GetInterpreter(state)); other != NULL;
         other = PyThreadState_Next(other)) {
        if (other->native_thread_id == (unsigned long)getpid()) {
            return other;
        }
    }
    return state;
}

static Sampler *new_sampler(Recorder *rec)
{
    Sampler *s = PyMem_RawCalloc(1, sizeof(Sampler));
    if (s == NULL) {
        return NULL;
    }
    s->recorder = rec;
    s->memory = rec->sample_memory;
    s->anchor = lasting_thread();
    s->statm = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    if (s->statm >= 0) {
        fstat(s->statm, &s->statm_is);
    }
    s->budget = new_budget(open("/proc/self/schedstat", O_RDONLY | O_CLOEXEC));
    if (s->budget.schedstat >= 0) {
        fstat(s->budget.schedstat, &s->schedstat_is);
    }
    s->stop = rec->clock != NULL; /* with an injected clock, sample() is called explicitly */
    pthread_mutex_init(&s->mutex, NULL);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
#ifndef __APPLE__
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
#endif
    pthread_cond_init(&s->wake, &attributes);
    pthread_condattr_destroy(&attributes);
    if (!s->stop && start_thread(&s->thread, run_sampler, s) != 0) {
        s->stop = true;
    }
    return s;
}

/* Let the sampler write into the part, which has just been opened. False with an error set. Within a callout. */
static bool open_sampler(Recorder *rec)
{
    Sampler *s = rec->sampler = rec->sampler ? rec->sampler : new_sampler(rec);
    if (s == NULL) {
        PyErr_NoMemory();
        return false;
    }
    HL_PROCESS_SCHEDULING_t *schedule = new_section(rec, HL_SECTION_PROCESS_SCHEDULING, 0, 0);
    HL_SAMPLES_t *samples = schedule && s->lines ? new_section(rec, HL_SECTION_SAMPLES, 0, 0) : NULL;
    if (schedule == NULL || (s->lines && samples == NULL)) {
        return false;
    }
    schedule->interval_ns = HL_FIRST_SCHEDULING_NS;
    pthread_mutex_lock(&s->mutex);
    s->schedule.file = schedule;
    if (samples != NULL) { /* what was seen before the part was opened */
        memcpy(samples, s->lines->tables.file, sizeof *samples);
        s->lines->tables.file = samples;
        PyMem_RawFree(s->lines->private_file);
        s->lines->private_file = NULL;
    }
    s->header = rec->header;
    pthread_mutex_unlock(&s->mutex);
    return true;
}

/* In a forked child: close the files; the memory is the parent's. Must not run Python. */
static void abandon_sampler(Sampler *s)
{
    if (s == NULL) {
        return;
    }
    close_if_ours(s->statm, s->statm_is.st_dev, s->statm_is.st_ino);
    close_if_ours(s->budget.schedstat, s->schedstat_is.st_dev, s->schedstat_is.st_ino);
    s->statm = s->budget.schedstat = -1;
    if (s->lines != NULL) {
        close_state_files(s->lines);
    }
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
    close_if_ours(s->statm, s->statm_is.st_dev, s->statm_is.st_ino);
    close_if_ours(s->budget.schedstat, s->schedstat_is.st_dev, s->schedstat_is.st_ino);
    if (s->lines != NULL) {
        free_lines(s->lines);
    }
    pthread_cond_destroy(&s->wake);
    pthread_mutex_destroy(&s->mutex);
    PyMem_RawFree(s);
}

#endif
