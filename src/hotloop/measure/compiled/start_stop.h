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

/* Within a callout, or from start(): open a new part and publish all names in it. */
static bool open_part(Recorder *rec)
{
    forget_nodes(rec);
    if (rec->part != NULL) {
        call_and_forget(PyObject_CallMethod(rec->part, "forget", NULL));
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
    rec->published = 0;
    publish_regions(rec);
    rec->sampler = new_sampler(rec);
    return !failed;
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
        return NULL;
    }
    self->epoch = ++last_epoch;
    if (!lazily) {
        attach(self);
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
    Sampler *sampler = self->sampler;
    self->sampler = NULL;
    if (sampler != NULL) {
        Py_BEGIN_ALLOW_THREADS
        stop_sampler(sampler);
        Py_END_ALLOW_THREADS
    }
    PyObject *part = self->part;
    self->part = NULL;
    if (self->unopened) { /* this process has recorded nothing itself */
        self->unopened = false;
        forget_nodes(self);
        if (part != NULL) {
            call_and_forget(PyObject_CallMethod(part, "forget", NULL));
            Py_DECREF(part);
        }
        Py_RETURN_NONE;
    }
    if (mine != NULL) {
        begin_update(mine);
        settle(mine, mine->open[mine->depth].node, now);
        end_update(mine);
        take_window(self, mine, now);
    }
    forget_nodes(self);
    PyObject *done = PyObject_CallMethod(part, "close", "K", (unsigned long long)now);
    if (done == NULL) {
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

static PyObject *recorder_open_depth(Recorder *self, PyObject *argument)
{
    uint64_t thread = PyLong_AsUnsignedLongLong(argument);
    if (PyErr_Occurred()) {
        return NULL;
    }
    for (uint32_t i = 0; self->epoch && i < self->arena_count; i++) {
        Arena *a = self->arenas[i];
        if (a && a->file->state == HL_ARENA_LIVE && a->file->native_id == thread) {
            return PyLong_FromUnsignedLong(a->depth);
        }
    }
    return PyLong_FromLong(0);
}

static PyObject *recorder_now(Recorder *self, PyObject *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLongLong(now_ns(self));
}

#endif
