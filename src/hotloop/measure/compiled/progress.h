/* `Recorder.progress`, and what a device did during a call. */
#ifndef HOTLOOP_PROGRESS_H
#define HOTLOOP_PROGRESS_H

#include "region.h"

typedef struct {
    long long env_steps, updates, episodes;
    double length, result, loss;
    bool has_length, has_return, has_loss;
} Work;

static bool read_work(Work *work, PyObject *word, PyObject *value)
{
    struct { PyObject *word; long long *count; } counts[] = {
        {word_env_steps, &work->env_steps}, {word_updates, &work->updates}, {word_episodes, &work->episodes}};
    struct { PyObject *word; double *value; bool *given; } values[] = {
        {word_episode_length, &work->length, &work->has_length},
        {word_episode_return, &work->result, &work->has_return},
        {word_loss, &work->loss, &work->has_loss}};
    for (int i = 0; i < 3; i++) {
        if (word == counts[i].word || PyUnicode_Compare(word, counts[i].word) == 0) {
            PyObject *whole = PyNumber_Index(value);
            int beyond = 0; /* -1 or 1: less or more than a long long */
            *counts[i].count = whole ? PyLong_AsLongLongAndOverflow(whole, &beyond) : -1;
            Py_XDECREF(whole);
            if (!PyErr_Occurred() && beyond > 0) {
                PyErr_Format(PyExc_ValueError, "progress(%U=%R) is too large.", word, value);
            } else if (!PyErr_Occurred() && *counts[i].count < 0) {
                PyErr_Format(PyExc_ValueError, "progress(%U=%R) must not be negative: counts only rise.", word, value);
            }
            return !PyErr_Occurred();
        }
        if (word == values[i].word || PyUnicode_Compare(word, values[i].word) == 0) {
            *values[i].given = value != Py_None;
            return value == Py_None || read_number(value, values[i].value);
        }
    }
    PyErr_Format(PyExc_TypeError,
                 "progress() got an unexpected %R; it takes env_steps, updates, episodes, episode_length, "
                 "episode_return and loss.", word);
    return false;
}

/* Count work; false, with an error set, when the on_steps callback or a signal handler of the user's has raised.
   `now` is the time, read here if it is 0. */
static bool add_work(Recorder *rec, const Work *work, uint64_t now)
{
    if (rec->epoch == 0) {
        return true;
    }
    Local *local = &locals[rec->slot];
    if (local->epoch != rec->epoch && !attach(rec)) {
        return !PyErr_Occurred();
    }
    Arena *a = local->arena;
    HL_PROGRESS_t *p = &a->file->progress;
    uint64_t ended = work->episodes ? (uint64_t)work->episodes : 1;
    uint64_t updated = work->updates ? (uint64_t)work->updates : 1;
    begin_update(a);
    p->env_steps += (uint64_t)work->env_steps;
    p->updates += (uint64_t)work->updates;
    p->episodes += (uint64_t)work->episodes;
    if (work->has_length) {
        p->length_sum += work->length * (double)ended;
        p->length_count += ended;
    }
    if (work->has_return) {
        p->return_sum += work->result * (double)ended;
        p->return_count += ended;
    }
    if (work->has_loss) {
        p->loss_sum += work->loss * (double)updated;
        p->loss_count += updated;
    }
    end_update(a);
    now = now ? now : now_ns(rec);
    if (now >= a->due) {
        begin_update(a);
        settle(a, a->open[a->depth].node, now);
        end_update(a);
        if (!window_due(rec, a, now)) {
            return false;
        }
    }
    if (rec->steps_due > 0 && work->env_steps && rec->on_steps != NULL) {
        rec->steps_due -= work->env_steps;
        if (rec->steps_due <= 0) {
            rec->steps_due = 0; /* the callback sets it again */
            PyObject *done = PyObject_CallNoArgs(rec->on_steps);
            Py_XDECREF(done);
            return done != NULL;
        }
    }
    return true;
}

static PyObject *recorder_progress(Recorder *self, PyObject *const *args, Py_ssize_t nargs, PyObject *names)
{
    Work work = {0};
    if (nargs) {
        PyErr_SetString(PyExc_TypeError, "progress() takes keyword arguments only, as in progress(env_steps=8).");
        return NULL;
    }
    for (Py_ssize_t i = 0; names && i < PyTuple_GET_SIZE(names); i++) {
        if (!read_work(&work, PyTuple_GET_ITEM(names, i), args[i])) {
            return NULL;
        }
    }
    if (!add_work(self, &work, 0)) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *recorder_credit_device(Recorder *self, PyObject *args)
{
    unsigned long long handle, peak;
    PyObject *time;
    long long growth;
    if (!PyArg_ParseTuple(args, "KOLK", &handle, &time, &growth, &peak)) {
        return NULL;
    }
    uint32_t number = (uint32_t)(handle >> 32), index = (uint32_t)handle;
    Arena *a = number < self->arena_count ? self->arenas[number] : NULL;
    if (a == NULL || index >= a->node_count) {
        Py_RETURN_NONE;
    }
    HL_NODE_t *f = a->nodes[index]->file;
    if (time == Py_None) {
        f->device_growth_bytes += growth;
        if (peak > f->device_peak_bytes) {
            f->device_peak_bytes = peak;
        }
    } else {
        unsigned long long ns = PyLong_AsUnsignedLongLong(time);
        if (PyErr_Occurred()) {
            return NULL;
        }
        f->device_ns += ns;
        f->device_calls++;
    }
    Py_RETURN_NONE;
}

#endif
