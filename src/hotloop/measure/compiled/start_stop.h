/* Starting, stopping and pausing a recorder; methods that ask it about itself. */
#ifndef HOTLOOP_START_STOP_H
#define HOTLOOP_START_STOP_H

#include "region.h"
#include "sampler.h"

#include <unistd.h>

static void forget_nodes(Recorder *rec)
{
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(rec->regions); i++) {
        Region *region = (Region *)PyList_GET_ITEM(rec->regions, i);
        region->last = (Last){NULL, NULL};
    }
    for (uint32_t i = 0; i < rec->arena_count; i++) {
        Arena *a = rec->arenas[i];
        rec->arenas[i] = NULL;
        if (a != NULL) {
            free_arena(a);
        }
    }
    rec->arena_count = 0;
    rec->folded = NULL;
    rec->node_count = 0;
}

/* Within a callout, or from start(): open a new part. False with an error set, also one of our own. */
static bool open_part(Recorder *rec)
{
    forget_nodes(rec);
    rec->unopened = true;
    if (rec->part != NULL) {
        PyObject *done = PyObject_CallMethod(rec->part, "forget", NULL);
        if (done == NULL) {
            return false;
        }
        Py_DECREF(done);
        Py_CLEAR(rec->part);
    }
    Py_XSETREF(rec->sections, PyList_New(0));
    PyObject *part = rec->sections ? PyObject_CallNoArgs(rec->open_part) : NULL;
    PyObject *header = part ? PyObject_GetAttrString(part, "header") : NULL;
    Py_buffer view;
    if (header == NULL || PyObject_GetBuffer(header, &view, PyBUF_WRITABLE) < 0) {
        Py_XDECREF(header);
        Py_XDECREF(part);
        return false;
    }
    rec->header = view.buf;
    PyBuffer_Release(&view);
    int failed = PyList_Append(rec->sections, header);
    Py_DECREF(header);
    rec->part = part;
    rec->part_serial++;
    rec->unopened = failed || !open_sampler(rec);
    return !rec->unopened;
}

static void end_sampler(Recorder *rec)
{
    Sampler *sampler = rec->sampler;
    rec->sampler = NULL;
    if (sampler != NULL) {
        Py_BEGIN_ALLOW_THREADS
        stop_sampler(sampler);
        Py_END_ALLOW_THREADS
    }
}

/* After open_part has failed in start(): its error stays set. */
static void give_up_part(Recorder *rec)
{
    PyObject *type, *value, *trace, *part = rec->part;
    PyErr_Fetch(&type, &value, &trace);
    rec->part = NULL;
    rec->unopened = false;
    end_sampler(rec);
    PyObject *done = part ? PyObject_CallMethod(part, "forget", NULL) : Py_NewRef(Py_None);
    Py_XDECREF(part);
    if (done != NULL) {
        Py_DECREF(done);
        PyErr_Restore(type, value, trace);
    } else {
        set_context(type, value, trace);
    }
}

static PyObject *recorder_start(Recorder *self, PyObject *args, PyObject *names)
{
    static char *words[] = {"open_part", "sample_memory", "lazily", NULL};
    PyObject *opener;
    int memory = 1, lazily = 0;
    if (!PyArg_ParseTupleAndKeywords(args, names, "O|pp", words, &opener, &memory, &lazily)) {
        return NULL;
    }
    if (self->epoch) {
        PyErr_SetString(PyExc_RuntimeError, "This recorder is already recording.");
        return NULL;
    }
    Py_XSETREF(self->open_part, Py_NewRef(opener));
    self->sample_memory = memory;
    self->unopened = lazily;
    if (!lazily && !open_part(self)) {
        give_up_part(self);
        return NULL;
    }
    self->epoch = ++last_epoch;
    if (!lazily && !attach(self) && PyErr_Occurred()) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* A pending call, on the main thread: open the part of a process that runs the user's code without any region. */
static int open_for_samples(void *recorder)
{
    Recorder *rec = recorder;
    for (int slot = 0; slot < MAX_RECORDERS; slot++) {
        if (recorders[slot] == rec && rec->sampler != NULL && rec->sampler->lines != NULL) {
            if (rec->unopened && !attach(rec) && rec->sampler != NULL && rec->sampler->lines != NULL) {
                rec->sampler->lines->asked_to_open = false; /* hotloop itself was at work: ask again */
            }
        }
    }
    return PyErr_Occurred() ? -1 : 0;
}

#if FRAMES_CAN_BE_READ

static bool add_prefix(CodeTables *t, PyObject *path, uint8_t kind)
{
    Py_ssize_t length;
    const char *text = PyUnicode_AsUTF8AndSize(path, &length);
    if (text == NULL) {
        PyErr_Clear(); /* a path that is not valid UTF-8 */
        return true;
    }
    if (length == 0 || length >= PREFIX_BYTES || t->prefix_count >= MOST_PREFIXES) {
        return length == 0;
    }
    Prefix *prefix = &t->prefixes[t->prefix_count++];
    memcpy(prefix->text, text, (size_t)length);
    prefix->length = (size_t)length;
    prefix->kind = kind;
    return true;
}

/* New tables, in memory of their own; NULL with `reason` set when stacks cannot be read here. */
static Lines *new_lines(Recorder *rec, PyObject *own, PyObject *libraries, uint64_t interval, const char **reason)
{
    Lines *lines = PyMem_RawCalloc(1, sizeof(Lines));
    HL_SAMPLES_t *file = lines ? PyMem_RawCalloc(1, sizeof(HL_SAMPLES_t)) : NULL;
    *reason = "there is no memory for it";
    if (file == NULL) {
        PyMem_RawFree(lines);
        return NULL;
    }
    lines->private_file = lines->tables.file = file;
    lines->anchor = lasting_thread();
    lines->gil = hotloop_gil_place(&lines->gil_bytes);
    if (lines->gil != NULL && hotloop_gil_holder(lines->gil) != PyThreadState_Get()) {
        lines->gil = NULL; /* this build keeps it elsewhere: not known */
        lines->gil_bytes = 0;
    }
    lines->interval_ns = lines->stratum_ns = file->interval_ns = interval;
    lines->random = read_clock(CLOCK_MONOTONIC) * 2654435761u | 1;
    lines->stratum_start = lines->covered_until = now_ns(rec);
    lines->next_ns = lines->stratum_start + next_random(lines) % interval;
    file->method = HL_SAMPLED_NATIVELY;
    file->path_count = 1; /* path 0 stands for all that do not fit */
    bool fit = add_prefix(&lines->tables, own, CODE_OF_HOTLOOP);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(libraries) && fit; i++) {
        fit = add_prefix(&lines->tables, PyTuple_GET_ITEM(libraries, i), CODE_OF_LIBRARY);
    }
    char probe;
    *reason = !fit ? "the paths of the libraries are too long"
              : !peek(&probe, &probe, 1) ? "the system does not allow process_vm_readv"
              : !check_frames(lines) ? "this build of Python has frames of an unknown layout" : NULL;
    if (*reason != NULL) {
        free_lines(lines);
        return NULL;
    }
    return lines;
}

#endif

/* Returns None, or why lines cannot be sampled natively. */
static PyObject *recorder_sample_lines(Recorder *self, PyObject *args, PyObject *names)
{
    static char *words[] = {"own", "libraries", "interval_ns", NULL};
    PyObject *own, *libraries;
    unsigned long long interval = HL_FIRST_SAMPLE_NS;
    if (!PyArg_ParseTupleAndKeywords(args, names, "UO!|K", words, &own, &PyTuple_Type, &libraries, &interval)) {
        return NULL;
    }
    if (interval == 0 || (self->epoch == 0 && self->paused_epoch == 0)) {
        PyErr_SetString(interval ? PyExc_RuntimeError : PyExc_ValueError,
                        interval ? "This recorder is not recording." : "The interval must be positive.");
        return NULL;
    }
    if (self->sampler != NULL && self->sampler->lines != NULL) {
        Py_RETURN_NONE;
    }
#if FRAMES_CAN_BE_READ
    const char *reason;
    Lines *lines = new_lines(self, own, libraries, interval, &reason);
    if (lines == NULL) {
        return PyUnicode_FromString(reason);
    }
    if (self->unopened) { /* samples stay in memory until the part is opened */
        self->sampler = self->sampler ? self->sampler : new_sampler(self);
    } else {
        Callout saved = begin_callout(self);
        HL_SAMPLES_t *file = new_section(self, HL_SECTION_SAMPLES, 0, 0);
        if (!end_callout(self, saved) || file == NULL) {
            free_lines(lines);
            return PyErr_Occurred() ? NULL : PyUnicode_FromString("there is no space for it");
        }
        memcpy(file, lines->private_file, sizeof *file);
        PyMem_RawFree(lines->private_file);
        lines->private_file = NULL;
        lines->tables.file = file;
    }
    if (self->sampler == NULL) {
        free_lines(lines);
        return PyUnicode_FromString("there is no memory for it");
    }
    pthread_mutex_lock(&self->sampler->mutex);
    self->sampler->lines = lines;
    pthread_cond_signal(&self->sampler->wake);
    pthread_mutex_unlock(&self->sampler->mutex);
    Py_RETURN_NONE;
#else
    return PyUnicode_FromString("hotloop does not know the frames of this version of Python");
#endif
}

/* Open the part of a process that has only been sampled so far. */
static PyObject *recorder_save_samples(Recorder *self, PyObject *unused)
{
    (void)unused;
    if (self->unopened && self->sampler != NULL && self->sampler->lines != NULL &&
        self->sampler->lines->user_moments >= USER_MOMENTS_TO_OPEN && !attach(self) && PyErr_Occurred()) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *recorder_resume(Recorder *self, PyObject *unused);

static PyObject *recorder_stop(Recorder *self, PyObject *unused)
{
    Py_XDECREF(recorder_resume(self, unused));
    if (self->epoch == 0) {
        Py_RETURN_NONE;
    }
    uint64_t now = now_ns(self);
    Local *local = &locals[self->slot];
    if (local->calling_out) {
        PyErr_SetString(PyExc_RuntimeError, "stop() was called while hotloop itself was at work (by a signal handler?); call it again.");
        return NULL;
    }
    Arena *mine = local->epoch == self->epoch ? local->arena : NULL;
    pthread_mutex_lock(&registry_lock);
    self->epoch = 0;
    pthread_mutex_unlock(&registry_lock);
    while (self->calling_out) { /* another thread is in the middle of a slow path */
        Py_BEGIN_ALLOW_THREADS
        usleep(100);
        Py_END_ALLOW_THREADS
    }
    end_sampler(self);
    PyObject *part = self->part;
    self->part = NULL;
    if (self->unopened) { /* this process has recorded nothing itself */
        self->unopened = false;
        forget_nodes(self);
        PyObject *done = part ? PyObject_CallMethod(part, "forget", NULL) : Py_NewRef(Py_None);
        Py_XDECREF(done);
        Py_XDECREF(part);
        return done ? Py_NewRef(Py_None) : NULL;
    }
    if (mine != NULL) {
        begin_update(mine);
        settle(mine, mine->open[mine->depth].node, now);
        end_update(mine);
        take_window(self, mine, now);
    }
    forget_nodes(self);
    PyObject *done = PyObject_CallMethod(part, "close", "K", (unsigned long long)now);
    if (done == NULL) { /* a signal handler has raised: do what is left, then raise that */
        PyObject *type, *value, *trace;
        PyErr_Fetch(&type, &value, &trace);
        done = PyObject_CallMethod(part, "close", "K", (unsigned long long)now);
        if (done != NULL) {
            PyErr_Restore(type, value, trace);
        } else {
            set_context(type, value, trace);
        }
        Py_XDECREF(done);
        Py_DECREF(part);
        return NULL;
    }
    Py_DECREF(done);
    return part;
}

static PyObject *recorder_pause(Recorder *self, PyObject *unused)
{
    (void)unused;
    if (self->epoch) {
        self->paused_epoch = self->epoch;
        self->epoch = 0;
    }
    Py_RETURN_NONE;
}

static PyObject *recorder_resume(Recorder *self, PyObject *unused)
{
    (void)unused;
    if (self->paused_epoch) {
        self->epoch = self->paused_epoch;
        self->paused_epoch = 0;
    }
    Py_RETURN_NONE;
}

static PyObject *recorder_sample(Recorder *self, PyObject *unused)
{
    (void)unused;
    if (self->sampler != NULL) {
        uint64_t now = now_ns(self);
        pthread_mutex_lock(&self->sampler->mutex);
        sample(self->sampler, now);
        pthread_mutex_unlock(&self->sampler->mutex);
    }
    Py_RETURN_NONE;
}

static PyObject *recorder_take_line_sample(Recorder *self, PyObject *unused)
{
    (void)unused;
    if (self->sampler != NULL && self->sampler->lines != NULL) {
        uint64_t now = now_ns(self);
        pthread_mutex_lock(&self->sampler->mutex);
        sample_lines_now(self->sampler, now);
        pthread_mutex_unlock(&self->sampler->mutex);
    }
    Py_RETURN_NONE;
}

/* (number of the thread, index of its innermost open region); (-1, 0) for a thread that has opened none. */
static PyObject *recorder_open_node(Recorder *self, PyObject *argument)
{
    uint64_t thread = PyLong_AsUnsignedLongLong(argument);
    if (PyErr_Occurred()) {
        return NULL;
    }
    for (uint32_t i = 0; self->epoch && i < self->arena_count; i++) {
        Arena *a = self->arenas[i];
        if (a && a->file->state == HL_ARENA_LIVE && a->file->native_id == thread) {
            return Py_BuildValue("iI", (int)a->number, a->open[a->depth].node->index);
        }
    }
    return Py_BuildValue("ii", -1, 0);
}

static PyObject *recorder_now(Recorder *self, PyObject *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLongLong(now_ns(self));
}

#endif
