/* Lock-free data transfer between processes through shared memory; plain C, no Python.
 *
 * Ring: one producer, one consumer. `head` counts the records handed over so far, `tail` the records given
 * back; each is written by one side only. A record is written before `head` moves past it, so a producer
 * killed at any moment leaves a valid ring: the records it had not handed over are not visible.
 *
 * Waiting: spin for SPIN_NS if the other side has a core of its own, because a wake-up takes about as long and
 * costs the other side a system call. Then increment `sleeps`, check once more, and sleep on `bell`. The side
 * that makes progress rings the bell if `sleeps` is not 0. Both use sequentially consistent operations, so
 * either the waiter sees the progress or the other side sees the waiter.
 *
 * Board: one writer publishes a block of bytes with a version, many readers copy it. The writer alternates
 * between two slots, each with a sequence number that is odd during a write. A reader that was overtaken sees
 * the number change and copies again, so it never returns a torn block.
 */
#ifndef HOTLOOP_RING_H
#define HOTLOOP_RING_H

#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#define RING_MAGIC 0x31474e4952544f48ull /* "HOTRING1" */
#define BOARD_MAGIC 0x31444f4254544f48ull

typedef struct {
    _Alignas(64) _Atomic uint32_t count; /* times it was rung; the futex word */
    _Atomic uint32_t sleeps;             /* threads that sleep or are about to */
} Bell;

typedef struct {
    uint64_t magic, record_bytes, capacity, reserved;
    _Alignas(64) _Atomic uint64_t head; /* this and the next two: written by the producer only */
    _Atomic uint64_t producer_wait_ns;
    _Atomic uint64_t dropped;
    _Alignas(64) _Atomic uint64_t tail; /* written by the consumer only */
    _Atomic uint64_t consumer_wait_ns;
    _Alignas(64) _Atomic uint32_t closed;
    Bell room; /* rung when records are given back */
    Bell data; /* rung when records are handed over */
} Ring;

typedef struct {
    uint64_t magic, bytes;
    _Alignas(64) _Atomic uint64_t version; /* 0: nothing published yet */
    _Alignas(64) _Atomic uint64_t sequence[2];
} Board;

#define RING_HEADER_BYTES 512
#define BOARD_HEADER_BYTES 256
#define SPIN_NS 50000
_Static_assert(sizeof(Ring) <= RING_HEADER_BYTES, "ring header");
_Static_assert(sizeof(Board) <= BOARD_HEADER_BYTES, "board header");

static inline uint64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000ull + (uint64_t)time.tv_nsec;
}

static inline void bell_ring(Bell *bell) {
    atomic_fetch_add(&bell->count, 1);
    if (atomic_load(&bell->sleeps)) {
#ifdef __linux__
        syscall(SYS_futex, &bell->count, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
#endif
    }
}

/* Sleep until the count differs from `seen`, but no longer than `most_ns`; may wake up early. */
static inline void bell_sleep(Bell *bell, uint32_t seen, uint64_t most_ns) {
#ifdef __linux__
    struct timespec most = {(time_t)(most_ns / 1000000000ull), (long)(most_ns % 1000000000ull)};
    syscall(SYS_futex, &bell->count, FUTEX_WAIT, seen, &most, NULL, 0);
#else
    struct timespec nap = {0, most_ns < 200000 ? (long)most_ns : 200000};
    (void)bell;
    (void)seen;
    nanosleep(&nap, NULL);
#endif
}

static inline uint64_t ring_room(Ring *ring) {
    return ring->capacity - (atomic_load_explicit(&ring->head, memory_order_relaxed) - atomic_load(&ring->tail));
}

static inline uint64_t ring_pending(Ring *ring) {
    return atomic_load(&ring->head) - atomic_load_explicit(&ring->tail, memory_order_relaxed);
}

static inline void pause_core(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

/* Whether this process may use more than one core, so that spinning does not take the other side's core. */
static inline int has_cores(void) {
    static _Atomic int known; /* 0: unknown, 1: no, 2: yes */
    int found = atomic_load_explicit(&known, memory_order_relaxed);
    if (!found) {
        found = 1;
#ifdef __linux__
        cpu_set_t cores;
        found = sched_getaffinity(0, sizeof cores, &cores) == 0 && CPU_COUNT(&cores) > 1 ? 2 : 1;
#endif
        atomic_store_explicit(&known, found, memory_order_relaxed);
    }
    return found == 2;
}

/* Spin until `available` is not 0, for at most SPIN_NS or `most_ns`; returns its last value. */
static inline uint64_t ring_spin(Ring *ring, uint64_t (*available)(Ring *), uint64_t most_ns) {
    uint64_t found = available(ring);
    if (found || !has_cores()) return found;
    uint64_t start = now_ns(), most = most_ns < SPIN_NS ? most_ns : SPIN_NS;
    while (!found && !atomic_load(&ring->closed) && now_ns() - start < most) {
        for (int i = 0; i < 16; i++) pause_core();
        found = available(ring);
    }
    return found;
}

/* Wait for at most `most_ns`; returns what is available: room for the producer, records for the consumer. */
static inline uint64_t ring_wait(Ring *ring, Bell *bell, uint64_t (*available)(Ring *), uint64_t most_ns) {
    uint64_t found = ring_spin(ring, available, most_ns);
    if (found || atomic_load(&ring->closed)) return found;
    uint32_t seen = atomic_load(&bell->count);
    atomic_fetch_add(&bell->sleeps, 1);
    found = available(ring);
    if (!found && !atomic_load(&ring->closed)) bell_sleep(bell, seen, most_ns);
    atomic_fetch_sub(&bell->sleeps, 1);
    return available(ring);
}

static inline void ring_commit(Ring *ring, uint64_t records) {
    uint64_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);
    atomic_store(&ring->head, head + records);
    bell_ring(&ring->data);
}

static inline void ring_release(Ring *ring, uint64_t records) {
    uint64_t tail = atomic_load_explicit(&ring->tail, memory_order_relaxed);
    atomic_store(&ring->tail, tail + records);
    bell_ring(&ring->room);
}

/* Records from `position` on that are contiguous in memory, at most `most`. */
static inline uint64_t ring_run(Ring *ring, uint64_t position, uint64_t most) {
    uint64_t left = ring->capacity - position % ring->capacity;
    return most < left ? most : left;
}

static inline uint64_t *board_slot(Board *board, uint64_t version) {
    uint64_t words = (board->bytes + 7) / 8;
    return (uint64_t *)((char *)board + BOARD_HEADER_BYTES) + (version % 2) * words;
}

/* Words are copied as atomics: plain moves for the processor, but no data race in the language. */
static inline void board_publish(Board *board, const uint64_t *source) {
    uint64_t version = atomic_load_explicit(&board->version, memory_order_relaxed) + 1;
    uint64_t words = (board->bytes + 7) / 8;
    _Atomic uint64_t *slot = (_Atomic uint64_t *)board_slot(board, version);
    _Atomic uint64_t *sequence = &board->sequence[version % 2];
    atomic_exchange(sequence, 2 * version - 1);
    for (uint64_t i = 0; i < words; i++) atomic_store_explicit(&slot[i], source[i], memory_order_release);
    atomic_store(sequence, 2 * version);
    atomic_store(&board->version, version);
}

/* Copies the newest block and returns its version, or 0 if there is none newer than `known`. */
static inline uint64_t board_read(Board *board, uint64_t *target, uint64_t known) {
    uint64_t words = (board->bytes + 7) / 8;
    for (;;) {
        uint64_t version = atomic_load(&board->version);
        if (version <= known) return 0;
        _Atomic uint64_t *slot = (_Atomic uint64_t *)board_slot(board, version);
        _Atomic uint64_t *sequence = &board->sequence[version % 2];
        if (atomic_load(sequence) != 2 * version) continue;
        for (uint64_t i = 0; i < words; i++) target[i] = atomic_load_explicit(&slot[i], memory_order_acquire);
        if (atomic_load(sequence) == 2 * version) return version;
    }
}

#endif
