/* What the kernel did with each thread: time on a core, time in the run queue, switches; read by the sampler. */
#ifndef HOTLOOP_SCHEDULING_H
#define HOTLOOP_SCHEDULING_H

#include "python_threads.h"
#include "state.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/syscall.h>
#endif

#define MOST_TASKS 1024
#define LONGEST_WITHOUT_ROW_NS 2000000000u

typedef struct {
    uint32_t tid; /* 0: free */
    bool python;  /* runs Python, or has run it */
    bool seen;
    uint64_t on_core_ns, run_queue_ns;
} Task;

typedef struct {
    HL_PROCESS_SCHEDULING_t *file;
    uint64_t due;
    uint64_t due_waiting; /* the same while the process waits */
    uint32_t own_tid; /* of the sampler */
    uint64_t ended_on_core_ns, ended_run_queue_ns; /* of native threads that are gone */
    uint64_t ended_own_ns;
    Task tasks[MOST_TASKS];
    uint32_t task_count; /* slots in use, free ones included */
} Schedule;

static ssize_t read_task_file(uint32_t tid, const char *name, char *text, size_t size)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/task/%u/%s", tid, name);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = file < 0 ? -1 : read(file, text, size - 1);
    if (file >= 0) {
        close(file);
    }
    text[length > 0 ? length : 0] = 0;
    return length;
}

static bool read_schedstat(uint32_t tid, uint64_t *on_core_ns, uint64_t *run_queue_ns)
{
    char text[96], *after;
    if (read_task_file(tid, "schedstat", text, sizeof text) <= 0) {
        return false;
    }
    *on_core_ns = strtoull(text, &after, 10);
    *run_queue_ns = strtoull(after, NULL, 10);
    return true;
}

static bool read_switches(uint32_t tid, uint64_t *voluntary, uint64_t *involuntary)
{
    char text[4096];
    if (read_task_file(tid, "status", text, sizeof text) <= 0) {
        return false;
    }
    const char *first = strstr(text, "\nvoluntary_ctxt_switches:"), *second = strstr(text, "\nnonvoluntary_ctxt_switches:");
    if (first == NULL || second == NULL) {
        return false;
    }
    *voluntary = strtoull(strchr(first, ':') + 1, NULL, 10);
    *involuntary = strtoull(strchr(second, ':') + 1, NULL, 10);
    return true;
}

static void keep_ended(Schedule *s, Task *task)
{
    if (task->tid == s->own_tid) {
        s->ended_own_ns += task->on_core_ns;
    } else if (!task->python) {
        s->ended_on_core_ns += task->on_core_ns;
        s->ended_run_queue_ns += task->run_queue_ns;
    }
    memset(task, 0, sizeof *task);
}

/* The entry of a thread; a new one reuses a free slot. NULL when there are too many. */
static Task *task_of(Schedule *s, uint32_t tid)
{
    Task *vacant = NULL;
    for (uint32_t i = 0; i < s->task_count; i++) {
        if (s->tasks[i].tid == tid) {
            return &s->tasks[i];
        }
        if (s->tasks[i].tid == 0 && vacant == NULL) {
            vacant = &s->tasks[i];
        }
    }
    if (vacant == NULL && s->task_count < MOST_TASKS) {
        vacant = &s->tasks[s->task_count++];
    }
    if (vacant != NULL) {
        *vacant = (Task){.tid = tid};
    }
    return vacant;
}

/* Read the figures of all threads of the process into `tasks`. Returns how many there are; 0 without /proc. */
static uint32_t list_tasks(Schedule *s, bool *known)
{
    uint32_t count = 0;
    *known = false;
#ifdef __linux__
    struct entry {
        uint64_t inode;
        int64_t offset;
        unsigned short length;
        unsigned char type;
        char name[];
    };
    int folder = open("/proc/self/task", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0) {
        return 0;
    }
    for (uint32_t i = 0; i < s->task_count; i++) {
        s->tasks[i].seen = false;
    }
    char buffer[4096] __attribute__((aligned(8))); /* not readdir: it allocates */
    long length;
    while ((length = syscall(SYS_getdents64, folder, buffer, sizeof buffer)) > 0) {
        for (long at = 0; at < length; at += ((struct entry *)(buffer + at))->length) {
            uint32_t tid = (uint32_t)strtoul(((struct entry *)(buffer + at))->name, NULL, 10);
            uint64_t on_core, run_queue;
            if (tid == 0) {
                continue; /* . and .. */
            }
            count++;
            Task *task = task_of(s, tid);
            if (task == NULL) {
                continue;
            }
            task->seen = true;
            if (read_schedstat(tid, &on_core, &run_queue)) {
                *known = true;
                if (on_core < task->on_core_ns) { /* another thread got the same number */
                    keep_ended(s, task);
                    *task = (Task){.tid = tid, .seen = true};
                }
                task->on_core_ns = on_core;
                task->run_queue_ns = run_queue;
            }
        }
    }
    close(folder);
    for (uint32_t i = 0; i < s->task_count; i++) {
        if (s->tasks[i].tid != 0 && !s->tasks[i].seen) {
            keep_ended(s, &s->tasks[i]);
        }
    }
#else
    (void)s;
#endif
    return count;
}

/* Keep the later row of each pair. */
#define THIN_ROWS(file)                                                  \
    do {                                                                 \
        for (uint32_t to = 0; to < HL_MAX_SCHEDULING / 2; to++) {        \
            (file)->rows[to] = (file)->rows[2 * to + 1];                 \
        }                                                                \
        (file)->count = HL_MAX_SCHEDULING / 2;                           \
    } while (0)

#define BEGIN_ROWS(file)                                                 \
    __atomic_store_n(&(file)->seq, (file)->seq + 1, __ATOMIC_RELAXED);   \
    __atomic_thread_fence(__ATOMIC_RELEASE)
#define END_ROWS(file) __atomic_store_n(&(file)->seq, (file)->seq + 1, __ATOMIC_RELEASE)

static void add_thread_row(Schedule *s, Arena *a, uint64_t now)
{
    HL_SCHEDULING_t *file = a->scheduling;
    uint32_t tid = (uint32_t)a->file->native_id;
    HL_SCHEDULING_ROW_t row = {.time_ns = now};
    uint32_t known = 0;
    Task *task = task_of(s, tid);
    if (task == NULL || !task->seen) {
        return; /* it has ended, or there is no /proc */
    }
    if (task->on_core_ns || task->run_queue_ns) {
        known |= HL_KNOWN_SCHEDSTAT;
        row.on_core_ns = task->on_core_ns;
        row.run_queue_ns = task->run_queue_ns;
    }
    if (read_switches(tid, &row.voluntary_switches, &row.involuntary_switches)) {
        known |= HL_KNOWN_SWITCHES;
    }
    BEGIN_ROWS(file);
    if (file->native_id != tid) { /* the arena now belongs to another thread */
        file->count = 0;
        file->native_id = tid;
    }
    if (file->count == HL_MAX_SCHEDULING) {
        THIN_ROWS(file);
    }
    file->known = known;
    file->rows[file->count] = row;
    file->count++;
    END_ROWS(file);
}

/* One row for the process and one for each recorded thread. `python` holds the ids of the threads that run Python. */
static void take_scheduling(Schedule *s, Recorder *rec, const uint32_t *python, size_t python_count, uint64_t now)
{
    HL_PROCESS_SCHEDULING_t *file = s->file;
    bool known;
    uint64_t began = read_clock(CLOCK_THREAD_CPUTIME_ID);
    HL_PROCESS_SCHEDULING_ROW_t row = {.time_ns = now};
    row.os_threads = list_tasks(s, &known);
    for (size_t i = 0; i < python_count; i++) {
        Task *task = task_of(s, python[i]);
        if (task != NULL) {
            task->python = true;
        }
    }
    row.python_threads = (uint32_t)python_count;
    row.cpu_ns = read_clock(CLOCK_PROCESS_CPUTIME_ID);
    row.native_on_core_ns = s->ended_on_core_ns;
    row.native_run_queue_ns = s->ended_run_queue_ns;
    row.hotloop_ns = s->ended_own_ns;
    for (uint32_t i = 0; i < s->task_count; i++) {
        const Task *task = &s->tasks[i];
        if (task->tid == s->own_tid && task->tid != 0) {
            row.hotloop_ns += task->on_core_ns;
        } else if (task->tid != 0 && !task->python) {
            row.native_on_core_ns += task->on_core_ns;
            row.native_run_queue_ns += task->run_queue_ns;
        }
    }
    BEGIN_ROWS(file);
    if (file->count == HL_MAX_SCHEDULING) {
        THIN_ROWS(file);
        file->interval_ns *= 2;
    }
    file->known = (known ? HL_KNOWN_SCHEDSTAT : 0) | (python_count ? HL_KNOWN_PYTHON_THREADS : 0);
    file->rows[file->count] = row;
    file->count++;
    END_ROWS(file);
    uint32_t arenas = __atomic_load_n(&rec->arena_count, __ATOMIC_ACQUIRE);
    for (uint32_t i = 0; i < arenas; i++) {
        Arena *a = __atomic_load_n(&rec->arenas[i], __ATOMIC_ACQUIRE);
        if (a && a->scheduling && __atomic_load_n(&a->file->state, __ATOMIC_ACQUIRE) == HL_ARENA_LIVE) {
            add_thread_row(s, a, now);
        }
    }
    uint64_t cost = read_clock(CLOCK_THREAD_CPUTIME_ID) - began;
    uint64_t pause = rec->clock == NULL && 2000 * cost > file->interval_ns ? 2000 * cost : file->interval_ns;
    s->due = now + pause; /* at most half a thousandth of a core */
    uint64_t longer = 10000 * cost < LONGEST_WITHOUT_ROW_NS ? 10000 * cost : LONGEST_WITHOUT_ROW_NS;
    s->due_waiting = now + (rec->clock == NULL && longer > pause ? longer : pause);
}

#endif
