/* The module `h5stream.compiled._native`, and the kernels for any processor. */

#include "native.h"

#define FUNCTIONS functions
#define TYPES types
#include "kernels.h"

static PyType_Spec *chosen = types; /* those for this processor */

static int add_types(PyObject *module)
{
    State *const state = PyModule_GetState(module);
    for (int k = 0; k < TYPE_COUNT; k++)
        if (!(state->types[k] = PyType_FromModuleAndSpec(module, chosen + k, NULL))
            || PyModule_AddType(module, (PyTypeObject *)state->types[k]) < 0)
            return -1;
    return 0;
}

static int add_constants(PyObject *module)
{
    PyObject *const none_wrong = PyLong_FromLongLong(NONE_WRONG);
    const int added = none_wrong ? PyModule_AddObjectRef(module, "NONE_WRONG", none_wrong) : -1;
    Py_XDECREF(none_wrong);
    if (added < 0 || PyModule_AddIntConstant(module, "COUNTS", COUNTS) < 0
        || PyModule_AddIntConstant(module, "A_COLUMN", A_COLUMN) < 0)
        return -1;
    return PyModule_AddIntConstant(module, "UNCOPIED_NBYTES", UNCOPIED_NBYTES);
}

static int traverse(PyObject *module, visitproc visit, void *arg)
{
    State *const state = PyModule_GetState(module);
    for (int k = 0; k < TYPE_COUNT; k++)
        Py_VISIT(state->types[k]);
    return 0;
}

static int clear(PyObject *module)
{
    State *const state = PyModule_GetState(module);
    for (int k = 0; k < TYPE_COUNT; k++)
        Py_CLEAR(state->types[k]);
    return 0;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, add_types}, {Py_mod_exec, add_constants}, {0}};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "_native", .m_methods = functions, .m_slots = slots,
                                        .m_size = sizeof(State), .m_traverse = traverse, .m_clear = clear};

PyMODINIT_FUNC PyInit__native(void)
{
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx2"))
        definition.m_methods = functions_avx2, chosen = types_avx2;
#endif
    return PyModuleDef_Init(&definition);
}
