"""Measurements of the papers, for the columns beside those measured here."""

WOO = (
    "Woo, Choi and Lee 2020, “Empirical Performance Analysis of Collective Communication for Distributed Deep "
    "Learning in a Many-Core CPU Environment”"
)
LERAT = "Lerat, Mahmoudi and Mahmoudi 2022, “Distributed Deep Learning: From Single-Node to Multi-Node Architecture”"
HASHEMINEZHAD = (
    "Hasheminezhad et al. 2020, “Towards a Scalable and Distributed Infrastructure for Deep Learning Applications”"
)

#: one Xeon Phi with 68 cores; integer arrays
WOO_BYTES = {"bcast": "256 MB", "gather": "16 MB", "allreduce": "256 MB"}
NAMES = {"bcast": "Bcast", "gather": "Gather", "allreduce": "AllReduce"}

#: Table 1: method buffer, host, flat mode: number of ranks, DDR4's time in percent of MCDRAM's
WOO_1 = {"bcast": (16, 545.0), "gather": (64, 159.0), "allreduce": (68, 262.0)}
#: Table 4: the same of method C in four containers
WOO_4 = {"bcast": (68, 105.0), "gather": (64, 108.0), "allreduce": (32, 102.0)}
#: Table 5: seconds by containers (0: the host), method buffer, MCDRAM, 32 ranks
WOO_5 = {
    "bcast": {0: 0.285, 1: 0.288, 2: 1.991, 4: 2.231},
    "gather": {0: 0.194, 1: 0.199, 2: 0.508, 4: 0.628},
    "allreduce": {0: 1.261, 1: 1.271, 2: 4.447, 4: 4.677},
}
WOO_5_RANKS = 32
#: Table 7: seconds in quadrant and SNC-4 mode, four containers, 68 ranks, MCDRAM
WOO_7 = {"bcast": (2.398, 2.456), "gather": (1.538, 1.531), "allreduce": (5.342, 5.361)}
WOO_7_RANKS = 68

#: by prefix of a model's name: Lerat et al.'s name of the experiment, speed-up of threads, of processes
LERAT_SPEEDUP = {"vgg16": ("ComplexSmall", 4.0, 5.76), "alexnet": ("SimpleBig", 6.15, 15.57)}
LERAT_PROCESSES = 11
