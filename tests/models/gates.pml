/* Gates of a node's ranks, and the step that they commit: psframe/compiled/_sync.h and psframe/collectives/node_vectors.py.

Every rank is a worker with a slot of gradients, and a reducer with a segment of the parameters, of which there are two
copies. A rank may die at any moment. Waits have no time-out but for a death, so a wake-up that is missed is a hang. With
MISTAKE=n, the model has a defect.

    spin -DN=3 -DSTEPS=2 -a gates.pml && gcc -O2 -DSAFETY -DCOLLAPSE -o pan pan.c && ./pan
*/
#ifndef N
#define N 3
#endif
#ifndef STEPS
#define STEPS 2
#endif
#ifndef MISTAKE
#define MISTAKE 0
#endif
#define READY 0
#define COMMITTED 1
#define TORN 255

byte arrived[2], passage[2], sleepers[2];       /* psf_gate */
bool asleep[2 * N];                             /* ranks that the kernel lets wait, by gate */
byte slot[N];                                   /* the step whose gradients a slot holds, from 1 */
byte segment[2 * N];                            /* the version that a copy has in each segment */
bool dead[N], some_died;

/* FUTEX_WAKE: all that wait at the gate */
inline wake(gate) {
    d_step {
        rank = 0;
        do
        :: rank < N -> asleep[gate * N + rank] = false; rank++
        :: else -> break
        od;
        rank = 0
    }
}

/* psf_arrive */
inline arrive(gate, number) {
    if
    :: MISTAKE == 1 -> now = arrived[gate]; arrived[gate] = now + 1; last = (now + 1 == N)      /* not atomic */
    :: else -> d_step { arrived[gate]++; last = (arrived[gate] == N) }
    fi;
    if
    :: last && MISTAKE == 2 ->
        now = sleepers[gate];           /* looks for sleepers before it opens */
        arrived[gate] = 0;
        passage[gate] = number;
        if
        :: now -> wake(gate)
        :: else -> skip
        fi
    :: last && MISTAKE != 2 ->
        arrived[gate] = 0;
        passage[gate] = number;
        if
        :: sleepers[gate] -> wake(gate)
        :: else -> skip
        fi
    :: else -> skip
    fi
}

/* psf_wait, and Rendezvous._comes: who finds a rank dead looks at the gate once more */
inline wait_for(gate, number) {
    if
    :: passage[gate] >= number -> skip
    :: else ->
        if
        :: MISTAKE == 3 -> skip         /* sleeps without being counted */
        :: else -> sleepers[gate]++
        fi;
        do
        :: now = passage[gate];
            if
            :: now >= number -> break
            :: else -> skip
            fi;
            /* FUTEX_WAIT: the kernel compares the word; a defect is not to let it */
            d_step { asleep[gate * N + me] = (passage[gate] == now || MISTAKE == 4) };
            if
            :: !asleep[gate * N + me] -> skip
            :: some_died ->
                asleep[gate * N + me] = false;
                if
                :: passage[gate] >= number -> break
                :: else -> goto lost
                fi
            fi
        od;
        if
        :: MISTAKE == 3 -> skip
        :: else -> sleepers[gate]--
        fi
    fi;
    skip
}

proctype Rank(byte me) {
    byte step = 0, version = 0, rank, now, copy;
    bool last;
    {
        do
        :: step < STEPS ->
            step++;
            slot[me] = step;                                    /* backward */
            arrive(READY, step);
            if
            :: MISTAKE == 5 -> skip
            :: else -> wait_for(READY, step)
            fi;
            d_step {                                            /* the sum over all slots */
                rank = 0;
                do
                :: rank < N -> assert(slot[rank] == step); rank++
                :: else -> break
                od;
                rank = 0
            };
            copy = (MISTAKE == 6 -> version % 2 : (version + 1) % 2);
            segment[copy * N + me] = TORN;                      /* the update, under way */
            segment[copy * N + me] = version + 1;
            arrive(COMMITTED, step);
            if
            :: MISTAKE == 7 -> skip
            :: else -> wait_for(COMMITTED, step)
            fi;
            version++;
            d_step {                                            /* forward reads all segments */
                rank = 0;
                do
                :: rank < N -> assert(segment[(version % 2) * N + rank] == version); rank++
                :: else -> break
                od;
                rank = 0
            }
        :: else -> break
        od;
lost:   skip;   /* the state that goes on is complete: that of this rank's version, if it leads */
        d_step {
            rank = 0;
            do
            :: rank < N -> assert(segment[(version % 2) * N + rank] == version); rank++
            :: else -> break
            od;
            rank = 0
        }
    } unless { dead[me] }
}

proctype Fault() {
    byte victim;
    if
    :: true -> skip
    :: true -> select(victim : 0 .. (N - 1)); skip; d_step { dead[victim] = true; some_died = true }
    fi
}

init {
    byte rank = 0;
    atomic {
        do
        :: rank < N -> run Rank(rank); rank++
        :: else -> break
        od;
        run Fault()
    }
}
