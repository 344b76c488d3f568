/* The loop around the calls of a block: refresh, call, digest. It is machine code because a loop in Python takes 2 to 4 us a call.
 * That would be subtracted from the measurement, and a candidate that replaced the loop by a quicker one would gain the
 * difference. Here there is nothing worth replacing.
 *
 * The module is called by Python's own protocol. Declared by hand, so that no header of Python's is needed: these few
 * functions are the same in every version from 3.9 on. */
#include <stddef.h>
#include <stdint.h>
#include <time.h>

typedef struct object_s { char opaque; } PyObject;

extern PyObject *PyObject_Call(PyObject *callable, PyObject *arguments, PyObject *keywords);
extern PyObject *PyObject_CallFunctionObjArgs(PyObject *callable, ...);
extern PyObject *PyObject_VectorcallMethod(PyObject *name, PyObject *const *arguments, size_t count, PyObject *names);
extern PyObject *PyObject_Type(PyObject *object);
extern unsigned long long PyLong_AsUnsignedLongLong(PyObject *number);
extern PyObject *PyErr_Occurred(void);
extern void PyErr_SetString(PyObject *type, const char *message);
extern PyObject *PyList_New(intptr_t length);
extern PyObject *PyList_GetItem(PyObject *list, intptr_t index);
extern int PyList_SetItem(PyObject *list, intptr_t index, PyObject *item);
extern intptr_t PyList_Size(PyObject *list);
extern intptr_t PySequence_Size(PyObject *sequence);
extern PyObject *PySequence_GetItem(PyObject *sequence, intptr_t index);
extern PyObject PyTuple_Type, PyList_Type;
extern void Py_DecRef(PyObject *object);

/* chain.c */
extern uint64_t kw_digest(const uint8_t *output, uint64_t bytes, uint64_t state);
extern uint64_t kw_stirred(uint64_t state, uint64_t when);
extern uint64_t kw_marked(uint64_t state, uint64_t when);
extern void kw_refresh(const void *inputs, uint64_t inputs_count, uint64_t state);

enum { MOST_OUTPUTS = 256 };

/* What the loop needs of Python's, and what a block of it does. */
typedef struct {
    PyObject *tensor_type; /* results of exactly this type are outputs by themselves */
    PyObject *flatten;     /* makes a list of tensors of any other result */
    PyObject *span_bytes;  /* the bytes from the first to the last of a tensor's elements */
    PyObject *data_ptr;    /* the name of the method that tells where a tensor begins */
    PyObject *contract_error;
} python_t;

static int is_a(PyObject *object, PyObject *wanted) {
    PyObject *type = PyObject_Type(object);
    Py_DecRef(type); /* the object keeps it */
    return type == wanted;
}

/* A sequence of tensors as a new list; NULL, without an error, of anything else. */
static PyObject *row_of_sequence(const python_t *python, PyObject *result) {
    const intptr_t count = PySequence_Size(result);
    PyObject *row = count > 0 ? PyList_New(count) : NULL;
    for (intptr_t i = 0; row && i < count; ++i) {
        PyObject *item = PySequence_GetItem(result, i);
        const int is_tensor = is_a(item, python->tensor_type);
        PyList_SetItem(row, i, item);
        if (!is_tensor) {
            Py_DecRef(row);
            row = NULL;
        }
    }
    return row;
}

/* The outputs of one call as a new list; NULL with an error set. Takes the reference to the result. */
static PyObject *row_of(const python_t *python, PyObject *result) {
    PyObject *row = NULL;
    if (is_a(result, python->tensor_type)) {
        if (!(row = PyList_New(1))) Py_DecRef(result);
        else PyList_SetItem(row, 0, result);
        return row;
    }
    if (is_a(result, &PyTuple_Type) || is_a(result, &PyList_Type)) row = row_of_sequence(python, result);
    if (!row && !PyErr_Occurred()) row = PyObject_CallFunctionObjArgs(python->flatten, result, NULL);
    Py_DecRef(result);
    return row;
}

static int number_of(PyObject *number, uint64_t *value) {
    if (!number) return -1;
    *value = PyLong_AsUnsignedLongLong(number);
    Py_DecRef(number);
    return *value == UINT64_MAX && PyErr_Occurred() ? -1 : 0;
}

/* Sixteen unpredictable bits: the processor's own clock, if a program can read it directly. */
static uint64_t now(void) {
    uint64_t ticks;
#if defined(__x86_64__)
    ticks = __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
#else
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    ticks = (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
#endif
    return ticks * 0x9E3779B97F4A7C15ull >> 48;
}

/* Calls forward once per slot; 0, or -1 with an error set.
 *
 * arguments: a list of tuples, one per call. tables: per call its refresh_t, inputs_count each; NULL where nothing is chained.
 * outputs: a list as long, whose items become lists of tensors. states: what the chain's state was after each call. */
int kw_walk(const python_t *python, PyObject *forward, PyObject *arguments, const void *const *tables,
            uint64_t inputs_count, uint64_t calls, uint64_t state, PyObject *outputs, uint64_t *states) {
    /* Those of the first call; the referee, too, goes by these. */
    uint64_t span_bytes[MOST_OUTPUTS];
    intptr_t outputs_count = 0;
    for (uint64_t call = 0; call < calls; ++call) {
        if (tables) kw_refresh(tables[call], inputs_count, state);
        PyObject *result = PyObject_Call(forward, PyList_GetItem(arguments, (intptr_t)call), NULL);
        PyObject *row = result ? row_of(python, result) : NULL;
        if (!row) return -1;
        PyList_SetItem(outputs, (intptr_t)call, row);
        const intptr_t count = PyList_Size(row);
        if (tables && call == 0) {
            if (count > MOST_OUTPUTS) return PyErr_SetString(python->contract_error, "there are too many outputs"), -1;
            outputs_count = count;
            for (intptr_t i = 0; i < count; ++i)
                if (number_of(PyObject_CallFunctionObjArgs(python->span_bytes, PyList_GetItem(row, i), NULL), &span_bytes[i]))
                    return -1;
        }
        if (tables && count != outputs_count)
            return PyErr_SetString(python->contract_error, "the number of outputs changes from call to call"), -1;
        const uint64_t when = tables ? now() : 0;
        if (tables) state = kw_stirred(state, when);
        for (intptr_t i = 0; tables && i < count; ++i) {
            PyObject *tensor = PyList_GetItem(row, i);
            uint64_t address;
            if (number_of(PyObject_VectorcallMethod(python->data_ptr, &tensor, 1, NULL), &address)) return -1;
            state = kw_digest((const uint8_t *)(uintptr_t)address, span_bytes[i], state);
        }
        if (tables) state = kw_marked(state, when);
        states[call] = state;
    }
    return 0;
}
