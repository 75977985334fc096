/* Counting env steps and episodes from what calls return; step_counter.py does the same in Python. */
#ifndef HOTLOOP_STEP_COUNTER_H
#define HOTLOOP_STEP_COUNTER_H

#include "columns.h"
#include "progress.h"
#include "wrap.h"

#define MAX_ENDS 4
#define MAX_RECENT 16 /* envs whose last observation is kept; twin/step_counter.py has the same */

typedef struct {
    Py_ssize_t width;
    bool resets_cost_a_step;
    bool ignored; /* steps until the next reset do not count: an evaluation */
    bool sums_given; /* `episode_sums` has given a return, so rewards need not be added up */
    Py_ssize_t waiting_count; /* of the rows below */
    double *returns;
    int64_t *lengths;
    bool *waiting; /* rows whose next step is only a reset */
    PyObject *capsule; /* borrowed: owns this memory */
} Rows;

/* The observation that a step or reset of an env returned last. */
typedef struct {
    PyObject *env; /* only compared, never dereferenced */
    PyObject *observation;
    uint64_t version; /* how many observations this counter had seen then */
} Recent;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    Recorder *recorder;
    PyObject *last_env;   /* only compared, never dereferenced */
    Rows *last_rows;      /* its rows, owned by the capsule */
    PyObject *report;
    PyObject *on_step;    /* called once, with the next step; the quick way is closed until then */
    uint64_t skip_bits; /* bit_of() of `skip_inside` */
    bool counting;
    Py_ssize_t place_count;
    Py_ssize_t places[1 + MAX_ENDS]; /* in a result: of the reward, then of the flags that end an episode */
    Py_ssize_t last_place;           /* the largest of them */
    PyObject *on_unknown;
    PyObject *episode_sums;
    PyObject *resets_cost_a_step;
    Region *skip_inside;
    PyObject *rows;       /* id of an env -> capsule with its Rows */
    bool called_out;      /* Python was called for the step being counted */
    uint64_t calls;       /* steps, each of all rows */
    uint64_t path;        /* `last_path` before the last step that had one */
    uint64_t versions;
    uint32_t newest;      /* in `recent` */
    Recent recent[MAX_RECENT];
} StepCounter;

/* Keep the observation: the first item of what a step or reset returned, or the result itself. */
static inline void keep_observation(StepCounter *self, PyObject *env, PyObject *result)
{
    if (PyTuple_Check(result) && PyTuple_GET_SIZE(result) > 0) {
        result = PyTuple_GET_ITEM(result, 0);
    }
    if (self->recent[self->newest].env != env) {
        uint32_t oldest = 0;
        for (uint32_t i = 0; i < MAX_RECENT; i++) {
            if (self->recent[i].env == env) {
                oldest = i;
                break;
            }
            if (self->recent[i].version < self->recent[oldest].version) {
                oldest = i;
            }
        }
        self->newest = oldest;
    }
    Recent *entry = &self->recent[self->newest];
    entry->env = env;
    entry->version = ++self->versions;
    Py_XSETREF(entry->observation, Py_NewRef(result));
    last_path = 0;
}

static inline void keep_step(StepCounter *self, PyObject *env, PyObject *result)
{
    self->calls++;
    self->path = last_path ? last_path : self->path; /* one call may choose actions for several steps */
    keep_observation(self, env, result);
}

static void free_rows(PyObject *capsule)
{
    PyMem_Free(PyCapsule_GetPointer(capsule, NULL));
}

static Rows *new_rows(StepCounter *self, PyObject *env, PyObject *key, Py_ssize_t width)
{
    int costs = 0;
    bool ignored = false;
    if (self->resets_cost_a_step != NULL) {
        self->called_out = true;
        PyObject *answer = PyObject_CallOneArg(self->resets_cost_a_step, env);
        costs = answer ? PyObject_IsTrue(answer) : -1;
        ignored = answer == Py_None;
        Py_XDECREF(answer);
        if (costs < 0) {
            if (!report_error()) {
                return NULL;
            }
            costs = 0;
        }
    }
    size_t count = (size_t)(width ? width : 1);
    Rows *rows = PyMem_Calloc(1, sizeof(Rows) + count * (sizeof(double) + sizeof(int64_t) + sizeof(bool)));
    PyObject *capsule = rows ? PyCapsule_New(rows, NULL, free_rows) : PyErr_NoMemory();
    if (capsule == NULL) {
        PyMem_Free(rows);
        return NULL;
    }
    rows->capsule = capsule;
    rows->width = width;
    rows->resets_cost_a_step = costs;
    rows->ignored = ignored;
    rows->returns = (double *)(rows + 1);
    rows->lengths = (int64_t *)(rows->returns + count);
    rows->waiting = (bool *)(rows->lengths + count);
    self->last_env = NULL; /* its rows may be the ones being replaced */
    int failed = PyDict_SetItem(self->rows, key, capsule);
    Py_DECREF(capsule);
    return failed ? NULL : rows;
}

static Rows *rows_of(StepCounter *self, PyObject *env, Py_ssize_t width)
{
    if (LIKELY(self->last_env == env && self->last_rows->width == width)) {
        return self->last_rows;
    }
    PyObject *key = PyLong_FromVoidPtr(env);
    PyObject *found = key ? PyDict_GetItemWithError(self->rows, key) : NULL;
    Rows *rows = found ? PyCapsule_GetPointer(found, NULL) : NULL;
    if (key != NULL && !PyErr_Occurred() && (rows == NULL || rows->width != width)) {
        rows = new_rows(self, env, key, width);
    }
    Py_XDECREF(key);
    if (rows != NULL) {
        self->last_env = env;
        self->last_rows = rows;
    }
    return rows;
}

/* Ask `episode_sums` for the returns and lengths of the episodes that ended; after an error our own sums stay. One of
   the user's stays set. */
static bool ask_episode_sums(StepCounter *self, PyObject *env, PyObject *result, PyObject *finished, double *sums)
{
    bool known = false;
    self->called_out = true;
    PyObject *given = PyObject_CallFunctionObjArgs(self->episode_sums, env, result, finished, NULL);
    PyObject *pair = given && given != Py_None ? PySequence_Tuple(given) : NULL;
    if (pair != NULL && PyTuple_GET_SIZE(pair) < 2) {
        PyErr_SetString(PyExc_TypeError, "episode_sums() returns the sums of returns and lengths, or None.");
    } else if (pair != NULL) {
        double first, second;
        if (read_number(PyTuple_GET_ITEM(pair, 0), &first) && read_number(PyTuple_GET_ITEM(pair, 1), &second)) {
            sums[0] = first;
            sums[1] = second;
            known = true;
        }
    }
    Py_XDECREF(pair);
    Py_XDECREF(given);
    if (PyErr_Occurred()) {
        report_error();
    }
    return known;
}

static bool report_work(StepCounter *self, const Work *work, uint64_t now)
{
    if (self->report == NULL) {
        self->called_out |= self->recorder->steps_due > 0;
        return add_work(self->recorder, work, now);
    }
    self->called_out = true;
    PyObject *words = Py_BuildValue("{sL}", "env_steps", work->env_steps);
    if (words != NULL && work->episodes) {
        PyObject *more = work->has_return
                             ? Py_BuildValue("{sLsdsd}", "episodes", work->episodes, "episode_length", work->length,
                                             "episode_return", work->result)
                             : Py_BuildValue("{sLsd}", "episodes", work->episodes, "episode_length", work->length);
        if (more == NULL || PyDict_Update(words, more) < 0) {
            Py_CLEAR(words);
        }
        Py_XDECREF(more);
    }
    PyObject *nothing = PyTuple_New(0);
    PyObject *report = Py_NewRef(self->report); /* it may replace itself */
    PyObject *done = words && nothing ? PyObject_Call(report, nothing, words) : NULL;
    Py_DECREF(report);
    Py_XDECREF(nothing);
    Py_XDECREF(words);
    Py_XDECREF(done);
    return done != NULL;
}

/* One step of every row; columns[0] holds the rewards. False with an error set. */
static bool add_step(StepCounter *self, PyObject *env, PyObject *result, Column *columns, Py_ssize_t count,
                     uint64_t now)
{
    Py_ssize_t width = columns[0].width < 0 ? 1 : columns[0].width;
    Rows *rows = rows_of(self, env, width);
    if (rows == NULL || rows->ignored) {
        return rows != NULL;
    }
    Work work = {0};
    double sums[2] = {0, 0};
    PyObject *finished = NULL, *kept = Py_NewRef(rows->capsule); /* the callbacks may drop the rows */
    bool returns_known = !rows->sums_given;
    for (Py_ssize_t row = 0; row < width; row++) {
        if (UNLIKELY(rows->waiting[row])) {
            rows->waiting[row] = false;
            rows->waiting_count--;
            continue;
        }
        work.env_steps++;
        rows->returns[row] += column_value(&columns[0], row);
        rows->lengths[row]++;
        bool ended = false;
        for (Py_ssize_t c = 1; c < count; c++) {
            ended |= column_value(&columns[c], row) != 0;
        }
        if (UNLIKELY(ended)) {
            work.episodes++;
            sums[0] += rows->returns[row];
            sums[1] += (double)rows->lengths[row];
            rows->returns[row] = 0;
            rows->lengths[row] = 0;
            rows->waiting[row] = rows->resets_cost_a_step;
            rows->waiting_count += rows->resets_cost_a_step;
            PyObject *number = self->episode_sums && result ? PyLong_FromSsize_t(row) : NULL;
            if (number != NULL && (finished || (finished = PyList_New(0)))) {
                PyList_Append(finished, number);
            }
            Py_XDECREF(number);
        }
    }
    if (PyErr_Occurred()) { /* no memory for the list */
        Py_DECREF(kept);
        Py_XDECREF(finished);
        return false;
    }
    if (finished != NULL) {
        bool given = ask_episode_sums(self, env, result, finished, sums);
        rows->sums_given |= given;
        returns_known = given || !rows->sums_given;
        Py_DECREF(finished);
    }
    Py_DECREF(kept);
    if (work.episodes) {
        work.has_length = true;
        work.has_return = returns_known;
        work.result = sums[0] / (double)work.episodes;
        work.length = sums[1] / (double)work.episodes;
    }
    PyObject *type, *value, *trace; /* of a signal handler that interrupted `episode_sums`: the step counts all the same */
    PyErr_Fetch(&type, &value, &trace);
    bool good = report_work(self, &work, now);
    if (good) {
        PyErr_Restore(type, value, trace);
        return type == NULL;
    }
    set_context(type, value, trace);
    return false;
}

/* Open every column; false, with all of them closed, when the result cannot be read. */
static bool open_columns(StepCounter *self, PyObject *result, Column *columns, bool read_rewards)
{
    Py_ssize_t opened = 0;
    bool good = PyTuple_Check(result);
    for (; good && opened < self->place_count; opened++) {
        Py_ssize_t place = self->places[opened];
        if (place >= PyTuple_GET_SIZE(result)) {
            good = false;
            break;
        }
        if (opened == 0 && !read_rewards) { /* the first flag takes the place of the rewards */
            columns[0].has_view = false;
            continue;
        }
        if (!open_column(&columns[opened], PyTuple_GET_ITEM(result, place))) {
            good = false;
            break;
        }
        if (opened == 1 && !read_rewards) {
            columns[0].width = columns[1].width;
            columns[0].number = columns[1].number;
            columns[0].data = columns[1].data;
            columns[0].stride = columns[1].stride;
            columns[0].format = columns[1].format;
        }
        if (columns[opened].width != columns[0].width) {
            good = false;
            opened++;
            break;
        }
    }
    while (!good && opened > 0) {
        close_column(&columns[--opened]);
    }
    return good;
}

/* A step of any kind. False with an error set. */
static bool count_any(StepCounter *self, PyObject *env, PyObject *result, uint64_t now)
{
    if (!self->counting || self->recorder->epoch == 0) {
        return true;
    }
    keep_step(self, env, result);
    if (self->skip_inside != NULL && is_open(self->recorder, self->skip_inside)) {
        return true;
    }
    Column columns[1 + MAX_ENDS];
    bool read_rewards = !(self->last_env == env && self->last_rows->sums_given);
    if (!open_columns(self, result, columns, read_rewards)) {
        self->called_out |= self->on_unknown != NULL;
        PyObject *done = self->on_unknown ? PyObject_CallFunctionObjArgs(self->on_unknown, env, result, NULL) : Py_NewRef(Py_None);
        Py_XDECREF(done);
        return done != NULL;
    }
    bool good = add_step(self, env, result, columns, self->place_count, now);
    for (Py_ssize_t c = 0; c < self->place_count; c++) {
        close_column(&columns[c]);
    }
    return good;
}

/* Call `on_step`, once. False with an error of the user's set. */
static bool tell_of_step(StepCounter *self, PyObject *env, PyObject *action)
{
    PyObject *told = self->on_step;
    if (told == NULL || !self->counting || self->recorder->epoch == 0) {
        return true;
    }
    self->on_step = NULL;
    self->called_out = true;
    PyObject *done = PyObject_CallFunctionObjArgs(told, env, action, NULL);
    Py_DECREF(told);
    Py_XDECREF(done);
    return done != NULL || report_error();
}

/* False with an error set. `now` is the time, read if it is 0; `called_out` (may be NULL): whether Python was
   called. */
static bool count_step(PyObject *counter, PyObject *env, PyObject *action, PyObject *result, uint64_t now,
                       bool *called_out)
{
    StepCounter *self = (StepCounter *)counter;
    self->called_out = false;
    bool good = tell_of_step(self, env, action) && count_any(self, env, result, now);
    if (called_out != NULL) {
        *called_out = self->called_out;
    }
    return good;
}

static inline bool is_plain_false(PyObject *item)
{
    return item == Py_False || (numpy_false != NULL && item == numpy_false);
}

/* Whether it is a contiguous 1-D array of `width` values of that type. */
static inline bool is_flat(PyObject *item, char code, Py_ssize_t width, Py_ssize_t stride)
{
    const Array *array = (const Array *)item;
    return is_array(item) && array->ndim == 1 && array->shape[0] == width && array->kind->code == code &&
           array->strides[0] == stride && is_native(array);
}

/* Counts the usual step: of the same env as before, in a known form, with no episode ending. It is short
   because a training script drives it out of the caches between two steps. False, with nothing done, for any
   other step. */
static __attribute__((noinline, hot)) bool count_quickly(PyObject *counter, Arena *a, PyObject *env, PyObject *result)
{
    StepCounter *self = (StepCounter *)counter;
    if (self->last_env != env || !self->counting || self->report != NULL || self->recorder->steps_due > 0 ||
        (a->open[a->depth].bits & self->skip_bits) || !PyTuple_Check(result) ||
        self->last_place >= PyTuple_GET_SIZE(result)) {
        return false;
    }
    Rows *rows = self->last_rows;
    Py_ssize_t width = rows->width;
    PyObject **items = ((PyTupleObject *)result)->ob_item;
    PyObject *gained = items[self->places[0]], *first = items[self->places[1]];
    bool one = is_plain_false(first);
    if (rows->waiting_count != 0 || rows->ignored || (one && width != 1)) {
        return false;
    }
    for (Py_ssize_t c = 1; c < self->place_count; c++) {
        PyObject *item = items[self->places[c]];
        if (one ? !is_plain_false(item) : !is_flat(item, '?', width, 1)) {
            return false;
        }
        for (Py_ssize_t row = 0; !one && row < width; row++) {
            if (((const Array *)item)->data[row]) {
                return false;
            }
        }
    }
    if (!rows->sums_given) {
        const char *data = one ? NULL : ((const Array *)gained)->data; /* valid if it is an array */
        if (one && PyFloat_Check(gained)) {
            rows->returns[0] += PyFloat_AS_DOUBLE(gained);
        } else if (!one && is_flat(gained, 'd', width, sizeof(double))) {
            for (Py_ssize_t row = 0; row < width; row++) {
                rows->returns[row] += number_at(data + row * (Py_ssize_t)sizeof(double), 'd');
            }
        } else if (!one && is_flat(gained, 'f', width, sizeof(float))) {
            for (Py_ssize_t row = 0; row < width; row++) {
                rows->returns[row] += number_at(data + row * (Py_ssize_t)sizeof(float), 'f');
            }
        } else {
            return false;
        }
    }
    for (Py_ssize_t row = 0; row < width; row++) {
        rows->lengths[row]++;
    }
    begin_update(a);
    a->file->progress.env_steps += (uint64_t)width;
    end_update(a);
    keep_step(self, env, result);
    return true;
}

static PyObject *call_counter(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *names)
{
    if (PyVectorcall_NARGS(nargsf) != 2 || names != NULL) {
        PyErr_SetString(PyExc_TypeError, "A step counter takes an env and the result of its step.");
        return NULL;
    }
    if (!count_step(self, args[0], Py_None, args[1], 0, NULL)) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* Make a column from any sequence; the caller frees its numbers. */
static bool column_from(Column *column, PyObject *sequence, bool as_flags, double **numbers)
{
    PyObject *items = PySequence_Fast(sequence, "add() takes sequences of numbers.");
    if (items == NULL) {
        return false;
    }
    Py_ssize_t width = PySequence_Fast_GET_SIZE(items);
    *numbers = PyMem_Calloc((size_t)(width ? width : 1), sizeof(double));
    bool good = *numbers != NULL || PyErr_NoMemory() != NULL;
    for (Py_ssize_t i = 0; good && i < width; i++) {
        PyObject *item = PySequence_Fast_GET_ITEM(items, i);
        if (as_flags) {
            int yes = PyObject_IsTrue(item);
            good = yes >= 0;
            (*numbers)[i] = yes;
        } else {
            good = read_number(item, *numbers + i);
        }
    }
    *column = (Column){.width = width, .data = (char *)*numbers, .stride = sizeof(double), .format = 'd'};
    Py_DECREF(items);
    return good;
}

static PyObject *counter_add(StepCounter *self, PyObject *args)
{
    PyObject *env, *rewards, *ended;
    if (!PyArg_ParseTuple(args, "OOO", &env, &rewards, &ended)) {
        return NULL;
    }
    Column columns[2];
    double *gained = NULL, *over = NULL;
    bool good = column_from(&columns[0], rewards, false, &gained) && column_from(&columns[1], ended, true, &over);
    if (good && columns[0].width != columns[1].width) {
        PyErr_Format(PyExc_ValueError, "add() needs as many rewards (%zd) as ends (%zd).", columns[0].width,
                     columns[1].width);
        good = false;
    }
    good = good && (self->recorder->epoch == 0 || add_step(self, env, NULL, columns, 2, 0));
    PyMem_Free(gained);
    PyMem_Free(over);
    if (!good) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *counter_forget(StepCounter *self, PyObject *args)
{
    PyObject *env, *result = NULL;
    if (!PyArg_ParseTuple(args, "O|O", &env, &result)) {
        return NULL;
    }
    if (result != NULL && result != Py_None && self->counting && self->recorder->epoch != 0) {
        keep_observation(self, env, result);
    }
    PyObject *key = PyLong_FromVoidPtr(env);
    if (key == NULL) {
        return NULL;
    }
    self->last_env = NULL;
    int known = PyDict_Contains(self->rows, key);
    int failed = known < 0 || (known && PyDict_DelItem(self->rows, key) < 0);
    Py_DECREF(key);
    if (failed) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* The observations kept, newest first: (id of the env, observation, version). */
static PyObject *counter_recent(StepCounter *self, PyObject *unused)
{
    (void)unused;
    PyObject *found = PyList_New(0);
    uint64_t below = UINT64_MAX;
    for (int taken = 0; found != NULL && taken < MAX_RECENT; taken++) {
        Recent *next = NULL;
        for (int i = 0; i < MAX_RECENT; i++) {
            Recent *entry = &self->recent[i];
            if (entry->observation && entry->version < below && (next == NULL || entry->version > next->version)) {
                next = entry;
            }
        }
        if (next == NULL) {
            break;
        }
        below = next->version;
        PyObject *item = Py_BuildValue("NOK", PyLong_FromVoidPtr(next->env), next->observation, next->version);
        if (item == NULL || PyList_Append(found, item) < 0) {
            Py_CLEAR(found);
        }
        Py_XDECREF(item);
    }
    return found;
}

/* Drop the observations kept. */
static PyObject *counter_drop(StepCounter *self, PyObject *unused)
{
    (void)unused;
    for (int i = 0; i < MAX_RECENT; i++) {
        self->recent[i].env = NULL;
        Py_CLEAR(self->recent[i].observation);
    }
    Py_RETURN_NONE;
}

static bool read_places(StepCounter *self, Py_ssize_t reward, PyObject *ends)
{
    Py_ssize_t count = PyTuple_GET_SIZE(ends);
    bool good = reward >= 0 && count >= 1 && count <= MAX_ENDS;
    self->places[0] = self->last_place = reward;
    for (Py_ssize_t i = 0; good && i < count; i++) {
        self->places[1 + i] = PyNumber_AsSsize_t(PyTuple_GET_ITEM(ends, i), PyExc_OverflowError);
        if (PyErr_Occurred()) {
            return false;
        }
        good = self->places[1 + i] >= 0;
        self->last_place = Py_MAX(self->last_place, self->places[1 + i]);
    }
    self->place_count = 1 + count;
    if (!good) {
        PyErr_Format(PyExc_ValueError, "ends=%R, reward=%zd must be one to four places in a result, counted from 0.", ends,
                     reward);
    }
    return good;
}

static PyObject *counter_new(PyTypeObject *type, PyObject *args, PyObject *names)
{
    static char *words[] = {"recorder", "reward", "ends", "on_unknown", "episode_sums", "resets_cost_a_step",
                            "skip_inside", NULL};
    PyObject *recorder, *ends, *on_unknown = NULL, *episode_sums = NULL, *resets = NULL, *skip_inside = NULL;
    Py_ssize_t reward;
    if (!PyArg_ParseTupleAndKeywords(args, names, "O!nO!|$OOOO", words, &RecorderType, &recorder, &reward,
                                     &PyTuple_Type, &ends, &on_unknown, &episode_sums, &resets, &skip_inside) ||
        !is_region_or_none(skip_inside, "skip_inside")) {
        return NULL;
    }
    StepCounter *self = (StepCounter *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->vectorcall = call_counter;
    self->recorder = (Recorder *)Py_NewRef(recorder);
    self->counting = true;
    self->on_unknown = none_to_null(on_unknown);
    self->episode_sums = none_to_null(episode_sums);
    self->resets_cost_a_step = none_to_null(resets);
    self->skip_inside = (Region *)none_to_null(skip_inside);
    self->skip_bits = self->skip_inside ? bit_of(self->skip_inside->number) : 0;
    self->rows = PyDict_New();
    if (self->rows == NULL || !read_places(self, reward, ends)) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static int counter_traverse(StepCounter *self, visitproc visit, void *arg)
{
    Py_VISIT(self->recorder);
    Py_VISIT(self->on_unknown);
    Py_VISIT(self->episode_sums);
    Py_VISIT(self->resets_cost_a_step);
    Py_VISIT(self->skip_inside);
    Py_VISIT(self->report);
    Py_VISIT(self->on_step);
    Py_VISIT(self->rows);
    for (int i = 0; i < MAX_RECENT; i++) {
        Py_VISIT(self->recent[i].observation);
    }
    return 0;
}

static int counter_clear(StepCounter *self)
{
    Py_CLEAR(self->on_unknown);
    Py_CLEAR(self->episode_sums);
    Py_CLEAR(self->resets_cost_a_step);
    Py_CLEAR(self->report);
    Py_CLEAR(self->on_step);
    for (int i = 0; i < MAX_RECENT; i++) {
        Py_CLEAR(self->recent[i].observation);
    }
    return 0;
}

static void counter_dealloc(StepCounter *self)
{
    PyObject_GC_UnTrack(self);
    counter_clear(self);
    Py_XDECREF(self->rows);
    Py_XDECREF(self->skip_inside);
    Py_XDECREF(self->recorder);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *get_report(StepCounter *self, void *unused)
{
    (void)unused;
    return Py_NewRef(self->report ? self->report : Py_None);
}

static int set_report(StepCounter *self, PyObject *value, void *unused)
{
    (void)unused;
    Py_XSETREF(self->report, none_to_null(value));
    return 0;
}

static PyObject *counter_see(StepCounter *self, PyObject *args)
{
    PyObject *env, *observation;
    if (!PyArg_ParseTuple(args, "OO", &env, &observation)) {
        return NULL;
    }
    if (self->counting && self->recorder->epoch != 0) {
        keep_observation(self, env, observation);
    }
    Py_RETURN_NONE;
}

static PyObject *get_on_step(StepCounter *self, void *unused)
{
    (void)unused;
    return Py_NewRef(self->on_step ? self->on_step : Py_None);
}

static int set_on_step(StepCounter *self, PyObject *value, void *unused)
{
    (void)unused;
    Py_XSETREF(self->on_step, none_to_null(value));
    self->last_env = NULL; /* not the quick way */
    return 0;
}

static PyMethodDef counter_methods[] = {
    {"add", (PyCFunction)counter_add, METH_VARARGS, "add(env, rewards, ended): count one step of every row."},
    {"forget", (PyCFunction)counter_forget, METH_VARARGS, "forget(env, result=None): its current episodes were abandoned."},
    {"see", (PyCFunction)counter_see, METH_VARARGS, "see(env, observation): asked of it between two steps."},
    {"recent", (PyCFunction)counter_recent, METH_NOARGS,
     "The last observation of each env stepped lately, newest first: (id of the env, observation, version)."},
    {"drop", (PyCFunction)counter_drop, METH_NOARGS, "Release the observations kept for `recent`."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef counter_members[] = {
    {"counting", T_BOOL, offsetof(StepCounter, counting), 0, "Whether steps are counted."},
    {"calls", T_ULONGLONG, offsetof(StepCounter, calls), READONLY, "Steps, each of all rows of an env."},
    {"path", T_ULONGLONG, offsetof(StepCounter, path), READONLY,
     "Path of the last picked call before the last step; 0 for none."},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef counter_getset[] = {
    {"report", (getter)get_report, (setter)set_report, "Called with the arguments of progress(), instead of counting.", NULL},
    {"on_step", (getter)get_on_step, (setter)set_on_step, "Called once, with the env and the action of the next step.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyTypeObject StepCounterType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "hotloop.measure._core.StepCounter",
    .tp_doc = "Counts env steps and episodes from what calls return; twin/step_counter.py does the same in Python.",
    .tp_basicsize = sizeof(StepCounter),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(StepCounter, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_new = counter_new,
    .tp_traverse = (traverseproc)counter_traverse,
    .tp_clear = (inquiry)counter_clear,
    .tp_dealloc = (destructor)counter_dealloc,
    .tp_methods = counter_methods,
    .tp_members = counter_members,
    .tp_getset = counter_getset,
};

#endif
