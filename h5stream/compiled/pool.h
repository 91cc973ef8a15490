/* A queue of plans, and the threads that carry them out. A thread comes from Python, and stays here, without Python's lock, for
as long as there is something to carry out: part after part, whatever runs Python meanwhile. It goes back for what Python has
to do: a call, a part that could not be brought, a window of which nothing is left to bring.

Guarantees: all members are read and written under `mutex`, but what a part is carried out with, which nobody changes once it is
in the queue. What Python counts references of is let go of with Python's lock alone. Nobody waits for it while it holds `mutex`. */

typedef struct Share Share;
typedef struct Group Group;

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
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    Share *first, *last; /* the queue */
    Group *groups;       /* all that were added and are not complete */
    const volatile int32_t *stop;
    int64_t threads;      /* that come here */
    int64_t calls;        /* for how many of them Python has something to do */
    int64_t idle;         /* threads that wait */
    int64_t running;      /* threads that carry something out */
    int64_t copying;      /* of those, how many copy */
    Processors processors;
    int is_ended;         /* whether nothing will be added any more */
} Pool;

/* Why a thread goes back to Python. */
enum { ENDED, CALLED, NOT_BROUGHT, COMPLETE };

typedef struct {
    int why;
    Group *group;
    int64_t part, done; /* of one that was not brought: its number, and the first unit that is still to be brought */
} Outcome;

/* Return the first share that a thread may take a part of, and the one before it. */
static Share *next_share(const Pool *pool, Share **before)
{
    *before = NULL;
    for (Share *share = pool->first; share; *before = share, share = share->behind)
        if (!share->plan->is_copy || pool->copying < most_taken(&pool->processors))
            return share;
    return NULL;
}

/* Take a part; return its number in the share. */
static int64_t take_part(Pool *pool, Share *share, Share *before)
{
    const int64_t part = share->next++;
    if (share->next == share->count) {
        *(before ? &before->behind : &pool->first) = share->behind;
        if (pool->last == share)
            pool->last = before;
    }
    return part;
}

static void add_counts(int64_t *to, const int64_t *counts)
{
    for (int k = 0; k < COUNTS; k++)
        to[k] += k == FAILED_AT || k == FAILED_NBYTES ? 0 : counts[k];
}

/* Count a part as done with; return whether it was the last of its group, which then is no longer among all. */
static int is_last(Pool *pool, Group *group)
{
    if (--group->pending)
        return 0;
    for (Group **at = &pool->groups; *at; at = &(*at)->behind)
        if (*at == group) {
            *at = group->behind;
            break;
        }
    return 1;
}

/* Carry a part out, without the mutex meanwhile; return the first unit that was not brought. */
static int64_t carry_out(Pool *pool, const Share *share, int64_t part, Scratch *scratch, int64_t *counts)
{
    int64_t own[COUNTS] = {0};
    const int is_copy = share->plan->is_copy;
    Landing into = share->into;
    into.scratch = scratch, into.stop = pool->stop, into.counts = own, into.processors = &pool->processors;
    pool->running++, share->group->is_running++, pool->copying += is_copy;
    pthread_mutex_unlock(&pool->mutex);
    const int64_t done = share->plan->land(share->plan, share->edges[part], share->edges[part + 1], &into);
    pthread_mutex_lock(&pool->mutex);
    pool->running--, share->group->is_running--, pool->copying -= is_copy;
    add_counts(counts, own);
    return done;
}

/* Carry out what is in the queue until Python is needed. `settled` is the address of a group of which Python is done with a
part, or 0: once the pool is stopped such a group may be gone. */
static Outcome work(Pool *pool, int64_t settled, Scratch *scratch, int64_t *counts)
{
    Outcome outcome = {ENDED, NULL, 0, 0};
    Share *before;
    pthread_mutex_lock(&pool->mutex);
    Group *group = pool->groups;
    while (group && (intptr_t)group != settled)
        group = group->behind;
    if (group && is_last(pool, group))
        outcome = (Outcome){COMPLETE, group, 0, 0};
    while (outcome.why == ENDED && !*pool->stop) {
        Share *const share = pool->calls ? NULL : next_share(pool, &before);
        if (pool->calls) {
            pool->calls--;
            outcome.why = CALLED;
        } else if (share) {
            const int64_t part = take_part(pool, share, before), last = share->edges[part + 1];
            if (pool->idle && next_share(pool, &before))
                pthread_cond_signal(&pool->changed); /* one wakes the next */
            const int64_t done = carry_out(pool, share, part, scratch, counts);
            if (*pool->stop)
                break;
            if (done < last) {
                share->group->is_running++; /* until Python has it */
                outcome = (Outcome){NOT_BROUGHT, share->group, share->first_part + part, done};
            } else if (is_last(pool, share->group))
                outcome = (Outcome){COMPLETE, share->group, 0, 0};
        } else if (pool->is_ended) {
            break;
        } else {
            pool->idle++;
            pthread_cond_wait(&pool->changed, &pool->mutex);
            pool->idle--;
        }
    }
    /* Who was woken for a part may have found a call instead. */
    if (pool->idle && (pool->calls || next_share(pool, &before)))
        pthread_cond_signal(&pool->changed);
    pthread_mutex_unlock(&pool->mutex);
    return outcome;
}

/* Put the shares of a group behind those in the queue. */
static void put_in_queue(Pool *pool, Group *group)
{
    pthread_mutex_lock(&pool->mutex);
    group->behind = pool->groups, pool->groups = group;
    for (Share *share = group->shares; share; share = share->of_group) {
        *(pool->last ? &pool->last->behind : &pool->first) = share;
        pool->last = share;
    }
    pthread_cond_signal(&pool->changed);
    pthread_mutex_unlock(&pool->mutex);
}

/* Say whether the training loop waits for a batch. */
static void set_awaited(Pool *pool, int is_awaited)
{
    Share *before;
    pthread_mutex_lock(&pool->mutex);
    pool->processors.is_awaited = is_awaited;
    if (pool->processors.waiting && is_awaited)
        pthread_cond_signal(&pool->processors.changed);
    if (pool->idle && is_awaited && next_share(pool, &before))
        pthread_cond_signal(&pool->changed);
    pthread_mutex_unlock(&pool->mutex);
}

/* Ask so many threads to go back to Python. */
static void call_threads(Pool *pool, int64_t count)
{
    pthread_mutex_lock(&pool->mutex);
    pool->calls = least(pool->calls + count, pool->threads);
    for (int64_t k = 0; k < least(count, pool->idle); k++)
        pthread_cond_signal(&pool->changed);
    pthread_mutex_unlock(&pool->mutex);
}

/* End: every thread goes back to Python, once the queue is empty or `stop` is set. */
static void end_pool(Pool *pool)
{
    pthread_mutex_lock(&pool->mutex);
    pool->is_ended = 1;
    pthread_cond_broadcast(&pool->changed);
    pthread_mutex_unlock(&pool->mutex);
}
