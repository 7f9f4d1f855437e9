"""Tests that PyTorch has of process groups, on the backend "psframe" (``tests/torch/pytorch_own.py``)."""

import pytest

from tests.torch.pytorch_own import outcomes

pytest.importorskip("torch", reason="PyTorch, whose backend this is, is not installed: pip install -e .[torch]")

#: tests that it cannot pass, and why
LEFT_OUT = {
    "test_get_backend": "wants the name of PyTorch's own",
    "test_monitored_barrier_gloo": "PyTorch refuses it to all others by their name",
    "test_monitored_barrier_gloo_rank_0_timeout": "wants gloo's words",
    "test_monitored_barrier_gloo_subgroup": "PyTorch refuses it to all others by their name",
    "test_sparse_all_reduce_sum": "sparse tensors are refused",
}
#: what names of those begin with that the default suite has
FEW = (
    "accumulate",
    "all_gather_object",
    "all_to_all",
    "batch_isend",
    "ddp_",
    "DistributedData",
    "get_future",
    "send_recv",
)


@pytest.mark.parametrize(
    ("like", "n", "names", "least"),
    [
        pytest.param("gloo", 3, FEW, 20, marks=pytest.mark.full),
        pytest.param("gloo", 3, (), 85, marks=pytest.mark.full),
        pytest.param("mpi", 3, (), 85, marks=pytest.mark.full),
        pytest.param("gloo", 2, (), 80, marks=pytest.mark.full),
        pytest.param("mpi", 4, (), 85, marks=pytest.mark.full),
    ],
)
def test_own_tests_of_pytorch_pass(like, n, names, least):
    """Most of them want a GPU, and are skipped."""
    told = list(outcomes("psframe", like, n, names, LEFT_OUT))
    failed = {line["test"]: (line["errors"], line.get("stderr")) for line in told if line["errors"]}
    assert not failed
    assert sum(not line["skipped"] for line in told) >= least
