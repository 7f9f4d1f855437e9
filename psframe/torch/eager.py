"""Code that ``torch.compile`` runs as it is (:func:`skip`): methods of groups and works, which C++ calls."""

from functools import cache
from types import FunctionType

from torch._C._dynamo import eval_frame

from psframe.torch import work


@cache
def skip(group: type) -> None:
    """Let Dynamo neither compile the methods of a class of groups, nor those of its works, nor what they call."""
    as_it_is = eval_frame._FrameExecStrategy(eval_frame._FrameAction.SKIP, eval_frame._FrameAction.SKIP)
    classes = {*group.__mro__, work.Work, work.Future, work.Collective, work.Message, work.Several}
    for one in classes:
        for method in vars(one).values() if one.__module__.startswith("psframe.") else ():
            if isinstance(method, FunctionType):
                eval_frame.set_code_exec_strategy(method.__code__, as_it_is)
