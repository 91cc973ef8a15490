/* The module `h5stream.compiled._native`, and the kernels for any processor. */

#include "native.h"

#define FUNCTIONS functions
#include "kernels.h"

static int add_constants(PyObject *module)
{
    PyObject *const none_wrong = PyLong_FromLongLong(NONE_WRONG);
    const int added = none_wrong ? PyModule_AddObjectRef(module, "NONE_WRONG", none_wrong) : -1;
    Py_XDECREF(none_wrong);
    return added < 0 ? -1 : PyModule_AddIntConstant(module, "UNCOPIED_NBYTES", UNCOPIED_NBYTES);
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, add_constants}, {0}};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "_native", .m_methods = functions, .m_slots = slots};

PyMODINIT_FUNC PyInit__native(void)
{
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx2"))
        definition.m_methods = functions_avx2;
#endif
    return PyModuleDef_Init(&definition);
}
