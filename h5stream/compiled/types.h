/* What Python holds of the kernels: the filters of a dataset, and what a thread undoes them with. */

typedef struct {
    PyObject_HEAD
    Scratch scratch;
    Bytes last;  /* what was decoded last, for the buffer protocol */
    int is_busy; /* whether a thread decodes with it; read and written with the GIL */
} ScratchObject;

typedef struct {
    PyObject_HEAD
    Pipeline pipeline;
} PipelineObject;

typedef struct {
    PyObject_HEAD
    Pool pool;
} PoolObject;

typedef struct {
    PyObject_HEAD
    Queue queue;
    PyObject *pool;
    Py_buffer stop, counts;
    pid_t process;
} QueueObject;

static void drop_object(PyObject *self)
{
    PyTypeObject *const type = Py_TYPE(self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

/* Return the arguments of a call of a type as functions of the module have them; NULL if one has a name. */
static PyObject *const *arguments_of(PyObject *given, PyObject *named, PyObject **each, Py_ssize_t most_count)
{
    if (named && PyDict_Size(named)) {
        PyErr_SetString(PyExc_TypeError, "arguments have no names");
        return NULL;
    }
    for (Py_ssize_t k = 0; k < most_count && k < PyTuple_Size(given); k++)
        each[k] = PyTuple_GetItem(given, k);
    return each;
}

/* --- Scratch -------------------------------------------------------------------------------------------------- */

static void drop_scratch(PyObject *self)
{
    clear_scratch(&((ScratchObject *)self)->scratch);
    drop_object(self);
}

static PyObject *address_of_scratch(PyObject *self, void *closure)
{
    (void)closure;
    return PyLong_FromVoidPtr(&((ScratchObject *)self)->scratch);
}

static int buffer_of_scratch(PyObject *self, Py_buffer *view, int flags)
{
    const Bytes last = ((ScratchObject *)self)->last;
    return PyBuffer_FillInfo(view, self, last.at ? (void *)(intptr_t)last.at : "", last.count, 1, flags);
}

static PyGetSetDef fields_of_scratch[] = {{.name = "address", .get = address_of_scratch}, {0}};

static PyType_Slot slots_of_scratch[] = {
    {Py_tp_new, PyType_GenericNew}, {Py_tp_dealloc, drop_scratch}, {Py_tp_getset, fields_of_scratch},
    {Py_bf_getbuffer, buffer_of_scratch}, {0}};

/* --- Pipeline ------------------------------------------------------------------------------------------------- */

enum { STEP_COLUMNS = 7 }; /* of a step's row: filter, is_plugin, exact, function, make, drop, value_count */

static Step step_of(const int64_t *row, const unsigned *values)
{
    return (Step){.filter = row[0], .is_plugin = row[1], .exact = row[2], .function = (void *)(intptr_t)row[3],
                  .make = (void *)(intptr_t)row[4], .drop = (void *)(intptr_t)row[5], .value_count = row[6], .values = values};
}

/* Return whether a step has the functions that it calls. */
static bool has_functions(const Step *step)
{
    const bool is_own = step->filter == SHUFFLE || step->filter == FLETCHER32 || step->filter == LZF;
    const bool has_context = !step->is_plugin && (step->filter == DEFLATE || step->filter == ZSTD);
    return ((is_own && !step->is_plugin) || step->function) && (!has_context || (step->make && step->drop));
}

/* Return whether steps fit the bytes of a chunk and the parameters. */
static bool are_steps_sound(const int64_t (*rows)[STEP_COLUMNS], int64_t count, int64_t value_count, const Pipeline *of)
{
    if (of->raw_nbytes < 0 || of->most_nbytes < of->raw_nbytes || of->most_nbytes > INT64_MAX / 8)
        return false;
    for (int64_t k = 0; k < count; k++) {
        const Step step = step_of(rows[k], NULL);
        if (step.exact < -1 || step.exact > of->most_nbytes || !has_functions(&step)
            || step.value_count < 0 || step.value_count > value_count)
            return false;
        value_count -= step.value_count;
    }
    return !value_count;
}

static void drop_pipeline(PyObject *self)
{
    free(((PipelineObject *)self)->pipeline.steps);
    free(((PipelineObject *)self)->pipeline.values);
    drop_object(self);
}

static PyObject *new_pipeline(PyTypeObject *type, PyObject *given, PyObject *named)
{
    static const Parameter parameters[] = {TABLE("steps", STEP_COLUMNS), ARRAY("values", "I", 1, 0), NUMBER("raw_nbytes"),
                                           NUMBER("most_nbytes"), NUMBER("shuffled")};
    enum { COUNT = sizeof parameters / sizeof *parameters };
    static const char name[] = "Pipeline";
    PyObject *each[COUNT];
    Call call;
    const Value *const v = call.value;
    if (!arguments_of(given, named, each, COUNT) || !take(&call, name, parameters, COUNT, each, PyTuple_Size(given)))
        return NULL;
    Pipeline of = {.raw_nbytes = v[2].number, .most_nbytes = v[3].number, .shuffled = v[4].number, .step_count = v[0].count};
    MUST(are_steps_sound(v[0].at, of.step_count, v[1].count, &of), "steps, values and bytes do not fit one another")
    of.steps = malloc((size_t)most(1, of.step_count) * sizeof *of.steps);
    of.values = malloc((size_t)most(1, v[1].count) * sizeof *of.values);
    PyObject *const self = of.steps && of.values ? PyType_GenericNew(type, given, NULL) : PyErr_NoMemory();
    if (self) {
        const unsigned *values = of.values;
        memcpy(of.values, v[1].at, (size_t)v[1].count * sizeof *of.values);
        for (int64_t k = 0; k < of.step_count; values += of.steps[k++].value_count)
            of.steps[k] = step_of((int64_t *)v[0].at + k * STEP_COLUMNS, values);
        ((PipelineObject *)self)->pipeline = of;
    } else {
        free(of.steps);
        free(of.values);
    }
    release(&call);
    return self;
}

static PyObject *address_of_pipeline(PyObject *self, void *closure)
{
    (void)closure;
    return PyLong_FromVoidPtr(&((PipelineObject *)self)->pipeline);
}

/* Undo the filters of one chunk, or some of them, without the GIL. */
static Bytes undo_without_gil(const Pipeline *of, Bytes stored, char *out, Scratch *scratch, Failure *why)
{
    Bytes data;
    Py_BEGIN_ALLOW_THREADS;
    if (is_part(of))
        data = undo_steps(of, stored, NULL, scratch, why);
    else
        data = (Bytes){undo(of, stored.at, stored.count, out, scratch, why), of->raw_nbytes};
    Py_END_ALLOW_THREADS;
    return data;
}

/* Return decoded bytes as what Python has them in: `out`, a part of `stored`, or the scratch. */
static PyObject *holder_of(Bytes data, Bytes stored, PyObject *const *given)
{
    const int64_t begin = data.at - stored.at;
    ScratchObject *const scratch = (ScratchObject *)given[2];
    if (given[1] != Py_None)
        return Py_NewRef(given[1]);
    if ((uintptr_t)data.at >= (uintptr_t)stored.at && (uintptr_t)data.at <= (uintptr_t)(stored.at + stored.count))
        return data.count == stored.count ? Py_NewRef(given[0]) : PySequence_GetSlice(given[0], begin, begin + data.count);
    scratch->last = data;
    return PyMemoryView_FromObject(given[2]);
}

static PyObject *decode(PyObject *self, PyObject *const *given, Py_ssize_t given_count)
{
    static const Parameter parameters[] = {BYTES("stored"), WRITTEN("out", "B", 1, 0)};
    static const char name[] = "decode";
    const Pipeline *const of = &((PipelineObject *)self)->pipeline;
    const State *const state = PyType_GetModuleState(Py_TYPE(self));
    const int has_out = given_count == 3 && given[1] != Py_None;
    Call call;
    Failure why;
    if (given_count != 3 || !PyObject_TypeCheck(given[2], (PyTypeObject *)state->types[SCRATCH_TYPE])) {
        PyErr_SetString(PyExc_TypeError, "decode takes stored bytes, out or None, and a Scratch");
        return NULL;
    }
    if (!take(&call, name, parameters, 1 + has_out, given, 1 + has_out))
        return NULL;
    ScratchObject *const scratch = (ScratchObject *)given[2];
    const Bytes stored = {call.value[0].at ? call.value[0].at : "", call.value[0].count};
    MUST(!has_out || (!is_part(of) && call.value[1].count == of->raw_nbytes), "out must have the bytes of a chunk")
    MUST(!scratch->is_busy, "another thread decodes with the scratch")
    scratch->is_busy = 1, scratch->last = NOTHING;
    const Bytes data = undo_without_gil(of, stored, has_out ? call.value[1].at : NULL, &scratch->scratch, &why);
    scratch->is_busy = 0;
    PyObject *const result =
        data.at ? holder_of(data, stored, given)
                : Py_BuildValue("(LLLL)", (long long)why.step, (long long)why.reason, (long long)why.first, (long long)why.second);
    release(&call);
    return result;
}

static PyGetSetDef fields_of_pipeline[] = {{.name = "address", .get = address_of_pipeline}, {0}};

static PyMethodDef methods_of_pipeline[] = {{"decode", (PyCFunction)(void (*)(void))decode, METH_FASTCALL, NULL}, {0}};

static PyType_Slot slots_of_pipeline[] = {
    {Py_tp_new, new_pipeline}, {Py_tp_dealloc, drop_pipeline}, {Py_tp_getset, fields_of_pipeline},
    {Py_tp_methods, methods_of_pipeline}, {0}};

/* --- Pool ------------------------------------------------------------------------------------------------------ */

static PyObject *new_pool(PyTypeObject *type, PyObject *given, PyObject *named)
{
    static const Parameter parameters[] = {NUMBER("threads"), NUMBER("processors")};
    static const char name[] = "Pool";
    PyObject *each[2];
    Call call;
    const Value *const v = call.value;
    if (!arguments_of(given, named, each, 2) || !take(&call, name, parameters, 2, each, PyTuple_Size(given)))
        return NULL;
    MUST(v[0].number > 0 && v[0].number <= MOST_THREADS && v[1].number > 0, "threads and processors must be positive")
    PyObject *const self = PyType_GenericNew(type, given, NULL);
    if (!self)
        return NULL;
    static int64_t pools;
    Pool *const pool = &((PoolObject *)self)->pool;
    pool->number = __atomic_add_fetch(&pools, 1, __ATOMIC_RELAXED);
    pthread_mutex_init(&pool->mutex, NULL), pthread_cond_init(&pool->changed, NULL);
    pthread_cond_init(&pool->processors.changed, NULL);
    pthread_condattr_t clock;
    pthread_condattr_init(&clock), pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&pool->has_left_python, &clock), pthread_condattr_destroy(&clock);
    pool->threads = v[0].number;
    pool->processors.mutex = &pool->mutex, pool->processors.count = v[1].number;
    pool->tickets = calloc((size_t)pool->threads, sizeof *pool->tickets);
    pool->begun = calloc((size_t)pool->threads, sizeof *pool->begun);
    pool->serving = calloc((size_t)pool->threads, sizeof *pool->serving);
    pool->since_ns = calloc((size_t)pool->threads, sizeof *pool->since_ns);
    if (!pool->tickets || !pool->begun || !pool->serving || !pool->since_ns) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return self;
}

static void drop_pool(PyObject *self)
{
    Pool *const pool = &((PoolObject *)self)->pool;
    free(pool->tickets);
    free(pool->begun);
    free(pool->since_ns);
    free(pool->serving);
    drop_object(self);
}

/* Let go of a group that no thread has any part of; gives what Python calls it. */
static PyObject *drop_group(Group *group)
{
    PyObject *const name = group->name;
    for (Share *share = group->shares, *next; share; share = next) {
        next = share->of_group;
        Held *const held = share->held;
        while (held->held_count)
            PyBuffer_Release(held->held + --held->held_count);
        Py_XDECREF(held->earlier);
        free(held);
        free(share);
    }
    free(group);
    return name;
}

/* Let go of all groups that nothing is carried out of. */
static void drop_groups(Queue *queue)
{
    Group *dropped = NULL;
    pthread_mutex_lock(&queue->pool->mutex);
    queue->first = queue->last = NULL;
    for (Group **at = &queue->groups; *at;) {
        Group *const group = *at;
        if (group->is_running) {
            at = &group->behind;
            continue;
        }
        *at = group->behind;
        group->behind = dropped, dropped = group;
    }
    pthread_mutex_unlock(&queue->pool->mutex);
    for (Group *next; dropped; dropped = next) {
        next = dropped->behind;
        Py_DECREF(drop_group(dropped));
    }
}

/* Make a share of a plan; NULL with an error set. */
static Share *new_share(PyObject *given)
{
    static const Parameter parameters[] = {MADE("plan", PLAN), LONGS("edges", 0), NUMBER("first_part"), NUMBER("descriptor"),
                                           LONGS("slots", 0), LONGS("offsets", 0), LONGS("row_nbytes", 6)};
    enum { COUNT = sizeof parameters / sizeof *parameters };
    static const char name[] = "add";
    PyObject *each[COUNT];
    Call call;
    const Value *const v = call.value;
    if (!PyTuple_Check(given)) {
        PyErr_SetString(PyExc_TypeError, "add: a share must be a tuple");
        return NULL;
    }
    if (!arguments_of(given, NULL, each, COUNT) || !take(&call, name, parameters, COUNT, each, PyTuple_Size(given)))
        return NULL;
    const Plan *const plan = v[0].at;
    const int64_t *const edges = v[1].at, count = v[1].count - 1;
    MUST(count > 0 && edges[0] >= 0 && edges[count] <= plan->count, "edges must be those of parts of the plan")
    for (int64_t k = 0; k < count; k++)
        MUST(edges[k] < edges[k + 1], "edges must ascend")
    MUST(plan->is_copy || v[3].number >= 0, "what is read needs a descriptor")
    MUST(have_places(plan, v + 4), SLOTS_FIT)
    Share *const share = calloc(1, sizeof *share);
    Held *const held = calloc(1, sizeof *held);
    if (!share || !held) {
        free(share);
        free(held);
        release(&call);
        PyErr_NoMemory();
        return NULL;
    }
    *share = (Share){.plan = plan, .edges = edges, .count = count, .first_part = v[2].number, .held = held};
    share->into = landing(v + 4, v);
    share->into.descriptor = (int)v[3].number, share->into.scratch = NULL;
    memcpy(held->held, call.held, (size_t)call.held_count * sizeof *held->held);
    held->held_count = call.held_count, held->earlier = Py_NewRef(each[0]);
    return share;
}

static PyObject *add(PyObject *self, PyObject *const *given, Py_ssize_t given_count)
{
    if (given_count != 2 || !PyList_Check(given[1]) || !PyList_Size(given[1])) {
        PyErr_SetString(PyExc_TypeError, "add takes a name, and a list of shares");
        return NULL;
    }
    Group *const group = calloc(1, sizeof *group);
    if (!group)
        return PyErr_NoMemory();
    Share **at = &group->shares;
    group->name = Py_NewRef(given[0]);
    for (Py_ssize_t k = 0; k < PyList_Size(given[1]); k++) {
        Share *const share = new_share(PyList_GetItem(given[1], k));
        if (!share) {
            Py_DECREF(drop_group(group));
            return NULL;
        }
        share->group = group, group->pending += share->count;
        *at = share, at = &share->of_group;
    }
    put_in_queue(&((QueueObject *)self)->queue, group);
    return Py_NewRef(Py_None);
}

/* Return the tickets of threads that are missing. */
static PyObject *list_of(const int64_t *numbers, int64_t count)
{
    PyObject *const list = PyList_New(0);
    for (int64_t k = 0; list && k < count; k++) {
        PyObject *const number = PyLong_FromLongLong(numbers[k]);
        if (!number || PyList_Append(list, number) < 0) {
            Py_XDECREF(number);
            Py_DECREF(list);
            return NULL;
        }
        Py_DECREF(number);
    }
    return list;
}

static PyObject *new_queue(PyTypeObject *type, PyObject *given, PyObject *named)
{
    static const Parameter parameters[] = {ARRAY("stop", "i", 1, 0), WRITTEN("counts", "q", 1, 0)};
    static const char name[] = "Queue";
    PyObject *each[3];
    Call call;
    const Value *const v = call.value;
    const Py_ssize_t count = PyTuple_Size(given);
    if (!arguments_of(given, named, each, 3))
        return NULL;
    PyTypeObject *const pools = (PyTypeObject *)((State *)PyType_GetModuleState(type))->types[POOL_TYPE];
    if (!count || !PyObject_TypeCheck(each[0], pools)) {
        PyErr_SetString(PyExc_TypeError, "Queue takes a Pool first");
        return NULL;
    }
    if (!take(&call, name, parameters, 2, each + 1, count - 1))
        return NULL;
    MUST(v[0].count == 1 && v[1].count == COUNTS, "stop must be one number, and counts as many as they are")
    PyObject *const self = PyType_GenericNew(type, given, NULL);
    if (self) {
        QueueObject *const object = (QueueObject *)self;
        object->pool = Py_NewRef(each[0]);
        object->stop = call.held[0], object->counts = call.held[1], call.held_count = 0;
        object->process = getpid();
        object->queue.pool = &((PoolObject *)each[0])->pool;
        object->queue.stop = v[0].at, object->queue.counts = v[1].at, object->queue.object = self;
    }
    release(&call);
    return self;
}

/* In a forked child the mutex may be locked for ever, and is not touched: threads that stayed in the parent have the rest. */
static void drop_queue(PyObject *self)
{
    QueueObject *const object = (QueueObject *)self;
    if (object->process == getpid() && object->queue.pool)
        drop_groups(&object->queue);
    PyBuffer_Release(&object->stop);
    PyBuffer_Release(&object->counts);
    Py_XDECREF(object->pool);
    drop_object(self);
}

/* Let go of a queue that is no longer among those of the pool; gives its owner. */
static PyObject *owner_of(Queue *queue)
{
    PyObject *const owner = queue->owner;
    queue->owner = NULL;
    Py_DECREF((PyObject *)queue->object);
    return owner;
}

static PyObject *begin_of(PyObject *self, PyObject *owner)
{
    Queue *const queue = &((QueueObject *)self)->queue;
    if (queue->is_linked || *queue->stop) {
        PyErr_SetString(PyExc_ValueError, "begin: it was begun before, or stopped");
        return NULL;
    }
    int64_t *const missing = calloc((size_t)queue->pool->threads, sizeof *missing);
    if (!missing)
        return PyErr_NoMemory();
    queue->owner = Py_NewRef(owner);
    Py_INCREF(self);
    PyObject *const tickets = list_of(missing, begin(queue, missing));
    free(missing);
    return tickets;
}

static PyObject *give_up_of(PyObject *self, PyObject *none)
{
    (void)none;
    Queue *const queue = &((QueueObject *)self)->queue;
    int64_t *const missing = calloc((size_t)queue->pool->threads, sizeof *missing);
    if (!missing)
        return PyErr_NoMemory();
    PyObject *const tickets = list_of(missing, give_up(queue, missing));
    free(missing);
    return tickets;
}

static PyObject *work_of(PyObject *self, PyObject *const *given, Py_ssize_t given_count)
{
    static const Parameter parameters[] = {NUMBER("ticket"), NUMBER("settled")};
    static const char name[] = "work";
    Pool *const pool = &((PoolObject *)self)->pool;
    const State *const state = PyType_GetModuleState(Py_TYPE(self));
    Call call;
    const Value *const v = call.value;
    if (given_count < 2 || !PyObject_TypeCheck(given[0], (PyTypeObject *)state->types[SCRATCH_TYPE])) {
        PyErr_SetString(PyExc_TypeError, "work takes a Scratch first");
        return NULL;
    }
    const int has_served = given[1] != Py_None;
    if (has_served && (!PyObject_TypeCheck(given[1], (PyTypeObject *)state->types[QUEUE_TYPE])
                       || ((QueueObject *)given[1])->pool != self)) {
        PyErr_SetString(PyExc_TypeError, "work takes a Queue of this Pool second, or None");
        return NULL;
    }
    if (!take(&call, name, parameters, 2, given + 2, given_count - 2))
        return NULL;
    ScratchObject *const scratch = (ScratchObject *)given[0];
    MUST(v[0].number > 0, "ticket must be one that was given")
    MUST(!scratch->is_busy, "another thread decodes with the scratch")
    Outcome outcome;
    Queue *const served = has_served ? &((QueueObject *)given[1])->queue : NULL;
    scratch->is_busy = 1;
    WITHOUT_GIL(outcome = work(pool, v[0].number, served, v[1].number, &scratch->scratch));
    scratch->is_busy = 0;
    release(&call);
    if (outcome.why == ENDED)
        return Py_NewRef(Py_None);
    if (outcome.why == LEFT)
        return Py_BuildValue("(ONOLLL)", Py_None, owner_of(outcome.queue), Py_None, -1LL, 0LL, 0LL);
    PyObject *const queue = outcome.queue->object, *const owner = outcome.queue->owner;
    if (outcome.why == CALLED)
        return Py_BuildValue("(OOOLLL)", queue, owner, Py_None, -1LL, 0LL, 0LL);
    if (outcome.why == COMPLETE)
        return Py_BuildValue("(OONLLL)", queue, owner, drop_group(outcome.group), -1LL, 0LL, 0LL);
    PyObject *const result =
        Py_BuildValue("(OOOLLL)", queue, owner, (PyObject *)outcome.group->name, (long long)outcome.part,
                      (long long)outcome.done, (long long)(intptr_t)outcome.group);
    pthread_mutex_lock(&pool->mutex);
    outcome.group->is_running--;
    pthread_mutex_unlock(&pool->mutex);
    return result;
}

static PyObject *lose_of(PyObject *self, PyObject *given)
{
    const long long ticket = given == Py_None ? 0 : PyLong_AsLongLong(given);
    if (given != Py_None && ticket < 1) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "lose: ticket must be one that was given");
        return NULL;
    }
    Pool *const pool = &((PoolObject *)self)->pool;
    PyObject *const owners = PyList_New(0);
    if (!owners)
        return NULL;
    lose_threads(pool, ticket);
    int is_sound = 1;
    pthread_mutex_lock(&pool->mutex);
    for (const Queue *queue = pool->queues; queue && is_sound; queue = queue->behind)
        is_sound = PyList_Append(owners, queue->owner) == 0; /* which runs nobody's code */
    pthread_mutex_unlock(&pool->mutex);
    if (!is_sound) {
        Py_DECREF(owners);
        return NULL;
    }
    return owners;
}

static PyObject *is_idle_of(PyObject *self, void *closure)
{
    Pool *const pool = &((PoolObject *)self)->pool;
    (void)closure;
    pthread_mutex_lock(&pool->mutex);
    const int is_idle = !first_going(pool);
    pthread_mutex_unlock(&pool->mutex);
    return PyBool_FromLong(is_idle);
}

static PyObject *call_of(PyObject *self, PyObject *given)
{
    const long long count = PyLong_AsLongLong(given);
    if (count < 0 && PyErr_Occurred())
        return NULL;
    call_threads(&((QueueObject *)self)->queue, most(0, count));
    return Py_NewRef(Py_None);
}

static PyObject *set_awaited_of(PyObject *self, PyObject *given)
{
    const int is_awaited = PyObject_IsTrue(given);
    if (is_awaited < 0)
        return NULL;
    set_awaited(&((QueueObject *)self)->queue, is_awaited);
    return Py_NewRef(Py_None);
}

static PyObject *set_brief_of(PyObject *self, PyObject *given)
{
    const int is_brief = PyObject_IsTrue(given);
    if (is_brief < 0)
        return NULL;
    Pool *const pool = ((QueueObject *)self)->queue.pool;
    pthread_mutex_lock(&pool->mutex);
    set_in_python(pool, is_brief);
    pthread_mutex_unlock(&pool->mutex);
    return Py_NewRef(Py_None);
}

static PyObject *let_through_of(PyObject *self, PyObject *given)
{
    const int64_t ready = PyLong_AsLongLong(given);
    if (ready == -1 && PyErr_Occurred())
        return NULL;
    Pool *const pool = ((QueueObject *)self)->queue.pool;
    if (are_starved(pool, ready)) {
        WITHOUT_GIL(let_through(pool));
    }
    return Py_NewRef(Py_None);
}

static PyObject *end_of(PyObject *self, PyObject *none)
{
    (void)none;
    Queue *const queue = &((QueueObject *)self)->queue;
    if (end_queue(queue))
        Py_DECREF(owner_of(queue));
    return Py_NewRef(Py_None);
}

static PyObject *drop_of(PyObject *self, PyObject *none)
{
    (void)none;
    drop_groups(&((QueueObject *)self)->queue);
    return Py_NewRef(Py_None);
}

/* Return a number of a queue, as it is once who counts has done so. */
static PyObject *number_of_queue(PyObject *self, void *which)
{
    Queue *const queue = &((QueueObject *)self)->queue;
    pthread_mutex_lock(&queue->pool->mutex); /* once `stop` was set, who did not see it in time is counted */
    const int64_t number = which ? queue->serving : queue->running;
    pthread_mutex_unlock(&queue->pool->mutex);
    return PyLong_FromLongLong(number);
}

static PyObject *gives_way_of(PyObject *self, void *closure)
{
    (void)closure;
    return PyBool_FromLong(gives_way(&((QueueObject *)self)->queue));
}

static PyMethodDef methods_of_pool[] = {
    {"work", (PyCFunction)(void (*)(void))work_of, METH_FASTCALL, NULL}, {"lose", lose_of, METH_O, NULL}, {0}};

static PyGetSetDef fields_of_pool[] = {{.name = "is_idle", .get = is_idle_of}, {0}};

static PyType_Slot slots_of_pool[] = {
    {Py_tp_new, new_pool}, {Py_tp_dealloc, drop_pool}, {Py_tp_getset, fields_of_pool}, {Py_tp_methods, methods_of_pool}, {0}};

static PyGetSetDef fields_of_queue[] = {
    {.name = "running", .get = number_of_queue}, {.name = "serving", .get = number_of_queue, .closure = ""},
    {.name = "gives_way", .get = gives_way_of}, {0}};

static PyMethodDef methods_of_queue[] = {
    {"begin", begin_of, METH_O, NULL}, {"add", (PyCFunction)(void (*)(void))add, METH_FASTCALL, NULL},
    {"call", call_of, METH_O, NULL}, {"set_awaited", set_awaited_of, METH_O, NULL}, {"set_brief", set_brief_of, METH_O, NULL},
    {"let_through", let_through_of, METH_O, NULL}, {"end", end_of, METH_NOARGS, NULL},
    {"drop", drop_of, METH_NOARGS, NULL}, {"give_up", give_up_of, METH_NOARGS, NULL}, {0}};

static PyType_Slot slots_of_queue[] = {
    {Py_tp_new, new_queue}, {Py_tp_dealloc, drop_queue}, {Py_tp_getset, fields_of_queue}, {Py_tp_methods, methods_of_queue}, {0}};

/* --- All ------------------------------------------------------------------------------------------------------- */

PyType_Spec TYPES[TYPE_COUNT] = {
    [SCRATCH_TYPE] = {"h5stream.compiled._native.Scratch", sizeof(ScratchObject), 0, Py_TPFLAGS_DEFAULT, slots_of_scratch},
    [PIPELINE_TYPE] = {"h5stream.compiled._native.Pipeline", sizeof(PipelineObject), 0, Py_TPFLAGS_DEFAULT, slots_of_pipeline},
    [POOL_TYPE] = {"h5stream.compiled._native.Pool", sizeof(PoolObject), 0, Py_TPFLAGS_DEFAULT, slots_of_pool},
    [QUEUE_TYPE] = {"h5stream.compiled._native.Queue", sizeof(QueueObject), 0, Py_TPFLAGS_DEFAULT, slots_of_queue}};
