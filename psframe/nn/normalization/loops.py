"""Loops of the normalization layers (:func:`sample_moments` and others), and what they need by channel.

Conventions
-----------
``x`` and ``dy`` are (n, m), a row a sample: places times channels, channels innermost. What is given by channel is one
for all samples, (1, k, channels), or one for each, (n, k, channels). A call does ``part`` of ``n_parts``. ``types`` is
``Blocking.types`` for the channels. uint16 is bfloat16.

Sums are taken for each sample alone, place by place, and then folded in float64 in the order of samples: their bits
depend neither on the threads nor on which rank has a sample.
"""

import numpy as np

from psframe.nn.jit import inline, jit
from psframe.nn.lanes import pointer
from psframe.nn.normalization import kernels
from psframe.nn.pairs import as_number
from psframe.nn.parts import columns_of, share


@jit
def sample_moments(part, n_parts, types, x, sums, moments):
    """Write each sample's means, and sums of squared differences from them, to ``moments`` (n, 2, channels) float64.

    Differences are taken from the middle place's numbers, so that a mean far from 0 costs no digits; behind a padded
    convolution those of the corners are unlike all others. ``sums`` is a buffer (n, 2, channels).
    """
    c = moments.shape[2]
    n_places, (lanes, _, _, vectors, last_vectors, tail) = x.shape[1] // c, types
    block, _, n_blocks = columns_of(types, c)
    last = n_blocks * block
    for s in share(len(x), part, n_parts):
        at, to, middle = s * x.shape[1], s * 2 * c, n_places // 2 * c
        for number in range(n_blocks):
            read, write = (pointer(x), at + number * block, c), (pointer(sums), to + number * block, c)
            near = (pointer(x), at + middle + number * block, c)
            kernels.moments((lanes, vectors, ()), n_places, read, near, write)
        read, write = (pointer(x), at + last, c), (pointer(sums), to + last, c)
        kernels.moments((lanes, last_vectors, tail), n_places, read, (pointer(x), at + middle + last, c), write)
        for channel in range(c):
            sum_d, sum_squares = np.float64(sums[s, 0, channel]), np.float64(sums[s, 1, channel])
            around = sum_squares - sum_d * sum_d / n_places
            moments[s, 0, channel] = as_number(x[s, middle + channel]) + sum_d / n_places
            moments[s, 1, channel] = 0.0 if around < 0 else around


@jit
def normalize(part, n_parts, types, x, by_channel, around, floor, y):
    """Write max((``x`` - mean) * scale + shift, ``floor``) to ``y``; ``by_channel`` has the three. NaN stays NaN.

    ``around`` (n, m), or None, is added before that.
    """
    c = by_channel.shape[2]
    n_places, (lanes, _, _, vectors, last_vectors, tail) = x.shape[1] // c, types
    block, _, n_blocks = columns_of(types, c)
    last = n_blocks * block
    for s in share(len(x), part, n_parts):
        at, own = s * x.shape[1], s * 3 * c if len(by_channel) > 1 else 0
        for number in range(n_blocks):
            channel, place = number * block, at + number * block
            kernels.normalize(
                (lanes, vectors, ()), n_places, (pointer(x), place, c), (pointer(by_channel), own + channel, c),
                (pointer(around), place, c), floor, (pointer(y), place, c),
            )  # fmt: skip
        place = at + last
        kernels.normalize(
            (lanes, last_vectors, tail), n_places, (pointer(x), place, c), (pointer(by_channel), own + last, c),
            (pointer(around), place, c), floor, (pointer(y), place, c),
        )  # fmt: skip


@jit
def gradient_sums(part, n_parts, types, x, dy, by_channel, floor, y, around, sums):
    """Write each sample's sums of g and of g * (x - mean) to ``sums`` (n, 2, channels).

    g is ``dy``, or 0 where the output was at most ``floor``: 0 with a ReLU, else -inf. With the output ``y`` of a sum,
    g is written to ``around``, too; both are None without one.
    """
    c = by_channel.shape[2]
    n_places, (lanes, _, _, vectors, last_vectors, tail) = x.shape[1] // c, types
    block, _, n_blocks = columns_of(types, c)
    last = n_blocks * block
    for s in share(len(x), part, n_parts):
        at, to, own = s * x.shape[1], s * 2 * c, s * 3 * c if len(by_channel) > 1 else 0
        for number in range(n_blocks):
            channel, place = number * block, at + number * block
            kernels.gradient_sums(
                (lanes, vectors, ()), n_places, (pointer(x), place, c), (pointer(dy), place, c),
                (pointer(by_channel), own + channel, c), floor, (pointer(y), place, c), (pointer(around), place, c),
                (pointer(sums), to + channel, c),
            )  # fmt: skip
        place = at + last
        kernels.gradient_sums(
            (lanes, last_vectors, tail), n_places, (pointer(x), place, c), (pointer(dy), place, c),
            (pointer(by_channel), own + last, c), floor, (pointer(y), place, c), (pointer(around), place, c),
            (pointer(sums), to + last, c),
        )  # fmt: skip


@jit
def input_gradient(part, n_parts, types, x, dy, by_channel, floor, of_means, dx):
    """Write scale * g - a - b * (x - mean) to ``dx``: what reaches the input, also through mean and variance.

    ``of_means`` has a and b, for all samples or for each, as ``by_channel``. ``dx`` may be ``dy``.
    """
    c = by_channel.shape[2]
    n_places, (lanes, _, _, vectors, last_vectors, tail) = x.shape[1] // c, types
    block, _, n_blocks = columns_of(types, c)
    last = n_blocks * block
    for s in share(len(x), part, n_parts):
        at, several = s * x.shape[1], len(by_channel) > 1
        own, means = s * 3 * c if several else 0, s * 2 * c if several else 0
        for number in range(n_blocks):
            channel, place = number * block, at + number * block
            kernels.input_gradient(
                (lanes, vectors, ()), n_places, (pointer(x), place, c), (pointer(dy), place, c),
                (pointer(by_channel), own + channel, c), floor, (pointer(of_means), means + channel, c),
                (pointer(dx), place, c),
            )  # fmt: skip
        place = at + last
        kernels.input_gradient(
            (lanes, last_vectors, tail), n_places, (pointer(x), place, c), (pointer(dy), place, c),
            (pointer(by_channel), own + last, c), floor, (pointer(of_means), means + last, c),
            (pointer(dx), place, c),
        )  # fmt: skip


@jit
def fold_moments(moments, places, block):
    """Write the number of samples, and by channel the sum of their means and of squares around their common mean.

    ``block`` is (1 + 2 * channels,) float64. Samples are merged as in Chan, Golub and LeVeque 1983.
    """
    n, _, channels = moments.shape
    mean, around = block[1 : 1 + channels], block[1 + channels :]
    block[0] = n
    mean[:] = 0
    around[:] = 0
    for s in range(n):
        for channel in range(channels):
            mean[channel] += moments[s, 0, channel]
    for s in range(n):
        for channel in range(channels):
            d = moments[s, 0, channel] - mean[channel] / n
            around[channel] += moments[s, 1, channel] + places * d * d


@jit
def of_blocks(blocks, places, eps, weight, bias, found, by_channel):
    """Write mean and variance over all blocks, and 1 / sqrt(variance + eps), to ``found`` (3, channels) float64.

    Blocks, (m, 1 + 2 * channels), are merged as samples. ``by_channel`` (3, channels) receives what :func:`normalize`
    takes.
    """
    mean, variance, _ = found
    channels = len(mean)
    n = 0.0
    for block in range(len(blocks)):
        n += blocks[block, 0]
    for channel in range(channels):
        total, around = 0.0, 0.0
        for block in range(len(blocks)):
            total += blocks[block, 1 + channel]
        middle = total / n
        for block in range(len(blocks)):
            if blocks[block, 0] > 0:
                d = blocks[block, 1 + channel] / blocks[block, 0] - middle
                around += blocks[block, 1 + channels + channel] + blocks[block, 0] * places * d * d
        mean[channel] = middle
        variance[channel] = around / (n * places)
    prepare(eps, weight, bias, found, by_channel)


@jit
def of_running(running_mean, running_var, eps, weight, bias, found, by_channel):
    """Do the same with given mean and variance, both (channels,).

    A variance that steps from numbers rounded to bfloat16 left below 0, with a momentum near 1, counts as 0.
    """
    for channel in range(len(running_mean)):
        variance = as_number(running_var[channel])
        found[0, channel] = as_number(running_mean[channel])
        found[1, channel] = 0 if variance < 0 else variance
    prepare(eps, weight, bias, found, by_channel)


@jit
def of_groups(moments, places, groups, eps, weight, bias, found, by_channel):
    """Write the same of each sample, over groups of channels, to ``found`` (n, 3, channels); as above."""
    n, _, channels = moments.shape
    size = channels // groups
    for s in range(n):
        for begin in range(0, channels, size):
            total, around = 0.0, 0.0
            for channel in range(begin, begin + size):
                total += moments[s, 0, channel]
            middle = total / size
            for channel in range(begin, begin + size):
                d = moments[s, 0, channel] - middle
                around += moments[s, 1, channel] + places * d * d
            found[s, 0, begin : begin + size] = middle
            found[s, 1, begin : begin + size] = around / (size * places)
        prepare(eps, weight, bias, found[s], by_channel[s])


@inline
def prepare(eps, weight, bias, found, by_channel):
    """Complete ``found`` (3, channels), and write mean, scale and shift to ``by_channel`` (3, channels)."""
    mean, variance, inverse = found
    for channel in range(len(mean)):
        inverse[channel] = 1 / np.sqrt(variance[channel] + eps)
        by_channel[0, channel] = mean[channel]
        by_channel[1, channel] = inverse[channel] * as_number(weight[channel])
        by_channel[2, channel] = as_number(bias[channel])


@jit
def statistics_gradients(found, total, n, momentum, adds, running_mean, running_var, d_mean, d_var):
    """Write, or add, ``n`` times the steps of the running statistics, whose negatives are their changes.

    The variance among ``total`` numbers is the unbiased one, if there are several.
    """
    for channel in range(found.shape[1]):
        seen = found[1, channel] * (total / max(1, total - 1))
        of_mean = n * momentum * (as_number(running_mean[channel]) - found[0, channel])
        of_var = n * momentum * (as_number(running_var[channel]) - seen)
        d_mean[channel] = d_mean[channel] + of_mean if adds else of_mean
        d_var[channel] = d_var[channel] + of_var if adds else of_var


@jit
def fold_sums(sums, block):
    """Write the number of samples, and the sums of their rows of :func:`gradient_sums`, to ``block``; as above."""
    n, _, channels = sums.shape
    block[0] = n
    block[1:] = 0
    for s in range(n):
        for channel in range(channels):
            block[1 + channel] += sums[s, 0, channel]
            block[1 + channels + channel] += sums[s, 1, channel]


@jit
def of_block_means(blocks, total, weight, found, of_means):
    """Write what :func:`input_gradient` takes to ``of_means`` (2, channels), from all blocks.

    ``total`` is the number of numbers of a channel.
    """
    channels = len(weight)
    for channel in range(channels):
        of_dy, of_product, inverse = 0.0, 0.0, found[2, channel]
        for block in range(len(blocks)):
            of_dy += blocks[block, 1 + channel]
            of_product += blocks[block, 1 + channels + channel]
        scale = inverse * as_number(weight[channel]) / total
        of_means[0, channel] = scale * of_dy
        of_means[1, channel] = scale * inverse * inverse * of_product


@jit
def block_gradients(block, found, adds, dw, db):
    """Write, or add, the gradients of weight and bias over a block."""
    channels = len(dw)
    for channel in range(channels):
        of_dy, of_product = block[1 + channel], block[1 + channels + channel] * found[2, channel]
        dw[channel] = dw[channel] + of_product if adds else of_product
        db[channel] = db[channel] + of_dy if adds else of_dy


@jit
def group_gradients(sums, found, adds, dw, db):
    """Write, or add, the gradients of weight and bias where each sample has its own mean and variance."""
    n, _, channels = sums.shape
    for channel in range(channels):
        of_weight, of_bias = 0.0, 0.0
        for s in range(n):
            of_weight += sums[s, 1, channel] * found[s, 2, channel]
            of_bias += sums[s, 0, channel]
        dw[channel] = dw[channel] + of_weight if adds else of_weight
        db[channel] = db[channel] + of_bias if adds else of_bias


@jit
def of_group_means(sums, places, groups, weight, found, of_means):
    """Do the same as :func:`of_block_means` for mean and variance of each sample's groups of channels."""
    n, _, channels = sums.shape
    size = channels // groups
    for s in range(n):
        for begin in range(0, channels, size):
            of_dy, of_product, inverse = 0.0, 0.0, found[s, 2, begin]
            for channel in range(begin, begin + size):
                of_dy += as_number(weight[channel]) * sums[s, 0, channel]
                of_product += as_number(weight[channel]) * sums[s, 1, channel]
            of_means[s, 0, begin : begin + size] = inverse * of_dy / (size * places)
            of_means[s, 1, begin : begin + size] = inverse**3 * of_product / (size * places)
