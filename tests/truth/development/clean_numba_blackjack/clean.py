"""Monte-Carlo control for blackjack with card counting, compiled with numba."""
import json
import sys
import time

import numpy as np
from numba import njit

BLOCKS = int(sys.argv[1]) if len(sys.argv) > 1 else 110
HANDS = 400000
HIT, STAND = 1, 0


@njit
def draw(shoe):
    """A card from a shoe of counts by value: 1 is the ace, 10 includes the court cards, 0 holds the number of cards left."""
    k = np.random.randint(shoe[0])
    shoe[0] -= 1
    v = 10
    while k >= shoe[v]:
        k -= shoe[v]
        v -= 1
    shoe[v] -= 1
    return v


@njit
def count_bucket(running):
    return min(2, max(0, running // 4 + 1))


@njit
def hilo(card):
    if 2 <= card <= 6:
        return 1
    if card == 1 or card == 10:
        return -1
    return 0


@njit
def new_shoe(shoe):
    for v in range(1, 10):
        shoe[v] = 16
    shoe[10] = 64
    shoe[0] = 208


@njit
def play(q, visits, hands, eps, seed):
    """Plays hands against the dealer and updates q in place; returns the money won."""
    np.random.seed(seed)
    shoe = np.zeros(11, dtype=np.int64)
    new_shoe(shoe)
    running, dealt = 0, 0
    money = 0.0
    track = np.zeros((24, 5), dtype=np.int64)
    for _ in range(hands):
        if dealt > 150:
            new_shoe(shoe)
            running, dealt = 0, 0
        total, ace, n = 0, 0, 0
        up = draw(shoe)
        running += hilo(up)
        dealt += 3
        for _ in range(2):
            c = draw(shoe)
            running += hilo(c)
            total += c
            ace |= c == 1
        while True:
            usable = 1 if ace and total + 10 <= 21 else 0
            value = total + 10 * usable
            bucket = count_bucket(running)
            if np.random.random() < eps:
                a = np.random.randint(2)
            else:
                a = HIT if q[value, up, usable, bucket, HIT] > q[value, up, usable, bucket, STAND] else STAND
            track[n, 0], track[n, 1], track[n, 2], track[n, 3], track[n, 4] = value, up, usable, bucket, a
            n += 1
            if a == STAND:
                break
            c = draw(shoe)
            running += hilo(c)
            dealt += 1
            total += c
            ace |= c == 1
            if total > 21:
                break
        if total > 21:
            g = -1.0
        else:
            d, d_ace = up, up == 1
            while True:
                dv = d + 10 if d_ace and d + 10 <= 21 else d
                if dv >= 17:
                    break
                c = draw(shoe)
                running += hilo(c)
                dealt += 1
                d += c
                d_ace |= c == 1
            value = track[n - 1, 0]
            g = 1.0 if dv > 21 or value > dv else (0.0 if value == dv else -1.0)
        money += g
        for k in range(n):
            i, j, u, b, a = track[k]
            visits[i, j, u, b, a] += 1
            q[i, j, u, b, a] += (g - q[i, j, u, b, a]) / visits[i, j, u, b, a]
    return money


def show(q):
    for u, name in ((0, "hard"), (1, "soft")):
        print(name, "totals: stand from", [int(np.argmax(q[12:22, up, u, 1, 0] > q[12:22, up, u, 1, 1])) + 12 for up in range(1, 11)])


q = np.zeros((32, 11, 2, 3, 2))
visits = np.zeros(q.shape, dtype=np.int64)
play(q.copy(), visits.copy(), 10, 0.5, 0)
money, t0 = 0.0, None
for block in range(BLOCKS):
    if block == BLOCKS // 5:
        t0 = time.perf_counter()
    won = play(q, visits, HANDS, max(0.02, 0.5 * (1 - 2 * block / BLOCKS)), 1000 + block)
    money += won
    if block % 20 == 0:
        print(f"block {block}: won per hand {won / HANDS:+.4f}")
rate = (BLOCKS - BLOCKS // 5) * HANDS / (time.perf_counter() - t0)
show(q)
print(json.dumps({"env_steps": None, "updates": None, "units_per_s": rate, "checksum": float(q.sum()) + money}))
