/* Membership of a job whose ranks join, leave and die: what docs/explanation/membership.md tells in words.

Rank 0 keeps the parameters; one fault may strike any rank at any moment. A step is a sample; a view is a set of members.
Names are those of psframe/cluster/pool.py and psframe/train/recovery.py. With MISTAKE=n, the model has a defect.

    spin -DN=4 -DSTEPS=2 -a membership.pml && gcc -O2 -DSAFETY -DCOLLAPSE -o pan pan.c && ./pan
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
#define ERAS 2
#define VIEWS 8
#define BOX(rank) ((MISTAKE == 15 -> 0 : era) * N + rank)

mtype = { CHANGE, ENDED, GOES_ON, LOST }

chan link[ERAS * N] = [3] of { mtype, byte };   /* rank 0's messages, by era (Pool.hear) */
byte dead, ended;                               /* ranks that have died, and that are done: their locks drop alike */
bool revoked[ERAS];                             /* communicators of an era */
byte job[ERAS];                                 /* ranks of the job */
byte shrunk[ERAS];                              /* ranks that have called Shrink */
byte split[VIEWS];                              /* ranks that have called Split, for a view (Pool.divide) */
byte parting[ERAS];                             /* ranks at the last barrier (Pool.leave) */
byte arrived[VIEWS], released[VIEWS];           /* the gate of a step */
bool halted[VIEWS];                             /* rank 0 asks for a pause (StopFlag) */
byte cursor;                                    /* steps that rank 0 has committed */
byte used[STEPS];                               /* how often each sample was applied */
byte place[N], view_of[N];                      /* step and view of each rank that trains */
bool changed;                                   /* the one request of the run was done */

#define left (dead | ended)
#define gone(era, set) ((left & (set)) || revoked[era] || (left & 1))

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

inline tell_all(kind, mask) {
    to = 1;
    do
    :: to < N && (job[era] & (1 << to)) ->
        link[BOX(to)] ! kind, mask;
        to++
    :: to < N && !(job[era] & (1 << to)) -> to++
    :: to >= N -> break
    od
}

proctype Rank(byte me) {
    byte era = 0, view = 0, members = ALL, next = 0, mine = 0, to = 0;
    mtype word;
    {
        /* before training: all know how many train at first */
        next = (1 << (N - 1)) - 1;
divide: /* Pool.divide: all ranks of the job meet */
        view++;
        split[view] = split[view] | ME;
        wait_in_mpi((split[view] & job[era]) == job[era], job[era]);
        members = next;
        mine = 0;
        if
        :: !(members & ME) && !(MISTAKE == 1 && me > 0) -> goto spare
        :: else -> skip
        fi;
        /* rebuilt: the new members take over rank 0's state and place */
        d_step {
            view_of[me] = view;
            if
            :: MISTAKE == 2 && me > 0 -> skip
            :: MISTAKE == 14 && me > 0 && era > 0 && place[me] > 0 -> skip
            :: else -> place[me] = cursor
            fi
        };
        arrived[view] = arrived[view] | ME;
        wait_for((arrived[view] & members) == members || released[view] > mine, members);
        if
        :: me == 0 -> d_step { arrived[view] = 0; released[view]++ }
        :: else -> wait_for(released[view] > mine, members)
        fi;
        mine++;

step:   if
        :: place[me] == STEPS -> goto end
        :: else -> skip
        fi;
        arrived[view] = arrived[view] | ME;
        if
        :: me == 0 ->
            if
            :: MISTAKE == 3 -> skip
            :: MISTAKE == 13 -> wait_for(((arrived[view] | dead) & members) == members, members)
            :: else -> wait_for((arrived[view] & members) == members, members)
            fi;
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
                place[0] = cursor
            };
            if
            :: !changed && cursor < STEPS -> changed = true; halted[view] = (MISTAKE != 4); to = N
            :: true -> to = 0
            fi;
            d_step { arrived[view] = 0; released[view]++ };
            mine++;
            if
            :: to == N -> goto change
            :: else -> goto step
            fi
        :: else ->
            wait_for(released[view] > mine, members);
            mine++;
            place[me]++;
            if
            :: halted[view] -> goto change
            :: else -> goto step
            fi
        fi;

change: /* resized: rank 0 says who trains from here on */
        if
        :: me == 0 ->
            if
            :: next = ALL
            :: next = 1
            :: next = 3
            fi;
            next = next & job[era];
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
        :: atomic { empty(link[BOX(me)]) && (left & 1) -> goto over }
        fi;
        if
        :: word == CHANGE || word == GOES_ON -> goto divide
        :: word == ENDED -> goto leave
        :: word == LOST -> goto loss
        fi;

loss:   /* Pool.survive: revoke, call the spares, Shrink */
        if
        :: left & 1 -> goto over
        :: else -> skip
        fi;
        if
        :: MISTAKE == 6 -> skip
        :: else -> revoked[era] = true
        fi;
        if
        :: me == 0 && MISTAKE != 7 ->
            to = 1;
            do
            :: to < N && nfull(link[BOX(to)]) -> link[BOX(to)] ! LOST, 0; to++
            :: to < N && full(link[BOX(to)]) -> to++
            :: to >= N -> break
            od
        :: else -> skip
        fi;
        if
        :: me == 0 && MISTAKE == 8 && cursor < STEPS -> cursor++   /* as if the step under way were done */
        :: else -> skip
        fi;
        shrunk[era] = shrunk[era] | ME;
        if
        :: atomic { ((shrunk[era] | (MISTAKE == 9 -> 0 : left)) & job[era]) == job[era] -> skip }
        :: atomic { (left & 1) -> goto over }
        fi;
        d_step {
            if
            :: job[era + 1] == 0 -> job[era + 1] = shrunk[era]
            :: else -> skip
            fi
        };
        era++;
        view = 4;       /* an era has gates and communicators of its own */
        if
        :: me == 0 ->
            if
            :: cursor == STEPS -> goto end
            :: else -> skip
            fi;
            if /* a spare takes the place of the lost member */
            :: next = job[era]
            :: next = members & job[era]
            fi;
            tell_all(GOES_ON, next);
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

end:    /* dismiss: the last message, and a barrier of all */
        if
        :: me == 0 ->
            if
            :: MISTAKE == 11 -> /* to members alone */
                to = 1;
                do
                :: to < N && (members & job[era] & (1 << to)) -> link[BOX(to)] ! ENDED, 0; to++
                :: to < N && !(members & job[era] & (1 << to)) -> to++
                :: to >= N -> break
                od
            :: else -> tell_all(ENDED, 0)
            fi;
            goto leave
        :: else -> goto spare
        fi;

leave:  parting[era] = parting[era] | ME;
        if /* one that dies here is waited for by nobody */
        :: (parting[era] & job[era]) == job[era]
        :: MISTAKE != 12 && gone(era, job[era])
        fi;
        if
        :: me == 0 -> to = 0;
            do
            :: to < STEPS -> assert(used[to] == 1); to++
            :: else -> break
            od
        :: else -> skip
        fi;
over:   ended = ended | ME
    } unless { dead & ME }
}

proctype Fault() {
    byte victim;
    if
    :: true -> skip
    :: true -> select(victim : 0 .. (N - 1)); dead = 1 << victim
    fi
}

init {
    byte rank = 0;
    atomic {
        job[0] = ALL;
        do
        :: rank < N -> run Rank(rank); rank++
        :: else -> break
        od;
        run Fault()
    }
}
