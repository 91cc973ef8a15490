/* The threads of an engine, and a queue of plans for each of its passes. A thread comes from Python, and stays here, without
Python's lock, for as long as there is a pass: part after part, whatever runs Python meanwhile. It goes back for what Python has
to do: a call, a part that could not be brought, a window of which nothing is left to bring, a pass that ended. One pass follows
another without a thread that ends or begins.

Guarantees: all members are read and written under `mutex`, but what a part is carried out with, which nobody changes once it is
in the queue. What Python counts references of is let go of with Python's lock alone. Nobody waits for it while it holds `mutex`. */

enum { MOST_THREADS = 1 << 20, PATIENCE_NS = 100000, SHORTEST_STEP_NS = 50000, MOST_YIELDED_NS = 2000000, SHORT_STEP_NS = 1000000, FEW_READY = 8, LONG_STAY_NS = 100000000 };

typedef struct Share Share;
typedef struct Group Group;
typedef struct Queue Queue;

/* A plan, cut into parts of some MiB each. */
struct Share {
    const Plan *plan;
    const int64_t *edges; /* where each part begins, and the last ends, in units of the plan */
    int64_t count, next, first_part; /* parts; the next one, the number of the first */
    Landing into;
    Group *group;
    Share *behind; /* in the queue, or among all of the group's */
    Share *of_group;
    void *held; /* what Python lets go of */
};

/* What was added together. */
struct Group {
    int64_t pending;  /* parts that are not done with */
    int64_t is_running; /* threads that carry one out, or bring to Python what was not brought */
    Share *shares;
    Group *behind;
    void *name; /* Python's */
};

typedef struct {
    int64_t number; /* no other has, or had */
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    Queue *queues;    /* of the passes that are under way, the earliest first */
    int64_t threads;  /* that it has while there is a pass */
    int64_t *tickets; /* of each thread by its number: 0 where it is missing */
    int64_t *begun;   /* of each thread the ticket that it came with */
    int64_t *since_ns; /* of each thread since when Python needs it for a moment: it waits for its lock, or has it; else 0 */
    Queue **serving;  /* of each thread the queue that it has something of */
    int64_t generation; /* of the newest ticket */
    int64_t turns;    /* how often a thread took something of any pass */
    int64_t idle;     /* threads that wait */
    int64_t copying;  /* threads that carry out what copies */
    int64_t in_python; /* how many threads Python needs for a moment, and how often one was done with that */
    int64_t left_python;
    pthread_cond_t has_left_python;
    pthread_t loop;    /* the thread that asked for a batch last, when it did or got it, and the processor time it had had then */
    int64_t asked_ns, used_ns;
    int64_t came_ns; /* when the loop asked last */
    Processors processors;
} Pool;

/* What a pass has to do. */
struct Queue {
    Pool *pool;
    Share *first, *last;
    Group *groups;      /* all that were added and are not complete */
    const volatile int32_t *stop;
    int64_t *counts;    /* what its parts counted */
    int64_t calls;      /* for how many threads Python has something to do */
    int64_t running;    /* threads that carry something out */
    int64_t serving;    /* threads that have something of it, here or in Python */
    int64_t turn;       /* when a thread last took something of it */
    int is_awaited;     /* whether the training loop waits for it */
    int is_linked;       /* whether it is among those of the pool */
    Queue *behind;
    void *object, *owner; /* Python's */
};

/* Why a thread goes back to Python: no pass is under way; a call; a part that was not brought; a group that is complete; a queue
that was stopped, which nobody has anything of. */
enum { ENDED, CALLED, NOT_BROUGHT, COMPLETE, LEFT };

typedef struct {
    int why;
    Queue *queue;
    Group *group;
    int64_t part, done; /* of one that was not brought: its number, and the first unit that is still to be brought */
} Outcome;

/* Return whether a pass comes before one that began earlier: a loop waits for it alone, or for both, and they take turns. */
static int comes_before(const Queue *queue, const Queue *earlier)
{
    return !earlier || (queue->is_awaited && (!earlier->is_awaited || queue->turn < earlier->turn));
}

/* Return the first share of a queue that a thread may take a part of, and the one before it. */
static Share *first_share(const Pool *pool, const Queue *queue, Share **before)
{
    *before = NULL;
    for (Share *share = *queue->stop ? NULL : queue->first; share; *before = share, share = share->behind)
        if (!share->plan->is_copy || pool->copying < most_taken(&pool->processors))
            return share;
    return NULL;
}

/* Return the share that a thread takes a part of next, its queue, and the share before it there. */
static Share *next_share(const Pool *pool, Queue **of, Share **before)
{
    Share *share, *chosen = NULL, *ahead;
    *of = NULL;
    for (Queue *queue = pool->queues; queue; queue = queue->behind)
        if (comes_before(queue, *of) && (share = first_share(pool, queue, &ahead)))
            chosen = share, *of = queue, *before = ahead;
    return chosen;
}

/* Return the next queue for which Python has something to do. */
static Queue *next_call(const Pool *pool)
{
    Queue *chosen = NULL;
    for (Queue *queue = pool->queues; queue; queue = queue->behind)
        if (queue->calls && !*queue->stop && comes_before(queue, chosen))
            chosen = queue;
    return chosen;
}

/* Wake a thread if there is something to do for one more. */
static void wake_next(Pool *pool)
{
    Queue *of;
    Share *before;
    if (pool->idle && (next_call(pool) || next_share(pool, &of, &before)))
        pthread_cond_signal(&pool->changed);
}

/* The number of the pool that the calling thread is one of, its ticket; whether it comes back from Python for parts, and the group
of the last part that it took. */
static _Thread_local int64_t own_pool, own_ticket, own_is_back_for_parts;
static _Thread_local const Group *own_group;

/* Return whether parts of a queue wait while all threads are in Python, such as for answers of a store: a batch may lack no more
than these. */
static int are_parts_left(const Pool *pool, const Queue *queue)
{
    Share *before;
    return !pool->idle && !queue->running && first_share(pool, queue, &before);
}

/* Return whether a thread that does something of a queue in Python is to come back: for parts of it, or for another pass, which
takes its turn. */
static int gives_way(const Queue *queue)
{
    Pool *const pool = queue->pool;
    Queue *share_of = NULL;
    Share *before;
    pthread_mutex_lock(&pool->mutex);
    const Queue *const called = next_call(pool);
    next_share(pool, &share_of, &before);
    const int is_other = (called && called != queue && comes_before(called, queue))
                         || (share_of && share_of != queue && comes_before(share_of, queue));
    own_is_back_for_parts = are_parts_left(pool, queue);
    pthread_mutex_unlock(&pool->mutex);
    return is_other || own_is_back_for_parts;
}

/* Take a part; return its number in the share. */
static int64_t take_part(Queue *queue, Share *share, Share *before)
{
    const int64_t part = share->next++;
    if (share->next == share->count) {
        *(before ? &before->behind : &queue->first) = share->behind;
        if (queue->last == share)
            queue->last = before;
    }
    return part;
}

static void add_counts(int64_t *to, const int64_t *counts)
{
    for (int k = 0; k < COUNTS; k++)
        to[k] += k == FAILED_AT || k == FAILED_NBYTES ? 0 : counts[k];
}

/* Count a part as done with; return whether it was the last of its group, which then is no longer among all. */
static int is_last(Queue *queue, Group *group)
{
    if (--group->pending)
        return 0;
    for (Group **at = &queue->groups; *at; at = &(*at)->behind)
        if (*at == group) {
            *at = group->behind;
            break;
        }
    return 1;
}

/* Carry a part out, without the mutex meanwhile; return the first unit that was not brought. */
static int64_t carry_out(Queue *queue, const Share *share, int64_t part, Scratch *scratch)
{
    Pool *const pool = queue->pool;
    int64_t own[COUNTS] = {0};
    const int is_copy = share->plan->is_copy;
    Landing into = share->into;
    into.scratch = scratch, into.stop = queue->stop, into.counts = own, into.processors = &pool->processors;
    queue->running++, share->group->is_running++, pool->copying += is_copy;
    pthread_mutex_unlock(&pool->mutex);
    const int64_t done = share->plan->land(share->plan, share->edges[part], share->edges[part + 1], &into);
    pthread_mutex_lock(&pool->mutex);
    queue->running--, share->group->is_running--, pool->copying -= is_copy;
    add_counts(queue->counts, own);
    return done;
}

/* Return the first pass that was not stopped. */
static const Queue *first_going(const Pool *pool)
{
    const Queue *queue = pool->queues;
    while (queue && *queue->stop)
        queue = queue->behind;
    return queue;
}

/* Note that Python does not need a thread any more; called with the mutex. */
static void leave_python(Pool *pool, int64_t number)
{
    if (!pool->since_ns[number])
        return;
    pool->since_ns[number] = 0, pool->in_python--, pool->left_python++;
    pthread_cond_broadcast(&pool->has_left_python);
}

/* Count a thread as missing: if it is there after all, it ends once it comes back. */
static void count_as_missing(Pool *pool, int64_t number)
{
    leave_python(pool, number);
    pool->tickets[number] = 0, pool->serving[number] = NULL;
}

/* Let all threads end, if there is nothing left to wait for, and count on none: one that was to begin may never have done so. */
static void end_threads(Pool *pool)
{
    if (first_going(pool))
        return;
    for (int64_t k = 0; k < pool->threads; k++)
        count_as_missing(pool, k);
    pthread_cond_broadcast(&pool->changed);
}

/* Take a queue from those of the pool, if it was stopped and nobody has anything of it; return whether it was. Its references
are the caller's then. */
static int is_left(Queue *queue)
{
    if (!queue->is_linked || queue->serving || !*queue->stop)
        return 0;
    for (Queue **at = &queue->pool->queues; *at; at = &(*at)->behind)
        if (*at == queue) {
            *at = queue->behind;
            break;
        }
    queue->is_linked = 0;
    queue->pool->processors.awaited -= queue->is_awaited, queue->is_awaited = 0; /* who waits may have been interrupted */
    end_threads(queue->pool);
    return 1;
}

/* Count the calling thread as one that Python needs for a moment, or as none, unless it was given up; called with the mutex. */
static void set_in_python(Pool *pool, int is_brief)
{
    const int64_t number = own_ticket % pool->threads;
    if (own_pool != pool->number || pool->tickets[number] != own_ticket)
        return;
    if (!is_brief)
        leave_python(pool, number);
    else if (!pool->since_ns[number])
        pool->since_ns[number] = now_ns(), pool->in_python++;
}

/* Return the processor time that the calling thread has had. */
static int64_t used_ns(void)
{
    struct timespec used;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    return (int64_t)used.tv_sec * 1000000000 + used.tv_nsec;
}

/* Note that the training loop begins a step, or ended one, which took a processor or did not; called with the mutex. */
static void note_step(Pool *pool, int has_ended)
{
    const int64_t now = now_ns();
    if (has_ended && now - pool->asked_ns < SHORT_STEP_NS)
        return; /* and goes on measuring */
    const int64_t used = used_ns();
    if (has_ended && pool->asked_ns && pthread_equal(pool->loop, pthread_self())) {
        pool->processors.is_spare = 2 * (used - pool->used_ns) < now - pool->asked_ns;
        if (pool->processors.is_spare && pool->processors.waiting)
            pthread_cond_signal(&pool->processors.changed);
        if (pool->processors.is_spare)
            wake_next(pool);
    }
    pool->loop = pthread_self(), pool->asked_ns = now, pool->used_ns = used;
}

/* Return whether threads wait for Python's lock in vain: a loop that lets it go for a moment, again and again, starts their turn of
5 ms anew each time, and may keep it from them for as long as it likes. One that does nothing but ask keeps it for moments, and
one that has many batches to take first needs none of them yet. A thread that is there for long waits for something else. */
static int are_starved(Pool *pool, int64_t ready)
{
    const int64_t now = now_ns();
    pthread_mutex_lock(&pool->mutex);
    note_step(pool, 1);
    int is_so = 0;
    for (int64_t k = 0; pool->in_python && k < pool->threads; k++)
        is_so |= pool->since_ns[k] && now - pool->since_ns[k] > PATIENCE_NS && now - pool->since_ns[k] < LONG_STAY_NS;
    is_so &= now - pool->came_ns > SHORTEST_STEP_NS && ready < FEW_READY;
    pool->came_ns = now;
    pthread_mutex_unlock(&pool->mutex);
    return is_so;
}

/* Wait, without Python's lock, until a thread is done with it, but not for long: no part of the loop's step. */
static void let_through(Pool *pool)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += MOST_YIELDED_NS;
    if (until.tv_nsec >= 1000000000)
        until.tv_sec++, until.tv_nsec -= 1000000000;
    pthread_mutex_lock(&pool->mutex);
    const int64_t left = pool->left_python;
    while (pool->in_python && pool->left_python == left)
        if (pthread_cond_timedwait(&pool->has_left_python, &pool->mutex, &until))
            break;
    pool->came_ns = now_ns();
    note_step(pool, 0);
    pthread_mutex_unlock(&pool->mutex);
}

static void serve(Pool *pool, int64_t number, Queue *queue)
{
    pool->serving[number] = queue;
    queue->serving++, queue->turn = ++pool->turns;
}

/* Note that a thread has nothing of a queue any more; one that was given up may have another in its place. */
static void leave(Pool *pool, int64_t ticket, Queue *queue)
{
    const int64_t number = ticket % pool->threads;
    if (pool->tickets[number] == ticket)
        pool->serving[number] = NULL;
    queue->serving--;
}

/* Carry out what is in the queues until Python is needed. `served` is the queue that the thread was sent back for, and `settled`
the address of a group of which Python is done with a part, or 0: once the queue is stopped such a group may be gone. */
static Outcome work(Pool *pool, int64_t ticket, Queue *served, int64_t settled, Scratch *scratch)
{
    const int64_t number = ticket % pool->threads;
    Outcome outcome = {ENDED, NULL, NULL, 0, 0};
    Share *before;
    Queue *queue;
    pthread_mutex_lock(&pool->mutex);
    if (own_pool != pool->number || own_ticket != ticket)
        own_is_back_for_parts = 0, own_group = NULL;
    own_pool = pool->number, own_ticket = ticket;
    set_in_python(pool, 0);
    if (pool->tickets[number] == ticket)
        pool->begun[number] = ticket;
    Group *group = served && settled ? served->groups : NULL;
    while (group && (intptr_t)group != settled)
        group = group->behind;
    if (group && is_last(served, group))
        outcome = (Outcome){COMPLETE, served, group, 0, 0};
    else if (served) {
        leave(pool, ticket, served);
        if (is_left(served))
            outcome = (Outcome){LEFT, served, NULL, 0, 0};
    }
    while (outcome.why == ENDED) {
        if (pool->tickets[number] != ticket)
            break; /* another is there in its place, or will be */
        if (!first_going(pool)) {
            pool->tickets[number] = 0;
            break;
        }
        Queue *const called = next_call(pool);
        Share *const share = next_share(pool, &queue, &before);
        /* Parts of a group that no other thread carries out come first. */
        const int is_left_alone = called && share && queue == called && are_parts_left(pool, called)
                                  && (own_is_back_for_parts || share->group == own_group);
        if (called && !is_left_alone) {
            queue = called;
            queue->calls--, own_is_back_for_parts = 0, own_group = NULL;
            serve(pool, number, queue);
            outcome = (Outcome){CALLED, queue, NULL, 0, 0};
        } else if (share) {
            const int64_t part = take_part(queue, share, before), last = share->edges[part + 1];
            Group *const of = share->group;
            own_is_back_for_parts = 0, own_group = of;
            serve(pool, number, queue);
            wake_next(pool); /* one wakes the next */
            const int64_t done = carry_out(queue, share, part, scratch);
            if (!*queue->stop && done < last) {
                of->is_running++; /* until Python has it */
                outcome = (Outcome){NOT_BROUGHT, queue, of, share->first_part + part, done};
                break;
            }
            if (!*queue->stop && is_last(queue, of)) {
                outcome = (Outcome){COMPLETE, queue, of, 0, 0};
                break;
            }
            leave(pool, ticket, queue);
            if (is_left(queue))
                outcome = (Outcome){LEFT, queue, NULL, 0, 0};
        } else {
            pool->idle++;
            pthread_cond_wait(&pool->changed, &pool->mutex);
            pool->idle--;
        }
    }
    wake_next(pool); /* who was woken for a part may have found a call instead */
    set_in_python(pool, outcome.why == CALLED || outcome.why == COMPLETE);
    pthread_mutex_unlock(&pool->mutex);
    return outcome;
}

/* Put a queue behind those that are under way, and give each thread that is missing a ticket; `missing` has room for all. Return
how many are. */
static int64_t begin(Queue *queue, int64_t *missing)
{
    Pool *const pool = queue->pool;
    Queue **at = &pool->queues;
    int64_t count = 0;
    pthread_mutex_lock(&pool->mutex);
    for (; *at; at = &(*at)->behind)
        ;
    *at = queue;
    queue->behind = NULL, queue->is_linked = 1;
    for (int64_t k = 0; k < pool->threads; k++)
        if (!pool->tickets[k])
            missing[count++] = pool->tickets[k] = ++pool->generation * pool->threads + k;
    wake_next(pool); /* for what it was called for before */
    pthread_mutex_unlock(&pool->mutex);
    return count;
}

/* Put the shares of a group behind those in the queue. */
static void put_in_queue(Queue *queue, Group *group)
{
    pthread_mutex_lock(&queue->pool->mutex);
    group->behind = queue->groups, queue->groups = group;
    for (Share *share = group->shares; share; share = share->of_group) {
        *(queue->last ? &queue->last->behind : &queue->first) = share;
        queue->last = share;
    }
    pthread_mutex_unlock(&queue->pool->mutex);
    pthread_cond_signal(&queue->pool->changed); /* who wakes may have the processor next, and finds no mutex held */
}

/* Say whether the training loop waits for a batch. */
static void set_awaited(Queue *queue, int is_awaited)
{
    Pool *const pool = queue->pool;
    pthread_mutex_lock(&pool->mutex);
    pool->processors.awaited += is_awaited - queue->is_awaited;
    queue->is_awaited = is_awaited;
    if (pool->processors.waiting && is_awaited)
        pthread_cond_signal(&pool->processors.changed);
    if (is_awaited)
        wake_next(pool);
    else
        note_step(pool, 0);
    pthread_mutex_unlock(&pool->mutex);
}

/* Ask so many threads to go back to Python. */
static void call_threads(Queue *queue, int64_t count)
{
    Pool *const pool = queue->pool;
    pthread_mutex_lock(&pool->mutex);
    queue->calls = least(queue->calls + count, pool->threads);
    for (int64_t k = 0; k < least(count, pool->idle); k++)
        pthread_cond_signal(&pool->changed);
    pthread_mutex_unlock(&pool->mutex);
}

/* Note that a queue was stopped; return whether it is no longer among those of the pool by that. */
static int end_queue(Queue *queue)
{
    pthread_mutex_lock(&queue->pool->mutex);
    const int was_left = is_left(queue);
    end_threads(queue->pool); /* where threads still have something of it, too */
    pthread_mutex_unlock(&queue->pool->mutex);
    return was_left;
}

/* Count a thread as missing, which failed; without a ticket all that did not come yet. */
static void lose_threads(Pool *pool, int64_t ticket)
{
    pthread_mutex_lock(&pool->mutex);
    set_in_python(pool, 0);
    for (int64_t k = 0; k < pool->threads; k++)
        if (ticket ? pool->tickets[k] == ticket : pool->begun[k] != pool->tickets[k])
            count_as_missing(pool, k);
    pthread_mutex_unlock(&pool->mutex);
}

/* Give up the threads that have something of a queue that was stopped, since a file system holds them up; return how many others
are to begin in their place, for the passes that are still under way. */
static int64_t give_up(Queue *queue, int64_t *missing)
{
    Pool *const pool = queue->pool;
    int64_t count = 0;
    pthread_mutex_lock(&pool->mutex);
    for (int64_t k = 0; k < pool->threads; k++)
        if (pool->serving[k] == queue)
            count_as_missing(pool, k);
    for (int64_t k = 0; first_going(pool) && k < pool->threads; k++)
        if (!pool->tickets[k])
            missing[count++] = pool->tickets[k] = ++pool->generation * pool->threads + k;
    pthread_mutex_unlock(&pool->mutex);
    return count;
}
