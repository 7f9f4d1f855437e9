"""Loops of the normalization layers (:func:`sample_moments` and others), and what they need by channel.

Conventions
-----------
``x`` and ``dy`` are (n, m), a row a sample: places times channels, channels innermost. What is given by channel is one
for all samples, (1, k, channels), or one for each, (n, k, channels). A call does ``part`` of ``n_parts``. ``lanes`` is
a tuple of the length of a vector, ``tail`` one of the length of the remainder of the channels.

Sums are taken for each sample alone, place by place, and then folded in float64 in the order of samples: their bits
depend neither on the threads nor on which rank has a sample.
"""

import numpy as np

from psframe.nn.jit import inline, jit
from psframe.nn.lanes import pointer
from psframe.nn.normalization import kernels
from psframe.nn.parts import share


@jit
def sample_moments(part, n_parts, lanes, tail, x, sums, moments):
    """Write each sample's means, and sums of squared differences from them, to ``moments`` (n, 2, channels) float64.

    Differences are taken from the first place's numbers, so that a mean far from 0 costs no digits. ``sums`` is a
    buffer (n, 2, channels) of x's type.
    """
    c = moments.shape[2]
    n_places, n_full = x.shape[1] // c, c - len(tail)
    for s in share(len(x), part, n_parts):
        at, to = s * x.shape[1], s * 2 * c
        for channel in range(0, n_full, len(lanes)):
            kernels.moments(
                (lanes, (None,), ()), n_places, (pointer(x), at + channel, c), (pointer(sums), to + channel, c)
            )
        if len(tail):
            kernels.moments((lanes, (), tail), n_places, (pointer(x), at + n_full, c), (pointer(sums), to + n_full, c))
        for channel in range(c):
            sum_d, sum_squares = np.float64(sums[s, 0, channel]), np.float64(sums[s, 1, channel])
            around = sum_squares - sum_d * sum_d / n_places
            moments[s, 0, channel] = x[s, channel] + sum_d / n_places
            moments[s, 1, channel] = 0.0 if around < 0 else around


@jit
def normalize(part, n_parts, lanes, tail, x, by_channel, around, floor, y):
    """Write max((``x`` - mean) * scale + shift, ``floor``) to ``y``; ``by_channel`` has the three. NaN stays NaN.

    ``around`` (n, m), or None, is added before that.
    """
    c = by_channel.shape[2]
    n_places, n_full = x.shape[1] // c, c - len(tail)
    for s in share(len(x), part, n_parts):
        at, own = s * x.shape[1], s * 3 * c if len(by_channel) > 1 else 0
        for channel in range(0, n_full, len(lanes)):
            place = at + channel
            kernels.normalize(
                (lanes, (None,), ()), n_places, (pointer(x), place, c), (pointer(by_channel), own + channel, c),
                (pointer(around), place, c), floor, (pointer(y), place, c),
            )  # fmt: skip
        if len(tail):
            place = at + n_full
            kernels.normalize(
                (lanes, (), tail), n_places, (pointer(x), place, c), (pointer(by_channel), own + n_full, c),
                (pointer(around), place, c), floor, (pointer(y), place, c),
            )  # fmt: skip


@jit
def gradient_sums(part, n_parts, lanes, tail, x, dy, by_channel, floor, y, around, sums):
    """Write each sample's sums of g and of g * (x - mean) to ``sums`` (n, 2, channels).

    g is ``dy``, or 0 where the output was at most ``floor``: 0 with a ReLU, else -inf. With the output ``y`` of a sum,
    g is written to ``around``, too; both are None without one.
    """
    c = by_channel.shape[2]
    n_places, n_full = x.shape[1] // c, c - len(tail)
    for s in share(len(x), part, n_parts):
        at, to, own = s * x.shape[1], s * 2 * c, s * 3 * c if len(by_channel) > 1 else 0
        for channel in range(0, n_full, len(lanes)):
            place = at + channel
            kernels.gradient_sums(
                (lanes, (None,), ()), n_places, (pointer(x), place, c), (pointer(dy), place, c),
                (pointer(by_channel), own + channel, c), floor, (pointer(y), place, c), (pointer(around), place, c),
                (pointer(sums), to + channel, c),
            )  # fmt: skip
        if len(tail):
            place = at + n_full
            kernels.gradient_sums(
                (lanes, (), tail), n_places, (pointer(x), place, c), (pointer(dy), place, c),
                (pointer(by_channel), own + n_full, c), floor, (pointer(y), place, c), (pointer(around), place, c),
                (pointer(sums), to + n_full, c),
            )  # fmt: skip


@jit
def input_gradient(part, n_parts, lanes, tail, x, dy, by_channel, floor, of_means, dx):
    """Write scale * g - a - b * (x - mean) to ``dx``: what reaches the input, also through mean and variance.

    ``of_means`` has a and b, for all samples or for each, as ``by_channel``. ``dx`` may be ``dy``.
    """
    c = by_channel.shape[2]
    n_places, n_full = x.shape[1] // c, c - len(tail)
    for s in share(len(x), part, n_parts):
        at, several = s * x.shape[1], len(by_channel) > 1
        own, means = s * 3 * c if several else 0, s * 2 * c if several else 0
        for channel in range(0, n_full, len(lanes)):
            place = at + channel
            kernels.input_gradient(
                (lanes, (None,), ()), n_places, (pointer(x), place, c), (pointer(dy), place, c),
                (pointer(by_channel), own + channel, c), floor, (pointer(of_means), means + channel, c),
                (pointer(dx), place, c),
            )  # fmt: skip
        if len(tail):
            place = at + n_full
            kernels.input_gradient(
                (lanes, (), tail), n_places, (pointer(x), place, c), (pointer(dy), place, c),
                (pointer(by_channel), own + n_full, c), floor, (pointer(of_means), means + n_full, c),
                (pointer(dx), place, c),
            )  # fmt: skip


@jit
def of_batch(moments, places, eps, weight, bias, found, by_channel):
    """Write mean and variance over all samples, and 1 / sqrt(variance + eps), to ``found`` (3, channels) float64.

    Samples are merged as in Chan, Golub and LeVeque 1983. ``by_channel`` (1, 3, channels) receives what
    :func:`normalize` takes.
    """
    n, _, channels = moments.shape
    mean, variance, _ = found
    mean[:] = 0
    variance[:] = 0
    for s in range(n):
        for channel in range(channels):
            mean[channel] += moments[s, 0, channel]
    for channel in range(channels):
        mean[channel] /= n
    for s in range(n):
        for channel in range(channels):
            d = moments[s, 0, channel] - mean[channel]
            variance[channel] += moments[s, 1, channel] + places * d * d
    for channel in range(channels):
        variance[channel] /= n * places
    prepare(eps, weight, bias, found, by_channel[0])


@jit
def of_running(running_mean, running_var, eps, weight, bias, found, by_channel):
    """Do the same with given mean and variance, both (channels,)."""
    found[0] = running_mean
    found[1] = running_var
    prepare(eps, weight, bias, found, by_channel[0])


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
        by_channel[1, channel] = inverse[channel] * weight[channel]
        by_channel[2, channel] = bias[channel]


@jit
def statistics_gradients(found, total, n, momentum, adds, running_mean, running_var, d_mean, d_var):
    """Write, or add, ``n`` times the steps of the running statistics, whose negatives are their changes.

    The variance among ``total`` numbers is the unbiased one, if there are several.
    """
    for channel in range(found.shape[1]):
        seen = found[1, channel] * (total / max(1, total - 1))
        of_mean = n * momentum * (running_mean[channel] - found[0, channel])
        of_var = n * momentum * (running_var[channel] - seen)
        d_mean[channel] = d_mean[channel] + of_mean if adds else of_mean
        d_var[channel] = d_var[channel] + of_var if adds else of_var


@jit
def batch_gradients(sums, total, weight, found, adds, dw, db, of_means):
    """Write, or add, the gradients of weight and bias; write what :func:`input_gradient` takes to ``of_means``.

    ``sums`` is (n, 2, channels), ``total`` the number of numbers of a channel.
    """
    for channel in range(len(weight)):
        of_dy, of_product, inverse = 0.0, 0.0, found[2, channel]
        for s in range(len(sums)):
            of_dy += sums[s, 0, channel]
            of_product += sums[s, 1, channel]
        dw[channel] = dw[channel] + of_product * inverse if adds else of_product * inverse
        db[channel] = db[channel] + of_dy if adds else of_dy
        scale = inverse * weight[channel] / total
        of_means[0, 0, channel] = scale * of_dy
        of_means[0, 1, channel] = scale * inverse * inverse * of_product


@jit
def group_gradients(sums, places, groups, weight, found, adds, dw, db, of_means):
    """Do the same for mean and variance of each sample's groups of channels."""
    n, _, channels = sums.shape
    size = channels // groups
    for channel in range(channels):
        of_weight, of_bias = 0.0, 0.0
        for s in range(n):
            of_weight += sums[s, 1, channel] * found[s, 2, channel]
            of_bias += sums[s, 0, channel]
        dw[channel] = dw[channel] + of_weight if adds else of_weight
        db[channel] = db[channel] + of_bias if adds else of_bias
    for s in range(n):
        for begin in range(0, channels, size):
            of_dy, of_product, inverse = 0.0, 0.0, found[s, 2, begin]
            for channel in range(begin, begin + size):
                of_dy += weight[channel] * sums[s, 0, channel]
                of_product += weight[channel] * sums[s, 1, channel]
            of_means[s, 0, begin : begin + size] = inverse * of_dy / (size * places)
            of_means[s, 1, begin : begin + size] = inverse**3 * of_product / (size * places)
