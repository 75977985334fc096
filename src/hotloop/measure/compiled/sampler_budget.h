/* How much CPU time the sampler may use: a share of what its process uses, so that one that waits costs next to nothing. */
#ifndef HOTLOOP_SAMPLER_BUDGET_H
#define HOTLOOP_SAMPLER_BUDGET_H

#include "state.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#define SHARE_OF_CPU (1.0 / 200)   /* of the CPU time that the other threads use or queue for, at most of one core */
#define SHARE_OF_WALL (1.0 / 5000) /* of wall time, also while the process waits */
#define BUSY_SHARE 0.2             /* of a core; a process that uses less is looked at less often */
#define MOST_CREDIT_NS 20000000    /* that can be saved up, or owed; every process starts with it */
#define MEMORY_NS 1e9              /* of how busy the process is */
#define LEAST_ACCOUNT_NS 50000000  /* between two looks at the clocks */
#define LONGEST_PAUSE_NS 500000000 /* longer ones would look like standstills (analysis/standstills.py) */

typedef struct {
    uint64_t wall_ns, others_ns, own_ns; /* clocks at the last look; 0: there was none */
    int schedstat;                       /* the main thread's file, or -1 */
    int64_t credit_ns;                   /* CPU time that may be used */
    double income;                       /* CPU time granted for each ns of wall time, mean of the last second */
    uint64_t cost_ns;                    /* mean CPU time of a wake-up */
    uint32_t wake_ups;                   /* since the last look */
} Budget;

/* `schedstat`: a file of the main thread, or -1. */
static Budget new_budget(int schedstat)
{
    return (Budget){.schedstat = schedstat, .credit_ns = MOST_CREDIT_NS, .income = SHARE_OF_CPU + SHARE_OF_WALL};
}

/* How long the main thread has waited for a core. A program that other programs keep from running is not idle. */
static uint64_t queue_ns(int schedstat)
{
    char text[96], *after;
    ssize_t length = schedstat < 0 ? -1 : pread(schedstat, text, sizeof text - 1, 0);
    if (length <= 0) {
        return 0;
    }
    text[length] = 0;
    strtoull(text, &after, 10); /* time on a core */
    return strtoull(after, NULL, 10);
}

/* Look at the clocks now and then; called by the sampler whenever it has woken up, before it does anything. */
static void update_budget(Budget *b, uint64_t now)
{
    b->wake_ups++;
    if (b->wall_ns != 0 && now < b->wall_ns + LEAST_ACCOUNT_NS) {
        return;
    }
    uint64_t own = read_clock(CLOCK_THREAD_CPUTIME_ID), all = read_clock(CLOCK_PROCESS_CPUTIME_ID);
    uint64_t others = (all > own ? all - own : 0) + queue_ns(b->schedstat);
    if (b->wall_ns != 0 && now > b->wall_ns && own >= b->own_ns) {
        double wall = (double)(now - b->wall_ns), used = others > b->others_ns ? (double)(others - b->others_ns) : 0;
        uint64_t cost = own - b->own_ns;
        double granted = (used < wall ? used : wall) * SHARE_OF_CPU + wall * SHARE_OF_WALL;
        b->income += (granted / wall - b->income) * (wall < MEMORY_NS ? wall / MEMORY_NS : 1);
        b->credit_ns += (int64_t)granted - (int64_t)cost;
        b->credit_ns = b->credit_ns > MOST_CREDIT_NS ? MOST_CREDIT_NS
                       : b->credit_ns < -MOST_CREDIT_NS ? -MOST_CREDIT_NS : b->credit_ns;
        uint64_t each = cost / b->wake_ups;
        b->cost_ns = b->cost_ns ? (3 * b->cost_ns + each) / 4 : each;
    }
    b->wake_ups = 0;
    b->wall_ns = now;
    b->own_ns = own;
    b->others_ns = others;
}

/* How long to wait until the next look: as long as the income takes to pay for one, less while there is credit, down
   to `usual`. It changes slowly, because samples that stand for very different times say less than as many equal ones. */
static uint64_t affordable_pause(const Budget *b, uint64_t usual)
{
    double pause = (double)b->cost_ns / b->income * (1 - (double)b->credit_ns / MOST_CREDIT_NS);
    pause = pause < LONGEST_PAUSE_NS ? pause : LONGEST_PAUSE_NS;
    return pause > (double)usual ? (uint64_t)pause : usual;
}

static bool process_waits(const Budget *b)
{
    return b->credit_ns < MOST_CREDIT_NS / 2 && b->income < BUSY_SHARE * SHARE_OF_CPU + SHARE_OF_WALL;
}

#endif
