/* Samples of all Python threads: the path of the user's lines, the open region, and whether the thread had a core.
 *
 * Runs on the sampler's thread, without the GIL; it allocates nothing and takes no lock of the interpreter. A stack
 * is read while its thread runs on, so a path can be a microsecond out of date in places; pointers are only
 * followed through `peek`. */
#ifndef HOTLOOP_LINE_SAMPLES_H
#define HOTLOOP_LINE_SAMPLES_H

#include "sampled_code.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#define LONGEST_WEIGHT_NS 1000000000u
#define USER_MOMENTS_TO_OPEN 3 /* of a process that has recorded nothing so far */
#define MOST_STATE_FILES 32
#define MOST_ATTEMPTS 6 /* at a stack that changes while it is read */

typedef struct {
    uint32_t function, line;
} UserFrame;

/* The frames of one stack that matter: user's lines from the innermost on, and the library functions below. */
typedef struct {
    UserFrame frames[HL_MAX_PATH_FRAMES]; /* the innermost ones, then a ring of the outermost ones */
    uint32_t count;                       /* of all user frames */
    Position position;                    /* in the innermost one */
    uint32_t called, innermost;           /* library functions, or NO_FUNCTION */
    Code *called_code;
    char *called_at;
    bool own;                             /* a frame of hotloop is on the stack */
    bool complete;                        /* no frame was unreadable */
} Stack;

/* What is remembered about a sampled thread from one moment to the next. */
typedef struct {
    uint32_t tid;
    uint32_t moment;
    uint64_t cpu_ns;
    int64_t unshown_ns; /* CPU time, less the time of samples that showed it running */
    int stat; /* its open stat file, or -1 */
    dev_t device;
    ino_t inode;
    bool asleep; /* with the following: */
    uint8_t reason;
    uint32_t path;
    Stack stack;
} Watched;

typedef struct {
    CodeTables tables;
    HL_SAMPLES_t *private_file; /* until the part is open */
    PyThreadState *anchor;
    const void *gil; /* NULL: not known */
    size_t gil_bytes;
    uint64_t interval_ns;   /* doubles whenever the rows are thinned */
    uint64_t stratum_ns;    /* length of the present one: interval_ns, or longer (sampler_budget.h) */
    uint64_t stratum_start;
    uint64_t next_ns;       /* a random moment within the stratum, so that loops cannot keep in step */
    uint64_t covered_until; /* samples stand for the time up to here */
    uint64_t random;
    uint32_t user_moments;  /* with a line of the user's code */
    bool asked_to_open;
    Watched watched[MOST_THREADS];
    size_t watched_count;
    ThreadCopy threads[MOST_THREADS];
    size_t thread_count;
    char *frames[MOST_THREADS];
    uint64_t cpu_before[MOST_THREADS];
    StackCopy stack;
} Lines;

static int open_for_samples(void *recorder); /* start_stop.h */
const void *hotloop_gil_place(size_t *size); /* gil_place.c */
const void *hotloop_gil_holder(const void *gil);

/* -- paths ---------------------------------------------------------------------------------------- */

/* Number of a path: `parent` (1 + its number; 0: none) and one more step. -1 when the table is full. */
static int64_t number_of_path(CodeTables *t, uint32_t parent, uint32_t function, uint32_t line, uint32_t kind, uint32_t most)
{
    HL_SAMPLES_t *file = t->file;
    const HL_SAMPLED_STEP_t step = {parent, function, line, kind};
    const uint32_t slots = 2 * HL_MAX_SAMPLED_PATHS;
    uint32_t slot = (uint32_t)(hash_bytes(&step, sizeof step, 7) % slots);
    for (; t->path_slots[slot]; slot = (slot + 1) % slots) {
        if (memcmp(&file->paths[t->path_slots[slot] - 1], &step, sizeof step) == 0) {
            return t->path_slots[slot] - 1;
        }
    }
    if (file->path_count >= most) {
        return -1;
    }
    uint32_t number = file->path_count;
    file->paths[number] = step;
    __atomic_store_n(&file->path_count, number + 1, __ATOMIC_RELEASE);
    t->path_slots[slot] = number + 1;
    return number;
}

#define INNERMOST_FRAMES (HL_MAX_PATH_FRAMES - HL_OUTERMOST_FRAMES)

static void add_user_frame(Stack *stack, uint32_t function, uint32_t line)
{
    uint32_t n = stack->count++;
    uint32_t at = n < INNERMOST_FRAMES ? n : INNERMOST_FRAMES + (n - INNERMOST_FRAMES) % HL_OUTERMOST_FRAMES;
    stack->frames[at] = (UserFrame){function, line};
}

static UserFrame user_frame(const Stack *stack, uint32_t n)
{
    return stack->frames[n < INNERMOST_FRAMES ? n : INNERMOST_FRAMES + (n - INNERMOST_FRAMES) % HL_OUTERMOST_FRAMES];
}

/* The expression that was running, as a step of its own below all others. */
static int64_t add_expression(CodeTables *t, const Position *position, int64_t path)
{
    if (position->column < 0 || position->column > HL_LAST_COLUMN || position->end_column < 0 ||
        position->end_column > HL_LAST_COLUMN || position->end_line < 0) {
        return path;
    }
    uint32_t columns = (uint32_t)position->column | (uint32_t)position->end_column << 16;
    int64_t more = number_of_path(t, (uint32_t)(path + 1), columns, (uint32_t)position->end_line, HL_STEP_EXPRESSION,
                                  HL_MAX_EXPRESSION_PATHS);
    return more < 0 ? path : more;
}

static int64_t add_libraries(CodeTables *t, const Stack *stack, int64_t path, uint32_t most)
{
    path = number_of_path(t, (uint32_t)(path + 1), stack->called, 0, HL_STEP_CALLED, most);
    if (path >= 0 && stack->innermost != NO_FUNCTION && stack->innermost != stack->called) {
        path = number_of_path(t, (uint32_t)(path + 1), stack->innermost, 0, HL_STEP_INNERMOST, most);
    }
    return path;
}

/* Number of the path of a stack: in full; or its innermost line alone; or 0, which stands for all others. */
static uint32_t path_of_stack(CodeTables *t, const Stack *stack)
{
    const uint32_t most = HL_MAX_SAMPLED_PATHS - HL_RESERVED_PATHS;
    bool shortened = stack->count > HL_MAX_PATH_FRAMES;
    int64_t path = -1;
    for (uint32_t n = stack->count; n-- > 0;) { /* from the outermost on */
        if (shortened && n >= INNERMOST_FRAMES && n < stack->count - HL_OUTERMOST_FRAMES) {
            if (n == INNERMOST_FRAMES) {
                path = number_of_path(t, (uint32_t)(path + 1), 0, 0, HL_STEP_LEFT_OUT, most);
                if (path < 0) {
                    goto full;
                }
            }
            continue;
        }
        UserFrame frame = user_frame(stack, n);
        if (frame.function == NO_FUNCTION) {
            return 0;
        }
        path = number_of_path(t, (uint32_t)(path + 1), frame.function, frame.line, HL_STEP_LINE, most);
        if (path < 0) {
            goto full;
        }
    }
    if (stack->called != NO_FUNCTION) {
        path = add_libraries(t, stack, path, most);
    }
    if (path >= 0 && stack->count > 0) {
        path = add_expression(t, &stack->position, path);
    }
    if (path >= 0) {
        return (uint32_t)path;
    }
full:
    if (stack->count > 0) {
        UserFrame frame = user_frame(stack, 0);
        path = number_of_path(t, 0, frame.function, frame.line, HL_STEP_LINE, HL_MAX_SAMPLED_PATHS);
    }
    return path > 0 ? (uint32_t)path : 0;
}

/* Credit the time to every function on the path once, so that the source of the busiest can be kept. */
static void credit_functions(CodeTables *t, const Stack *stack, uint32_t weight_us)
{
    uint32_t kept = stack->count < HL_MAX_PATH_FRAMES ? stack->count : HL_MAX_PATH_FRAMES;
    for (uint32_t i = 0; i < kept; i++) {
        uint32_t function = stack->frames[i].function;
        bool again = function == NO_FUNCTION;
        for (uint32_t j = 0; j < i && !again; j++) {
            again = stack->frames[j].function == function;
        }
        if (!again) {
            t->file->functions[function].on_path_us += weight_us;
        }
    }
}

/* -- rows ----------------------------------------------------------------------------------------- */

/* Drop every second moment, with the rows of all threads; the others stand for twice the time. */
static void thin_samples(HL_SAMPLES_t *file)
{
    uint32_t kept = 0, moment = 0;
    __atomic_store_n(&file->seq, file->seq + 1, __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    for (uint32_t i = 0; i < file->count; i++) {
        moment += i > 0 && file->rows[i].time_ns != file->rows[i - 1].time_ns;
        if ((moment & 1) == (file->thinned & 1)) {
            continue;
        }
        HL_SAMPLE_t row = file->rows[i];
        row.weight_us = row.weight_us > UINT32_MAX / 2 ? UINT32_MAX : row.weight_us * 2;
        file->rows[kept++] = row;
    }
    file->thinned++;
    __atomic_store_n(&file->count, kept, __ATOMIC_RELEASE);
    __atomic_store_n(&file->seq, file->seq + 1, __ATOMIC_RELEASE);
}

/* -- whether a thread had a core ------------------------------------------------------------------ */

/* Close a file of ours, unless the program has closed it and uses its number for another one. */
static void close_if_ours(int file, dev_t device, ino_t inode)
{
    struct stat now;
    if (file >= 0 && fstat(file, &now) == 0 && now.st_dev == device && now.st_ino == inode) {
        close(file);
    }
}

static void close_state_files(Lines *lines)
{
    for (size_t i = 0; i < lines->watched_count; i++) {
        close_if_ours(lines->watched[i].stat, lines->watched[i].device, lines->watched[i].inode);
        lines->watched[i].stat = -1;
    }
}

static void free_lines(Lines *lines)
{
    close_state_files(lines);
    PyMem_RawFree(lines->private_file);
    PyMem_RawFree(lines);
}

#ifdef __linux__

static uint64_t cpu_time_of(uint32_t tid)
{
    struct timespec t;
    clockid_t clock = (clockid_t)(~tid << 3 | 6); /* the kernel's number for the CPU time of one thread */
    return clock_gettime(clock, &t) == 0 ? (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec : 0;
}

static Watched *watched(Lines *lines, uint32_t tid)
{
    Watched *oldest = NULL;
    uint32_t moment = lines->tables.moment;
    for (size_t i = 0; i < lines->watched_count; i++) {
        Watched *w = &lines->watched[i];
        if (w->tid == tid) {
            return w;
        }
        if (w->moment + 1 < moment && (oldest == NULL || w->moment < oldest->moment)) {
            oldest = w; /* its thread has ended */
        }
    }
    if (oldest == NULL && lines->watched_count < MOST_THREADS) {
        oldest = &lines->watched[lines->watched_count++];
        oldest->stat = -1;
    }
    if (oldest != NULL) {
        close_if_ours(oldest->stat, oldest->device, oldest->inode);
        *oldest = (Watched){.tid = tid, .stat = -1};
    }
    return oldest;
}

/* The kernel's letter for the state of a thread, 0 when it is not known; and the core it ran on last (or NULL). */
static char kernel_state(Lines *lines, Watched *w, int *core)
{
    char text[512];
    ssize_t length;
    if (w->stat < 0) {
        char path[64];
        struct stat now;
        snprintf(path, sizeof path, "/proc/self/task/%u/stat", w->tid);
        w->stat = open(path, O_RDONLY | O_CLOEXEC);
        if (w->stat < 0 || fstat(w->stat, &now) != 0) {
            return 0;
        }
        w->device = now.st_dev;
        w->inode = now.st_ino;
    }
    length = pread(w->stat, text, sizeof text - 1, 0);
    if ((size_t)(w - lines->watched) >= MOST_STATE_FILES) { /* keep few files open */
        close_if_ours(w->stat, w->device, w->inode);
        w->stat = -1;
    }
    text[length > 0 ? length : 0] = 0;
    char *at = strrchr(text, ')');
    if (length <= 0 || at == NULL || at[1] != ' ') {
        return 0;
    }
    at += 2;
    char letter = *at;
    if (core == NULL) {
        return letter;
    }
    for (int field = 3; field < 39 && at != NULL; field++) {
        at = strchr(at, ' ');
        at = at ? at + 1 : NULL;
    }
    *core = at ? atoi(at) : -1;
    return letter;
}

/* What a sleeping thread waits for, from the system call that it is in. A futex within the GIL is a wait for it. */
static uint8_t sleep_reason(const Lines *lines, uint32_t tid, char letter)
{
    char text[128], path[64], *after;
    snprintf(path, sizeof path, "/proc/self/task/%u/syscall", tid);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = file < 0 ? -1 : read(file, text, sizeof text - 1);
    if (file >= 0) {
        close(file);
    }
    if (letter == 'D') {
        return HL_REASON_DISK;
    }
    if (length <= 0 || text[0] < '0' || text[0] > '9') { /* "running", "-1", or not allowed */
        return HL_REASON_UNKNOWN;
    }
    text[length] = 0;
    long number = strtol(text, &after, 10);
    switch (number) {
    case SYS_futex:
        return strtoull(after, NULL, 16) - (uintptr_t)lines->gil < lines->gil_bytes ? HL_REASON_GIL : HL_REASON_LOCK;
#ifdef SYS_nanosleep
    case SYS_nanosleep:
#endif
    case SYS_clock_nanosleep:
        return HL_REASON_SLEEP;
    case SYS_read: case SYS_readv: case SYS_recvfrom: case SYS_recvmsg: case SYS_pread64:
        return HL_REASON_INPUT;
    case SYS_write: case SYS_writev: case SYS_sendto: case SYS_sendmsg: case SYS_pwrite64:
        return HL_REASON_OUTPUT;
#ifdef SYS_poll
    case SYS_poll: case SYS_select: case SYS_epoll_wait:
#endif
    case SYS_ppoll: case SYS_pselect6: case SYS_epoll_pwait:
        return HL_REASON_EVENT;
    case SYS_wait4: case SYS_waitid:
        return HL_REASON_CHILD;
    case SYS_fsync: case SYS_fdatasync:
        return HL_REASON_DISK;
    }
    return HL_REASON_UNKNOWN;
}

/* Whether a thread was asleep at the last moment and has not had a core since: then its stack is the same. */
static bool still_asleep(Lines *lines, Watched *w, uint64_t cpu)
{
    return w->asleep && w->cpu_ns == cpu && kernel_state(lines, w, NULL) == 'S';
}

/* Fill in the states of the rows of this moment that have none. A thread whose CPU time grew while we looked was
   running. One that is ready on our own core may have had to make way for us, or may have waited before: it counts as
   running while its samples have shown less time on a core than its CPU time. */
static void find_states(Lines *lines, HL_SAMPLE_t *rows, const size_t *places, size_t count)
{
    int here = sched_getcpu();
    for (size_t i = 0; i < count; i++) {
        if (rows[i].state != HL_STATE_UNKNOWN) {
            continue;
        }
        Watched *w = watched(lines, rows[i].native_id);
        uint64_t before = lines->cpu_before[places[i]], cpu = cpu_time_of(rows[i].native_id);
        if (w == NULL || cpu == 0) {
            continue;
        }
        int64_t weight_ns = (int64_t)rows[i].weight_us * 1000;
        w->unshown_ns += w->cpu_ns ? (int64_t)(cpu - w->cpu_ns) : 0;
        if (cpu > before) {
            rows[i].state = HL_STATE_RUNNING;
        } else {
            int core = -1;
            char letter = kernel_state(lines, w, &core);
            if (letter == 'R') {
                bool displaced = core == here && w->unshown_ns > weight_ns / 2;
                rows[i].state = displaced ? HL_STATE_RUNNING : HL_STATE_RUNNABLE;
            } else if (letter != 0) {
                rows[i].state = HL_STATE_SLEEPING;
                rows[i].reason = sleep_reason(lines, rows[i].native_id, letter);
                w->asleep = letter == 'S' && w->stack.complete;
                w->reason = rows[i].reason;
            }
        }
        if (rows[i].state == HL_STATE_RUNNING) {
            w->unshown_ns -= weight_ns;
        }
        const int64_t most = 10 * weight_ns; /* chance alone makes small differences */
        w->unshown_ns = w->unshown_ns > most ? most : w->unshown_ns < -most ? -most : w->unshown_ns;
        w->cpu_ns = cpu;
    }
}

#endif

/* -- a moment ------------------------------------------------------------------------------------- */

#if FRAMES_CAN_BE_READ

/* False for a frame that is being set up, and for those the interpreter puts between others (around __init__). Python
   does not show them either. */
static bool has_begun(const InterpreterFrame *frame, const Code *code)
{
    return code->kind != CODE_OF_INTERPRETER &&
           (frame->owner == OWNED_BY_GENERATOR || instruction_index(frame) >= code->first_traceable);
}

/* Add one frame to the stack. */
static void add_frame(CodeTables *t, Stack *stack, Code *code, ptrdiff_t instruction)
{
    if (code->kind == CODE_OF_USER) {
        Position position = position_in_code(t, code, instruction);
        if (stack->count == 0) {
            stack->position = position;
        }
        add_user_frame(stack, name_code(t, code), (uint32_t)position.line);
    } else if (code->kind == CODE_OF_HOTLOOP) {
        stack->own = true;
    } else if (stack->count == 0) {
        if (stack->innermost == NO_FUNCTION) {
            stack->innermost = name_code(t, code);
        }
        stack->called_code = code; /* named at the end: only the last one counts */
        stack->called_at = code->at;
    }
}

/* Read the stack of a thread from its innermost frame outwards. */
static void read_stack(Lines *lines, const ThreadCopy *thread, char *frame_at, Stack *stack)
{
    CodeTables *t = &lines->tables;
    InterpreterFrame frames[MOST_PIECES];
    CodeCopy copies[MOST_PIECES];
    void *wanted[MOST_PIECES];
    uint32_t steps = 0;
    *stack = (Stack){.called = NO_FUNCTION, .innermost = NO_FUNCTION, .complete = true};
    copy_stack(&thread->state, &lines->stack);
    while (frame_at != NULL && steps < MOST_FRAMES && stack->complete) {
        size_t count = 0, missing = 0;
        while (frame_at != NULL && count < MOST_PIECES && steps < MOST_FRAMES) {
            InterpreterFrame *frame = &frames[count];
            steps++;
            if (!read_frame(&lines->stack, frame_at, frame)) {
                stack->complete = false;
                break;
            }
            if (frame->owner < 0 || frame->owner > OWNED_BY_C_STACK || frame->previous == frame_at) {
                stack->complete = false;
                break;
            }
            frame_at = frame->previous;
            if (frame_at == NULL && frame->owner == OWNED_BY_GENERATOR) {
                stack->complete = false; /* it has just been suspended */
            }
            if (frame->owner != OWNED_BY_C_STACK) {
                count++;
            }
        }
        /* Compare with the code objects, once in a moment each; all in one system call. */
        for (size_t i = 0; i < count; i++) {
            uint32_t slot;
            Code *code = known_code(t, frames[i].code, &slot);
            bool asked = code != NULL && code->moment == t->moment;
            for (size_t j = 0; j < missing && !asked; j++) {
                asked = wanted[j] == frames[i].code;
            }
            if (!asked) {
                wanted[missing++] = frames[i].code;
            }
        }
        size_t got = peek_many(wanted, copies, sizeof(CodeCopy), missing);
        for (size_t i = 0; i < got; i++) {
            code_at(t, wanted[i], &copies[i].code);
        }
        for (size_t i = 0; i < count; i++) {
            uint32_t slot;
            Code *code = known_code(t, frames[i].code, &slot);
            if (code == NULL || code->moment != t->moment) {
                stack->complete = false; /* no code object: the stack changed while we looked */
                break;
            }
            if (has_begun(&frames[i], code)) {
                add_frame(t, stack, code, instruction_index(&frames[i]));
            }
        }
    }
    if (stack->called_code != NULL && stack->called_code->at == stack->called_at) {
        stack->called = name_code(t, stack->called_code);
    }
}

static void find_region(Recorder *rec, HL_SAMPLE_t *row)
{
    uint32_t count = __atomic_load_n(&rec->arena_count, __ATOMIC_ACQUIRE);
    row->thread = HL_NO_THREAD;
    for (uint32_t i = 0; i < count; i++) {
        Arena *a = __atomic_load_n(&rec->arenas[i], __ATOMIC_ACQUIRE);
        if (a == NULL || a->file->native_id != row->native_id ||
            __atomic_load_n(&a->file->state, __ATOMIC_ACQUIRE) != HL_ARENA_LIVE) {
            continue;
        }
        uint32_t depth = __atomic_load_n(&a->depth, __ATOMIC_RELAXED);
        Node *node = depth <= HL_MAX_DEPTH ? __atomic_load_n(&a->open[depth].node, __ATOMIC_RELAXED) : NULL;
        row->thread = (uint16_t)a->number;
        row->node = node ? (uint16_t)node->index : 0;
        return;
    }
}

/* Add to the rows of a moment who had the GIL; `holder`: the thread's state, NULL when nobody had it. */
static void add_gil(const Lines *lines, HL_SAMPLE_t *rows, size_t count, const void *holder)
{
    uint32_t tid = 0;
    for (size_t i = 0; i < lines->thread_count && holder != NULL; i++) {
        if (lines->threads[i].at == holder) {
            tid = (uint32_t)lines->threads[i].state.native_thread_id;
        }
    }
    for (size_t i = 0; i < count && lines->gil != NULL; i++) {
        rows[i].reason |= (uint8_t)((tid && rows[i].native_id == tid ? HL_GIL_HELD : HL_GIL_ELSEWHERE) << HL_GIL_SHIFT);
    }
}

/* What a row has besides its path and its state. */
static void complete_row(CodeTables *t, Recorder *rec, HL_SAMPLE_t *row, const Stack *stack, bool opened)
{
    if (opened) {
        find_region(rec, row);
    }
    credit_functions(t, stack, row->weight_us);
}

static void *request_gil(void *unused)
{
    PyGILState_STATE state = PyGILState_Ensure();
    PyGILState_Release(state);
    return unused;
}

/* Ask the main thread to open the part. Python up to 3.12 does not tell it about a call added by another thread; it
   finds out when someone asks for the GIL, which a thread of its own does here, once in a process. */
static void ask_to_open(Lines *lines, Recorder *rec)
{
    pthread_t helper;
    lines->asked_to_open = Py_AddPendingCall(open_for_samples, rec) == 0;
    if (lines->asked_to_open && start_thread(&helper, request_gil, NULL) == 0) {
        pthread_detach(helper);
    }
}

/* Sample all threads. */
static void take_samples(Lines *lines, Recorder *rec, uint32_t own_tid, bool opened, uint64_t now, uint64_t weight_ns)
{
    CodeTables *t = &lines->tables;
    HL_SAMPLES_t *file = t->file;
    uint64_t began = read_clock(CLOCK_THREAD_CPUTIME_ID);
    uint32_t weight_us = (uint32_t)((weight_ns < LONGEST_WEIGHT_NS ? weight_ns : LONGEST_WEIGHT_NS) / 1000);
    size_t threads = copy_threads(lines->anchor, lines->threads, lines->thread_count, MOST_THREADS);
    size_t count = 0, places[MOST_THREADS];
    bool user = false;
    lines->thread_count = threads;
    t->moment++;
    file->moments++;
    if (file->count + threads > HL_MAX_SAMPLES) {
        thin_samples(file);
        lines->interval_ns *= 2;
    }
    HL_SAMPLE_t *rows = &file->rows[file->count];
    const void *holder = lines->gil != NULL ? hotloop_gil_holder(lines->gil) : NULL;
    find_frames(lines->threads, threads, lines->frames);
    for (size_t i = 0; i < threads; i++) {
        uint32_t tid = (uint32_t)lines->threads[i].state.native_thread_id;
        lines->cpu_before[i] = lines->frames[i] != NULL && tid != own_tid ? cpu_time_of(tid) : 0;
    }
    for (size_t i = 0; i < threads; i++) {
        Stack stack;
        uint32_t tid = (uint32_t)lines->threads[i].state.native_thread_id;
        if (lines->frames[i] == NULL || tid == own_tid) {
            continue;
        }
        Watched *w = watched(lines, tid);
        rows[count] = (HL_SAMPLE_t){.time_ns = now, .native_id = tid, .weight_us = weight_us, .thread = HL_NO_THREAD};
        if (w != NULL) {
            w->moment = t->moment;
            if (still_asleep(lines, w, lines->cpu_before[i])) {
                rows[count].path = (uint16_t)w->path;
                rows[count].state = HL_STATE_SLEEPING;
                rows[count].reason = w->reason;
                complete_row(t, rec, &rows[count++], &w->stack, opened);
                user |= w->stack.count > 0;
                continue;
            }
            w->asleep = false;
        }
        for (int attempt = 0; attempt < MOST_ATTEMPTS; attempt++) {
            read_stack(lines, &lines->threads[i], lines->frames[i], &stack);
            if (stack.complete) {
                break;
            }
            if (!peek(lines->threads[i].at, lines->threads[i].bytes, THREAD_STATE_BYTES)) {
                break;
            }
            find_frames(&lines->threads[i], 1, &lines->frames[i]);
            if (lines->frames[i] == NULL) {
                break;
            }
        }
        if (!stack.complete) {
            file->unread++;
        }
        if (stack.count == 0 && (stack.own || !stack.complete)) {
            continue; /* our own work, or nothing to be seen */
        }
        rows[count].path = (uint16_t)path_of_stack(t, &stack);
        if (w != NULL) {
            w->path = rows[count].path;
            w->stack = stack;
        }
        complete_row(t, rec, &rows[count], &stack, opened);
        user |= stack.count > 0;
        places[count++] = i;
    }
    find_states(lines, rows, places, count);
    add_gil(lines, rows, count, holder);
    __atomic_store_n(&file->count, file->count + (uint32_t)count, __ATOMIC_RELEASE);
    lines->user_moments += user;
    uint64_t cost = rec->clock ? 0 : read_clock(CLOCK_THREAD_CPUTIME_ID) - began;
    file->cost_ns += cost;
    if (!opened && !lines->asked_to_open && lines->user_moments >= USER_MOMENTS_TO_OPEN) {
        ask_to_open(lines, rec);
    }
}

/* Whether what we read is what Python says, for the calling thread, which holds the GIL. */
static bool check_frames(Lines *lines)
{
    PyThreadState *mine = PyThreadState_Get();
    ThreadCopy *copy = &lines->threads[0];
    char *at = NULL;
    if (copy_threads(lines->anchor, lines->threads, 0, MOST_THREADS) == 0 || !peek(mine, copy->bytes, THREAD_STATE_BYTES)) {
        return false;
    }
    find_frames(copy, 1, &at);
    copy_stack(&copy->state, &lines->stack);
    lines->tables.moment++;
    bool alike = at != NULL && copy->state.native_thread_id == PyThread_get_thread_native_id();
    PyFrameObject *frame = PyThreadState_GetFrame(mine);
    alike &= frame != NULL;
    for (int depth = 0; alike && depth < 8 && frame != NULL; depth++) {
        InterpreterFrame read;
        Code *known = NULL;
        do {
            CodeCopy now;
            alike = at != NULL && read_frame(&lines->stack, at, &read);
            at = alike ? read.previous : NULL;
            if (alike && read.owner != OWNED_BY_C_STACK) {
                alike = peek(read.code, now.bytes, CODE_BYTES) && (known = code_at(&lines->tables, read.code, &now.code)) != NULL;
            }
        } while (alike && (known == NULL || !has_begun(&read, known)));
        PyCodeObject *code = PyFrame_GetCode(frame);
        alike = alike && read.code == (char *)code &&
                instruction_index(&read) * CODE_UNIT_BYTES == PyFrame_GetLasti(frame) &&
                position_in_code(&lines->tables, known, instruction_index(&read)).line == PyFrame_GetLineNumber(frame);
        Py_DECREF(code);
        PyFrameObject *back = PyFrame_GetBack(frame);
        Py_DECREF(frame);
        frame = back;
    }
    Py_XDECREF(frame);
    return alike;
}

#endif

/* -- when ----------------------------------------------------------------------------------------- */

static uint64_t next_random(Lines *lines)
{
    lines->random ^= lines->random << 13;
    lines->random ^= lines->random >> 7;
    lines->random ^= lines->random << 17;
    return lines->random;
}

/* Choose the next moment: time is cut into strata, and each gets one sample at a random place. A sample that came
   late does not shift those after it, so busy stretches get as many as idle ones. The next stratum is `length` long,
   which is chosen before it begins, so that every moment in it is as likely as any other. */
static void plan_sample(Lines *lines, uint64_t now, uint64_t length)
{
    uint64_t start = lines->stratum_start + lines->stratum_ns;
    lines->covered_until = start;
    lines->stratum_ns = length;
    if (start + lines->stratum_ns < now) { /* late by more than one: leave those out */
        start = now;
    }
    lines->stratum_start = start;
    lines->next_ns = start + next_random(lines) % lines->stratum_ns;
    lines->tables.file->interval_ns = lines->stratum_ns;
}

#endif
