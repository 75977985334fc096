/* Two threads through one ring and readers of one board, for ThreadSanitizer: any race is an error. */
#define _GNU_SOURCE /* as Python.h does */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ring.h"

#define ITEMS 20000ull
#define WORDS 64

static Ring *ring;
static Board *board;
static uint64_t *records;
static _Atomic int stop;

static void *produce(void *unused) {
    (void)unused;
    for (uint64_t sent = 0; sent < ITEMS;) {
        uint64_t room = ring_wait(ring, &ring->room, ring_room, 1000000000ull);
        uint64_t want = 1 + sent % 7;
        uint64_t count = ring_run(ring, atomic_load(&ring->head), room < want ? room : want);
        if (count > ITEMS - sent) count = ITEMS - sent;
        for (uint64_t i = 0; i < count; i++) records[(sent + i) % ring->capacity] = (sent + i) * 2654435761ull;
        ring_commit(ring, count);
        sent += count;
    }
    return NULL;
}

static void *publish(void *unused) {
    (void)unused;
    uint64_t block[WORDS];
    for (uint64_t version = 1; !atomic_load(&stop); version++) {
        for (int i = 0; i < WORDS; i++) block[i] = version;
        board_publish(board, block);
    }
    return NULL;
}

static int consume(void) {
    uint64_t block[WORDS], known = 0;
    for (uint64_t got = 0; got < ITEMS;) {
        uint64_t count = ring_wait(ring, &ring->data, ring_pending, 1000000000ull);
        count = ring_run(ring, got, count);
        for (uint64_t i = 0; i < count; i++)
            if (records[(got + i) % ring->capacity] != (got + i) * 2654435761ull) return 1;
        ring_release(ring, count);
        got += count;
        uint64_t version = board_read(board, block, known);
        for (int i = 0; version && i < WORDS; i++)
            if (block[i] != version) return 2;
        if (version && version <= known) return 3;
        known = version ? version : known;
    }
    return 0;
}

int main(int count, char **words) {
    uint64_t capacity = count > 1 ? strtoull(words[1], NULL, 10) : 8;
    ring = aligned_alloc(64, RING_HEADER_BYTES + (capacity * 8 + 63) / 64 * 64);
    memset(ring, 0, RING_HEADER_BYTES);
    ring->capacity = capacity;
    records = (uint64_t *)((char *)ring + RING_HEADER_BYTES);
    board = aligned_alloc(64, BOARD_HEADER_BYTES + 2 * WORDS * 8);
    memset(board, 0, BOARD_HEADER_BYTES);
    board->bytes = WORDS * 8;
    pthread_t producer, publisher;
    pthread_create(&publisher, NULL, publish, NULL);
    pthread_create(&producer, NULL, produce, NULL);
    int wrong = consume();
    atomic_store(&stop, 1);
    pthread_join(producer, NULL);
    pthread_join(publisher, NULL);
    printf("%s\n", wrong ? "wrong" : "intact");
    return wrong;
}
