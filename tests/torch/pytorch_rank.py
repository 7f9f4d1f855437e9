"""A rank of PyTorch's own tests: runs those of a list one after the other (``tests/torch/pytorch_own.py`` starts it).

python -m tests.torch.pytorch_rank FOLDER     # runs what FOLDER/todo.json names, and writes FOLDER/told/N-RANK
python -m tests.torch.pytorch_rank list       # prints the names
"""

import json
import os
import sys
import time
import traceback
import types
import unittest
from datetime import timedelta
from pathlib import Path
from typing import Any

FAILED_S = 1  # a rank that has failed waits before it ends, for errors of the others that are not of its end


def _tests() -> type:
    """Return the class of the tests; its module chooses them by a name in the environment when it is imported."""
    try:
        import expecttest  # noqa: F401
    except ImportError:  # PyTorch's wheel does not require it, and no test of these needs more of it than a base class
        stand_in = types.ModuleType("expecttest")
        stand_in.TestCase = unittest.TestCase
        sys.modules["expecttest"] = stand_in
    import torch.distributed as dist

    if os.environ["PSFRAME_BACKEND"] == "psframe":
        import psframe.torch  # noqa: F401  (makes the name known)
    dist.is_mpi_available = lambda: True  # that a test is chosen which names MPI
    from torch.testing._internal.distributed import distributed_test

    class Tests(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
        pass

    return Tests


def main(folder: Path) -> None:
    """Run the tests of the list up to the first that fails here."""
    tests = _tests()
    rank = int(os.environ["RANK"])
    for at, name in enumerate(json.loads((folder / "todo.json").read_text())):
        told = _told(tests, name, rank, folder, at)
        part = folder / "told" / f".{at}-{rank}"
        part.write_text(json.dumps(told))
        part.rename(folder / "told" / f"{at}-{rank}")
        if told["error"]:
            time.sleep(FAILED_S)
            os._exit(1)


def _told(tests: type, name: str, rank: int, folder: Path, at: int) -> dict[str, Any]:
    """Run a test, as ``TestDistBackend._run`` does, in a group of its own."""
    import torch.distributed as dist
    from torch.testing._internal.common_distributed import TEST_SKIPS
    from torch.testing._internal.common_utils import set_rng_seed
    from torch.testing._internal.distributed import distributed_test

    method = getattr(tests, name)
    if getattr(method, "__unittest_skip__", False):
        return {"error": None, "skipped": method.__unittest_skip_why__}
    test = tests(name)
    test.rank, test.file_name = rank, str(folder / f"store-{at}")
    try:
        os.environ["INIT_METHOD"] = f"file://{folder}/again-{at}"
        distributed_test.INIT_METHOD = os.environ["INIT_METHOD"]
        seconds = distributed_test.CUSTOM_PG_TIMEOUT.get(name, distributed_test.default_pg_timeout)
        n, group = int(os.environ["WORLD_SIZE"]), timedelta(seconds=seconds)
        dist.init_process_group(os.environ["PSFRAME_BACKEND"], test.init_method, group, n, rank)
        test._barrier()
        set_rng_seed()
        environment = dict(os.environ)
        getattr(test, name)()
        os.environ.clear()
        os.environ.update(environment)
        test._barrier(timeout=60)
        if dist.is_initialized():
            dist.destroy_process_group()
        return {"error": None, "skipped": None}
    except (SystemExit, unittest.SkipTest) as ended:
        reason = {skip.exit_code: skip.message for skip in TEST_SKIPS.values()}.get(
            getattr(ended, "code", None), str(ended)
        )
        dist.destroy_process_group()
        return {"error": None, "skipped": reason}
    except BaseException:
        return {"error": traceback.format_exc(), "skipped": None}


if __name__ == "__main__":
    if sys.argv[1] == "list":
        print(json.dumps(sorted(name for name in dir(_tests()) if name.startswith("test_"))))
    else:
        main(Path(sys.argv[1]))
