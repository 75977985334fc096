/* Python types for ring.h: Ring, Bell and Board over any writable buffer, usually shared memory.
 *
 * The memory belongs to the caller; the objects hold a reference to its buffer until `release`. Waits release
 * the GIL and wake up every 50 ms to handle signals.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "ring.h"

#define SLICE_NS 50000000ull

typedef struct {
    PyObject_HEAD
    Py_buffer buffer;
    void *memory; /* NULL once released */
} Shared;

static int shared_open(Shared *self, PyObject *source, Py_ssize_t least) {
    if (PyObject_GetBuffer(source, &self->buffer, PyBUF_WRITABLE)) return -1;
    if (self->buffer.len < least || (uintptr_t)self->buffer.buf % 64) {
        PyErr_Format(PyExc_ValueError, "the buffer has %zd bytes; at least %zd are needed, aligned to 64",
                     self->buffer.len, least);
        PyBuffer_Release(&self->buffer);
        return -1;
    }
    self->memory = self->buffer.buf;
    return 0;
}

static void shared_dealloc(PyObject *object) {
    Shared *self = (Shared *)object;
    PyTypeObject *type = Py_TYPE(object);
    if (self->memory) PyBuffer_Release(&self->buffer);
    type->tp_free(object);
    Py_DECREF(type);
}

static PyObject *shared_release(PyObject *object, PyObject *Py_UNUSED(ignored)) {
    Shared *self = (Shared *)object;
    if (self->memory) PyBuffer_Release(&self->buffer);
    self->memory = NULL;
    Py_RETURN_NONE;
}

static void *memory_of(PyObject *object) {
    void *memory = ((Shared *)object)->memory;
    if (!memory) PyErr_SetString(PyExc_ValueError, "the memory was released; create a new object");
    return memory;
}

/* ---- Bell */

static int bell_init(PyObject *object, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"buffer", NULL};
    PyObject *source;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O", names, &source)) return -1;
    return shared_open((Shared *)object, source, sizeof(Bell));
}

static PyObject *bell_count(PyObject *object, PyObject *Py_UNUSED(ignored)) {
    Bell *bell = memory_of(object);
    return bell ? PyLong_FromUnsignedLong(atomic_load(&bell->count)) : NULL;
}

static PyObject *py_bell_ring(PyObject *object, PyObject *Py_UNUSED(ignored)) {
    Bell *bell = memory_of(object);
    if (!bell) return NULL;
    bell_ring(bell);
    Py_RETURN_NONE;
}

static PyObject *bell_wait(PyObject *object, PyObject *args) {
    Bell *bell = memory_of(object);
    unsigned int seen;
    double timeout_s;
    if (!bell || !PyArg_ParseTuple(args, "Id", &seen, &timeout_s)) return NULL;
    uint64_t start = now_ns(), most = timeout_s > 0 ? (uint64_t)(timeout_s * 1e9) : 0, waited = 0;
    atomic_fetch_add(&bell->sleeps, 1);
    while (atomic_load(&bell->count) == seen && waited < most) {
        uint64_t slice = most - waited < SLICE_NS ? most - waited : SLICE_NS;
        Py_BEGIN_ALLOW_THREADS
        bell_sleep(bell, seen, slice);
        Py_END_ALLOW_THREADS
        if (PyErr_CheckSignals()) {
            atomic_fetch_sub(&bell->sleeps, 1);
            return NULL;
        }
        waited = now_ns() - start;
    }
    atomic_fetch_sub(&bell->sleeps, 1);
    return PyBool_FromLong(atomic_load(&bell->count) != seen);
}

static PyMethodDef bell_methods[] = {
    {"count", bell_count, METH_NOARGS, "How often it has rung; pass it to wait()."},
    {"ring", py_bell_ring, METH_NOARGS, "Wake all waiting threads and processes."},
    {"wait", bell_wait, METH_VARARGS,
     "wait(seen, timeout_s): sleep until the count differs from `seen`; returns whether it does."},
    {"release", shared_release, METH_NOARGS, "Release the buffer; the object is unusable afterwards."},
    {NULL, NULL, 0, NULL},
};

/* ---- Ring */

static int ring_init(PyObject *object, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"buffer", "record_bytes", "create", NULL};
    PyObject *source;
    Py_ssize_t record_bytes;
    int create = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "On|p", names, &source, &record_bytes, &create)) return -1;
    if (record_bytes < 1) {
        PyErr_SetString(PyExc_ValueError, "a record needs at least one byte");
        return -1;
    }
    Shared *self = (Shared *)object;
    if (shared_open(self, source, RING_HEADER_BYTES + record_bytes)) return -1;
    Ring *ring = self->memory;
    if (create) {
        memset(ring, 0, RING_HEADER_BYTES);
        ring->record_bytes = (uint64_t)record_bytes;
        ring->capacity = (uint64_t)((self->buffer.len - RING_HEADER_BYTES) / record_bytes);
        ring->magic = RING_MAGIC;
    } else if (ring->magic != RING_MAGIC || ring->record_bytes != (uint64_t)record_bytes) {
        PyErr_Format(PyExc_ValueError, "this memory holds no ring of records of %zd bytes", record_bytes);
        return -1;
    }
    return 0;
}

/* For reserve and peek: wait until something is available; returns the first contiguous records. */
static PyObject *wait_for(PyObject *object, PyObject *args, int producer) {
    Ring *ring = memory_of(object);
    unsigned long long most_records;
    double timeout_s = 0;
    if (!ring || !PyArg_ParseTuple(args, "K|d", &most_records, &timeout_s)) return NULL;
    uint64_t (*available)(Ring *) = producer ? ring_room : ring_pending;
    Bell *bell = producer ? &ring->room : &ring->data;
    uint64_t found = available(ring);
    if (!found && timeout_s > 0) {
        uint64_t start = now_ns(), most = (uint64_t)(timeout_s * 1e9), waited = 0;
        _Atomic uint64_t *total = producer ? &ring->producer_wait_ns : &ring->consumer_wait_ns;
        while (!found && waited < most && !atomic_load(&ring->closed)) {
            uint64_t slice = most - waited < SLICE_NS ? most - waited : SLICE_NS;
            Py_BEGIN_ALLOW_THREADS
            found = ring_wait(ring, bell, available, slice);
            Py_END_ALLOW_THREADS
            uint64_t now = now_ns() - start;
            atomic_fetch_add_explicit(total, now - waited, memory_order_relaxed);
            waited = now;
            if (PyErr_CheckSignals()) return NULL;
        }
    }
    _Atomic uint64_t *own = producer ? &ring->head : &ring->tail;
    uint64_t position = atomic_load_explicit(own, memory_order_relaxed);
    uint64_t count = found < most_records ? found : most_records;
    return Py_BuildValue("KK", position % ring->capacity, ring_run(ring, position, count));
}

static PyObject *ring_reserve(PyObject *object, PyObject *args) { return wait_for(object, args, 1); }
static PyObject *ring_peek(PyObject *object, PyObject *args) { return wait_for(object, args, 0); }

static PyObject *move(PyObject *object, PyObject *argument, int producer) {
    Ring *ring = memory_of(object);
    uint64_t records = ring ? PyLong_AsUnsignedLongLong(argument) : 0;
    if (!ring || PyErr_Occurred()) return NULL;
    if (records > (producer ? ring_room(ring) : ring_pending(ring))) {
        PyErr_Format(PyExc_ValueError, producer ? "no room for %llu records" : "fewer than %llu records are pending",
                     (unsigned long long)records);
        return NULL;
    }
    if (producer) ring_commit(ring, records);
    else ring_release(ring, records);
    Py_RETURN_NONE;
}

static PyObject *py_ring_commit(PyObject *object, PyObject *argument) { return move(object, argument, 1); }
static PyObject *py_ring_release(PyObject *object, PyObject *argument) { return move(object, argument, 0); }

static PyObject *ring_drop(PyObject *object, PyObject *argument) {
    Ring *ring = memory_of(object);
    uint64_t records = ring ? PyLong_AsUnsignedLongLong(argument) : 0;
    if (!ring || PyErr_Occurred()) return NULL;
    atomic_fetch_add_explicit(&ring->dropped, records, memory_order_relaxed);
    Py_RETURN_NONE;
}

static PyObject *ring_close(PyObject *object, PyObject *Py_UNUSED(ignored)) {
    Ring *ring = memory_of(object);
    if (!ring) return NULL;
    atomic_store(&ring->closed, 1);
    bell_ring(&ring->room);
    bell_ring(&ring->data);
    Py_RETURN_NONE;
}

static PyObject *ring_state(PyObject *object, PyObject *Py_UNUSED(ignored)) {
    Ring *ring = memory_of(object);
    if (!ring) return NULL;
    uint64_t head = atomic_load(&ring->head), tail = atomic_load(&ring->tail);
    return Py_BuildValue("{sKsKsKsKsKsKsO}", "capacity", ring->capacity, "handed_over", head, "given_back", tail,
                         "dropped", atomic_load(&ring->dropped), "producer_wait_ns",
                         atomic_load(&ring->producer_wait_ns), "consumer_wait_ns",
                         atomic_load(&ring->consumer_wait_ns), "closed",
                         atomic_load(&ring->closed) ? Py_True : Py_False);
}

static PyMethodDef ring_methods[] = {
    {"reserve", ring_reserve, METH_VARARGS, "reserve(most, timeout_s=0) -> (first, count) records to write."},
    {"commit", py_ring_commit, METH_O, "Hand over the first `count` reserved records."},
    {"peek", ring_peek, METH_VARARGS, "peek(most, timeout_s=0) -> (first, count) records to read."},
    {"give_back", py_ring_release, METH_O, "Let the producer reuse the first `count` pending records."},
    {"drop", ring_drop, METH_O, "Count records that were dropped on purpose."},
    {"close", ring_close, METH_NOARGS, "End all waits, now and in future."},
    {"state", ring_state, METH_NOARGS, "Counters since creation, as a dict."},
    {"release", shared_release, METH_NOARGS, "Release the buffer; the object is unusable afterwards."},
    {NULL, NULL, 0, NULL},
};

/* ---- Board */

static int board_init(PyObject *object, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"buffer", "bytes", "create", NULL};
    PyObject *source;
    Py_ssize_t bytes;
    int create = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "On|p", names, &source, &bytes, &create)) return -1;
    if (bytes < 8 || bytes % 8) {
        PyErr_SetString(PyExc_ValueError, "the size of a block must be a multiple of 8 bytes, at least 8");
        return -1;
    }
    Shared *self = (Shared *)object;
    if (shared_open(self, source, BOARD_HEADER_BYTES + 2 * bytes)) return -1;
    Board *board = self->memory;
    if (create) {
        memset(board, 0, BOARD_HEADER_BYTES);
        board->bytes = (uint64_t)bytes;
        board->magic = BOARD_MAGIC;
    } else if (board->magic != BOARD_MAGIC || board->bytes != (uint64_t)bytes) {
        PyErr_Format(PyExc_ValueError, "this memory holds no board of %zd bytes", bytes);
        return -1;
    }
    return 0;
}

static int block_of(PyObject *source, Py_buffer *block, Board *board, int flags) {
    if (PyObject_GetBuffer(source, block, flags)) return -1;
    if ((uint64_t)block->len == board->bytes && (uintptr_t)block->buf % 8 == 0) return 0;
    PyErr_Format(PyExc_ValueError, "the block has %zd bytes; it needs the board's %llu, aligned to 8", block->len,
                 (unsigned long long)board->bytes);
    PyBuffer_Release(block);
    return -1;
}

static PyObject *py_board_publish(PyObject *object, PyObject *source) {
    Board *board = memory_of(object);
    Py_buffer block;
    if (!board || block_of(source, &block, board, PyBUF_SIMPLE)) return NULL;
    Py_BEGIN_ALLOW_THREADS
    board_publish(board, block.buf);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&block);
    return PyLong_FromUnsignedLongLong(atomic_load(&board->version));
}

static PyObject *py_board_read(PyObject *object, PyObject *args) {
    Board *board = memory_of(object);
    PyObject *target;
    unsigned long long known = 0;
    Py_buffer block;
    if (!board || !PyArg_ParseTuple(args, "O|K", &target, &known)) return NULL;
    if (block_of(target, &block, board, PyBUF_WRITABLE)) return NULL;
    uint64_t version;
    Py_BEGIN_ALLOW_THREADS
    version = board_read(board, block.buf, known);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&block);
    return PyLong_FromUnsignedLongLong(version);
}

static PyObject *board_version(PyObject *object, PyObject *Py_UNUSED(ignored)) {
    Board *board = memory_of(object);
    return board ? PyLong_FromUnsignedLongLong(atomic_load(&board->version)) : NULL;
}

static PyMethodDef board_methods[] = {
    {"publish", py_board_publish, METH_O, "Publish a block of bytes; returns its version, from 1 up."},
    {"read", py_board_read, METH_VARARGS, "read(into, known=0): copy the newest block; 0 if none is newer than known."},
    {"version", board_version, METH_NOARGS, "The newest version; 0 before the first."},
    {"release", shared_release, METH_NOARGS, "Release the buffer; the object is unusable afterwards."},
    {NULL, NULL, 0, NULL},
};

/* ---- module */

#define TYPE(NAME, INIT, METHODS, DOC)                                                                      \
    static PyType_Slot NAME##_slots[] = {                                                                   \
        {Py_tp_new, PyType_GenericNew}, {Py_tp_init, INIT},  {Py_tp_dealloc, shared_dealloc},               \
        {Py_tp_methods, METHODS},       {Py_tp_doc, (void *)DOC}, {0, NULL},                                \
    };                                                                                                      \
    static PyType_Spec NAME##_spec = {"hotloop.rl.collect._transport." #NAME, sizeof(Shared), 0,            \
                                      Py_TPFLAGS_DEFAULT, NAME##_slots};

TYPE(Bell, bell_init, bell_methods, "Bell(buffer): lets processes wake each other; needs 64 zeroed bytes.")
TYPE(Ring, ring_init, ring_methods, "Ring(buffer, record_bytes, create=False): one producer, one consumer.")
TYPE(Board, board_init, board_methods, "Board(buffer, bytes, create=False): one writer, many readers.")

static int exec_module(PyObject *module) {
    PyType_Spec *specs[] = {&Bell_spec, &Ring_spec, &Board_spec};
    const char *names[] = {"Bell", "Ring", "Board"};
    for (int i = 0; i < 3; i++) {
        PyObject *type = PyType_FromSpec(specs[i]);
        if (!type || PyModule_AddObjectRef(module, names[i], type)) return -1;
        Py_DECREF(type);
    }
    if (PyModule_AddIntConstant(module, "BELL_BYTES", sizeof(Bell))) return -1;
    if (PyModule_AddIntConstant(module, "RING_HEADER_BYTES", RING_HEADER_BYTES)) return -1;
    return PyModule_AddIntConstant(module, "BOARD_HEADER_BYTES", BOARD_HEADER_BYTES);
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, exec_module}, {0, NULL}};
static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_transport", "Lock-free data transfer between processes.", 0, NULL, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__transport(void) { return PyModuleDef_Init(&definition); }
