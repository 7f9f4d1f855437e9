"""Soft targets in the loss: label smoothing, two labels a sample, and both, beside PyTorch's."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psframe.errors import UserError
from psframe.nn.losses import Targets, softmax_cross_entropy

torch = pytest.importorskip("torch", reason="torch is not installed: pip install -e .[torch]")


def drawn(n, n_classes, seed, scale=4):
    """Return logits, two labels a sample and the shares of the first."""
    rng = np.random.default_rng(seed)
    labels, others = rng.integers(0, n_classes, (2, n))
    return rng.standard_normal((n, n_classes)) * scale, labels, others, rng.random(n, np.float32)


def ours(logits, targets, dtype):
    logits = logits.astype(dtype)
    dlogits = np.full_like(logits, np.nan)
    loss, n_correct = softmax_cross_entropy(logits, targets, dlogits)
    return loss, n_correct, dlogits


def of_torch(logits, targets, smoothing=0.0):
    """Return the loss and its gradient for class numbers or distributions, summed over the samples, in float64."""
    z = torch.tensor(logits, requires_grad=True)
    loss = torch.nn.CrossEntropyLoss(reduction="sum", label_smoothing=smoothing)(z, torch.tensor(targets))
    loss.backward()
    return loss.item(), z.grad.numpy()


@given(
    st.integers(1, 12),
    st.integers(1, 9),
    st.integers(0, 999),
    st.sampled_from([0.0, 0.1, 0.5, 0.99]),
    st.sampled_from(["float32", "float64"]),
)
def test_loss_and_gradient_are_those_of_pytorch(n, n_classes, seed, smoothing, dtype):
    logits, labels, others, shares = drawn(n, n_classes, seed)
    logits = logits.astype(dtype).astype(np.float64)
    one_hot, weights = np.eye(n_classes), shares.astype(np.float64)[:, None]
    mixed = weights * one_hot[labels] + (1 - weights) * one_hot[others]
    for targets, wanted in (
        (Targets(labels, smoothing=smoothing), of_torch(logits, labels, smoothing)),
        (Targets(labels, others, shares, smoothing), of_torch(logits, mixed, smoothing)),
    ):
        loss, n_correct, dlogits = ours(logits, targets, dtype)
        assert loss == pytest.approx(wanted[0], rel=1e-6, abs=1e-6)
        np.testing.assert_allclose(dlogits, wanted[1], rtol=0, atol=1e-6)
        assert n_correct == (logits.argmax(1) == labels).sum(), "a sample's own label counts, and no other"
        of_dense, _ = of_torch(logits, targets.dense(n_classes).astype(np.float64))
        assert loss == pytest.approx(of_dense, rel=1e-5, abs=1e-5)


def test_targets_of_one_plain_label_have_the_bits_of_labels():
    logits, labels, others, _ = drawn(40, 7, 1)
    plain = ours(logits, labels, "float32")
    for targets in (Targets(labels), Targets(labels, others, np.ones(40, np.float32))):
        soft = ours(logits, targets, "float32")
        assert soft[:2] == plain[:2]
        np.testing.assert_array_equal(soft[2], plain[2])


def test_loss_of_hard_labels_ignores_how_far_others_are():
    logits = np.array([[0.0, -np.inf, 1.0], [2.0, 1.0, -np.inf]], np.float32)
    labels = np.array([2, 0])
    assert np.isfinite(softmax_cross_entropy(logits, labels, logits[:0])[0])
    assert np.isinf(softmax_cross_entropy(logits, Targets(labels, smoothing=0.1), logits[:0])[0])
    of_pair, all_of_one = (labels, np.array([1, 2])), np.ones(2, np.float32)
    for targets in (Targets(*of_pair, all_of_one), Targets(*of_pair[::-1], 1 - all_of_one)):
        assert np.isfinite(softmax_cross_entropy(logits, targets, logits[:0])[0])


def test_loss_without_gradients_is_the_same():
    logits, labels, others, shares = drawn(11, 5, 2)
    for targets in (Targets(labels, smoothing=0.2), Targets(labels, others, shares, 0.2)):
        assert softmax_cross_entropy(logits, targets, logits[:0]) == ours(logits, targets, "float64")[:2]


@pytest.mark.parametrize("wrong", [3, -1])
def test_second_label_that_is_none_is_told(wrong):
    targets = Targets(np.array([1, 2]), np.array([0, wrong]), np.array([1, 1], np.float32))
    with pytest.raises(UserError, match=rf"labels must lie in \[0, 3\), got 2 and {wrong}"):
        softmax_cross_entropy(np.zeros((2, 3)), targets, np.zeros((2, 3)))
