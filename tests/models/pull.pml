/* Pulls of parameters that rank 0 updates meanwhile: psframe/sync/stores/shared.py and the lock of psframe/compiled/_sync.h.

There are two copies, of two words each. A worker copies the current one and looks whether an update may have overtaken
it; after a try it asks rank 0 to wait, by the lock. Waits have no time-out, so a wake-up that is missed is a hang. With
MISTAKE=n, the model has a defect.

    spin -DN=2 -DUPDATES=4 -a pull.pml && gcc -O2 -DSAFETY -DCOLLAPSE -o pan pan.c && ./pan
*/
#ifndef N
#define N 2             /* workers */
#endif
#ifndef UPDATES
#define UPDATES 4
#endif
#ifndef PULLS
#define PULLS 2         /* of each worker */
#endif
#ifndef MISTAKE
#define MISTAKE 0
#endif
#define COPIES 2

byte clock, begun;              /* updates made, and begun */
byte word[4];                   /* the clock of each word, by copy */
byte lock;                      /* 0 free, 1 held, 2 held, maybe with waiters (psf_lock) */
bool asleep[N + 1];             /* who waits in the kernel for the lock */
byte holder = N + 1;

/* psf_lock: the first try takes a free lock, the later ones leave word of a waiter */
inline acquire() {
    d_step { was = lock; lock = (was == 0 -> 1 : lock) };
    do
    :: was == 0 -> break
    :: else ->
        d_step { was = lock; lock = 2 };
        if
        :: was == 0 -> break
        :: else -> skip
        fi;
        d_step { asleep[me] = (lock == 2) };    /* FUTEX_WAIT compares the word */
        !asleep[me]
    od;
    skip;
    d_step { assert(holder > N || MISTAKE == 5); holder = me }
}

/* psf_unlock: wakes one waiter */
inline release() {
    d_step { holder = N + 1; was = lock; lock = (MISTAKE == 6 && was == 2 -> 1 : 0) };
    if
    :: was == 2 && MISTAKE != 7 ->
        if
        :: asleep[0] -> asleep[0] = false
        :: asleep[1] -> asleep[1] = false
        :: asleep[N] -> asleep[N] = false
        :: !asleep[0] && !asleep[1] && !asleep[N] -> skip
        fi
    :: else -> skip
    fi
}

proctype Server(byte me) {
    byte was, to;
    do
    :: clock < UPDATES ->
        if
        :: MISTAKE == 5 -> skip
        :: else -> acquire()
        fi;
        if
        :: MISTAKE == 1 -> skip                         /* announces an update once it is written */
        :: else -> begun++
        fi;
        to = ((MISTAKE == 2 -> clock : clock + 1) % COPIES) * 2;
        if
        :: MISTAKE == 3 -> clock++                      /* commits before it has written */
        :: else -> skip
        fi;
        word[to] = (MISTAKE == 3 -> clock : clock + 1);
        word[to + 1] = (MISTAKE == 3 -> clock : clock + 1);
        if
        :: MISTAKE == 1 -> begun++
        :: else -> skip
        fi;
        if
        :: MISTAKE == 3 -> skip
        :: else -> clock++
        fi;
        if
        :: MISTAKE == 5 -> skip
        :: else -> release()
        fi
    :: else -> break
    od
}

inline copy() {
    at = clock;
    first = word[(at % COPIES) * 2];
    second = word[(at % COPIES) * 2 + 1]
}

proctype Worker(byte me) {
    byte pulls, at, first, second, was;
    do
    :: pulls < PULLS ->
        copy();
        if
        :: begun - at < COPIES + (MISTAKE == 4) -> skip
        :: else -> acquire(); copy(); release()
        fi;
        assert(first == at && second == at);            /* a pull is of one clock */
        pulls++
    :: else -> break
    od
}

init {
    atomic {
        run Worker(0);
        run Worker(1);
        run Server(N)
    }
}
