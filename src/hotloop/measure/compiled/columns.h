/* Reading the numbers and arrays in what a call returned; step_counter.py does the same in Python. */
#ifndef HOTLOOP_COLUMNS_H
#define HOTLOOP_COLUMNS_H

#include "state.h"

#include <string.h>

/* One item of a result: a number, or a flat buffer of numbers. */
typedef struct {
    Py_ssize_t width; /* -1: a number */
    double number;
    const char *data;
    Py_ssize_t stride;
    char format;
    bool has_view;
    Py_buffer view;
} Column;

static inline double number_at(const char *at, char format)
{
    switch (format) {
#define READ(code, type) case code: { type value; memcpy(&value, at, sizeof value); return (double)value; }
    READ('?', unsigned char) READ('b', signed char) READ('B', unsigned char) READ('h', short)
    READ('H', unsigned short) READ('i', int) READ('I', unsigned) READ('l', long) READ('L', unsigned long)
    READ('q', long long) READ('Q', unsigned long long) READ('f', float) READ('d', double)
#undef READ
    }
    return 0;
}

/* The first fields of NumPy's arrays and dtypes, which are the same in NumPy 1 and 2: reading them takes a few
   nanoseconds, requesting a buffer several hundred. They are used once they have agreed with the buffer of an
   array. */
typedef struct {
    PyObject_HEAD
    PyTypeObject *scalar;
    char kind, code, byte_order;
} ArrayKind;

typedef struct {
    PyObject_HEAD
    char *data;
    int ndim;
    Py_ssize_t *shape, *strides; /* one piece of memory */
    PyObject *base;
    ArrayKind *kind;
} Array;

static PyTypeObject *array_type;    /* the type whose fields are read; NULL until they have been checked */
static PyTypeObject *unlike_arrays; /* a type named like arrays, but with other fields */

/* Compare the fields of `item` with its buffer `view`; if they agree, read the fields of this type from now on. */
static __attribute__((noinline, cold)) void check_array(PyObject *item, const Py_buffer *view)
{
    PyTypeObject *type = Py_TYPE(item);
    const Array *array = (const Array *)item;
    if (array_type != NULL || type == unlike_arrays || view->ndim != 1 || strcmp(type->tp_name, "numpy.ndarray") != 0) {
        return;
    }
    PyObject *kind = PyObject_GetAttrString(item, "dtype");
    bool alike = kind != NULL && type->tp_basicsize >= (Py_ssize_t)sizeof(Array) && array->data == view->buf &&
                 array->ndim == 1 && array->strides == array->shape + 1 && array->shape[0] == view->shape[0] &&
                 array->strides[0] == view->strides[0] && (PyObject *)array->kind == kind &&
                 array->kind->code == view->format[0];
    Py_XDECREF(kind);
    PyErr_Clear();
    PyTypeObject **kept = alike ? &array_type : &unlike_arrays;
    Py_INCREF(type);
    *kept = type;
}

static PyObject *numpy_false; /* NumPy's only False; NULL until first seen */

static inline bool is_array(PyObject *item)
{
    return array_type != NULL && Py_IS_TYPE(item, array_type);
}

static inline bool is_native(const Array *array)
{
    return array->kind->byte_order == '=' || array->kind->byte_order == '|';
}

static inline bool is_readable(char code)
{
    return code != 0 && strchr("?bBhHiIlLqQfd", code) != NULL;
}

static void close_column(Column *column)
{
    if (column->has_view) {
        PyBuffer_Release(&column->view);
        column->has_view = false;
    }
}

/* False, without an error, when the item cannot be read. */
static bool open_column(Column *column, PyObject *item)
{
    column->has_view = false;
    column->width = -1;
    if (item == Py_False || item == Py_True) {
        column->number = item == Py_True;
        return true;
    }
    if (PyFloat_Check(item)) {
        column->number = PyFloat_AS_DOUBLE(item);
        return true;
    }
    if (PyLong_Check(item)) {
        column->number = PyLong_AsDouble(item);
        bool fits = !(column->number == -1.0 && PyErr_Occurred());
        PyErr_Clear();
        return fits;
    }
    if (is_array(item)) {
        const Array *array = (const Array *)item;
        if (array->ndim == 1 && is_native(array) && is_readable(array->kind->code)) {
            column->format = array->kind->code;
            column->width = array->shape[0];
            column->stride = array->strides[0];
            column->data = array->data;
            return true;
        }
    }
    if (!PyObject_CheckBuffer(item)) {
        return false;
    }
    if (PyObject_GetBuffer(item, &column->view, PyBUF_RECORDS_RO) < 0) {
        PyErr_Clear();
        return false;
    }
    column->has_view = true;
    const Py_buffer *view = &column->view;
    const char *format = view->format ? view->format : "B";
    if (view->ndim > 1 || !is_readable(format[0]) || format[1] != 0) {
        close_column(column);
        return false;
    }
    check_array(item, view);
    column->format = format[0];
    if (view->ndim == 0) {
        column->number = number_at(view->buf, column->format);
        close_column(column);
        if (numpy_false == NULL && column->number == 0 && strncmp(Py_TYPE(item)->tp_name, "numpy.bool", 10) == 0) {
            numpy_false = Py_NewRef(item);
        }
        return true;
    }
    column->width = view->shape[0];
    column->stride = view->strides[0];
    column->data = view->buf;
    return true;
}

static inline double column_value(const Column *column, Py_ssize_t row)
{
    return column->width < 0 ? column->number : number_at(column->data + row * column->stride, column->format);
}

#endif
