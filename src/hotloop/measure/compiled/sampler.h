/* The native thread that samples memory and writes the heartbeat. */
#ifndef HOTLOOP_SAMPLER_H
#define HOTLOOP_SAMPLER_H

#include "state.h"

#include <fcntl.h>
#include <string.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

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
    s->stop = rec->clock != NULL; /* with an injected clock, sample() is called explicitly */
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

#endif
