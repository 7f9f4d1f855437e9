"""Commands of ``psframe`` (:data:`COMMANDS`), and those beside training: quickstart, new, check and completion."""

COMMANDS = {
    "quickstart": "train on digits that come with psframe, on 4 ranks",
    "new": "write a folder with a config, a model, a dataset and a collective of your own",
    "check": "judge a config, without MPI and without training",
    "train": "train a network as a config says",
    "run": "train under mpirun, and start again when the job dies",
    "top": "show what the ranks of a running job do, in a terminal",
    "watch": "show the same on a page, in a browser",
    "why": "tell what went wrong in a run, or makes it slow",
    "dump": "write down what all ranks of a running job do",
    "scale": "let ranks join a running job, or leave it",
    "evaluate": "compute loss and accuracy of a run on a dataset",
    "label": "write the classes of new samples, by a run's network, as CSV",
    "export": "write a run's tensors to a file for other software",
    "compare": "train a grid of settings, and put them in one table",
    "tune": "find the fastest way to train a config on this machine",
    "predict": "predict epoch times on machines that are not at hand",
    "report": "make one page of runs and benchmarks",
    "doctor": "look at a machine, and at what a config would do on it",
    "bench": "measure steps, kernels and collectives",
    "completion": "print a completion script for bash, zsh or fish",
}
OVER_RANKS = ("train", "doctor", "bench")  # they take -n N here, and are then started by mpirun
OWN = {
    "quickstart": "psframe.starter.quickstart",
    "new": "psframe.starter.new",
    "check": "psframe.starter.check",
    "completion": "psframe.starter.completion",
    "top": "psframe.doctor.live.top",
    "watch": "psframe.doctor.live.watch",
    "why": "psframe.doctor.why",
    "dump": "psframe.doctor.dump",
    "scale": "psframe.api.scale",
    "evaluate": "psframe.api.evaluate",
    "label": "psframe.api.label",
    "export": "psframe.api.export",
}
