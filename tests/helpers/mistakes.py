"""Mistakes in a config that psframe tells."""

#: overrides of a config, and words of the sentence
MISTAKES = [
    (["trian.epochs=3"], ["trian", "did you mean 'train'"]),
    (["train.epoch=3"], ["train.epoch", "did you mean 'epochs'"]),
    (["train.epochs=0"], ["train.epochs must be a whole number >= 1", "got 0", "train.epochs=VALUE"]),
    (["train.epochs=many"], ["train.epochs must be a whole number", "got 'many'"]),
    (["train.epochs=1.5"], ["train.epochs", "1.5"]),
    (["train.batch_size=-4"], ["train.batch_size", "-4"]),
    (["train.seed=-1"], ["train.seed", "-1"]),
    (["train.reproducible=always"], ["train.reproducible", "fixed_workers", "'always'"]),
    (["train.precision=half"], ["train.precision", "bf16", "'half'"]),
    (["schedule.name=linear"], ["schedule.name", "cosine", "'linear'"]),
    (["name=a/b"], ["name", "letters, digits, dots", "'a/b'"]),
    (['name="run\\n"'], ["name must be a text of letters, digits", "got 'run\\n'"]),
    ([f"name={'x' * 101}"], ["name must be a text of length <= 100"]),
    (["1=2"], ["1 is no key"]),
    (["optimizer={lr: 1", "x=2}"], ["YAML"]),
    (["train=3"], ["train must be keys and values", "3"]),
    (["model=[1]"], ["model", "[1]"]),
    (["train.epochs"], ["key.path=value", "'train.epochs'"]),
    (["=3"], ["key.path=value"]),
    (["train.epochs.more=3"], ["train.epochs.more=3", "epochs"]),
    (["train.epochs=[1"], ["YAML", "[1"]),
    (["collective.name=3"], ["3"]),
]
