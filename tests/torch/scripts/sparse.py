"""A language model with sparse gradients of its embedding, which not every backend can sum.

torchrun --standalone --nproc-per-node 2 sparse.py gloo
"""

import together
import torch
import transformer


def sparse():
    return transformer.train(torch.optim.SGD, False, sparse=True, tied=False)


if __name__ == "__main__":
    together.run(sparse)
