/* Membership of a job whose ranks join, leave and die: what docs/explanation/membership.md tells in words.

Rank 0 leads, and another member in its place when it has died; one fault may strike any rank at any moment. A step is a
sample; a view is a set of members; an era ends with a loss. Names are those of psframe/cluster/pool.py and psframe/train/recovery.py. With MISTAKE=n, the model has a defect.

    spin -DN=4 -DSTEPS=2 -a membership.pml && gcc -O2 -DSAFETY -DCOLLAPSE -o pan pan.c && ./pan

With TRACED, ranks do what those of a job did, whose events trace.h has by rank; an error tells that all of them can be done
(tests/models/test_traces.py).
*/
#ifndef N
#define N 3
#endif
#ifndef STEPS
#define STEPS 3
#endif
#ifndef MISTAKE
#define MISTAKE 0
#endif
#define ALL ((1 << N) - 1)
#define ME (1 << me)
#define LEAD (1 << lead)
#define NOBODY N
#define ERAS 2
#define VIEWS 8
#define BOX(rank) ((MISTAKE == 15 -> 0 : era) * N + rank)

mtype = { CHANGE, ENDED, GOES_ON, LOST }

/* Events of a rank, in the order in which they are noted; a view and who leads follow in the lower bits. */
#define COMMIT 1
#define STEP 2
#define LOSS 3
#define HEARD_CHANGE 4
#define HEARD_GOES_ON 5
#define HEARD_ENDED 6
#define LEADS 8
#define VIEW 16
#ifdef TRACED
#include "trace.h"          /* VICTIM, LONGEST, TOTAL, and by rank: length, and events */
byte at[N], total;          /* events that a rank, and all of them, have done */
/* One that is killed may have done more than it had noted. */
#define note(event) atomic { \
    (at[me] < length[me] -> events[me * LONGEST + at[me]] == (event) : me == VICTIM) -> \
        total = total + (at[me] < length[me]); at[me] = at[me] + (at[me] < length[me]) };
#else
#define note(event)
#endif

chan link[ERAS * N] = [3] of { mtype, byte };   /* the leader's messages, by era (Pool.hear) */
byte dead, ended;                               /* ranks that have died, and that are done: their locks drop alike */
bool revoked[ERAS];                             /* communicators of an era */
byte job[ERAS];                                 /* ranks of the job */
byte shrunk[ERAS];                              /* ranks that have called Shrink */
byte has[ERAS];                                 /* those of them that have the state */
byte leader[ERAS];                              /* rank 0 of the job */
bool knows[ERAS];                               /* one of those that have called Shrink has heard of the end */
byte owed;                                      /* ranks that must have the state: to check, no rank reads it */
byte split[VIEWS];                              /* ranks that have called Split, for a view (Pool.divide) */
byte parting[ERAS];                             /* ranks at the last barrier (Pool.leave) */
byte arrived[VIEWS], released[VIEWS];           /* the gate of a step */
byte pause[VIEWS];                              /* members after the pause that the leader asks for (StopFlag) */
byte evaluated[VIEWS];                          /* members that have evaluated their share */
bool concluded[ERAS];                           /* the epoch has its record */
byte cursor;                                    /* steps that the leader has committed */
byte used[STEPS];                               /* how often each sample was applied, in the leader's state */
byte place[N], view_of[N];                      /* step and view of each rank that trains */
bool changed;                                   /* the one request of the run was done */

#define left (dead | ended)
#define gone(era, set) ((left & (set)) || revoked[era] || (left & LEAD))

/* A wait in shared memory looks at the gate once more when it has seen a loss; one in MPI may tell a loss either way. */
#define wait_for(condition, set) \
    if \
    :: atomic { (condition) -> skip } \
    :: atomic { !(condition) && gone(era, set) -> goto loss } \
    fi
#define wait_in_mpi(condition, set) \
    if \
    :: atomic { (condition) -> skip } \
    :: atomic { gone(era, set) -> goto loss } \
    fi

/* Who tells one that has died may notice it (Link.spread), but for the last message (Link.call). */
inline tell_all(kind, mask) {
    to = 0;
    do
    :: to < N && to != lead && (whom & job[era] & (1 << to)) ->
        if
        :: link[BOX(to)] ! kind, mask
        :: kind != ENDED && (dead & (1 << to)) -> goto loss
        fi;
        to++
    :: to < N && !(to != lead && (whom & job[era] & (1 << to))) -> to++
    :: to >= N -> break
    od
}

/* The next of those who train on has the state, too, until all have it (resize.keepers). */
inline find_keeper() {
    to = 0;
    do
    :: to < N && (to == lead || !(next & members & (1 << to))) -> to++
    :: else -> break
    od
}

proctype Rank(byte me) {
    byte era = 0, view = 0, members = ALL, next = 0, mine = 0, to = 0, lead = 0, whom = ALL;
    bool holds;
    mtype word;
    {
        /* before training: all know how many train at first */
        next = (1 << (N - 1)) - 1;
        d_step { holds = (me <= 1); owed = owed | (me <= 1 -> ME : 0) };
divide: /* Pool.divide: all ranks of the job meet */
        note(VIEW + next)
        view++;
        split[view] = split[view] | ME;
        wait_in_mpi((split[view] & job[era]) == job[era], job[era]);
        members = next;
        mine = 0;
        if
        :: !(members & ME) && !(MISTAKE == 1 && me != lead) -> goto spare
        :: else -> skip
        fi;
        /* rebuilt: the new members take over the leader's state and place */
        d_step {
            view_of[me] = view;
            if
            :: MISTAKE == 2 && me != lead -> skip
            :: MISTAKE == 14 && me != lead && era > 0 && place[me] > 0 -> skip
            :: else -> place[me] = cursor
            fi
        };
        arrived[view] = arrived[view] | ME;
        wait_for((arrived[view] & members) == members || released[view] > mine, members);
        if
        :: me == lead -> d_step { arrived[view] = 0; released[view]++ }
        :: else -> wait_for(released[view] > mine, members)
        fi;
        mine++;
        d_step { holds = true; owed = owed | ME };

step:   if
        :: place[me] == STEPS -> goto conclude
        :: else -> skip
        fi;
        arrived[view] = arrived[view] | ME;
        if
        :: me == lead ->
            if
            :: MISTAKE == 3 -> skip
            :: MISTAKE == 13 -> wait_for(((arrived[view] | dead) & members) == members, members)
            :: else -> wait_for((arrived[view] & members) == members, members)
            fi;
            note(COMMIT)
            d_step { /* commit */
                assert((arrived[view] & ~members) == 0);
                to = 0;
                do
                :: to < N && (members & (1 << to)) ->
                    assert(view_of[to] == view);
                    assert(place[to] == cursor);
                    assert(arrived[view] & (1 << to));
                    to++
                :: to < N && !(members & (1 << to)) -> to++
                :: to >= N -> break
                od;
                used[cursor]++;
                cursor++;
                place[lead] = cursor
            };
            next = 0;
            if
            :: !changed && cursor < STEPS ->
                if
                :: next = ALL
                :: next = 1
                :: next = 3
                :: next = 5
                fi;
                d_step {
                    changed = true;
                    next = (next | LEAD) & job[era];
                    pause[view] = (MISTAKE == 4 -> 0 : next);
                    find_keeper();
                    owed = LEAD | (to < N -> 1 << to : 0)
                }
            :: true -> skip
            fi;
            d_step { arrived[view] = 0; released[view]++ };
            mine++;
            if
            :: next -> goto change
            :: else -> goto step
            fi
        :: else ->
            wait_for(released[view] > mine, members);
            mine++;
            note(STEP)
            place[me]++;
            if
            :: pause[view] ->
                d_step {
                    next = pause[view];
                    find_keeper();
                    holds = (me == to && MISTAKE != 18)
                };
                goto change
            :: else -> goto step
            fi
        fi;

change: /* resized: the leader says who trains from here on */
        if
        :: me == lead ->
            tell_all(CHANGE, next);
            if
            :: MISTAKE == 5 -> cursor = cursor - 1
            :: else -> skip
            fi;
            goto divide
        :: else -> goto spare
        fi;

spare:  /* Pool.hear: a rank that leaves and one that has left wait alike */
        view_of[me] = 0;
        if
        :: atomic { link[BOX(me)] ? word, next -> skip }
        :: atomic { empty(link[BOX(me)]) && (left & LEAD) -> goto loss }
        fi;
        if
        :: word == CHANGE -> note(HEARD_CHANGE) goto divide
        :: word == GOES_ON -> note(HEARD_GOES_ON) goto divide
        :: word == ENDED -> note(HEARD_ENDED) goto leave
        :: word == LOST -> goto loss
        fi;

loss:   /* Pool.survive: revoke, call the spares, Shrink */
        note(LOSS)
        if
        :: MISTAKE == 6 -> skip
        :: else -> revoked[era] = true
        fi;
        if
        :: me == lead && MISTAKE != 7 ->
            to = 0;
            do
            :: to < N && to != me && nfull(link[BOX(to)]) -> link[BOX(to)] ! LOST, 0; to++
            :: to < N && (to == me || full(link[BOX(to)])) -> to++
            :: to >= N -> break
            od
        :: else -> skip
        fi;
        if
        :: me == lead && MISTAKE == 8 && cursor < STEPS -> cursor++   /* as if the step under way were done */
        :: else -> skip
        fi;
        d_step {
            shrunk[era] = shrunk[era] | ME;
            has[era] = has[era] | (holds || me == lead -> ME : 0)
        };
        ((shrunk[era] | (MISTAKE == 9 -> 0 : left)) & job[era]) == job[era];
        d_step { /* the first that has the state leads; the leader before, if it is left */
            if
            :: job[era + 1] == 0 ->
                job[era + 1] = shrunk[era];
                to = 0;
                do
                :: to < N && !(job[era + 1] & (MISTAKE == 17 -> ALL : has[era]) & (1 << to)) -> to++
                :: else -> break
                od;
                leader[era + 1] = (job[era + 1] & LEAD -> lead : to)
            :: else -> skip
            fi
        };
        if
        :: knows[era] -> goto over
        :: else -> skip
        fi;
        era++;
        view = 4;       /* an era has gates and communicators of its own */
        if
        :: leader[era] == NOBODY -> assert(!(owed & job[era])); goto over
        :: else -> assert(!(ended & job[era - 1]))    /* nobody has ended where others go on */
        fi;
        d_step {
            if
            :: leader[era] == me && lead != me ->
                assert(has[era - 1] & ME);
                assert(cursor - place[me] <= 1);        /* a server has two copies */
                cursor = (MISTAKE == 16 -> cursor : place[me]);
                to = place[me];
                do
                :: to < STEPS -> used[to] = 0; to++     /* they were in the state of the one that died */
                :: else -> break
                od
            :: else -> skip
            fi;
            lead = (MISTAKE == 21 && holds -> me : leader[era])
        };
        note(LEADS + lead)
        if
        :: me == lead ->
            if /* a spare takes the place of the lost member */
            :: next = job[era]
            :: next = members & job[era]
#ifdef TRACED
            :: next = 3 & job[era]      /* one of several spares */
            :: next = 5 & job[era]
            :: next = 6 & job[era]
            :: next = 7 & job[era]
#endif
            fi;
            next = next | LEAD;
            whom = (MISTAKE == 19 -> members : ALL);
            tell_all(GOES_ON, next);
            whom = ALL;
            goto divide
        :: else ->
            if
            :: MISTAKE == 10 -> /* each by its own view */
                link[BOX(me)] ? word, to;
                next = members & job[era];
                if
                :: word == ENDED -> goto leave
                :: else -> goto divide
                fi
            :: else -> goto spare
            fi
        fi;

conclude: /* all evaluate; the leader writes the record, and lets the others know, of whom some may miss it when it dies */
        evaluated[view] = evaluated[view] | ME;
        if
        :: me == lead -> wait_for((evaluated[view] & members) == members, members); concluded[era] = true
        :: else -> wait_in_mpi(concluded[era], members)
        fi;

        /* dismiss: the last message, and a barrier of all */
        if
        :: me == lead -> whom = (MISTAKE == 11 -> members : ALL); tell_all(ENDED, 0)
        :: else ->
            if
            :: atomic { link[BOX(me)] ? word, next -> skip }
            :: atomic { MISTAKE != 20 && empty(link[BOX(me)]) && (left & LEAD) -> goto part }
            fi;
            assert(word == ENDED);
            note(HEARD_ENDED)
        fi;

leave:  parting[era] = parting[era] | ME;
        if
        :: (parting[era] & job[era]) == job[era]
        :: MISTAKE != 12 && gone(era, job[era]) -> goto part
        fi;
        if
        :: me == lead -> to = 0;
            do
            :: to < STEPS -> assert(used[to] == 1); to++
            :: else -> break
            od
        :: else -> skip
        fi;
        goto over;

part:   /* Pool._part: one may have missed the end, and hears of it where all that are left meet */
        revoked[era] = true;
        if
        :: MISTAKE == 22 -> goto over
        :: else -> d_step { shrunk[era] = shrunk[era] | ME; knows[era] = true }
        fi;
        ((shrunk[era] | left) & job[era]) == job[era];
over:   ended = ended | ME
    } unless { dead & ME }
}

proctype Fault() {
#ifdef TRACED
    if
    :: VICTIM < N -> at[VICTIM] == length[VICTIM]; dead = 1 << VICTIM
    :: else -> skip
    fi;
    (left == ALL && total == TOTAL);
    assert(total < TOTAL)
#else
    byte victim;
    if
    :: true -> skip
    :: true -> select(victim : 0 .. (N - 1)); dead = 1 << victim
    fi
#endif
}

init {
    byte rank = 0;
#ifdef TRACED
    load_trace();
#endif
    atomic {
        job[0] = ALL;
        do
        :: rank < N -> run Rank(rank); rank++
        :: else -> break
        od;
        run Fault()
    }
}
